"""Whose change it is, where several sessions work in one directory. Owns that rule.

A change is a step's own if it lies between the snapshots before and after its call, no call of
another session overlapped, and no other session's tool arguments name the path. Every other change
is ambiguous. A call whose beginning was not recorded may have begun at the checkpoint before it: it
counts only for the paths that its arguments name. Keys are not verified: a forged one can only make
a change ambiguous, which keeps it.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint, Kind
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.steps.step import RUN_PART, StepReader, hook_note, is_before_call
from agent_checkpoint.store.directory_claims import newest_readable
from agent_checkpoint.store.store import Store

_WORD = re.compile(r"[^\s'\"`=:,;()<>|&$\\]+")
_NS = 10**9


class OtherCall(NamedTuple):
    """A tool call of another session. Times are in nanoseconds since the epoch."""

    key: str
    words: str
    text: str
    """Its arguments, to search for paths."""
    since: int
    """When it began at the earliest."""
    began: int | None
    """When it began; None if that was not recorded."""
    ended: float
    """When it ended at the latest; infinite if it may still run."""

    def names(self, path: str) -> bool:
        """Return whether the arguments name a path, relative to the directory or absolute."""
        words = [word.strip("/") for word in _WORD.findall(f"{self.words} {self.text}")]
        words = [word[2:] if word.startswith("./") else word for word in words]
        return any(
            word and (word == path or word.endswith(f"/{path}") or path.startswith(f"{word}/"))
            for word in words
        )


def other_calls(store: Store, directory: str, key: str, since: int, until: int) -> list[OtherCall]:
    """Return the calls of other sessions in a directory that may overlap a time span.

    Args:
        store: the store.
        directory: the real path of the directory.
        key: the session whose changes are in question.
        since: the beginning of the span, in nanoseconds since the epoch.
        until: its end.

    Raises:
        StorageError: the medium failed.
    """
    found: list[OtherCall] = []
    for other in store.list_keys():
        if other == key:
            continue
        try:
            head = newest_readable(store, other)
            if head is not None and head.ts_ns >= since and directory_of(store, head) == directory:
                found += _calls(store, other, since, until)
        except UNUSABLE:
            continue  # `verify` reports it
    return [call for call in found if call.since < until and call.ended > since]


def ambiguous(paths: Iterable[str], others: Iterable[OtherCall]) -> dict[str, str]:
    """Return the paths whose changes may be another session's, with the reason.

    Args:
        paths: the paths that changed, relative to the directory.
        others: the result of `other_calls` for the span of the step.
    """
    calls = list(others)
    reasons: dict[str, str] = {}
    for path in paths:
        for call in calls:
            if call.began is not None or call.names(path):
                reasons[path] = f"{call.key} ran {call.words} at the same time"
                break
    return reasons


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


def _calls(store: Store, key: str, since: int, until: int) -> Iterator[OtherCall]:
    """Iterate over the calls of a key that may overlap a time span."""
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
        start = checkpoint.ts_ns if earlier is None else earlier.ts_ns
        if is_before_call(checkpoint):
            note = hook_note(store, checkpoint) or {}
            for _, words, *ids in note.get("calls") or ():
                call = OtherCall(key, str(words), "", checkpoint.ts_ns, checkpoint.ts_ns, math.inf)
                opened[str(ids[0] if ids else words)] = call
        elif earlier is not None or RUN_PART not in checkpoint.parts:
            step = reader.step(earlier, checkpoint, with_messages=False)
            for one in step.calls:
                began = None if one.ts is None else int(one.ts * _NS)
                known = opened.pop(one.id or one.words, None)
                if known is not None and began is None:
                    began = known.began
                if step.agent == "run":
                    began = start
                end = checkpoint.ts_ns
                if began is not None and one.ts is not None and one.seconds is not None:
                    end = min(end, began + int(one.seconds * _NS) + 1)
                named = (hook_note(store, checkpoint) or {}).get("named") or ()
                text = json.dumps([one.arguments, *named], ensure_ascii=False, default=str)
                yield OtherCall(key, one.words, text, began or start, began, end)
        earlier = checkpoint
    yield from opened.values()
