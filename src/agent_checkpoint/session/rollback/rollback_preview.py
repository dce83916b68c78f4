"""Preview of a rollback without opening the session.

Opening a session takes it over from its owner. A preview appends nothing to its key or its
ledger, so the owner can continue.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from agent_checkpoint.errors import InvalidInputError, WorkspaceError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.rollback.rollback_target import find_target
from agent_checkpoint.session.session_record import (
    SessionRecord,
    read_session_record,
    record_for_key,
)
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.workspace_part import WorkspacePart, is_empty
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_state import Epoch
from agent_checkpoint.store.store import key_not_found
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.workspace import Workspace


class Preview(NamedTuple):
    """The result of a dry run of a rollback."""

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
    """Return the report of a rollback without executing it.

    Drifted files count as a step, as they do when the session is opened.

    Args:
        manager: the manager of the store.
        key: the key of the session.
        to: an id or short form; by default, `steps` is used.
        steps: how many checkpoints to go back.
        parts: the parts to roll back; all by default.
        keep_unseen: keep files that were created or changed since the last checkpoint.
        workspace: the directory of its files; by default, the recorded one.
        look: scan the directory as well, which stores new file contents.

    Raises:
        NotFoundError: there is no such key or checkpoint.
        InvalidInputError: the key is not a session, or has no such part or checkpoint.
        CheckpointError: the session cannot be read.
    """
    head = manager.store.head(key)
    if head is None:
        raise key_not_found(key, manager.store)
    record = read_session_record(manager.store, head)
    if record is None:
        raise InvalidInputError(f"{short_repr(key)} is not a session, so it cannot be rolled back.")
    state = _unopened(manager, head, record_for_key(head, record))
    drifted: set[str] = set()
    no_files: str | None = "the directory was not scanned"
    try:
        if look:
            no_files = _scan_obstacle(state.record) if workspace is None else None
        if no_files is None:
            try:
                drifted = _open_files(state, workspace or Path(str(state.record.workspace)))
            except WorkspaceError as error:
                no_files = str(error)
        if to is None and steps > 0 and drifted:
            steps -= 1
        target = find_target(state, to, steps)
        rollback = Rollback(state, target, parts=parts, keep_unseen=keep_unseen)
        if FILES not in rollback.report.parts:
            return Preview(rollback.report, None)
        if no_files is None:
            try:
                return Preview(rollback.preview(), None)
            except WorkspaceError as error:
                no_files = str(error)
        return Preview(rollback.report, no_files)
    finally:
        if state.files is not None:
            state.files.workspace.close()


def _unopened(manager: CheckpointManager, head: Checkpoint, record: SessionRecord) -> SessionState:
    """Return the state of a session as its head has it, without its live objects."""
    state = SessionState(head.key, manager)
    state.record = record
    state.writer = CheckpointWriter(manager, record, head)
    state.own(Ledger(manager.store, record.family), Epoch(head.key, head.seq))
    return state


def _open_files(state: SessionState, directory: Path) -> set[str]:
    """Scan the files; return the paths that changed since the head. Raises WorkspaceError."""
    store = state.manager.store
    state.files = WorkspacePart(Workspace(directory, store, watch=False))
    return set() if is_empty(directory) else state.files.changed_since(store, state.writer.head)


def _scan_obstacle(record: SessionRecord) -> str | None:
    """Return why the recorded directory cannot be scanned, if so."""
    if record.workspace is None:
        return "the session has no directory: it is a fork, and its files were removed"
    if not record.is_bound:
        return "the recorded directory is not signed with your secret on this host"
    if not Path(record.workspace).is_dir():
        return (
            f"the directory {short_repr(record.workspace, 200)} does not exist: it will be created"
        )
    if os.path.lexists(Path(record.workspace) / STAGING.decode()):
        return (
            f"it contains {STAGING.decode()} from an interrupted restore or another program; "
            "opening the session resolves that"
        )
    return None
