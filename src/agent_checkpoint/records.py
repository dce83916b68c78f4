"""The frozen records that all layers share. Knows no storage and no codec.

They are named tuples because importing `dataclasses` would take a fifth of the run time of a hook
that captures a directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Union

from agent_checkpoint.errors import InvalidInputError

JsonValue = Union[None, bool, int, float, str, "list[JsonValue]", "dict[str, JsonValue]"]
"""Plain JSON, as the codec returns it for a Python value."""

MAX_KEY_BYTES = 1024

_ID = re.compile(r"(?P<key>.+)_(?P<ns>[0-9]{1,20})-(?P<seq>[1-9][0-9]{0,18})", re.DOTALL)
_STREAM = re.compile(r"(key|fx|meta)/[^\ud800-\udfff]+")
_OBJECT_ID = re.compile(r"[0-9a-f]{64}")

_NO_METRICS: Mapping[str, float] = {}


class Entry(NamedTuple):
    """One entry of a stream: its sequence number, from 1, and its bytes."""

    seq: int
    data: bytes


class ObjectInfo(NamedTuple):
    """Metadata of a stored object: id, size in bytes, and time of storage in seconds."""

    id: str
    size: int
    ts: float


class CheckpointId(NamedTuple):
    """A parsed checkpoint id, which contains all that is needed to locate the checkpoint."""

    key: str
    ts_ns: int
    seq: int

    def __str__(self) -> str:
        return f"{self.key}_{self.ts_ns}-{self.seq}"


class Claim(NamedTuple):
    """A sealed statement of a user that a key belongs to a directory."""

    path: str
    """The directory, as text."""
    host: str
    """The host of the directory; empty for a store on one machine."""
    seal: str
    """The seal of the user who made the claim."""


class Draft(NamedTuple):
    """A captured checkpoint that is not written yet, and so has no sequence number."""

    key: str
    parts: Mapping[str, JsonValue]
    kind: str = "save"
    label: str | None = None
    tags: tuple[str, ...] = ()
    metrics: Mapping[str, float] = _NO_METRICS
    source: Checkpoint | None = None
    """The stored checkpoint that the parts are copied from, if any."""
    token: str | None = None
    """The import that the content comes from, if any."""
    claim: Claim | None = None
    """The claim of a directory to the key, if any."""


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
    """The size of the whole state as text, including shared objects."""
    token: str | None = None
    """The import that the content comes from; it stays untrusted in forks and exports too."""
    claim: Claim | None = None
    """The claim of a directory to the key, unverified; `store/claims.py` checks it."""

    @property
    def id(self) -> str:
        """The id of this checkpoint."""
        return str(CheckpointId(self.key, self.ts_ns, self.seq))

    def draft(self) -> Draft:
        """Return a draft with the same content."""
        return Draft(self.key, self.parts, self.kind, self.label, self.tags, self.metrics)

    def summary(self) -> dict[str, Any]:
        """Return everything but the state, as `history` lists it."""
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
    """Return a draft that copies the content of a checkpoint of the same store."""
    return Draft(
        key, source.parts, kind=kind, label=source.label, source=source, token=source.token
    )


def parse_checkpoint_id(text: str) -> CheckpointId | None:
    """Parse a checkpoint id; None if the text is not one."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    return CheckpointId(match["key"], int(match["ns"]), int(match["seq"]))


def check_key(key: object) -> str:
    """Return a valid key.

    Raises:
        InvalidInputError: it is not a string, is empty, is longer than 1 KiB in UTF-8, or has lone
            surrogates.
    """
    if not isinstance(key, str):
        raise InvalidInputError(f"A key must be a string, not {type(key).__name__}.")
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
            f"The key {short_repr(key)} has {size} bytes; the limit is {MAX_KEY_BYTES}."
        )
    return str.__str__(key)  # for a member of a str Enum: its value, which str() may not return


def is_object_id(object_id: object) -> bool:
    """Return whether this is an object id: 64 lower-case hex digits."""
    return isinstance(object_id, str) and _OBJECT_ID.fullmatch(object_id) is not None


def check_object_id(object_id: str) -> str:
    """Return a valid object id: 64 lower-case hex digits.

    Raises:
        InvalidInputError: it is not one.
    """
    if not is_object_id(object_id):
        raise InvalidInputError(f"{short_repr(object_id)} is not an object id (64 hex digits).")
    return object_id


def is_stream(stream: object) -> bool:
    """Return whether this is a stream name: `key/…`, `fx/…` or `meta/…`, valid UTF-8."""
    return isinstance(stream, str) and _STREAM.fullmatch(stream) is not None


def check_stream(stream: str) -> str:
    """Return a valid stream name: `key/…`, `fx/…` or `meta/…`, valid UTF-8.

    Raises:
        InvalidInputError: it is not one.
    """
    if not is_stream(stream):
        raise InvalidInputError(
            f"{short_repr(stream)} is not a stream name: key/…, fx/… or meta/…."
        )
    return stream


def same_json(a: Any, b: Any) -> bool:
    """Return whether two JSON values are identical: 1, 1.0 and true all differ."""
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
    """Return a repr for messages: one line, printable, truncated to `limit` characters."""
    text = ascii(value) if isinstance(value, str) and not value.isprintable() else safe_repr(value)
    return text if len(text) <= limit else text[: limit - 2] + "…" + text[-1]


def safe_repr(value: object) -> str:
    """Return the repr of any value, with a fallback where repr() raises."""
    try:
        return repr(value)
    except Exception:
        # Python refuses to convert a huge int to decimal digits.
        return hex(value) if isinstance(value, int) else f"<{type(value).__name__}>"
