"""Copies between stores: what they bring, what they leave alone, and interrupted ones."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Backend,
    CheckpointManager,
    ConflictError,
    CountingBackend,
    InvalidInputError,
    KeepLatest,
    Log,
    MemoryBackend,
    NotFoundError,
    Session,
    StorageError,
    WrapperBackend,
    copy,
    tool,
)
from agent_checkpoint.store.archive import store_copy
from agent_checkpoint.store.objects import compression
from tests.unit.store.carried import Carried, fill
from tests.unit.store.counting import HookedBackend

KINDS = ("memory", "file", "sqlite")


def opened(kind: str, path: Path) -> CheckpointManager:
    return CheckpointManager() if kind == "memory" else CheckpointManager(backend=kind, path=path)


def content(manager: CheckpointManager, keys: "Iterable[str] | None" = None) -> "dict[str, Any]":
    """What a store holds: of each key the history, and each state."""
    found = {}
    for key in manager.list_keys() if keys is None else keys:
        rows = manager.history(key)
        states = [manager.state_dict(key, checkpoint_id=row["id"]) for row in rows]
        found[key] = [rows, [_plain(state) for state in states]]
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, Log) else value


@pytest.fixture
def source() -> CheckpointManager:
    manager = CheckpointManager()
    fill(manager)
    return manager


class Failing(WrapperBackend):
    """Raises from a chosen call on; that one is carried out before, if `after` is set."""

    def __init__(self, inner: Backend, fail_at: int, after: bool = False) -> None:
        super().__init__(inner)
        self.calls = 0
        self.fail_at = fail_at
        self.after = after

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        self.calls += 1
        is_over = self.calls >= self.fail_at
        if not is_over or (self.calls == self.fail_at and self.after):
            result = getattr(self.inner, name)(*args, **options)
        if is_over:
            raise StorageError("killed")
        return result

    def put_objects(self, *args: Any) -> None:
        self._call("put_objects", *args)

    def get_objects(self, *args: Any) -> Any:
        return self._call("get_objects", *args)

    def missing_objects(self, *args: Any) -> Any:
        return self._call("missing_objects", *args)

    def list_objects(self) -> Any:
        return self._call("list_objects")

    def append(self, *args: Any, **options: Any) -> int:
        return int(self._call("append", *args, **options))

    def read(self, *args: Any, **options: Any) -> Any:
        return self._call("read", *args, **options)

    def remove(self, *args: Any) -> None:
        self._call("remove", *args)

    def streams(self, *args: Any) -> Any:
        return self._call("streams", *args)


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("of", KINDS)
def test_a_copy_equals_its_source(tmp_path: Path, of: str, to: str) -> None:
    source, target = opened(of, tmp_path / "a"), opened(to, tmp_path / "b")
    fill(source)
    source.fork("key", "alt", "key@2")
    planned = copy(source, target, dry_run=True)
    assert target.list_keys() == []
    assert list(target.store.backend.list_objects()) == []
    report = copy(source, target)
    assert report == planned
    assert report.keys == ("alt", "key", "other")
    assert report.checkpoints == 8
    assert content(target) == content(source)
    assert target.verify().ok
    assert target.gc().objects == 0
    target.load("key", agent := Carried(), "key@2")
    assert agent.n == 2


def test_run_again_it_copies_what_is_new(source: CheckpointManager) -> None:
    target = CheckpointManager()
    copy(source, target)
    again = copy(source, target)
    assert (again.keys, again.checkpoints, again.objects, again.bytes) == ((), 0, 0, 0)
    assert again.skipped == ("key", "other")
    source.save("key", Carried(4))
    source.save("new", {"n": 1})
    more = copy(source, target)
    assert (more.keys, more.checkpoints) == (("key", "new"), 2)
    assert content(target) == content(source)


def test_only_missing_objects_are_sent(source: CheckpointManager) -> None:
    target = CheckpointManager()
    first = copy(source, target, ["key"])
    source.save("twin", Carried(5), label="shares all with key")
    second = copy(source, target)
    assert "twin" in second.keys
    assert second.objects < first.objects / 10
    assert content(target) == content(source)


def test_nothing_new_costs_round_trips_for_keys_not_for_checkpoints() -> None:
    def cost(checkpoints: int) -> "tuple[int, int]":
        source, target = MemoryBackend(), MemoryBackend()
        manager = CheckpointManager(source)
        for key in ("a", "b", "c"):
            for n in range(checkpoints):
                manager.save(key, {"n": n, "text": "x" * 5000})
        copy(source, target)
        reading, writing = CountingBackend(source), CountingBackend(target)
        copy(reading, writing)
        return reading.total.calls, writing.total.calls

    assert cost(3) == cost(300)
    assert max(cost(3)) <= 8 * 3


def test_new_checkpoints_are_asked_for_in_batches() -> None:
    source, target = MemoryBackend(), MemoryBackend()
    manager = CheckpointManager(source)
    for n in range(100):
        manager.save("key", {"n": n, "text": f"{n}" * 3000})
    counting = CountingBackend(target)
    copy(source, counting)
    assert counting.total.calls < 100 * 1.5


def test_a_key_comes_with_its_forks_and_with_what_it_was_forked_from() -> None:
    source = CheckpointManager()
    for n in range(4):
        source.save("main", {"n": n})
    source.fork("main", "alt", "main@2")
    source.save("alt", {"n": "alt"})
    source.fork("alt", "leaf", "alt@2")
    source.fork("main", "other", "main@3")
    source.save("unrelated", {})
    target = CheckpointManager()
    assert set(copy(source, target, ["alt"]).keys) == {"main", "alt", "leaf"}
    assert [row["id"] for row in target.history("main")] == [
        row["id"] for row in source.history("main")[2:]
    ]
    assert target.state_dict("leaf~2") == {"n": 0}
    assert copy(source, target, ["alt"]).checkpoints == 0
    assert set(copy(source, target, "main").keys) == {"main", "other"}
    assert content(target) == content(source, ["alt", "leaf", "main", "other"])


def test_a_pruned_fork_is_known_by_its_session_record() -> None:
    source = CheckpointManager()
    with Session("main", store=source) as session:
        with session.fork("alt") as fork:
            fork.messages.append({"role": "user", "content": "one"})
            fork.save()
        source.delete("alt", "alt@1")
    assert set(copy(source, CheckpointManager(), ["main"]).keys) == {"alt", "main"}


def test_unknown_keys_and_the_same_store_are_refused(source: CheckpointManager) -> None:
    with pytest.raises(NotFoundError, match="nope"):
        copy(source, CheckpointManager(), ["key", "nope"])
    with pytest.raises(InvalidInputError, match="same store"):
        copy(source, source)
    with pytest.raises(InvalidInputError, match="A store is"):
        copy(source, 7)  # type: ignore[arg-type]


def test_the_same_directory_is_the_same_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="same store"):
        copy(tmp_path / "a", f"sqlite://{tmp_path}/a")
    with pytest.raises(InvalidInputError, match="same store"):
        copy(f"sqlite://{tmp_path}/a?read_only=1", tmp_path / "a")


def test_a_read_only_source(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "a") as source:
        fill(source)
        copy(f"sqlite://{tmp_path}/a?read_only=1", tmp_path / "b")
        with CheckpointManager(tmp_path / "b") as target:
            assert content(target) == content(source)


# -- removed checkpoints -----------------------------------------------------------------------


def test_removed_checkpoints_leave_gaps_and_ids_stay(source: CheckpointManager) -> None:
    for n in range(30):
        source.save("key", {"n": n})
    source.prune("key", KeepLatest(3))
    backend = MemoryBackend()
    target = CheckpointManager(backend)
    copy(source, target)
    assert content(target) == content(source)
    assert not backend.read("meta/import")
    assert len(backend.read("key/key")) == 3


def test_a_copy_keeps_what_the_source_removes(source: CheckpointManager) -> None:
    target = CheckpointManager()
    copy(source, target)
    before = target.history("key")
    for n in range(5):
        source.save("key", {"n": n})
    source.prune("key", KeepLatest(2))
    copy(source, target)
    assert target.history("key") == source.history("key") + before


def test_the_head_was_removed_in_the_source(source: CheckpointManager) -> None:
    target = CheckpointManager()
    copy(source, target)
    lost = target.history("key")[0]
    source.delete("key", lost["id"])
    assert copy(source, target).checkpoints == 0
    source.save("key", {"n": "after"})
    copy(source, target)
    assert [row["id"] for row in target.history("key")][:3] == [
        source.history("key")[0]["id"],
        lost["id"],
        source.history("key")[1]["id"],
    ]


def test_a_key_that_was_deleted_and_made_again_is_no_sequel(source: CheckpointManager) -> None:
    target = CheckpointManager()
    copy(source, target)
    before = content(target)
    source.delete("key")
    source.save("key", {"another": "line"})
    with pytest.raises(ConflictError, match="'key' was deleted in the source and created again"):
        copy(source, target)
    assert content(target) == before
    target.delete("key")
    copy(source, target)
    assert target.state_dict("key") == {"another": "line"}
    assert len(target.history("key")) == 1


def test_a_crafted_gap_fills_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_copy, "_MOST_GAPS", 5)
    source = CheckpointManager()
    for n in range(8):
        source.save("key", {"n": n})
    source.prune("key", KeepLatest(1))
    target = CheckpointManager()
    with pytest.raises(InvalidInputError, match="Export the key to an archive"):
        copy(source, target)
    assert target.list_keys() == []


def test_a_key_that_was_deleted_in_the_target_is_copied_with_new_numbers(
    source: CheckpointManager,
) -> None:
    target = CheckpointManager()
    source.fork("key", "alt", "key@2")
    copy(source, target)
    target.delete("key")
    copy(source, target)
    assert [row["label"] for row in target.history("key")] == [
        row["label"] for row in source.history("key")
    ]
    numbers = {row["id"]: at for at, row in enumerate(target.history("key"))}
    originals = {row["id"]: at for at, row in enumerate(source.history("key"))}
    for ours, theirs in zip(target.history("key"), source.history("key")):
        assert [numbers.get(parent) for parent in ours["parents"]] == [
            originals.get(parent) for parent in theirs["parents"]
        ]
    with pytest.raises(KeyError), source.rollback_context("key", Carried(1)):
        raise KeyError
    source.fork("key", "late", "key@1")
    copy(source, target)
    assert target.history("late")[0]["parents"][0] in {row["id"] for row in target.history("key")}
    assert len(target.history("key")) == len(source.history("key"))
    assert copy(source, target).checkpoints == 0
    assert target.verify().ok


# -- the target has moved on ---------------------------------------------------------------------


def test_a_diverged_key_is_refused_and_the_first_difference_named(
    source: CheckpointManager,
) -> None:
    target = CheckpointManager()
    copy(source, target)
    own = target.save("key", {"mine": 1})
    target.save("key", {"mine": 2})
    assert copy(source, target).checkpoints == 0  # nothing is new
    source.save("key", {"theirs": 1})
    source.save("other", {"theirs": 1})
    before = content(target)
    with pytest.raises(ConflictError, match=f"'{own}' of the target is not in the source"):
        copy(source, target)
    assert content(target) == before
    assert copy(source, target, ["other"]).checkpoints == 1


def test_a_key_of_the_target_is_not_extended() -> None:
    first, second = CheckpointManager(), CheckpointManager()
    first.save("key", {"n": 1})
    copy(first, second)
    assert copy(second, first).skipped == ("key",)
    second.save("key", {"n": 2})
    with pytest.raises(ConflictError, match="was saved in the target, not copied"):
        copy(second, first)
    other = CheckpointManager()
    mine = other.save("key", {"n": 1})
    with pytest.raises(ConflictError, match=mine):
        copy(first, other)


def test_another_line_of_the_same_key_is_refused() -> None:
    first, second, target = (CheckpointManager() for _ in range(3))
    for n in range(3):
        first.save("key", {"n": n})
        second.save("key", {"n": n})
    copy(first, target)
    with pytest.raises(ConflictError, match=r"has diverged: the checkpoint 'key_.*-1' of"):
        copy(second, target)
    assert content(target) == content(first)


def test_a_fork_in_the_target_is_no_copy(source: CheckpointManager) -> None:
    target = CheckpointManager()
    copy(source, target)
    target.fork("key", "mine")
    source.save("mine", {"theirs": 1})
    with pytest.raises(ConflictError, match="'mine' has diverged"):
        copy(source, target)


# -- others at the same time ---------------------------------------------------------------------


def test_a_save_in_the_target_meanwhile_wins(source: CheckpointManager) -> None:
    backend = HookedBackend()
    target = CheckpointManager(backend)
    copy(source, target, ["other"])
    backend.before_append = lambda: target.save("key", {"mine": 1})
    with pytest.raises(ConflictError, match="'key' has diverged"):
        copy(source, target)
    assert target.state_dict("key") == {"mine": 1}


def test_two_copies_at_once(source: CheckpointManager) -> None:
    for n in range(20):
        source.save("key", {"n": n})
    source.prune("key", KeepLatest(12))
    backend = HookedBackend()
    target = CheckpointManager(backend)
    backend.before_append = lambda: copy(source, target)
    copy(source, backend)
    assert content(target) == content(source)
    assert not backend.read("meta/import")
    assert len(backend.read("key/key")) == 12


@pytest.mark.slow
def test_copies_in_several_threads(tmp_path: Path) -> None:
    source = CheckpointManager()
    for n in range(60):
        source.save(f"key {n % 2}", {"n": n, "text": f"{n} " * 2000})
    with CheckpointManager(tmp_path / "store") as target, ThreadPoolExecutor(4) as pool:
        for work in [pool.submit(copy, source, tmp_path / "store") for _ in range(4)]:
            work.result()
        assert content(target) == content(source)
        assert target.verify().ok


def test_a_copy_overtakes_another_in_its_gap(source: CheckpointManager) -> None:
    for n in range(9):
        source.save("key", {"n": n})
    source.prune("key", KeepLatest(2))
    backend = HookedBackend()
    target = CheckpointManager(backend)
    appended, hidden = backend.append, 0

    def append(stream: str, entry: bytes, **options: Any) -> int:
        nonlocal hidden
        hidden += stream == "key/key"
        if hidden == 4:
            hidden = 100
            copy(source, target)
        return appended(stream, entry, **options)

    backend.append = append  # type: ignore[method-assign]
    copy(source, target)
    assert [row["label"] for row in target.history("key")] == [None, None]
    assert content(target) == content(source)


def test_saves_beside_a_copy_are_a_later_copy(source: CheckpointManager) -> None:
    backend = HookedBackend()
    heads = source.history("key")
    backend.before_append = lambda: source.save("key", Carried(6))
    copy(source, backend)
    target = CheckpointManager(backend)
    assert target.history("key") == heads
    copy(source, target)
    assert content(target) == content(source)


class Asked(HookedBackend):
    """Calls something once, when it is asked for objects."""

    def __init__(self) -> None:
        super().__init__()
        self.when_asked: Any = None

    def missing_objects(self, ids: Iterable[str]) -> "set[str]":
        asked = list(ids)
        if asked and self.when_asked is not None:
            hook, self.when_asked = self.when_asked, None
            hook()
        return super().missing_objects(asked)


@pytest.mark.parametrize("when", ["when_asked", "before_append", "after_put"])
def test_gc_and_prune_of_the_source_beside_a_copy(source: CheckpointManager, when: str) -> None:
    def prune() -> None:
        source.prune("key", KeepLatest(1))
        source.gc()

    backend = Asked()
    setattr(backend, when, prune)
    copy(source, backend, ["key"])
    target = CheckpointManager(backend)
    assert target.history("key", 1) == source.history("key")
    assert target.verify().ok
    assert copy(source, target, ["key"]).checkpoints == 0


def test_gc_of_the_target_beside_a_copy(source: CheckpointManager) -> None:
    backend = HookedBackend()
    target = CheckpointManager(backend)
    swept = []
    backend.after_put = lambda: swept.append(target.gc().objects)
    copy(source, target)
    assert swept[0] > 0
    assert content(target) == content(source)
    assert target.verify().ok


def test_a_lost_object_of_the_source_is_an_error(source: CheckpointManager) -> None:
    names = [info.id for info in source.store.backend.list_objects()]
    source.store.backend.delete_objects(names)
    target = CheckpointManager()
    with pytest.raises(Exception, match="missing from the store"):
        copy(source, target, ["key"])
    assert target.list_keys() == []


@tool(effect="irreversible", key=lambda what: what)
def carry(what: str) -> str:
    carried.append(what)
    return f"carried {what}"


carried: "list[str]" = []


@pytest.mark.parametrize("with_effects", [False, True])
def test_a_session_that_went_on_elsewhere_comes_back(tmp_path: Path, with_effects: bool) -> None:
    """With effects, the ledger of the first store stays; the way back is a new store."""
    carried.clear()
    stores = first, second, third = [tmp_path / name for name in ("first", "second", "third")]
    for store in stores[:2]:
        with Session("work", store=store) as session:
            session.messages.append(store.name)
            if with_effects:
                carry("all")
                carry(store.name)
        if store == first:
            copy(first, second)
    hint = "to a new store" if with_effects else "delete this key"
    with pytest.raises(ConflictError, match=hint):
        copy(second, first)
    with CheckpointManager(first) as manager:
        manager.delete("work")
    if with_effects:
        with pytest.raises(ConflictError, match="to a new store"):
            copy(second, first)
    back = third if with_effects else first
    copy(second, back)
    with Session("work", store=back) as session:
        assert list(session.messages) == ["first", "second"]
        assert carry("all") == "carried all"
    assert carried.count("all") == 1


# -- killed --------------------------------------------------------------------------------------


def lines_to_copy() -> CheckpointManager:
    source = CheckpointManager()
    for n in range(4):
        source.save("key", {"n": n, "log": Log(f"{i} " * 40 for i in range(n * 40))}, tags=["t"])
    source.delete("key", "key@2")
    source.fork("key", "alt", "key@3")
    return source


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_call_and_run_again(after: bool) -> None:
    source = lines_to_copy()
    whole = content(source)
    at = 0
    while True:
        at += 1
        backend = MemoryBackend()
        try:
            copy(source, Failing(backend, at, after))
        except StorageError:
            pass
        else:
            break
        target = CheckpointManager(backend)
        for key, (rows, states) in content(target).items():  # a prefix, and all of it loads
            assert rows == whole[key][0][-len(rows) :]
            assert states == whole[key][1][-len(states) :]
        assert target.verify().ok
        copy(source, target)
        assert content(target) == whole
        assert target.verify().ok
        assert target.gc().objects == 0
        assert not backend.read("meta/import")
    assert at > 20


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_call_then_gc_and_run_again(after: bool) -> None:
    """gc removes the entries that fill gaps: numbers may differ then, and nothing else."""
    source = lines_to_copy()
    for at in range(1, 100):
        backend = MemoryBackend()
        try:
            copy(source, Failing(backend, at, after))
        except StorageError:
            pass
        else:
            return
        target = CheckpointManager(backend)
        target.gc()
        copy(source, target)
        assert [item[1] for item in content(target).values()] == [
            item[1] for item in content(source).values()
        ]
        assert copy(source, target).checkpoints == 0
        assert target.verify().ok
    raise AssertionError("the copy never ended")


def test_a_copy_of_zstd_objects_into_a_store_without_zstd(tmp_path: Path) -> None:
    if compression.load_zstd() is None:
        pytest.skip("needs zstd")
    source = CheckpointManager(backend="sqlite", path=tmp_path / "a", compression="zstd")
    fill(source)
    target = CheckpointManager(backend="sqlite", path=tmp_path / "b")
    copy(source, target)
    assert content(target) == content(source)
    stored = target.store.backend.get_objects(i.id for i in target.store.backend.list_objects())
    assert {data[:1] for data in stored.values()}.isdisjoint({compression.ZSTD_CODEC})
