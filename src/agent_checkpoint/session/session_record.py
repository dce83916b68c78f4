"""What a session notes about itself in each checkpoint. Owns that part, and reading it.

It is plain JSON, so that a page or a command can read it without any of the session's code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import Checkpoint, is_stream, parse_checkpoint_id, short_repr
from agent_checkpoint.seal import is_own_claim, seal_claim
from agent_checkpoint.session.call_counts import CallCounts
from agent_checkpoint.store.claims import host_of, is_local
from agent_checkpoint.store.ledger.lineage import new_lineage
from agent_checkpoint.store.objects.reader import resolve_tree
from agent_checkpoint.store.store import Store

SESSION_PART = "session"
"""The name of the part."""


@dataclass
class SessionRecord:
    """Where a session stands beside its state."""

    key: str
    family: str
    """Names the ledger, which a session shares with its forks."""
    lineage: list[list[Any]] = field(default_factory=list)
    """The sessions it comes from, each with the last record of the ledger that is of its past."""
    point: str | None = None
    """The checkpoint that it was forked from."""
    inherited: int | None = None
    """How many of the lineage it was forked with; the others it has adopted."""
    workspace: str | None = None
    seal: str | None = None
    """Proves that it was this user who said which directory it is."""
    ledger: int = 0
    """The last record of the ledger that the state knows of."""
    counts: CallCounts = field(default_factory=CallCounts)
    """How often a call without a key of its own was made."""
    standing: list[str] = field(default_factory=list)
    """Effects that a rollback has left standing, and the state does not know of."""
    gone: list[str] = field(default_factory=list)
    """Effects whose results the state has, and that were undone outside."""
    pending: list[str] = field(default_factory=list)
    """Requests that wait for an answer."""
    under_way: list[str] = field(default_factory=list)
    """Effects that were being made when the checkpoint was taken: the state knows no outcome."""
    in_flight: list[str] = field(default_factory=list)
    """Tools that were running when the checkpoint was taken."""
    irreversible: bool = True
    """Whether it may do what cannot be undone; forks may not, unless they are told so."""
    keep_unseen: bool | None = None
    """Whether a rollback that is under way leaves files alone that nobody has saved."""
    drift: list[str] = field(default_factory=list)
    """Some of the paths that others had changed when the session was opened."""
    host: str = ""
    """Where the directory is. It is sealed and not written: of another host it is not ours."""
    token: str | None = None
    """The import that the checkpoint came with. It is sealed too, and not written: what an archive
    has is sealed under another one, or none, and vouches for nothing."""

    @classmethod
    def new(cls, key: str) -> SessionRecord:
        """Return the notes of a session that begins; its ledger is of its own."""
        return cls(key, new_lineage(key))

    def bind(self, workspace: str | None, host: str, token: str | None = None) -> None:
        """Note the directory, with a proof of who says so; for a checkpoint with that token."""
        self.workspace, self.host, self.token = workspace, host, token
        # Where there can be no secret, it has to be named at each opening.
        self.seal = None if workspace is None else seal_claim(self._said())

    @property
    def is_bound(self) -> bool:
        """Whether it was this user who said which directory it is: anybody can write a note."""
        return self.workspace is not None and is_own_claim(self._said(), self.seal)

    @property
    def is_imported(self) -> bool:
        """Whether it came with an archive, and this user has not bound it since."""
        return self.token is not None and not self.is_bound

    def _said(self) -> bytes:
        said = ["workspace of a session", self.family, self.workspace]
        if self.host or self.token:
            said.append(self.host)
        return json.dumps([*said, self.token] if self.token else said).encode()

    def dump(self) -> dict[str, Any]:
        """Return the part, ready to be written; what says nothing is left out."""
        said = {name: value for name, value in vars(self).items() if value not in ([], None)}
        part = {name: list(item) if isinstance(item, list) else item for name, item in said.items()}
        for name in ("counts", "host", "token"):
            part.pop(name, None)
        return {**part, "counts": self.counts.frozen()} if self.counts else part

    @property
    def origin(self) -> str | None:
        """The session that it was forked from, if that is known."""
        place = None if self.point is None else parse_checkpoint_id(self.point)
        return None if place is None else place.key

    def is_own(self, session: str) -> bool:
        """Tell whether what a session did outside is this one's to undo: not what a fork found."""
        return session not in [key for key, _ in self.lineage[: self.inherited or 0]]

    def knows(self, session: str, seq: int) -> bool:
        """Tell whether the state knows of what a session has begun with a record of the ledger."""
        if session == self.key:
            return seq <= self.ledger
        return any(session == key and seq <= seen for key, seen in self.lineage)

    def fork(self, key: str, point: str | None) -> SessionRecord:
        """Return the notes of a session that goes on from here, a checkpoint, under another key."""
        return SessionRecord(
            key,
            self.family,
            lineage=[*self.lineage, [self.key, self.ledger]],
            point=point,
            inherited=len(self.lineage) + 1,
            ledger=self.ledger,
            counts=self.counts.copy(),
            standing=list(self.standing),
            gone=list(self.gone),
            irreversible=False,
            token=self.token,
        )

    def forget_counts(self, task: str) -> None:
        """Count the calls of a task from 1 again: it is run from its top."""
        self.counts.reset_task(task)


def read_session_record(store: Store, checkpoint: Checkpoint) -> SessionRecord | None:
    """Return what a session noted in a checkpoint; None if it is none of a session.

    Raises:
        IntegrityError: the part is damaged.
        StorageError: the medium failed.
    """
    tree = checkpoint.parts.get(SESSION_PART)
    if tree is None:
        return None
    reader = store.reader(checkpoint)
    reader.fetch([tree])
    found = resolve_tree(tree, reader)
    found = found if isinstance(found, dict) else {}
    known = {name: value for name, value in found.items() if name in _IS_RIGHT}
    wrong = [name for name, value in known.items() if not _IS_RIGHT[name](value)]
    if wrong or "key" not in known or "family" not in known:
        raise IntegrityError(
            f"The checkpoint {short_repr(checkpoint.id, 120)} has a damaged session."
        )
    known["counts"] = CallCounts(known.get("counts", ()))
    return SessionRecord(**known, host=host_of(store.backend), token=checkpoint.token)


def record_for_key(head: Checkpoint, noted: SessionRecord) -> SessionRecord:
    """Return the notes in a key's head as those of the key: a fork repeats those of another."""
    if noted.key == head.key:
        return noted
    is_fork = head.kind == "fork" and bool(head.parents)
    return noted.fork(head.key, head.parents[0] if is_fork else None)


def is_foreign(store: Store, checkpoint: Checkpoint) -> bool:
    """Tell whether what a session has saved may be of somebody else.

    Raises:
        IntegrityError: the part is damaged.
        StateError: the secret cannot be read just now.
        StorageError: the medium failed.
    """
    if checkpoint.token is not None:
        return True
    session_record = read_session_record(store, checkpoint)
    if session_record is not None and session_record.seal is not None:
        return not session_record.is_bound
    return not is_local(store.backend)


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


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


# A part that says `session` can be anything: whoever writes a checkpoint can write this one.
_IS_RIGHT: dict[str, Callable[[Any], bool]] = {
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
    "irreversible": _is_bool,
    "keep_unseen": _is_bool,
    "drift": _are_texts,
}
