"""Threads of the official savers are imported whole, and go on here."""

import json
import sqlite3
from contextlib import closing, contextmanager, suppress

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from agent_checkpoint import IntegrityError, InvalidInputError, NotFoundError
from agent_checkpoint.adapters.langgraph import CheckpointSaver
from agent_checkpoint.adapters.langgraph.migration import import_threads
from agent_checkpoint.cli.main import main
from tests.adapters.langgraph.checkpoints import config, put
from tests.adapters.langgraph.test_delta import graph_with, values_of
from tests.adapters.langgraph.test_graphs import THREAD, Names, parent_graph, picture
from tests.adapters.langgraph.test_saver import Ticket


@contextmanager
def official(kind, request, tmp_path):
    """An official saver, and how to name its database."""
    if kind == "sqlite":
        path = str(tmp_path / "checkpoints.sqlite")
        with closing(sqlite3.connect(path, check_same_thread=False)) as db:
            yield SqliteSaver(db), path
        return
    server = request.getfixturevalue("postgres_server")
    with PostgresSaver.from_conn_string(server.url()) as saver:
        saver.setup()
        yield saver, server.url()
        for name in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            server.execute(f"DELETE FROM {name}")


KINDS = ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)]


def history(graph, names):
    return [picture(state, names) for state in graph.get_state_history(THREAD)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_with_a_subgraph_and_an_interrupt_goes_on(kind, request, tmp_path):
    with official(kind, request, tmp_path) as (saver, source):
        theirs = parent_graph(saver)
        start = {"messages": [HumanMessage("go", id="h")], "log": ["start"], "count": 0}
        theirs.invoke(start, THREAD)
        ours = CheckpointSaver()
        report = import_threads(source, ours)
        assert report.threads == ("t",)
        assert report.checkpoints == len(list(saver.list(None)))
        graph = parent_graph(ours)
        assert history(graph, Names()) == history(theirs, Names())
        expected = theirs.invoke(Command(resume="blue"), THREAD)
        assert graph.invoke(Command(resume="blue"), THREAD) == expected
        assert import_threads(source, CheckpointSaver()).checkpoints > report.checkpoints


@pytest.mark.parametrize("kind", KINDS)
def test_delta_channels_are_imported(kind, request, tmp_path):
    with official(kind, request, tmp_path) as (saver, source):
        theirs = graph_with(saver)
        given = {"delta": ["in"], "plain": ["in"], "limit": 4}
        theirs.invoke(given, config(), durability="sync")
        ours = CheckpointSaver()
        import_threads(source, ours)
        graph = graph_with(ours)
        for state in theirs.get_state_history(config()):
            assert graph.get_state(state.config).values == state.values
        graph.invoke(given, config())
        assert values_of(graph, config())[:9] == values_of(theirs, config())[:9]


@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_imported_without_being_made(kind, request, tmp_path):
    with official(kind, request, tmp_path) as (saver, source):
        values = {
            "ticket": Ticket(number=1),
            "log": [AIMessage("a", id="1"), None, b"b"],
            "b": b"c",
        }
        where = put(saver, config(), values)
        saver.put_writes(where, [("ticket", Ticket(number=2)), ("b", None)], "task", "path")
        with CheckpointSaver(tmp_path / "s") as ours:
            import_threads(source, ours)
        with CheckpointSaver(tmp_path / "s", allow=[Ticket]) as ours:
            found = ours.get_tuple(config())
        assert found.checkpoint["channel_values"] == values
        assert found.pending_writes == [("task", "ticket", Ticket(number=2)), ("task", "b", None)]


def test_a_second_import_adds_what_is_new(request, tmp_path):
    with official("sqlite", request, tmp_path) as (saver, source), CheckpointSaver() as ours:
        first = put(saver, config("a"), {"n": 1})
        put(saver, config("b"), {"n": 1})
        assert import_threads(source, ours, ["a"]) == (("a",), 1, 0)
        put(saver, first, {"n": 2}, 2)
        saver.put_writes(first, [("n", 3)], "task")
        assert import_threads(source, ours) == (("a", "b"), 2, 0)
        assert import_threads(source, ours) == ((), 0, 0)
        with pytest.raises(NotFoundError, match="There is no thread 'c'"):
            import_threads(source, ours, ["c"])


def test_a_source_that_is_none_is_refused(tmp_path):
    saver = CheckpointSaver()
    with pytest.raises(NotFoundError, match="There is no database"):
        import_threads(str(tmp_path / "none"), saver)
    with closing(sqlite3.connect(tmp_path / "other.db")) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(InvalidInputError, match="has no checkpoints of LangGraph"):
        import_threads(str(tmp_path / "other.db"), saver)


def test_the_command_imports(request, tmp_path, capsys):
    with official("sqlite", request, tmp_path) as (saver, source):
        put(saver, config("a"), {"n": 1})
        store = str(tmp_path / "store")
        assert main(["--store", store, "import-langgraph", source, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {
            "checkpoints": 1,
            "writes": 0,
            "threads": ["a"],
            "format_version": 1,
        }
        assert main(["--store", store, "import-langgraph", source, "--thread", "a"]) == 0
        assert "Nothing to import" in capsys.readouterr().out
        put(saver, config("b"), {"n": 1})
        assert main(["--store", store, "import-langgraph", source]) == 0
        assert "Imported 1 thread, 1 checkpoint, 0 writes" in capsys.readouterr().out
    with CheckpointSaver(store) as ours:
        assert len(list(ours.list(None))) == 2


def hostile(code, inner):
    return ormsgpack.packb(ormsgpack.Ext(code, inner))


def nested(depth):
    data = ormsgpack.packb(1)
    for _ in range(depth):
        data = hostile(1, data)
    return data


HOSTILE = {
    "a call": hostile(0, ormsgpack.packb(["os", "mkdir", "made"])),
    "a call with arguments": hostile(1, ormsgpack.packb(["os", "mkdir", ["made"]])),
    "a method": hostile(4, ormsgpack.packb(["pathlib", "Path", ["made"], "mkdir"])),
    "no msgpack inside": hostile(77, b"\xc1"),
    "nested": nested(5000),
    "cut off": b"\x92\x01",
    "a key twice": b"\x82\xa1a\x01\xa1a\x02",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_is_called_by_what_is_imported(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with official("sqlite", None, tmp_path) as (saver, source):
        put(saver, config(), {"log": [1]})
        saver.put_writes(next(saver.list(config())).config, [("log", 1)], "task")
        saver.conn.execute("UPDATE writes SET value = ?", (HOSTILE[name],))
        saver.conn.commit()
        ours = CheckpointSaver()
        assert import_threads(source, ours).writes == 1
        with suppress(ValueError):  # of the serializer, for what is damaged
            ours.get_tuple(config())
        assert not (tmp_path / "made").exists()


class Reversed:
    """A cipher."""

    def encrypt(self, data):
        return "reversed", data[::-1]


@pytest.mark.parametrize("name", ["encrypted", *HOSTILE])
def test_a_checkpoint_that_cannot_be_read_is_named(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with official("sqlite", None, tmp_path) as (saver, source):
        put(saver, config("other"), {"log": [1]})
        if name == "encrypted":
            saver.serde = EncryptedSerializer(Reversed())
        put(saver, config(), {"log": [1]})
        if name != "encrypted":
            saver.conn.execute(
                "UPDATE checkpoints SET checkpoint = ? WHERE thread_id = 't'", (HOSTILE[name],)
            )
            saver.conn.commit()
        with pytest.raises(IntegrityError, match="of the thread 't' cannot be read"):
            import_threads(source, CheckpointSaver())
        assert main(["--store", str(tmp_path / "s"), "import-langgraph", source]) == 1
        assert "cannot be read" in capsys.readouterr().err
        assert import_threads(source, CheckpointSaver(), ["other"]).checkpoints == 1
        assert not (tmp_path / "made").exists()
