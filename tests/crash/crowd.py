"""Starts many processes that all begin at the same moment, and collects what each acknowledges.

Each runs `module:function(*arguments)`, prints a line with `tell` for whatever it has done, and
must end well.
"""

import subprocess
import sys

from tests.crash.fault_process import child_environment

LONGEST_WAIT = 300

_START = """
import importlib, sys
module, _, function = sys.argv[1].rpartition(":")
do = getattr(importlib.import_module(module), function)
print("ready", flush=True)
sys.stdin.readline()
do(*sys.argv[2:])
"""


def start(function, *arguments):
    """Start one; it waits to be told to go on."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _START, function, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def ended(process):
    """Wait for its end, which must be a good one, and return the lines it told."""
    output, errors = process.communicate(timeout=LONGEST_WAIT)
    assert (process.returncode, errors) == (0, "")
    return output.splitlines()


def together(calls):
    """Run `(function, *arguments)` each in a process, at once; return what each told."""
    processes = []
    try:
        processes.extend(start(*call) for call in calls)
        for process in processes:
            go(process)
        return [ended(process) for process in processes]
    finally:
        stop(processes)


def stop(processes):
    """Kill those that still run."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def tell(*words):
    """Acknowledge something, from within such a process."""
    print(*words, flush=True)
