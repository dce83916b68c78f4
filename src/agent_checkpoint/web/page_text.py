"""Words for people, and text that shows as itself. Owns both; knows no checkpoint.

Escaping for HTML is done by the templates. This is about what a browser would show of characters
that are no letters: those that hide, reorder or break what stands beside them are written out.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import unicodedata
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from markupsafe import Markup

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.formatting import escape_characters, is_visible
from agent_checkpoint.formatting import format_count as format_count
from agent_checkpoint.formatting import format_size as format_size
from agent_checkpoint.records import parse_checkpoint_id

MOST_OF_NAME = 2000
"""Characters of a name where all of it has to be seen; a key has no more than half of that."""


def shown(text: object) -> str:
    """Return a text of several lines in which every character can be seen for what it is."""
    return escape_characters(str(text), "\n\t", _named)


def on_one_line(text: object, most: int = 200) -> str:
    """Return a text on one line, cut if it is long."""
    whole = str(text)
    cut = whole[: most - 1] + "…" if len(whole) > most else whole
    line = escape_characters(cut, "\n\t", _named)
    if "\n" in line or "\t" in line:  # a text of several lines, and no name
        return line.replace("\n", " ").replace("\t", " ")
    return _with_all_spaces(line)


def exact(text: object, most: int = MOST_OF_NAME) -> Markup:
    """Return a name on one line as no other name is drawn, cut if it is long.

    Letters of right-to-left scripts would move the digits and signs beside them, so that two names
    look alike, or two values swapped: it is drawn in the order of its characters.
    """
    whole = str(text)
    cut = whole[: most - 1] + "…" if len(whole) > most else whole
    # What looks as if it was written out is written out itself.
    line = escape_characters(re.sub(r"\\(?=[xuU])", r"\\x5c", cut), "", _named)
    return Markup('<bdo dir="ltr">{}</bdo>').format(_with_all_spaces(line))


def columns(line: str) -> int:
    """Return how wide a line is, in letters of a fixed width."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


def json_text(value: Any) -> str:
    """Return a value as JSON to be edited, in which every character can be seen for what it is."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return escape_characters(text, "\n", _named_in_json)


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


def lasting(seconds: float) -> str:
    """Return how long something took, as people say it."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 0.001:
        return "under 1 ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.3g} s"


def kin(name: str, key: str) -> str:
    """Return the name of a fork beside the key that it comes from."""
    return f"…{name[len(key) :]}" if name.startswith(f"{key}/") else name


def link(page: str, /, **asked: object) -> str:
    """Return the address of a page; what is asked for may be any text, also names of files."""
    pairs = [
        f"{name}={quote(_bytes(value), safe='')}"
        for name, value in asked.items()
        if value is not None and value is not False and value != ""
    ]
    return f"{page}?{'&'.join(pairs)}" if pairs else page


def coded(text: object) -> str:
    """Return a text as ASCII without any line end, for fields of forms and attributes of a page.

    A browser sends every line end of a field as CR LF and reads a CR in a page as LF.
    """
    return quote(_bytes(text), safe="")


def uncoded(text: str) -> str:
    """Return what `coded` was given. Raises InvalidInputError for anything that it never makes."""
    found = unquote_to_bytes(text).decode("utf-8", "surrogateescape") if text.isascii() else ""
    if coded(found) != text:
        raise InvalidInputError("Malformed form field. Reload the page and try again.")
    return found


def attachment(name: str) -> str:
    """Return the header by which a browser saves something under a name (RFC 6266)."""
    safe = "".join(
        char if is_visible(char, " ") and char not in '/\\:*?"<>|;' else "_" for char in name
    ).rstrip(". ")
    plain = "".join(char if char.isascii() else "_" for char in safe).replace("%", "_") or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(safe or 'file', safe='')}"


def _bytes(value: object) -> bytes:
    try:
        return os.fsencode(str(value))
    except UnicodeEncodeError:
        return str(value).encode("utf-8", "surrogatepass")  # no text that anything has


def _with_all_spaces(line: str) -> str:
    """Write spaces out of which a browser shows nothing: at an end, and after another one."""
    return re.sub("^ | $", r"\\x20", re.sub("(?<= ) ", r"\\x20", line))


def _named_in_json(char: str) -> str:
    return json.dumps(char)[1:-1]


def _named(char: str) -> str:
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xDC80 <= code < 0xDD00:  # a byte that is no text, of a name or a file
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
