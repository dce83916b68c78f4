"""The transition of a directory from one tree to another. Owns the order of the steps.

safety   a safety checkpoint holds the directory
plan     compare the directory with the target
stage    write new contents to the staging directory, and the journal: all durable
decide   append the entry that decides the change, if the caller gives one
apply    change the entries one by one
finish   remove the journal, scan what was changed and compare it with the target

After a crash, `recovery` rolls a decided transition forward and discards an undecided one. Restores
of a workspace, `restore` of the command, rollbacks and adoptions of sessions and rewinds of coding
agents all take these steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from itertools import islice

from agent_checkpoint.errors import CheckpointError, Hint, RestoreIncompleteError, WorkspaceError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import CheckpointKind, Kind, short_repr
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.capture import Capture
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.restore.apply import CHANGED, PlanExecutor, RestoreProgress
from agent_checkpoint.workspace.restore.journal import Decision, Journal, RestoreOptions
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError, Planner
from agent_checkpoint.workspace.restore.staging import remove_staging
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.tree.compare import Side
from agent_checkpoint.workspace.tree.dir_state import DirState
from agent_checkpoint.workspace.tree.snapshot import Tree, objects_from
from agent_checkpoint.workspace.workspace_lock import RootLock

_MAX_SEARCHED = 1000
"""The number of checkpoints of a key that are searched for the last regular snapshot."""
_MAX_NAMED = 5


class SafetySnapshot(NamedTuple):
    """The state of a workspace before a restore, and the checkpoint that holds it."""

    tree: Tree
    checkpoint_id: str
    last_regular: Tree | None = None
    """The last snapshot that is not a safety checkpoint."""


class Transition:
    """Changes one workspace to other trees."""

    def __init__(
        self,
        root: RootLock,
        scanner: Scanner,
        capture: Callable[..., Capture],
        key_in: Callable[[Store], str],
        saved_in: tuple[str, ...],
    ) -> None:
        """Prepare transitions of a workspace.

        Args:
            root: the lock of its root directory.
            scanner: its scanner.
            capture: captures the workspace.
            key_in: returns the key of its safety checkpoints in a store.
            saved_in: additional keys with checkpoints of the workspace.
        """
        self._root = root
        self._scanner = scanner
        self._capture = capture
        self._key_in = key_in
        self._saved_in = saved_in

    def preview(self, store: Store, tree: Tree, options: RestoreOptions) -> Plan:
        """Return the plan of a restore, and change nothing. Raises the same errors as `run`."""
        with self._root.held(exclusive=False) as root:
            current = self._scanner.scan(root, store.writer(), full=True, ahead=True)
            return self._plan(store, current, tree, options, self.last_regular(store))

    def locked(self) -> AbstractContextManager[int]:
        """Lock the directory against scans and restores of other processes. May be nested."""
        return self._root.held(exclusive=True)

    def save(
        self, store: Store, kind: CheckpointKind = Kind.SAFETY, label: str | None = None
    ) -> SafetySnapshot:
        """Save a checkpoint of the directory. Raises WorkspaceError, StorageError."""
        last_regular = self.last_regular(store)
        capture = self._capture(full=True)
        saved = store.write(capture.draft(self._key_in(store), store, kind=kind, label=label))
        return SafetySnapshot(capture.tree, saved.id, last_regular)

    def run(
        self,
        store: Store,
        tree: Tree,
        safety: SafetySnapshot,
        options: RestoreOptions,
        *,
        only_if: Plan | None = None,
        decision: Decision | None = None,
        progress: RestoreProgress | None = None,
    ) -> Plan:
        """Change the directory to a tree; return the plan that was applied.

        Args:
            store: holds the trees.
            tree: the target.
            safety: the checkpoint of the directory; entries that changed since are left alone.
            options: which part of the tree.
            only_if: the expected plan.
            decision: the entry to append before the first change; without one the journal decides.
            progress: called with the numbers of files.

        Raises:
            PlanChangedError: the plan differs from `only_if`; no file was changed.
            IntegrityError: an object of the tree is missing or damaged; no file was changed.
            RestoreIncompleteError: some paths could not be restored.
            WorkspaceError: nothing was restored.
            StorageError: the store failed; no file was changed.
        """
        with self.locked() as root:
            current = self._scanner.dir_state
            if current is None or current.stored.id != safety.tree.id:
                current = self._scanner.scan(root, store.writer(), ahead=True)
            plan = self._plan(store, current, tree, options, safety.last_regular, safety.tree)
            if only_if is not None and plan.digest != only_if.digest:
                raise PlanChangedError
            plan.safety, plan.safety_id = safety.tree, safety.checkpoint_id
            if plan:
                self._execute(root, store, plan, options, safety, decision, progress)
            elif decision is not None:
                decision.append(plan)
            return plan

    def _plan(
        self,
        store: Store,
        current: DirState,
        tree: Tree,
        options: RestoreOptions,
        last_regular: Tree | None,
        safety: Tree | None = None,
    ) -> Plan:
        if safety is not None and safety.id == current.stored.id:
            safety = None
        now = Side(current, objects_from(store.backend))
        return Planner(now, tree, options, safety, last_regular or tree).plan()

    def _execute(
        self,
        root: int,
        store: Store,
        plan: Plan,
        options: RestoreOptions,
        safety: SafetySnapshot,
        decision: Decision | None,
        progress: RestoreProgress | None,
    ) -> None:
        seen = (safety.last_regular or plan.tree).ref if options.keep_unseen else None
        journal = Journal(
            root=os.fspath(self._root.path),
            tree=plan.tree.ref,
            safety=safety.tree.ref,
            safety_id=safety.checkpoint_id,
            paths=None if options.paths is None else tuple(map(os.fsdecode, options.paths)),
            exclude=options.exclude,
            seen=seen,
            store=store.backend.properties.url or repr(store.backend),
            decision=None if decision is None else decision.parents,
        )
        try:
            execute_plan(
                root, store, plan, journal, self._scanner, decision=decision, progress=progress
            )
        except BaseException:
            with suppress(OSError, CheckpointError):  # else crash recovery removes it
                if not journal.is_decided(store):
                    remove_staging(root)
            raise

    def last_regular(self, store: Store) -> Tree | None:
        """Return the tree of the newest checkpoint that is not a safety checkpoint.

        Raises IntegrityError, StorageError.
        """
        newest: tuple[int, Tree] | None = None
        for key in (self._key_in(store), *self._saved_in):
            for checkpoint in islice(store.newest_first(key), _MAX_SEARCHED):
                if (
                    checkpoint.kind != Kind.SAFETY
                    and (tree := tree_in(store, checkpoint)) is not None
                ):
                    if newest is None or checkpoint.ts_ns > newest[0]:
                        newest = checkpoint.ts_ns, tree
                    break
        return None if newest is None else newest[1]


def execute_plan(
    root: int,
    store: Store,
    plan: Plan,
    journal: Journal,
    scanner: Scanner,
    *,
    is_begun: bool = False,
    decision: Decision | None = None,
    progress: RestoreProgress | None = None,
) -> None:
    """Apply a plan, then scan the workspace and check the result.

    Args:
        root: the descriptor of the directory, which is locked.
        store: receives the new objects of the scan.
        plan: the steps; paths that were not changed or were kept are added to it.
        journal: the journal of the restore.
        scanner: the scanner.
        is_begun: whether the journal is on disk already: crash recovery.
        decision: the entry to append before the first change, if any.
        progress: called with the numbers of files.

    Raises:
        RestoreIncompleteError: some paths could not be restored.
        WorkspaceError: an error interrupted the restore.
        IntegrityError: a stored file content is missing or damaged; no file was changed.
    """
    executor = PlanExecutor(root, plan, is_begun=is_begun, progress=progress)
    try:
        executor.run(journal, lambda: decision and decision.append(plan))
    except OSError as error:
        where = f"{short_repr(error.filename)}: " if isinstance(error.filename, str) else ""
        raise WorkspaceError(
            f"The restore did not finish ({where}{error.strerror or error}). If any file was "
            "changed, the restore is completed when the workspace is opened next."
        ) from error
    plan.leave.update(executor.left)
    plan.kept.update(executor.entries.kept)
    plan.open += executor.entries.open
    scanned = scanner.scan(root, store.writer(), ahead=True, changed=executor.touched)
    result = Side(scanned, objects_from(store.backend))
    remaining = Planner(result, plan.tree, journal.options).plan()
    failed = dict(executor.failed)
    planned = {step.path for step in plan.steps}
    for step in remaining.steps:
        path = os.fsdecode(step.path)
        if path in plan.leave or step.path in plan.left:
            continue
        is_ours = step.before is None or step.keeps_content
        if path in failed or (step.path in planned and is_ours):
            failed.setdefault(path, "its state after the restore differs from the checkpoint")
        else:  # another process wrote to the file
            plan.leave[path] = CHANGED
    if failed:
        raise _incomplete(plan, failed)


def _incomplete(plan: Plan, failed: dict[str, str]) -> RestoreIncompleteError:
    named = list(failed.items())[:_MAX_NAMED]
    some = "; ".join(f"{short_repr(path)}: {why}" for path, why in named)
    more = f" and {len(failed) - len(named)} more" if len(failed) > len(named) else ""
    kept = "".join(
        f" A version of {short_repr(path)} is kept as {short_repr(where)}."
        for path, where in plan.kept.items()
    )
    left = " or left alone" if plan.leave else ""
    return RestoreIncompleteError(
        f"{len(failed)} of {len(plan.steps)} changes could not be made: {some}{more}. The others "
        f"were made{left}.{kept}",
        hint=Hint(
            f"To go back, restore the safety checkpoint {plan.safety_id}.",
            "restore",
            checkpoint=str(plan.safety_id),
        ),
    )
