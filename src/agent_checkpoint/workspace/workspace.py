"""Workspace: a directory that can be captured, compared, restored and forked. Owns the verbs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.opening import open_named
from agent_checkpoint.errors import (
    InvalidInputError,
    StateMismatchError,
    WorkspaceError,
)
from agent_checkpoint.records import MAX_KEY_BYTES
from agent_checkpoint.store.reading import OBJECT
from agent_checkpoint.store.references import ObjectRef
from agent_checkpoint.store.safety import SAFETY
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.writing import Writer
from agent_checkpoint.workspace.folders import Folder
from agent_checkpoint.workspace.ignoring import Rules
from agent_checkpoint.workspace.layer import Layer
from agent_checkpoint.workspace.locking import RootLock
from agent_checkpoint.workspace.meter import Meter, Progress
from agent_checkpoint.workspace.naming import PART, tree_named, within
from agent_checkpoint.workspace.premises import checked_place, clean_up_forks, opened_store
from agent_checkpoint.workspace.sight import Sight
from agent_checkpoint.workspace.snapshots import Tree, objects_from, tree_of
from agent_checkpoint.workspace.staging import has_staging
from agent_checkpoint.workspace.taking import Taking

if TYPE_CHECKING:
    from agent_checkpoint.workspace.diff import WorkspaceDiff
    from agent_checkpoint.workspace.forks import Fork
    from agent_checkpoint.workspace.plan import Plan
    from agent_checkpoint.workspace.restoring import Held, Restoring

_LIMIT = 10 << 30

Self = TypeVar("Self", bound="Workspace")


class Workspace:
    """A directory with all that is in it; a Stateful. Safe to use from several threads."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        store: Store | str | os.PathLike[str] | None = None,
        *,
        ignore: Iterable[str] = (),
        gitignore: bool = False,
        watch: bool = True,
        limit: int | None = _LIMIT,
        progress: Progress | None = None,
        force: bool = False,
    ) -> None:
        """Open a directory; a restore that was interrupted there is finished.

        Args:
            path: the directory.
            store: where its own snapshots go: `manager.store`, a path or a URL; the user's own if
                not given. As a part of a checkpoint, it goes where the checkpoint goes.
            ignore: patterns of what to leave out, as in `.checkpointignore`.
            gitignore: leave out what `.gitignore` files say, too.
            watch: learn from the kernel what changes, where it tells.
            limit: how many bytes of new files one snapshot may read; any number if None.
            progress: called with the numbers of files and bytes read so far, as a snapshot goes on.
            force: take also `/`, a home directory, or one that holds it.

        Raises:
            InvalidInputError: a pattern makes no sense.
            UnsafeWorkspaceError: the directory is `/`, a home directory, or holds one.
            WorkspaceError: there is no such directory, or an interrupted restore needs another
                store.
        """
        self.path = checked_place(path, force=force)
        self._held: Tree | None = None
        """What it is while it is held."""
        self._options: dict[str, Any] = {
            "ignore": tuple(ignore),
            "gitignore": gitignore,
            "watch": watch,
            "limit": limit,
            "progress": progress,
        }
        """What was said when it was opened; forks have the same."""
        self._forks: set[Fork] = set()
        self._store: Store | None = None if store is None else opened_store(store)
        patterns = self._options["ignore"]
        rules = Rules.of(patterns, gitignore=gitignore)
        self._sight = Sight(self.path, rules, Meter(limit, progress), watch=watch)
        self._root = RootLock(self.path)
        self._take = partial(Taking, self._root, self._sight, ignore=patterns, gitignore=gitignore)
        self._lock = RLock()
        self.recovered: Plan | None = None
        """What was done last to finish a restore that was interrupted here."""
        self._finish_restore()
        clean_up_forks()

    def __repr__(self) -> str:
        return f"Workspace({str(self.path)!r})"

    def __deepcopy__(self: Self, memo: object) -> Self:
        return self  # it is a place, and there is but one of it

    @property
    def store(self) -> Store:
        """Where its own snapshots go. Raises InvalidInputError."""
        if self._store is None:
            self._store = Store(open_named(None))
        return self._store

    @property
    def key(self) -> str:
        """The key of its own snapshots and safety checkpoints."""
        path = os.fsencode(self.path)
        key = f"workspace:{path.decode(errors='backslashreplace')}"
        if len(key.encode()) > MAX_KEY_BYTES:
            key = f"workspace:{hashlib.sha256(path).hexdigest()}"
        return key

    @property
    def watch_trouble(self) -> str | None:
        """Why every snapshot looks at all files; None if only at what has changed."""
        return self._sight.watch_trouble

    def snapshot(self, *, label: str | None = None, full: bool = False) -> Tree:
        """Capture everything, as a checkpoint of the workspace's own key; return the tree.

        If nothing has changed since that key's last checkpoint, nothing is written.

        Args:
            label: what a person calls this checkpoint.
            full: look at every file, also if all changes seem to be known.

        Raises:
            WorkspaceError: the directory cannot be read, or has more than the limit.
            StorageError: the store failed; nothing was acknowledged.
        """
        with self._ready():
            taking = self._take(full=full)
            draft = taking.draft(self.key, self.store, label=label)
            head = self.store.head(self.key)
            # A safety checkpoint is forgotten after a while: nothing is saved by that alone.
            saved = None if head is None or head.kind == SAFETY else head.parts.get(PART)
            is_new = saved != {OBJECT: taking.tree.ref}
            if is_new or label is not None:
                # It was just read: no need to look for it once more.
                self.store.write(draft, parents=() if head is None else (head.id,))
            else:
                taking.confirm()
            return taking.tree

    def diff(
        self, tree: Tree | ObjectRef | str, other: Tree | ObjectRef | str | None = None
    ) -> WorkspaceDiff:
        """Return what changed from a tree to the present, or to another tree.

        Raises:
            IntegrityError: a part of a tree is missing or damaged.
            WorkspaceError: the directory cannot be read.
            StorageError: the store failed.
        """
        from agent_checkpoint.workspace.comparing import Side
        from agent_checkpoint.workspace.diff import compare  # slow to load

        before = tree_named(self, tree)
        if other is not None:
            after = tree_named(self, other)
            return compare(Side(before.root.ref, before.get), Side(after.root.ref, after.get))
        store = self._store_for(before)
        with self._ready(), self._root.held(exclusive=False) as root:
            present = self._sight.look(root, store.writer(), ahead=True)
        now = Side(present, objects_from(store.backend))
        return compare(Side(before.root.ref, before.get), now)

    def _look(self) -> Folder:
        """Return the directory as it is now, without a checkpoint. Raises as `snapshot` does."""
        with self._ready(), self._root.held(exclusive=False) as root:
            return self._sight.look(root, self.store.writer(), ahead=True)

    def _know(self, folder: Folder | None, layer: Layer | None) -> None:
        """Take for known what was seen in the directory that this one was made from.

        Args:
            folder: what was seen there; nothing if it is None.
            layer: tells what has changed since, if this is no copy.
        """
        with self._lock:
            if folder is not None:
                self._sight.adopt(folder, self.store.backend, layer)

    @property
    def _known(self) -> Folder | None:
        """What was seen last."""
        return self._sight.folder

    def checkpoint_to(self, writer: Writer, *, full: bool = False) -> str:
        """Hand what a store does not have yet to a writer; return the name of the snapshot.

        Raises as `snapshot` does.
        """
        with self._ready():
            return self._take(full=full).checkpoint_to(writer)

    def state_dict(self) -> ObjectRef:
        """Return the name of a snapshot of the present. Raises as `snapshot` does."""
        return ObjectRef(self.snapshot().ref, self.store.backend)

    def load_state_dict(self, state: Any, strict: bool = False) -> Plan:
        """Restore a snapshot that is the state of a workspace; return what was done.

        Raises:
            StateMismatchError: the state is none of a workspace.
            WorkspaceError: as `restore` does.
        """
        if not isinstance(state, ObjectRef):
            raise StateMismatchError(
                f"A Workspace loads a snapshot of one, not {type(state).__name__}."
            )
        return self.restore(state)

    def undo_load(self, plan: Plan) -> None:
        """Take back a restore. Raises as `restore` does."""
        if plan.safety is not None:
            self.restore(plan.safety)

    def restore(
        self,
        tree: Tree | ObjectRef | str,
        *,
        paths: Iterable[str | os.PathLike[str]] | None = None,
        exclude: Iterable[str] = (),
        keep_unseen: bool = False,
        dry_run: bool = False,
    ) -> Plan:
        """Make the directory what it was, all of it or a part; return what was done.

        First the present is saved as a safety checkpoint, `safety` of the result: restore that to
        go back. Only what it holds is deleted or overwritten.

        Args:
            tree: what to go back to, or the id of a checkpoint with it.
            paths: what to restore, relative to the workspace; everything if not given.
            exclude: patterns of what to leave as it is, such as `.git`.
            keep_unseen: leave alone what has come or changed since the last ordinary checkpoint.
            dry_run: only tell what would be done.

        Raises:
            InvalidInputError: a path is not within the workspace.
            IntegrityError: a part of the tree is missing or damaged; nothing was touched.
            RestoreIncompleteError: some paths could not be restored; the message names them.
            WorkspaceError: the directory cannot be read, or the disk is full; nothing was touched.
        """
        from agent_checkpoint.workspace.restoring import Wish  # slow to load

        if isinstance(paths, (str, os.PathLike)):
            raise InvalidInputError(f"paths is a list of paths, such as [{str(paths)!r}].")
        chosen = None if paths is None else tuple(within(self.path, path) for path in paths)
        wish = Wish(chosen, tuple(exclude), keep_unseen)
        if self._held is not None and not dry_run:
            raise WorkspaceError(f"{self.path} is held for its forks: restore it afterwards.")
        with self._ready():
            found = tree_named(self, tree)
            store = self._store_for(found)
            run = self._restoring.preview if dry_run else self._restoring.restore
            return run(store, found, wish)

    def restore_held(
        self,
        tree: Tree | ObjectRef,
        held: Held,
        *,
        exclude: Iterable[str] = (),
        keep_unseen: bool = False,
    ) -> Plan:
        """Make the directory what it was, where a checkpoint holds the present already.

        Args:
            tree: what to go back to.
            held: what holds the present; what has changed since is left alone.
            exclude: as for `restore`.
            keep_unseen: as for `restore`.

        Raises as `restore` does.
        """
        from agent_checkpoint.workspace.restoring import Wish  # slow to load

        if self._held is not None:
            raise WorkspaceError(f"{self.path} is held for its forks: restore it afterwards.")
        with self._ready():
            found = tree_of(tree)
            wish = Wish(None, tuple(exclude), keep_unseen)
            return self._restoring.restore_held(self._store_for(found), found, held, wish)

    def fork(
        self,
        path: str | os.PathLike[str],
        tree: Tree | ObjectRef | str | None = None,
        driver: str = "auto",
    ) -> Fork:
        """Make another workspace that begins as this one is, or was, and is isolated from it.

        Args:
            path: the directory of the fork, which is made.
            tree: what it begins as; the present if not given.
            driver: `overlay`, `reflink` or `copy`; `auto` is the best that was seen to work here.

        Raises:
            InvalidInputError: there is no such driver.
            UnsafeWorkspaceError: the path is taken, or is in this workspace.
            WorkspaceError: the driver does not work here, or the directory cannot be read.
            StorageError: the store failed.
        """
        from agent_checkpoint.workspace.forks import make_fork  # which is built on this class

        with self._lock:
            fork = make_fork(self, path, None if tree is None else tree_named(self, tree), driver)
            self._forks.add(fork)  # also those that nobody else holds have to be closed
            fork.on_close(lambda: self._forks.discard(fork))
            return fork

    @contextmanager
    def hold(self) -> Iterator[Tree]:
        """Promise that nothing writes here meanwhile: forks may then read through to it.

        Forks that are open at the end are closed, with their last state saved. Gives the tree.

        Raises as `snapshot` does.
        """
        with self._lock:
            if self._held is not None:
                raise WorkspaceError(f"{self.path} is held already.")
            tree = self.snapshot(full=True)
            self._held = tree
        try:
            with self._root.held(exclusive=False):
                yield tree
        finally:
            with self._lock:
                self._held = None
                for fork in list(self._forks):
                    fork.close()

    def _finish_restore(self) -> None:
        """Finish what another, or this one, was interrupted in: half of it is never captured."""
        with self._root.held(exclusive=False) as root:
            if not has_staging(root):
                return
        plan = self._restoring.recover(self._store)
        if plan is not None:
            self.recovered = plan

    @property
    def _restoring(self) -> Restoring:
        from agent_checkpoint.workspace.restoring import Restoring  # slow to load

        return Restoring(self._root, self._sight, self._take, self.key)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Have the workspace for one thread, with no restore half done."""
        with self._lock:
            self._finish_restore()
            yield

    def close(self) -> None:
        """Stop watching the directory. Twice is fine."""
        with self._lock:
            self._sight.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _store_for(self, tree: Tree) -> Store:
        """Return where a safety checkpoint goes: its own store, else the one of the tree."""
        if self._store is None and isinstance(tree.source, Backend):
            return Store(tree.source)
        return self.store
