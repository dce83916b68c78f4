"""The frozen nouns that every layer passes around.

Owns their shape; knows no storage and no codec. They are named tuples and not dataclasses, because
to load those takes a fifth of the time of a hook that captures a directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from agent_checkpoint.errors import InvalidInputError

JsonValue = Union[None, bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]"]
"""What the codec makes of a Python value: plain JSON, ready to be written."""

MAX_KEY_BYTES = 1024

_ID = re.compile(r"(?P<key>.+)_(?P<ns>[0-9]{1,20})-(?P<seq>[1-9][0-9]{0,18})", re.DOTALL)
_STREAM = re.compile(r"(key|fx|meta)/[^\ud800-\udfff]+")
_OBJECT_ID = re.compile(r"[0-9a-f]{64}")

_NO_METRICS: Mapping[str, float] = {}


class Entry(NamedTuple):
    """One entry of a stream: its number, 1 for the first, and its bytes."""

    seq: int
    data: bytes


class ObjectInfo(NamedTuple):
    """What a backend tells about a stored object without reading it; `ts` is in seconds."""

    id: str
    size: int
    ts: float


class CheckpointId(NamedTuple):
    """A checkpoint's id, taken apart: it says by itself where the checkpoint is."""

    key: str
    ts_ns: int
    seq: int

    def __str__(self) -> str:
        return f"{self.key}_{self.ts_ns}-{self.seq}"


class Claim(NamedTuple):
    """The statement of a user that a key is the line of a directory."""

    path: str
    """The directory, as text."""
    host: str
    """Where it is; empty for a store that is on one machine."""
    seal: str
    """Proves who said it."""


class Draft(NamedTuple):
    """All of a checkpoint but its place: what is captured and still has to be written."""

    key: str
    parts: Mapping[str, JsonValue]
    kind: str = "save"
    label: str | None = None
    tags: tuple[str, ...] = ()
    metrics: Mapping[str, float] = _NO_METRICS
    source: Checkpoint | None = None
    """The checkpoint that the parts are taken from as they are stored, if they are not new."""
    token: str | None = None
    """The import that the content came with, if it comes from an archive."""
    claim: Claim | None = None
    """Whose line the key is, if it is that of a directory."""


class Checkpoint(NamedTuple):
    """An immutable record of named parts at one moment, with its parents."""

    key: str
    seq: int
    ts_ns: int
    kind: str
    label: str | None
    tags: tuple[str, ...]
    metrics: Mapping[str, float]
    parents: tuple[str, ...]
    parts: Mapping[str, JsonValue]
    size: int = 0
    """The bytes of the whole state as text, whatever of it is shared."""
    token: str | None = None
    """The import that the content came with: it is not this user's, however it got further."""
    claim: Claim | None = None
    """Whose line the key is, as its writer says; `store/claims.py` checks it."""

    @property
    def id(self) -> str:
        """The self-locating name of this checkpoint."""
        return str(CheckpointId(self.key, self.ts_ns, self.seq))

    def draft(self) -> Draft:
        """Return what it was written from."""
        return Draft(self.key, self.parts, self.kind, self.label, self.tags, self.metrics)

    def summary(self) -> dict[str, Any]:
        """What `history` shows: everything but the state."""
        return {
            "id": self.id,
            "ts": self.ts_ns / 1e9,
            "kind": self.kind,
            "label": self.label,
            "tags": list(self.tags),
            "metrics": dict(self.metrics),
            "parents": list(self.parents),
            "parts": list(self.parts),
        }


def draft_from(source: Checkpoint, key: str, kind: str) -> Draft:
    """Return the draft of a checkpoint with the content of another one of the same store."""
    return Draft(
        key, source.parts, kind=kind, label=source.label, source=source, token=source.token
    )


def parse_checkpoint_id(text: str) -> CheckpointId | None:
    """Take an id apart, or return None if the text has not the form of one."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    return CheckpointId(match["key"], int(match["ns"]), int(match["seq"]))


def check_key(key: object) -> str:
    """Return the key if it is one.

    Raises:
        InvalidInputError: it is not text, empty, longer than 1 kB in UTF-8, or has lone surrogates.
    """
    if not isinstance(key, str):
        raise InvalidInputError(f"A key is text, not {type(key).__name__}.")
    if not key:
        raise InvalidInputError("A key must not be empty.")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidInputError(
            f"The key {short_repr(key)} has lone surrogates and cannot be stored as UTF-8."
        ) from None
    if size > MAX_KEY_BYTES:
        raise InvalidInputError(
            f"The key {short_repr(key)} has {size} bytes; at most {MAX_KEY_BYTES} are allowed."
        )
    return str.__str__(key)  # a member of a str Enum is its text, whatever its str() says


def is_object_id(object_id: object) -> bool:
    """Tell whether this is an object id: 64 lower-case hex digits."""
    return isinstance(object_id, str) and _OBJECT_ID.fullmatch(object_id) is not None


def check_object_id(object_id: str) -> str:
    """Return the object id if it is one: 64 lower-case hex digits.

    Raises:
        InvalidInputError: it is anything else.
    """
    if not is_object_id(object_id):
        raise InvalidInputError(f"{short_repr(object_id)} is not an object id (64 hex digits).")
    return object_id


def is_stream(stream: object) -> bool:
    """Tell whether this is a stream's name: `key/…`, `fx/…` or `meta/…`, in UTF-8."""
    return isinstance(stream, str) and _STREAM.fullmatch(stream) is not None


def check_stream(stream: str) -> str:
    """Return the stream's name if it is one: `key/…`, `fx/…` or `meta/…`, in UTF-8.

    Raises:
        InvalidInputError: it is anything else.
    """
    if not is_stream(stream):
        raise InvalidInputError(f"{short_repr(stream)} is not a stream: key/…, fx/… or meta/….")
    return stream


def same_json(a: Any, b: Any) -> bool:
    """Tell whether two JSON values are exactly alike: 1, 1.0 and true are three."""
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and a.keys() == b.keys()
            and all(same_json(value, b[name]) for name, value in a.items())
        )
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same_json, a, b))
    if isinstance(a, float) or isinstance(b, float):  # 0.0 is not -0.0, and NaN is NaN
        are_floats = isinstance(a, float) and isinstance(b, float)
        return are_floats and repr(float(a)) == repr(float(b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def short_repr(value: object, limit: int = 60) -> str:
    """Quote a name for a message: one line, printable, cut short."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else safe_repr(value)
    return text if len(text) <= limit else text[: limit - 2] + "…" + text[-1]


def safe_repr(value: object) -> str:
    """Return the repr of any value, also where repr() fails: a message must not fail by it."""
    try:
        return repr(value)
    except Exception:
        # Python refuses the decimal digits of a huge int.
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__}>"
