"""Writes progress lines to stderr if it is a terminal, or to the output of a notebook cell.

Whole lines are written, so that they do not mix with the agent's own output. In a notebook, a line
replaces the one before. Owns their format.
"""

from __future__ import annotations

import os
import sys
import time

from agent_checkpoint.backends.os_support.os_fork import block_forks

_WIDTH = 24
_MIN_SECONDS = 0.5
"""The minimum interval between lines, so that quick tasks do not flood the terminal."""


class _LastLine:
    """The time of the last line."""

    written = float("-inf")


def show_progress(done: int, total: int, words: str) -> None:
    """Show a progress line if stderr is a terminal or this is a notebook, rate limited.

    The last line, with all tasks done, is always shown.
    """
    out = sys.stderr
    try:
        is_terminal = out.isatty()
        if os.environ.get("AGENT_CHECKPOINT_PROGRESS") == "0":
            return
        if not is_terminal and "IPython" not in sys.modules:
            return
        now = time.monotonic()
        if done < total and now - _LastLine.written < _MIN_SECONDS:
            return
        _LastLine.written = now
        full = _WIDTH * done // max(total, 1)
        bar = "█" * full + "░" * (_WIDTH - full)
        line = f"{bar} {done}/{total} {' '.join(words.split())}"
        if is_terminal:
            with block_forks():
                from shutil import get_terminal_size  # slow to load

            room = max(20, get_terminal_size().columns - 1)
            out.write(line[:room] + "\n")
            out.flush()
        else:
            with block_forks():
                from agent_checkpoint.notebook import show_progress as show_in_cell

            show_in_cell(line[: _WIDTH + 100])
    except Exception:  # a closed terminal or a broken display must not stop the agent
        return
