"""Runs modules of this package as programs of their own. Does not start them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
    package = Path(__file__).resolve().parents[2] / "__init__.py"
    return [sys.executable, "-I", "-c", _START, str(package), module]


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
