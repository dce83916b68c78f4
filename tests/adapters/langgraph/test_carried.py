"""A thread in another store, by an archive or a copy: it goes on there as it would have here."""

from typing import Any

import pytest
from langgraph.types import Command

from agent_checkpoint import CheckpointManager, copy
from agent_checkpoint.adapters.langgraph import CheckpointSaver
from tests.adapters.langgraph.checkpoints import config, id_of
from tests.adapters.langgraph.test_delta import graph_with
from tests.adapters.langgraph.test_graphs import THREAD, parent_graph


def by_archive(source: Any, target: Any, place: Any) -> None:
    for number, key in enumerate(source.list_keys("langgraph/")):  # one for each subgraph
        source.export_archive(place / f"{number}.ckpt", key)
        target.import_archive(place / f"{number}.ckpt")


def by_copy(source: Any, target: Any, place: Any) -> None:
    copy(source, target)


@pytest.fixture(params=[by_archive, by_copy])
def carry(request, tmp_path):
    """Carries all threads of a store to another one."""
    return lambda source, target: request.param(source, target, tmp_path)


@pytest.fixture
def target(store_url):
    with CheckpointManager(store_url) as opened:
        yield opened


def seen(saver: Any) -> Any:
    return [
        (item.config, item.checkpoint, item.metadata, item.parent_config, item.pending_writes)
        for item in saver.list(None)
    ]


def test_an_interrupted_graph_goes_on_there(target, carry, tmp_path):
    with CheckpointSaver(tmp_path / "source") as here:
        graph = parent_graph(here)
        assert "__interrupt__" in graph.invoke({"log": []}, THREAD)
        carry(here.manager, target)
        there = CheckpointSaver(target)
        assert seen(there) == seen(here)
        assert any(writes for *_, writes in seen(there))
        found = parent_graph(there).invoke(Command(resume="yes"), THREAD)
        assert found == graph.invoke(Command(resume="yes"), THREAD)
        assert found["log"][-1] == "last yes"


def branches(graph: Any) -> None:
    """Two branches from one checkpoint, the second with writes that the first must not replay."""
    graph.invoke({"delta": [], "plain": [], "limit": 3}, config(), durability="sync")
    middle = list(graph.get_state_history(config()))[2].config
    for item in ("x", "y"):
        graph.update_state(middle, {"delta": [item], "plain": [item]}, "a")
    graph.invoke(None, middle, durability="sync")


def deltas(graph: Any) -> Any:
    found = {id_of(one): one.values for one in graph.get_state_history(config())}
    assert all(one.get("delta", []) == one.get("plain", []) for one in found.values())
    return found


def test_the_state_of_delta_channels_is_the_same_there(target, carry, tmp_path):
    with CheckpointSaver(tmp_path / "source") as here:
        graph = graph_with(here)
        branches(graph)
        carry(here.manager, target)
        other = graph_with(CheckpointSaver(target))
        assert deltas(other) == deltas(graph)

        # Deleted there and carried again: the logs do not begin at 1, but the numbers count.
        for key in target.list_keys():
            target.delete(key)
        carry(here.manager, target)
        other = graph_with(CheckpointSaver(target))
        assert deltas(other) == deltas(graph)
        for one in (graph, other):
            one.invoke({"limit": 2}, config(), durability="sync")
        latest = graph.get_state(config()).values
        assert other.get_state(config()).values == latest
        assert len(deltas(other)) == len(deltas(graph))


def test_a_thread_is_copied_to_the_name_of_a_deleted_one(saver):
    graph = graph_with(saver)
    branches(graph)
    for _ in range(2):
        saver.copy_thread("t", "copy")
        found = [one.values for one in graph.get_state_history(config("copy"))]
        assert found == [one.values for one in graph.get_state_history(config())]
        saver.delete_thread("copy")
