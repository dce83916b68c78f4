"""The workspace of a thread: every checkpoint has its files, and only a restore writes them."""

import pytest
from langgraph.graph import START, StateGraph

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    Workspace,
)
from agent_checkpoint.adapters.langgraph import CheckpointSaver
from tests.adapters.langgraph.checkpoints import config, put
from tests.adapters.langgraph.test_graphs import GraphState


@pytest.fixture
def directory(tmp_path):
    place = tmp_path / "work"
    place.mkdir()
    return place


def graph_that_writes(saver, directory):
    """Each step writes its number into a file."""

    def step(state):
        (directory / "file.txt").write_text(str(state["count"]))
        (directory / f"{state['count']}.txt").touch()
        return {"count": state["count"] + 1}

    builder = StateGraph(GraphState)
    builder.add_node("one", step)
    builder.add_node("two", step)
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile(checkpointer=saver)


def files(directory):
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_files_travel_with_the_thread(tmp_path, directory):
    (directory / "own.txt").write_text("mine")
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        graph = graph_that_writes(saver, directory)
        graph.invoke({"count": 0}, config(), durability="sync")
        states = list(graph.get_state_history(config()))
        assert [graph.get_state(state.config).next for state in states] == [
            (),
            ("two",),
            ("one",),
            ("__start__",),
        ]
        last = {"own.txt": "mine", "file.txt": "1", "0.txt": "", "1.txt": ""}
        assert files(directory) == last, "reading does not touch files"

        preview = saver.restore_files(states[1].config, dry_run=True)
        assert files(directory) == last
        plan = saver.restore_files(states[1].config, only_if=preview)
        assert files(directory) == {"own.txt": "mine", "file.txt": "0", "0.txt": ""}
        saver.workspace.restore(plan.safety)
        assert files(directory) == last, "a restore can be undone"

        (directory / "file.txt").write_text("by hand")
        graph.invoke(None, saver.with_files(states[2].config), durability="sync")
        assert files(directory) == last, "a run that starts with its files ends with the same ones"
        saver.restore_files(config(), paths=["file.txt"])


def test_files_come_back_in_another_process(tmp_path, directory):
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        graph_that_writes(saver, directory).invoke({"count": 0}, config(), durability="sync")
    expected = files(directory)
    (directory / "file.txt").write_text("changed")
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        saver.restore_files(config())
    assert files(directory) == expected


def test_a_workspace_belongs_to_one_thread(tmp_path, directory):
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        put(saver, config("a"), {"n": 1})
        put(saver, config("a", "child"), {"n": 1})
        with pytest.raises(ConflictError, match="belong to the thread 'a', not to 'b'"):
            put(saver, config("b"), {"n": 1})
        assert saver.get_tuple(config("b")) is None
    with CheckpointSaver(tmp_path / "s", workspace=directory) as other:
        with pytest.raises(ConflictError, match="Use a workspace per thread"):
            put(other, config("b"), {"n": 1})
        with pytest.raises(ConflictError, match="belong to the thread 'a'"):
            other.restore_files(config("b"), dry_run=True)
        put(other, config("a"), {"n": 2})
        other.delete_thread("a")
        put(other, config("b"), {"n": 1})
        with pytest.raises(ConflictError, match="belong to the thread 'b'"):
            put(other, config("a"), {"n": 1})


def test_a_preview_does_not_take_the_workspace(tmp_path, directory):
    with CheckpointSaver(tmp_path / "s") as plain:
        put(plain, config("a"), {"n": 1})
    with CheckpointSaver(tmp_path / "s", workspace=directory) as saver:
        with pytest.raises(NotFoundError, match="There is no checkpoint"):
            saver.restore_files(config("b"), dry_run=True)
        put(saver, config("c"), {"n": 1})


def test_a_workspace_and_a_manager_that_were_passed_stay_open(tmp_path, directory):
    with CheckpointManager(tmp_path / "s") as manager:
        with Workspace(directory, store=manager.store) as workspace:
            with CheckpointSaver(manager, workspace=workspace) as saver:
                where = put(saver, config(), {"n": 1})
            (directory / "new.txt").touch()
            workspace.restore(manager.history("langgraph/t")[0]["id"])
            assert files(directory) == {}
        assert CheckpointSaver(manager).get_tuple(where) is not None


def test_a_saver_without_workspace_has_no_files(saver):
    where = put(saver, config(), {"n": 1})
    with pytest.raises(InvalidInputError, match="pass workspace="):
        saver.restore_files(where)
