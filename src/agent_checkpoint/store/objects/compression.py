"""Compresses bytes, and decompresses them up to a size limit. Owns the codec byte.

    "r" data                    uncompressed
    "z" size data               zlib
    "s" size data               zstd, in a store whose format record declares it

`size` is the decompressed length as a varint; decompression never produces more bytes than that.
The extra `fast` installs isal, which reads and writes the same zlib streams faster.
"""

from __future__ import annotations

import sys
import zlib
from functools import cache
from importlib import import_module
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import FormatError, IntegrityError
from agent_checkpoint.options import Compression
from agent_checkpoint.store.objects.varint import read_varint, write_varint

_RAW, _ZLIB, _ZSTD = b"r", b"z", b"s"
ZSTD_CODEC = _ZSTD
"""The codec byte of zstd, which is optional."""
INSTALL_ZSTD = "Run pip install backports.zstd, or use Python 3.14"
"""Advice for messages: how to install zstd."""

_LEVEL = 1
_SMALLEST = 128
"""Shorter data is stored uncompressed: compressing it saves too little."""
_MOST_COMPRESSORS = 4
_SAMPLE = 8192
_ISAL_FROM = 128 << 10
"""A process that has compressed or decompressed this many bytes imports isal.

For fewer, the import takes longer than what it saves.
"""
_CALL = 8 << 10
"""What a call counts as: with zlib it takes 0.1 ms for the smallest data, too."""
_WINDOW_LOG_MAX = 24
"""Limit of the zstd window (16 MiB): a crafted frame may require a huge window."""


@cache
def find_zstd() -> str | None:
    """Return the name of the installed module of zstd; None without Python 3.14 and backports.

    Does not load it, which takes longer than a small save: few stores are compressed with zstd.
    """
    with block_forks():
        from importlib.util import find_spec  # slow to load

        if sys.version_info >= (3, 14) and find_spec("_zstd") is not None:
            return "compression.zstd"
        if find_spec("backports") is not None and find_spec("backports.zstd") is not None:
            return "backports.zstd"
    return None


def load_zstd() -> Any:
    """Return the module of zstd, or None if it is not installed."""
    name = find_zstd()
    return None if name is None else _load(name)


@cache
def _load(name: str) -> Any:
    with block_forks():
        try:
            return import_module(name)
        except ImportError:  # damaged
            return None


def pack(data: bytes, compression: Compression = "zlib", hashes: int = 0) -> bytes:
    """Return a codec byte and the data, compressed if that makes it smaller.

    Args:
        data: the bytes to compress.
        compression: `zlib`, or `zstd`, which must be installed.
        hashes: how many of the bytes are hashes, which cannot be compressed.
    """
    if len(data) - hashes < _SMALLEST or not _gains(data):
        return _RAW + data
    if compression == "zstd":
        codec, packed = _ZSTD, _pack_zstd(data)
    else:
        codec, packed = _ZLIB, _zlib_for(data).compress(data, _LEVEL)
    packed = codec + write_varint(len(data)) + packed
    return packed if len(packed) <= len(data) else _RAW + data


def unpack(stored: bytes, limit: int) -> bytes:
    """Decompress the output of `pack`.

    Args:
        stored: the output of `pack`.
        limit: the maximum decompressed size.

    Raises:
        IntegrityError: `stored` is not output of `pack`, or its content is larger than `limit`.
        FormatError: `stored` is compressed with zstd, which is not installed.
    """
    codec = stored[:1]
    if codec == _RAW:
        if len(stored) - 1 > limit:
            raise IntegrityError(f"The size is {len(stored) - 1} bytes; the limit is {limit}.")
        return stored[1:]
    if codec not in (_ZLIB, _ZSTD):
        raise IntegrityError(f"Unknown codec byte {codec!r}.")
    size, start = read_varint(stored, 1)
    if size > limit:
        raise IntegrityError(f"The declared size is {size} bytes; the limit is {limit}.")
    data, whole = (_inflate if codec == _ZLIB else _unpack_zstd)(stored[start:], size)
    if not whole or len(data) != size:
        raise IntegrityError("The decompressed size does not match the declared size.")
    return data


def _gains(data: bytes) -> bool:
    """Return whether data is likely to be compressible; tests only a sample of long data."""
    if len(data) < 8 * _SAMPLE:
        return True
    return len(_zlib_for(data).compress(data[:_SAMPLE], _LEVEL)) < _SAMPLE * 0.95


_idle: list[Any] = []
"""Pool of zstd compressors: creating one takes longer than compressing a few kilobytes."""


def _pack_zstd(data: bytes) -> bytes:
    # pop and append are atomic, so threads need no lock. A compressor that failed is in the middle
    # of a frame, and does not return to the pool.
    try:
        packer = _idle.pop()
    except IndexError:
        packer = load_zstd().ZstdCompressor(_LEVEL)
    packed: bytes = packer.compress(data, packer.FLUSH_FRAME)
    if len(_idle) < _MOST_COMPRESSORS:
        _idle.append(packer)
    return packed


_zlib: Any = None
"""isal, or the module zlib if it is not installed; None until it is wanted."""
_seen = 0
"""Bytes that were compressed or decompressed until then, and `_CALL` for each call."""


def _zlib_for(data: bytes) -> Any:
    global _zlib, _seen
    if _zlib is None:
        _seen += _CALL + len(data)
        if _seen < _ISAL_FROM:
            return zlib
        with block_forks():
            try:
                from isal import isal_zlib as _zlib
            except ImportError:
                _zlib = zlib
    return _zlib


def _inflate(data: bytes, size: int) -> tuple[bytes, bool]:
    module = _zlib_for(data)
    unpacker = module.decompressobj()
    try:
        # One byte more than declared: 0 means "no limit" to zlib, and detects a longer stream.
        done = unpacker.decompress(data, size + 1)
    except module.error as error:
        raise IntegrityError(f"Decompression failed ({error}).") from None
    return done, unpacker.eof and not unpacker.unused_data


def _unpack_zstd(data: bytes, size: int) -> tuple[bytes, bool]:
    zstd = load_zstd()
    if zstd is None:
        raise FormatError(f"It is compressed with zstd, which is not installed. {INSTALL_ZSTD}.")
    options = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
    unpacker = zstd.ZstdDecompressor(options=options)
    try:
        done = unpacker.decompress(data, max_length=size + 1)
    except zstd.ZstdError as error:
        raise IntegrityError(f"Decompression failed ({error}).") from None
    return done, unpacker.eof and not unpacker.unused_data
