"""The class Workspace: snapshot, diff, restore and fork of a directory. Owns the verbs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import (
    InvalidInputError,
    StateMismatchError,
    WorkspaceError,
)
from agent_checkpoint.store.maintenance.safety_checkpoints import SAFETY
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.open_directory import OpenDirectory
from agent_checkpoint.workspace.tree.snapshot import Tree, objects_from, tree_of
from agent_checkpoint.workspace.tree_names import PART, relative_path, resolve_tree

if TYPE_CHECKING:
    from agent_checkpoint.workspace.fork.workspace_fork import Fork
    from agent_checkpoint.workspace.restore.operation import SafetySnapshot
    from agent_checkpoint.workspace.restore.plan import Plan
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff


class Workspace(OpenDirectory):
    """A directory with its files; a Stateful. Thread-safe."""

    def snapshot(self, *, label: str | None = None, full: bool = False) -> Tree:
        """Save the directory as a checkpoint of the workspace's own key; return the tree.

        Writes nothing if the directory equals the last checkpoint of that key.

        Args:
            label: a name for the checkpoint.
            full: stat every file, even if the changed paths are known.

        Raises:
            WorkspaceError: the directory cannot be read, or exceeds the limit.
            StorageError: the store failed; no checkpoint was acknowledged.
        """
        with self._ready():
            key = self.key
            capture = self._capture(full=full)
            draft = capture.draft(key, self.store, label=label)
            head = self.store.head(key)
            # Safety checkpoints are pruned automatically, so one does not count as saved.
            saved = None if head is None or head.kind == SAFETY else head.parts.get(PART)
            is_new = saved != {OBJECT: capture.tree.ref}
            # A claim of version 0.1, or of a replaced secret, has to be renewed.
            is_new = is_new or (head is not None and head.claim != draft.claim)
            if is_new or label is not None:
                # The head was just read: pass it on instead of reading it again.
                self.store.write(draft, parents=() if head is None else (head.id,))
            else:
                capture.confirm()
            return capture.tree

    def diff(
        self, tree: Tree | ObjectRef | str, other: Tree | ObjectRef | str | None = None
    ) -> WorkspaceDiff:
        """Return the changes from a tree to the present directory, or to another tree.

        Raises:
            IntegrityError: an object of a tree is missing or damaged.
            WorkspaceError: the directory cannot be read.
            StorageError: the store failed.
        """
        with block_forks():
            from agent_checkpoint.workspace.tree.compare import Side
            from agent_checkpoint.workspace.tree.workspace_diff import compare  # slow to load

        before = resolve_tree(self, tree)
        if other is not None:
            after = resolve_tree(self, other)
            return compare(Side(before.root.ref, before.get), Side(after.root.ref, after.get))
        store = self._store_for(before)
        with self._ready(), self._root.held(exclusive=False) as root:
            present = self._scanner.scan(root, store.writer(), ahead=True)
        now = Side(present, objects_from(store.backend))
        return compare(Side(before.root.ref, before.get), now)

    def checkpoint_to(self, writer: Writer, *, full: bool = False) -> str:
        """Put the objects that the store lacks; return the name of the snapshot object.

        Raises as `snapshot` does.
        """
        with self._ready():
            return self._capture(full=full).checkpoint_to(writer)

    def state_dict(self) -> ObjectRef:
        """Take a snapshot and return a reference to it. Raises as `snapshot` does."""
        return ObjectRef(self.snapshot().ref, self.store.backend)

    def load_state_dict(self, state: Any, strict: bool = False) -> Plan:
        """Restore a snapshot from `state_dict`; return the plan that was carried out.

        Raises:
            StateMismatchError: the state is not a snapshot of a workspace.
            WorkspaceError: as `restore` does.
        """
        if not isinstance(state, ObjectRef):
            raise StateMismatchError(
                f"A Workspace can load only a snapshot of a workspace, not {type(state).__name__}."
            )
        return self.restore(state)

    def undo_load(self, plan: Plan) -> None:
        """Undo a restore. Raises as `restore` does."""
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
        only_if: Plan | None = None,
    ) -> Plan:
        """Restore the directory, or some paths of it, from a tree; return the plan carried out.

        First saves the present directory as a safety checkpoint, `safety` of the result: restore
        that to undo. Only files in the safety checkpoint are deleted or overwritten.

        Args:
            tree: the tree to restore, or the id of a checkpoint with one.
            paths: the paths to restore, relative to the workspace; all if not given.
            exclude: patterns of paths to leave unchanged, such as `.git`.
            keep_unseen: keep files that were added or changed since the last ordinary checkpoint.
            dry_run: return the plan without carrying it out.
            only_if: a plan from `dry_run`: restore only if the plan is still the same.

        Raises:
            ConflictError: the plan differs from `only_if`.
            InvalidInputError: a path is not within the workspace.
            IntegrityError: an object of the tree is missing or damaged; no file was changed.
            RestoreIncompleteError: some paths could not be restored; the message names them.
            WorkspaceError: the directory cannot be read, or the disk is full; no file was changed.
        """
        with block_forks():
            from agent_checkpoint.workspace.restore.operation import RestoreOptions  # slow to load

        if isinstance(paths, (str, os.PathLike)):
            raise InvalidInputError(f"paths= takes a list of paths, such as [{str(paths)!r}].")
        chosen = None if paths is None else tuple(relative_path(self.path, path) for path in paths)
        options = RestoreOptions(chosen, tuple(exclude), keep_unseen)
        if self._held_tree is not None and not dry_run:
            raise WorkspaceError(f"{self.path} is held for its forks: restore after hold() ends.")
        with self._ready():
            target = resolve_tree(self, tree)
            store = self._store_for(target)
            if dry_run:
                return self._restore_operation.preview(store, target, options)
            return self._restore_operation.restore(store, target, options, only_if)

    def restore_held(
        self,
        tree: Tree | ObjectRef,
        held: SafetySnapshot,
        *,
        paths: Iterable[bytes] | None = None,
        keep_unseen: bool = False,
    ) -> Plan:
        """Restore the directory from a tree, given a checkpoint of its present state.

        Args:
            tree: the tree to restore.
            held: the checkpoint of the present; files that changed since are left alone.
            paths: the paths to restore; all if not given.
            keep_unseen: as for `restore`.

        Raises as `restore` does.
        """
        with block_forks():
            from agent_checkpoint.workspace.restore.operation import RestoreOptions  # slow to load

        if self._held_tree is not None:
            raise WorkspaceError(f"{self.path} is held for its forks: restore after hold() ends.")
        with self._ready():
            target = tree_of(tree)
            options = RestoreOptions(None if paths is None else tuple(paths), (), keep_unseen)
            return self._restore_operation.restore_held(
                self._store_for(target), target, held, options
            )

    def fork(
        self,
        path: str | os.PathLike[str],
        tree: Tree | ObjectRef | str | None = None,
        driver: str = "auto",
    ) -> Fork:
        """Create a workspace with the content of this one or of a tree, isolated from it.

        Args:
            path: the directory of the fork; it is created.
            tree: its initial content; the present directory if not given.
            driver: `overlay`, `reflink` or `copy`; `auto` picks the fastest that works here.

        Raises:
            InvalidInputError: the driver is unknown.
            UnsafeWorkspaceError: the path exists already, or is in this workspace.
            WorkspaceError: the driver does not work here, or the directory cannot be read.
            StorageError: the store failed.
        """
        with block_forks():
            from agent_checkpoint.workspace.fork.workspace_fork import (
                make_fork,  # imports this class
            )

        with self._lock:
            fork = make_fork(self, path, None if tree is None else resolve_tree(self, tree), driver)
            self._forks.add(fork)  # keeps forks without another reference alive until closed
            fork.on_close(lambda: self._forks.discard(fork))
            return fork

    @contextmanager
    def hold(self, tree: Tree | None = None) -> Iterator[Tree]:
        """Declare the directory read-only for the block, so forks can use it as lower directory.

        Yields the tree of the directory. At the end, forks made in the block are closed, with their
        last state saved.

        Args:
            tree: the tree of the present directory, if a checkpoint has it already.

        Raises as `snapshot` does.
        """
        with self._lock:
            if self._held_tree is not None:
                raise WorkspaceError(f"{self.path} is held already.")
            tree = self.snapshot(full=True) if tree is None else tree
            self._held_tree, before = tree, set(self._forks)
        try:
            with self._root.held(exclusive=False):
                yield tree
        finally:
            with self._lock:
                self._held_tree = None
                for fork in self._forks - before:
                    fork.end()
