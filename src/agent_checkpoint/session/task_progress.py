"""Writes progress lines to stderr if it is a terminal. Owns their format.

Whole lines are written, so that they do not mix with the agent's own output.
"""

from __future__ import annotations

import os
import shutil
import sys
import time

_WIDTH = 24
_MIN_SECONDS = 0.5
"""The minimum interval between lines, so that quick tasks do not flood the terminal."""


class _LastLine:
    """The time of the last line."""

    written = float("-inf")


def show_progress(done: int, total: int, words: str) -> None:
    """Write a progress line if stderr is a terminal, rate limited.

    The last line, with all tasks done, is always written.
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
        return  # a closed terminal must not stop the agent
