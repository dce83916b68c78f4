"""Where a large file is cut. Owns the sizes; knows no objects.

With the extra `chunks` the cuts follow the content, so that a byte inserted at the front moves
them along; else they stand every MiB. A file's id is the same either way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

FastCDC: Any
try:  # its version without the extension would take minutes
    from pyfastcdc.cy import FastCDC  # type: ignore[import-not-found,no-redef]
except ImportError:
    FastCDC = None

CHUNKED_FROM = 1_000_000
"""A file with more bytes than this is stored in chunks."""
_CHUNK = 1 << 20
_SMALLEST, _LARGEST = _CHUNK // 4, _CHUNK * 4


def cut(fd: int) -> Iterator[bytes]:
    """Iterate over the chunks of an open file, from where it stands to its end. Raises OSError."""
    if FastCDC is None:
        while data := _read(fd, _CHUNK):
            yield data
        return
    cutter = FastCDC(_CHUNK, min_size=_SMALLEST, max_size=_LARGEST)
    for chunk in cutter.cut_stream(_Stream(fd)):
        yield bytes(chunk.data)


class _Stream:
    """A file as the cutter wants it; closing is not its business."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, n: int) -> bytes:
        """Return the next bytes, as many as asked for unless the file ends."""
        return _read(self._fd, n)


def _read(fd: int, size: int) -> bytes:
    data = os.read(fd, size)
    if len(data) in (0, size):
        return data
    pieces = [data]
    while data and (size := size - len(data)):
        data = os.read(fd, size)
        pieces.append(data)
    return b"".join(pieces)
