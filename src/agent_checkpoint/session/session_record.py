"""The session record: the part of a checkpoint that describes the session. Owns its format.

It is plain JSON, so that the CLI and the web UI can read it without the user's classes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import Checkpoint, Kind, is_stream, parse_checkpoint_id, short_repr
from agent_checkpoint.seal import is_own_claim, seal_claim
from agent_checkpoint.session.call_counts import CallCounts
from agent_checkpoint.store.directory_claims import host_of
from agent_checkpoint.store.ledger.lineage import new_lineage
from agent_checkpoint.store.objects.reader import resolve_tree
from agent_checkpoint.store.store import Store

SESSION_PART = "session"
"""The part that contains the session record."""


class SessionRecord:
    """Lineage, workspace, ledger position and open effects of a session at one checkpoint."""

    def __init__(self, key: str, family: str) -> None:
        self.key = key
        self.family = family
        """The name of the effect ledger, which a session shares with its forks."""
        self.lineage: list[list[Any]] = []
        """The ancestor sessions, each with the last ledger record that belongs to this history."""
        self.point: str | None = None
        """The checkpoint at which the session was forked."""
        self.inherited: int | None = None
        """How many rows of the lineage come from the fork; the others come from adopted forks."""
        self.workspace: str | None = None
        self.seal: str | None = None
        """An HMAC under the user's secret over the workspace path. Proves that this user chose
        it."""
        self.ledger = 0
        """The last ledger record that the state reflects."""
        self.counts = CallCounts()
        """How many calls without an idempotency key were made, per task and tool."""
        self.standing: list[str] = []
        """Committed effects that the state does not contain, as after a rollback."""
        self.gone: list[str] = []
        """Compensated effects whose results the state contains."""
        self.pending: list[str] = []
        """Approval requests without an answer."""
        self.under_way: list[str] = []
        """Effects in progress when the checkpoint was saved: the state has no outcome of them."""
        self.in_flight: list[str] = []
        """Tools that were running when the checkpoint was saved."""
        self.irreversible = True
        """Whether irreversible tools are allowed; forks need `effects="allow"`."""
        self.batches: list[list[Any]] = []
        """Open calls as an earlier version wrote them; now they are a part. A row per agent: its
        name, the number of calls and the last ledger record before them, a hash of the calls, their
        ids."""
        self.torn_calls: list[list[str]] = []
        """Calls of models within which another call waits for an approval: a part of their changes
        is in the state. A row per call: its agent, ref and tool, the request, the checkpoint before
        it."""
        self.keep_unseen: bool | None = None
        """`keep_unseen` of a rollback in progress, for crash recovery."""
        self.drift: list[str] = []
        """Some of the paths that had drifted when the session was opened."""
        self.host = ""
        """The host of the workspace. Part of the seal, not stored: a path is valid on one host
        only."""
        self.token: str | None = None
        """The import token of the checkpoint. Part of the seal, not stored: a record from an
        archive has a seal with another token or none, which is not valid here."""

    @classmethod
    def new(cls, key: str) -> SessionRecord:
        """Return the record of a new session, with a new ledger."""
        return cls(key, new_lineage(key))

    def become(self, other: SessionRecord) -> None:
        """Take over all fields of another record: the parts of the session hold this object."""
        vars(self).update(vars(other))

    def replaced(self, **changes: Any) -> SessionRecord:
        """Return a copy with other values of some fields."""
        other = SessionRecord(self.key, self.family)
        vars(other).update({**vars(self), **changes})
        return other

    def bind(self, workspace: str | None, host: str, token: str | None = None) -> None:
        """Set the workspace and seal it, for a checkpoint with the given import token."""
        self.workspace, self.host, self.token = workspace, host, token
        # Without a secret there is no seal, and each open needs workspace=.
        self.seal = None if workspace is None else seal_claim(self._sealed_bytes())

    @property
    def is_bound(self) -> bool:
        """Whether the seal is valid: anyone can write a record, but only this user can seal it."""
        return self.workspace is not None and is_own_claim(self._sealed_bytes(), self.seal)

    @property
    def is_imported(self) -> bool:
        """Whether the session was imported, and this user has not bound it to a directory since."""
        return self.token is not None and not self.is_bound

    def _sealed_bytes(self) -> bytes:
        fields = ["workspace of a session", self.family, self.workspace]
        if self.host or self.token:
            fields.append(self.host)
        return json.dumps([*fields, self.token] if self.token else fields).encode()

    def dump(self) -> dict[str, Any]:
        """Return the part to store, without empty fields."""
        fields = {name: value for name, value in vars(self).items() if value not in ([], None)}
        part = {
            name: list(item) if isinstance(item, list) else item for name, item in fields.items()
        }
        for name in ("counts", "host", "token"):
            part.pop(name, None)
        return {**part, "counts": self.counts.frozen()} if self.counts else part

    @property
    def origin(self) -> str | None:
        """The parent session of a fork, if known."""
        parsed = None if self.point is None else parse_checkpoint_id(self.point)
        return None if parsed is None else parsed.key

    def is_own(self, session: str) -> bool:
        """Return whether this session may compensate effects of `session`: not an ancestor's."""
        return session not in [key for key, _ in self.lineage[: self.inherited or 0]]

    def knows(self, session: str, seq: int) -> bool:
        """Return whether the state reflects an effect that a session started at a record."""
        if session == self.key:
            return seq <= self.ledger
        return any(session == key and seq <= last for key, last in self.lineage)

    def fork(self, key: str, point: str | None) -> SessionRecord:
        """Return the record of a session forked from this checkpoint."""
        fork = SessionRecord(key, self.family)
        fork.lineage = [*self.lineage, [self.key, self.ledger]]
        fork.point = point
        fork.inherited = len(self.lineage) + 1
        fork.ledger = self.ledger
        fork.counts = self.counts.copy()
        fork.standing, fork.gone = list(self.standing), list(self.gone)
        fork.batches, fork.torn_calls = list(self.batches), list(self.torn_calls)
        fork.irreversible = False
        fork.token = self.token
        return fork


