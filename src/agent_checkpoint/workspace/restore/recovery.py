"""Crash recovery: rolls the journal of an interrupted restore forward, or discards it.

Owns the choice of the store, and the return of files from staging to the workspace. Only entries
that the safety checkpoint of the journal holds may be overwritten.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from agent_checkpoint.backends.registry import open_url
from agent_checkpoint.errors import CheckpointError, WorkspaceError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.entry_swap import EntrySwap
from agent_checkpoint.workspace.restore.journal import Journal
from agent_checkpoint.workspace.restore.plan import Plan, Planner
from agent_checkpoint.workspace.restore.staging import (
    aside_name,
    has_staging,
    move_staging_aside,
    own_journal,
    remove_staging,
    slot_name,
    staged_files,
)
from agent_checkpoint.workspace.restore.transition import execute_plan
from agent_checkpoint.workspace.scan.scanner import Scanner
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.tree.compare import Side, differences
from agent_checkpoint.workspace.tree.dir_state import UNREADABLE, DirState
from agent_checkpoint.workspace.tree.snapshot import Tree, objects_from, read_record
from agent_checkpoint.workspace.workspace_lock import RootLock

_INTERRUPTED = "A restore of this workspace was interrupted and cannot be completed now"
_RETRY = "Opening the workspace again retries it."
_SHORTAGES = frozenset(map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM)))
"""Read errors caused by limits of the process, not by the file."""


class Recovery(NamedTuple):
    """The result of crash recovery."""

    plan: Plan | None = None
    """The restore that was completed, if one was interrupted."""
    notice: str | None = None
    """A message for the user, if an unknown directory had the name of the staging directory."""


def recover(root_lock: RootLock, scanner: Scanner, store: Store | None) -> Recovery:
    """Roll an interrupted restore forward, if there is one.

    Entries that changed after the interruption are not overwritten, because no checkpoint holds
    them. The ignore rules are those of the interrupted restore, not those of the scanner.

    Args:
        root_lock: the lock of the workspace's root directory.
        scanner: its scanner.
        store: the store of the workspace, if it has one.

    Raises:
        WorkspaceError: the restore needs another store, or cannot be completed now.
        RestoreIncompleteError: some paths could not be restored.
    """
    path = os.fspath(root_lock.path)
    with root_lock.held(exclusive=False) as root:
        if not has_staging(root):
            return Recovery()
    with root_lock.held(exclusive=True) as root:
        try:
            journal = own_journal(root, path)
            if journal is None:
                # Another process may have completed it since the check above.
                return Recovery(
                    notice=move_staging_aside(root, path) if has_staging(root) else None
                )
        except OSError as error:
            raise WorkspaceError(
                f"{STAGING.decode()} cannot be removed ({error}). A restore was interrupted before "
                "it changed any file. Remove this directory."
            ) from error
        store = _find_store(journal, store, root_lock.path)
        if not journal.is_decided(store):  # no entry was changed
            remove_staging(root)
            return Recovery()
        return Recovery(_roll_forward(root, journal, store, scanner))


def _roll_forward(root: int, journal: Journal, store: Store, scanner: Scanner) -> Plan:
    target = read_record(journal.tree, store.backend)
    safety = read_record(journal.safety, store.backend)
    rescued = _empty_staging(root, journal, safety, target)
    scanner = scanner.with_rules(Rules.of(safety.ignore, gitignore=safety.gitignore))
    current = scanner.scan(root, store.writer(), full=True, ahead=True)
    _refuse_shortage(current)
    last_regular = None if journal.seen is None else read_record(journal.seen, store.backend)
    now = Side(current, objects_from(store.backend))
    plan = Planner(now, target, journal.options, safety, last_regular).plan()
    plan.safety, plan.safety_id = safety, journal.safety_id
    plan.kept, plan.open = rescued.kept, rescued.open
    execute_plan(root, store, plan, journal, scanner, is_begun=True)
    return plan


def _find_store(journal: Journal, store: Store | None, root: Path) -> Store:
    """Return the store that holds the trees of an interrupted restore. Raises WorkspaceError."""
    needed = [name for name in (journal.tree, journal.safety, journal.seen) if name]
    if store is not None and not store.backend.missing_objects(needed):
        return store
    problem = "not the store that was given"
    try:
        named = Store(open_url(journal.store))
        path = named.backend.properties.path
        if path is not None and Path(os.path.realpath(path)).is_relative_to(root):
            # Journal and store may both be part of an untrusted project, to inject other contents.
            problem = "it is inside the workspace and was not given explicitly"
        elif not named.backend.missing_objects(needed):
            return named
    except CheckpointError as error:
        problem = str(error)
    raise WorkspaceError(
        "A restore of this workspace was interrupted. Completing it needs the store "
        f"{journal.store} ({problem}). Open the workspace with that store, or remove "
        f"{STAGING.decode()} from the workspace to keep the current files."
    )


def _empty_staging(root: int, journal: Journal, safety: Tree, target: Tree) -> EntrySwap:
    """Move files from staging back to the workspace, unless the store holds their content.

    Returns the EntrySwap, which records the versions kept under another name.

    Raises:
        WorkspaceError: a file cannot be moved back; it stays in staging.
    """
    before, after = (Side(tree.root.ref, tree.get) for tree in (safety, target))
    stored = {slot_name(change.path): change for change in differences(before, after)}
    entries = EntrySwap(root)
    try:
        with staged_files(root) as files:
            if files is not None:
                entries.rescue(files, stored)
        entries.rescue_aside(aside_name(journal), stored)
    except OSError as error:
        raise WorkspaceError(f"{_INTERRUPTED} ({error}). {_RETRY}") from error
    return entries


def _refuse_shortage(current: DirState) -> None:
    """Raise an error if files are unreadable only because the process lacks resources.

    Otherwise these files would never be restored.

    Raises:
        WorkspaceError: such a file exists.
    """
    for path, note in current.all_notes():
        if note.kind == UNREADABLE and note.text in _SHORTAGES:
            raise WorkspaceError(
                f"{_INTERRUPTED}: {short_repr(os.fsdecode(path))} cannot be read ({note.text}). "
                f"{_RETRY}"
            )
