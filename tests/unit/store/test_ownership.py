"""What was loaded belongs to who loaded it: the store, its cache and others never see a change."""

import copy
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    ImmutableError,
    Log,
    register_migration,
)
from tests.agents import managers
from tests.exact import alike


class Owner(Checkpointable):
    def __init__(self) -> None:
        self.value: Any = None
        self.log: Log[Any] = Log()


class Moved(Checkpointable):
    """Of version 2; its migration changes the state that it is given, as migrations may."""

    def __init__(self) -> None:
        self.items: Any = []

    def _checkpoint_version(self) -> str:
        return "2.0"


def _to_two(state: "dict[str, Any]") -> "dict[str, Any]":
    state["items"].append("migrated")
    return state


register_migration("Moved", from_version="1.0", fn=_to_two)

VALUES: "dict[str, Any]" = {
    "scalars": [1, "a", None, 2.5],
    "long list of scalars": list(range(5000)),
    "long list of dicts": [{"n": n, "text": "word " * 9} for n in range(400)],
    "long list of nested": [{"n": [n, {"deep": [n]}]} for n in range(600)],
    "long list of lists": [[n] for n in range(2500)],
    "many members": {f"k{n}": [n] for n in range(1500)},
    "object": {"a": ["x" * 900, ["y" * 900]], "b": {"c": ["z" * 900]}},
    "tags": [({"a": [n]}, {"$ref": [n]}, deque([n])) for n in range(500)],
    "bytes": [bytearray(b"x" * 3000), numpy.zeros(3000)],
    "short": {"list": [[1], {"a": [2]}]},
}


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed in place."""
    if isinstance(value, dict):
        for item in list(value.values()):
            spoil(item)
        with suppress(ImmutableError):  # read from a log
            value["spoilt"] = True
    elif isinstance(value, (list, tuple, deque, Log)):
        for item in value:
            spoil(item)
        if not isinstance(value, tuple):
            with suppress(ImmutableError):
                value.append("spoilt")
    elif isinstance(value, bytearray):
        value.extend(b"spoilt")
    elif isinstance(value, numpy.ndarray):
        value[...] = 7


@pytest.fixture(params=["memory", "file", "sqlite", "pickle"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    with managers(tmp_path)[request.param] as opened:
        yield opened


def made(name: str) -> Owner:
    owner = Owner()
    owner.value = copy.deepcopy(VALUES[name])
    owner.log = Log(VALUES[name] if isinstance(VALUES[name], list) else [VALUES[name]])
    return owner


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.slow
def test_what_was_loaded_is_the_agents_own(manager: CheckpointManager, name: str) -> None:
    original = made(name)
    manager.save("key", original)
    want = vars(made(name))
    agents = [Owner() for _ in range(3)]
    for agent in agents:
        manager.load("key", agent)
        assert alike(agent.value, want["value"])
        assert alike(list(agent.log), list(want["log"]))
        spoil(agent.value)
        spoil(agent.log)
    spoil(vars(original))
    last = Owner()
    manager.load("key", last)
    assert alike(last.value, want["value"])
    assert alike(list(last.log), list(want["log"]))
    assert not any(alike(agent.value, want["value"]) for agent in agents)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.slow
def test_a_state_without_an_agent_is_the_callers_own(manager: CheckpointManager, name: str) -> None:
    manager.save("key", {"value": made(name).value})
    for _ in range(3):
        state = manager.state_dict("key")
        assert alike(state, {"value": VALUES[name]})
        spoil(state)
    target: dict[str, Any] = {}
    manager.load("key", target)
    spoil(target)
    again: dict[str, Any] = {}
    manager.load("key", again)
    assert alike(again, {"value": VALUES[name]})


def test_two_parts_of_one_content_share_nothing(manager: CheckpointManager) -> None:
    value = VALUES["long list of dicts"]
    manager.save("key", {"one": value, "two": value, "both": [value, value]})
    state = manager.state_dict("key")
    spoil(state["one"])
    spoil(state["both"][0])
    assert state["two"] == value
    assert state["both"][1] == value


def test_a_state_that_is_loaded_by_hand_is_copied(manager: CheckpointManager) -> None:
    manager.save("key", made("long list of dicts"))
    state = manager.state_dict("key")
    one, other = Owner(), Owner()
    one.load_state_dict(state)
    other.load_state_dict(state)
    spoil(one.value)
    spoil(state["value"])
    spoil(state["log"])
    assert other.value == VALUES["long list of dicts"]
    assert other.log == VALUES["long list of dicts"]


@pytest.mark.parametrize("n", [3, 3000])
def test_a_migration_may_change_what_it_is_given(manager: CheckpointManager, n: int) -> None:
    old = Moved()
    old.items = [{"n": k} for k in range(n)]
    state = {**old.state_dict(), "__version__": "1.0"}
    by_hand = Moved()
    by_hand.load_state_dict(state)
    assert by_hand.items[-1] == "migrated"
    assert len(state["items"]) == n

    Moved._checkpoint_version = lambda self: "1.0"  # type: ignore[method-assign]
    try:
        manager.save("key", old)
    finally:
        Moved._checkpoint_version = lambda self: "2.0"  # type: ignore[method-assign]
    for _ in range(2):
        fresh = Moved()
        manager.load("key", fresh)
        assert fresh.items == [*({"n": k} for k in range(n)), "migrated"]
        spoil(fresh.items)


@pytest.mark.slow
def test_a_rollback_gives_back_what_was(manager: CheckpointManager) -> None:
    for name in VALUES:
        agent = made(name)
        with pytest.raises(KeyError), manager.rollback_context("key", agent):
            spoil(vars(agent))
            raise KeyError
        assert alike(agent.value, VALUES[name])
        spoil(agent.value)
        fresh = Owner()
        manager.load("key", fresh)
        assert alike(fresh.value, VALUES[name])


def test_saving_takes_no_part_in_later_changes(manager: CheckpointManager) -> None:
    agent = made("long list of nested")
    future = manager.save_in_background("key", agent)
    spoil(agent.value)
    spoil(agent.value)
    assert alike(manager.state_dict("key", future.result())["value"], VALUES["long list of nested"])
