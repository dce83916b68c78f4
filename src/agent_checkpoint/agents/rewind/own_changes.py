"""Tells the changes of one session from those of others in the same directory. Owns the rules.

A change belongs to a call of the session if it lies between the snapshots before and after the
call, no call of another session overlapped, and no call of another session names the path. A path
with any other change since is not the session's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent_checkpoint.agents.agent_events import AFTER, FILE_TOOLS, moment_of
from agent_checkpoint.agents.session_note import SessionNote, read_note
from agent_checkpoint.agents.session_presence import presence_of
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.compare import Side, differences
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER

_OUTSIDE = "it changed outside of this session's calls"
_OVERLAPPED = "a call of another session ran at the same time"
_NAMED = "a call of another session names it"
_UNNAMED = "the call that ran then names other files"
_UNKNOWN = "the beginning of the call was not reported"


class OtherCall(NamedTuple):
    """A call of another session: when it ran, and the files that its arguments name."""

    start: float
    end: float
    named: frozenset[str]


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
    named = frozenset().union(*(call.named for call in calls))
    for (before, _), (after, note) in zip(line, line[1:]):
        trees = tree_in(store, before), tree_in(store, after)
        for path in changed_paths(*trees):
            why = _why_not_own(path, note, after.ts_ns / 1e9, calls)
            why = _NAMED if why is None and path in named else why
            if why is None:
                own.add(path)
            else:
                others.setdefault(path, why)
    return OwnChanges(frozenset(own - others.keys()), others)


def _why_not_own(path: str, note: SessionNote, end: float, calls: list[OtherCall]) -> str | None:
    if moment_of(note.event) != AFTER:
        return _OUTSIDE
    if note.started is None:
        return _UNKNOWN
    if any(call.start <= end and note.started <= call.end for call in calls):
        return _OVERLAPPED
    if all(call.tool in FILE_TOOLS for call in note.calls) and path not in note.named:
        return _UNNAMED
    return None


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


def calls_of_others(store: Store, keys: Iterable[str], since: Checkpoint) -> list[OtherCall]:
    """Return the calls of other sessions that ended after a checkpoint, or still run.

    A call whose beginning was not reported counts from the checkpoint before it.

    Raises StorageError.
    """
    found: list[OtherCall] = []
    for key in keys:
        later: tuple[float, SessionNote] | None = None
        for checkpoint in store.readable(key):
            try:
                note = read_note(store, checkpoint)
            except UNUSABLE:
                continue  # `verify` reports it
            if note is None:
                continue
            ts = checkpoint.ts_ns / 1e9
            if later is not None:
                found += _call(*later, ts)
            if checkpoint.ts_ns < since.ts_ns:
                later = None
                break
            later = ts, note
        if later is not None:
            found += _call(*later, 0.0)
        presence = presence_of(key)
        if presence is not None:
            found += [
                OtherCall(start, float("inf"), frozenset()) for start in presence.open.values()
            ]
    return found


def _call(end: float, note: SessionNote, before: float) -> list[OtherCall]:
    if moment_of(note.event) != AFTER:
        return []
    return [OtherCall(before if note.started is None else note.started, end, frozenset(note.named))]
