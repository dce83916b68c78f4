"""Checkpoints of a session. Owns the order in which they are written, and that nobody else writes.

Whoever opens a session appends to its key; so who held it before finds, at the next save, that the
head is not the one it knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.manager.parts import capture, make_draft
from agent_checkpoint.records import Checkpoint, Draft, short_repr
from agent_checkpoint.session.session_record import SESSION_PART, SessionRecord
from agent_checkpoint.store.entries import now_ns
from agent_checkpoint.store.objects.references import ReusedPart

if TYPE_CHECKING:
    from concurrent.futures import Future

IN_FLIGHT = "in_flight"
"""The kind of a checkpoint that was taken while tools were running: no place to go back to."""

CLOSE = "close"
"""The kind of the last checkpoint of a run."""


class CheckpointWriter:
    """Writes the checkpoints of one session, each after the one before."""

    def __init__(
        self, manager: CheckpointManager, record: SessionRecord, head: Checkpoint | None
    ) -> None:
        self.manager = manager
        self.record = record
        self.head = head
        self._begun: Checkpoint | None = None
        """What was to become the head, if nobody has seen whether it did."""
        self.lock = RLock()
        """Held from the capture of a state until its place in the order is certain."""

    @property
    def head_id(self) -> str:
        """The id of the last checkpoint; nothing if there is none yet."""
        return "" if self.head is None else self.head.id

    def draft(
        self,
        parts: Mapping[str, Any],
        *,
        kind: str = "save",
        label: str | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> Draft:
        """Capture parts on the caller's thread; the last checkpoint's other parts go along.

        Raises:
            StateError: a value cannot be captured; the message names its path.
            WorkspaceError: the files cannot be read.
        """
        store = self.manager.store
        taken: dict[str, Any] = {}
        if parts:  # an empty dict would be taken for the state of an agent
            taken = capture(dict(parts), self.manager.fmt, store.writer)
        kept = {} if self.head is None else dict(self.head.parts)
        carried = {
            name: ReusedPart(tree)
            for name, tree in kept.items()
            if name not in taken and name != SESSION_PART
        }
        taken = {**carried, **taken, SESSION_PART: self.record.dump()}
        draft = make_draft(self.record.key, taken, label=label, tags=tags, metrics=metrics)
        return draft._replace(kind=kind)

    def write(self, draft: Draft, parents: tuple[str, ...] | None = None) -> Checkpoint:
        """Write a checkpoint after the last one.

        Raises:
            ConflictError: somebody else has opened the session, or saved to its key.
            StorageError: the medium failed; nothing was acknowledged.
        """
        with self.lock:
            self.manager._background.settle()
            return self._write(draft, parents)

    def submit(self, draft: Draft) -> Future[str]:
        """Have a checkpoint written behind the caller, in order, and return the id's future."""
        return self.manager._background.submit(lambda: self._write(draft, None).id, awaited=True)

    def look(self) -> None:
        """Find out what became of a write that was interrupted: what was appended is ours.

        Raises:
            CheckpointError: the head cannot be read.
        """
        begun = self._begun
        if begun is not None:
            found = self.manager.store.head(begun.key)
            if found is not None and found.seq > begun.seq and _is_same(found, begun):
                self.head = found
            self._begun = None

    def _write(self, draft: Draft, parents: tuple[str, ...] | None) -> Checkpoint:
        self.look()
        head = self.head
        if parents is None:
            parents = () if head is None else (head.id,)
        after = 0 if head is None else head.seq
        begun = _begun(draft, after, parents)
        self._begun = begun  # first: an interrupt may come when it is written, and before we know
        try:
            self.head = self.manager.store.write(
                draft, parents=parents, after=after, ts_ns=begun.ts_ns
            )
        except ConflictError as error:
            self._begun = None
            raise ConflictError(
                f"The session {short_repr(draft.key)} was opened again elsewhere, or somebody "
                "saved to its key: this holder of it may save nothing more. Close it; all that "
                "it had saved is there."
            ) from error
        self._begun = None
        return self.head


def _begun(draft: Draft, after: int, parents: tuple[str, ...]) -> Checkpoint:
    """Return a checkpoint that is to be written, by which it is known again; its place is not."""
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


def _is_same(found: Checkpoint, begun: Checkpoint) -> bool:
    return found._replace(seq=0, parts={}, size=0) == begun._replace(seq=0, parts={}, size=0)
