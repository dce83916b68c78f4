"""The class Workspace: snapshot, diff, restore and fork of a directory.

An interrupted restore is finished before every operation, so that no half-restored directory is
captured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import (
    ConflictError,
    InvalidInputError,
    StateMismatchError,
    WorkspaceError,
)
from agent_checkpoint.options import Driver
from agent_checkpoint.records import Checkpoint, Kind, short_repr
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.store_argument import store_for
from agent_checkpoint.workspace.capture import Capture
from agent_checkpoint.workspace.checkpoint_tree import PART, relative_path, tree_in
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.root_checks import checked_root, clean_up_forks
from agent_checkpoint.workspace.safe_open import exists
from agent_checkpoint.workspace.scan.scan_cache import collection_paused
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.scan.snapshot_limit import Progress, SnapshotLimit
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.tree.dir_state import Copied, DirState
from agent_checkpoint.workspace.tree.snapshot import (
    PathNote,
    Tree,
    objects_from,
    sorted_notes,
    tree_of,
)
from agent_checkpoint.workspace.workspace_lock import RootLock

if TYPE_CHECKING:
    from typing_extensions import Self

    from agent_checkpoint.store.store_argument import StoreLike
    from agent_checkpoint.workspace.changes.overlay_upper import OverlayUpper
    from agent_checkpoint.workspace.fork.fork_directory import ForkDirectory
    from agent_checkpoint.workspace.fork.isolated import ForkNamespace
    from agent_checkpoint.workspace.fork.lowerdir import ForkOrigin
    from agent_checkpoint.workspace.restore.apply import RestoreProgress
    from agent_checkpoint.workspace.restore.journal import Decision, RestoreOptions
    from agent_checkpoint.workspace.restore.plan import Plan
    from agent_checkpoint.workspace.restore.transition import SafetySnapshot, Transition
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff

    _Newest = tuple[Checkpoint, Any]
    """A checkpoint, and its part with the files: parsing its entry again takes long."""

_LIMIT = 10 << 30


class Workspace:
    """A directory whose files can be saved and restored. Implements Stateful. Thread-safe."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        store: StoreLike | None = None,
        *,
        ignore: Iterable[str] = (),
        gitignore: bool = False,
        watch: bool = True,
        limit: int | None = _LIMIT,
        progress: Progress | None = None,
        force: bool = False,
    ) -> None:
        """Open a directory and finish an interrupted restore in it.

        Args:
            path: the directory.
            store: the store for `snapshot` and safety checkpoints: a path, a URL, a Backend or a
                manager; by default, the default store. A workspace that is a part of a checkpoint
                is saved to the store of the checkpoint.
            ignore: patterns of paths to ignore, as in `.checkpointignore`.
            gitignore: also apply `.gitignore` files.
            watch: use inotify to find changed paths, where it is available.
            limit: maximum number of bytes of new files that one snapshot reads; None for no limit.
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
        self.options: dict[str, Any] = {
            "ignore": tuple(ignore),
            "gitignore": gitignore,
            "watch": watch,
            "limit": limit,
            "progress": progress,
        }
        """The options of the constructor; forks get the same."""
        self._forks: set[Fork] = set()
        self.given_store: Store | None = None if store is None else store_for(store)[0]
        """The store that was passed to the constructor, or the default store once it is open."""
        self._key: str | None = None
        self._saved: _Newest | None = None
        """The last snapshot. While it is the head, its key is still the own one.

        Then neither the key is determined again nor the head read.
        """
        patterns = self.options["ignore"]
        rules = Rules.of(patterns, gitignore=gitignore)
        self._scanner = Scanner(self.path, rules, SnapshotLimit(limit, progress), watch=watch)
        self._root = RootLock(self.path)
        self._capture = partial(
            Capture, self._root, self._scanner, ignore=patterns, gitignore=gitignore
        )
        self._lock = RLock()
        self.written: Checkpoint | None = None
        """The checkpoint that the last snapshot wrote; None if it wrote none."""
        self.recovered: Plan | None = None
        """The plan of the last crash recovery in this directory."""
        self.notices: list[str] = []
        """Messages for the user, such as unknown files found in the staging directory."""
        self.saved_in: tuple[str, ...] = ()
        """Additional keys with checkpoints of the directory. Files in these count as saved."""
        self._finish_restore()
        clean_up_forks()

    def __repr__(self) -> str:
        return f"Workspace({str(self.path)!r})"

    def __deepcopy__(self, memo: object) -> Self:
        return self  # a directory cannot be copied with the object

    @property
    def store(self) -> Store:
        """The store of the directory's snapshots and safety checkpoints.

        Raises InvalidInputError.
        """
        if self.given_store is None:
            self.given_store = store_for(None)[0]
        return self.given_store

    @property
    def key(self) -> str:
        """The key of the snapshots and safety checkpoints: derived from the path unless assigned.

        Raises StateError, StorageError.
        """
        return self._key_in(self.store)

    @key.setter
    def key(self, key: str) -> None:
        self._key, self._saved = key, None

    def _key_in(self, store: Store) -> str:
        """Return the key of the directory's snapshots in a store."""
        if self._key:
            return self._key
        with block_forks():
            from agent_checkpoint.workspace.directory_key import own_key  # a session has its own

        return own_key(store, self.path)

    def _line(self) -> tuple[str, _Newest | None]:
        """Return the key of the snapshots, and its newest checkpoint if it is known."""
        if self._saved is not None:
            return self._saved[0].key, self._saved
        if self._key:
            return self._key, None
        with block_forks():
            from agent_checkpoint.workspace.directory_key import own_line

        key, newest = own_line(self.store, self.path)
        return key, None if newest is None else (newest, newest.parts.get(PART))

    @property
    def watch_trouble(self) -> str | None:
        """The reason why changes are not watched and every snapshot stats all files; else None."""
        return self._scanner.watch_trouble

    @property
    def losses(self) -> list[PathNote]:
        """Entries that the last snapshot could not capture consistently, with the reason."""
        state = self._scanner.dir_state
        notes = () if state is None else state.all_notes()
        return list(sorted_notes((path, note) for path, note in notes if note.is_loss))

    @property
    def left_out(self) -> list[str]:
        """Paths that the last snapshot ignored.

        An ignored directory includes everything below it.

        Raises:
            IntegrityError: the stat index is damaged.
        """
        state = self._scanner.dir_state
        return [] if state is None else sorted(map(os.fsdecode, state.left_out()))

    @property
    def transition(self) -> Transition:
        """Changes the directory from one tree to another. An interrupted change is finished first.

        Raises the same errors as the constructor.
        """
        with block_forks():
            from agent_checkpoint.workspace.restore.transition import Transition  # slow to load

        with self._ready():
            return Transition(self._root, self._scanner, self._capture, self._key_in, self.saved_in)

    @property
    def fork_origin(self) -> ForkOrigin:
        """What forks need to know of this workspace. Raises InvalidInputError."""
        with block_forks():
            from agent_checkpoint.workspace.fork.lowerdir import ForkOrigin  # slow to load

        scan = partial(self._scan, self.store)
        return ForkOrigin(self.path, self.store, self._held_tree, self._scanner, scan)

    def close(self) -> None:
        """Stop watching the directory. May be called twice."""
        with self._lock:
            self._scanner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def snapshot(
        self, *, label: str | None = None, tags: tuple[str, ...] = (), full: bool = False
    ) -> Tree:
        """Save the directory as a checkpoint under `key`; return the tree.

        Writes nothing if the directory equals the last checkpoint of that key.

        Args:
            label: a name for the checkpoint.
            tags: tags of the checkpoint, if one is written.
            full: stat every file, even if the changed paths are known.

        Raises:
            WorkspaceError: the directory cannot be read, or exceeds the limit.
            StorageError: the store failed; no checkpoint was acknowledged.
        """
        # Until the objects of the snapshot are gone: else it looks at them again and again.
        with self._lock, collection_paused():
            self.written = None
            with self._unchanging():
                key, newest = self._line()
                capture = self._capture(full=full)
                draft = capture.draft(key, self.store, label=label, tags=tags)
            last, part = self._saved, {OBJECT: capture.tree.ref}
            if (
                newest is not None
                and newest[0].claim == draft.claim
                and draft.claim is not None
                and newest[1] != part
            ):
                # Most likely it is still the head; the append checks it.
                before = newest[0]
                with suppress(ConflictError):
                    self.written = self.store.write(draft, parents=(before.id,), after=before.seq)
                    # After the write, which captures again if the store lost an object.
                    self._saved = self.written, {OBJECT: capture.tree.ref}
                    return capture.tree
            head = self.store.head(key)
            if last is not None and (head is None or head.claim != draft.claim):
                self._saved = None  # the key may belong to another user now
                return self.snapshot(label=label, tags=tags, full=full)
            # Safety checkpoints are pruned automatically, so one does not count as saved.
            saved = None if head is None or head.kind == Kind.SAFETY else head.parts.get(PART)
            # A claim written by version 0.1, or signed with a replaced secret, is renewed.
            if head is None or saved != part or head.claim != draft.claim or label is not None:
                # The head was just read: pass it on instead of reading it again.
                head = self.store.write(draft, parents=() if head is None else (head.id,))
                self.written = head
            else:
                capture.confirm()
            self._saved = None
            if draft.claim is not None:
                self._saved = head, {OBJECT: capture.tree.ref}
            return capture.tree

    def diff(
        self, tree: Tree | ObjectRef | str, other: Tree | ObjectRef | str | None = None
    ) -> WorkspaceDiff:
        """Return the changes from a tree to the current files, or to another tree.

        Raises:
            IntegrityError: an object of a tree is missing or damaged.
            WorkspaceError: the directory cannot be read.
            StorageError: the store failed.
        """
        with block_forks():
            from agent_checkpoint.workspace.tree.compare import Side
            from agent_checkpoint.workspace.tree.workspace_diff import compare  # slow to load

        before = self._resolve(tree)
        if other is not None:
            after = self._resolve(other)
            return compare(Side(before.root.ref, before.get), Side(after.root.ref, after.get))
        store = self._store_for(before)
        now = Side(self._scan(store), objects_from(store.backend))
        return compare(Side(before.root.ref, before.get), now)

    def checkpoint_to(self, writer: Writer, *, full: bool = False) -> str:
        """Write the objects that the store lacks; return the id of the snapshot object.

        Raises the same errors as `snapshot`.
        """
        with self._lock, self._unchanging():
            return self._capture(full=full).checkpoint_to(writer)

    def state_dict(self) -> ObjectRef:
        """Take a snapshot and return a reference to it. Raises the same errors as `snapshot`."""
        return ObjectRef(self.snapshot().ref, self.store.backend)

    def load_state_dict(self, state: Any, strict: bool = False) -> Plan:
        """Restore a snapshot from `state_dict`; return the plan that was applied.

        Raises:
            StateMismatchError: the state is not a snapshot of a workspace.
            WorkspaceError: the same errors as `restore`.
        """
        if not isinstance(state, ObjectRef):
            raise StateMismatchError(
                f"A Workspace can load only a snapshot of a workspace, not {type(state).__name__}."
            )
        return self.restore(state)

    def undo_load(self, plan: Plan) -> None:
        """Undo a restore. Raises the same errors as `restore`."""
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
        """Restore the directory, or some of its paths, from a tree; return the applied plan.

        First saves the current files as a safety checkpoint, `safety` of the result. To undo the
        restore, restore that. Only files in the safety checkpoint are deleted or overwritten.

        Args:
            tree: the tree to restore, or the id of a checkpoint with one.
            paths: the paths to restore, relative to the workspace; all if not given.
            exclude: patterns of paths to leave unchanged, such as `.git`.
            keep_unseen: keep files that were added or changed since the last ordinary checkpoint.
            dry_run: return the plan without applying it.
            only_if: a plan from `dry_run`: restore only if the plan is still the same.

        Raises:
            ConflictError: the plan differs from `only_if`.
            InvalidInputError: a path is not within the workspace.
            IntegrityError: an object of the tree is missing or damaged; no file was changed.
            RestoreIncompleteError: some paths could not be restored; the message lists them.
            WorkspaceError: the directory cannot be read, or the disk is full; no file was changed.
        """
        if isinstance(paths, (str, os.PathLike)):
            raise InvalidInputError(f"paths= takes a list of paths, such as [{str(paths)!r}].")
        chosen = None if paths is None else tuple(relative_path(self.path, path) for path in paths)
        with block_forks():
            from agent_checkpoint.store.maintenance.safety_checkpoints import (
                prune_safety_checkpoints,
            )

        with self._ready():
            target = self._resolve(tree)
            store, transition = self._store_for(target), self.transition
            options = _restore_options(chosen, exclude, keep_unseen)
            if dry_run:
                return transition.preview(store, target, options)
            with transition.locked():
                self._check_not_held()
                safety = transition.save(store)
                plan = transition.run(store, target, safety, options, only_if=only_if)
                prune_safety_checkpoints(store, self._key_in(store))  # last: may be the target
                return plan

    def restore_held(
        self,
        tree: Tree | ObjectRef,
        held: SafetySnapshot,
        *,
        paths: Iterable[bytes] | None = None,
        exclude: Iterable[str] = (),
        keep_unseen: bool = False,
        only_if: Plan | None = None,
        decision: Decision | None = None,
        progress: RestoreProgress | None = None,
    ) -> Plan:
        """Restore the directory from a tree, with an existing checkpoint as safety checkpoint.

        Args:
            tree: the tree to restore.
            held: a checkpoint of the current files; files that changed after it are not touched.
            paths: the paths to restore; all if not given.
            exclude: as for `restore`.
            keep_unseen: as for `restore`.
            only_if: as for `restore`.
            decision: the entry that decides the restore, appended once everything is staged.
            progress: called with the number of files written so far, and their total.

        Raises the same errors as `restore`.
        """
        with self._ready():
            self._check_not_held()
            target, transition = tree_of(tree), self.transition
            chosen = None if paths is None else tuple(paths)
            options = _restore_options(chosen, exclude, keep_unseen)
            store = self._store_for(target)
            return transition.run(
                store,
                target,
                held,
                options,
                only_if=only_if,
                decision=decision,
                progress=progress,
            )

    def _check_not_held(self) -> None:
        if self._held_tree is not None:
            raise WorkspaceError(
                f"{self.path} is held for its forks. Restore it after the hold() block."
            )

    def fork(
        self,
        path: str | os.PathLike[str],
        tree: Tree | ObjectRef | str | None = None,
        driver: Driver = "auto",
    ) -> Fork:
        """Create an isolated workspace with the content of this one or of a tree.

        Args:
            path: the directory of the fork; it is created.
            tree: its initial content; the current files if not given.
            driver: `overlay`, `reflink` or `copy`; `auto` picks the fastest driver that works on
                this system.

        Raises:
            InvalidInputError: the driver is unknown.
            UnsafeWorkspaceError: the path is a file or a non-empty directory, or it and this
                workspace contain each other.
            WorkspaceError: the driver does not work on this system, or the directory cannot be
                read.
            StorageError: the store failed.
        """
        with block_forks():
            from agent_checkpoint.workspace.fork.fork_directory import (  # slow to load
                checked_target,
                make_fork,
            )

        with self._lock:
            given = None if tree is None else self._resolve(tree)
            target = checked_target(self.path, path, driver)
            start = given or self._held_tree or self.snapshot()
            open_fork = partial(Fork, store=self.store, options=self.options)
            fork = make_fork(
                self.fork_origin, target, start, driver, open_fork, is_captured=given is None
            )
            self._forks.add(fork)  # keeps forks without another reference alive until closed
            fork.on_close = lambda: self._forks.discard(fork)
            return fork

    @contextmanager
    def hold(self, tree: Tree | None = None) -> Iterator[Tree]:
        """Declare that nothing writes to the directory in the block, so forks can share its files.

        Yields the tree of the directory. Forks created in the block use the directory as lower
        directory. At the end of the block their last state is saved and they are closed.

        Args:
            tree: the tree of the current files, if a checkpoint already has it.

        Raises the same errors as `snapshot`.
        """
        with self._lock:
            if self._held_tree is not None:
                raise WorkspaceError(f"{self.path} is already held by another hold() block.")
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

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep snapshots and restores by this object out of the block, which changes files.

        A snapshot then contains the change as a whole or not at all. Blocks of several threads run
        one after another.

        Raises the same errors as the constructor.
        """
        with self._ready():
            yield

    def _finish_restore(self) -> None:
        """Finish a restore that was interrupted in this or another process, if there is one."""
        with self._root.held(exclusive=False) as root:
            if not exists(STAGING, root):
                return
        with block_forks():
            from agent_checkpoint.workspace.restore.recovery import recover  # slow to load

        plan, notice = recover(self._root, self._scanner, self.given_store)
        if plan is not None:
            self.recovered = plan
        if notice is not None and notice not in self.notices:
            self.notices.append(notice)

    def _adopt(
        self, state: DirState | None, upper: OverlayUpper | None, copied: Copied | None = None
    ) -> None:
        """Cache the state of the directory that this one was forked from.

        Args:
            state: the state of the origin, if it is known.
            upper: reports the changes since the fork, if this is an overlay and not a copy.
            copied: the signatures of the copied files.
        """
        if state is not None:
            self._scanner.adopt(state, self.store.backend, upper, copied)

    def _scan(self, store: Store) -> DirState:
        """Scan the directory without a checkpoint. Raises the same errors as `snapshot`."""
        with self._lock, self._unchanging() as root:
            return self._scanner.scan(root, store.writer(), ahead=True)

    def _resolve(self, tree: Tree | ObjectRef | str) -> Tree:
        """Return the tree for an argument: a tree, a reference or a checkpoint id.

        Raises:
            InvalidInputError: the argument has another type, or the checkpoint has no files.
            NotFoundError: the checkpoint does not exist.
            IntegrityError: the snapshot is missing or damaged.
            StorageError: the medium failed.
        """
        if isinstance(tree, str):
            with block_forks():
                from agent_checkpoint.store.lookup import find, short_form

            base = None if short_form(tree) is None else self.key
            resolved = tree_in(self.store, find(self.store, tree, base=base))
            if resolved is None:
                raise InvalidInputError(
                    f"The checkpoint {short_repr(tree, 120)} contains no workspace."
                )
            return resolved
        if not isinstance(tree, (Tree, ObjectRef)):
            raise InvalidInputError(
                "Expected a tree returned by snapshot(), or the id of a checkpoint with a "
                f"workspace, not {type(tree).__name__}."
            )
        return tree_of(tree)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Lock the workspace for this thread, with no unfinished restore in it."""
        with self._lock:
            self._finish_restore()
            yield

    @contextmanager
    def _unchanging(self) -> Iterator[int]:
        """Yield the root under a shared lock, for a scan, with no unfinished restore in it."""
        with self._root.held(exclusive=False) as root:
            is_clean = not exists(STAGING, root)
            if is_clean:
                yield root
        if not is_clean:
            self._finish_restore()
            with self._root.held(exclusive=False) as root:
                yield root

    def _store_for(self, tree: Tree) -> Store:
        """Return the store for a safety checkpoint: the workspace's, else the tree's."""
        if self.given_store is None and isinstance(tree.source, Backend):
            return Store(tree.source)
        return self.store


