"""The normal course of a restore, from the safety checkpoint to the final scan.

Owns that order. `recovery` rolls a restore forward that was interrupted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from agent_checkpoint.errors import RestoreIncompleteError, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.maintenance.safety_checkpoints import SAFETY, prune_safety_checkpoints
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.capture import Capture
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.apply import CHANGED, PlanExecutor
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError, Planner
from agent_checkpoint.workspace.restore.staging import Journal
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.tree.compare import Side
from agent_checkpoint.workspace.tree.snapshot import Tree, objects_from
from agent_checkpoint.workspace.tree_names import tree_in
from agent_checkpoint.workspace.workspace_lock import RootLock

_MAX_SEARCHED = 1000
"""How many checkpoints of a key are searched for the last regular snapshot."""
_MAX_NAMED = 5


class RestoreOptions(NamedTuple):
    """Which part of a tree a restore applies to."""

    paths: tuple[bytes, ...] | None
    """The whole tree if None."""
    exclude: tuple[str, ...]
    keep_unseen: bool = False
    """Leave alone what no regular checkpoint holds."""


class SafetySnapshot(NamedTuple):
    """The state of a workspace before a restore, and the checkpoint that holds it."""

    tree: Tree
    checkpoint_id: str
    last_regular: Tree | None = None
    """The last regular snapshot before it."""


class RestoreOperation:
    """Restores one workspace from trees."""

    def __init__(
        self,
        root: RootLock,
        scanner: Scanner,
        capture: Callable[..., Capture],
        key_in: Callable[[Store], str],
        saved_in: tuple[str, ...],
    ) -> None:
        """Prepare restores of a workspace.

        Args:
            root: the lock of its root directory.
            scanner: its scanner.
            capture: captures it.
            key_in: returns its key in a store; safety checkpoints are saved under that key.
            saved_in: further keys with checkpoints of it.
        """
        self._root = root
        self._scanner = scanner
        self._capture = capture
        self._key_in = key_in
        self._saved_in = saved_in

    def preview(self, store: Store, tree: Tree, options: RestoreOptions) -> Plan:
        """Return the plan of a restore, and change nothing. Raises as `restore` does."""
        with self._root.held(exclusive=False) as root:
            current = self._scanner.scan(root, store.writer(), full=True, ahead=True)
            return self._plan(store, Side(current, objects_from(store.backend)), tree, options)

    def restore(
        self, store: Store, tree: Tree, options: RestoreOptions, only_if: Plan | None = None
    ) -> Plan:
        """Restore the directory from a tree; return the plan that was applied.

        Args:
            store: holds the tree, and gets the safety checkpoint.
            tree: the target.
            options: which part of it.
            only_if: the expected plan, computed against the safety checkpoint.

        Raises:
            PlanChangedError: the plan differs from `only_if`; no file was changed.
            IntegrityError: an object of the tree is missing or damaged; no file was changed.
            RestoreIncompleteError: some paths could not be restored.
            WorkspaceError: nothing was restored.
            StorageError: the store failed; no file was changed.
        """
        with self._root.held(exclusive=True) as root:
            key = self._key_in(store)
            last_regular = self._last_regular(store) or tree
            capture = self._capture(full=True)
            saved = store.write(capture.draft(key, store, kind=SAFETY))
            current = Side(capture.dir_state, objects_from(store.backend))
            plan = self._plan(store, current, tree, options, last_regular)
            if only_if is not None and plan.digest != only_if.digest:
                raise PlanChangedError
            safety = SafetySnapshot(capture.tree, saved.id, last_regular)
            self._execute(root, store, plan, options, safety)
            prune_safety_checkpoints(store, key)  # last: the target may be an old safety checkpoint
            return plan

    def restore_held(
        self, store: Store, tree: Tree, safety: SafetySnapshot, options: RestoreOptions
    ) -> Plan:
        """Restore as `restore` does, with a safety checkpoint that exists already.

        Entries that changed after that checkpoint are left alone. Raises as `restore` does.
        """
        with self._root.held(exclusive=True) as root:
            get = objects_from(store.backend)
            planner = Planner(
                Side(self._scanner.scan(root, store.writer(), ahead=True), get),
                tree,
                safety=Side(safety.tree.root.ref, get),
                last_regular=safety.last_regular or tree,
                keep_unseen=options.keep_unseen,
                paths=options.paths,
                exclude=Rules.of(options.exclude),
            )
            plan = planner.plan()
            self._execute(root, store, plan, options, safety)
            return plan

    def _plan(
        self,
        store: Store,
        current: Side,
        tree: Tree,
        options: RestoreOptions,
        last_regular: Tree | None = None,
    ) -> Plan:
        planner = Planner(
            current,
            tree,
            last_regular=last_regular or self._last_regular(store) or tree,
            keep_unseen=options.keep_unseen,
            paths=options.paths,
            exclude=Rules.of(options.exclude),
        )
        return planner.plan()

    def _execute(
        self, root: int, store: Store, plan: Plan, options: RestoreOptions, safety: SafetySnapshot
    ) -> None:
        plan.safety, plan.safety_id = safety.tree, safety.checkpoint_id
        if not plan:
            return
        last_regular = safety.last_regular if options.keep_unseen else None
        journal = Journal(
            root=os.fspath(self._root.path),
            tree=plan.tree.ref,
            safety=safety.tree.ref,
            safety_id=safety.checkpoint_id,
            paths=None if options.paths is None else tuple(map(os.fsdecode, options.paths)),
            exclude=options.exclude,
            seen=None if last_regular is None else last_regular.ref,
            store=store.backend.url or repr(store.backend),
        )
        execute_plan(root, store, plan, journal, self._scanner)

    def _last_regular(self, store: Store) -> Tree | None:
        """Return the tree of the newest checkpoint of the workspace that is no safety one."""
        newest: tuple[int, Tree] | None = None
        for key in (self._key_in(store), *self._saved_in):
            for checkpoint in islice(store.newest_first(key), _MAX_SEARCHED):
                if checkpoint.kind != SAFETY and (tree := tree_in(store, checkpoint)) is not None:
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
) -> None:
    """Apply a plan, then scan the workspace and check the result.

    Args:
        root: the directory, open and locked.
        store: where the scan writes new objects.
        plan: the steps; gets what was left alone or kept.
        journal: the journal of the restore.
        scanner: the scanner.
        is_begun: whether the journal is on disk already: crash recovery.

    Raises:
        RestoreIncompleteError: some paths could not be restored.
        WorkspaceError: it was interrupted by an error.
        IntegrityError: a content is missing or damaged; no file was changed.
    """
    executor = PlanExecutor(root, plan, is_begun=is_begun)
    try:
        executor.run(journal)
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
    exclude = Rules.of(journal.exclude)
    remaining = Planner(result, plan.tree, paths=journal.encoded_paths, exclude=exclude).plan()
    failed = dict(executor.failed)
    planned = {step.path for step in plan.steps}
    for step in remaining.steps:
        path = os.fsdecode(step.path)
        if path in plan.leave or step.path in plan.left:
            continue
        is_ours = step.before is None or step.keeps_content
        if path in failed or (step.path in planned and is_ours):
            failed.setdefault(path, "its state after the restore differs from the checkpoint")
        else:  # another process wrote to it: no file system alters a content by itself
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
        f"were made{left}; to go back, restore the safety checkpoint {plan.safety_id}.{kept}"
    )
