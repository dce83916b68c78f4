"""Varints: the form of every number in binary records.

Seven bits per byte, the lowest first; the high bit says that another byte follows.
"""

from __future__ import annotations

from agent_checkpoint.errors import IntegrityError

_MOST_BYTES = 9


def write_varint(number: int) -> bytes:
    """Return a number from 0 to 2**63 - 1 as bytes."""
    if number < 0x80:  # the common case
        return bytes((number,))
    done = bytearray()
    while number >= 0x80:
        done.append(number & 0x7F | 0x80)
        number >>= 7
    done.append(number)
    return bytes(done)


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the number that begins at `start`, and where it ends.

    Raises:
        IntegrityError: the varint is truncated, or longer than needed.
    """
    number = 0
    for index in range(start, min(start + _MOST_BYTES, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << 7 * (index - start)
        if byte < 0x80:
            if byte == 0 and index > start:
                break  # each number has exactly one form
            return number, index + 1
    raise IntegrityError("A varint in it is truncated or malformed.")
