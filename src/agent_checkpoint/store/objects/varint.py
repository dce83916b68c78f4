"""Varints: the encoding of integers in binary records.

Seven bits per byte, lowest first; a set high bit means that another byte follows.
"""

from __future__ import annotations

from agent_checkpoint.errors import IntegrityError

_MOST_BYTES = 9


def write_varint(number: int) -> bytes:
    """Encode an integer from 0 to 2**63 - 1 as a varint."""
    if number < 0x80:  # the common case
        return bytes((number,))
    done = bytearray()
    while number >= 0x80:
        done.append(number & 0x7F | 0x80)
        number >>= 7
    done.append(number)
    return bytes(done)


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Decode the varint at offset `start`; return the integer and the offset after it.

    Raises:
        IntegrityError: the varint is truncated, or is not the shortest encoding.
    """
    number = 0
    for index in range(start, min(start + _MOST_BYTES, len(data))):
        byte = data[index]
        number |= (byte & 0x7F) << 7 * (index - start)
        if byte < 0x80:
            if byte == 0 and index > start:
                break  # each integer has exactly one encoding
            return number, index + 1
    raise IntegrityError("Truncated or malformed varint.")
