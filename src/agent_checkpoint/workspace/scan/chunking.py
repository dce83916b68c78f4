"""Where a large file is cut. Owns the sizes; knows no objects.

With the extra `chunks` the cuts follow the content, so that a byte inserted at the front moves
them along; else they stand every MiB. A file's id is the same either way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from agent_checkpoint.backends.disk.fork_safety import block_forks

CHUNKED_FROM = 1_000_000
"""A file with more bytes than this is stored in chunks."""
_CHUNK = 1 << 20
_SMALLEST, _LARGEST = _CHUNK // 4, _CHUNK * 4


def cut(fd: int) -> Iterator[bytes]:
    """Iterate over the chunks of an open file, from where it stands to its end. Raises OSError."""
    cutter = _cutter()
    if cutter is None:
        while data := _read(fd, _CHUNK):
            yield data
        return
    for chunk in cutter.cut_stream(_Stream(fd)):
        yield bytes(chunk.data)


@lru_cache(maxsize=1)
def _is_installed() -> bool:
    try:  # its version without the extension would take minutes
        with block_forks():
            from importlib.util import find_spec

            return find_spec("pyfastcdc.cy") is not None
    except ImportError:
        return False


def _cutter() -> Any:
    """Return what cuts one file by its content, if that is installed."""
    if not _is_installed():
        return None
    with block_forks():
        from importlib import import_module  # by name, since whoever checks types may not have it

        found = import_module("pyfastcdc.cy")
    return found.FastCDC(_CHUNK, min_size=_SMALLEST, max_size=_LARGEST)


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
