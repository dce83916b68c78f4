"""A LangGraph graph of a thousand steps, through our saver and LangGraph's own (target P18).

Each step adds a message to a list. LangGraph's `SqliteSaver` runs the same graph as ours, and once
more a graph whose list is a `DeltaChannel`, which only stores what was added; so does our saver.
Every side runs the whole graph, with `put_writes`, in the durability mode `sync`; they take turns,
and the best of the runs counts. The items are plain dicts: message objects cost each side the same,
and more. What a step costs is in `design/037-langgraph.md`.

There are three floors. One is a saver that keeps nothing, and commits as many bytes a step as our
store grew by. The other stores what our guarantees need, in straight-line Python and with no check
of anything: readable JSON of the checkpoint and of its writes, each new message once, as an object
with its SHA-256, compressed; the list as a chain of such objects; what was in the list before is
serialized and compared, because a message may be changed in place; two entries with their SHA-256;
and one durable transaction a step. It cannot read, split, verify or resume, has no locks between
processes, and returns from `put_writes` before the writes are durable. A third floor is the same,
and has our SQLite backend store the objects and entries.
"""

from __future__ import annotations

import hashlib
import random
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

import orjson
import ormsgpack
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from agent_checkpoint.adapters.langgraph import CheckpointSaver
from agent_checkpoint.backends.base import Append
from agent_checkpoint.backends.sqlite import SQLiteBackend
from bench.rows import Row
from bench.texts import conversation, raw_bytes

STEPS = 1_000
QUICK_STEPS = 200
RUNS = 3
SIDES = ("ours", "ours-delta", "sqlite", "delta", "floor", "straight", "backend")
GROUP = 64
RESERVE = ".reserve"


