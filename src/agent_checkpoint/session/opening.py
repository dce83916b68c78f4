"""Opening a session: new, or where it stopped. Owns the order in which it comes back to life.

Nothing is touched before it is certain that the session can be opened; then it is made known, so
that whoever held it before does nothing more; then its parts and files are set.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import ConflictError, InvalidInputError, WorkspaceError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.manager.subjects import restore_parts
from agent_checkpoint.records import Checkpoint, again, show
from agent_checkpoint.session.files import PART as FILES
from agent_checkpoint.session.files import Files, place_of, tree_in
from agent_checkpoint.session.meta import Meta, read_meta
from agent_checkpoint.session.rollback import Rollback, unfinished
from agent_checkpoint.session.saving import Saving
from agent_checkpoint.store.ledger import Epoch, Ledger
from agent_checkpoint.workspace.snapshots import Tree
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.session.session import Session

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
    if store is None:
        return CheckpointManager(backend="sqlite"), True
    if isinstance(store, os.PathLike) or (isinstance(store, str) and "://" not in store):
        return CheckpointManager(backend="sqlite", path=store), True
    return CheckpointManager(store), True


class Opening:
    """One opening of one session."""

    def __init__(self, session: Session, *, on_drift: str, rebind: bool) -> None:
        if on_drift not in DRIFTS:
            raise InvalidInputError(f"on_drift is {', '.join(DRIFTS)}, not {show(on_drift)}.")
        self._session = session
        self._store = session.manager.store
        self._on_drift = on_drift
        self._rebind = rebind
        self._is_empty = False

    def run(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        """Open the session, and set all that it is made of.

        Raises:
            InvalidInputError: the workspace is another than the session's.
            WorkspaceError: it cannot be used, or has changed and `on_drift` is `raise`.
            StateError: a part cannot be loaded.
            ConflictError: others open the session again and again.
        """
        for attempt in range(_TRIES):
            head = self._store.head(self._session.key)
            try:
                if head is None:
                    self._begin(workspace)
                else:
                    self._resume(head, workspace)
                return
            except ConflictError:
                # Somebody was faster: this is then the later opening, which takes over.
                if attempt == _TRIES - 1:
                    raise

    # -- a new one -------------------------------------------------------------------------------

    def _begin(self, workspace: str | os.PathLike[str] | Workspace | None) -> None:
        session = self._session
        place = None if workspace is None else _path(workspace)
        if place is not None and not place.is_dir():
            raise WorkspaceError(f"There is no directory {show(str(place), 200)}.")
        self._have_files(place, workspace)
        session._meta = Meta.new(session.key, None if place is None else str(place))
        session._saving = Saving(session.manager, session._meta, None)
        draft = session._saving.draft(session._live_parts(), kind="open")
        opened = session._saving.write(draft)
        self._make_known(opened)

    # -- one that goes on ------------------------------------------------------------------------

    def _resume(
        self, head: Checkpoint, workspace: str | os.PathLike[str] | Workspace | None
    ) -> None:
        session = self._session
        meta = read_meta(self._store, head) or Meta.new(session.key, None)
        is_fork = meta.key != session.key
        if is_fork:
            meta = meta.fork(session.key)
        given = None if workspace is None else _path(workspace)
        place = place_of(given, meta.workspace, rebind=self._rebind)
        tree = tree_in(self._store, head)
        self._is_empty = place is not None and _is_empty(place)
        self._have_files(place, workspace)
        drift = self._drift(tree)
        if drift and self._on_drift == "raise":
            raise WorkspaceError(
                f"{place} has changed since the last checkpoint of {show(session.key)}:\n{drift}"
            )
        meta.workspace = None if place is None else str(place)
        meta.in_flight, meta.drift = [], []
        session._meta = meta
        session._saving = Saving(session.manager, meta, head)
        opened = self._open_again(head, is_changed=is_fork)
        self._make_known(opened)
        session.resumed = True
        self._load(head)
        self._set_files(head, tree, drift)

    def _open_again(self, head: Checkpoint, *, is_changed: bool) -> Checkpoint:
        """Append the opening: whoever held the session before can save nothing from now on."""
        saving = self._session._saving
        if is_changed:  # a fork has notes of its own
            return saving.write(saving.draft({}, kind="open"), parents=(head.id,))
        return saving.write(again(head, head.key, "open"), parents=(head.id,))

    def _make_known(self, opened: Checkpoint) -> None:
        """Say in the ledger, too, that there is a new holder."""
        session = self._session
        session._epoch = Epoch(session.key, opened.seq, secrets.token_hex(8))
        session._ledger = Ledger(self._store, session._meta.family)
        session._ledger.append(
            "epoch",
            session=session.key,
            epoch=session._epoch.number,
            token=session._epoch.token,
        )
        session._ledger.check(session._epoch)

    def _load(self, head: Checkpoint) -> None:
        live = self._session._live_parts()
        live.pop(FILES, None)
        targets = {name: part for name, part in live.items() if name in head.parts}
        restore_parts(head.parts, targets, reader=self._store.reader(head))
        self._session._new_parts = [name for name in live if name not in head.parts]
        self._session._idle_parts = [name for name in head.parts if name not in live]

    # -- files -----------------------------------------------------------------------------------

    def _have_files(self, place: Path | None, given: Any) -> None:
        session = self._session
        if place is None:
            session._files = None
            return
        if session._files is not None and session._files.workspace.path == place:
            return
        workspace = given if isinstance(given, Workspace) else Workspace(place, self._store)
        session._files = Files(workspace)

    def _drift(self, tree: Tree | None) -> Any:
        files = self._session._files
        if tree is None or files is None or self._is_empty:
            return None
        found = files.workspace.diff(tree)
        return found or None

    def _set_files(self, head: Checkpoint, tree: Tree | None, drift: Any) -> None:
        session = self._session
        if tree is None or session._files is None:
            return
        left = unfinished(session)
        if left is not None:
            safety, move = left
            Rollback(session, move).follow(safety, move)
        elif self._is_empty:
            session._files.workspace.restore(tree)
        elif drift and self._on_drift == "restore":
            session.drift = drift
            session._files.workspace.restore(tree)
        elif drift:
            session.drift = drift
            session._meta.drift = [*drift.added, *drift.removed, *drift.changed][:_NAMED]
            session._save(kind="drift", label="files that others have changed")
            session._meta.drift = []


def _path(workspace: str | os.PathLike[str] | Workspace) -> Path:
    if isinstance(workspace, Workspace):
        return workspace.path
    return Path(os.path.realpath(workspace))


def _is_empty(place: Path) -> bool:
    return place.is_dir() and not any(place.iterdir())
