"""Workspace: a directory that can be captured, compared, restored and forked. Owns the verbs."""

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
from agent_checkpoint.workspace.tree_names import PART, resolve_tree, within

if TYPE_CHECKING:
    from agent_checkpoint.workspace.fork.workspace_fork import Fork
    from agent_checkpoint.workspace.restore.operation import SafetySnapshot
    from agent_checkpoint.workspace.restore.plan import Plan
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff


class Workspace(OpenDirectory):
    """A directory with all that is in it; a Stateful. Safe to use from several threads."""

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
            key = self.key
            capture = self._capture(full=full)
            draft = capture.draft(key, self.store, label=label)
            head = self.store.head(key)
            # A safety checkpoint is forgotten after a while: nothing is saved by that alone.
            saved = None if head is None or head.kind == SAFETY else head.parts.get(PART)
            is_new = saved != {OBJECT: capture.tree.ref}
            # Of version 0.1, or of a secret that was replaced: the line has to be claimed anew.
            is_new = is_new or (head is not None and head.claim != draft.claim)
            if is_new or label is not None:
                # It was just read: no need to look for it once more.
                self.store.write(draft, parents=() if head is None else (head.id,))
            else:
                capture.confirm()
            return capture.tree

    def diff(
        self, tree: Tree | ObjectRef | str, other: Tree | ObjectRef | str | None = None
    ) -> WorkspaceDiff:
        """Return what changed from a tree to the present, or to another tree.

        Raises:
            IntegrityError: a part of a tree is missing or damaged.
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
        """Hand what a store does not have yet to a writer; return the name of the snapshot.

        Raises as `snapshot` does.
        """
        with self._ready():
            return self._capture(full=full).checkpoint_to(writer)

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
        only_if: Plan | None = None,
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
            only_if: what `dry_run` told: if it is something else by now, nothing is done.

        Raises:
            ConflictError: it is not what `only_if` says.
            InvalidInputError: a path is not within the workspace.
            IntegrityError: a part of the tree is missing or damaged; nothing was touched.
            RestoreIncompleteError: some paths could not be restored; the message names them.
            WorkspaceError: the directory cannot be read, or the disk is full; nothing was touched.
        """
        with block_forks():
            from agent_checkpoint.workspace.restore.operation import RestoreOptions  # slow to load

        if isinstance(paths, (str, os.PathLike)):
            raise InvalidInputError(f"paths is a list of paths, such as [{str(paths)!r}].")
        chosen = None if paths is None else tuple(within(self.path, path) for path in paths)
        options = RestoreOptions(chosen, tuple(exclude), keep_unseen)
        if self._held_tree is not None and not dry_run:
            raise WorkspaceError(f"{self.path} is held for its forks: restore it afterwards.")
        with self._ready():
            found = resolve_tree(self, tree)
            store = self._store_for(found)
            if dry_run:
                return self._restore_operation.preview(store, found, options)
            return self._restore_operation.restore(store, found, options, only_if)

    def restore_held(
        self,
        tree: Tree | ObjectRef,
        held: SafetySnapshot,
        *,
        paths: Iterable[bytes] | None = None,
        keep_unseen: bool = False,
    ) -> Plan:
        """Make the directory what it was, where a checkpoint holds the present already.

        Args:
            tree: what to go back to.
            held: what holds the present; what has changed since is left alone.
            paths: what to restore; everything if not given.
            keep_unseen: as for `restore`.

        Raises as `restore` does.
        """
        with block_forks():
            from agent_checkpoint.workspace.restore.operation import RestoreOptions  # slow to load

        if self._held_tree is not None:
            raise WorkspaceError(f"{self.path} is held for its forks: restore it afterwards.")
        with self._ready():
            found = tree_of(tree)
            options = RestoreOptions(None if paths is None else tuple(paths), (), keep_unseen)
            return self._restore_operation.restore_held(
                self._store_for(found), found, held, options
            )

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
        with block_forks():
            from agent_checkpoint.workspace.fork.workspace_fork import (
                make_fork,  # which is built on this class
            )

        with self._lock:
            fork = make_fork(self, path, None if tree is None else resolve_tree(self, tree), driver)
            self._forks.add(fork)  # also those that nobody else holds have to be closed
            fork.on_close(lambda: self._forks.discard(fork))
            return fork

    @contextmanager
    def hold(self, tree: Tree | None = None) -> Iterator[Tree]:
        """Promise that nothing writes here meanwhile: forks may then read through to it.

        Forks that were made meanwhile are closed at the end, with their last state saved. Gives the
        tree.

        Args:
            tree: what the directory is, if a checkpoint has it already.

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
