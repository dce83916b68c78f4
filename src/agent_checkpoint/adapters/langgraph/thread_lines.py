"""Threads as keys: finds, reads, appends and deletes their checkpoints and records.

Owns the names of keys and parts, and what is known of each thread. Values stay encoded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from langgraph.checkpoint.base import writes_sort_key

from agent_checkpoint.adapters.langgraph.values import ListChannel, Written
from agent_checkpoint.errors import ConflictError, IntegrityError, NotFoundError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.manager.record_log import RecordLog
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

HEAD = ("checkpoint",)
ALL = ("checkpoint", "values")
"""Parts of a checkpoint."""
HISTORY = "/history"
"""Suffix of the record log with the delta history of a checkpoint whose ancestors were deleted."""
_PAGE = 100
_MOST_LINES = 64
_TRIES = 1000
_MOST_SEEN = 64
_MOST_DELETED = 1000
_FOLLOWED_WITHIN = 0.05
"""Seconds to wait for the checkpoint that follows writes, to commit both at once."""


class Part:
    """A part of a checkpoint that is a dict."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = state or {}

    def state_dict(self) -> dict[str, Any]:
        """Return the dict."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the dict."""
        self.state = state


class Values(NamedTuple):
    """The channels of the last checkpoint that was put, to reuse those that did not change."""

    checkpoint_id: str
    versions: Mapping[str, Any]
    encoded: Mapping[str, Any]


class _Head(NamedTuple):
    """The newest checkpoint of a key: its id in the store, and LangGraph's greatest id so far."""

    ref: str
    greatest: str


class Stored(NamedTuple):
    """A checkpoint that was read: LangGraph's id, the id in the store, and parts of it."""

    id: str
    ref: str
    head: dict[str, Any]
    values: dict[str, Any]


class Line:
    """What is known of one thread and namespace. A cache: everything is in the store."""

    def __init__(self, key: str, thread_id: str, namespace: str) -> None:
        self.key = key
        self.thread_id = thread_id
        self.namespace = namespace
        self.lock = threading.RLock()
        self.refs: dict[str, str] = {}
        """The ids in the store, by LangGraph's ids."""
        self.deleted: deque[str] = deque(maxlen=_MOST_DELETED)
        """LangGraph's ids of checkpoints that were there: a run may still continue one."""
        self.head: _Head | None = None
        self.lists: dict[str, ListChannel] = {}
        self.written: Written = {}
        self.values: Values | None = None
        self.appending = 0
        """How many threads append writes just now."""
        self.is_followed = False
        """Whether the last checkpoint was put while writes were being appended."""
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._note_lock = threading.Lock()

    def note_deleted(self, checkpoint_id: str) -> None:
        """Note that a checkpoint was deleted."""
        self.refs.pop(checkpoint_id, None)
        self.deleted.append(checkpoint_id)

    def begin_append(self) -> bool:
        """Note that writes are being appended; return whether a checkpoint followed the last."""
        with self._note_lock:
            self.appending += 1
            was_followed, self.is_followed = self.is_followed, False
        return was_followed

    def end_append(self) -> None:
        """Note that they were appended, or could not be."""
        with self._note_lock:
            self.appending -= 1

    def see_writes(self, checkpoint_id: str, count: int) -> None:
        """Note that the first records of a checkpoint's writes were appended or read here."""
        with self._note_lock:
            self._seen[checkpoint_id] = max(count, self._seen.pop(checkpoint_id, 0))
            while len(self._seen) > _MOST_SEEN:
                self._seen.popitem(last=False)

    def seen_writes(self, checkpoint_id: str) -> int | None:
        """Return how many records of a checkpoint's writes are known here; None if unknown."""
        return self._seen.get(checkpoint_id)

    def forget_writes(self) -> None:
        """Discard what is known of writes."""
        with self._note_lock:
            self._seen.clear()

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Return LangGraph's name of a checkpoint."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": checkpoint_id,
            }
        }


