"""The manager compared with a plain dict at every step, on every backend and format."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    KeepEvery,
    KeepLatest,
    NotFoundError,
)
from tests.agents import Agent

KEYS = st.sampled_from(["a", "A", "a/b", "..", "ü~1", "k@2"])
VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


class ManagerMachine(RuleBasedStateMachine):
    """The model: for each key the states by number, in a dict, and the highest number given out."""

    ids: Any = Bundle("ids")

    def open(self) -> CheckpointManager:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.manager = self.open()
        self.lines: dict[str, dict[int, Any]] = {}
        self.last: dict[str, int] = {}

    def teardown(self) -> None:
        self.place.cleanup()

    def note(self, key: str, cid: str, state: Any) -> tuple[str, str, int]:
        seq = int(cid.rpartition("-")[2])
        assert seq == self.last.get(key, 0) + 1
        self.last[key] = seq
        self.lines.setdefault(key, {})[seq] = copy.deepcopy(state)
        return key, cid, seq

    @rule(target=ids, key=KEYS, value=VALUES, way=st.sampled_from(["plain", "background"]))
    def save(self, key: str, value: Any, way: str) -> Any:
        agent = Agent()
        agent.memory = [value]
        if way == "plain":
            cid = self.manager.save(key, agent)
        else:
            cid = self.manager.save_in_background(key, agent).result()
        return self.note(key, cid, [value])

    @rule(target=ids, source=ids, key=KEYS)
    def fork(self, source: Any, key: str) -> Any:
        old, cid, seq = source
        if seq not in self.lines.get(old, {}):
            with pytest.raises(NotFoundError):
                self.manager.fork(old, key, cid)
            return source
        if self.lines.get(key):
            with pytest.raises(ConflictError):
                self.manager.fork(old, key, cid)
            return source
        return self.note(key, self.manager.fork(old, key, cid), self.lines[old][seq])

    @rule(source=ids)
    def load_by_id(self, source: Any) -> None:
        key, cid, seq = source
        agent = Agent()
        if seq not in self.lines.get(key, {}):
            with pytest.raises(NotFoundError):
                self.manager.load(key, agent, cid)
            assert agent.memory == []
        else:
            self.manager.load(key, agent, cid)
            assert agent.memory == self.lines[key][seq]

    @rule(source=ids)
    def save_as_the_only_writer(self, source: Any) -> None:
        key, cid, seq = source
        agent = Agent()
        if seq == max(self.lines.get(key, {}), default=0):
            self.note(key, self.manager.save(key, agent, expected_head=cid), [])
        else:
            with pytest.raises(ConflictError):
                self.manager.save(key, agent, expected_head=cid)

    @rule(source=ids)
    def delete_one(self, source: Any) -> None:
        key, cid, seq = source
        if self.lines.get(key, {}).pop(seq, None) is None:
            with pytest.raises(NotFoundError):
                self.manager.delete(key, cid)
        else:
            self.manager.delete(key, cid)

    @rule(key=KEYS)
    def delete_key(self, key: str) -> None:
        if self.lines.pop(key, None):
            self.manager.delete(key)
        else:
            with pytest.raises(NotFoundError):
                self.manager.delete(key)

    @rule(key=KEYS, n=st.integers(1, 3), every=st.integers(1, 4))
    def prune(self, key: str, n: int, every: int) -> None:
        line = self.lines.get(key)
        if not line:
            return
        self.manager.prune(key, KeepLatest(n) | KeepEvery(every))
        kept = {*sorted(line)[-n:], *(seq for seq in line if seq % every == 0)}
        self.lines[key] = {seq: state for seq, state in line.items() if seq in kept}

    @rule()
    def open_again(self) -> None:
        self.manager.close()
        self.manager = self.open()

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "manager"):
            return
        alive = {key: line for key, line in self.lines.items() if line}
        assert self.manager.list_keys() == sorted(alive)
        for key, line in alive.items():
            numbers = [row["id"].rpartition("-")[2] for row in self.manager.history(key)]
            assert [int(number) for number in numbers] == sorted(line, reverse=True)
            assert self.manager.state_dict(key)["memory"] == line[max(line)]
        assert self.manager.verify().ok


class FileMachine(ManagerMachine):
    def open(self) -> CheckpointManager:
        return CheckpointManager(backend="file", path=Path(self.place.name) / "s")


class SQLiteMachine(ManagerMachine):
    def open(self) -> CheckpointManager:
        return CheckpointManager(backend="sqlite", path=Path(self.place.name) / "s")

    def teardown(self) -> None:
        self.manager.close()
        super().teardown()


class PickleMachine(ManagerMachine):
    def open(self) -> CheckpointManager:
        return CheckpointManager(backend="file", path=Path(self.place.name) / "s", fmt="pickle")


class MemoryMachine(ManagerMachine):
    def open(self) -> CheckpointManager:
        # Memory has no second opening: the backend is handed on.
        self.backend = getattr(self, "backend", None) or CheckpointManager().store.backend
        return CheckpointManager(self.backend)


LIMITS = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestFile = FileMachine.TestCase
TestPickle = PickleMachine.TestCase
TestMemory = MemoryMachine.TestCase
TestSQLite = SQLiteMachine.TestCase
for machine in (TestFile, TestPickle, TestMemory, TestSQLite):
    machine.settings = LIMITS
