"""Output of the CLI: tables, colors, prompts and progress. Does not depend on checkpoints.

If stdout is not a terminal, the output is plain, untruncated text. Colors need the extra `cli`.
Control characters in stored data are escaped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any, TextIO

from agent_checkpoint.cli.hints import command_line
from agent_checkpoint.formatting import (
    display_width,
    escape_text,
    format_count,
    format_size,
    format_time,
    json_text,
    one_line,
    truncate_to_width,
)
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.redaction import mask_json

__all__ = [
    "CommandResult",
    "Output",
    "ProgressCallback",
    "display_width",
    "escape_text",
    "files_read",
    "files_written",
    "format_count",
    "format_size",
    "format_time",
    "json_fields",
    "masked",
    "one_line",
]

JSON_VERSION = 1
"""The version of the output of --json; it changes if a member changes its meaning or is removed."""
_GAP = 2
"""Spaces between the columns of a table."""

ProgressCallback = Callable[[int, str], None]
"""Called with the completed amount and a description."""


class CommandResult(NamedTuple):
    """The result of a command, as JSON data and as text."""

    data: Any
    """The output of --json."""
    show: Callable[[Output], object]
    """Writes the text output."""
    status: int = 0


def files_read(tell: ProgressCallback) -> Callable[[int, int], None]:
    """Return the progress callback of a snapshot, for the numbers of files and bytes."""
    return lambda files, size: tell(
        files, f"{format_count(files, 'file')}, {format_size(size, '.1f')}"
    )


def files_written(tell: ProgressCallback) -> Callable[[int, int], None]:
    """Return the progress callback of a restore, for the number of files and their total."""
    return lambda files, total: tell(files, f"{files:,} of {format_count(total, 'file')}")


def masked(args: Any, data: Any) -> Any:
    """Return the data of a command with secrets masked, unless --no-mask was passed."""
    return data if args.no_mask else mask_json(data)


def json_fields(record: object, names: str) -> dict[str, Any]:
    """Return attributes of a record as JSON data; `names` are separated by spaces."""
    return {name: getattr(record, name) for name in names.split()}


class Output:
    """Standard output, a terminal or not."""

    def __init__(self, stream: TextIO | None = None, *, store: str | None = None) -> None:
        """Wrap a stream.

        Args:
            stream: where to write; stdout if None.
            store: the value of `--store`, repeated in hints.
        """
        self._store = store
        self.has_prompted = False
        """Whether a prompt was shown."""
        self._stream = sys.stdout if stream is None else stream
        with suppress(AttributeError, ValueError, OSError):
            # Names that are not UTF-8, and characters that the terminal cannot show, are escaped.
            self._stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        self.is_terminal = _is_terminal(self._stream)
        self._console = _rich_console(self._stream) if self.is_terminal else None
        self._styles: dict[str, Any] = {}

    @property
    def columns(self) -> int | None:
        """The width of the terminal; None if stdout is not a terminal, and nothing is truncated."""
        if not self.is_terminal:
            return None
        if self._console is not None:
            return int(self._console.width)
        import shutil

        return shutil.get_terminal_size().columns

    @property
    def has_unicode(self) -> bool:
        """Whether the encoding has box-drawing characters and arrows."""
        encoding = str(getattr(self._stream, "encoding", None) or "ascii")
        return encoding.lower().replace("-", "").startswith("utf")

    def line(self, text: str = "", *, style: str = "") -> None:
        """Write one or more lines; `style` is a rich style, ignored without rich."""
        text = escape_text(text)
        if style and text and self._console is not None:
            text = "\n".join(self._styled(line, style) for line in text.split("\n"))
        self._stream.write(text + "\n")

    def some(self, lines: Sequence[str], most: int, more: str, *, style: str = "") -> None:
        """Write at most `most` lines; then `more`, formatted with the number of the others."""
        for line in lines[:most]:
            self.line(line, style=style)
        if len(lines) > most:
            self.line(more.format(len(lines) - most), style=style)

    def hint(self, words: str, command: str, *, style: str = "dim") -> None:
        """Write a command to copy, after its purpose.

        Args:
            words: the purpose, such as "To undo".
            command: the command name and its arguments, quoted for a shell.
            style: as for `line`.
        """
        self.line(f"{words}: {command_line(command, self._store)}", style=style)

    def limit(self, number: int) -> int:
        """Return a limit for long output: the number on a terminal, else no limit."""
        return number if self.is_terminal else sys.maxsize

    def write(self, pieces: Iterable[bytes]) -> None:
        """Write bytes unchanged. Raises OSError."""
        self._stream.flush()
        for piece in pieces:
            self._stream.buffer.write(piece)
        self._stream.buffer.flush()

    def pieces(self, *pieces: tuple[str, str]) -> None:
        """Write one line of (text, style) pairs, truncated to the width of the terminal."""
        room = self.columns
        done = []
        for text, style in pieces:
            text = escape_text(text)
            if room is not None:
                text = truncate_to_width(text, room) if room > 0 else ""
                room -= display_width(text)
            done.append(self._styled(text, style) if style and text else text)
        self._stream.write("".join(done).rstrip(" ") + "\n")

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a table; columns of numbers are right-aligned."""
        cells = [[one_line(item) for item in row] for row in rows]
        right = [
            bool(cells) and all(_is_number(row[column]) for row in cells)
            for column in range(len(heads))
        ]
        lines = [list(heads), *cells]
        widths = [max(display_width(row[column]) for row in lines) for column in range(len(heads))]
        room = self.columns
        if room is not None:
            longest = [
                max(display_width(word) for row in lines for word in _words(row[column]))
                for column in range(len(heads))
            ]
            widths = _fitted(widths, longest, room - _GAP * (len(heads) - 1))
        for number, row in enumerate(lines):
            wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths)]
            for parts in zip_longest(*wrapped, fillvalue=""):
                line = (" " * _GAP).join(map(_padded, parts, widths, right)).rstrip()
                self._stream.write((line if number else self._styled(line, "bold")) + "\n")

    def json(self, data: Any) -> None:
        """Write JSON: an object with the version of its format; a list is its member `items`."""
        data = {
            "format_version": JSON_VERSION,
            **(data if isinstance(data, dict) else {"items": data}),
        }
        self._stream.write(json_text(data, ascii_only=not self.has_unicode) + "\n")

    def confirm(self, question: str) -> bool:
        """Ask a yes/no question. Without a terminal, the answer is no."""
        if not (self.is_terminal and _is_terminal(sys.stdin)):
            return False
        self.has_prompted = True
        self._stream.write(f"{escape_text(question)} [y/N] ")
        self._stream.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    @contextmanager
    def progress(
        self, words: str, total: Callable[[], int] | None = None
    ) -> Iterator[ProgressCallback]:
        """Show progress on stderr, unless stdout or stderr is not a terminal.

        Args:
            words: the current operation, shown at once.
            total: returns the total amount; called after the first display, because it may be slow.
        """
        if not (self.is_terminal and _is_terminal(sys.stderr)):
            yield lambda done, description: None
            return
        console = _rich_console(sys.stderr)
        if console is None:
            with _plain_progress(words, self.columns or 80) as tell:
                yield tell
            return
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
        if total is not None:
            columns.insert(2, BarColumn(bar_width=24))
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(words, total=None)
            if total is not None:
                bar.update(task, total=total())
            # A path in the description may contain rich markup.
            yield lambda done, description: bar.update(
                task,
                completed=done,
                description=f"{words}: {one_line(description)}".replace("[", "\\["),
            )

    def flush(self) -> None:
        """Flush the stream. Raises OSError."""
        self._stream.flush()

    def _styled(self, text: str, style: str) -> str:
        if self._console is None:
            return text
        if style not in self._styles:
            from rich.style import Style

            self._styles[style] = Style.parse(style)
        system = None if self._console.no_color else self._console._color_system
        return str(self._styles[style].render(text, color_system=system)) if system else text


