"""How long `agent-checkpoint --help` takes, above a bare Python (id `help`).

Each figure is the median wall time of whole processes, which take turns so that a busy moment hits
all of them alike. Measured as P9 is, see `import_time`.
"""

from bench import import_time

TARGET_MS = 80
RUN = (
    "import sys; sys.stdout = open('/dev/null', 'w'); from agent_checkpoint.cli.main import main; "
)
WORK = {
    "bare Python": "pass",
    "agent-checkpoint --help": RUN + "main(['--help'])",
    "agent-checkpoint log --help": RUN + "main(['log', '--help'])",
}


def measure(runs: int) -> dict[str, float]:
    """The median milliseconds of each piece of work."""
    return import_time.measure(runs, WORK)