class ThreadLines:
    """The threads in one store, a line of checkpoints for each thread and namespace."""

    def __init__(self, manager: CheckpointManager, prefix: str) -> None:
        self.manager = manager
        self.prefix = prefix
        self._lines: OrderedDict[tuple[str, str], Line] = OrderedDict()
        self._lock = threading.Lock()

    def line_of(self, config: RunnableConfig) -> Line:
        """Return the line of a config."""
        conf = config["configurable"]
        return self.line(str(conf["thread_id"]), conf.get("checkpoint_ns") or "")

    def line(self, thread_id: str, namespace: str) -> Line:
        """Return the line of a thread and a namespace."""
        names = (thread_id, namespace)
        with self._lock:
            line = self._lines.pop(names, None)
            if line is None:
                key = self._key(thread_id) + (f"/{namespace}" if namespace else "")
                line = Line(key, thread_id, namespace)
            self._lines[names] = line
            while len(self._lines) > _MOST_LINES:
                self._lines.popitem(last=False)
        return line

    def forget(self, line: Line) -> None:
        """Discard what is known of a line."""
        with self._lock:
            self._lines.pop((line.thread_id, line.namespace), None)

    def lines_of(self, config: RunnableConfig | None) -> list[Line]:
        """Return the lines that a config selects, also those that have only writes."""
        if config is None:
            prefix = self.prefix
        else:
            conf = config["configurable"]
            if conf.get("checkpoint_ns") is not None:
                return [self.line_of(config)]
            prefix = self._key(str(conf["thread_id"]))
        keys = {key for key, _ in self.manager.list_records(prefix)}
        lines = []
        for key in sorted(keys.union(self.manager.list_keys(prefix))):
            thread, _, namespace = key[len(self.prefix) :].partition("/")
            if config is None or self.prefix + thread == prefix:
                lines.append(self.line(unquote(thread), namespace))
        return lines

    def log(self, line: Line, checkpoint_id: str) -> RecordLog:
        """Return the log with the writes of a checkpoint."""
        return self.manager.records(line.key, checkpoint_id)

    def refs(self, line: Line) -> dict[str, str]:
        """Return the ids in the store of all checkpoints of a line, by LangGraph's ids."""
        refs: dict[str, str] = {}
        for row in self._rows(line):
            for tag in row["tags"]:
                refs.setdefault(tag, row["id"])
        return refs

    def ref(self, line: Line, checkpoint_id: str) -> str | None:
        """Return the id in the store of a checkpoint, None if there is none."""
        known = line.refs.get(checkpoint_id)
        if known is None:
            for position, row in enumerate(self._rows(line)):
                if position % _PAGE == 0 and checkpoint_id in line.refs:
                    break
                for tag in row["tags"]:
                    line.refs.setdefault(tag, row["id"])
            known = line.refs.get(checkpoint_id)
        return known

    def load(
        self, line: Line, checkpoint_id: str | None, names: Sequence[str] = ALL
    ) -> Stored | None:
        """Return a checkpoint; without an id, the one with the greatest. None if there is none."""
        if checkpoint_id is None:
            found = self._load_newest(line, names)
            if found is None or "greatest" not in found.head:
                return found
            known = self.load(line, self._greatest(line, found), names)
            if known is None:  # another process deleted it
                known = self.load(line, max(self.refs(line), default=found.id), names)
            return known
        for _ in range(2):
            ref = self.ref(line, checkpoint_id)
            if ref is None:
                return None
            try:
                return self.read(line, checkpoint_id, ref, names)
            except NotFoundError:  # another process deleted it
                line.note_deleted(checkpoint_id)
        return None

    def read(self, line: Line, checkpoint_id: str, ref: str, names: Sequence[str]) -> Stored:
        """Read parts of a checkpoint. Raises NotFoundError, IntegrityError, StorageError."""
        targets = {name: Part() for name in names}
        self.manager.load(line.key, targets, ref)
        values = targets["values"].state if "values" in targets else {}
        return Stored(checkpoint_id, ref, targets["checkpoint"].state, values)

    def append(
        self,
        line: Line,
        checkpoint_id: str,
        parts: dict[str, Any],
        options: dict[str, Any],
        *,
        before_fork: Callable[[], None],
    ) -> str:
        """Save a checkpoint after the present head, whatever other processes save meanwhile.

        If its parent is not the latest checkpoint, `before_fork` is called first.
        """
        is_kept = False
        for _ in range(_TRIES):
            head = line.head or self._find_head(line)
            parent = parts["checkpoint"].state["parent"]
            if parent and not is_kept and (head is None or head.greatest != parent):
                before_fork()
                is_kept = True
            greatest = max(checkpoint_id, head.greatest if head else "")
            parts["checkpoint"].state.pop("greatest", None)
            if greatest != checkpoint_id:
                parts["checkpoint"].state["greatest"] = greatest
            expected = head.ref if head else ""
            try:
                saved = self.manager.save(line.key, parts, expected_head=expected, **options)
            except ConflictError:
                line.head = None
            else:
                line.head = _Head(saved, greatest)
                return saved
        raise ConflictError(
            f"The thread {short_repr(line.thread_id)} is written too often by other processes."
        )

    def append_writes(
        self, line: Line, checkpoint_id: str, record: dict[str, Any], *, is_result: bool
    ) -> None:
        """Append writes of a task durably.

        LangGraph puts the next checkpoint without waiting for the results of tasks, unless the
        graph has delta channels. If it did so last time, the writes wait a little, to be committed
        with the checkpoint.
        """
        wait = _FOLLOWED_WITHIN if line.begin_append() and is_result else 0
        try:
            seq = self.log(line, checkpoint_id).append(record, wait=wait)
        finally:
            line.end_append()
        line.see_writes(checkpoint_id, seq)

    def count_writes(self, line: Line, checkpoint_id: str) -> int:
        """Return the number of the last record of writes that a child of a checkpoint may include.

        Those of another process that this one has not read are not in the child.
        """
        known = line.seen_writes(checkpoint_id)
        return self.log(line, checkpoint_id).newest() if known is None else known

    def writes(
        self, line: Line, checkpoint_id: str, until: int | None = None
    ) -> list[tuple[str, str, Any]]:
        """Return the writes of a checkpoint, encoded, in the order in which LangGraph applies them.

        Args:
            line: the thread and namespace.
            checkpoint_id: the checkpoint.
            until: the number of the last record to take; by default all.
        """
        found: dict[tuple[str, int], tuple[str, str, Any]] = {}
        records = self.log(line, checkpoint_id).read()
        if until is None:
            line.see_writes(checkpoint_id, records[-1][0] if records else 0)
        for seq, record in records:
            if record is None or (until is not None and seq > until):
                continue
            for place, write in record["writes"].items():
                # A task may be repeated: its first result counts, but the last error or answer.
                item = (record["task"], int(place))
                if item[1] < 0 or item not in found:
                    found[item] = (record["path"], write["channel"], write["value"])
        ordered = sorted(found, key=lambda item: writes_sort_key(found[item][0], *item))
        return [(item[0], *found[item][1:]) for item in ordered]

    def delete(self, line: Line, refs: Mapping[str, str]) -> None:
        """Delete checkpoints and their records; the key, if none is left."""
        line.head, line.values = None, None
        line.forget_writes()
        left = set(self.refs(line)) - set(refs)
        # Children first: nobody may find one whose parent is gone without a history of its own.
        for checkpoint_id, ref in sorted(refs.items(), reverse=True) if left else ():
            line.note_deleted(checkpoint_id)
            try:
                self.manager.delete(line.key, ref)
            except NotFoundError:  # another process deleted it
                continue
            for name in (checkpoint_id, checkpoint_id + HISTORY):
                self.manager.records(line.key, name).clear()
        if not left:
            line.refs.clear()
            if refs:
                with suppress(NotFoundError):  # another process deleted it
                    self.manager.delete(line.key)
            for key, name in self.manager.list_records(line.key):
                if key == line.key:
                    self.manager.records(key, name).clear()

    def copy(self, source: Line, target: Line) -> None:
        """Copy all checkpoints and records of a line, whose objects both share.

        Raises:
            StorageError: the medium failed; a part may be copied.
        """
        for key, name in self.manager.list_records(source.key):
            if key != source.key:
                continue
            log = self.manager.records(target.key, name)
            for number, record in self.manager.records(key, name).read():
                log.append(record, number=number)  # checkpoints refer to records by number
        new_refs: dict[str, str] = {}
        store = self.manager.store
        for found in reversed(list(store.newest_first(source.key))):
            draft = found.draft()._replace(key=target.key, source=found)
            parents = tuple(new_refs[item] for item in found.parents if item in new_refs)
            new_refs[found.id] = store.write(draft, parents=parents).id

    def _key(self, thread_id: str) -> str:
        # A slash ends the thread: escaped inside of it.
        return self.prefix + thread_id.replace("%", "%25").replace("/", "%2F")

    def _rows(self, line: Line) -> Iterator[Any]:
        rows: Sequence[Any] = []
        last: str | None = None
        if self.manager.store.newest(line.key):  # a missing key is no error here
            while last is None or len(rows) == _PAGE:
                try:
                    rows = self.manager.history(line.key, _PAGE, before=last)
                except NotFoundError:  # deleted meanwhile
                    return
                yield from rows
                last = rows[-1]["id"] if rows else ""

    def _load_newest(self, line: Line, names: Sequence[str]) -> Stored | None:
        """Return the checkpoint that was saved last; None if there is none."""
        for _ in range(2):
            if not self.manager.store.newest(line.key):
                return None
            with suppress(NotFoundError):  # deleted meanwhile
                for row in self.manager.history(line.key, 1):
                    if not row["tags"]:
                        self.manager.load(line.key, {"checkpoint": Part()}, row["id"])
                        raise IntegrityError(f"{row['id']} is not a checkpoint of LangGraph.")
                    line.refs[row["tags"][0]] = row["id"]
                    return self.read(line, row["tags"][0], row["id"], names)
        return None

    def _greatest(self, line: Line, newest: Stored) -> str:
        """Return the greatest id of LangGraph in a line, given the checkpoint saved last."""
        known = newest.head.get("greatest")
        if known is None:
            return newest.id
        return str(known) if self.ref(line, known) else max(self.refs(line))

    def _find_head(self, line: Line) -> _Head | None:
        newest = self._load_newest(line, HEAD)
        return None if newest is None else _Head(newest.ref, self._greatest(line, newest))
