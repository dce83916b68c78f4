"""Words for people, and text that shows as itself. Owns both; knows no checkpoint.

Escaping for HTML is done by the templates. This is about what a browser would show of characters
that are no letters: those that hide, reorder or break what stands beside them are written out.
"""

from __future__ import annotations

import os
import time
import unicodedata
from urllib.parse import quote

from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.wording import count as count
from agent_checkpoint.wording import size as size

_REORDERING = frozenset({"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"})


def shown(text: object) -> str:
    """Return a text of several lines in which every character can be seen for what it is."""
    return "".join(
        char if _is_plain(char) or char in "\n\t" else _named(char) for char in str(text)
    )


def on_one_line(text: object, most: int = 200) -> str:
    """Return a text on one line, cut if it is long."""
    whole = str(text)
    cut = whole[: most - 1] + "…" if len(whole) > most else whole
    return "".join(
        char if _is_plain(char) else " " if char in "\n\t" else _named(char) for char in cut
    )


def when(ts: float | None, now: float | None = None) -> str:
    """Return a time as people say it."""
    if ts is None:
        return "?"
    ago = (time.time() if now is None else now) - ts
    for limit, unit, word in ((60, 1, "s"), (3600, 60, "min"), (86_400, 3600, "h")):
        if -5 <= ago < limit:
            return "just now" if ago < 5 else f"{ago / unit:.0f} {word} ago"
    return stamp(ts)[5:16] if 0 <= ago < 300 * 86_400 else stamp(ts)[:10]


def stamp(ts: float | None) -> str:
    """Return a time in full."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts)) if ts is not None else "?"
    except (ValueError, OverflowError, OSError):
        return "?"


def short(text: str, key: str) -> str:
    """Return the id of a checkpoint as people say it beside its key."""
    place = parse_checkpoint_id(text)
    if place is None:
        name, sign, seq = text.rpartition("@")
    else:
        name, sign, seq = place.key, "@", str(place.seq)
    return f"{sign}{seq}" if name == key else on_one_line(f"{name} {sign}{seq}".strip(), 100)


def link(page: str, /, **asked: object) -> str:
    """Return the address of a page; what is asked for may be any text, also names of files."""
    pairs = [
        f"{name}={quote(_bytes(value), safe='')}"
        for name, value in asked.items()
        if value is not None and value is not False and value != ""
    ]
    return f"{page}?{'&'.join(pairs)}" if pairs else page


def _bytes(value: object) -> bytes:
    try:
        return os.fsencode(str(value))
    except UnicodeEncodeError:
        return str(value).encode("utf-8", "replace")


def _is_plain(char: str) -> bool:
    return char.isprintable() and unicodedata.bidirectional(char) not in _REORDERING


def _named(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
