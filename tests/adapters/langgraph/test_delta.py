"""Delta channels: random histories against a model, in every durability; deletion keeps state."""

import asyncio
import random
from contextlib import suppress
from typing import Annotated, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, StateGraph

from agent_checkpoint import IntegrityError, KeepEvery, KeepLatest
from agent_checkpoint.adapters.langgraph import CheckpointSaver
from tests.adapters.langgraph.checkpoints import config, id_of, put


def appended(state, writes):
    return [*(state or []), *(item for write in writes for item in write)]


class DeltaState(TypedDict):
    """The same values twice: in a delta channel, and in one that every checkpoint contains."""

    delta: Annotated[list, DeltaChannel(appended, snapshot_frequency=5)]
    plain: Annotated[list, lambda a, b: a + b]
    limit: int


def graph_with(saver):
    """A loop of two parallel nodes that append to both channels, as often as the input says."""

    def both(name):
        def node(state):
            item = f"{name}{len(state['plain'])}"
            return {"delta": [item], "plain": [item]}

        return node

    builder = StateGraph(DeltaState)
    builder.add_node("a", both("a"))
    builder.add_node("b", both("b"))
    builder.add_node("join", lambda state: {"limit": state.get("limit", 1) - 1})
    for name in ("a", "b"):
        builder.add_edge(START, name)
        builder.add_edge(name, "join")
    builder.add_conditional_edges("join", lambda s: ["a", "b"] if s["limit"] > 0 else END)
    return builder.compile(checkpointer=saver)


def assert_equal_everywhere(graph, where, known):
    """In each state of the history both channels are equal, and as they were at first."""
    for state in graph.get_state_history(where):
        values = state.values
        assert values.get("delta", []) == values.get("plain", []), state.config
        assert known.setdefault(id_of(state), values.get("plain")) == values.get("plain")


def random_history(graph, saver, seed, durability, deletes=False):
    """Run, update, fork, resume and delete at random; check after each."""
    rng = random.Random(seed)
    known = {}
    thread = {"configurable": {"thread_id": str(seed)}}

    def run(count):
        given = {"delta": [f"in{count}"], "plain": [f"in{count}"], "limit": rng.randint(1, 3)}
        is_new = not known or rng.random() < 0.5
        where = thread if is_new or rng.random() < 0.5 else rng.choice(states()).config
        if rng.random() < 0.3 and known:
            given = None
        with suppress(EmptyInputError):  # from the stub of the mode `exit`
            graph.invoke(given, where, durability=durability)

    def states():
        return list(graph.get_state_history(thread))

    run(0)
    for count in range(1, rng.randint(3, 6)):
        where = rng.choice(states()).config if rng.random() < 0.6 else thread
        choice = rng.random()
        if choice < 0.4:
            run(count)
        elif choice < 0.9:
            for twin in range(rng.randint(1, 2)):  # two updates of one checkpoint
                item = [f"u{count}.{twin}"]
                graph.update_state(where, {"delta": item, "plain": item}, as_node="a")
        elif deletes:
            kept = saver.retain(rng.choice([KeepLatest(4), KeepEvery(2)]), [str(seed)])
            for checkpoint_id in kept:
                known.pop(checkpoint_id, None)
        assert_equal_everywhere(graph, thread, known)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("deletes", [False, True])
def test_random_histories_are_equal_to_a_channel_that_is_stored_whole(durability, deletes):
    saver = CheckpointSaver()
    graph = graph_with(saver)
    for seed in range(8):
        random_history(graph, saver, seed, durability, deletes)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_thousand_random_histories(durability):
    saver = CheckpointSaver()
    graph = graph_with(saver)
    for seed in range(1000, 1334):
        random_history(graph, saver, seed, durability, deletes=seed % 2 == 0)
        saver.delete_thread(str(seed))


def values_of(graph, where):
    values = graph.get_state(where).values
    assert values["delta"] == values["plain"]
    return values["delta"]


@pytest.fixture
def long_run(saver):
    """A graph, its thread, and the delta channel after a run of eight steps."""
    graph = graph_with(saver)
    graph.invoke({"delta": ["in"], "plain": ["in"], "limit": 4}, config(), durability="sync")
    return graph, values_of(graph, config())


def test_two_updates_of_one_checkpoint_do_not_mix(saver):
    """With the official savers the second branch replays the writes of the first one's run."""
    graph = graph_with(saver)
    graph.invoke({"delta": ["in"], "plain": ["in"], "limit": 1}, config(), interrupt_after=["join"])
    base = graph.get_state(config()).config
    branches = [
        graph.update_state(base, {"delta": [name], "plain": [name], "limit": 2}, as_node="join")
        for name in ("first", "second")
    ]
    graph.invoke(None, branches[0])
    assert values_of(graph, branches[0])[-1] == "first"
    assert values_of(graph, branches[1])[-1] == "second"
    graph.invoke(None, branches[1])
    assert_equal_everywhere(graph, config(), {})