class Fork(Workspace):
    """A workspace that started as a copy of another and is isolated from it."""

    def __init__(self, made: ForkDirectory, store: Store, options: dict[str, Any]) -> None:
        """Open a fork that `Workspace.fork` has created."""
        super().__init__(made.path, store, **options)
        self.driver = made.driver
        self.tree = made.tree
        """The initial tree of the fork."""
        self._made = made
        self._is_open = True
        self.on_close: Callable[[], object] = lambda: None
        """Called when the fork is removed."""
        self.end: Callable[[], object] = self.close
        """Called at the end of `hold`. An owner that saves more than files assigns its own."""
        self._adopt(made.state, made.upper, made.copied)

    def close(self, *, save: bool = True) -> None:
        """Save the final state, then remove the fork and its directories. May be called twice.

        Args:
            save: whether to save the final state; unsaved changes are lost.

        Raises:
            WorkspaceError: the state cannot be saved, or a directory cannot be removed.
            StorageError: the store failed; the fork is not removed.
        """
        with self._lock:
            if not self._is_open:
                return
            if save:
                self.snapshot()
            super().close()
            self._scanner.forget_index()
            self._made.remove()
            self._is_open = False
            self.on_close()


class WorkspaceFiles:
    """The files of a workspace, as a part of a checkpoint with other parts."""

    writer: Writer
    """The writer of the last capture; `confirm` confirms that the store has the files."""

    def __init__(self, workspace: Workspace, *, full: bool) -> None:
        self._workspace = workspace
        self._full = full

    def checkpoint_to(self, writer: Writer) -> str:
        """Capture the files. Raises the same errors as `Workspace.snapshot`."""
        self.writer = writer
        return self._workspace.checkpoint_to(writer, full=self._full)


def open_in_namespace(namespace: ForkNamespace, store: Store, options: dict[str, Any]) -> Workspace:
    """Open the workspace of a fork in its mount namespace, which this process has entered.

    Raises the same errors as `Workspace`.
    """
    workspace = Workspace(namespace.path, store, **{**options, "watch": False, "force": True})
    workspace._adopt(namespace.state, namespace.upper)
    return workspace


def _restore_options(
    paths: tuple[bytes, ...] | None, exclude: Iterable[str], keep_unseen: bool
) -> RestoreOptions:
    with block_forks():
        from agent_checkpoint.workspace.restore.journal import RestoreOptions  # slow to load

    return RestoreOptions(paths, tuple(exclude), keep_unseen)
