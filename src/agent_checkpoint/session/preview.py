"""What a rollback of a session would do, told without opening it. Owns that nobody is disturbed.

Whoever holds the session goes on: nothing is written, and no epoch begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.effects import Effects
from agent_checkpoint.session.files import Files, is_empty
from agent_checkpoint.session.meta import Meta, read_meta
from agent_checkpoint.session.report import RollbackReport
from agent_checkpoint.session.rollback import Rollback
from agent_checkpoint.session.targets import find_target
from agent_checkpoint.session.work import Work
from agent_checkpoint.store.ledger import Epoch, Ledger
from agent_checkpoint.store.store import unknown
from agent_checkpoint.workspace.naming import tree_in
from agent_checkpoint.workspace.workspace import Workspace


def preview_rollback(
    manager: CheckpointManager,
    key: str,
    *,
    to: str | None = None,
    steps: int = 1,
    parts: Iterable[str] | None = None,
    keep_unseen: bool = False,
    workspace: Path | None = None,
) -> RollbackReport:
    """Return what a rollback would do; `target` in it is the checkpoint that is meant.

    Files that others have changed since the last checkpoint count as a step, as they do when the
    session is opened.

    Args:
        manager: of the store.
        key: of the session.
        to: an id or short form; `steps` counts if not given.
        steps: how many checkpoints to go back.
        parts: what goes back; everything if not given.
        keep_unseen: leave files alone that came or changed since the last checkpoint.
        workspace: where its files are; the directory that it had if not given.

    Raises:
        NotFoundError: there is no such session or checkpoint.
        InvalidInputError: it has no such part.
        CheckpointError: it cannot be read.
    """
    head = manager.store.head(key)
    meta = None if head is None else read_meta(manager.store, head)
    if head is None or meta is None:
        raise (
            unknown(key, manager.store)
            if head is None
            else NotFoundError(f"{key!r} is no session.")
        )
    seen = _Seen(manager, head, meta, workspace)
    try:
        if to is None and steps > 0 and seen.drifted:
            steps -= 1
        target = find_target(seen, to, steps)
        report = Rollback(seen, target, parts=parts, keep_unseen=keep_unseen).preview()
        if report.files is not None:
            # The session's own checkpoint holds all that has not changed since.
            report.files.unseen = [path for path in report.files.unseen if path in seen.drifted]
        return report
    finally:
        if seen._files is not None:
            seen._files.workspace.close()


class _Seen(Work):
    """A session that is looked at, and not opened."""

    def __init__(
        self, manager: CheckpointManager, head: Checkpoint, meta: Meta, workspace: Path | None
    ) -> None:
        super().__init__(head.key, None, None, "manual")
        self.manager = manager
        if meta.key != head.key:  # a fork that nobody has opened yet
            meta = meta.fork(head.key, head.parents[0] if head.parents else None)
        self._meta = meta
        self._ledger = Ledger(manager.store, meta.family)
        self._ledger.refresh()
        self._epoch = Epoch(head.key, head.seq)
        self._effects = Effects(self._ledger, meta, self._epoch, self._calls.owner)
        place = workspace
        if place is None and meta.workspace is not None and meta.is_bound:
            place = Path(meta.workspace)
        self.drifted: set[str] = set()
        if place is not None and place.is_dir():
            self._files = Files(Workspace(place, manager.store, watch=False))
            tree = tree_in(manager.store, head)
            if tree is not None and not is_empty(place):
                found = self._files.workspace.diff(tree)
                gone = {*found.removed, *found.renamed}
                self.drifted = {*found.added, *found.changed, *found.renamed.values(), *gone}
