"""Stream names as directory names. Owns the escaping; touches no file.

`key/session_1` becomes `session_1`, other streams begin with a dot (`.fx%2fsession_1`). Bytes that
are not plainly safe are written `%2f`. A name that is long, has capitals (two keys that differ only
in case must not meet on a case-insensitive file system) or is reserved is cut and ends in `~` and a
hash; such a directory holds its stream's name in the file `name`.
"""

from __future__ import annotations

import hashlib

from agent_checkpoint.records import is_stream

SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.=+,@")
RESERVED = frozenset({"objects"})
FORMAT_FOLDER = ".meta%2fformat"
"""The directory of the format record: the first that is made, so a file store is known by it."""
LONGEST = 120
CUT = 60


def directory_name(stream: str) -> str:
    """Return the directory name of a stream; two streams never share one."""
    plain = _escape(stream)
    if len(plain) <= LONGEST and plain == plain.lower() and plain not in RESERVED:
        return plain
    return f"{plain[:CUT]}~{hashlib.sha256(stream.encode()).hexdigest()[:32]}"


def is_shortened(name: str) -> bool:
    """Tell whether the directory's stream must be read from its `name` file."""
    return "~" in name


def stream_name(name: str) -> str | None:
    """Return the stream of an uncut directory name, or None if it is not one of ours."""
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
