"""Random histories, copied in increments: the target equals the source, whatever happened to it."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import (
    CheckpointManager,
    KeepLatest,
    Log,
    MemoryBackend,
    NotFoundError,
    Session,
    StorageError,
    copy,
    tool,
)
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.lineage import lineages
from tests.unit.store.archive.test_store_copy import Failing, content

KEYS = st.sampled_from(["a", "b", "workspace:/c"])
NUMBERS = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), KEYS, NUMBERS),
        st.tuples(st.just("fork"), KEYS, NUMBERS),
        st.tuples(st.just("rollback"), KEYS, NUMBERS),
        st.tuples(st.just("delete"), KEYS, NUMBERS),
        st.tuples(st.just("prune"), KEYS, NUMBERS),
        st.tuples(st.just("session"), st.sampled_from(["s", "t"]), NUMBERS),
        st.tuples(st.just("session rollback"), st.just("s"), NUMBERS),
        st.tuples(st.just("session fork"), st.just("s"), NUMBERS),
        st.tuples(st.just("gc"), KEYS, NUMBERS),
        st.tuples(st.just("copy"), KEYS, NUMBERS),
        st.tuples(st.just("killed copy"), KEYS, st.integers(1, 60)),
    ),
    min_size=3,
    max_size=25,
)


@tool(effect="irreversible", key=lambda what: f"{what}")
def deliver(what: int) -> str:
    return f"delivered {what}"


class Histories:
    """A source, a target, and what the target must hold."""

    def __init__(self, source: CheckpointManager, target: CheckpointManager) -> None:
        self.source = source
        self.target = target
        self.count = 0
        self.rows: dict[str, dict[str, Any]] = {}
        self.states: dict[str, Any] = {}

    def step(self, what: str, key: str, number: int) -> None:
        self.count += 1
        getattr(self, "_" + what.replace(" ", "_"))(key, number)

    def _save(self, key: str, number: int) -> None:
        log = Log({"n": n, "text": "long enough " * 9} for n in range(number * 12))
        self.source.save(key, {"n": self.count, "log": log}, tags=["t"] * (number % 2), label="é")

    def _chosen(self, key: str, number: int) -> "str | None":
        if key not in self.source.list_keys():
            return None
        rows = self.source.history(key)
        return rows[number % len(rows)]["id"]

    def _fork(self, key: str, number: int) -> None:
        chosen = self._chosen(key, number)
        if chosen is not None:
            self.source.fork(key, f"fork {self.count}", chosen)

    def _rollback(self, key: str, number: int) -> None:
        if self._chosen(key, number) is None:
            return
        with suppress(KeyError), self.source.rollback_context(key, log := Log([number])):
            log.append("changed")
            self.source.save(key, log)
            raise KeyError

    def _delete(self, key: str, number: int) -> None:
        chosen = self._chosen(key, number)
        if chosen is not None and len(self.source.history(key)) > 1:
            self.source.delete(key, chosen)

    def _prune(self, key: str, number: int) -> None:
        if self._chosen(key, number) is not None:
            self.source.prune(key, KeepLatest(number + 1))

    def _session(self, key: str, number: int) -> None:
        with Session(key, store=self.source) as session:
            deliver(number)
            session.messages.append({"role": "user", "content": f"{self.count}"})

    def _session_rollback(self, key: str, number: int) -> None:
        with suppress(NotFoundError), Session(key, store=self.source) as session:
            session.rollback(steps=1, effects="warn")  # perhaps there is nothing before

    def _session_fork(self, key: str, number: int) -> None:
        with Session(key, store=self.source) as session, session.fork(f"s{self.count}") as fork:
            fork.messages.append({"role": "user", "content": "fork"})

    def _gc(self, key: str, number: int) -> None:
        self.source.gc()
        if number % 2 and not self.target.store.imports():  # else numbers may differ
            self.target.gc()

    def _copy(self, key: str, number: int) -> None:
        copy(self.source, self.target)
        for name, (rows, states) in content(self.source).items():
            for row, state in zip(rows, states):
                self.rows.setdefault(name, {})[row["id"]] = row
                self.states[row["id"]] = state
        self.check()

    def _killed_copy(self, key: str, number: int) -> None:
        """Copy, and be killed at a call. What was copied by then is there, whatever comes."""
        failing = Failing(self.target.store.backend, number, after=bool(number % 2))
        now = content(self.source)
        with suppress(StorageError):
            copy(self.source, failing)
        for name in self.target.list_keys():
            known = {row["id"] for row in self.target.history(name)}
            for row, state in zip(*now.get(name, ([], []))):
                if row["id"] in known:
                    self.rows.setdefault(name, {})[row["id"]] = row
                    self.states[row["id"]] = state

    def check(self) -> None:
        held = content(self.target)
        assert held.keys() == self.rows.keys()
        for key, (rows, states) in held.items():
            assert {row["id"]: row for row in rows} == self.rows[key]
            assert states == [self.states[row["id"]] for row in rows]
            numbers = [int(row["id"].rpartition("-")[2]) for row in rows]
            assert numbers == sorted(numbers, reverse=True)
        for lineage in lineages(self.source.store):
            theirs, ours = (
                Ledger(manager.store, lineage) for manager in (self.source, self.target)
            )
            theirs.refresh()
            ours.refresh()
            assert [(one.id, one.status, one.seq) for one in ours.all_effects()] == [
                (one.id, one.status, one.seq) for one in theirs.all_effects()
            ]
        assert self.target.verify().ok


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_increments_between_split_stores(steps: "list[tuple[str, str, int]]") -> None:
    run(steps, CheckpointManager(MemoryBackend()), CheckpointManager(MemoryBackend()))


@given(STEPS, st.booleans())
@settings(max_examples=8, deadline=None)
def test_increments_to_and_from_files(steps: "list[tuple[str, str, int]]", to_files: bool) -> None:
    with TemporaryDirectory() as place:
        files = CheckpointManager(backend="file", path=Path(place, "store"))
        other = CheckpointManager(MemoryBackend())
        run(steps, *((other, files) if to_files else (files, other)))


def run(
    steps: "list[tuple[str, str, int]]", source: CheckpointManager, target: CheckpointManager
) -> None:
    histories = Histories(source, target)
    for step in steps:
        histories.step(*step)
    histories.step("copy", "a", 0)
