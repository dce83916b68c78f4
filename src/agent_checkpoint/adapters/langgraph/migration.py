"""Imports threads from the savers that come with LangGraph. Creates no objects of the user.

The official savers read their own tables, with a serializer that makes trees of all values. So
nothing depends on the tables, values are not changed, and no class of the user is needed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent_checkpoint.adapters.langgraph.saver import CheckpointSaver
from agent_checkpoint.adapters.langgraph.values import ValueCodec
from agent_checkpoint.errors import IntegrityError, InvalidInputError, NotFoundError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr

_POSTGRES = ("postgresql://", "postgres://")


class ImportedThreads(NamedTuple):
    """The result of `import_threads`: the threads with new checkpoints, and how many."""

    threads: tuple[str, ...]
    checkpoints: int
    writes: int


class _TreeSerializer(JsonPlusSerializer):
    """Reads serialized values as trees, and writes trees as the values that they were."""

    def __init__(self) -> None:
        super().__init__(allowed_msgpack_modules=None)
        self._codec = ValueCodec(JsonPlusSerializer(allowed_msgpack_modules=None))

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return self._codec.tree(*data)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return self._codec.serialized(obj)


def import_threads(
    source: str, saver: CheckpointSaver, thread_ids: Sequence[str] | None = None
) -> ImportedThreads:
    """Import the threads of a `SqliteSaver` or `PostgresSaver`; again: what is new.

    Args:
        source: the path of the SQLite database, or the URL of the PostgreSQL database. It is not
            changed.
        saver: where to put the checkpoints.
        thread_ids: the threads; by default all.

    Raises:
        NotFoundError: there is no such database, or no such thread.
        InvalidInputError: it has no checkpoints of LangGraph, or the package for it is missing.
        IntegrityError: a checkpoint cannot be read; those before it were imported.
        StorageError: the medium failed; import again.
    """
    target = saver.with_serde(_TreeSerializer())
    done: dict[str, int] = {}
    writes = 0
    with _opened(source) as official:
        configs: dict[str, list[Any]] = {}
        for found in official.list(None):
            where = found.config["configurable"]
            configs.setdefault(where["thread_id"], []).append(found.config)
        for missing in set(thread_ids or ()) - configs.keys():
            raise NotFoundError(f"There is no thread {short_repr(missing)} in {source}.")
        for thread_id in configs if thread_ids is None else thread_ids:
            known = {
                item.config["configurable"]["checkpoint_id"]
                for item in target.list({"configurable": {"thread_id": thread_id}})
            }
            # Parents first: ids grow with time.
            ordered = sorted(configs[thread_id], key=lambda item: _id(item["configurable"]))
            for config in ordered:
                if _id(config["configurable"]) not in known:
                    writes += _import(official, target, config)
                    done[thread_id] = done.get(thread_id, 0) + 1
    return ImportedThreads(tuple(done), sum(done.values()), writes)


def _import(official: BaseCheckpointSaver[Any], target: CheckpointSaver, config: Any) -> int:
    """Copy a checkpoint, after its writes; return the number of writes."""
    found = official.get_tuple(config)
    if found is None:  # deleted meanwhile
        return 0
    if "channel_versions" not in found.checkpoint:
        where = config["configurable"]
        raise IntegrityError(
            f"The checkpoint {_id(where)} of the thread {short_repr(where['thread_id'])} cannot be "
            "read: it is damaged, or encrypted, or another serializer than LangGraph's own wrote "
            "it. The checkpoints before it were imported. Import other threads by their names."
        )
    tasks: dict[tuple[int, str], list[tuple[str, Any]]] = {}
    for position, (task_id, channel, value) in enumerate(found.pending_writes or ()):
        place = next((at for at, known in tasks if known == task_id), position)
        tasks.setdefault((place, task_id), []).append((channel, value))
    for (place, task_id), writes in tasks.items():
        # The path of the task is not known, but the order that it stands for is.
        target.put_writes(found.config, writes, task_id, f"~{place:08d}")
    no_parent = {"configurable": {**config["configurable"], "checkpoint_id": None}}
    parent: Any = found.parent_config or no_parent
    versions = found.checkpoint["channel_versions"]
    target.put(parent, found.checkpoint, found.metadata, versions)
    return len(found.pending_writes or ())


def _id(where: Any) -> str:
    return str(where["checkpoint_id"])


@contextmanager
def _opened(source: str) -> Iterator[BaseCheckpointSaver[Any]]:
    try:
        if source.startswith(_POSTGRES):
            from langgraph.checkpoint.postgres import PostgresSaver

            with PostgresSaver.from_conn_string(source) as saver:
                saver.serde = _TreeSerializer()
                yield saver
            return
        from langgraph.checkpoint.sqlite import SqliteSaver
    except ImportError as error:
        raise InvalidInputError(
            f"Reading {source} needs the package that wrote it ({error}). Install "
            "langgraph-checkpoint-sqlite or langgraph-checkpoint-postgres."
        ) from error
    if not Path(source).is_file():
        raise NotFoundError(f"There is no database {source}.")
    uri = f"{Path(source).resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        if not {"checkpoints", "writes"} <= tables:
            raise InvalidInputError(f"{source} has no checkpoints of LangGraph's SqliteSaver.")
        official = SqliteSaver(db, serde=_TreeSerializer())
        official.is_setup = True  # the tables exist, and the database is open for reading only
        yield official
