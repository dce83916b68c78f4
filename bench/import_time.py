"""How long imports take (target P9), and the help of the command (id `help`), above a bare Python.

Each figure is the median wall time of whole processes, which take turns so that a busy moment hits
all of them alike.
"""

from __future__ import annotations

import os
import subprocess
import sys

from bench.figures import Times, summary_ms, timed
from bench.rows import Row

RUNS = 15
BARE = "bare Python"
IMPORTS = {
    BARE: "pass",
    "import agent_checkpoint": "import agent_checkpoint",
    "manager and workspace": "from agent_checkpoint import CheckpointManager, Workspace",
    "session": "from agent_checkpoint import Session",
    "import *": "from agent_checkpoint import *",
    "for scale: import asyncio": "import asyncio",
}
IMPORT_TARGETS = {
    "import agent_checkpoint": 30.0,
    "manager and workspace": 50.0,
    "session": 70.0,
}
"""Milliseconds above a bare Python, at most."""
FLOORS = ("manager and workspace", "session")
"""Imports that are also compared with the modules of the standard library that they load."""
_QUIET = (
    "import sys; sys.stdout = open('/dev/null', 'w'); from agent_checkpoint.cli.main import main; "
)
HELP = {
    BARE: "pass",
    "agent-checkpoint --help": _QUIET + "main(['--help'])",
    "agent-checkpoint log --help": _QUIET + "main(['log', '--help'])",
}
HELP_TARGETS = {"agent-checkpoint --help": 80.0}


def measure(statements: dict[str, str]) -> dict[str, Times]:
    """The times of a process for each statement."""
    statements = statements | {
        f"{name}, floor": modules_alone(statements[name]) for name in FLOORS if name in statements
    }
    times: dict[str, list[int]] = {name: [] for name in statements}
    for turn in range(RUNS + 1):
        for name, statement in statements.items():
            taken = timed(lambda statement=statement: _run(statement))  # type: ignore[misc]
            if turn:  # the first turn compiles and fills the file cache
                times[name].append(taken)
    return {name: summary_ms(taken) for name, taken in times.items()}


def rows(id: str, figures: dict[str, Times], targets: dict[str, float]) -> list[Row]:
    """What each takes above a bare Python."""
    found = [
        Row.of_times(
            id,
            name,
            figures[name],
            figures[BARE],
            "p50",
            peer_name="bare",
            target=target,
            difference=True,
        )
        for name, target in targets.items()
    ]
    return found + [
        Row.of_times(
            id,
            name,
            figures[name],
            figures[f"{name}, floor"],
            "p50",
            peer_name="the standard library modules alone",
            difference=True,
            floor=True,
        )
        for name in FLOORS
        if name in targets
    ]


def modules_alone(statement: str) -> str:
    """A statement that imports what this one loads of the standard library."""
    names = _run(f"{statement}; import sys; print(*sys.modules)").split()
    known = [name for name in names if name.partition(".")[0] in sys.stdlib_module_names]
    return f"import {', '.join(known)}"


def _run(statement: str) -> str:
    command = [sys.executable, "-c", statement]
    # An installed package has its bytecode; without, each process would compile every module.
    # Nor is a process measured with what coverage adds to it.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "COVERAGE_PROCESS_START": ""}
    done = subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    return done.stdout
