"""What a person sees. Owns tables, colours and questions; knows no checkpoint.

Plain text unless a person looks at a terminal and the extra `cli` is there. Whatever comes from a
store is shown as text: no character of it can move the cursor or change a colour.
"""

from __future__ import annotations

import json
import os
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TextIO


class Answer(NamedTuple):
    """What a command found or did."""

    data: Any
    """The same for a program, as JSON."""
    show: Callable[[Out], object]
    """Writes it for a person."""
    status: int = 0


class Out:
    """The standard output, as it is."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.is_terminal = _is_terminal(self._stream)
        self._console = _rich_console(self._stream) if self.is_terminal else None

    def line(self, text: str = "", *, style: str = "") -> None:
        """Write a line, or some: `style` is one of rich's, and ignored without it."""
        if self._console is not None:
            self._console.print(
                safe(text), style=style or None, markup=False, highlight=False, soft_wrap=True
            )
        else:
            self._stream.write(safe(text) + "\n")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write rows in columns; numbers stand to the right."""
        cells = [[_cell(item) for item in row] for row in rows]
        right = [
            bool(cells) and all(_is_number(row[column]) for row in cells)
            for column in range(len(heads))
        ]
        if self._console is not None:
            self._rich_table(heads, cells, right)
            return
        widths = [
            max(width(row[column]) for row in [list(heads), *cells]) for column in range(len(heads))
        ]
        for row in [list(heads), *cells]:
            padded = [_padded(*item) for item in zip(row, widths, right)]
            self._stream.write("  ".join(padded).rstrip() + "\n")

    def json(self, data: Any) -> None:
        """Write data for a program."""
        self._stream.write(json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")

    def confirm(self, question: str) -> bool:
        """Ask a person; nobody there means no."""
        if not (self.is_terminal and _is_terminal(sys.stdin)):
            return False
        self._stream.write(f"{question} [y/N] ")
        self._stream.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def flush(self) -> None:
        """Write what is held back. Raises OSError."""
        self._stream.flush()

    def _rich_table(
        self, heads: Sequence[str], rows: list[list[str]], right: Sequence[bool]
    ) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for head, is_right in zip(heads, right):
            table.add_column(head, justify="right" if is_right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        if self._console is not None:
            self._console.print(table)


def safe(text: str) -> str:
    """Return text that shows as itself: control characters are written out."""
    return "".join(
        char
        if char == "\n" or char == "\t" or (char.isprintable() and not _reorders(char))
        else _written_out(char)
        for char in text
    )


def width(text: str) -> int:
    """Return how many columns a text takes on a terminal."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    marks = sum(unicodedata.combining(char) != 0 for char in text)
    return len(text) + wide - marks


def when(ts: float | None, now: float | None = None) -> str:
    """Return a time as people say it: `5 min ago`, or a date."""
    if ts is None:
        return "?"
    ago = (time.time() if now is None else now) - ts
    if 0 <= ago < 60:
        return "just now" if ago < 5 else f"{ago:.0f} s ago"
    if 0 <= ago < 3600:
        return f"{ago / 60:.0f} min ago"
    if 0 <= ago < 86_400:
        return f"{ago / 3600:.0f} h ago"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(ts))


def size(number: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `1,234 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cell(item: object) -> str:
    return safe("" if item is None else str(item)).replace("\n", " ").replace("\t", " ")


def _padded(cell: str, room: int, right: bool) -> str:
    space = " " * (room - width(cell))
    return space + cell if right else cell + space


def _is_number(text: str) -> bool:
    return bool(text) and text.replace(",", "").replace(".", "", 1).isdigit()


def _reorders(char: str) -> bool:
    return unicodedata.bidirectional(char) in (
        "RLE",
        "LRE",
        "RLO",
        "LRO",
        "PDF",
        "RLI",
        "LRI",
        "FSI",
        "PDI",
    )


def _written_out(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else "\\U…"


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def _rich_console(stream: TextIO) -> Any:
    if os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, emoji=False)
