"""Whose change it is, where several sessions work in one directory. Owns that rule.

A change is a step's own if it lies between the snapshots before and after its call, no call of
another session overlapped, no other session's tool arguments name the path, and the call can have
made it: a tool that writes files changes only those that its arguments name. Every other change is
ambiguous. A call whose beginning was not recorded may have begun at the checkpoint before it. Keys
are not verified: a forged one can only make a change ambiguous, which keeps it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint, Kind
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.steps.step import (
    RUN_PART,
    StepReader,
    hook_note,
    is_after_call,
    is_before_call,
    is_between_turns,
    noted_calls,
)
from agent_checkpoint.store.directory_claims import newest_readable
from agent_checkpoint.store.store import Store

_WORD = re.compile(r"[^\s'\"`=:,;()<>|&$\\]+")
_NS = 10**9
_LATEST = 1e11
_FILE_TOOLS = frozenset(
    {"Write", "Edit", "MultiEdit", "NotebookEdit", "write_file", "replace", "apply_patch"}
)
"""Tools of coding agents that change only the files that their arguments name."""


class CallSpan(NamedTuple):
    """The call of a step. Times are in nanoseconds since the epoch."""

    since: int
    """When it began, or the time of the checkpoint before if that was not recorded."""
    until: int
    files: frozenset[str] | None = None
    """The files that it names, if it can have changed no others."""


class OtherCall(NamedTuple):
    """A tool call of another session. Times are in nanoseconds since the epoch."""

    key: str
    words: str
    named: frozenset[str]
    """The words of its arguments that may be paths."""
    since: int
    """When it began at the earliest."""
    ended: float
    """When it ended at the latest; infinite if it may still run."""

    def overlaps(self, since: int, until: float) -> bool:
        """Return whether the call may have run in a time span."""
        return self.since <= until and since <= self.ended

    def names(self, path: str) -> bool:
        """Return whether the arguments name a path or a directory above it."""
        parts = path.split("/")
        above = {"/".join(parts[:end]) for end in range(1, len(parts) + 1)}
        end = f"/{path}"
        return not above.isdisjoint(self.named) or any(word.endswith(end) for word in self.named)


def path_words(*texts: str) -> frozenset[str]:
    """Return the words of texts that may be paths, relative to the directory or absolute."""
    words = [word.strip("/") for text in texts for word in _WORD.findall(text)]
    return frozenset(word[2:] if word.startswith("./") else word for word in words) - {""}


def why_not_own(path: str, call: CallSpan, others: Iterable[OtherCall]) -> str | None:
    """Return why a change may be another's; None if it is the call's own.

    Args:
        path: the changed path, relative to the directory.
        call: the call between whose snapshots it changed.
        others: the calls of other sessions that may have changed the path.
    """
    for other in others:
        if other.overlaps(call.since, call.until):
            return f"{other.key} ran at the same time: {other.words}"
        if other.names(path):
            return f"a call of {other.key} names it: {other.words}"
    if call.files is None or any(f"{name}/".startswith(f"{path}/") for name in call.files):
        return None
    return "the call that ran then names other files"


def call_span(store: Store, before: Checkpoint, after: Checkpoint) -> CallSpan:
    """Return the call between two neighbouring checkpoints of a line."""
    note = hook_note(store, after) if is_after_call(after) else None
    if note is None:
        return CallSpan(before.ts_ns, after.ts_ns)
    started = note.get("started")
    since = _nanoseconds(started, before.ts_ns)
    tools = {tool for tool, _, _ in noted_calls(note)}
    return CallSpan(since, after.ts_ns, _named(note) if tools <= _FILE_TOOLS else None)


def other_calls(
    store: Store,
    directories: Collection[str],
    keys: Collection[str],
    since: int,
    until: float = math.inf,
) -> list[OtherCall]:
    """Return the calls of other sessions in a directory that may overlap a time span.

    Args:
        store: the store.
        directories: the real path of the directory, and those from which it was moved.
        keys: the session whose changes are in question, and its forks.
        since: the beginning of the span, in nanoseconds since the epoch.
        until: its end.

    Raises:
        StorageError: the medium failed.
    """
    found: list[OtherCall] = []
    for other in store.list_keys():
        if other in keys:
            continue
        try:
            head = newest_readable(store, other)
            if head is None or head.ts_ns < since:
                continue
            place = directory_of(store, head)
            if any(_overlap(place, directory) for directory in directories):
                found += _calls(store, other, since)
        except UNUSABLE:
            continue  # `verify` reports it
    return [call for call in found if call.overlaps(since, until)]


def _overlap(one: str | None, other: str) -> bool:
    """Return whether directories are the same, or one contains the other."""
    return one is not None and (
        f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
    )


def former_directories(store: Store, checkpoints: Iterable[Checkpoint]) -> set[str]:
    """Return the directories of checkpoints when these were saved.

    Raises the same errors as `directory_of`.
    """
    return {path for item in checkpoints if (path := directory_of(store, item)) is not None}


def directory_of(store: Store, head: Checkpoint) -> str | None:
    """Return the directory that a key works in, unverified; None if it is not known.

    Raises:
        IntegrityError: the session record is damaged.
        StorageError: the medium failed.
    """
    if SESSION_PART in head.parts:
        record = read_session_record(store, head)
        found = None if record is None or record.key != head.key else record.workspace
        return None if found is None else os.path.realpath(found)
    note = hook_note(store, head)
    if note is not None:
        return str(note.get("root"))
    return None if head.claim is None else head.claim.path


def _calls(store: Store, key: str, since: int) -> Iterator[OtherCall]:
    """Iterate over the calls of a key that may have run since a time."""
    entries: list[Checkpoint] = []
    for checkpoint in store.newest_first(key):
        if checkpoint.kind != Kind.SAFETY:
            entries.append(checkpoint)
            if checkpoint.ts_ns < since:
                break
    reader = StepReader(store)
    opened: dict[str, OtherCall] = {}
    earlier: Checkpoint | None = None
    for checkpoint in reversed(entries):
        note = hook_note(store, checkpoint)
        start = checkpoint.ts_ns if earlier is None else earlier.ts_ns
        if is_before_call(checkpoint):
            for _, words, name in noted_calls(note):
                call = OtherCall(key, words, path_words(words), checkpoint.ts_ns, math.inf)
                opened[name or words] = call
        elif is_between_turns(checkpoint):  # the agent dropped calls that have no result
            for call in opened.values():
                yield call._replace(ended=checkpoint.ts_ns)
            opened.clear()
        elif note is not None and not is_after_call(checkpoint):
            pass  # the calls of a batch have checkpoints of their own
        elif earlier is not None or RUN_PART not in checkpoint.parts:
            step = reader.step(earlier, checkpoint, with_messages=False)
            named = _named(note)
            for one in step.calls:
                known = opened.pop(one.id or one.words, None)
                began = start if known is None else known.since
                ended = checkpoint.ts_ns
                if one.ts is not None:
                    began = _nanoseconds(one.ts, began)
                    if one.seconds is not None:
                        ended = min(ended, began + _nanoseconds(one.seconds, ended) + 1)
                text = json.dumps(one.arguments, ensure_ascii=False, default=str)
                found = path_words(one.words, text) | named
                yield OtherCall(key, one.words, found, began, ended)
        earlier = checkpoint
    yield from opened.values()


def _nanoseconds(seconds: Any, default: int) -> int:
    """Return a recorded time; the default if it is none: a record may be from elsewhere."""
    is_time = isinstance(seconds, (int, float)) and 0 <= seconds < _LATEST
    return int(seconds * _NS) if is_time else default


def _named(note: dict[str, Any] | None) -> frozenset[str]:
    """Return the files that hook metadata says the arguments name, relative to the directory."""
    found = (note or {}).get("named")
    return frozenset(map(str, found if isinstance(found, (list, tuple)) else ()))
