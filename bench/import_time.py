"""How long `import agent_checkpoint` takes, above a bare Python (target P9).

Each figure is the median wall time of whole processes, which take turns so that a busy moment hits
all of them alike. Standard library only; `--json` prints the figures for a program.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TARGETS_MS = {
    "import agent_checkpoint": 30,
    "manager and workspace": 50,
    "session": 70,
}
"""The targets P9: at most this much above a bare Python."""
LEAST_RUNS = 15
WORK = {
    "bare Python": "pass",
    "import agent_checkpoint": "import agent_checkpoint",
    "manager and workspace": "from agent_checkpoint import CheckpointManager, Workspace",
    "session": "from agent_checkpoint import Session",
    "every public name": "from agent_checkpoint import *",
    "for scale: import asyncio": "import asyncio",
}


def seconds(statement: str) -> float:
    """The wall time of one new process that runs the statement."""
    command = [sys.executable, "-c", statement]
    # An installed package has its bytecode; without, each process would compile every module.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    started = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - started


def measure(runs: int, work: dict[str, str] = WORK) -> dict[str, float]:
    """The median milliseconds of each piece of work."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(runs + 1):
        for name, statement in work.items():
            taken = seconds(statement)
            if turn:  # the first turn compiles and fills the file cache
                times[name].append(taken)
    return {name: statistics.median(taken) * 1000 for name, taken in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=31, help=f"at least {LEAST_RUNS}")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = max(LEAST_RUNS, options.runs)
    # Each process would otherwise be measured with what coverage or a debugger adds to it.
    os.environ.pop("COVERAGE_PROCESS_START", None)
    figures = measure(runs)
    bare = figures["bare Python"]
    above = {name: value - bare for name, value in figures.items()}
    met = {name: above[name] <= target for name, target in TARGETS_MS.items()}
    if options.json:
        print(json.dumps({"runs": runs, "ms": figures, "ms_above_bare": above, "met": met}))
        return 0
    print(f"P9: import time, median of {runs} processes, Python {sys.version.split()[0]}\n")
    print(f"  {'':28}{'ms':>8}{'above bare':>14}{'ratio':>8}")
    for name, value in figures.items():
        print(f"  {name:28}{value:8.1f}{above[name]:+11.1f} ms{value / bare:8.2f}")
    for name, target in TARGETS_MS.items():
        verdict = "met" if met[name] else "MISSED"
        print(f"  target: {name} at most {target} ms above bare: {verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
