"""The immutable records that all layers share. Does not depend on storage or codecs.

They are named tuples because importing `dataclasses` would take a fifth of the run time of a hook
that captures a directory.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

    from agent_checkpoint.history_row import HistoryRow

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""A JSON value, the output of the codec for a Python value."""

CheckpointKind = Literal[
    "save", "open", "close", "drift", "outside", "in_flight", "fork",
    "safety", "rollback", "restore", "adopt", "purge",
]  # fmt: skip
"""The kinds of checkpoints that this version writes. A stored kind may be any other string."""


class Kind:
    """The names of the kinds of checkpoints."""

    SAVE: Final = "save"
    OPEN: Final = "open"
    """The first checkpoint of a run of a session."""
    CLOSE: Final = "close"
    """The last checkpoint of a run of a session."""
    DRIFT: Final = "drift"
    """Files that changed while the session was closed."""
    OUTSIDE: Final = "outside"
    """Files that changed between two calls of a session; steps back skip it, as a safety one."""
    IN_FLIGHT: Final = "in_flight"
    """Saved while tools were running: `rollback(steps=)` skips it."""
    FORK: Final = "fork"
    SAFETY: Final = "safety"
    """Saved before an operation replaces the state."""
    ROLLBACK: Final = "rollback"
    RESTORE: Final = "restore"
    """A rollback of some of the parts or files."""
    ADOPT: Final = "adopt"
    PURGE: Final = "purge"
    """A checkpoint whose secrets were redacted."""
    UNREADABLE: Final = "unreadable"
    """In listings, in the place of a kind: the entry cannot be read. Never stored."""


ROLLBACK_KINDS = frozenset({Kind.ROLLBACK, Kind.RESTORE, Kind.ADOPT})
"""Kinds of checkpoints that replace the state; a safety checkpoint precedes each."""
SAME_CONTENT = frozenset({Kind.ROLLBACK, Kind.FORK, Kind.OPEN})
"""Kinds of checkpoints that copy the content of their first parent."""

MAX_KEY_BYTES = 1024

_ID = r"(?P<key>.+)_(?P<ns>[0-9]{1,20})-(?P<seq>[1-9][0-9]{0,18})"
_STREAMS = ("key", "fx", "meta")
_OBJECT_ID = re.compile(r"[0-9a-f]{64}")

_NO_METRICS: Mapping[str, float] = {}


class Entry(NamedTuple):
    """One entry of a stream: its sequence number, from 1, and its bytes."""

    seq: int
    data: bytes


class ObjectInfo(NamedTuple):
    """Metadata of a stored object: id, size in bytes, and write time in seconds since the epoch."""

    id: str
    size: int
    ts: float


class CheckpointId(NamedTuple):
    """A parsed checkpoint id. It is sufficient to locate the checkpoint."""

    key: str
    ts_ns: int
    seq: int

    def __str__(self) -> str:
        return f"{self.key}_{self.ts_ns}-{self.seq}"


class Claim(NamedTuple):
    """A statement that a key belongs to a directory, signed with an HMAC under a user's secret."""

    path: str
    """The path of the directory."""
    host: str
    """The host of the directory; empty for a store on one machine."""
    seal: str
    """The HMAC over key, path and host."""
    identity: str = ""
    """What a rename of the directory keeps: see `store/directory_identity.py`; empty if unknown."""
    identity_seal: str = ""
    """The HMAC over key, path, host and identity; of its own, for versions without identities."""


class Draft(NamedTuple):
    """A captured checkpoint that is not written yet. It has no sequence number."""

    key: str
    parts: Mapping[str, JsonValue]
    kind: str = Kind.SAVE
    label: str | None = None
    tags: tuple[str, ...] = ()
    metrics: Mapping[str, float] = _NO_METRICS
    source: Checkpoint | None = None
    """The stored checkpoint that the parts are copied from, if any."""
    token: str | None = None
    """The token of the import that wrote the content, if any."""
    claim: Claim | None = None
    """The claim of a directory to the key, if any."""
    redacted: int = 0
    """How many secrets `redact=` replaced in the parts, labels and tags."""


class ExactText(str):
    """An identifier of this library in a state: stored as a string, and never redacted."""

    __slots__ = ()


class CheckpointRow(dict[str, Any]):
    """One row of `history`: a dict that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return History([cast("HistoryRow", self)])._repr_html_()


class History(list["HistoryRow"]):
    """The rows of `history`: a list that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        from agent_checkpoint.notebook import history_table  # only in notebooks

        return history_table(self)


