"""Preview of a rollback without opening the session.

Opening a session takes it over from its owner. A preview appends nothing to its key or its
ledger, so the owner can continue.
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
from agent_checkpoint.workspace.scan.entry_filter import STAGING
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.workspace import Workspace


class Preview(NamedTuple):
    """The report of a rollback that was not made."""

    report: RollbackReport
    """Its `target` is the resolved checkpoint."""
    no_files: str | None
    """Why the report has no file plan, although files would be rolled back."""


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

    Drifted files count as a step, as they do when the session is opened.

    Args:
        manager: the manager of the store.
        key: the key of the session.
        to: an id or short form; `steps` counts if not given.
        steps: how many checkpoints to go back.
        parts: the parts to roll back; all if not given.
        keep_unseen: keep files that were created or changed since the last checkpoint.
        workspace: the directory of its files; the recorded one if not given.
        look: scan the directory as well, which stores new file contents.

    Raises:
        NotFoundError: there is no such key or checkpoint.
        InvalidInputError: the key is no session, has no such part, or no such checkpoint.
        CheckpointError: the session cannot be read.
    """
    head = manager.store.head(key)
    if head is None:
        raise key_not_found(key, manager.store)
    record = read_session_record(manager.store, head)
    if record is None:
        raise InvalidInputError(f"{short_repr(key)} is not a session, so it cannot be rolled back.")
    session = _UnopenedSession(manager, head, record)
    no_files = "the directory was not scanned" if not look else session.open_files(workspace)
    try:
        if to is None and steps > 0 and session.drifted:
            steps -= 1
        target = find_target(session, to, steps)
        rollback = Rollback(session, target, parts=parts, keep_unseen=keep_unseen)
        if FILES not in rollback.report.parts:
            return Preview(rollback.report, None)
        if no_files is not None:
            return Preview(rollback.report, no_files)
        return _with_files(rollback)
    finally:
        if session._files is not None:
            session._files.workspace.close()


def _with_files(rollback: Rollback) -> Preview:
    try:
        return Preview(rollback.preview(), None)
    except WorkspaceError as error:
        return Preview(rollback.report, str(error))


class _UnopenedSession(Work):
    """A session read from its head, without opening it."""

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
        """Paths that changed since the last checkpoint."""

    def open_files(self, workspace: Path | None) -> str | None:
        """Scan the files; return the reason if that is not possible."""
        no_files = None if workspace is not None else self._scan_obstacle()
        if no_files is not None:
            return no_files
        store = self.manager.store
        directory = workspace if workspace is not None else Path(str(self._record.workspace))
        try:
            self._files = WorkspacePart(Workspace(directory, store, watch=False))
            if not is_empty(directory):
                self.drifted = self._files.changed_since(store, self._writer.head)
        except WorkspaceError as error:
            return str(error)
        return None

    def _scan_obstacle(self) -> str | None:
        recorded = self._record.workspace
        if recorded is None:
            return "the session has no directory: it is a fork, and its files were removed"
        if not self._record.is_bound:
            return "the recorded directory was not sealed with your secret on this machine"
        if not Path(recorded).is_dir():
            return f"the directory {short_repr(recorded, 200)} does not exist: it will be created"
        if os.path.lexists(Path(recorded) / STAGING.decode()):
            return (
                f"it contains {STAGING.decode()} from an interrupted restore or another program; "
                "opening the session resolves that"
            )
        return None
