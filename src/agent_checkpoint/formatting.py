"""Formats sizes, times, counts and untrusted text for the CLI, the web UI and messages.

Prints nothing. Keys, labels, paths and values come from a store that may be untrusted: none of
their characters may move the cursor, change a colour or reverse the direction of the text.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable
from typing import Any

_REORDERING = frozenset({"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that Unicode classifies as printable, but that are invisible."""
_VARIANTS = ("\u180b", "\u180f"), ("\ufe00", "\ufe0f"), ("\U000e0100", "\U000e01ef")
"""Variation selectors, which are usually invisible."""
DAY = 86_400
LONGEST = 300
"""Maximum number of characters of one value in text output; JSON output is not truncated."""
_NAMED = 3
PASSWORD_OPTIONS = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
"""The options of a store URL that are secrets. They are those of libpq."""


def escape_characters(text: str, kept: str, name: Callable[[str], str]) -> str:
    """Return a string with its invisible and misleading characters escaped.

    Args:
        text: any string.
        kept: characters that are never escaped.
        name: returns the escape sequence of a character.
    """
    bare = text
    for char in kept:
        bare = bare.replace(char, "")
    if bare.isascii() and bare.isprintable():
        return text
    pairs = zip(" " + text, text)
    return "".join(
        char if char in kept or is_visible(char, of) else name(char) for of, char in pairs
    )


def is_visible(char: str, of: str = " ") -> bool:
    """Return whether a character that follows the character `of` is visible and not misleading."""
    if not char.isprintable() or char in _BLANK:
        return False
    if any(low <= char <= high for low, high in _VARIANTS):
        # It selects the colour form of an emoji.
        return char == "\ufe0f" and unicodedata.category(of) == "So"
    return unicodedata.bidirectional(char) not in _REORDERING


def format_size(number: float, digits: str = ".3g") -> str:
    """Return a number of bytes with a unit: `1.23 MB`.

    Args:
        number: the number of bytes.
        digits: the format of kB and larger units; `.1f` for a number that is updated in place.
    """
    for unit in ("B", "kB", "MB", "GB"):
        if round(number) < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:{digits}} {unit}"
        number /= 1000
    return f"{number:{digits}} TB"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 file`, `1,234 files`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_paths(named: list[str]) -> str:
    """Return the first three paths and the number of further paths, for a message."""
    more = len(named) - _NAMED
    words = ", ".join(named[:_NAMED])
    return f"{words} and {more:,} more" if more > 0 else words


def escape_text(text: str) -> str:
    """Escape invisible and misleading characters, except line breaks and tabs."""
    return escape_characters(text, "\n\t", _written)


def one_line(value: object, limit: int | None = None) -> str:
    """Return untrusted text as one escaped line, truncated to `limit` characters if given."""
    text = "" if value is None else str(value)
    length = len(text)
    if limit is not None and length > limit:
        text = text[:limit]
    text = escape_characters(text, "", _escaped)
    if limit is not None and length > limit:
        text += f"… ({length:,} characters)"
    return text


def json_text(data: Any, *, ascii_only: bool = False) -> str:
    """Return data as indented JSON that is safe to print on a terminal."""
    import json

    text = json.dumps(data, indent=2, ensure_ascii=ascii_only, default=str)
    # Only characters inside strings are escaped: JSON syntax is printable.
    return escape_characters(text, "\n", _in_json)


def value_summary(value: Any, limit: int = LONGEST) -> str:
    """Return a value of a state as one truncated line, without building the full text."""
    pieces: list[str] = []
    left = _put(value, pieces, limit, 0)
    text = one_line("".join(pieces))
    return text if left >= 0 else text[:limit] + "…"


def _put(value: Any, pieces: list[str], left: int, depth: int) -> int:
    """Append a value to `pieces`; return the characters left, negative if it was truncated."""
    import json

    if left < 0:
        return left
    if isinstance(value, (dict, list)) and depth < 20:
        names = isinstance(value, dict)
        pieces.append("{" if names else "[")
        left -= 2
        for number, item in enumerate(value):
            if left < 0:
                break
            head = ", " if number else ""
            head += f"{json.dumps(str(item)[:left], ensure_ascii=False)}: " if names else ""
            pieces.append(head)
            left = _put(value[item] if names else item, pieces, left - len(head), depth + 1)
        pieces.append("}" if names else "]")
        return left
    if isinstance(value, str):
        cut = value[: left + 1]
        pieces.append(json.dumps(cut, ensure_ascii=False))
        return left - len(value) - 2
    text = "…" if isinstance(value, (dict, list)) else json.dumps(value, default=str)
    pieces.append(text[: left + 1])
    return left - len(text)


def display_width(text: str) -> int:
    """Return the width of a string in terminal columns."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    marks = sum(unicodedata.combining(char) != 0 for char in text)
    return len(text) + wide - marks


def truncate_to_width(text: str, room: int) -> str:
    """Truncate a string to a width in terminal columns."""
    if display_width(text) <= room:
        return text
    while text and display_width(text) > room - 1:
        text = text[: max(0, min(len(text) - 1, room - 1))]
    return text + "…"


def format_age(seconds: float) -> str:
    """Return an age of less than a day: `just now`, `30 s ago`, `5 min ago`, `2 h ago`."""
    if seconds < 5:
        return "just now"
    if seconds < 60:
        return f"{seconds:.0f} s ago"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"


def format_time(ts: float | None, now: float | None = None) -> str:
    """Return a relative time, `5 min ago`, or a date."""
    if ts is None:
        return "?"
    ago = (time.time() if now is None else now) - ts
    if 0 <= ago < DAY:
        return format_age(ago)
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(ts))
    except (OverflowError, ValueError, OSError):  # a forged time
        return "?"


def shell_quote(text: str) -> str:
    """Quote a word for a shell command in a hint or message."""
    if re.fullmatch(r"[\w@%+=:,./~-]+", text, re.ASCII) and not text.startswith("~"):
        return text
    if escape_characters(text, "", _in_shell) == text:
        return "'" + text.replace("'", "'\\''") + "'"
    inner = escape_characters(text.replace("\\", "\\\\").replace("'", "\\'"), "", _in_shell)
    return f"$'{inner}'"


def without_password(url: str) -> str:
    """Return a store URL without the passwords in it; anything else as it is."""
    head, _, query = url.partition("?")
    scheme, separator, rest = head.partition("://")
    if not separator:
        return url
    place, slash, path = rest.partition("/")
    user, at, hosts = place.rpartition("@")
    head = f"{scheme}://{user.partition(':')[0]}{at}{hosts}{slash}{path}"
    items = [item for item in query.split("&") if item.partition("=")[0] not in PASSWORD_OPTIONS]
    return f"{head}?{'&'.join(items)}" if any(items) else head


def _in_shell(char: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in char.encode(errors="surrogateescape"))


def _escaped(char: str) -> str:
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(char) or _written(char)


def _written(char: str) -> str:
    code = ord(char)
    short = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return short if code < 0x10000 else f"\\U{code:08x}"


def _in_json(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
