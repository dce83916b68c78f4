"""HTML for notebooks, and the progress line in them. Owns escaping and colours.

Stored data may be hostile: all text is escaped, and nothing refers to scripts or other resources.
Colours are translucent, so that they fit light and dark themes. Imported on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from agent_checkpoint.formatting import format_count, format_time, one_line, value_summary

MOST = 200
"""Rows of a table or list, and changed paths, that are shown; the others are counted."""
_MOST_TEXT = 100_000
_LONGEST = 300
_EDGE = "1px solid rgba(128,128,128,.35)"
_TABLE = "border-collapse:collapse;color:inherit;font:inherit"
_CELL = f"text-align:left;vertical-align:top;padding:2px 10px 2px 0;border-bottom:{_EDGE}"
_PRE = "white-space:pre-wrap;overflow-wrap:anywhere;margin:0"
_ADDED, _REMOVED = "background:rgba(46,160,67,.2)", "background:rgba(248,81,73,.2)"
_STYLES = {"+": _ADDED, "-": _REMOVED, "@": "background:rgba(56,139,253,.15)"}


def text(value: object, limit: int = _LONGEST) -> str:
    """Return untrusted text as HTML on one line: escaped, without reordering, truncated if long."""
    return f"<bdi>{escape(one_line(value, limit))}</bdi>"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; values are escaped."""
    listed = list(rows)
    head = "".join(f'<th style="{_CELL}">{text(name)}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{text(cell)}</td>' for cell in row) + "</tr>"
        for row in listed[:MOST]
    )
    return (
        f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>{_more(len(listed) - MOST)}"
    )


def lines(content: str, *, is_diff: bool = False) -> str:
    """Return text with its line breaks; the lines of a unified diff are coloured."""
    shown = []
    for line in content[:_MOST_TEXT].split("\n"):
        style = _STYLES.get(line[:1], "") if is_diff else ""
        shown.append(f'<span style="display:block;{style}">{escape(one_line(line)) or " "}</span>')
    cut = len(content) - _MOST_TEXT
    end = f"<p>… and {format_count(cut, 'more character')}</p>" if cut > 0 else ""
    return f'<pre style="{_PRE}">{"".join(shown)}</pre>{end}'


def section(title: str, content: str, *, is_open: bool = True) -> str:
    """Return content that can be folded below its title; `content` is HTML."""
    state = " open" if is_open else ""
    return f"<details{state}><summary>{text(title)}</summary>{content}</details>"


def history_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return checkpoints, as `history` returns them, as a table."""
    if not rows:
        return "<p>no checkpoints</p>"
    return table(
        ["checkpoint", "when", "kind", "label", "tags", "metrics", "parts"],
        (
            [
                row.get("id"),
                "" if row.get("ts") is None else format_time(row["ts"]),
                row.get("kind"),
                row.get("error") or row.get("label"),
                ", ".join(map(str, row.get("tags", ()))),
                ", ".join(f"{name}={value:g}" for name, value in row.get("metrics", {}).items()),
                ", ".join(row.get("parts", ())),
            ]
            for row in rows
        ),
    )


def changes_table(changes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the changes of a state as a table of paths with old and new values."""
    rows: list[list[str]] = []
    for how, paths in changes.items():
        for path, value in paths.items():
            pair = {"added": ("", value), "removed": (value, "")}.get(how, value)
            cells = [
                "" if isinstance(item, str) and not item else value_summary(item) for item in pair
            ]
            rows.append([how, path, *cells])
    return table(["", "path", "old", "new"], rows) if rows else "<p>no changes</p>"


def show_progress(line: str) -> bool:
    """Show a progress line in the current cell of a notebook; return False if this is not one.

    A later line in the same cell replaces it.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return False
    from importlib import import_module

    display = import_module("IPython.display").display
    name = f"agent-checkpoint-{id(shell)}-{getattr(shell, 'execution_count', 0)}"
    data = {"text/plain": line, "text/html": f"<pre>{escape(one_line(line))}</pre>"}
    display(data, raw=True, display_id=name, update=name == _Shown.name)
    _Shown.name = name
    return True


class _Shown:
    """The display that the last progress line was shown in."""

    name = ""


def _more(number: int) -> str:
    return f"<p>… and {number:,} more</p>" if number > 0 else ""
