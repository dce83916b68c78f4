"""CheckpointSaver: LangGraph's checkpoints in a store. Owns their keys, parts and records.

A thread and a namespace are a key; a checkpoint of LangGraph is a checkpoint with its id as tag;
the writes of a checkpoint are a record log with its id as name. Uses the public interface of the
manager only.
"""

from __future__ import annotations

import builtins
import copy
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent_checkpoint.adapters.langgraph.values import ListChannel, ValueCodec
from agent_checkpoint.errors import (
    ConflictError,
    IntegrityError,
    InvalidInputError,
    NotFoundError,
)
from agent_checkpoint.manager.async_verbs import in_thread
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from agent_checkpoint.store.maintenance.retention import Policy
    from agent_checkpoint.store.store_argument import StoreLike
    from agent_checkpoint.workspace.restore.plan import Plan

_PAGE = 100
_MOST_LINES = 64
_TRIES = 1000
_HEAD = ("checkpoint",)
_ALL = ("checkpoint", "values")
"""Parts of a checkpoint."""
_HISTORY = "/history"
"""Suffix of the record log with the delta history of a checkpoint whose ancestors were pruned."""
_THREAD = "langgraph"
"""The record log of a directory with the thread that its files belong to."""


class _Part:
    """A part of a checkpoint that is a dict."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        self.state = state or {}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class _Values(NamedTuple):
    """The channels of the last checkpoint that was put, to reuse those that did not change."""

    checkpoint_id: str
    versions: Mapping[str, Any]
    encoded: Mapping[str, Any]


class _Head(NamedTuple):
    """The newest checkpoint of a key: its id in the store, and LangGraph's greatest id so far."""

    ref: str
    greatest: str


class _Stored(NamedTuple):
    """A checkpoint that was read: LangGraph's id, the id in the store, and parts of it."""

    id: str
    ref: str
    head: dict[str, Any]
    values: dict[str, Any]


class _Line:
    """What is known of one thread and namespace. A cache: everything is in the store."""

    def __init__(self, key: str, thread_id: str, namespace: str) -> None:
        self.key = key
        self.thread_id = thread_id
        self.namespace = namespace
        self.lock = threading.RLock()
        self.refs: dict[str, str] = {}
        """The ids in the store, by LangGraph's ids."""
        self.head: _Head | None = None
        self.lists: dict[str, ListChannel] = {}
        self.values: _Values | None = None

    def config(self, checkpoint_id: str) -> RunnableConfig:
        """Return LangGraph's name of a checkpoint."""
        return {
            "configurable": {
                "thread_id": self.thread_id,
                "checkpoint_ns": self.namespace,
                "checkpoint_id": checkpoint_id,
            }
        }