def test_writes_that_come_after_a_child_belong_to_another_branch(saver):
    graph = graph_with(saver)
    graph.invoke({"delta": ["in"], "plain": ["in"], "limit": 1}, config(), durability="sync")
    head = graph.get_state(config())
    before = values_of(graph, head.config)
    saver.put_writes(head.parent_config, [("delta", ["late"])], "another-run", "~path")
    assert values_of(graph, head.config) == before
    history = saver.get_delta_channel_history(config=head.config, channels=["delta"])
    assert "late" not in str(history)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_child_includes_the_writes_that_its_process_has_read(tmp_path, is_read):
    """Those of another process that it did not read are not in the state that it saves."""
    with CheckpointSaver(tmp_path / "s") as one, CheckpointSaver(tmp_path / "s") as other:
        base = put(one, config(), {})
        other.put_writes(base, [("delta", ["other"])], "task-of-the-other", "~path")
        if is_read:
            one.get_tuple(base)
        child = put(one, base, {}, 2)
        found = other.get_delta_channel_history(config=child, channels=["delta"])
        assert ("other" in str(found)) is is_read


@pytest.mark.parametrize("asynchronous", [False, True])
def test_prune_keeps_the_delta_state_of_the_latest(saver, long_run, asynchronous):
    graph, expected = long_run
    if asynchronous:
        asyncio.run(saver.aprune(["t"]))
    else:
        saver.prune(["t"])
    assert len(list(saver.list(config()))) == 1
    assert values_of(graph, config()) == expected
    graph.invoke({"delta": ["more"], "plain": ["more"], "limit": 1}, config())
    more = values_of(graph, config())
    assert more[: len(expected) + 1] == [*expected, "more"]
    saver.prune(["t"])
    assert values_of(graph, config()) == more


def test_a_policy_keeps_the_delta_state_of_what_it_keeps(saver, long_run):
    graph, expected = long_run
    kept = {id_of(state): state.values.get("plain") for state in graph.get_state_history(config())}
    doomed = saver.retain(KeepEvery(3), dry_run=True)
    assert len(list(saver.list(config()))) == len(kept)
    assert sorted(saver.retain(KeepEvery(3), ["t"])) == sorted(doomed)
    left = {id_of(state): state.values.get("delta") for state in graph.get_state_history(config())}
    assert doomed
    assert left == {item: value for item, value in kept.items() if item not in doomed}
    assert values_of(graph, config()) == expected


def test_deleting_a_run_keeps_the_delta_state_of_the_next(saver):
    graph = graph_with(saver)
    for run in ("one", "two"):
        where = {**config(), "metadata": {"run_id": run}}
        graph.invoke({"delta": [run], "plain": [run], "limit": 1}, where, durability="sync")
    expected = values_of(graph, config())
    assert "one" in expected
    saver.delete_for_runs(["one"])
    assert {found.metadata["run_id"] for found in saver.list(config())} == {"two"}
    assert values_of(graph, config()) == expected


def test_a_copy_has_its_own_delta_state(saver, long_run):
    graph, expected = long_run
    saver.copy_thread("t", "copy")
    saver.delete_thread("t")
    assert values_of(graph, config("copy")) == expected
    assert_equal_everywhere(graph, config("copy"), {})
    graph.invoke({"delta": ["more"], "plain": ["more"], "limit": 1}, config("copy"))
    assert values_of(graph, config("copy"))[: len(expected)] == expected


def test_ancestors_deleted_by_other_means_are_an_error_and_not_an_empty_channel(saver, long_run):
    graph, _ = long_run
    saver.manager.prune("langgraph/t", KeepLatest(1))
    with pytest.raises(IntegrityError, match=r"was deleted, and .* needs its writes"):
        graph.get_state(config())


def test_all_is_there_after_a_reopen(tmp_path):
    with CheckpointSaver(tmp_path / "s") as saver:
        graph = graph_with(saver)
        graph.invoke({"delta": ["in"], "plain": ["in"], "limit": 4}, config())
        expected = values_of(graph, config())
        saver.prune(["t"])
    with CheckpointSaver(tmp_path / "s") as saver:
        assert values_of(graph_with(saver), config()) == expected
        assert saver.manager.verify().ok
        saver.manager.gc()
        assert values_of(graph_with(saver), config()) == expected
