"""`bisect`, `blame` and `revert` on whatever was saved: each kind of history has the same steps."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session
from tests.cli.scene import wait_for
from tests.cli.world import Ran, run
from tests.unit.trajectory.trajectories import Coding, write

pytestmark = pytest.mark.usefixtures("no_session_is_left")

STEPS = [
    ("app", "one\ntwo\nthree\nfour\n"),
    ("app", "one\nbug\nthree\nfour\n"),
    ("notes", "a file\n"),
    ("app", "one\nbug\nthree\nfour\nfive\n"),
]


def by_session(store: Path, place: Path) -> None:
    with (
        CheckpointManager(backend="sqlite", path=store) as manager,
        Session("s", workspace=place, store=manager),
    ):
        for step in STEPS:
            write(*step)


def by_coding_agent(store: Path, place: Path) -> None:
    agent = Coding(store, place)
    agent.prompt("Make it so.")
    for name, text in STEPS:
        agent.write(name, text)
    agent.close()


def by_run(store: Path, place: Path) -> None:
    for name, text in STEPS:
        assert run("run", "--", "sh", "-c", f"printf '{text}' > {name}", at=place).status == 0


def by_save(store: Path, place: Path) -> None:
    run("save", at=place)
    for name, text in STEPS:
        (place / name).write_text(text)
        run("save", at=place)


def by_watch(store: Path, place: Path) -> None:
    with CheckpointManager(backend="sqlite", path=store) as manager:
        process = subprocess.Popen(
            [sys.executable, "-m", "agent_checkpoint", "watch", "--every", "0.05"],
            cwd=place,
            stdout=subprocess.DEVNULL,
        )

        def saved() -> int:
            keys = manager.list_keys()
            return len(manager.history(keys[0])) if keys else 0

        try:
            wait_for(lambda: saved() == 1)
            for number, (name, text) in enumerate(STEPS):
                draft = place.parent / "draft"
                draft.write_text(text)
                draft.replace(place / name)  # so that no half of it is saved
                wait_for(lambda number=number: saved() == number + 2)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def by_langgraph(store: Path, place: Path) -> None:
    pytest.importorskip("langgraph")
    from langgraph.graph import START, StateGraph

    from agent_checkpoint.adapters.langgraph import CheckpointSaver

    def step(state: "dict[str, int]") -> "dict[str, int]":
        name, text = STEPS[state["count"]]
        (place / name).write_text(text)
        return {"count": state["count"] + 1}

    builder = StateGraph(dict)
    for number in range(len(STEPS)):
        builder.add_node(str(number), step)
        builder.add_edge(str(number - 1) if number else START, str(number))
    with CheckpointSaver(store, workspace=place) as saver:
        graph = builder.compile(checkpointer=saver)
        thread = {"configurable": {"thread_id": "t"}}
        graph.invoke({"count": 0}, thread, durability="sync")


HISTORIES = [by_session, by_coding_agent, by_run, by_save, by_watch, by_langgraph]
THREAD = "langgraph/t"
"""Threads of LangGraph name no directory: their key is typed."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_CHECKPOINT_STORE", str(tmp_path / "store"))
    place = tmp_path / "work"
    place.mkdir()
    return place


def succeeded(done: Ran) -> Ran:
    assert (done.status, done.err) == (0, "")
    return done


@pytest.mark.parametrize("history", HISTORIES)
def test_a_step_is_found_blamed_reverted_and_brought_back(history, tmp_path, place):
    history(tmp_path / "store", place)
    is_named = history is not by_langgraph
    key, of_key, there = ([], [], []) if is_named else ([THREAD], ["--key", THREAD], ["."])
    test = ["--json", "--", "sh", "-c", "! grep -q bug app"]
    found = succeeded(run("bisect", *key, *test, at=place)).data
    assert found["certain"]
    assert list(found["diff"]["changed"]) == ["app"]
    bad = found["first_bad"]

    lines = succeeded(run("blame", "app", *of_key, "--json", at=place)).data
    assert lines[1]["step"]["checkpoint"] == bad
    steps = [line["step"]["checkpoint"] for line in lines]
    assert len(set(steps)) == 3
    assert steps[0] == steps[2] == steps[3]

    where = [f"--workspace={name}" for name in there]
    done = succeeded(run("revert", bad, *where, "--yes", "--json", at=place)).data
    assert done["files"]["write"] == ["app"]
    without = STEPS[-1][1].replace("bug", "two")
    assert (place / "app").read_text() == without
    assert (place / "notes").read_text() == "a file\n"
    succeeded(run("undo", "--yes", at=place))
    assert (place / "app").read_text() == STEPS[-1][1]


def test_a_directory_is_not_named_for_a_key_that_has_one(tmp_path, place):
    by_session(tmp_path / "store", place)
    other = tmp_path / "other"
    other.mkdir()
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        step = manager.history("s")[2]["id"]
    run("revert", step, "--workspace", other, "--yes", at=other)
    assert list(other.iterdir()) == []
