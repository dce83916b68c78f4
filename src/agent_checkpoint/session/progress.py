"""A line on the terminal that tells how far the tasks are. Owns its form; silent elsewhere."""

from __future__ import annotations

import os
import shutil
import sys

_WIDTH = 24


def show_progress(done: int, total: int, words: str) -> None:
    """Write the line over itself, if a person is looking at the terminal."""
    out = sys.stderr
    try:
        if not out.isatty() or os.environ.get("AGENT_CHECKPOINT_PROGRESS") == "0":
            return
        full = _WIDTH * done // max(total, 1)
        bar = "█" * full + "░" * (_WIDTH - full)
        room = max(20, shutil.get_terminal_size().columns - 1)
        out.write("\r\x1b[K" + f"{bar} {done}/{total} {words}"[:room])
        if done == total:
            out.write("\n")
        out.flush()
    except (OSError, ValueError, UnicodeEncodeError, AttributeError):
        return  # a terminal that is gone is no reason to stop
