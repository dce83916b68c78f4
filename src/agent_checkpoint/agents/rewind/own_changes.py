"""Tells the changes of one session from those of others since a checkpoint.

A path with any change since that is not the session's own is not the session's own. Whose change it
is decides `session/steps/ownership.py`; a coding agent must also have reported the beginning of the
call.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from agent_checkpoint.agents.agent_events import AFTER, moment_of
from agent_checkpoint.agents.session_note import SessionNote
from agent_checkpoint.agents.session_presence import presence_of
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.steps.ownership import (
    OtherCall,
    call_span,
    other_calls,
    why_not_own,
)
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.compare import Side, differences
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER

_OUTSIDE = "it changed outside of this session's calls"
_UNKNOWN = "the beginning of the call was not reported"
_RUNNING = "a call that has not ended"
_NS = 10**9


class OwnChanges(NamedTuple):
    """The paths that changed since a checkpoint."""

    own: frozenset[str]
    """Those that only this session changed."""
    others: dict[str, str]
    """All others, and why each is not the session's own."""


def own_changes(
    store: Store,
    line: list[tuple[Checkpoint, SessionNote]],
    since: Iterable[str],
    calls: list[OtherCall],
) -> OwnChanges:
    """Return which paths only this session changed.

    Args:
        store: the store.
        line: the checkpoints of the session from the target on, oldest first.
        since: the paths that changed after the last of them.
        calls: the calls of other sessions since the target.

    Raises:
        IntegrityError: a checkpoint is damaged.
        StorageError: the medium failed.
    """
    own: set[str] = set()
    others: dict[str, str] = dict.fromkeys(since, _OUTSIDE)
    for (before, _), (after, note) in zip(line, line[1:]):
        call = call_span(store, before, after)
        trees = tree_in(store, before), tree_in(store, after)
        for path in changed_paths(*trees):
            if moment_of(note.event) != AFTER:
                why: str | None = _OUTSIDE
            elif note.started is None:
                why = _UNKNOWN
            else:
                why = why_not_own(path, call, calls)
            if why is None:
                own.add(path)
            else:
                others.setdefault(path, why)
    return OwnChanges(frozenset(own - others.keys()), others)


def changed_paths(before: Tree | None, after: Tree | None) -> Iterator[str]:
    """Iterate over the files and links that differ between two trees, without directories.

    Raises:
        IntegrityError: a tree is missing or damaged.
        StorageError: the medium failed.
    """
    if before is None or after is None:
        return
    old, new = (Side(tree.root.ref, tree.get) for tree in (before, after))
    for change in differences(old, new):
        if any(item is not None and item.type != FOLDER for item in (change.before, change.after)):
            yield change.path.decode("utf-8", "surrogateescape")


def calls_of_others(
    store: Store, directories: Collection[str], keys: Iterable[str], target: Checkpoint
) -> list[OtherCall]:
    """Return the calls of other sessions that ended after a checkpoint, or still run.

    Args:
        store: the store.
        directories: the real path of the directory, and those from which it was moved.
        keys: the keys of the directory.
        target: the checkpoint of the session whose changes are in question.

    Raises StorageError.
    """
    found = other_calls(store, directories, [target.key], target.ts_ns)
    for key in keys:
        presence = None if key == target.key else presence_of(key)
        for start in [] if presence is None else presence.open.values():
            found.append(OtherCall(key, _RUNNING, frozenset(), int(start * _NS), math.inf))
    return found
