"""Opening a session: new, or where it stopped. Owns the order in which it comes back to life.

The objects of this process are set first: if one cannot be, nobody else is disturbed. Then it is
made known, so that whoever held the session before does nothing more. Then what can have but one
holder is set: the files, and what is held elsewhere.
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
    """Return the manager of what a user calls a store, and whether it is the session's own.

    Raises:
        InvalidInputError: it is no store.
    """
    if isinstance(store, CheckpointManager):
        return store, False
    return CheckpointManager(open_named(store)), True


class SessionOpener:
    """One opening of one session."""

    def __init__(
        self, session: Work, *, on_drift: str, rebind: bool, only_at: str | None = None
    ) -> None:
        if on_drift not in DRIFT_POLICIES:
            raise InvalidInputError(
                f"on_drift is {', '.join(DRIFT_POLICIES)}, not {short_repr(on_drift)}."
            )
        self._session = session
        self._store = session.manager.store
        self._on_drift = on_drift
        self._rebind = rebind
        self._only_at = only_at
        self._is_empty = False

    def run(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        """Open the session, and set all that it is made of.

        Raises:
            InvalidInputError: the workspace is another than the session's.
            WorkspaceError: it cannot be used, or has changed and `on_drift` is `raise`.
            StateError: a part cannot be loaded.
            ConflictError: others open the session again and again; or its head is not the one that
                it was to be opened at.
        """
        for attempt in range(_MAX_ATTEMPTS):
            head = self._store.head(self._session.key)
            if self._only_at is not None and (head is None or head.id != self._only_at):
                raise ConflictError(
                    f"The session {short_repr(self._session.key)} has gone on since: nothing was "
                    "done."
                )
            try:
                if head is None:
                    self._begin(workspace)
                else:
                    self._resume(head, workspace)
                return
            except ConflictError:
                # Somebody was faster: this is then the later opening, which takes over. One that
                # was to be at a certain head finds another one there.
                if attempt == _MAX_ATTEMPTS - 1:
                    raise

    # -- a new one -------------------------------------------------------------------------------

    def _begin(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        session = self._session
        place = None if workspace is None else _path(workspace)
        if place is not None and not place.is_dir():
            what = "is no directory" if place.exists() else "is not there"
            raise WorkspaceError(f"{short_repr(str(place), 200)} {what}: name one that is there.")
        self._open_files(place, workspace)
        session._record = SessionRecord.new(session.key)
        session._record.bind(None if place is None else str(place), host_of(self._store.backend))
        session._writer = CheckpointWriter(session.manager, session._record, None)
        draft = session._writer.draft(session._live_parts(), kind="open")
        opened = session._writer.write(draft)
        self._claim_epoch(opened)

    # -- one that goes on ------------------------------------------------------------------------

    def _resume(
        self, head: Checkpoint, workspace: str | os.PathLike[str] | Workspace | None
    ) -> None:
        session = self._session
        noted = read_session_record(self._store, head)
        known = None if noted is None else _binding(noted)
        record = record_for_key(head, noted or SessionRecord.new(session.key))
        record.token = head.token  # also if it has no notes, or those of another
        given = None if workspace is None else _path(workspace)
        tree = tree_in(self._store, head)
        self._check_directory_seal(record, given)
        self._check_external_parts(record, head)
        place = choose_directory(
            given, record.workspace, rebind=self._rebind, has_files=tree is not None
        )
        self._open_files(place, workspace)  # which finishes a restore that was interrupted
        self._is_empty = place is not None and is_empty(place)
        session._ledger = Ledger(self._store, record.family)
        session._ledger.refresh()
        left = unfinished_rollback(session)
        # What a rollback has not come to yet is no change that others have made.
        drift = self._drift(tree) if left is None else None
        if drift and self._on_drift == "raise":
            raise WorkspaceError(
                f"{place} has changed since the last checkpoint of "
                f"{short_repr(session.key)}:\n{drift}"
            )
        there = None if place is None or not session._keeps_directory else str(place)
        if record.workspace != there or not record.is_bound:
            record.bind(there, host_of(self._store.backend), head.token)
        record.in_flight, record.drift, record.keep_unseen = [], [], None
        session._record = record
        session._writer = CheckpointWriter(session.manager, record, head)
        self._load(head)  # if that fails, who holds the session may go on
        # From here on it must be known where its ledger and its files are, whatever happens.
        opened = self._append_open(head, has_new_notes=known != _binding(record))
        if record.token is not None:  # what is saved from here on is this user's
            record.bind(there, host_of(self._store.backend))
        self._claim_epoch(opened)
        session.resumed = True
        if head.token is not None:
            session._add_notice(
                "This session was imported from an archive. Its state, and the recorded results of "
                "what it did outside, are those of whoever made the archive."
            )
        self._note_unseen_effects()
        self._load(head, elsewhere=True)
        if left is not None:
            self._roll_forward(*left)
            drift = self._drift(tree)
        self._set_files(tree, drift)

    def _check_directory_seal(self, record: SessionRecord, given: Path | None) -> None:
        """Refuse to have a session that is not this user's take over a directory.

        Without a seal it is of a machine where there can be no secret: then naming the directory is
        enough, unless the session was imported.

        Raises:
            InvalidInputError: the directory has to be named, or has files already.
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
                f"The session {key} does not take over {short_repr(str(given), 200)}, which has "
                f"files: {why}. Pass an empty directory, or rebind=True if the session is yours."
            )

    def _check_external_parts(self, record: SessionRecord, head: Checkpoint) -> None:
        """Refuse to restore what others say is held elsewhere: a handle may name an image to run.

        Raises:
            InvalidInputError: the session was imported and has such a part.
        """
        if not record.is_imported or self._rebind:
            return
        live = self._session._live_parts()
        for name, part in live.items():
            if isinstance(part, External) and name in head.parts:
                raise InvalidInputError(
                    f"The session {short_repr(self._session.key)} says which snapshot "
                    f"{short_repr(name)} is, but {IMPORTED}. Pass rebind=True if the session is "
                    "yours."
                )

    def _roll_forward(self, safety: Checkpoint, move: Checkpoint) -> None:
        """Carry out what a crash has interrupted. What cannot be is told: it must be opened."""
        way = Rollback(self._session, move)
        try:
            way.roll_forward(safety, move)
        except WorkspaceError as error:
            way.finish(move)
            self._session._problems.append(
                f"A rollback that was interrupted could not be carried out to its end: {error}"
            )

    def _append_open(self, head: Checkpoint, *, has_new_notes: bool) -> Checkpoint:
        """Append the opening: whoever held the session before can save nothing from now on.

        It has the content of the head, and so the mark of an import.
        """
        saving = self._session._writer
        if has_new_notes:
            draft = saving.draft({}, kind="open")._replace(token=head.token)
            return saving.write(draft, parents=(head.id,))
        draft = draft_from(head, head.key, "open")._replace(label=None)
        return saving.write(draft, parents=(head.id,))

    def _claim_epoch(self, opened: Checkpoint) -> None:
        """Say in the ledger, too, that there is a new holder."""
        session = self._session
        session._epoch = Epoch(session.key, opened.seq)
        session._ledger = Ledger(self._store, session._record.family)
        session._effects = Effects(
            session._ledger, session._record, session._epoch, session._tool_runner.owner
        )
        session._ledger.append("epoch", session=session.key, epoch=opened.seq)
        session._ledger.check(session._epoch)

    def _note_unseen_effects(self) -> None:
        """Note the effects that were made after the checkpoint: its state does not know them."""
        session, record = self._session, self._session._record
        effects = session._ledger.effects
        later = [effect.id for effect in session._effects.since(record.ledger)]
        made = [
            name
            for name in (*record.under_way, *later)
            if name in effects and effects[name].status == COMMITTED  # the others are told anyway
        ]
        record.standing, record.under_way = (
            list(dict.fromkeys([*record.standing, *made])),
            [],
        )

    def _load(self, head: Checkpoint, *, elsewhere: bool = False) -> None:
        """Set the objects of this process, or what is held elsewhere: that has but one holder."""
        live = self._session._live_parts()
        live.pop(FILES, None)
        targets = {
            name: part
            for name, part in live.items()
            if name in head.parts and isinstance(part, External) == elsewhere
        }
        restore_parts(head.parts, targets, reader=self._store.reader(head))
        self._session._new_parts = [name for name in live if name not in head.parts]

    # -- files -----------------------------------------------------------------------------------

    def _open_files(self, place: Path | None, given: Any) -> None:
        session = self._session
        if place is None:
            session._files = None
            return
        if session._files is not None and session._files.workspace.path == place:
            return
        session._files = WorkspacePart(self._workspace(place, given))

    def _workspace(self, place: Path, given: Any) -> Workspace:
        if not isinstance(given, Workspace):
            return Workspace(place, self._store)
        if given._store is None or given._store.backend is self._store.backend:
            return given
        # Its files go where the checkpoints go, and are read from there.
        return Workspace(place, self._store, force=True, **given._options)

    def _drift(self, tree: Tree | None) -> Any:
        files = self._session._files
        if tree is None or files is None or self._is_empty:
            return None
        found = files.workspace.diff(tree)
        return found or None

    def _set_files(self, tree: Tree | None, drift: Any) -> None:
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
    """Return what must be in the notes from the opening on."""
    return record.key, record.workspace, record.seal


def _path(workspace: str | os.PathLike[str] | Workspace) -> Path:
    if isinstance(workspace, Workspace):
        return workspace.path
    return Path(os.path.realpath(workspace))
