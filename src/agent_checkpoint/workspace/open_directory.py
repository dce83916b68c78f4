"""A directory that is open as a workspace. Owns what its verbs share.

That is the store, the lock and what was seen; and that nothing is captured while a restore is half
done.
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
    """A directory with all that is in it; `Workspace` has the verbs."""

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
        self.path = checked_root(path, force=force)
        self._held_tree: Tree | None = None
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
        """What was done last to finish a restore that was interrupted here."""
        self.notices: list[str] = []
        """What a person should know of the directory: what was found where restores are staged."""
        self.saved_in: tuple[str, ...] = ()
        """Further keys with checkpoints of the directory: what they hold counts as saved."""
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
        """The key of its own snapshots and safety checkpoints. Raises StateError, StorageError."""
        return self._key_in(self.store)

    def _key_in(self, store: Store) -> str:
        """Return the key of its line in a store."""
        return own_key(store, self.path)

    @property
    def watch_trouble(self) -> str | None:
        """Why every snapshot looks at all files; None if only at what has changed."""
        return self._scanner.watch_trouble

    @property
    def losses(self) -> list[PathNote]:
        """What could not be captured by the last snapshot, or not in one piece, and why."""
        folder = self._scanner.dir_state
        notes = () if folder is None else folder.all_notes()
        return sorted(
            PathNote(os.fsdecode(path), note.kind, note.text)
            for path, note in notes
            if note.is_loss
        )

    @property
    def left_out(self) -> list[str]:
        """What the rules left out of the last snapshot; a directory stands for all below it."""
        folder = self._scanner.dir_state
        return [] if folder is None else sorted(map(os.fsdecode, folder.left_out()))

    def close(self) -> None:
        """Stop watching the directory. Twice is fine."""
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
        """Return the directory as it is now, without a checkpoint. Raises as `snapshot` does."""
        with self._ready(), self._root.held(exclusive=False) as root:
            return self._scanner.scan(root, self.store.writer(), ahead=True)

    def _adopt_state(self, folder: DirState | None, layer: OverlayUpper | None) -> None:
        """Take for known what was seen in the directory that this one was made from.

        Args:
            folder: what was seen there; nothing if it is None.
            layer: tells what has changed since, if this is no copy.
        """
        with self._lock:
            if folder is not None:
                self._scanner.adopt(folder, self.store.backend, layer)

    @property
    def _last_state(self) -> DirState | None:
        """What was seen last."""
        return self._scanner.dir_state

    def _finish_restore(self) -> None:
        """Finish what another, or this one, was interrupted in: half of it is never captured."""
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
        """Have the workspace for one thread, with no restore half done."""
        with self._lock:
            self._finish_restore()
            yield

    def _store_for(self, tree: Tree) -> Store:
        """Return where a safety checkpoint goes: its own store, else the one of the tree."""
        if self._store is None and isinstance(tree.source, Backend):
            return Store(tree.source)
        return self.store
