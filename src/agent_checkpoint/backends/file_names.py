"""Converts stream names to directory names. Does not access the file system.

`key/session_1` becomes `session_1`; names of other streams begin with a dot (`.fx%2fsession_1`).
Unsafe bytes are escaped, as in `%2f`. A name that is long, is reserved, or has capital letters
(keys that differ only in case must not collide on a case-insensitive file system) is shortened and
ends in `~` and a hash; the file `name` in such a directory contains the name of the stream.
"""

from __future__ import annotations

import hashlib

from agent_checkpoint.records import is_stream

SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.=+,@")
RESERVED = frozenset({"objects"})
FORMAT_FOLDER = ".meta%2fformat"
"""The directory of the format record. It is created first, so it identifies a file store."""
LONGEST = 120
CUT = 60


def directory_name(stream: str) -> str:
    """Return the directory name of a stream. It is unique."""
    plain = _escape(stream)
    if len(plain) <= LONGEST and plain == plain.lower() and plain not in RESERVED:
        return plain
    return f"{plain[:CUT]}~{hashlib.sha256(stream.encode()).hexdigest()[:32]}"


def is_shortened(name: str) -> bool:
    """Return whether the stream name must be read from the `name` file."""
    return "~" in name


def stream_name(name: str) -> str | None:
    """Return the stream of an unshortened directory name; None if it is not a stream directory."""
    try:
        body = _unescape(name[1:] if name.startswith(".") else name)
    except ValueError:
        return None
    stream = body if name.startswith(".") else "key/" + body
    return stream if is_stream(stream) and directory_name(stream) == name else None


def _escape(stream: str) -> str:
    kind, _, key = stream.partition("/")
    text, dot = (key, "") if kind == "key" else (stream, ".")
    escaped = "".join(chr(b) if b in SAFE else f"%{b:02x}" for b in text.encode())
    if not dot and escaped.startswith("."):
        escaped = "%2e" + escaped[1:]
    return dot + escaped


def _unescape(text: str) -> str:
    first, *rest = text.split("%")
    raw = bytearray(first.encode())
    for piece in rest:
        raw += bytes.fromhex(piece[:2]) + piece[2:].encode()
    return raw.decode()
