"""Small numbers as few bytes. Owns the one form of a number in binary records.

Seven bits a byte, the lowest first; the high bit says that another byte follows.
"""

from __future__ import annotations

from agent_checkpoint.errors import IntegrityError

_MOST_BYTES = 9


def write_varint(number: int) -> bytes:
    """Return a number from 0 to 2**63 - 1 as bytes."""
    if number < 0x80:  # as most are
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
        IntegrityError: there is no whole number, or one that is written in more bytes than needed.
    """
    number = 0
    for index in range(start, min(start + _MOST_BYTES, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << 7 * (index - start)
        if byte < 0x80:
            if byte == 0 and index > start:
                break  # one number must not have two forms
            return number, index + 1
    raise IntegrityError("A number in it is cut or malformed.")
