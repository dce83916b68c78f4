"""Saves, forks, deletions and prunings in any order: gc leaves exactly what is needed."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from agent_checkpoint import CheckpointManager, KeepEvery, KeepLatest
from agent_checkpoint.store.objects.object_format import open_object
from tests.unit.store.shelves import cut_small

NAME = re.compile(rb'"([0-9a-f]{64})"')
KEYS = st.sampled_from(["a", "b", "c"])
STATES = st.fixed_dictionaries(
    {
        "list": st.lists(st.integers(0, 9), max_size=40),
        "text": st.text("ab", max_size=30),
        "dict": st.dictionaries(st.text("xyz", max_size=3), st.binary(max_size=20), max_size=6),
    }
)


def reachable(manager: CheckpointManager) -> "set[str]":
    """Return the names of all that entries need, found without the library's own walk."""
    backend = manager.store.backend
    found: set[str] = set()
    wanted: set[str] = set()
    for stream in backend.streams("key/"):
        for entry in backend.read(stream):
            body = entry.data[: entry.data.rindex(b'"sha256"')]
            wanted |= {name.decode() for name in NAME.findall(body)}
    while wanted:
        found |= wanted
        stored = backend.get_objects(wanted)
        assert stored.keys() == wanted
        refs = (open_object(name, data).refs for name, data in stored.items())
        wanted = set().union(*map(set, refs)) - found
    return found


class GcMachine(RuleBasedStateMachine):
    """The model: the states by key and id."""

    def open(self) -> CheckpointManager:
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        cut_small(self.patch)
        self.place = tempfile.TemporaryDirectory()
        self.manager = self.open()
        self.lines: dict[str, dict[str, Any]] = {}

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.gc()
            self.manager.close()
            self.place.cleanup()
            self.patch.undo()

    @rule(key=KEYS, state=STATES)
    def save(self, key: str, state: Any) -> None:
        self.lines.setdefault(key, {})[self.manager.save(key, state)] = state

    @rule(key=KEYS, item=st.integers(0, 9), place=st.integers(0, 40))
    def save_a_change(self, key: str, item: int, place: int) -> None:
        line = self.lines.get(key)
        if line:
            state = dict(line[max(line, key=lambda cid: int(cid.rpartition("-")[2]))])
            state["list"] = [*state["list"][:place], item, *state["list"][place:]]
            self.save(key, state)

    @rule(key=KEYS, new=KEYS, data=st.data())
    def fork(self, key: str, new: str, data: Any) -> None:
        if self.lines.get(key) and not self.lines.get(new):
            cid = data.draw(st.sampled_from(sorted(self.lines[key])))
            forked = self.manager.fork(key, new, cid)
            self.lines[new] = {forked: self.lines[key][cid]}

    @rule(key=KEYS, data=st.data())
    def delete(self, key: str, data: Any) -> None:
        if self.lines.get(key):
            cid = data.draw(st.sampled_from(sorted(self.lines[key])))
            self.manager.delete(key, cid)
            del self.lines[key][cid]

    @rule(key=KEYS)
    def delete_key(self, key: str) -> None:
        if self.lines.pop(key, None):
            self.manager.delete(key)

    @rule(key=KEYS, n=st.integers(1, 3), every=st.integers(1, 3))
    def prune(self, key: str, n: int, every: int) -> None:
        if self.lines.get(key):
            for cid in self.manager.prune(key, KeepLatest(n) | KeepEvery(every)):
                del self.lines[key][cid]

    @rule()
    def gc(self) -> None:
        needed = reachable(self.manager)
        before = {info.id for info in self.manager.store.backend.list_objects()}
        assert self.manager.gc(dry_run=True).objects == len(before - needed)
        assert self.manager.gc().objects == len(before - needed)
        after = {info.id for info in self.manager.store.backend.list_objects()}
        assert after == needed
        for key, line in self.lines.items():
            for cid, state in line.items():
                assert self.manager.state_dict(key, cid) == state
        assert self.manager.verify().ok


class MemoryGcMachine(GcMachine):
    def open(self) -> CheckpointManager:
        return CheckpointManager()


class SQLiteGcMachine(GcMachine):
    def open(self) -> CheckpointManager:
        path = Path(self.place.name) / "s"
        return CheckpointManager(backend="sqlite", path=path, durability="fast")


TestMemoryGc = MemoryGcMachine.TestCase
TestSQLiteGc = SQLiteGcMachine.TestCase
TestMemoryGc.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestSQLiteGc.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
