"""Lines on the terminal that tell how far the tasks are. Owns their form; silent elsewhere.

They are whole lines: what an agent prints meanwhile stands above or below, never within.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

_WIDTH = 24
_MIN_SECONDS = 0.5
"""Thousands of quick tasks do not bury what else is on the screen."""


class _LastLine:
    """When the last line was written."""

    written = float("-inf")


def show_progress(done: int, total: int, words: str) -> None:
    """Write a line, if a person is looking at the terminal and there was none just now.

    The one that says that all is done is always written.
    """
    out = sys.stderr
    try:
        if not out.isatty() or os.environ.get("AGENT_CHECKPOINT_PROGRESS") == "0":
            return
        now = time.monotonic()
        if done < total and now - _LastLine.written < _MIN_SECONDS:
            return
        _LastLine.written = now
        full = _WIDTH * done // max(total, 1)
        bar = "█" * full + "░" * (_WIDTH - full)
        room = max(20, shutil.get_terminal_size().columns - 1)
        out.write(f"{bar} {done}/{total} {' '.join(words.split())}"[:room] + "\n")
        out.flush()
    except (OSError, ValueError, UnicodeEncodeError, AttributeError):
        return  # a terminal that is gone is no reason to stop