@contextmanager
def _plain_progress(words: str, columns: int) -> Iterator[ProgressCallback]:
    """Show a single updating line without rich; it is cleared at the end."""
    shown = ""

    def show(text: str) -> None:
        nonlocal shown
        text = truncate_to_width(one_line(text), columns - 1)
        space = " " * max(0, display_width(shown) - display_width(text))
        sys.stderr.write(f"\r{text}{space}\r")
        sys.stderr.flush()
        shown = text

    show(words)
    try:
        yield lambda done, description: show(f"{words}: {description}")
    finally:
        show("")


def _words(text: str) -> list[str]:
    """Return the pieces of a text that a line break may separate: words, and parts of paths."""
    return re.findall(r"[^\s/,]*[/,]+|[^\s/,]+|\s+", text) or [""]


def _fitted(widths: list[int], longest: list[int], room: int) -> list[int]:
    """Return widths of columns that fit: the widest shrink first, to their longest words if so."""
    widths = list(widths)
    while sum(widths) > room and max(widths) > 1:
        spare = [width if width > word else 0 for width, word in zip(widths, longest)]
        column = (spare if any(spare) else widths).index(max(spare) or max(widths))
        widths[column] -= 1
    return widths


def _wrapped(cell: str, width: int) -> list[str]:
    """Break a cell into lines, at words; a longer word is broken anywhere."""
    lines = [""]
    for word in _words(cell):
        if display_width(lines[-1]) + display_width(word.rstrip()) > width and lines[-1].strip():
            lines.append("")
        if not lines[-1] and len(lines) > 1:
            word = word.lstrip()
        for char in word if display_width(word.rstrip()) > width else [word]:
            if display_width(lines[-1]) + display_width(char.rstrip()) > width and lines[-1]:
                lines.append("")
            lines[-1] += char
    return [line.rstrip() for line in lines]


def _padded(cell: str, room: int, right: bool) -> str:
    space = " " * (room - display_width(cell))
    return space + cell if right else cell + space


def _is_number(text: str) -> bool:
    return bool(text) and text.replace(",", "").replace(".", "", 1).isdigit()


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
    return Console(file=stream, emoji=False)  # rich honors NO_COLOR
