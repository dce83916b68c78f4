"""Opening a session: new, or resumed from its last checkpoint. Owns the order of the steps.

1. Load the objects of this process. A failure here leaves the previous owner undisturbed.
2. Append the `open` checkpoint and the new epoch. They fence off the previous owner.
3. Restore what only one owner may touch: the files, and external parts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.core.external import External
from agent_checkpoint.errors import ConflictError, InvalidInputError, WorkspaceError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.manager.parts import restore_parts
from agent_checkpoint.records import Checkpoint, draft_from, short_repr
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.effects.effects import Effects
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.rollback.rollback_target import unfinished_rollback
from agent_checkpoint.session.session_record import (
    SessionRecord,
    read_session_record,
    record_for_key,
)
from agent_checkpoint.session.workspace_part import WorkspacePart, choose_directory, is_empty
from agent_checkpoint.store.claims import IMPORTED, host_of
from agent_checkpoint.store.ledger.ledger import COMMITTED, Epoch, Ledger
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work

DRIFT_POLICIES = ("keep", "restore", "raise")
_MAX_ATTEMPTS = 10
_MAX_NAMED = 20


def manager_for(store: Any) -> tuple[CheckpointManager, bool]:
    """Return the manager for a `store=` argument, and whether the session has to close it.

    Raises:
        InvalidInputError: the argument names no store.
    """
    if isinstance(store, CheckpointManager):
        return store, False
    return CheckpointManager(open_named(store)), True


class SessionOpener:
    """Opens one session, once."""

    def __init__(
        self, session: Work, *, on_drift: str, rebind: bool, only_at: str | None = None
    ) -> None:
        if on_drift not in DRIFT_POLICIES:
            raise InvalidInputError(
                f"on_drift must be {', '.join(DRIFT_POLICIES)}, not {short_repr(on_drift)}."
            )
        self._session = session
        self._store = session.manager.store
        self._on_drift = on_drift
        self._rebind = rebind
        self._only_at = only_at
        self._is_empty = False

    def run(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        """Open the session: load its parts, take ownership, restore its files.

        Raises:
            InvalidInputError: the session has another workspace.
            WorkspaceError: the workspace cannot be used, or it changed and `on_drift` is `raise`.
            StateError: a part cannot be loaded.
            ConflictError: the head is not `only_at`, or other processes opened the session in each
                of the attempts.
        """
        for attempt in range(_MAX_ATTEMPTS):
            head = self._store.head(self._session.key)
            if self._only_at is not None and (head is None or head.id != self._only_at):
                raise ConflictError(
                    f"The session {short_repr(self._session.key)} has a new head: nothing was done."
                )
            try:
                if head is None:
                    self._begin(workspace)
                else:
                    self._resume(head, workspace)
                return
            except ConflictError:
                # Another process opened it first. The later opening takes over, so try again; with
                # `only_at`, the next attempt finds the new head and refuses.
                if attempt == _MAX_ATTEMPTS - 1:
                    raise

    # -- new -------------------------------------------------------------------------------------

    def _begin(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        session = self._session
        directory = None if workspace is None else _path(workspace)
        if directory is not None and not directory.is_dir():
            what = "is not a directory" if directory.exists() else "does not exist"
            raise WorkspaceError(
                f"{short_repr(str(directory), 200)} {what}. Pass workspace= with an existing "
                "directory."
            )
        self._open_files(directory, workspace)
        session._record = SessionRecord.new(session.key)
        session._record.bind(
            None if directory is None else str(directory), host_of(self._store.backend)
        )
        session._writer = CheckpointWriter(session.manager, session._record, None)
        draft = session._writer.draft(session._live_parts(), kind="open")
        opened = session._writer.write(draft)
        self._claim_epoch(opened)

    # -- resumed ---------------------------------------------------------------------------------

    def _resume(
        self, head: Checkpoint, workspace: str | os.PathLike[str] | Workspace | None
    ) -> None:
        session = self._session
        stored = read_session_record(self._store, head)
        stored_binding = None if stored is None else _binding(stored)
        record = record_for_key(head, stored or SessionRecord.new(session.key))
        record.token = head.token  # also for a key without a record, or with a copied one
        given = None if workspace is None else _path(workspace)
        tree = tree_in(self._store, head)
        self._check_directory_seal(record, given)
        self._check_external_parts(record, head)
        directory = choose_directory(
            given, record.workspace, rebind=self._rebind, has_files=tree is not None
        )
        self._open_files(directory, workspace)  # completes an interrupted restore
        self._is_empty = directory is not None and is_empty(directory)
        session._ledger = Ledger(self._store, record.family)
        session._ledger.refresh()
        unfinished = unfinished_rollback(session)
        # Files that an interrupted rollback has yet to restore are not drift.
        drift = self._drift(tree) if unfinished is None else None
        if drift and self._on_drift == "raise":
            raise WorkspaceError(
                f"{directory} changed since the last checkpoint of "
                f"{short_repr(session.key)}:\n{drift}"
            )
        recorded_path = (
            None if directory is None or not session._keeps_directory else str(directory)
        )
        if record.workspace != recorded_path or not record.is_bound:
            record.bind(recorded_path, host_of(self._store.backend), head.token)
        record.in_flight, record.drift, record.keep_unseen = [], [], None
        session._record = record
        session._writer = CheckpointWriter(session.manager, record, head)
        self._load(head)  # before taking ownership: on failure the current owner continues
        # The `open` checkpoint must record ledger and workspace, whatever happens after it.
        opened = self._append_open(head, has_new_binding=stored_binding != _binding(record))
        if record.token is not None:  # later checkpoints are this user's, not the archive's
            record.bind(recorded_path, host_of(self._store.backend))
        self._claim_epoch(opened)
        session.resumed = True
        if head.token is not None:
            session._add_notice(
                "This session was imported from an archive. Its state and the recorded results of "
                "its external side effects come from the author of the archive."
            )
        self._note_unseen_effects()
        self._load(head, external=True)
        if unfinished is not None:
            self._roll_forward(*unfinished)
            drift = self._drift(tree)
        self._restore_files(tree, drift)

    def _check_directory_seal(self, record: SessionRecord, given: Path | None) -> None:
        """Keep a session without this user's seal from taking over a directory.

        A record without a seal comes from a machine without a secret: then passing the directory
        is enough, unless the session was imported.

        Raises:
            InvalidInputError: the directory was not passed, or it is not empty.
        """
        if record.is_bound:
            return
        key = short_repr(self._session.key)
        if given is None and record.workspace is not None:
            raise InvalidInputError(
                f"The session {key} records {short_repr(record.workspace, 200)} as its workspace, "
                "but the record was not sealed with your secret on this machine. Pass workspace= "
                "to choose the directory."
            )
        if given is None or self._rebind or not given.exists() or is_empty(given):
            return
        if record.is_imported or record.seal is not None:
            why = IMPORTED if record.is_imported else "it was sealed under another secret, or host"
            raise InvalidInputError(
                f"The session {key} cannot use {short_repr(str(given), 200)}, which is not empty: "
                f"{why}. Pass an empty directory, or rebind=True if you trust the session."
            )

    def _check_external_parts(self, record: SessionRecord, head: Checkpoint) -> None:
        """Refuse external parts of an imported session: a handle may name an image to run.

        Raises:
            InvalidInputError: the session was imported and has an external part.
        """
        if not record.is_imported or self._rebind:
            return
        live = self._session._live_parts()
        for name, part in live.items():
            if isinstance(part, External) and name in head.parts:
                raise InvalidInputError(
                    f"The session {short_repr(self._session.key)} names a snapshot for the "
                    f"external part {short_repr(name)}, but {IMPORTED}. Pass rebind=True if you "
                    "trust the session."
                )

    def _roll_forward(self, safety: Checkpoint, moved: Checkpoint) -> None:
        """Complete an interrupted rollback. A failure becomes a notice: the session must open."""
        rollback = Rollback(self._session, moved)
        try:
            rollback.roll_forward(safety, moved)
        except WorkspaceError as error:
            rollback.finish(moved)
            self._session._problems.append(
                f"An interrupted rollback could not be completed: {error}"
            )

    def _append_open(self, head: Checkpoint, *, has_new_binding: bool) -> Checkpoint:
        """Append the `open` checkpoint, which fences off the previous owner.

        It repeats the parts of the head, and so its import token.
        """
        saving = self._session._writer
        if has_new_binding:
            draft = saving.draft({}, kind="open")._replace(token=head.token)
            return saving.write(draft, parents=(head.id,))
        draft = draft_from(head, head.key, "open")._replace(label=None)
        return saving.write(draft, parents=(head.id,))

    def _claim_epoch(self, opened: Checkpoint) -> None:
        """Append the new epoch to the ledger: it fences off effects of the previous owner."""
        session = self._session
        session._epoch = Epoch(session.key, opened.seq)
        session._ledger = Ledger(self._store, session._record.family)
        session._effects = Effects(
            session._ledger, session._record, session._epoch, session._tool_runner.owner
        )
        session._ledger.append("epoch", session=session.key, epoch=opened.seq)
        session._ledger.check(session._epoch)

    def _note_unseen_effects(self) -> None:
        """Record the effects committed after the checkpoint: its state does not contain them."""
        session, record = self._session, self._session._record
        effects = session._ledger.effects
        later = [effect.id for effect in session._effects.since(record.ledger)]
        made = [
            name
            for name in (*record.under_way, *later)
            if name in effects and effects[name].status == COMMITTED  # others get a notice anyway
        ]
        record.standing, record.under_way = (
            list(dict.fromkeys([*record.standing, *made])),
            [],
        )

    def _load(self, head: Checkpoint, *, external: bool = False) -> None:
        """Load the objects of this process, or the external parts, which have one owner."""
        live = self._session._live_parts()
        live.pop(FILES, None)
        targets = {
            name: part
            for name, part in live.items()
            if name in head.parts and isinstance(part, External) == external
        }
        restore_parts(head.parts, targets, reader=self._store.reader(head))
        self._session._new_parts = [name for name in live if name not in head.parts]

    # -- files -----------------------------------------------------------------------------------

    def _open_files(self, directory: Path | None, given: Any) -> None:
        session = self._session
        if directory is None:
            session._files = None
            return
        if session._files is not None and session._files.workspace.path == directory:
            return
        session._files = WorkspacePart(self._workspace(directory, given))

    def _workspace(self, directory: Path, given: Any) -> Workspace:
        if not isinstance(given, Workspace):
            return Workspace(directory, self._store)
        if given._store is None or given._store.backend is self._store.backend:
            return given
        # Its files belong in the store of the checkpoints.
        return Workspace(directory, self._store, force=True, **given._options)

    def _drift(self, tree: Tree | None) -> Any:
        files = self._session._files
        if tree is None or files is None or self._is_empty:
            return None
        drift = files.workspace.diff(tree)
        return drift or None

    def _restore_files(self, tree: Tree | None, drift: Any) -> None:
        session = self._session
        if tree is None or session._files is None:
            return
        if self._is_empty:
            if session._files.workspace.diff(tree):
                session._files.workspace.restore(tree)
        elif drift and self._on_drift == "restore":
            session.drift = drift
            session._files.workspace.restore(tree)
        elif drift:
            session.drift = drift
            session._record.drift = [*drift.added, *drift.removed, *drift.changed][:_MAX_NAMED]
            session._save(kind="drift", label="files that others have changed")
            session._record.drift = []


def _binding(record: SessionRecord) -> tuple[str, str | None, str | None]:
    """Return the fields that the `open` checkpoint must record."""
    return record.key, record.workspace, record.seal


def _path(workspace: str | os.PathLike[str] | Workspace) -> Path:
    if isinstance(workspace, Workspace):
        return workspace.path
    return Path(os.path.realpath(workspace))