def read_session_record(store: Store, checkpoint: Checkpoint) -> SessionRecord | None:
    """Return the session record of a checkpoint; None if the checkpoint has none.

    Raises:
        IntegrityError: the record is damaged.
        StorageError: the medium failed.
    """
    tree = checkpoint.parts.get(SESSION_PART)
    if tree is None:
        return None
    reader = store.reader(checkpoint)
    reader.fetch([tree])
    stored = resolve_tree(tree, reader)
    stored = stored if isinstance(stored, dict) else {}
    known = {name: value for name, value in stored.items() if name in _VALIDATORS}
    wrong = [name for name, value in known.items() if not _VALIDATORS[name](value)]
    if wrong or "key" not in known or "family" not in known:
        raise IntegrityError(
            f"The session record of the checkpoint {short_repr(checkpoint.id, 120)} is damaged."
        )
    record = SessionRecord(known["key"], known["family"])
    vars(record).update(known, counts=CallCounts(known.get("counts", ())))
    record.host, record.token = host_of(store.backend), checkpoint.token
    return record


def record_for_key(head: Checkpoint, record: SessionRecord) -> SessionRecord:
    """Return the session record of a key.

    The first checkpoint of a fork still contains the record of its parent. In that case, a record
    for the fork is derived from it.
    """
    if record.key == head.key:
        return record
    is_fork = head.kind == Kind.FORK and bool(head.parents)
    return record.fork(head.key, head.parents[0] if is_fork else None)


def is_foreign(store: Store, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint of a session may have been written by another user.

    Raises:
        IntegrityError: the session record is damaged.
        StateError: the secret cannot be read.
        StorageError: the medium failed.
    """
    if checkpoint.token is not None:
        return True
    session_record = read_session_record(store, checkpoint)
    if session_record is not None and session_record.seal is not None:
        return not session_record.is_bound
    return not store.backend.properties.is_local


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list)
        and len(row) > 2
        and (row[0] is None or isinstance(row[0], str))
        and isinstance(row[1], str)
        and all(map(_is_number, row[2:]))
        for row in value
    )


def _is_lineage(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and len(row) == 2 and _is_text(row[0]) and _is_number(row[1])
        for row in value
    )


def _is_batch(value: Any) -> bool:
    if not isinstance(value, list) or len(value) != 5:
        return False
    name, calls, ledger, digest, ids = value
    return _are_texts([name, digest]) and all(map(_is_number, [calls, ledger])) and _are_texts(ids)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


# The record is untrusted input: anyone who can write a checkpoint can write this part.
_VALIDATORS: dict[str, Callable[[Any], bool]] = {
    "key": _is_text,
    "family": lambda value: _is_text(value) and is_stream(f"fx/{value}"),
    "lineage": _is_lineage,
    "point": _is_text,
    "inherited": _is_number,
    "workspace": lambda value: _is_text(value) and value.startswith("/") and "\0" not in value,
    "seal": _is_text,
    "ledger": _is_number,
    "counts": _are_counts,
    "standing": _are_texts,
    "gone": _are_texts,
    "pending": _are_texts,
    "under_way": _are_texts,
    "in_flight": _are_texts,
    "batches": lambda value: isinstance(value, list) and all(map(_is_batch, value)),
    "torn_calls": lambda value: (
        isinstance(value, list) and all(_are_texts(row) and len(row) == 5 for row in value)
    ),
    "irreversible": _is_bool,
    "keep_unseen": _is_bool,
    "drift": _are_texts,
}
