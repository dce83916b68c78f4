"""Runs modules of this package as programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_STDERR = 2
_START = """
import importlib.util, sys
name = "agent_checkpoint"
found = importlib.util.spec_from_file_location(name, sys.argv.pop(1))
sys.modules[name] = importlib.util.module_from_spec(found)
found.loader.exec_module(sys.modules[name])
sys.exit(importlib.import_module(sys.argv.pop(1)).main())
"""


def own_program(module: str) -> list[str]:
    """Return the command line that runs `main` of a module of this installed package.

    The program does not import modules from the current directory.
    """
    return [sys.executable, "-I", "-c", _START, _package(), module]


@cache
def _package() -> str:
    return str(Path(__file__).resolve().parents[2] / "__init__.py")


def start_on_further_cores(
    module: str, arguments: Sequence[str], *, most: int, fds: Sequence[int]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program on each core but one; fewer or none if no more can be started.

    Its stdin and stdout are pipes.

    Args:
        module: the module of this package.
        arguments: its arguments.
        most: the number of programs at most.
        fds: descriptors that it inherits. If one has the number of a standard stream, which this
            process has closed, no program is started: a pipe would take its place.
    """
    if min(fds) <= _STDERR:
        return
    command = [*own_program(module), *arguments]
    for _ in range(min(usable_cores() - 1, most) if sys.executable else 0):
        try:
            yield subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=fds,
                cwd="/",
                start_new_session=True,  # Ctrl-C is for this process, which ends them
            )
        except OSError:  # too many processes
            return


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
