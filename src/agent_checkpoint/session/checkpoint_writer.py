"""Writes the checkpoints of a session. Owns their order, and fencing by the expected head.

Opening a session appends to its key. The previous owner's next save then fails its
compare-and-swap on the head.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.manager.checkpoint_parts import capture, make_draft
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint, CheckpointKind, Draft, Kind, short_repr
from agent_checkpoint.session.session_record import SESSION_PART, SessionRecord
from agent_checkpoint.store.checkpoint_entries import now_ns
from agent_checkpoint.store.objects.reader import resolve_tree
from agent_checkpoint.store.objects.references import ReusedPart
from agent_checkpoint.store.objects.splitting import inline_tree

if TYPE_CHECKING:
    from concurrent.futures import Future


class CheckpointWriter:
    """Writes the checkpoints of one session, each with the previous one as expected head."""

    def __init__(
        self, manager: CheckpointManager, record: SessionRecord, head: Checkpoint | None
    ) -> None:
        self.manager = manager
        self.record = record
        self.head = head
        self.redacted = 0
        """How many values were redacted in the checkpoints that were written."""
        self._unconfirmed: Checkpoint | None = None
        """A write whose outcome is unknown, because it was interrupted before it returned."""
        self._compared: tuple[Draft, str] | None = None
        """The last draft that was compared with the head, and its digest."""
        self._head_digest: tuple[str, str] | None = None
        """The id and the digest of the head, if it was written from a compared draft."""
        self.lock = RLock()
        """Held from the capture of a state until its position is fixed."""

    @property
    def head_id(self) -> str:
        """The id of the last checkpoint; empty if there is none yet."""
        return "" if self.head is None else self.head.id

    def draft(
        self,
        parts: Mapping[str, Any],
        *,
        without: tuple[str, ...] = (),
        kind: CheckpointKind = Kind.SAVE,
        label: str | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> Draft:
        """Capture parts on the caller's thread; other parts are carried over from the head.

        Parts whose names start with one of `without` are not carried over.

        Raises:
            StateError: a value cannot be captured; the message contains its path.
            WorkspaceError: the files cannot be read.
        """
        store = self.manager.store
        taken: dict[str, Any] = {}
        if parts:  # `capture` would treat an empty dict as a state
            taken = capture(dict(parts), self.manager.fmt, store.writer, self.manager.policy)
        kept = {} if self.head is None else self.head.parts
        carried: dict[str, Any] = {
            name: ReusedPart(kept[name])
            for name in kept
            if name not in taken and name != SESSION_PART and not name.startswith(without)
        }
        draft = make_draft(
            self.record.key,
            {**carried, **taken},
            label=label,
            tags=tags,
            metrics=metrics,
            policy=self.manager.policy,
        )
        # The record is not redacted: it consists of names and numbers.
        return draft._replace(parts={**draft.parts, SESSION_PART: self.record.dump()}, kind=kind)

    def write(self, draft: Draft, parents: tuple[str, ...] | None = None) -> Checkpoint:
        """Append a checkpoint after the head.

        Raises:
            ConflictError: another process has opened the session or written to its key.
            StorageError: the medium failed; the save is not confirmed.
        """
        with self.lock:
            self.manager.background.flush()
            return self._write(draft, parents)

    def submit(self, draft: Draft) -> Future[str]:
        """Write a checkpoint in the background, in order; return a future of its id."""
        return self.manager.background.submit(lambda: self._write(draft, None).id, awaited=True)

    def is_repeated(self, draft: Draft) -> bool:
        """Return whether the head has the same content as a draft, and is not a save of the user.

        It was written from a draft that was compared, or by opening the session. Labels are not
        compared, nor how far the ledger was read.

        Raises:
            StateError: the draft cannot be encoded.
            IntegrityError: an object of the head is missing or damaged.
            StorageError: the medium failed.
        """
        store, head = self.manager.store, self.head
        if head is not None and head.kind == Kind.OPEN and self._head_digest is None:
            reader = store.reader(head)
            reader.fetch(head.parts.values())
            parts = {name: resolve_tree(tree, reader) for name, tree in head.parts.items()}
            self._head_digest = head.id, _digest(parts)
        parts = {name: inline_tree(tree, store.writer()) for name, tree in draft.parts.items()}
        digest = _digest(parts)
        self._compared = draft, digest
        return not draft.tags and self._head_digest == (self.head_id, digest)

    def resolve_interrupted(self) -> None:
        """Resolve the outcome of an interrupted write: if it was appended, it is the head.

        Raises:
            CheckpointError: the head cannot be read.
        """
        unconfirmed = self._unconfirmed
        if unconfirmed is not None:
            head = self.manager.store.head(unconfirmed.key)
            if head is not None and head.seq > unconfirmed.seq and _is_same(head, unconfirmed):
                self.head = head
            self._unconfirmed = None

    def _write(self, draft: Draft, parents: tuple[str, ...] | None) -> Checkpoint:
        self.resolve_interrupted()
        head = self.head
        if parents is None:
            parents = () if head is None else (head.id,)
        after = 0 if head is None else head.seq
        unconfirmed = _as_checkpoint(draft, after, parents)
        self._unconfirmed = (
            unconfirmed  # first: an interrupt may come after the append, before the assignment
        )
        try:
            self.head = self.manager.store.write(
                draft, parents=parents, after=after, ts_ns=unconfirmed.ts_ns
            )
        except ConflictError as error:
            self._unconfirmed = None
            raise ConflictError(
                f"The session {short_repr(draft.key)} was opened again elsewhere, or another "
                "writer saved to its key. This instance can no longer save: close it. Its earlier "
                "checkpoints are kept."
            ) from error
        self._unconfirmed = None
        compared, self._compared = self._compared, None
        is_compared = compared is not None and compared[0] is draft
        self._head_digest = (self.head.id, compared[1]) if compared and is_compared else None
        self.redacted += 0 if draft.source is not None else self.head.redacted
        return self.head


def _digest(parts: Mapping[str, Any]) -> str:
    content = {**parts, SESSION_PART: {**parts.get(SESSION_PART, {}), "ledger": 0}}
    # Not canonical JSON: a float that was read is written in another form there.
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _as_checkpoint(draft: Draft, after: int, parents: tuple[str, ...]) -> Checkpoint:
    """Return the checkpoint about to be written, to recognize it later; it has no number yet."""
    return Checkpoint(
        draft.key,
        after,
        now_ns(),
        draft.kind,
        draft.label,
        draft.tags,
        draft.metrics,
        parents,
        {},
    )


def _is_same(head: Checkpoint, unconfirmed: Checkpoint) -> bool:
    unknown: dict[str, Any] = {"seq": 0, "parts": {}, "size": 0, "redacted": 0}
    return head._replace(**unknown) == unconfirmed._replace(**unknown)
