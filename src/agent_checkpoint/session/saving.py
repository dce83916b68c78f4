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
from agent_checkpoint.manager.subjects import capture, make_draft
from agent_checkpoint.records import Checkpoint, Draft, show
from agent_checkpoint.session.meta import PART, Meta
from agent_checkpoint.store.references import Kept

if TYPE_CHECKING:
    from concurrent.futures import Future

IN_FLIGHT = "in_flight"
"""The kind of a checkpoint that was taken while tools were running: no place to go back to."""

CLOSE = "close"
"""The kind of the last checkpoint of a run."""


class Saving:
    """Writes the checkpoints of one session, each after the one before."""

    def __init__(self, manager: CheckpointManager, meta: Meta, head: Checkpoint | None) -> None:
        self.manager = manager
        self.meta = meta
        self.head = head
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
            name: Kept(tree) for name, tree in kept.items() if name not in taken and name != PART
        }
        taken = {**carried, **taken, PART: self.meta.dump()}
        draft = make_draft(self.meta.key, taken, label=label, tags=tags, metrics=metrics)
        return Draft(
            draft.key, draft.parts, kind=kind, label=label, tags=draft.tags, metrics=draft.metrics
        )

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

    def _write(self, draft: Draft, parents: tuple[str, ...] | None) -> Checkpoint:
        head = self.head
        if parents is None:
            parents = () if head is None else (head.id,)
        try:
            after = 0 if head is None else head.seq
            self.head = self.manager.store.write(draft, parents=parents, after=after)
        except ConflictError as error:
            raise ConflictError(
                f"The session {show(draft.key)} was opened again elsewhere, or somebody saved to "
                "its key: this holder of it may save nothing more. Close it; all that it had saved "
                "is there."
            ) from error
        return self.head
