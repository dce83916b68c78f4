"""Reads and caches the histories of keys, without states, for the timeline.

A history is read once, and after that only its new entries. Pruning and the expiry of safety
checkpoints remove entries, so a cached history is read again after some time.
"""

from __future__ import annotations

import time
from threading import Lock

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.present.model_usage import model_words
from agent_checkpoint.records import ROLLBACK_KINDS, Entry, Kind, parse_checkpoint_id
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.page_text import prose, single_line
from agent_checkpoint.web.timeline.agent_steps import AgentStep, agent_step, directory_in

_MAX_BYTES = 512 << 20
"""Read limit of one history. In a file store each entry contains the whole state."""
_AT_ONCE = 16 << 20
_MAX_PAGE = 500
_MAX_CHECKPOINTS = 200_000
_STALE = 30.0
_MAX_HISTORIES = 64


class CheckpointSummary(NamedTuple):
    """A checkpoint without its state."""

    key: str
    seq: int
    ts_ns: int
    kind: str
    label: str
    parents: tuple[tuple[str, int], ...]
    tags: tuple[str, ...]
    id: str
    is_failure: bool
    source: str = ""
    """The id of the checkpoint from which it was forked; empty if it is not a fork."""
    usage: str = ""
    """Tokens, cost and time of its model calls."""
    step: AgentStep | None = None
    """What the hook of a coding agent noted; None if it is not of one."""
    directory: str = ""
    """The directory that it claims, unverified."""


class History(NamedTuple):
    """The newest checkpoints of a key, up to the read limit, in ascending order."""

    checkpoints: list[CheckpointSummary]
    is_whole: bool
    read_at: float


class Origin(NamedTuple):
    """The first checkpoint of a key, and the checkpoint it was forked from."""

    first: int
    ts_ns: int
    parent: tuple[str, int] | None
    id: str
    source: str
    """The id of the parent."""


class Histories:
    """The histories of one store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._histories: dict[str, History] = {}
        self._lock = Lock()

    def get(self, key: str) -> History:
        """Return a history, updated with new entries. Raises StorageError, FormatError."""
        with self._lock:
            cached = self._histories.get(key)
            if cached is None or time.monotonic() - cached.read_at > _STALE:
                return self._keep(key, self._read(key, 0))
            newest = cached.checkpoints[-1].seq if cached.checkpoints else 0
            if (
                cached.checkpoints
                and self.oldest(key) != cached.checkpoints[0].seq
                and cached.is_whole
            ):
                return self._keep(key, self._read(key, 0))  # the oldest entries were pruned
            if self._store.newest(key) == newest:
                return cached
            fresh = self._read(key, newest)
            moves = any(
                checkpoint.kind in ROLLBACK_KINDS or checkpoint.kind == Kind.SAFETY
                for checkpoint in fresh.checkpoints
            )
            if moves or (fresh.checkpoints and fresh.checkpoints[0].seq <= newest):
                return self._keep(key, self._read(key, 0))
            return self._keep(
                key, cached._replace(checkpoints=cached.checkpoints + fresh.checkpoints)
            )

    def oldest(self, key: str) -> int:
        """Return the sequence number of the oldest entry of a key; 0 if there is none."""
        entry = next(self._store.entries(key, page=1, oldest_first=True), None)
        return 0 if entry is None else entry.seq

    def _keep(self, key: str, history: History) -> History:
        if len(self._histories) >= _MAX_HISTORIES and key not in self._histories:
            self._histories.clear()
        self._histories[key] = history
        return history

    def _read(self, key: str, after: int) -> History:
        checkpoints: list[CheckpointSummary] = []
        left, page, before = _MAX_BYTES, 16, None
        while left > 0 and len(checkpoints) < _MAX_CHECKPOINTS:
            entries: list[Entry] = []
            for entry in self._store.entries(key, before=before, page=page):
                entries.append(entry)
                if len(entries) == page or entry.seq <= after + 1:
                    break
            checkpoints += [summarize(key, entry) for entry in entries if entry.seq > after]
            if len(entries) < page or entries[-1].seq <= after + 1:
                return History(checkpoints[::-1], True, time.monotonic())
            before, size = entries[-1].seq, sum(len(entry.data) for entry in entries)
            left -= size
            page = max(1, min(_MAX_PAGE, page * _AT_ONCE // max(size, 1)))
        return History(checkpoints[::-1], False, time.monotonic())


def summarize(key: str, entry: Entry) -> CheckpointSummary:
    """Return an entry without its state. The label of an unreadable entry is the error."""
    try:
        record = read_checkpoint(key, entry.seq, entry.data)
    except UNUSABLE as error:
        text = prose(error)
        return CheckpointSummary(
            key, entry.seq, 0, Kind.UNREADABLE, text, (), (), f"{key}@{entry.seq}", True
        )
    parents = [parse_checkpoint_id(parent) for parent in record.parents[:8]]
    label = prose(record.label or "", 160)
    step = agent_step(record.parts)
    tags = [tag for tag in record.tags if step is None or tag not in step.tags]
    return CheckpointSummary(
        key,
        record.seq,
        record.ts_ns,
        single_line(record.kind, 20),
        label,
        tuple((parent.key, parent.seq) for parent in parents if parent is not None),
        tuple(single_line(tag, 40) for tag in tags[:8]),
        record.id,
        _is_failure(record.kind, label),
        record.parents[0] if record.kind == Kind.FORK and record.parents else "",
        ", ".join(model_words(record.metrics)),
        step,
        directory_in(record.parts) or ("" if record.claim is None else record.claim.path),
    )


def _is_failure(kind: str, label: str) -> bool:
    """Whether a checkpoint records a failure, by the labels that sessions write."""
    if kind == Kind.CLOSE:
        return label.startswith("stopped by ") and label != "stopped by Suspended"
    return label.startswith("task ") and label.endswith(" failed")


def origin_of(checkpoint: CheckpointSummary) -> Origin:
    """Return the origin of a key from its first checkpoint."""
    parent = checkpoint.parents[0] if checkpoint.kind == Kind.FORK and checkpoint.parents else None
    if parent is not None and parent[0] == checkpoint.key:
        parent = None
    return Origin(checkpoint.seq, checkpoint.ts_ns, parent, checkpoint.id, checkpoint.source)


def forks_of(origins: dict[str, Origin], key: str, most: int) -> tuple[list[str], int]:
    """Return the direct and indirect forks of a key, newest first, and the number omitted."""
    below: dict[str, list[str]] = {}
    for name, origin in origins.items():
        if origin.parent is not None:
            below.setdefault(origin.parent[0], []).append(name)
    found: dict[str, None] = {}
    queue = [key]
    while queue:
        for name in below.get(queue.pop(), []):
            if name not in found and name != key:
                found[name] = None
                queue.append(name)
    newest = sorted(found, key=lambda name: origins[name].ts_ns, reverse=True)
    return newest[:most], max(0, len(newest) - most)
