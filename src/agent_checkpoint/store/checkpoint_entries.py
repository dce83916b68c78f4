"""Stream entries: encodes checkpoint records to bytes, and decodes them.

Owns the members of the record and its hash. Does not depend on the content of parts.

An entry is a JSON object whose last member, `sha256`, is the hash of all bytes before it. Altered
bytes are therefore detected, and the entry is still plain JSON for people and tools.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import (
    FormatError,
    Hint,
    IntegrityError,
    InvalidInputError,
    StorageError,
    UntrustedDataError,
)
from agent_checkpoint.records import Checkpoint, Claim, Draft, JsonValue, Kind, short_repr
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.sealed_streams import ForeignEntry, append_entry, end_entry

FORMAT = 1

MAX_READABLE = 1 << 28
"""The largest entry with an inline state (256 MiB). Such an entry is read into memory whole."""

_HASH_MEMBER = rb',\s*"sha256":\s*"([0-9a-f]{64})"\s*}\s*'
_LONGEST_HASH_MEMBER = 100


def now_ns() -> int:
    """Return the current time in nanoseconds since the epoch, for a record.

    Raises:
        StorageError: the system clock is before 1970 or after 2262.
    """
    try:
        now = time.time_ns()
    except OverflowError:
        now = -1
    if not 0 <= now < 1 << 63:
        raise StorageError(
            "Nothing was saved: the system clock is before 1970 or after 2262. Set the clock."
        )
    return now


def seal_entry(record: dict[str, JsonValue], *, indent: bool = False) -> bytes:
    """Encode a record as an entry that ends with its hash."""
    text = write_json({"agent_checkpoint": FORMAT, **record}, indent=indent)
    body = text[:-2] if indent else text[:-1]  # without the closing brace (and its line break)
    return end_entry(body, indent=indent)


def seal_parts(record: dict[str, JsonValue], parts: Mapping[str, bytes]) -> bytes:
    """Encode a record as `seal_entry` does, with parts that are JSON texts already."""
    members = b",".join([b"%b:%b" % (write_json(name), text) for name, text in parts.items()])
    text = write_json({"agent_checkpoint": FORMAT, **record})
    return end_entry(b'%b,"parts":{%b}' % (text[:-1], members), indent=False)


def append_record(
    backend: Backend, stream: str, record: dict[str, JsonValue], *, after: int | None = None
) -> int:
    """Append a small record to a stream; return its number. Raises ConflictError, StorageError."""
    entry = seal_entry(record, indent=backend.properties.readable)
    return append_entry(backend, stream, entry, after=after)


def open_entry(data: bytes, where: str) -> dict[str, Any]:
    """Check and decode an entry; return its record.

    Args:
        data: the bytes of the entry.
        where: a description of the entry, for messages.

    Raises:
        IntegrityError: the entry is damaged.
        FormatError: the entry has a newer format.
        UntrustedDataError: the store is shared, and the entry has no valid seal.
    """
    if isinstance(data, ForeignEntry):
        raise UntrustedDataError(
            f"{where} has no valid signature under your secret. The store is shared, so the entry "
            "is not trusted. If your team wrote it, set AGENT_CHECKPOINT_SECRET to the team's "
            "secret.",
            hint=Hint(
                "Otherwise ask its owner for an archive exported from a copy of the store; then "
                "delete the key here and import the archive.",
                "import",
            ),
        )
    start = max(0, len(data) - _LONGEST_HASH_MEMBER)
    match = re.compile(_HASH_MEMBER).search(data, start)
    if match is None or match.end() != len(data):
        raise IntegrityError(
            f"{where} is corrupt, or was not written by agent-checkpoint: it has no SHA-256. "
            "Restore it from a backup, or delete it. Other entries are not affected."
        )
    if hashlib.sha256(data[: match.start()]).hexdigest().encode() != match[1]:
        raise IntegrityError(
            f"{where} is corrupt: SHA-256 mismatch. Restore it from a backup, or delete it. "
            "Other entries are not affected."
        )
    try:
        record = read_json(data)
    except IntegrityError as error:
        raise IntegrityError(f"{where} cannot be read. {error}") from None
    if not isinstance(record, dict):
        raise IntegrityError(f"{where} is not a JSON object.")
    version = record.get("agent_checkpoint")
    if type(version) is not int:
        raise IntegrityError(f"{where} is not a record of agent-checkpoint.")
    if version > FORMAT:
        raise FormatError(
            f"{where} has format {version}; this version supports formats up to {FORMAT}. "
            "Install a newer agent-checkpoint."
        )
    return record


def write_checkpoint(
    draft: Draft,
    *,
    ts_ns: int,
    parents: tuple[str, ...],
    parts: Mapping[str, bytes],
    size: int,
) -> bytes:
    """Encode a checkpoint whose parts are JSON texts.

    Members with default values are omitted, because most entries are small.

    Args:
        draft: the checkpoint; its `parts` are not used.
        ts_ns: its creation time.
        parents: the ids of its parents.
        parts: the JSON text of each part.
        size: the size of the whole state as JSON, in bytes.
    """
    record: dict[str, JsonValue] = {"key": draft.key, "ts_ns": ts_ns}
    details = [*_details(draft, parents), ("size", size)]
    record.update({name: value for name, value in details if value != _DEFAULTS[name]})
    return seal_parts(record, parts)


def write_readable(
    draft: Draft, *, ts_ns: int, parents: tuple[str, ...], parts: Mapping[str, JsonValue]
) -> bytes:
    """Encode a checkpoint as indented JSON, with the state inline.

    Raises:
        InvalidInputError: the entry would be larger than MAX_READABLE.
    """
    record: dict[str, JsonValue] = {"key": draft.key, "ts_ns": ts_ns}
    record.update(_details(draft, parents))
    for name in ("import", "claim", "redacted"):
        if record[name] == _DEFAULTS[name]:
            del record[name]
    entry = seal_entry({**record, "parts": dict(parts)}, indent=True)
    if len(entry) > MAX_READABLE:
        raise too_large(draft.key)
    return entry


def too_large(key: str) -> InvalidInputError:
    """Return the error for a state that does not fit into a readable entry."""
    return InvalidInputError(
        f"The state for {short_repr(key)} is larger than {MAX_READABLE:,} bytes as indented JSON, "
        'the limit of the file backend. Use backend="sqlite".'
    )


def _details(draft: Draft, parents: tuple[str, ...]) -> list[tuple[str, JsonValue]]:
    return [
        ("kind", draft.kind),
        ("label", draft.label),
        ("tags", list(draft.tags)),
        ("metrics", dict(draft.metrics)),
        ("parents", list(parents)),
        ("import", draft.token),
        ("claim", None if draft.claim is None else _claim_record(draft.claim)),
        ("redacted", draft.redacted),
    ]


def _claim_record(claim: Claim) -> dict[str, JsonValue]:
    optional = ("identity", "identity_seal")
    return {name: value for name, value in claim._asdict().items() if value or name not in optional}


def read_checkpoint(key: str, seq: int, data: bytes) -> Checkpoint:
    """Check and decode an entry of a key's stream; return the checkpoint.

    Raises:
        IntegrityError: the entry is damaged, or belongs to another key.
        FormatError: the entry has a newer format.
        UntrustedDataError: the store is shared, and the entry has no valid seal.
    """
    where = f"The checkpoint {short_repr(f'{key}@{seq}')}"
    record = {**_DEFAULTS, **open_entry(data, where)}
    if record.get("key") != key:
        raise IntegrityError(
            f"{where} is damaged or was moved: its record names the key "
            f"{short_repr(record.get('key'))}."
        )
    wrong = [name for name, is_right in _FIELDS.items() if not is_right(record.get(name))]
    if wrong:
        raise IntegrityError(f"{where} has wrong or missing members: {', '.join(wrong)}.")
    claim = record["claim"]
    if claim is not None:
        claim = Claim(**{name: claim[name] for name in Claim._fields if name in claim})
    return Checkpoint(
        key=key,
        seq=seq,
        ts_ns=record["ts_ns"],
        kind=record["kind"],
        label=record["label"],
        tags=tuple(record["tags"]),
        metrics=record["metrics"],
        parents=tuple(record["parents"]),
        parts=record["parts"],
        size=record["size"] or len(data),
        token=record["import"],
        claim=claim,
        redacted=record["redacted"],
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_ALWAYS_CLAIMED = ("path", "host", "seal")


def _is_claim(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_text(value.get(name, None if name in _ALWAYS_CLAIMED else "")) for name in Claim._fields
    )


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(
        type(number) in (int, float) and abs(number) <= sys.float_info.max
        for number in value.values()
    )


# A valid hash does not authenticate the writer: anybody can compute one.
_FIELDS: dict[str, Callable[[Any], bool]] = {
    "ts_ns": lambda value: type(value) is int and 0 <= value < 10**20,
    "kind": _is_text,
    "label": lambda value: value is None or _is_text(value),
    "tags": _are_texts,
    "metrics": _are_numbers,
    "parents": _are_texts,
    "parts": lambda value: isinstance(value, dict),
    "size": lambda value: type(value) is int and 0 <= value < 2**63,
    "redacted": lambda value: type(value) is int and 0 <= value < 2**63,
    "import": lambda value: value is None or _is_text(value),
    "claim": lambda value: value is None or _is_claim(value),
}

_DEFAULTS: dict[str, Any] = {
    "kind": Kind.SAVE,
    "label": None,
    "tags": [],
    "metrics": {},
    "parents": [],
    "import": None,
    "claim": None,
    "size": 0,
    "redacted": 0,
}
