"""Where states are cut, and what is shared because of it."""

import json
import random
from typing import Any

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager
from agent_checkpoint.store.objects import merkle_list, object_format, reader, splitting
from agent_checkpoint.store.objects.object_format import MAX_OBJECT
from tests.unit.store.counting import CountingBackend


def noise(size: int, seed: int = 0) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


class Big(Checkpointable):
    def __init__(self, seed: int = 0) -> None:
        self.texts = {f"document {n}": noise(100_000, n) for n in range(10)}
        self.messages = [{"n": n, "text": noise(200, n)} for n in range(2000)]
        self.blob = noise(100_000).encode()
        self.many = {f"name {n}": noise(40, n) for n in range(5000)}
        self.count = seed


@pytest.fixture
def backend() -> CountingBackend:
    return CountingBackend()


def test_a_state_that_is_saved_again_adds_no_object(backend: CountingBackend) -> None:
    manager = CheckpointManager(backend)
    manager.save("one", Big())
    stored = len(list(backend.list_objects()))
    manager.save("one", Big())
    CheckpointManager(backend).save("other", Big())
    assert [count for count, _ in backend.appended] == [stored, 0, 0]
    assert stored == len(list(backend.list_objects()))
    assert backend.appended[1][1] < 5000


def change_number(agent: Big) -> None:
    agent.count += 1


def change_member(agent: Big) -> None:
    agent.many["name 2500"] = ""


def change_item(agent: Big) -> None:
    agent.messages[1000] = {"n": -1, "text": ""}


def append_item(agent: Big) -> None:
    agent.messages.append({"n": -1, "text": ""})


def trim_items(agent: Big) -> None:
    del agent.messages[:30]


def drop_text(agent: Big) -> None:
    del agent.texts["document 4"]


@pytest.mark.parametrize(
    "change", [change_number, change_member, change_item, append_item, trim_items, drop_text]
)
def test_a_change_costs_little(backend: CountingBackend, change: Any) -> None:
    manager, agent = CheckpointManager(backend), Big()
    manager.save("key", agent)
    change(agent)
    manager.save("key", agent)
    (_, whole), (_, changed) = backend.appended
    assert whole > 700_000
    assert changed < 60_000  # a leaf, and the tails, which all refer to the spine
    fresh = Big()
    manager.load("key", fresh)
    assert vars(fresh) == vars(agent)


def test_a_changed_text_is_written_alone(backend: CountingBackend) -> None:
    manager, agent = CheckpointManager(backend), Big()
    manager.save("key", agent)
    agent.texts["document 3"] = noise(100_000, 77)
    manager.save("key", agent)
    assert 40_000 < backend.appended[-1][1] < 110_000


def test_a_small_state_stands_in_its_entry(backend: CountingBackend) -> None:
    CheckpointManager(backend).save("key", {"a": [1, {"b": "c"}], "text": "x" * 900})
    assert backend.appended[0][0] == 0
    assert "get_objects" not in backend.calls
    assert "missing_objects" not in backend.calls


def test_an_entry_stays_small_whatever_the_state(backend: CountingBackend) -> None:
    manager = CheckpointManager(backend)
    state = {f"field {n}": {"list": list(range(1000)), "text": "é" * 3000} for n in range(300)}
    manager.save("key", {**state, "deep": {"a": {"b": [{"c": "x" * 100_000}]}}})
    assert len(backend.read("key/key")[0].data) < 2000


def test_the_names_in_an_entry_are_all_that_the_state_needs(backend: CountingBackend) -> None:
    manager = CheckpointManager(backend)
    manager.save("key", Big())
    parts = json.loads(backend.read("key/key")[0].data)["parts"]
    tree = parts["agent"]["$state"]
    assert set(tree["messages"]) == {"$list"} if "messages" in tree else set(tree) == {"$ref"}
    assert manager.gc().objects == 0
    assert manager.verify().ok


def test_a_very_long_key_is_kept() -> None:
    manager = CheckpointManager()
    state = {"x" * (MAX_OBJECT + 1): 1, "b": 2}
    manager.save("key", {"dict": state})
    assert manager.state_dict("key") == {"dict": state}


def test_the_limits_fit_together() -> None:
    """What a writer counts a reader allows, and a log that stands in its entry has no leaf."""
    assert min(merkle_list.SEGMENT_BYTES, splitting.IN_ENTRY) >= 2 * reader._BYTES_PER_USE
    assert merkle_list.SMALLEST_LEAF > splitting.IN_ENTRY
    assert merkle_list.LARGEST_LEAF + splitting.IN_OBJECT < object_format.MAX_OBJECT
