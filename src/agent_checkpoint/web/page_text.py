"""Text on the pages: visible characters, names, times, links, form fields.

Templates escape HTML. This module escapes characters that HTML escaping does not: those that are
invisible, reorder their neighbours or break a line. Does not depend on checkpoints.
"""

from __future__ import annotations

import math
import os
import re
import time
import unicodedata
from urllib.parse import quote, unquote_to_bytes

from markupsafe import Markup

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.formatting import DAY, escape_characters, format_age, is_visible
from agent_checkpoint.formatting import format_count as format_count
from agent_checkpoint.formatting import format_size as format_size
from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.web.masking import mask

MAX_NAME = 2000
"""Longest name, in characters, that is shown in full; keys have at most half of that."""


def shown(text: object) -> str:
    """Return a multi-line string with secrets masked, invisible characters escaped."""
    return escape_characters(mask(str(text)), "\n\t", _escape)


def prose(text: object, most: int = 200) -> str:
    """Return words or code on one line, escaped as by `shown`, truncated if long."""
    whole = mask(str(text))
    cut = whole[: most - 1] + "…" if len(whole) > most else whole
    return escape_characters(cut, "\n\t", _escape).replace("\n", " ").replace("\t", " ")


def single_line(text: object, most: int = 200) -> str:
    """Return a name as `prose` does, with spaces that a browser would collapse escaped."""
    line = prose(text, most)
    is_name = not {"\n", "\t"} & set(str(text)[:most])
    return _with_all_spaces(line) if is_name else line


def exact(text: object, most: int = MAX_NAME) -> Markup:
    """Return a name on one line so that no two names look alike, truncated if long.

    Right-to-left letters reorder adjacent digits and signs, which could make two names look alike
    or two values look swapped. So the characters of the name are displayed in logical order.
    """
    whole = mask(str(text))
    cut = whole[: most - 1] + "…" if len(whole) > most else whole
    # A literal backslash that looks like an escape is escaped itself.
    line = escape_characters(re.sub(r"\\(?=[xuU])", r"\\x5c", cut), "", _escape)
    return Markup('<bdo dir="ltr">{}</bdo>').format(_with_all_spaces(line))


def columns(line: str) -> int:
    """Return the width of a line in columns of a monospace font."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


def when(ts: float | None, now: float | None = None) -> str:
    """Return a time relative to now, or as a date: `5 min ago`, `11-14 06:19`, `2024-11-14`."""
    if ts is None:
        return "?"
    ago = (time.time() if now is None else now) - ts
    if -5 <= ago < DAY:  # clocks of two machines may differ slightly
        return format_age(ago)
    return timestamp(ts)[5:16] if 0 <= ago < 300 * DAY else timestamp(ts)[:10]


def timestamp(ts: float | None) -> str:
    """Return a time in full: `2024-11-14 06:19:00`."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ts)) if ts is not None else "?"
    except (ValueError, OverflowError, OSError):
        return "?"


def short(text: str, key: str) -> str:
    """Return a checkpoint id as `@7`, with its key if that differs from `key`."""
    parsed = parse_checkpoint_id(text)
    if parsed is None:
        name, sign, seq = text.rpartition("@")
    else:
        name, sign, seq = parsed.key, "@", str(parsed.seq)
    return f"{sign}{seq}" if name == key else single_line(f"{name} {sign}{seq}".strip(), 100)


def duration(seconds: float) -> str:
    """Return a duration with its unit: `420 ms`, `1.93 s`."""
    if not math.isfinite(seconds):
        return "?"
    if seconds < 0.001:
        return "under 1 ms"
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:,.3g} s"


def fork_name(name: str, key: str) -> str:
    """Return the name of a fork, shortened where it begins with the parent key."""
    return f"…{name[len(key) :]}" if name.startswith(f"{key}/") else name


def link(page: str, /, **params: object) -> str:
    """Return the URL of a page. Values may contain undecodable bytes; empty values are omitted."""
    pairs = [
        f"{name}={quote(_bytes(value), safe='')}"
        for name, value in params.items()
        if value is not None and value is not False and value != ""
    ]
    return f"{page}?{'&'.join(pairs)}" if pairs else page


def encode_field(text: object) -> str:
    """Return a percent-encoded string, for form fields and HTML attributes.

    A browser submits every line end of a field as CR LF and parses a CR in a page as LF, so raw
    text would not survive the round trip.
    """
    return quote(_bytes(text), safe="")


def decode_field(text: str) -> str:
    """Reverse `encode_field`. Raises InvalidInputError for invalid input."""
    decoded = unquote_to_bytes(text).decode("utf-8", "surrogateescape") if text.isascii() else ""
    if encode_field(decoded) != text:
        raise InvalidInputError("Malformed form field. Reload the page and try again.")
    return decoded


def attachment(name: str) -> str:
    """Return a Content-Disposition header that saves a download under a name (RFC 6266)."""
    safe = "".join(
        char if is_visible(char, " ") and char not in '/\\:*?"<>|;' else "_" for char in name
    ).rstrip(". ")
    plain = "".join(char if char.isascii() else "_" for char in safe).replace("%", "_") or "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(safe or 'file', safe='')}"


def _bytes(value: object) -> bytes:
    try:
        return os.fsencode(str(value))
    except UnicodeEncodeError:
        # An unpaired surrogate, which stored strings never contain.
        return str(value).encode("utf-8", "surrogatepass")


def _with_all_spaces(line: str) -> str:
    """Escape spaces that a browser collapses: at an end, and after another space."""
    return re.sub("^ | $", r"\\x20", re.sub("(?<= ) ", r"\\x20", line))


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x80:
        return f"\\x{code:02x}"
    if 0xDC80 <= code < 0xDD00:  # an undecodable byte of a file or its name
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
