"""Work that processes share out among themselves: each takes the number of the next part."""

from __future__ import annotations

import os
import struct

_NUMBER = struct.Struct("<I")


def part_numbers(count: int) -> int:
    """Return a pipe with the numbers of the parts, to be read and closed. Raises OSError.

    Args:
        count: the number of parts; all their numbers have to fit in a pipe.
    """
    numbers, end = os.pipe()
    try:
        os.write(end, b"".join(map(_NUMBER.pack, range(count))))
    finally:
        os.close(end)
    return numbers


def next_number(numbers: int) -> int | None:
    """Take the number of a part from the pipe; None if all are taken. Raises OSError."""
    data = os.read(numbers, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if data else None
