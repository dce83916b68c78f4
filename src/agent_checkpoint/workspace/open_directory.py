"""An open workspace directory: the base of `Workspace`. Owns its store, lock and scanner.

Finishes an interrupted restore before every operation, so no half-restored directory is captured.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.capture import Capture
from agent_checkpoint.workspace.changes.overlay_upper import OverlayUpper
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.staging import has_staging
from agent_checkpoint.workspace.root_checks import as_store, checked_root, clean_up_forks
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.scan.snapshot_limit import Progress, SnapshotLimit
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import PathNote, Tree
from agent_checkpoint.workspace.tree_names import own_key
from agent_checkpoint.workspace.workspace_lock import RootLock

if TYPE_CHECKING:
    from agent_checkpoint.workspace.fork.workspace_fork import Fork
    from agent_checkpoint.workspace.restore.operation import RestoreOperation
    from agent_checkpoint.workspace.restore.plan import Plan

_LIMIT = 10 << 30

Self = TypeVar("Self", bound="OpenDirectory")


class OpenDirectory:
    """An open directory; `Workspace` adds the verbs."""

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
        """Open a directory and finish a restore that was interrupted in it.

        Args:
            path: the directory.
            store: the store of its own snapshots: `manager.store`, a path or a URL; the default
                store of the user if not given. As a part of a checkpoint, a workspace goes to the
                store of the checkpoint.
            ignore: patterns of paths to leave out, as in `.checkpointignore`.
            gitignore: apply `.gitignore` files, too.
            watch: learn changed paths from inotify where possible.
            limit: the number of bytes of new files that one snapshot may read; None for no limit.
            progress: called during a snapshot with the numbers of files and bytes read so far.
            force: allow `/`, a home directory, or a directory that contains one.

        Raises:
            InvalidInputError: a pattern is invalid.
            UnsafeWorkspaceError: the directory is `/`, a home directory, or contains one.
            WorkspaceError: the directory does not exist, or an interrupted restore needs another
                store.
        """
        self.path = checked_root(path, force=force)
        self._held_tree: Tree | None = None
        """The tree of the directory during `hold`."""
        self._options: dict[str, Any] = {
            "ignore": tuple(ignore),
            "gitignore": gitignore,
            "watch": watch,
            "limit": limit,
            "progress": progress,
        }
        """The options of the constructor; forks get the same."""
        self._forks: set[Fork] = set()
        self._store: Store | None = None if store is None else as_store(store)
        patterns = self._options["ignore"]
        rules = Rules.of(patterns, gitignore=gitignore)
        self._scanner = Scanner(self.path, rules, SnapshotLimit(limit, progress), watch=watch)
        self._root = RootLock(self.path)
        self._capture = partial(
            Capture, self._root, self._scanner, ignore=patterns, gitignore=gitignore
        )
        self._lock = RLock()
        self.recovered: Plan | None = None
        """The plan of the last crash recovery in this directory."""
        self.notices: list[str] = []
        """Messages for the user about foreign files found in the staging directory."""
        self.saved_in: tuple[str, ...] = ()
        """Further keys with checkpoints of the directory: their files count as saved."""
        self._finish_restore()
        clean_up_forks()

    def __repr__(self) -> str:
        return f"Workspace({str(self.path)!r})"

    def __deepcopy__(self: Self, memo: object) -> Self:
        return self  # a directory cannot be copied with the object

    @property
    def store(self) -> Store:
        """The store of its own snapshots. Raises InvalidInputError."""
        if self._store is None:
            self._store = Store(open_named(None))
        return self._store

    @property
    def key(self) -> str:
        """The key of its own snapshots and safety checkpoints. Raises StateError, StorageError."""
        return self._key_in(self.store)

    def _key_in(self, store: Store) -> str:
        """Return the key of its own snapshots in a store."""
        return own_key(store, self.path)

    @property
    def watch_trouble(self) -> str | None:
        """Why changes are not watched, so every snapshot stats all files; None if they are."""
        return self._scanner.watch_trouble

    @property
    def losses(self) -> list[PathNote]:
        """Entries that the last snapshot could not capture, or not consistently, and why."""
        state = self._scanner.dir_state
        notes = () if state is None else state.all_notes()
        return sorted(
            PathNote(os.fsdecode(path), note.kind, note.text)
            for path, note in notes
            if note.is_loss
        )

    @property
    def left_out(self) -> list[str]:
        """Paths that the last snapshot ignored; a directory stands for all below it."""
        state = self._scanner.dir_state
        return [] if state is None else sorted(map(os.fsdecode, state.left_out()))

    def close(self) -> None:
        """Stop watching the directory. May be called twice."""
        with self._lock:
            self._scanner.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _scan(self) -> DirState:
        """Scan the directory without a checkpoint. Raises as `snapshot` does."""
        with self._ready(), self._root.held(exclusive=False) as root:
            return self._scanner.scan(root, self.store.writer(), ahead=True)

    def _adopt_state(self, state: DirState | None, upper: OverlayUpper | None) -> None:
        """Cache the state of the directory that this one was forked from.

        Args:
            state: that state, if it is known.
            upper: reports the changes since, if this is an overlay and not a copy.
        """
        with self._lock:
            if state is not None:
                self._scanner.adopt(state, self.store.backend, upper)

    @property
    def _last_state(self) -> DirState | None:
        """The state found by the last scan."""
        return self._scanner.dir_state

    def _finish_restore(self) -> None:
        """Finish an interrupted restore, of this process or another."""
        with self._root.held(exclusive=False) as root:
            if not has_staging(root):
                return
        with block_forks():
            from agent_checkpoint.workspace.restore.recovery import recover  # slow to load

        plan, notice = recover(self._root, self._scanner, self._store)
        if plan is not None:
            self.recovered = plan
        if notice is not None and notice not in self.notices:
            self.notices.append(notice)

    @property
    def _restore_operation(self) -> RestoreOperation:
        with block_forks():
            from agent_checkpoint.workspace.restore.operation import (
                RestoreOperation,
            )  # slow to load

        return RestoreOperation(
            self._root, self._scanner, self._capture, self._key_in, self.saved_in
        )

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Lock the workspace for this thread, with no unfinished restore in it."""
        with self._lock:
            self._finish_restore()
            yield

    def _store_for(self, tree: Tree) -> Store:
        """Return the store for a safety checkpoint: its own, else that of the tree."""
        if self._store is None and isinstance(tree.source, Backend):
            return Store(tree.source)
        return self.store
