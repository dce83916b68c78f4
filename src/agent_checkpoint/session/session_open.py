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
from agent_checkpoint.records import Checkpoint, again, show
from agent_checkpoint.session.checkpoint_writer import Saving
from agent_checkpoint.session.effects.effects import Effects
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.rollback.rollback_target import unfinished
from agent_checkpoint.session.session_record import Meta, notes_for, read_meta
from agent_checkpoint.session.workspace_part import Files, is_empty, place_of
from agent_checkpoint.store.claims import IMPORTED, host_of
from agent_checkpoint.store.ledger.ledger import COMMITTED, Epoch, Ledger
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work

DRIFTS = ("keep", "restore", "raise")
_TRIES = 10
_NAMED = 20


def manager_of(store: Any) -> tuple[CheckpointManager, bool]:
    """Return the manager of what a user calls a store, and whether it is the session's own.

    Raises:
        InvalidInputError: it is no store.
    """
    if isinstance(store, CheckpointManager):
        return store, False
    return CheckpointManager(open_named(store)), True


class Opening:
    """One opening of one session."""

    def __init__(
        self, session: Work, *, on_drift: str, rebind: bool, only_at: str | None = None
    ) -> None:
        if on_drift not in DRIFTS:
            raise InvalidInputError(f"on_drift is {', '.join(DRIFTS)}, not {show(on_drift)}.")
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
        for attempt in range(_TRIES):
            head = self._store.head(self._session.key)
            if self._only_at is not None and (head is None or head.id != self._only_at):
                raise ConflictError(
                    f"The session {show(self._session.key)} has gone on since: nothing was done."
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
                if attempt == _TRIES - 1:
                    raise

    # -- a new one -------------------------------------------------------------------------------

    def _begin(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        session = self._session
        place = None if workspace is None else _path(workspace)
        if place is not None and not place.is_dir():
            what = "is no directory" if place.exists() else "is not there"
            raise WorkspaceError(f"{show(str(place), 200)} {what}: name one that is there.")
        self._have_files(place, workspace)
        session._meta = Meta.new(session.key)
        session._meta.bind(None if place is None else str(place), host_of(self._store.backend))
        session._saving = Saving(session.manager, session._meta, None)
        draft = session._saving.draft(session._live_parts(), kind="open")
        opened = session._saving.write(draft)
        self._make_known(opened)

    # -- one that goes on ------------------------------------------------------------------------

    def _resume(
        self, head: Checkpoint, workspace: str | os.PathLike[str] | Workspace | None
    ) -> None:
        session = self._session
        noted = read_meta(self._store, head)
        known = None if noted is None else _notes(noted)
        meta = notes_for(head, noted or Meta.new(session.key))
        meta.token = head.token  # also if it has no notes, or those of another
        given = None if workspace is None else _path(workspace)
        tree = tree_in(self._store, head)
        self._check_bound(meta, given)
        self._check_elsewhere(meta, head)
        place = place_of(given, meta.workspace, rebind=self._rebind, has_files=tree is not None)
        self._have_files(place, workspace)  # which finishes a restore that was interrupted
        self._is_empty = place is not None and is_empty(place)
        session._ledger = Ledger(self._store, meta.family)
        session._ledger.refresh()
        left = unfinished(session)
        # What a rollback has not come to yet is no change that others have made.
        drift = self._drift(tree) if left is None else None
        if drift and self._on_drift == "raise":
            raise WorkspaceError(
                f"{place} has changed since the last checkpoint of {show(session.key)}:\n{drift}"
            )
        there = None if place is None or not session._keeps_place else str(place)
        if meta.workspace != there or not meta.is_bound:
            meta.bind(there, host_of(self._store.backend), head.token)
        meta.in_flight, meta.drift, meta.keep_unseen = [], [], None
        session._meta = meta
        session._saving = Saving(session.manager, meta, head)
        self._load(head)  # if that fails, who holds the session may go on
        # From here on it must be known where its ledger and its files are, whatever happens.
        opened = self._open_again(head, has_new_notes=known != _notes(meta))
        if meta.token is not None:  # what is saved from here on is this user's
            meta.bind(there, host_of(self._store.backend))
        self._make_known(opened)
        session.resumed = True
        if head.token is not None:
            session._notice(
                "This session was imported from an archive. Its state, and the recorded results of "
                "what it did outside, are those of whoever made the archive."
            )
        self._tell_what_stands()
        self._load(head, elsewhere=True)
        if left is not None:
            self._go_on(*left)
            drift = self._drift(tree)
        self._set_files(tree, drift)

    def _check_bound(self, meta: Meta, given: Path | None) -> None:
        """Refuse to have a session that is not this user's take over a directory.

        Without a seal it is of a machine where there can be no secret: then naming the directory is
        enough, unless the session was imported.

        Raises:
            InvalidInputError: the directory has to be named, or has files already.
        """
        if meta.is_bound:
            return
        key = show(self._session.key)
        if given is None and meta.workspace is not None:
            raise InvalidInputError(
                f"The session {key} says that it works in {show(meta.workspace, 200)}, but it was "
                "not you who said so, or on another machine, or under another secret. Pass "
                "workspace=, the directory that it shall work in."
            )
        if given is None or self._rebind or not given.exists() or is_empty(given):
            return
        if meta.is_imported or meta.seal is not None:
            why = IMPORTED if meta.is_imported else "it was sealed under another secret, or host"
            raise InvalidInputError(
                f"The session {key} does not take over {show(str(given), 200)}, which has files: "
                f"{why}. Pass an empty directory, or rebind=True if the session is yours."
            )

    def _check_elsewhere(self, meta: Meta, head: Checkpoint) -> None:
        """Refuse to restore what others say is held elsewhere: a handle may name an image to run.

        Raises:
            InvalidInputError: the session was imported and has such a part.
        """
        if not meta.is_imported or self._rebind:
            return
        live = self._session._live_parts()
        for name, part in live.items():
            if isinstance(part, External) and name in head.parts:
                raise InvalidInputError(
                    f"The session {show(self._session.key)} says which snapshot {show(name)} is, "
                    f"but {IMPORTED}. Pass rebind=True if the session is yours."
                )

    def _go_on(self, safety: Checkpoint, move: Checkpoint) -> None:
        """Carry out what a crash has interrupted. What cannot be is told: it must be opened."""
        way = Rollback(self._session, move)
        try:
            way.follow(safety, move)
        except WorkspaceError as error:
            way.finish(move)
            self._session._troubles.append(
                f"A rollback that was interrupted could not be carried out to its end: {error}"
            )

    def _open_again(self, head: Checkpoint, *, has_new_notes: bool) -> Checkpoint:
        """Append the opening: whoever held the session before can save nothing from now on.

        It has the content of the head, and so the mark of an import.
        """
        saving = self._session._saving
        if has_new_notes:
            draft = saving.draft({}, kind="open")._replace(token=head.token)
            return saving.write(draft, parents=(head.id,))
        draft = again(head, head.key, "open")._replace(label=None)
        return saving.write(draft, parents=(head.id,))

    def _make_known(self, opened: Checkpoint) -> None:
        """Say in the ledger, too, that there is a new holder."""
        session = self._session
        session._epoch = Epoch(session.key, opened.seq)
        session._ledger = Ledger(self._store, session._meta.family)
        session._effects = Effects(
            session._ledger, session._meta, session._epoch, session._calls.owner
        )
        session._ledger.append("epoch", session=session.key, epoch=opened.seq)
        session._ledger.check(session._epoch)

    def _tell_what_stands(self) -> None:
        """Note the effects that were made after the checkpoint: its state does not know them."""
        session, meta = self._session, self._session._meta
        effects = session._ledger.effects
        later = [effect.id for effect in session._effects.since(meta.ledger)]
        made = [
            name
            for name in (*meta.under_way, *later)
            if name in effects and effects[name].status == COMMITTED  # the others are told anyway
        ]
        meta.standing, meta.under_way = list(dict.fromkeys([*meta.standing, *made])), []

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

    def _have_files(self, place: Path | None, given: Any) -> None:
        session = self._session
        if place is None:
            session._files = None
            return
        if session._files is not None and session._files.workspace.path == place:
            return
        session._files = Files(self._workspace(place, given))

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
            session._meta.drift = [*drift.added, *drift.removed, *drift.changed][:_NAMED]
            session._save(kind="drift", label="files that others have changed")
            session._meta.drift = []


def _notes(meta: Meta) -> tuple[str, str | None, str | None]:
    """Return what must be in the notes from the opening on."""
    return meta.key, meta.workspace, meta.seal


def _path(workspace: str | os.PathLike[str] | Workspace) -> Path:
    if isinstance(workspace, Workspace):
        return workspace.path
    return Path(os.path.realpath(workspace))
