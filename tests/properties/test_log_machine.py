"""A log in two stores, compared with plain lists at every step."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_checkpoint import Checkpointable, CheckpointManager, Log
from tests.unit.store.shelves import cut_small

ITEMS = st.one_of(
    st.integers(0, 3),
    st.text("ab", max_size=40),
    st.dictionaries(st.sampled_from(["a", "$ref"]), st.text("x", max_size=30), max_size=2),
    st.binary(max_size=30),
)
STORES = st.integers(0, 1)
KEYS = st.sampled_from(["one", "two"])


class LogAgent(Checkpointable):
    def __init__(self) -> None:
        self.log: Log[Any] = Log()


class LogMachine(RuleBasedStateMachine):
    """The model: the items, and for each store the items of each checkpoint, by key and id."""

    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        cut_small(self.patch)
        self.place = tempfile.TemporaryDirectory()
        path = Path(self.place.name) / "s"
        self.stores = [
            CheckpointManager(),
            CheckpointManager(backend="sqlite", path=path, durability="fast"),
        ]
        self.agent, self.model = LogAgent(), list[Any]()
        self.lines: list[dict[str, dict[str, list[Any]]]] = [{}, {}]

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                assert store.verify().ok
                store.close()
            self.place.cleanup()
            self.patch.undo()

    @rule(item=ITEMS)
    def append(self, item: Any) -> None:
        self.agent.log.append(item)
        self.model.append(item)

    @rule(items=st.lists(ITEMS, max_size=30))
    def extend(self, items: "list[Any]") -> None:
        self.agent.log.extend(items)
        self.model += items

    @precondition(lambda self: self.model)
    @rule(item=ITEMS)
    def replace(self, item: Any) -> None:
        self.agent.log[-1] = item
        self.model[-1] = item

    @rule(data=st.data())
    def truncate(self, data: Any) -> None:
        n = data.draw(st.integers(0, len(self.model)))
        self.agent.log.truncate(n)
        del self.model[n:]

    @rule(number=STORES, key=KEYS, behind=st.booleans())
    def save(self, number: int, key: str, behind: bool) -> None:
        store = self.stores[number]
        if behind:
            cid = store.save_in_background(key, self.agent).result()
        else:
            cid = store.save(key, self.agent)
        self.lines[number].setdefault(key, {})[cid] = list(self.model)
        assert store.state_dict(key)["log"] == self.model

    @rule(number=STORES, key=KEYS, data=st.data())
    def load(self, number: int, key: str, data: Any) -> None:
        line = self.lines[number].get(key)
        if line:
            cid = data.draw(st.sampled_from(sorted(line)))
            self.stores[number].load(key, self.agent, cid)
            self.model = list(line[cid])

    @rule(number=STORES, key=KEYS, data=st.data())
    def delete(self, number: int, key: str, data: Any) -> None:
        line = self.lines[number].get(key)
        if line:
            cid = data.draw(st.sampled_from(sorted(line)))
            self.stores[number].delete(key, cid)
            del line[cid]

    @rule(number=STORES, key=KEYS)
    def delete_key_and_gc(self, number: int, key: str) -> None:
        if self.lines[number].pop(key, None):
            self.stores[number].delete(key)
        self.stores[number].gc()

    @rule(number=STORES)
    def open_again(self, number: int) -> None:
        if number == 1:
            self.stores[1].close()
            path = Path(self.place.name) / "s"
            self.stores[1] = CheckpointManager(backend="sqlite", path=path, durability="fast")
        else:
            self.stores[0] = CheckpointManager(self.stores[0].store.backend)

    @rule(number=STORES)
    def everything_loads(self, number: int) -> None:
        for key, line in self.lines[number].items():
            for cid, items in line.items():
                assert self.stores[number].state_dict(key, cid)["log"] == items

    @invariant()
    def the_items_are_those_of_the_model(self) -> None:
        if hasattr(self, "agent"):
            assert self.agent.log == self.model


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
