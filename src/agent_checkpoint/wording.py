"""How numbers are said to people, by the command and the page alike. Owns those words alone."""

from __future__ import annotations


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
