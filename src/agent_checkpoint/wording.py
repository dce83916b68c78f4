"""How numbers are said to people, by the command and the page alike, and which letters are seen.

Owns those words, and what is written out because nothing of it would be seen.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

_REORDERING = frozenset({"RLE", "LRE", "RLO", "LRO", "PDF", "RLI", "LRI", "FSI", "PDI"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""They count as printable, and nothing is seen of them."""
_VARIANTS = ("\u180b", "\u180f"), ("\ufe00", "\ufe0f"), ("\U000e0100", "\U000e01ef")
"""What chooses the form of the character before, and often none at all."""


def written_out(text: str, kept: str, name: Callable[[str], str]) -> str:
    """Return a text in which every character is seen for what it is.

    Args:
        text: any text.
        kept: characters that stay, whatever they are.
        name: writes out a character that would not be seen.
    """
    bare = text
    for char in kept:
        bare = bare.replace(char, "")
    if bare.isascii() and bare.isprintable():
        return text
    pairs = zip(" " + text, text)
    return "".join(char if char in kept or is_plain(char, of) else name(char) for of, char in pairs)


def is_plain(char: str, of: str = " ") -> bool:
    """Tell whether a character is seen for what it is, after another one."""
    if not char.isprintable() or char in _BLANK:
        return False
    if any(low <= char <= high for low, high in _VARIANTS):
        return char == "\ufe0f" and unicodedata.category(of) == "So"  # as of most emoji
    return unicodedata.bidirectional(char) not in _REORDERING


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