Changes = dict[str, dict[str, Any]]
"""The changes of a state: `added`, `removed` and `changed`, each by path."""


class ChangeTable(Changes):
    """The changes of a state, as a dict that a notebook shows as a table."""

    def __init__(self) -> None:
        super().__init__(added={}, removed={}, changed={})

    def _repr_html_(self) -> str:
        from agent_checkpoint.notebook import changes_table  # only in notebooks

        return changes_table(self)


class Checkpoint(NamedTuple):
    """A stored checkpoint: an immutable record of named parts, with the ids of its parents."""

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
    """The size of the whole state as JSON in bytes, including shared objects."""
    token: str | None = None
    """The token of the import that wrote the content, if any. Forks and copies inherit it."""
    claim: Claim | None = None
    """The claim of a directory to the key, unverified; `store/directory_claims.py` checks it."""
    redacted: int = 0
    """How many secrets `redact=` replaced in this save; items of a log count when first saved."""

    @property
    def id(self) -> str:
        """The checkpoint id, `<key>_<ts_ns>-<seq>`."""
        return str(CheckpointId(self.key, self.ts_ns, self.seq))

    def draft(self) -> Draft:
        """Return a draft with the same content."""
        return Draft(
            self.key,
            self.parts,
            self.kind,
            self.label,
            self.tags,
            self.metrics,
            redacted=self.redacted,
        )

    def summary(self) -> HistoryRow:
        """Return all fields except the state, in the form that `history` returns."""
        row = CheckpointRow(
            id=self.id,
            ts=self.ts_ns / 1e9,
            kind=self.kind,
            label=self.label,
            tags=list(self.tags),
            metrics=dict(self.metrics),
            parents=list(self.parents),
            parts=list(self.parts),
        )
        if self.redacted:
            row["redacted"] = self.redacted
        return cast("HistoryRow", row)

    def _repr_html_(self) -> str:
        return History([self.summary()])._repr_html_()


def draft_from(source: Checkpoint, key: str, kind: CheckpointKind) -> Draft:
    """Return a draft that copies the content of a checkpoint of the same store."""
    return Draft(
        key,
        source.parts,
        kind=kind,
        label=source.label,
        source=source,
        token=source.token,
        redacted=source.redacted,
    )


def parse_checkpoint_id(text: str) -> CheckpointId | None:
    """Parse a checkpoint id; return None if the string is not a checkpoint id."""
    match = re.fullmatch(_ID, text, re.DOTALL)
    if match is None:
        return None
    return CheckpointId(match["key"], int(match["ns"]), int(match["seq"]))


def check_key(key: object) -> str:
    """Validate a key and return it as a plain `str`.

    Raises:
        InvalidInputError: the key is not a string, is empty, is longer than 1 KiB in UTF-8, or
            contains a lone surrogate.
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
    """Return whether a value is an object id: 64 lower-case hex digits."""
    return isinstance(object_id, str) and _OBJECT_ID.fullmatch(object_id) is not None


def only_object_ids(names: Collection[str]) -> list[str]:
    """Return the names that are object ids; faster than `is_object_id` for each."""
    with suppress(ValueError, TypeError):
        joined = "".join(names)
        if set(map(len, names)) <= {64} and bytes.fromhex(joined).hex() == joined:
            return list(names)
    return list(filter(is_object_id, names))


def check_object_id(object_id: str) -> str:
    """Validate an object id, 64 lower-case hex digits, and return it.

    Raises:
        InvalidInputError: the value is not an object id.
    """
    if not is_object_id(object_id):
        raise InvalidInputError(f"{short_repr(object_id)} is not an object id (64 hex digits).")
    return object_id


def is_stream(stream: object) -> bool:
    """Return whether a value is a stream name: `key/…`, `fx/…` or `meta/…`, valid UTF-8."""
    if not isinstance(stream, str):
        return False
    kind, _, name = stream.partition("/")
    return kind in _STREAMS and name != "" and is_utf8(name)


def is_utf8(text: str) -> bool:
    """Return whether a string can be stored as UTF-8: it has no surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_stream(stream: str) -> str:
    """Validate a stream name, `key/…`, `fx/…` or `meta/…`, and return it.

    Raises:
        InvalidInputError: the value is not a stream name.
    """
    if not is_stream(stream):
        raise InvalidInputError(
            f"{short_repr(stream)} is not a stream name: key/…, fx/… or meta/…."
        )
    return stream


def same_json(a: Any, b: Any) -> bool:
    """Return whether two JSON values are identical; 1, 1.0 and true are different values."""
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
