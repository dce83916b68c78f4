"""What a rollback of a session would do, told without opening it. Owns that nobody is disturbed.

Whoever opens a session takes it over. Here nothing is appended to its key or its ledger, and who
holds it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.errors import InvalidInputError, WorkspaceError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.effects.effects import Effects
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.rollback.rollback_target import find_target
from agent_checkpoint.session.session_record import (
    SessionRecord,
    read_session_record,
    record_for_key,
)
from agent_checkpoint.session.work import Work
from agent_checkpoint.session.workspace_part import WorkspacePart, is_empty
from agent_checkpoint.store.ledger.ledger import Epoch, Ledger
from agent_checkpoint.store.store import key_not_found
from agent_checkpoint.workspace.restore.staging import STAGING
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.workspace import Workspace


class Preview(NamedTuple):
    """What a rollback would do."""

    report: RollbackReport
    """`target` in it is the checkpoint that is meant."""
    no_files: str | None
    """Why nothing is said of the files, if files would go back."""


def preview_rollback(
    manager: CheckpointManager,
    key: str,
    *,
    to: str | None = None,
    steps: int = 1,
    parts: Iterable[str] | None = None,
    keep_unseen: bool = False,
    workspace: Path | None = None,
    look: bool = True,
) -> Preview:
    """Return what a rollback would do.

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
        look: look at the files there, too; contents that are new are stored.

    Raises:
        NotFoundError: there is no such key or checkpoint.
        InvalidInputError: it is no session, has no such part, or no such past.
        CheckpointError: it cannot be read.
    """
    head = manager.store.head(key)
    if head is None:
        raise key_not_found(key, manager.store)
    record = read_session_record(manager.store, head)
    if record is None:
        raise InvalidInputError(
            f"{short_repr(key)} is no session: nothing in it can be rolled back."
        )
    seen = _UnopenedSession(manager, head, record)
    why = "the directory was not looked at" if not look else seen.look(workspace)
    try:
        if to is None and steps > 0 and seen.drifted:
            steps -= 1
        target = find_target(seen, to, steps)
        way = Rollback(seen, target, parts=parts, keep_unseen=keep_unseen)
        if FILES not in way.report.parts:
            return Preview(way.report, None)
        if why is not None:
            return Preview(way.report, why)
        return _with_files(way)
    finally:
        if seen._files is not None:
            seen._files.workspace.close()


def _with_files(way: Rollback) -> Preview:
    try:
        return Preview(way.preview(), None)
    except WorkspaceError as error:
        return Preview(way.report, str(error))


class _UnopenedSession(Work):
    """A session that is looked at, and not opened."""

    def __init__(self, manager: CheckpointManager, head: Checkpoint, record: SessionRecord) -> None:
        super().__init__(head.key, None, None, "manual")
        self.manager, self._owns_manager = manager, False
        record = record_for_key(head, record)
        self._record = record
        self._ledger = Ledger(manager.store, record.family)
        self._ledger.refresh()
        self._epoch = Epoch(head.key, head.seq)
        self._effects = Effects(self._ledger, record, self._epoch, self._tool_runner.owner)
        self._writer = CheckpointWriter(manager, record, head)
        self.drifted: set[str] = set()
        """Paths that others have changed since the last checkpoint."""

    def look(self, workspace: Path | None) -> str | None:
        """Look at its files; return why that cannot be, if so."""
        why = None if workspace is not None else self._why_not()
        if why is not None:
            return why
        store = self.manager.store
        place = workspace if workspace is not None else Path(str(self._record.workspace))
        try:
            self._files = WorkspacePart(Workspace(place, store, watch=False))
            if not is_empty(place):
                self.drifted = self._files.changed_since(store, self._writer.head)
        except WorkspaceError as error:
            return str(error)
        return None

    def _why_not(self) -> str | None:
        said = self._record.workspace
        if said is None:
            return "the session has no directory of its own: it is a fork, and its files are gone"
        if not self._record.is_bound:
            return "it was not you who said where its files are, or on another machine"
        if not Path(said).is_dir():
            return f"there is no directory {short_repr(said, 200)}: it will be made"
        if os.path.lexists(Path(said) / STAGING.decode()):
            return (
                f"there is a {STAGING.decode()} in it: a restore was interrupted, or somebody else "
                "made it; that is settled when the session is opened"
            )
        return None
