"""Restores of one workspace, from the safety checkpoint to the last look. Owns that order.

Also finishes what was interrupted: the journal says what was to become of what, and the safety
checkpoint that it names is the evidence by which files may still be overwritten.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.registry import open_url
from agent_checkpoint.errors import (
    CheckpointError,
    RestoreIncompleteError,
    WorkspaceError,
)
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.maintenance.safety_checkpoints import SAFETY, prune_safety_checkpoints
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.capture import Taking
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.apply import CHANGED, Restore
from agent_checkpoint.workspace.restore.entry_swap import Exchanging, Known
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError, Planner
from agent_checkpoint.workspace.restore.staging import (
    STAGING,
    Journal,
    aside_of,
    has_staging,
    left_in_staging,
    read_journal,
    set_aside,
    slot_of,
)
from agent_checkpoint.workspace.scan.scanner import Sight
from agent_checkpoint.workspace.tree.compare import Side, differences
from agent_checkpoint.workspace.tree.dir_state import UNREADABLE, Folder
from agent_checkpoint.workspace.tree.snapshot import Tree, objects_from, read_record
from agent_checkpoint.workspace.tree_names import tree_in
from agent_checkpoint.workspace.workspace_lock import RootLock

_LOOKED_THROUGH = 1000
_SHORTAGES = frozenset(map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM)))
"""Why a file cannot be read with which nothing is wrong: another process, or later, it can be."""


class Wish(NamedTuple):
    """What of a tree is to be restored."""

    paths: tuple[bytes, ...] | None
    exclude: tuple[str, ...]
    keep_unseen: bool = False


class Held(NamedTuple):
    """What holds the present of a workspace before it is restored."""

    tree: Tree
    checkpoint_id: str
    seen: Tree | None = None
    """The last ordinary snapshot before it."""


class Restoring:
    """Makes a directory what it was."""

    def __init__(
        self,
        root: RootLock,
        sight: Sight,
        take: Callable[..., Taking],
        key_in: Callable[[Store], str],
        saved_in: tuple[str, ...],
    ) -> None:
        """Prepare for a workspace.

        Args:
            root: its directory.
            sight: looks at it.
            take: makes a taking of it.
            key_in: returns the key of its line in a store, which safety checkpoints go to.
            saved_in: further keys with checkpoints of it.
        """
        self._root = root
        self._sight = sight
        self._take = take
        self._key_in = key_in
        self._saved_in = saved_in
        self.notice: str | None = None
        """What has to be said of a directory that stood where restores are staged."""

    def preview(self, store: Store, tree: Tree, wish: Wish) -> Plan:
        """Return what a restore would do. Raises as `restore` does."""
        with self._root.held(exclusive=False) as root:
            present = self._sight.look(root, store.writer(), full=True, ahead=True)
            return self._plan(store, Side(present, objects_from(store.backend)), tree, wish)

    def restore(self, store: Store, tree: Tree, wish: Wish, only_if: Plan | None = None) -> Plan:
        """Make the directory what the tree says; return what was done.

        Args:
            store: of the tree and of the safety checkpoint.
            tree: what it says.
            wish: what of it.
            only_if: what has to be planned, by what the safety checkpoint holds.

        Raises:
            PlanChangedError: something else would be done; nothing was touched.
            IntegrityError: a part of the tree is missing or damaged; nothing was touched.
            RestoreIncompleteError: some paths could not be restored.
            WorkspaceError: nothing was restored.
            StorageError: the store failed; nothing was touched.
        """
        with self._root.held(exclusive=True) as root:
            key = self._key_in(store)
            seen = self._last_seen(store) or tree
            taking = self._take(full=True)
            saved = store.write(taking.draft(key, store, kind=SAFETY))
            present = Side(taking.folder, objects_from(store.backend))
            plan = self._plan(store, present, tree, wish, seen)
            if only_if is not None and plan.digest != only_if.digest:
                raise PlanChangedError
            self._go_through(root, store, plan, wish, Held(taking.tree, saved.id, seen))
            prune_safety_checkpoints(store, key)  # not before: the tree may be that of one
            return plan

    def restore_held(self, store: Store, tree: Tree, held: Held, wish: Wish) -> Plan:
        """Do as `restore` does, where the present is held by a checkpoint already.

        What has changed since that one is left alone. Raises as `restore` does.
        """
        with self._root.held(exclusive=True) as root:
            get = objects_from(store.backend)
            present = Side(self._sight.look(root, store.writer(), ahead=True), get)
            evidence = Side(held.tree.root.ref, get)
            planner = Planner(
                present,
                tree,
                evidence=evidence,
                seen=held.seen or tree,
                keep_unseen=wish.keep_unseen,
                paths=wish.paths,
                exclude=Rules.of(wish.exclude),
            )
            plan = planner.plan()
            self._go_through(root, store, plan, wish, held)
            return plan

    def _go_through(self, root: int, store: Store, plan: Plan, wish: Wish, held: Held) -> None:
        plan.safety, plan.safety_id = held.tree, held.checkpoint_id
        if not plan:
            return
        seen = held.seen if wish.keep_unseen else None
        journal = Journal(
            root=os.fspath(self._root.path),
            tree=plan.tree.ref,
            safety=held.tree.ref,
            safety_id=held.checkpoint_id,
            paths=None if wish.paths is None else tuple(map(os.fsdecode, wish.paths)),
            exclude=wish.exclude,
            seen=None if seen is None else seen.ref,
            store=store.backend.url or repr(store.backend),
        )
        self._carry_out(root, store, plan, journal, self._sight)

    def recover(self, store: Store | None) -> Plan | None:
        """Finish a restore that was interrupted, if there is one; return what was done.

        What changed since the interruption is left alone: nothing holds it. The rules are those
        of the restore, not of who finishes it.

        Raises:
            WorkspaceError: it needs a store that is not this one, or cannot be finished now.
            RestoreIncompleteError: some paths could not be restored.
        """
        with self._root.held(exclusive=False) as root:
            if not has_staging(root):
                return None
        with self._root.held(exclusive=True) as root:
            try:
                journal = read_journal(root, os.fspath(self._root.path))
                if journal is None:
                    if has_staging(root):  # another may have finished it by now
                        self.notice = set_aside(root, os.fspath(self._root.path))
                    return None
            except OSError as error:
                raise WorkspaceError(
                    f"{STAGING.decode()} cannot be removed ({error}): a restore was interrupted "
                    "before it touched anything. Remove that directory."
                ) from error
            store = self._store_of(journal, store)
            get = objects_from(store.backend)
            tree = read_record(journal.tree, store.backend)
            safety = read_record(journal.safety, store.backend)
            held, then = Side(safety.root.ref, get), Side(tree.root.ref, tree.get)
            rescued = _rescued(root, journal, held, then)
            sight = self._sight.with_rules(Rules.of(safety.ignore, gitignore=safety.gitignore))
            present = sight.look(root, store.writer(), full=True, ahead=True)
            _refuse_shortage(present)
            planner = Planner(
                Side(present, get),
                tree,
                evidence=held,
                seen=None if journal.seen is None else read_record(journal.seen, store.backend),
                keep_unseen=journal.seen is not None,
                paths=_paths(journal),
                exclude=Rules.of(journal.exclude),
            )
            plan = planner.plan()
            plan.safety, plan.safety_id = safety, journal.safety_id
            plan.kept, plan.open = rescued.kept, rescued.open
            self._carry_out(root, store, plan, journal, sight, is_begun=True)
            return plan

    def _plan(
        self, store: Store, present: Side, tree: Tree, wish: Wish, seen: Tree | None = None
    ) -> Plan:
        planner = Planner(
            present,
            tree,
            seen=seen or self._last_seen(store) or tree,
            keep_unseen=wish.keep_unseen,
            paths=wish.paths,
            exclude=Rules.of(wish.exclude),
        )
        return planner.plan()

    def _carry_out(
        self,
        root: int,
        store: Store,
        plan: Plan,
        journal: Journal,
        sight: Sight,
        *,
        is_begun: bool = False,
    ) -> None:
        work = Restore(root, plan, is_begun=is_begun)
        try:
            work.run(journal)
        except OSError as error:
            where = f"{short_repr(error.filename)}: " if isinstance(error.filename, str) else ""
            raise WorkspaceError(
                f"The restore was not finished ({where}{error.strerror or error}). If anything was "
                "changed, the next who opens the workspace goes on."
            ) from error
        plan.leave.update(work.left)
        plan.kept.update(work.entries.kept)
        plan.open += work.entries.open
        folder = sight.look(root, store.writer(), ahead=True, touched=work.touched)
        now = Side(folder, objects_from(store.backend))
        exclude = Rules.of(journal.exclude)
        rest = Planner(now, plan.tree, paths=_paths(journal), exclude=exclude).plan()
        failed = dict(work.failed)
        planned = {step.path for step in plan.steps}
        for step in rest.steps:
            path = os.fsdecode(step.path)
            if path in plan.leave or step.path in plan.left:
                continue
            is_ours = step.before is None or step.keeps_content
            if path in failed or (step.path in planned and is_ours):
                failed.setdefault(path, "it is not as it should be")
            else:  # somebody works here at the same time: no file system changes a content
                plan.leave[path] = CHANGED
        if failed:
            raise _incomplete(plan, failed)

    def _last_seen(self, store: Store) -> Tree | None:
        """Return the tree of the last ordinary checkpoint of the workspace."""
        last: tuple[int, Tree] | None = None
        for key in (self._key_in(store), *self._saved_in):
            for found in islice(store.newest_first(key), _LOOKED_THROUGH):
                if found.kind != SAFETY and (tree := tree_in(store, found)) is not None:
                    if last is None or found.ts_ns > last[0]:
                        last = found.ts_ns, tree
                    break
        return None if last is None else last[1]

    def _holds(self, backend: Backend) -> bool:
        """Tell whether a store is in the workspace."""
        path = getattr(backend, "path", None)
        if path is None:
            return False
        place = Path(os.path.realpath(path))
        return self._root.path in (place, *place.parents)

    def _store_of(self, journal: Journal, store: Store | None) -> Store:
        """Return the store that an interrupted restore was from. Raises WorkspaceError."""
        wanted = [name for name in (journal.tree, journal.safety, journal.seen) if name]
        if store is not None and not store.backend.missing_objects(wanted):
            return store
        trouble = "it is not the one that was given"
        try:
            found = Store(open_url(journal.store))
            if self._holds(found.backend):
                # Both may have come with the files, from somebody who wants others in their place.
                trouble = "it is in the workspace, and was not given"
            elif not found.backend.missing_objects(wanted):
                return found
        except CheckpointError as error:
            trouble = str(error)
        raise WorkspaceError(
            f"A restore was interrupted here, and can be finished only from {journal.store} "
            f"({trouble}). Open the workspace with that store, or remove the directory "
            ".agent-checkpoint-restore in it to leave the files as they are."
        )


def _rescued(root: int, journal: Journal, safety: Side, tree: Side) -> Exchanging:
    """Give back to the workspace what an interrupted restore had taken out and nothing else holds.

    Returns what knows of versions that are kept elsewhere.

    Raises:
        WorkspaceError: it cannot be returned; it stays where it is.
    """
    known = {
        slot_of(change.path): Known(change.path, change.before, change.after)
        for change in differences(safety, tree)
    }
    entries = Exchanging(root)
    try:
        with left_in_staging(root) as files:
            if files is not None:
                entries.rescue(files, known)
        entries.rescue_aside(aside_of(journal), known)
    except OSError as error:
        raise WorkspaceError(
            f"A restore was interrupted here, and cannot be finished now ({error}). The next who "
            "opens the workspace goes on."
        ) from error
    return entries


def _refuse_shortage(present: Folder) -> None:
    """See to it that nothing is taken for unreadable, and left alone for good, that is not.

    Raises:
        WorkspaceError: the process lacks what it takes to read a file.
    """
    for path, note in present.all_notes():
        if note.kind == UNREADABLE and note.text in _SHORTAGES:
            raise WorkspaceError(
                "A restore was interrupted here, and cannot be finished now: "
                f"{short_repr(os.fsdecode(path))} cannot be read ({note.text}). The next who "
                "opens the workspace goes on."
            )


def _paths(journal: Journal) -> Iterable[bytes] | None:
    return None if journal.paths is None else tuple(map(os.fsencode, journal.paths))


def _incomplete(plan: Plan, failed: dict[str, str]) -> RestoreIncompleteError:
    some = "; ".join(f"{short_repr(path)}: {why}" for path, why in list(failed.items())[:5])
    more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
    kept = "".join(
        f" A version of {short_repr(path)} is kept as {short_repr(where)}."
        for path, where in plan.kept.items()
    )
    left = " or left alone" if plan.leave else ""
    return RestoreIncompleteError(
        f"{len(failed)} of {len(plan.steps)} changes could not be made: {some}{more}. The others "
        f"were made{left}; to go back, restore the safety checkpoint {plan.safety_id}.{kept}"
    )