class _Turns:
    """Makes the threads of this process write one after the other.

    LangGraph saves writes and checkpoints beside each other. In a local store they would poll the
    lock between processes, which takes longer than the write.
    """

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if self._pid != os.getpid():  # forked, perhaps while another thread had its turn
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class CheckpointSaver(BaseCheckpointSaver[int]):
    """Saves the checkpoints of LangGraph graphs; pass it to `compile(checkpointer=…)`.

    Every method may be called from any thread; those for asyncio run in a worker thread. Objects
    of classes that LangGraph does not regard as safe are restored as plain data, unless allowed.
    """

    def __init__(
        self,
        store: StoreLike | None = None,
        *,
        workspace: str | os.PathLike[str] | Workspace | None = None,
        allow: Collection[type | tuple[str, ...]] = (),
        serde: SerializerProtocol | None = None,
        prefix: str = "langgraph/",
    ) -> None:
        """Open a store; without arguments, one in memory.

        Args:
            store: a manager, a path (SQLite), a store URL or a Backend.
            workspace: a directory whose files each checkpoint contains. Its files belong to one
                thread.
            allow: classes whose objects may be created when a checkpoint is read, each as a class
                or as `(module, name)`.
            serde: LangGraph's serializer, instead of the default one, which `allow` is for.
            prefix: the beginning of the keys of all threads.

        Raises:
            InvalidInputError: the arguments select no store, or conflict.
        """
        if serde is not None and allow:
            raise InvalidInputError("allow= is for the default serializer: pass it to yours.")
        super().__init__(
            serde=serde or JsonPlusSerializer(allowed_msgpack_modules=tuple(allow) or None)
        )
        self._is_ours = not isinstance(store, CheckpointManager)
        self.manager = store if isinstance(store, CheckpointManager) else CheckpointManager(store)
        """The manager of the store."""
        self._owns_workspace = not isinstance(workspace, Workspace)
        if workspace is not None and not isinstance(workspace, Workspace):
            workspace = Workspace(workspace, store=self.manager.store)
        self.workspace = workspace
        """The directory whose files each checkpoint contains, if any."""
        self.prefix = prefix
        self._lines: OrderedDict[str, _Line] = OrderedDict()
        self._lock = threading.Lock()
        self._bound: set[str] = set()
        is_local = self.manager.store.backend.properties.is_local
        self._turn: AbstractContextManager[None] = _Turns() if is_local else nullcontext()

    def with_serde(self, serde: SerializerProtocol) -> CheckpointSaver:
        """Return a saver of the same store with another serializer. Close only one of them."""
        other = copy.copy(self)
        other.serde = serde
        other._lines = OrderedDict()  # serialized values of another serializer are not comparable
        return other

    def close(self) -> None:
        """Close the store and the workspace, unless they were passed as such."""
        if self.workspace is not None and self._owns_workspace:
            self.workspace.close()
        if self._is_ours:
            self.manager.close()

    def __enter__(self) -> CheckpointSaver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- reading ---------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint with its pending writes; without an id, the one with the greatest.

        Files are not touched.

        Raises:
            IntegrityError: the checkpoint is damaged.
            StorageError: the medium failed.
        """
        line = self._line_of(config)
        found = self._load(line, get_checkpoint_id(config))
        return None if found is None else self._tuple(line, found)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, greatest id first.

        Args:
            config: the thread; its namespace, or all; and perhaps the only id. None: all threads.
            filter: values that members of the metadata must be equal to.
            before: only checkpoints with a smaller id than this one.
            limit: how many to return at most.

        Raises:
            IntegrityError: a checkpoint is damaged.
            StorageError: the medium failed.
        """
        only = get_checkpoint_id(config) if config else None
        end = get_checkpoint_id(before) if before else None
        found = [
            (checkpoint_id, line)
            for line in self._lines_of(config)
            for checkpoint_id in self._refs(line)
            if only in (None, checkpoint_id) and (end is None or checkpoint_id < end)
        ]
        for checkpoint_id, line in sorted(found, key=lambda item: item[0], reverse=True):
            if limit is not None and limit <= 0:
                return
            stored = self._load(line, checkpoint_id, _HEAD if filter else _ALL)
            if stored is not None and filter:
                metadata = self._codec.decode(stored.head["metadata"])
                is_match = all(metadata.get(name) == value for name, value in filter.items())
                stored = self._load(line, checkpoint_id) if is_match else None
            if stored is not None:  # else it does not match, or was deleted meanwhile
                limit = None if limit is None else limit - 1
                yield self._tuple(line, stored)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes that make up the values of delta channels, along the ancestors.

        Of each ancestor it takes the writes that were present when its child was saved: writes of
        another branch that came later are not replayed.

        Raises:
            IntegrityError: an ancestor was deleted by other means than this class.
            StorageError: the medium failed.
        """
        line = self._line_of(config)
        found = self._load(line, get_checkpoint_id(config), _HEAD) if channels else None
        walked = {channel: _Walk() for channel in channels}
        if found is not None:
            self._walk(line, found, walked)
        return {channel: walk.history(self._codec) for channel, walk in walked.items()}

    # -- writing ---------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Save a checkpoint durably, and return its name.

        Only what changed is written: channels with an unchanged version are taken from the
        parent, and of a list only items that differ.

        Raises:
            ConflictError: the workspace belongs to another thread.
            StateError: a value cannot be captured.
            StorageError: the medium failed; the checkpoint is not confirmed.
        """
        line = self._line_of(config)
        parent = get_checkpoint_id(config)
        parts: dict[str, Any] = {}
        if self.workspace is not None:
            self._bind(self.workspace, line.thread_id)
            parts["workspace"] = self.workspace
        apart = ("channel_values", "id")
        body = {name: item for name, item in checkpoint.items() if name not in apart}
        described = get_checkpoint_metadata(config, metadata)
        state = {
            "checkpoint": self._codec.encode(body),
            "metadata": self._codec.encode(described),
            "parent": parent,
            # Those of another branch that come later belong to that branch.
            "parent_writes": self._log(line, parent).newest() if parent else 0,
            "channels": list(checkpoint["channel_values"]),
        }
        with line.lock:
            values = self._encode_values(line, checkpoint, parent, new_versions)
            parts.update(checkpoint=_Part(state), values=_Part(values))
            parent_ref = self._ref(line, parent) if parent else None
            if parent and parent_ref is None:
                state["no_parent"] = True
            options: dict[str, Any] = {
                "label": f"step {described.get('step')}, {described.get('source', 'stub')}",
                "tags": [checkpoint["id"]],
                "parents": [parent_ref] if parent_ref else [],
            }
            saved = self._append(line, checkpoint["id"], parts, options)
            line.refs[checkpoint["id"]] = saved
            line.values = _Values(checkpoint["id"], dict(checkpoint["channel_versions"]), values)
        return line.config(checkpoint["id"])

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Save writes of a task durably. The checkpoint need not exist yet.

        Raises:
            StorageError: the medium failed; the writes are not confirmed.
        """
        line = self._line_of(config)
        record: dict[str, Any] = {"task": task_id, "path": task_path, "writes": {}}
        for index, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, index)
            write = {"channel": channel, "value": self._codec.encode_write(value)}
            record["writes"][str(index)] = write
        with self._turn:
            self._log(line, config["configurable"]["checkpoint_id"]).append(record)

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread, and release its workspace.

        Raises:
            StorageError: the medium failed; call it again.
        """
        thread_id = str(thread_id)
        for line in self._lines_of({"configurable": {"thread_id": thread_id}}):
            with line.lock:
                self._delete(line, self._refs(line))
            self._forget(line)
        if self.workspace is not None and self._owner(self.workspace) == thread_id:
            self.manager.records(self.workspace.key, _THREAD).append(None)
            self._bound.discard(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, with their writes. Others keep the delta state they need.

        Raises:
            StorageError: the medium failed; call it again.
        """
        runs = set(run_ids)

        def is_doomed(line: _Line, checkpoint_id: str) -> bool:
            found = self._load(line, checkpoint_id, _HEAD)
            if found is None:
                return False
            return self._codec.decode(found.head["metadata"]).get("run_id") in runs

        for line in self._lines_of(None) if runs else ():
            self._drop(line, [item for item in self._refs(line) if is_doomed(line, item)])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a new one. Objects are shared.

        Raises:
            ConflictError: the target has checkpoints.
            StorageError: the medium failed; delete the target, and copy again.
        """
        source: RunnableConfig = {"configurable": {"thread_id": source_thread_id}}
        target: RunnableConfig = {"configurable": {"thread_id": target_thread_id}}
        if any(self._refs(line) for line in self._lines_of(target)):
            raise ConflictError(
                f"The thread {short_repr(target_thread_id)} has checkpoints. Copy to a new thread."
            )
        for line in self._lines_of(source):
            self._copy_line(line, self._line(str(target_thread_id), line.namespace))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete all but the latest checkpoint of each namespace; with `delete`, all checkpoints.

        The delta state that the latest one needs is kept.

        Raises:
            InvalidInputError: the strategy is unknown.
            StorageError: the medium failed; call it again.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInputError(
                f'strategy must be "keep_latest" or "delete", not {short_repr(strategy)}.'
            )
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
                continue
            for line in self._lines_of({"configurable": {"thread_id": thread_id}}):
                self._drop(line, sorted(self._refs(line))[:-1])

    def retain(
        self, policy: Policy, thread_ids: Iterable[str] | None = None, *, dry_run: bool = False
    ) -> builtins.list[str]:
        """Delete the checkpoints that a retention policy does not keep; return their ids.

        The newest checkpoint of each namespace and the delta state that others need are kept.

        Args:
            policy: such as `KeepLatest(20)` or `KeepNewerThan(timedelta(days=30))`.
            thread_ids: the threads; by default all.
            dry_run: delete nothing, only report.

        Raises:
            InvalidInputError: `policy` is not a policy.
            StorageError: the medium failed; call it again.
        """
        configs: builtins.list[RunnableConfig | None] = [None]
        if thread_ids is not None:
            configs = [{"configurable": {"thread_id": item}} for item in thread_ids]
        deleted: builtins.list[str] = []
        for line in [line for config in configs for line in self._lines_of(config)]:
            refs = self._refs(line)
            if not refs:
                continue
            gone = set(self.manager.prune(line.key, policy, dry_run=True))
            doomed = [item for item, ref in refs.items() if ref in gone and item != max(refs)]
            if not dry_run:
                self._drop(line, doomed)
            deleted += doomed
        return deleted

    # -- files -----------------------------------------------------------------------------------

    def restore_files(
        self,
        config: RunnableConfig,
        *,
        paths: Iterable[str | os.PathLike[str]] | None = None,
        exclude: Iterable[str] = (),
        keep_unseen: bool = False,
        dry_run: bool = False,
        only_if: Plan | None = None,
    ) -> Plan:
        """Restore the workspace from a checkpoint; without an id, from the latest of the thread.

        The current files are saved first: `saver.workspace.restore(plan.safety)` undoes the
        restore. The arguments are those of `Workspace.restore`; `dry_run` is a preview.

        Raises:
            InvalidInputError: the saver has no workspace.
            NotFoundError: there is no such checkpoint.
            ConflictError: the plan differs from `only_if`, or the workspace belongs to another
                thread.
            WorkspaceError: the files cannot be restored.
        """
        if self.workspace is None:
            raise InvalidInputError("The saver has no workspace: pass workspace=.")
        line = self._line_of(config)
        self._bind(self.workspace, line.thread_id, dry_run=dry_run)
        found = self._load(line, get_checkpoint_id(config), _HEAD)
        if found is None:
            raise NotFoundError(f"There is no checkpoint {short_repr(config['configurable'])}.")
        return self.workspace.restore(
            found.ref,
            paths=paths,
            exclude=exclude,
            keep_unseen=keep_unseen,
            dry_run=dry_run,
            only_if=only_if,
        )

    def with_files(self, config: RunnableConfig) -> RunnableConfig:
        """Restore the files of a checkpoint, and return the config, to start a run from there.

        Raises the same errors as `restore_files`.
        """
        self.restore_files(config)
        return config

    def get_next_version(self, current: Any, channel: None) -> Any:
        """Return the version after another: a number, or a text as the official savers have it.

        Versions need not be unique over branches: values are shared by their content.
        """
        if isinstance(current, str):  # of a thread that was imported
            return f"{int(current.partition('.')[0]) + 1:032}.{0:016}"
        return super().get_next_version(current, channel)

    # -- asyncio ---------------------------------------------------------------------------------

    aget_tuple = in_thread(get_tuple)
    aput = in_thread(put)
    aput_writes = in_thread(put_writes)
    adelete_thread = in_thread(delete_thread)
    adelete_for_runs = in_thread(delete_for_runs)
    acopy_thread = in_thread(copy_thread)
    aprune = in_thread(prune)
    aretain = in_thread(retain)
    aget_delta_channel_history = in_thread(get_delta_channel_history)
    arestore_files = in_thread(restore_files)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints as `list` does, reading each in a worker thread."""
        from asyncio import to_thread

        found = self.list(config, filter=filter, before=before, limit=limit)
        while (item := await to_thread(next, found, None)) is not None:
            yield item

    # -- internals -------------------------------------------------------------------------------

    @property
    def _codec(self) -> ValueCodec:
        return ValueCodec(self.serde)  # LangGraph replaces `serde` in copies of a saver

    def _line_of(self, config: RunnableConfig) -> _Line:
        conf = config["configurable"]
        return self._line(str(conf["thread_id"]), conf.get("checkpoint_ns") or "")

    def _line(self, thread_id: str, namespace: str) -> _Line:
        key = self._key(thread_id) + (f"/{namespace}" if namespace else "")
        with self._lock:
            line = self._lines.pop(key, None) or _Line(key, thread_id, namespace)
            self._lines[key] = line
            while len(self._lines) > _MOST_LINES:
                self._lines.popitem(last=False)
        return line

    def _forget(self, line: _Line) -> None:
        with self._lock:
            self._lines.pop(line.key, None)

    def _key(self, thread_id: str) -> str:
        # A slash ends the thread: escaped inside of it.
        return self.prefix + quote(thread_id, safe=" !\"#$&'()*+,:;<=>?@[]^`{|}~")

    def _lines_of(self, config: RunnableConfig | None) -> builtins.list[_Line]:
        """Return the lines that a config selects, also those that have only writes."""
        if config is None:
            prefix = self.prefix
        else:
            conf = config["configurable"]
            if conf.get("checkpoint_ns") is not None:
                return [self._line_of(config)]
            prefix = self._key(str(conf["thread_id"]))
        keys = {key for key, _ in self.manager.list_records(prefix)}
        lines = []
        for key in sorted(keys.union(self.manager.list_keys(prefix))):
            thread, _, namespace = key[len(self.prefix) :].partition("/")
            if config is None or self.prefix + thread == prefix:
                lines.append(self._line(unquote(thread), namespace))
        return lines

    def _log(self, line: _Line, checkpoint_id: str) -> Any:
        """Return the log with the writes of a checkpoint."""
        return self.manager.records(line.key, checkpoint_id)

    def _refs(self, line: _Line) -> dict[str, str]:
        """Return the ids in the store of all checkpoints of a line, by LangGraph's ids."""
        refs: dict[str, str] = {}
        for row in self._rows(line):
            for tag in row["tags"]:
                refs.setdefault(tag, row["id"])
        return refs

    def _rows(self, line: _Line) -> Iterator[Any]:
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

    def _ref(self, line: _Line, checkpoint_id: str) -> str | None:
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

    def _load(
        self, line: _Line, checkpoint_id: str | None, names: Sequence[str] = _ALL
    ) -> _Stored | None:
        """Return a checkpoint; without an id, the one with the greatest. None if there is none."""
        if checkpoint_id is None:
            found = self._load_newest(line, names)
            if found is None or "greatest" not in found.head:
                return found
            checkpoint_id = self._greatest(line, found)
        for _ in range(2):
            ref = self._ref(line, checkpoint_id)
            if ref is None:
                return None
            try:
                return self._read(line, checkpoint_id, ref, names)
            except NotFoundError:  # another process deleted it
                line.refs.pop(checkpoint_id, None)
        return None

    def _read(self, line: _Line, checkpoint_id: str, ref: str, names: Sequence[str]) -> _Stored:
        targets = {name: _Part() for name in names}
        self.manager.load(line.key, targets, ref)
        values = targets["values"].state if "values" in targets else {}
        return _Stored(checkpoint_id, ref, targets["checkpoint"].state, values)

    def _load_newest(self, line: _Line, names: Sequence[str]) -> _Stored | None:
        """Return the checkpoint that was saved last; None if there is none."""
        for _ in range(2):
            if not self.manager.store.newest(line.key):
                return None
            with suppress(NotFoundError):  # deleted meanwhile
                for row in self.manager.history(line.key, 1):
                    if not row["tags"]:
                        self.manager.load(line.key, {"checkpoint": _Part()}, row["id"])
                        raise IntegrityError(f"{row['id']} is not a checkpoint of LangGraph.")
                    line.refs[row["tags"][0]] = row["id"]
                    return self._read(line, row["tags"][0], row["id"], names)
        return None

    def _greatest(self, line: _Line, newest: _Stored) -> str:
        """Return the greatest id of LangGraph in a line, given the checkpoint saved last."""
        known = newest.head.get("greatest")
        if known is None:
            return newest.id
        return str(known) if self._ref(line, known) else max(self._refs(line))

    def _tuple(self, line: _Line, found: _Stored) -> CheckpointTuple:
        codec, parent = self._codec, found.head["parent"]
        body = codec.decode(found.head["checkpoint"])
        body["id"] = found.id
        body["channel_values"] = {
            name: codec.decode_channel(value) for name, value in found.values.items()
        }
        return CheckpointTuple(
            config=line.config(found.id),
            checkpoint=body,
            metadata=codec.decode(found.head["metadata"]),
            parent_config=line.config(parent) if parent else None,
            pending_writes=[
                (task_id, channel, codec.decode(tree))
                for task_id, channel, tree in self._writes(line, found.id)
            ],
        )

    def _encode_values(
        self,
        line: _Line,
        checkpoint: Checkpoint,
        parent: str | None,
        new_versions: ChannelVersions,
    ) -> dict[str, Any]:
        known, codec = line.values, self._codec
        is_child = known is not None and known.checkpoint_id == parent
        encoded: dict[str, Any] = {}
        for name, value in checkpoint["channel_values"].items():
            version = checkpoint["channel_versions"].get(name)
            if (
                known is not None
                and is_child
                and name not in new_versions
                and name in known.encoded
                and version is not None
                and known.versions.get(name) == version
            ):
                encoded[name] = known.encoded[name]
            elif type(value) is list:
                encoded[name] = line.lists.setdefault(name, ListChannel(codec)).update(value)
            else:
                encoded[name] = {"value": codec.encode(value)}
        return encoded

    def _append(
        self, line: _Line, checkpoint_id: str, parts: dict[str, Any], options: dict[str, Any]
    ) -> str:
        """Save a checkpoint after the present head, whatever other processes save meanwhile."""
        for _ in range(_TRIES):
            head = line.head or self._find_head(line)
            greatest = max(checkpoint_id, head.greatest if head else "")
            parts["checkpoint"].state.pop("greatest", None)
            if greatest != checkpoint_id:
                parts["checkpoint"].state["greatest"] = greatest
            expected = head.ref if head else ""
            try:
                with self._turn:
                    saved = self.manager.save(line.key, parts, expected_head=expected, **options)
            except ConflictError:
                line.head = None
            else:
                line.head = _Head(saved, greatest)
                return saved
        raise ConflictError(
            f"The thread {short_repr(line.thread_id)} is written too often by other processes."
        )

    def _find_head(self, line: _Line) -> _Head | None:
        newest = self._load_newest(line, _HEAD)
        return None if newest is None else _Head(newest.ref, self._greatest(line, newest))

    def _writes(
        self, line: _Line, checkpoint_id: str, until: int | None = None
    ) -> builtins.list[tuple[str, str, Any]]:
        """Return the writes of a checkpoint, encoded, in the order in which LangGraph applies them.

        Args:
            line: the thread and namespace.
            checkpoint_id: the checkpoint.
            until: the number of the last record to take; by default all.
        """
        found: dict[tuple[str, int], tuple[str, str, Any]] = {}
        for seq, record in self._log(line, checkpoint_id).read():
            if record is None or (until is not None and seq > until):
                continue
            for place, write in record["writes"].items():
                # A task may be repeated: its first result counts, but the last error or answer.
                item = (record["task"], int(place))
                if item[1] < 0 or item not in found:
                    found[item] = (record["path"], write["channel"], write["value"])
        ordered = sorted(found, key=lambda item: writes_sort_key(found[item][0], *item))
        return [(item[0], *found[item][1:]) for item in ordered]

    def _walk(self, line: _Line, child: _Stored, walked: Mapping[str, _Walk]) -> None:
        """Collect the writes and seeds of channels along the ancestors of a checkpoint."""
        remaining = dict(walked)
        while remaining and child.head["parent"]:
            parent = self._load(line, child.head["parent"], _HEAD)
            if parent is None:
                self._take_attached(line, child, remaining)
                return
            for write in reversed(self._writes(line, parent.id, child.head["parent_writes"])):
                if write[1] in remaining:
                    remaining[write[1]].writes.append(write)
            seeded = [name for name in remaining if name in parent.head["channels"]]
            if seeded:
                values = self._read(line, parent.id, parent.ref, _ALL).values
                for name in seeded:
                    remaining.pop(name).seed = values[name]
            child = parent

    def _take_attached(self, line: _Line, child: _Stored, remaining: Mapping[str, _Walk]) -> None:
        """Continue with the history that was attached when the ancestors were deleted."""
        records = self._log(line, child.id + _HISTORY).read()
        if not records and "no_parent" not in child.head:
            raise IntegrityError(
                f"The checkpoint {child.head['parent']} of the thread "
                f"{short_repr(line.thread_id)} was deleted, and {child.id} needs its writes. "
                "Delete checkpoints with retain(), prune() or delete_for_runs() of the saver."
            )
        attached = records[-1][1] if records else {}
        for name, walk in remaining.items():
            writes, *seed = attached.get(name, ([],))
            walk.writes += [tuple(write) for write in reversed(writes)]
            if seed:
                (walk.seed,) = seed

    def _drop(self, line: _Line, doomed: Collection[str]) -> None:
        """Delete checkpoints; their children that stay keep the delta history that they need."""
        gone = set(doomed)
        refs = self._refs(line)
        for checkpoint_id in refs.keys() - gone if gone else ():
            found = self._load(line, checkpoint_id, _HEAD)
            if found is None or found.head["parent"] not in gone:
                continue
            walked = {name: _Walk() for name in self._delta_channels(found.head)}
            self._walk(line, found, walked)
            history = {name: walk.record() for name, walk in walked.items()}
            self._log(line, checkpoint_id + _HISTORY).append(history)
        with line.lock:
            self._delete(line, {item: refs[item] for item in gone if item in refs})

    def _delta_channels(self, head: Mapping[str, Any]) -> set[str]:
        """Return the channels of a checkpoint whose values are in the writes of its ancestors."""
        metadata = self._codec.decode(head["metadata"])
        versions = self._codec.decode(head["checkpoint"])["channel_versions"]
        counters = metadata.get("counters_since_delta_snapshot") or {}
        return (set(counters) & set(versions)) - set(head["channels"])

    def _delete(self, line: _Line, refs: Mapping[str, str]) -> None:
        """Delete checkpoints and their records; the key, if none is left."""
        line.head, line.values = None, None
        left = set(self._refs(line)) - set(refs)
        for checkpoint_id, ref in refs.items() if left else ():
            line.refs.pop(checkpoint_id, None)
            try:
                self.manager.delete(line.key, ref)
            except NotFoundError:  # another process deleted it
                continue
            for name in (checkpoint_id, checkpoint_id + _HISTORY):
                self.manager.records(line.key, name).clear()
        if not left:
            line.refs.clear()
            if refs:
                with suppress(NotFoundError):  # another process deleted it
                    self.manager.delete(line.key)
            for key, name in self.manager.list_records(line.key):
                if key == line.key:
                    self.manager.records(key, name).clear()

    def _copy_line(self, source: _Line, target: _Line) -> None:
        for key, name in self.manager.list_records(source.key):
            if key != source.key:
                continue
            log = self.manager.records(target.key, name)
            for seq, record in self.manager.records(key, name).read():
                while log.newest() < seq - 1:  # checkpoints refer to records by number
                    log.append(None)
                log.append(record)
        new_refs: dict[str, str] = {}
        store = self.manager.store
        for found in reversed(list(store.newest_first(source.key))):
            draft = found.draft()._replace(key=target.key, source=found)
            parents = tuple(new_refs[item] for item in found.parents if item in new_refs)
            new_refs[found.id] = store.write(draft, parents=parents).id

    # -- the owner of a workspace ----------------------------------------------------------------

    def _owner(self, workspace: Workspace) -> str | None:
        """Return the thread that the files of a workspace belong to, if any."""
        owner: str | None = None
        for _, thread_id in self.manager.records(workspace.key, _THREAD).read():
            owner = None if thread_id is None else owner or thread_id
        return owner

    def _bind(self, workspace: Workspace, thread_id: str, *, dry_run: bool = False) -> None:
        """Make a thread the owner of the files, unless another one is."""
        if thread_id in self._bound:
            return
        owner = self._owner(workspace)
        if owner is None and not dry_run:
            self.manager.records(workspace.key, _THREAD).append(thread_id)
            owner = self._owner(workspace)  # another process may have been first
        if owner not in (None, thread_id):
            raise ConflictError(
                f"The files of {workspace.path} belong to the thread {short_repr(owner)}, not to "
                f"{short_repr(thread_id)}. Use a workspace per thread, or delete that thread."
            )
        if not dry_run:
            self._bound.add(thread_id)


_NO_SEED = object()


class _Walk:
    """What was found of a delta channel: encoded writes, newest first, and where they start."""

    def __init__(self) -> None:
        self.writes: list[Any] = []
        self.seed: Any = _NO_SEED

    def history(self, codec: ValueCodec) -> DeltaChannelHistory:
        """Return the history as LangGraph takes it."""
        writes: list[PendingWrite] = [
            (task_id, channel, codec.decode(tree)) for task_id, channel, tree in self.writes[::-1]
        ]
        if self.seed is _NO_SEED:
            return {"writes": writes}
        return {"writes": writes, "seed": codec.decode_channel(self.seed)}

    def record(self) -> list[Any]:
        """Return the history as it is stored: the writes, oldest first, and perhaps the seed."""
        writes = [list(write) for write in self.writes[::-1]]
        return [writes] if self.seed is _NO_SEED else [writes, self.seed]