def _added(state: list[Any], writes: list[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class Plain(TypedDict):
    """The state, stored whole."""

    messages: Annotated[list[Any], lambda a, b: a + b]
    step: int
    stop: int


class Delta(TypedDict):
    """The state, with a channel that stores what was added."""

    messages: Annotated[list[Any], DeltaChannel(_added)]
    step: int
    stop: int


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Run the graph on each side; the best time, and the bytes."""
    steps = QUICK_STEPS if quick else STEPS
    messages = _messages(steps)
    found: dict[str, Any] = {"steps": steps, "raw_bytes": raw_bytes(messages)}
    for run in range(RUNS):
        for side in SIDES:
            place = directory / f"{side}-{run}"
            place.mkdir()
            # As many bytes a step as our store grew by.
            commit = found["ours"]["bytes"] // steps if side == "floor" else 0
            taken = _run(side, place, messages, commit)
            known = found.get(side, taken)
            found[side] = {name: min(known[name], value) for name, value in taken.items()}
    return found


def rows(figures: dict[str, Any]) -> list[Row]:
    """Bytes against the messages, times against each of the two, and against the floor."""
    what = f"LangGraph graph, {figures['steps']:,} steps"
    faster = min(("sqlite", "delta"), key=lambda side: figures[side]["seconds"])
    names = {
        "sqlite": "SqliteSaver",
        "delta": "SqliteSaver, DeltaChannel",
        "floor": "no saver, one commit",
        "straight": "same data, straight-line",
        "backend": "same data, straight-line, stored by our SQLite backend",
    }
    size = Row(
        id="P18",
        what=f"{what}, stored bytes without the reserve",
        ours=figures["ours"]["bytes"],
        peer=figures["raw_bytes"],
        unit="B",
        peer_name="raw messages",
        target=3.0,
    )
    compared = [("ours", what, peer) for peer in names]
    compared.append(("ours-delta", f"{what}, ours with DeltaChannel", "delta"))
    times = [
        Row(
            id="P18",
            what=f"{graph}, a step",
            ours=figures[side]["seconds"] / figures["steps"] * 1e3,
            peer=figures[peer]["seconds"] / figures["steps"] * 1e3,
            unit="ms",
            peer_name=names[peer],
            target=1.0 if (side, peer) == ("ours", faster) else None,
            floor=peer in ("floor", "straight", "backend"),
            durability="FULL / FULL",
        )
        for side, graph, peer in compared
    ]
    return [size, *times]


def _run(side: str, place: Path, messages: list[Any], commit: int) -> dict[str, Any]:
    """Run the graph; its time, its processor time and the bytes stored."""
    with _graph(side, place, messages, commit) as (graph, config):
        given: Any = {"messages": [], "step": 0, "stop": len(messages)}
        began, used = time.perf_counter(), time.process_time()
        done = graph.invoke(given, config, durability="sync")
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        assert done["messages"] == messages
    return {"seconds": seconds, "processor_seconds": processor, "bytes": _size(place)}


@contextmanager
def stepping(
    side: str, place: Path, steps: int
) -> Iterator[Callable[[int], tuple[list[int], int]]]:
    """A graph that goes on to a step: yields what does, and returns the times and the bytes."""
    messages = _messages(steps)
    with _graph(side, place, messages) as (graph, config):
        reached = 0

        def run(stop: int) -> tuple[list[int], int]:
            nonlocal reached
            given: Any = {"stop": stop}
            if not reached:
                given |= {"messages": [], "step": 0}
            times = [time.perf_counter_ns()]
            for _ in graph.stream(given, config, durability="sync", stream_mode="updates"):
                times.append(time.perf_counter_ns())
            taken = [after - before for before, after in pairwise(times)]
            assert len(taken) == stop - reached
            reached = stop
            return taken, _size(place)

        yield run


def _messages(steps: int) -> list[Any]:
    # Without `role`: LangGraph takes a dict with one for a message, and gives it an id.
    return [
        {"sender": message["role"], "content": message["content"]}
        for message in conversation("varied", steps)
    ]


class _Floor(BaseCheckpointSaver[int]):
    """Keeps no checkpoint, but commits a row of some bytes for each."""

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        super().__init__()
        self._connection = connection
        self._row = random.Random(0).randbytes(size)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE rows (data BLOB)")

    def get_tuple(self, config: Any) -> None:
        """There is none."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Commit the row."""
        with self._connection as db:
            db.execute("INSERT INTO rows VALUES (?)", (self._row,))
        named = {**config["configurable"], "checkpoint_id": checkpoint["id"]}
        return {"configurable": named}

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Keep nothing."""


class _StraightLine(BaseCheckpointSaver[int]):
    """Stores what a checkpoint and its writes need, in the fewest steps; see above."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection
        self._compress: Any = _fast_zlib().compress
        self._objects: list[tuple[bytes, bytes]] = []
        self._entries: list[tuple[str, bytes]] = []
        self._packed: list[bytes] = []
        self._tail = ""
        self._count = 0
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE objects (id BLOB PRIMARY KEY, data BLOB)")
        connection.execute("CREATE TABLE entries (stream TEXT, data BLOB)")

    def get_tuple(self, config: Any) -> None:
        """There is none."""

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        """Commit the checkpoint, and the writes since the last one."""
        values = dict(checkpoint["channel_values"])
        messages = values.pop("messages", [])
        packed = [
            self.serde.dumps_typed(messages[at : at + GROUP])[1]
            for at in range(0, len(messages), GROUP)
        ]
        same = [now[3:].startswith(old[3:]) for now, old in zip(packed, self._packed)]
        assert all(same[:-1])
        self._packed = packed
        for message in messages[self._count :]:
            added = [self._object(self._readable(message)), self._tail]
            self._tail = self._object(added)
        self._count = len(messages)
        body = {name: item for name, item in checkpoint.items() if name != "channel_values"}
        state = {"checkpoint": self._readable(body), "metadata": self._readable(metadata)}
        values = {name: self._readable(value) for name, value in values.items()}
        parts = {"checkpoint": self._object(state), "values": [values, self._tail]}
        self._entry("key", {"tags": [checkpoint["id"]], "parts": parts})
        entries, self._entries = self._entries, []
        objects, self._objects = self._objects, []
        self._commit(objects, entries)
        named = {**config["configurable"], "checkpoint_id": checkpoint["id"]}
        return {"configurable": named}

    def _commit(self, objects: list[tuple[bytes, bytes]], entries: list[tuple[str, bytes]]) -> None:
        with self._connection as db:
            db.executemany("INSERT OR IGNORE INTO objects VALUES (?, ?)", objects)
            db.executemany("INSERT INTO entries VALUES (?, ?)", entries)

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """Keep the writes for the next commit."""
        found = [
            [channel, [self._object(self._readable(item)) for item in value]]
            if isinstance(value, list)
            else [channel, self._readable(value)]
            for channel, value in writes
        ]
        stream = config["configurable"]["checkpoint_id"]
        self._entry(stream, {"task": task_id, "path": task_path, "writes": found})

    def _readable(self, value: Any) -> Any:
        kind, data = self.serde.dumps_typed(value)
        return (
            None if kind == "null" else ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)
        )

    def _object(self, tree: Any) -> str:
        text = orjson.dumps(tree)
        digest = hashlib.sha256(text)
        self._objects.append((digest.digest(), self._compress(text, 1)))
        return digest.hexdigest()

    def _entry(self, stream: str, record: Any) -> None:
        text = orjson.dumps(record)
        end = b',"sha256":"%b"}' % hashlib.sha256(text).hexdigest().encode()
        self._entries.append((stream, text[:-1] + end))


class _ThroughBackend(_StraightLine):
    """The same, stored by our SQLite backend."""

    def __init__(self, connection: sqlite3.Connection, backend: SQLiteBackend) -> None:
        super().__init__(connection)
        self._backend = backend

    def _commit(self, objects: list[tuple[bytes, bytes]], entries: list[tuple[str, bytes]]) -> None:
        names = {digest.hex(): data for digest, data in objects}
        appends = [Append(f"key/{stream}", data) for stream, data in entries]
        appends[-1] = appends[-1]._replace(objects=names)
        found = self._backend.append_all(appends)
        assert all(isinstance(seq, int) for seq in found), found


def _fast_zlib() -> Any:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


@contextmanager
def _graph(
    side: str, place: Path, messages: list[Any], commit: int = 0
) -> Iterator[tuple[Any, Any]]:
    """A graph that adds a message a step until `stop`, with the saver of the side; its config."""
    if side.startswith("ours"):
        saver: Any = CheckpointSaver(place / "store")
        close = saver.close
    else:
        connection = sqlite3.connect(str(place / "db"), check_same_thread=False)
        if side == "floor":
            saver = _Floor(connection, commit)
        elif side == "straight":
            saver = _StraightLine(connection)
        elif side == "backend":
            saver = _ThroughBackend(connection, SQLiteBackend(place / "store"))
        else:
            saver = SqliteSaver(connection)
        close = connection.close
    state: Any = Delta if side.endswith("delta") else Plain
    builder = StateGraph(state)
    builder.add_node(
        "step",
        lambda state: {"messages": [messages[state["step"]]], "step": state["step"] + 1},
    )
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: END if state["step"] == state["stop"] else "step"
    )
    config = {"configurable": {"thread_id": "bench"}, "recursion_limit": len(messages) + 10}
    try:
        yield builder.compile(checkpointer=saver), config
    finally:
        close()


def _size(place: Path) -> int:
    files = [file for file in place.rglob("*") if file.is_file() and file.name != RESERVE]
    return sum(file.stat().st_size for file in files)
