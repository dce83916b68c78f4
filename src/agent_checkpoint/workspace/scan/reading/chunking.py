"""Splits large files into chunks. Owns the chunk sizes; does not depend on objects.

With the extra `chunks` the chunk boundaries are content-defined (FastCDC), so an insertion changes
only the chunks around it; without it, chunks have a fixed size of 1 MiB. The id of a file is the
same either way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks

CHUNKED_FROM = 1_000_000
"""Files with more bytes than this are stored in chunks."""
_CHUNK = 1 << 20
_SMALLEST, _LARGEST = _CHUNK // 4, _CHUNK * 4


def cut(fd: int) -> Iterator[bytes]:
    """Iterate over the chunks of an open file, from its position to its end. Raises OSError."""
    chunker = _chunker()
    if chunker is None:
        while data := _read(fd, _CHUNK):
            yield data
        return
    for chunk in chunker.cut_stream(SimpleNamespace(read=partial(_read, fd))):
        yield bytes(chunk.data)


@lru_cache(maxsize=1)
def is_installed() -> bool:
    """Return whether content-defined chunking is available."""
    try:  # the pure Python version would take minutes
        with block_forks():
            from importlib.util import find_spec

            return find_spec("pyfastcdc.cy") is not None
    except ImportError:
        return False


def _chunker() -> Any:
    """Return a content-defined chunker for one file; None if it is not installed."""
    if not is_installed():
        return None
    with block_forks():
        # By name: the package may not be installed for type checkers.
        from importlib import import_module

        module = import_module("pyfastcdc.cy")
    return module.FastCDC(_CHUNK, min_size=_SMALLEST, max_size=_LARGEST)


def _read(fd: int, size: int) -> bytes:
    """Return the next bytes of a file, fewer than `size` only at its end. Raises OSError."""
    data = os.read(fd, size)
    while 0 < len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data
