"""What a step of a graph costs: commits and reads, whatever the length of the thread."""

import threading
from collections import Counter
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph

from agent_checkpoint.adapters.langgraph import CheckpointSaver
from agent_checkpoint.backends import sqlite_connections
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.store import commit_queue
from tests.adapters.langgraph.checkpoints import config, put, values_of

ITEM = "a text that is long enough to be an object of its own " * 20
LONG = 60.0
READS = ("read", "get_objects", "missing_objects", "list_objects", "streams")


@pytest.fixture
def counts(monkeypatch):
    """Counts the transactions of SQLite stores, and the calls that read them."""
    found: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        inner = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            found[name] += 1
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, call)

    counted(sqlite_connections.Connections, "transaction")
    for name in READS:
        counted(SQLiteBackend, name)
    return found


@pytest.fixture
def saver(tmp_path):
    with CheckpointSaver(tmp_path / "s") as opened:
        yield opened


def steps(saver, where, numbers, counts):
    """Put the writes and the checkpoints of some steps, one after the other."""
    counts.clear()
    for number in numbers:
        saver.put_writes(where, [("log", [ITEM + str(number)])], f"task{number}", "~path")
        where = put(saver, where, {"log": [ITEM + str(n) for n in range(number + 1)]}, number + 2)
    return where


def test_a_step_is_two_commits_and_no_read(saver, counts):
    where = steps(saver, put(saver, config(), {"log": []}), range(5), counts)
    for numbers in (range(5, 25), range(25, 200), range(200, 220)):
        where = steps(saver, where, numbers, counts)
        assert counts == {"transaction": 2 * len(numbers)}


class Serde(JsonPlusSerializer):
    """Calls a function whenever a value is serialized."""

    on_dump = staticmethod(lambda: None)

    def dumps_typed(self, obj):
        self.on_dump()
        return super().dumps_typed(obj)


def test_a_checkpoint_is_committed_with_the_writes_before_it(tmp_path, counts, monkeypatch):
    """LangGraph puts it while the writes are being saved, in another thread."""
    began, waits, append = threading.Event(), threading.Semaphore(0), SQLiteBackend.append
    serde = Serde()

    def slow_append(self, stream, entry, **options):
        if "records" in stream:
            proceed = threading.Event()
            serde.on_dump = proceed.set
            began.set()
            assert proceed.wait(LONG)
        return append(self, stream, entry, **options)

    class Signalling(threading.Event):
        def wait(self, timeout=None):
            waits.release()
            return super().wait(LONG)

    monkeypatch.setattr(commit_queue, "Event", Signalling)
    with CheckpointSaver(tmp_path / "s", serde=serde) as saver:
        where = put(saver, config(), {"log": []})
        monkeypatch.setattr(SQLiteBackend, "append", slow_append)
        for number in range(10):
            writes = [("log", [ITEM + str(number)])]
            saving = threading.Thread(target=saver.put_writes, args=(where, writes, "task", "~p"))
            saving.start()
            # The first time they are being appended, later they wait for the checkpoint.
            assert waits.acquire(timeout=LONG) if number else began.wait(LONG)
            before, where = where, put(saver, where, {"log": [ITEM + str(number)]}, number + 2)
            saving.join(LONG)
            assert saver.get_tuple(before).pending_writes == [("task", *writes[0])]
            if number == 0:
                counts.clear()
        assert counts["transaction"] == 9


def test_a_graph_reads_nothing_while_it_runs(saver, counts):
    class State(TypedDict):
        log: Annotated[list, lambda a, b: a + b]
        step: int

    builder = StateGraph(State)
    builder.add_node(
        "node", lambda state: {"log": [ITEM + str(state["step"])], "step": state["step"] + 1}
    )
    builder.add_edge(START, "node")
    builder.add_conditional_edges("node", lambda state: END if state["step"] == 60 else "node")
    graph = builder.compile(checkpointer=saver)
    where = {**config(), "recursion_limit": 100}
    done = graph.invoke({"log": [], "step": 0}, where, durability="sync")
    assert len(done["log"]) == 60
    assert sum(counts[name] for name in READS) < 15
    assert counts["transaction"] <= 2 * 62 + 5
    assert values_of(saver, config())["log"] == done["log"]
    assert all(found.pending_writes for found in list(saver.list(config()))[1:])
