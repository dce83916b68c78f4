"""Bytes packed smaller, and unpacked within bounds. Owns the codec byte; knows no objects.

    "r" data                    as it is
    "z" size data               zlib
    "s" size data               zstd, in a store whose format record names it

`size` is the length of the unpacked bytes as a varint; unpacking never makes more than it says.
"""

from __future__ import annotations

import zlib
from typing import Any

from agent_checkpoint.errors import FormatError, IntegrityError
from agent_checkpoint.store.objects.varint import read_varint, write_varint

zstd: Any
try:
    from compression import zstd  # type: ignore[import-not-found,no-redef]
except ImportError:
    try:
        from backports import zstd
    except ImportError:  # neither Python 3.14 nor the extra `fast`
        zstd = None

_RAW, _ZLIB, _ZSTD = b"r", b"z", b"s"
ZSTD_CODEC = _ZSTD
"""The codec byte of what not every installation can unpack."""
INSTALL_ZSTD = "pip install 'agent-checkpoint[fast]', or use Python 3.14"
"""What brings zstd."""

_LEVEL = 1
_SMALLEST = 128
"""Shorter bytes are left as they are: packing gains less than it costs."""
_MOST_COMPRESSORS = 4
_SAMPLE = 8192
_WINDOW_LOG_MAX = 24
"""A crafted frame may ask for a large window; this much memory it may have (16 MiB)."""


def pack(data: bytes, compression: str = "zlib") -> bytes:
    """Return the bytes with a codec byte, packed if that makes them smaller.

    Args:
        data: the bytes.
        compression: `zlib`, which every installation can unpack, or `zstd`, if it is installed.
    """
    if len(data) < _SMALLEST or not _gains(data):
        return _RAW + data
    if compression == "zstd":
        codec, packed = _ZSTD, _pack_zstd(data)
    else:
        codec, packed = _ZLIB, zlib.compress(data, _LEVEL)
    packed = codec + write_varint(len(data)) + packed
    return packed if len(packed) <= len(data) else _RAW + data


def unpack(stored: bytes, limit: int) -> bytes:
    """Return what was packed.

    Args:
        stored: what `pack` returned.
        limit: the most bytes that may come out.

    Raises:
        IntegrityError: the bytes were not made by `pack`, or say that they are larger than `limit`.
        FormatError: they are packed with zstd, which is not installed here.
    """
    codec = stored[:1]
    if codec == _RAW:
        if len(stored) - 1 > limit:
            raise IntegrityError(f"It has {len(stored) - 1} bytes; at most {limit} are allowed.")
        return stored[1:]
    if codec not in (_ZLIB, _ZSTD):
        raise IntegrityError("It has no known codec byte.")
    size, start = read_varint(stored, 1)
    if size > limit:
        raise IntegrityError(f"It says that it has {size} bytes; at most {limit} are allowed.")
    data, whole = (_inflate if codec == _ZLIB else _unpack_zstd)(stored[start:], size)
    if not whole or len(data) != size:
        raise IntegrityError("It does not unpack to the size that it says.")
    return data


def _gains(data: bytes) -> bool:
    """Tell by the beginning of long bytes whether packing all of them is worth the time."""
    return len(data) < 8 * _SAMPLE or len(zlib.compress(data[:_SAMPLE], 1)) < _SAMPLE * 0.95


_idle: list[Any] = []
"""Compressors of zstd: to set one up takes longer than to pack a few kilobytes with it."""


def _pack_zstd(data: bytes) -> bytes:
    # Threads take from the list and give back to it without a lock: both are single steps. One that
    # fails is in the middle of a frame, and is not given back.
    try:
        packer = _idle.pop()
    except IndexError:
        packer = zstd.ZstdCompressor(_LEVEL)
    packed: bytes = packer.compress(data, zstd.ZstdCompressor.FLUSH_FRAME)
    if len(_idle) < _MOST_COMPRESSORS:
        _idle.append(packer)
    return packed


def _inflate(data: bytes, size: int) -> tuple[bytes, bool]:
    unpacker = zlib.decompressobj()
    try:
        # One byte more than it says: zlib takes 0 for "no limit", and a lie must show.
        done = unpacker.decompress(data, size + 1)
    except zlib.error as error:
        raise IntegrityError(f"It does not unpack ({error}).") from None
    return done, unpacker.eof and not unpacker.unused_data


def _unpack_zstd(data: bytes, size: int) -> tuple[bytes, bool]:
    if zstd is None:
        raise FormatError(f"It is packed with zstd, which is not installed here: {INSTALL_ZSTD}.")
    options = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    unpacker = zstd.ZstdDecompressor(options=options)
    try:
        done = unpacker.decompress(data, max_length=size + 1)
    except zstd.ZstdError as error:
        raise IntegrityError(f"It does not unpack ({error}).") from None
    return done, unpacker.eof and not unpacker.unused_data
