"""CheckpointSaver: the checkpointer of LangGraph graphs. Owns what LangGraph asks of one.

A thread and a namespace are a key; a checkpoint of LangGraph is a checkpoint with its id as tag;
the writes of a checkpoint are a record log with its id as name.
"""

from __future__ import annotations

import builtins
import copy
import os
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

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
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent_checkpoint.adapters.langgraph.thread_lines import (
    ALL,
    HEAD,
    HISTORY,
    Line,
    Part,
    Stored,
    ThreadLines,
    Values,
)
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

_THREAD = "langgraph"
"""The record log of a directory with the thread that its files belong to."""


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
        self._threads = ThreadLines(self.manager, prefix)
        self._last_codec = ValueCodec(self.serde)
        self._bound: set[str] = set()

    def with_serde(self, serde: SerializerProtocol) -> CheckpointSaver:
        """Return a saver of the same store with another serializer. Close only one of them."""
        other = copy.copy(self)
        other.serde = serde
        # Its own: serialized values of two serializers cannot be compared.
        other._threads = ThreadLines(self.manager, self._threads.prefix)
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
        line, checkpoint_id = self._threads.line_of(config), get_checkpoint_id(config)
        if checkpoint_id is None:
            found = self._threads.load(line, None)
            return found and self._tuple(line, found, self._threads.writes(line, found.id))
        return self._load_tuple(line, checkpoint_id)

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
            for line in self._threads.lines_of(config)
            for checkpoint_id in self._threads.refs(line)
            if only in (None, checkpoint_id) and (end is None or checkpoint_id < end)
        ]
        for checkpoint_id, line in sorted(found, key=lambda item: item[0], reverse=True):
            if limit is not None and limit <= 0:
                return
            if filter:
                stored = self._threads.load(line, checkpoint_id, HEAD)
                metadata = self._codec.decode(stored.head["metadata"]) if stored else {}
                if any(metadata.get(name) != value for name, value in filter.items()):
                    continue
            found_tuple = self._load_tuple(line, checkpoint_id)
            if found_tuple is not None:  # else it was deleted meanwhile
                limit = None if limit is None else limit - 1
                yield found_tuple

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes that make up the values of delta channels, along the ancestors.

        Of each ancestor it takes the writes that were present when its child was saved: writes of
        another branch that came later are not replayed.

        Raises:
            NotFoundError: the checkpoint was deleted meanwhile.
            IntegrityError: an ancestor was deleted by other means than this class.
            StorageError: the medium failed.
        """
        line, checkpoint_id = self._threads.line_of(config), get_checkpoint_id(config)
        found = self._threads.load(line, checkpoint_id, HEAD) if channels else None
        if found is None:
            if channels and checkpoint_id in line.deleted:
                raise _deleted(checkpoint_id)
            return {channel: {"writes": []} for channel in channels}
        walked = self._walked(line, found, channels)
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
            ConflictError: the workspace belongs to another thread, or the checkpoint with the
                delta state that this one continues was deleted meanwhile.
            StateError: a value cannot be captured.
            StorageError: the medium failed; the checkpoint is not confirmed.
        """
        line = self._threads.line_of(config)
        # Before the checkpoint of a graph with delta channels, LangGraph waits for the writes.
        has_delta = "counters_since_delta_snapshot" in metadata
        line.is_followed = line.appending > 0 and not has_delta
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
            "parent_writes": self._threads.count_writes(line, parent) if parent else 0,
            "channels": list(checkpoint["channel_values"]),
        }
        with line.lock:
            values = self._encode_values(line, checkpoint, parent, new_versions)
            parts.update(checkpoint=Part(state), values=Part(values))
            parent_ref = self._threads.ref(line, parent) if parent else None
            if parent and parent_ref is None and parent not in line.deleted:
                state["no_parent"] = True
            options: dict[str, Any] = {
                "label": f"step {described.get('step')}, {described.get('source', 'stub')}",
                "tags": [checkpoint["id"]],
                "parents": [parent_ref] if parent_ref else [],
            }
            saved = self._threads.append(
                line,
                checkpoint["id"],
                parts,
                options,
                before_fork=partial(self._keep_history, line, checkpoint["id"], state),
            )
            line.refs[checkpoint["id"]] = saved
            line.see_writes(checkpoint["id"], 0)
            line.values = Values(checkpoint["id"], dict(checkpoint["channel_versions"]), values)
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
        line = self._threads.line_of(config)
        record: dict[str, Any] = {"task": task_id, "path": task_path, "writes": {}}
        for index, (channel, value) in enumerate(writes):
            index = WRITES_IDX_MAP.get(channel, index)
            write = {"channel": channel, "value": self._codec.encode_write(value, line.written)}
            record["writes"][str(index)] = write
        # An error or an interrupt ends the run: no checkpoint follows.
        is_result = not any(channel in WRITES_IDX_MAP for channel, _ in writes)
        checkpoint_id = config["configurable"]["checkpoint_id"]
        self._threads.append_writes(line, checkpoint_id, record, is_result=is_result)

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread, and release its workspace.

        Raises:
            StorageError: the medium failed; call it again.
        """
        thread_id = str(thread_id)
        for line in self._threads.lines_of({"configurable": {"thread_id": thread_id}}):
            with line.lock:
                self._threads.delete(line, self._threads.refs(line))
            self._threads.forget(line)
        if self.workspace is not None and self._owner(self.workspace) == thread_id:
            self.manager.records(self.workspace.key, _THREAD).append(None)
            self._bound.discard(thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs, with their writes. Others keep the delta state they need.

        Raises:
            StorageError: the medium failed; call it again.
        """
        runs = set(run_ids)

        def is_doomed(line: Line, checkpoint_id: str) -> bool:
            found = self._threads.load(line, checkpoint_id, HEAD)
            if found is None:
                return False
            return self._codec.decode(found.head["metadata"]).get("run_id") in runs

        for line in self._threads.lines_of(None) if runs else ():
            self._drop(line, [item for item in self._threads.refs(line) if is_doomed(line, item)])

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to a new one. Objects are shared.

        Raises:
            ConflictError: the target has checkpoints.
            StorageError: the medium failed; delete the target, and copy again.
        """
        source: RunnableConfig = {"configurable": {"thread_id": source_thread_id}}
        target: RunnableConfig = {"configurable": {"thread_id": target_thread_id}}
        if any(self._threads.refs(line) for line in self._threads.lines_of(target)):
            raise ConflictError(
                f"The thread {short_repr(target_thread_id)} has checkpoints. Copy to a new thread."
            )
        for line in self._threads.lines_of(source):
            self._threads.copy(line, self._threads.line(str(target_thread_id), line.namespace))

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
            for line in self._threads.lines_of({"configurable": {"thread_id": thread_id}}):
                self._drop(line, sorted(self._threads.refs(line))[:-1])

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
        for line in [line for config in configs for line in self._threads.lines_of(config)]:
            refs = self._threads.refs(line)
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
        line = self._threads.line_of(config)
        self._bind(self.workspace, line.thread_id, dry_run=dry_run)
        found = self._threads.load(line, get_checkpoint_id(config), HEAD)
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
        if self._last_codec.serde is not self.serde:  # LangGraph replaces it in copies of a saver
            self._last_codec = ValueCodec(self.serde)
        return self._last_codec

    def _load_tuple(self, line: Line, checkpoint_id: str) -> CheckpointTuple | None:
        # The writes first: a checkpoint that is still there afterwards had all of them.
        writes = self._threads.writes(line, checkpoint_id)
        found = self._threads.load(line, checkpoint_id)
        return found and self._tuple(line, found, writes)

    def _tuple(
        self, line: Line, found: Stored, writes: Iterable[tuple[str, str, Any]]
    ) -> CheckpointTuple:
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
                (task_id, channel, codec.decode(tree)) for task_id, channel, tree in writes
            ],
        )

    def _encode_values(
        self,
        line: Line,
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
                channel = line.lists.setdefault(name, ListChannel(codec, line.written))
                encoded[name] = channel.update(value)
            else:
                encoded[name] = {"value": codec.encode(value)}
        return encoded

    def _walked(self, line: Line, found: Stored, channels: Iterable[str]) -> dict[str, _Walk]:
        """Return the writes and seeds of channels along the ancestors of a checkpoint.

        Raises:
            NotFoundError: the checkpoint was deleted meanwhile.
            IntegrityError: an ancestor was deleted by other means than this class.
            StorageError: the medium failed.
        """
        names = tuple(channels)
        while True:
            walked = {name: _Walk() for name in names}
            try:
                child = self._walk(line, found, walked)
            except NotFoundError:  # an ancestor was deleted during the walk
                continue
            if child is None:
                return walked
            if self._threads.load(line, child.id, HEAD) is not None:
                raise IntegrityError(
                    f"The checkpoint {child.head['parent']} of the thread "
                    f"{short_repr(line.thread_id)} was deleted, and {child.id} needs its writes. "
                    "Delete checkpoints with retain(), prune() or delete_for_runs() of the saver."
                )
            if child.id == found.id:
                raise _deleted(child.id)

    def _walk(self, line: Line, child: Stored, walked: Mapping[str, _Walk]) -> Stored | None:
        """Walk along the ancestors of a checkpoint; return the one that lacks its history."""
        remaining = dict(walked)
        while remaining and child.head["parent"]:
            # The writes first: a checkpoint that is still there afterwards had all of them.
            writes = self._threads.writes(line, child.head["parent"], child.head["parent_writes"])
            parent = self._threads.load(line, child.head["parent"], HEAD)
            if parent is None:
                return None if self._take_attached(line, child, remaining) else child
            for write in reversed(writes):
                if write[1] in remaining:
                    remaining[write[1]].writes.append(write)
            seeded = [name for name in remaining if name in parent.head["channels"]]
            if seeded:
                values = self._threads.read(line, parent.id, parent.ref, ALL).values
                for name in seeded:
                    remaining.pop(name).seed = values[name]
            child = parent
        return None

    def _take_attached(self, line: Line, child: Stored, remaining: Mapping[str, _Walk]) -> bool:
        """Continue with the history that was attached to a checkpoint; return whether it was."""
        records = self._threads.log(line, child.id + HISTORY).read()
        if not records and "no_parent" not in child.head:
            return False
        attached = records[-1][1] if records else {}
        for name, walk in remaining.items():
            writes, *seed = attached.get(name, ([],))
            walk.writes += [tuple(write) for write in reversed(writes)]
            if seed:
                (walk.seed,) = seed
        return True

    def _attach(self, line: Line, found: Stored) -> None:
        """Store the delta history of a checkpoint, so that it does not need its ancestors."""
        channels = self._delta_channels(found.head)
        if channels:
            walked = self._walked(line, found, channels)
            history = {name: walk.record() for name, walk in walked.items()}
            self._threads.log(line, found.id + HISTORY).append(history)

    def _keep_history(self, line: Line, checkpoint_id: str, head: dict[str, Any]) -> None:
        """Attach the history of a checkpoint to be saved whose parent is not the latest one.

        Another process may delete its parent at any moment, even before it sees the child.
        """
        if "no_parent" in head:
            return
        try:
            self._attach(line, Stored(checkpoint_id, "", head, {}))
        except NotFoundError:
            raise ConflictError(
                f"The checkpoint {head['parent']} of the thread {short_repr(line.thread_id)} was "
                "deleted while a run continued it, and with it the values of delta channels. "
                "Nothing was saved. Start the run again from another checkpoint."
            ) from None

    def _drop(self, line: Line, doomed: Collection[str]) -> None:
        """Delete checkpoints; their children that stay keep the delta history that they need."""
        gone = set(doomed)
        refs = self._threads.refs(line)
        for checkpoint_id in refs.keys() - gone if gone else ():
            found = self._threads.load(line, checkpoint_id, HEAD)
            if found is not None and found.head["parent"] in gone:
                with suppress(NotFoundError):  # another process deleted it
                    self._attach(line, found)
        with line.lock:
            self._threads.delete(line, {item: refs[item] for item in gone if item in refs})

    def _delta_channels(self, head: Mapping[str, Any]) -> set[str]:
        """Return the channels of a checkpoint whose values are in the writes of its ancestors."""
        metadata = self._codec.decode(head["metadata"])
        versions = self._codec.decode(head["checkpoint"])["channel_versions"]
        counters = metadata.get("counters_since_delta_snapshot") or {}
        return (set(counters) & set(versions)) - set(head["channels"])

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


def _deleted(checkpoint_id: str | None) -> NotFoundError:
    return NotFoundError(f"The checkpoint {checkpoint_id} was deleted meanwhile.")


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
