"""F8, F9: gc beside saves, damage and clocks: what is needed stays, whatever happens."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    IntegrityError,
    KeepLatest,
    Log,
    MemoryBackend,
    NotFoundError,
    StorageError,
)
from agent_checkpoint.backends.base import Changes
from agent_checkpoint.errors import MissingObjectsError
from agent_checkpoint.records import Draft
from agent_checkpoint.store.maintenance import gc as gc_module
from agent_checkpoint.store.objects import object_format, writer
from agent_checkpoint.store.objects.object_format import (
    NODE,
    SPINE,
    TEXT,
    TerminalRef,
    make_object,
    open_object,
)
from tests.unit.store.counting import HookedBackend


def state(seed: int, items: int = 300) -> "dict[str, Any]":
    numbers = random.Random(seed)
    texts = [{"n": n, "text": numbers.randbytes(100).hex()} for n in range(items)]
    return {"items": texts, "long": numbers.randbytes(2000).hex()}


BIG = {"items": [{"n": n, "text": state(n, 0)["long"]} for n in range(300)]}


def ids(backend: MemoryBackend) -> "set[str]":
    return {info.id for info in backend.list_objects()}


@pytest.fixture
def backend() -> HookedBackend:
    return HookedBackend()


@pytest.fixture
def manager(backend: HookedBackend) -> CheckpointManager:
    return CheckpointManager(backend)


def doom(manager: CheckpointManager, saved: Any) -> None:
    """Leave the objects of a state behind that no checkpoint needs."""
    manager.save("doomed", saved)
    manager.delete("doomed")


def fresh(backend: MemoryBackend) -> CheckpointManager:
    return CheckpointManager(backend)


def test_a_dry_run_tells_what_gc_then_deletes(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    manager.save("key", state(1))
    kept = ids(backend)
    doom(manager, state(2))
    before = {info.id: info.size for info in backend.list_objects()}
    told = manager.gc(dry_run=True)
    assert {info.id: info.size for info in backend.list_objects()} == before
    assert told.bytes == sum(size for name, size in before.items() if name not in kept)
    assert manager.gc() == told
    assert ids(backend) == kept
    assert manager.gc().objects == 0


def test_pruning_and_gc_make_room_for_all_but_what_is_shared(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    log = Log(state(1)["items"])
    for n in range(20):
        log.append(n)
        manager.save("key", {"log": log, "own": state(n)["long"]})
    manager.prune("key", KeepLatest(2))
    before = len(ids(backend))
    assert manager.gc().objects > 18
    assert len(ids(backend)) < before
    assert manager.state_dict("key~1")["log"] == log[:-1]


def test_gc_between_looking_and_committing(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    doom(manager, state(1))
    reports = []
    backend.before_append = lambda: reports.append(fresh(backend).gc())
    manager.save("key", state(1))  # reuses what is doomed, and finds out when it commits
    assert reports[0].objects > 3
    assert fresh(backend).state_dict("key") == state(1)
    assert fresh(backend).verify().ok


def test_a_log_whose_objects_gc_took_before_the_commit(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    log = Log(state(1)["items"])
    doom(manager, {"log": log})
    log.append("more")
    backend.before_append = fresh(backend).gc
    manager.save("key", {"log": log})
    assert fresh(backend).state_dict("key")["log"] == log
    assert fresh(backend).verify().ok


def test_a_save_within_the_sweep_keeps_what_it_reuses(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    doom(manager, state(1))
    doom(manager, state(2))
    backend.in_sweep = lambda: fresh(backend).save("key", state(1))
    assert manager.gc().objects > 3  # those of the second state
    assert fresh(backend).state_dict("key") == state(1)
    assert fresh(backend).verify().ok
    assert manager.gc().objects == 0


def test_a_save_that_never_finds_its_objects_gives_up(
    manager: CheckpointManager, backend: HookedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.save("key", state(1))
    tries = []

    def refuse(stream: str, entry: bytes, **options: Any) -> int:
        tries.append(options["objects"])
        raise MissingObjectsError(["ab" * 32])

    monkeypatch.setattr(backend, "append", refuse)
    with pytest.raises(MissingObjectsError):
        manager.save("key", state(2))
    assert 1 < len(tries) < 20
    monkeypatch.undo()
    assert fresh(backend).state_dict("key") == state(1)


def test_gc_between_two_batches_of_a_large_save(
    manager: CheckpointManager, backend: HookedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_BATCH", 100_000)
    backend.after_put = fresh(backend).gc
    manager.save("key", BIG)
    assert fresh(backend).verify().problems == ()


def test_a_save_after_one_that_was_killed_between_batches(
    manager: CheckpointManager, backend: HookedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_BATCH", 100_000)
    manager.save("other", {})

    def kill() -> None:
        raise KeyboardInterrupt

    backend.after_put = fresh(backend).gc
    backend.before_append = kill
    with pytest.raises(KeyboardInterrupt):
        manager.save("key", BIG)
    fresh(backend).save("key", BIG)
    assert fresh(backend).verify().problems == ()


def test_gc_between_two_batches_of_an_import(
    backend: HookedBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = CheckpointManager()
    source.save("key", BIG)
    source.export_archive(tmp_path / "a", "key")
    monkeypatch.setattr(object_format, "_BATCH", 100_000)
    backend.after_put = fresh(backend).gc
    fresh(backend).import_archive(tmp_path / "a")
    assert fresh(backend).verify().problems == ()


def test_an_object_that_lies_about_another_takes_nothing_from_it(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    """As an archive may bring it, crafted so that gc does not look below what others need."""
    manager.save("victim", {"list": [f"{n}" * 50 for n in range(20_000)]})
    objects = {name: open_object(name, backend.get_objects([name])[name]) for name in ids(backend)}
    lies = [TerminalRef(name) for name, found in objects.items() if found.kind in (NODE, SPINE)]
    name, packed = make_object(TEXT, b"{}", lies)
    backend.put_objects({name: packed.stored()})
    source = manager.store.head("victim")
    manager.store.write(Draft("evil", {"agent": {"x": {"$ref": name}}}, source=source))
    manager.gc()
    assert not [row for row in fresh(backend).verify().problems if "victim" in row.checkpoint]


# -- what gc refuses ------------------------------------------------------------------------------


def spoil(backend: MemoryBackend, name: str, data: "bytes | None") -> None:
    if data is None:
        del backend._objects[name]
    else:
        backend._objects[name] = (data, backend._objects[name][1])


@pytest.mark.parametrize("data", [None, b"", b"rubbish", b"zz"])
def test_gc_deletes_nothing_if_it_cannot_tell_what_is_needed(
    manager: CheckpointManager, backend: HookedBackend, data: "bytes | None"
) -> None:
    manager.save("key", state(1))
    tree: Any = manager.store.head("key")
    root = tree.parts["agent"]["items"]["$list"]
    doom(manager, state(2))
    spoil(backend, root, data)
    before = ids(backend)
    with pytest.raises(IntegrityError, match=root):
        manager.gc()
    assert ids(backend) == before


def test_gc_deletes_nothing_beside_a_damaged_entry_of_any_stream(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    doom(manager, state(1))
    backend.append("fx/effects", b"rubbish")
    before = ids(backend)
    with pytest.raises(IntegrityError, match="fx/effects"):
        manager.gc()
    assert ids(backend) == before


def test_a_damaged_object_that_nothing_needs_goes(
    manager: CheckpointManager, backend: HookedBackend
) -> None:
    manager.save("key", state(1))
    kept = ids(backend)
    doom(manager, state(2))
    for name in ids(backend) - kept:
        spoil(backend, name, b"rubbish")
    manager.gc()
    assert ids(backend) == kept


def test_a_clock_that_was_set_back_stops_gc(
    manager: CheckpointManager, backend: HookedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    doom(manager, state(1))
    before = ids(backend)
    now = time.time()
    monkeypatch.setattr(gc_module.time, "time", lambda: now - 3600)
    with pytest.raises(StorageError, match="clock"):
        manager.gc()
    with pytest.raises(StorageError, match="clock"):
        manager.gc(dry_run=True)
    assert ids(backend) == before
    assert manager.gc(ignore_clock=True).objects == len(before)
    assert not ids(backend)


def test_parents_go_before_what_they_refer_to(
    manager: CheckpointManager, backend: HookedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager.save("key", {"list": [f"{n}" * 50 for n in range(20_000)]})
    manager.delete("key")
    refs = {name: open_object(name, data[0]).refs for name, data in backend._objects.items()}
    order: list[str] = []
    monkeypatch.setattr(backend, "delete_objects", order.extend)
    manager.gc()
    place = {name: at for at, name in enumerate(order)}
    assert place.keys() == refs.keys()
    assert all(place[name] < place[ref] for name in refs for ref in refs[name])


class ForgetfulBackend(MemoryBackend):
    """Lets somebody save and delete again between gc's looking and its sweep."""

    meanwhile: Any = None

    def delete_objects(self, ids: "Iterable[str]") -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().delete_objects(ids)


def test_what_came_and_went_before_the_sweep_keeps_what_it_refers_to() -> None:
    backend = ForgetfulBackend()
    manager = CheckpointManager(backend)
    longer = {"items": [*state(1)["items"], "one more"]}

    def come_and_go() -> None:
        CheckpointManager(backend).save("key", longer)
        CheckpointManager(backend).delete("key")

    manager.save("other", {"a": 1})
    doom(manager, {"items": state(1)["items"]})
    backend.meanwhile = come_and_go
    manager.gc()
    assert manager.verify().ok
    fresh(backend).save("key", longer)
    assert fresh(backend).state_dict("key") == longer
    manager.delete("key")
    manager.gc()
    assert ids(backend) == set()


class RacedBackend(MemoryBackend):
    """Lets somebody in before objects are read, at first or after some calls."""

    meanwhile: Any = None
    calls = 0

    def get_objects(self, ids: "Iterable[str]") -> "dict[str, bytes]":
        if self.meanwhile is not None and self.calls == 0:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        self.calls -= 1
        return super().get_objects(ids)


@pytest.mark.parametrize(
    "verb",
    [
        lambda manager: manager.load("key", {}),
        lambda manager: manager.state_dict("key"),
        lambda manager: manager.gc(),
        lambda manager: manager.stats(),
        lambda manager: manager.verify().ok or pytest.fail("not ok"),
        lambda manager: manager.diff("key", agent={"a": 1}),
    ],
    ids=["load", "state_dict", "gc", "stats", "verify", "diff"],
)
def test_what_is_pruned_and_collected_while_it_is_read_is_not_damage(verb: Any) -> None:
    backend = RacedBackend()
    other = CheckpointManager(backend)
    other.save("key", state(1))

    def move_on() -> None:
        other.save("key", state(2))
        other.prune("key", KeepLatest(1))
        other.gc()

    backend.meanwhile = move_on
    verb(CheckpointManager(backend))
    assert backend.meanwhile is None
    assert CheckpointManager(backend).state_dict("key") == state(2)


SECRET = "sk-live-0123456789"


def raced(verb: Any, at: int, then: Any) -> "CheckpointManager | None":
    """Have a key move on, and its past collected, at a moment of a verb; None if it has no such."""
    backend = RacedBackend()
    other = CheckpointManager(backend)
    other.save("key", state(1))
    other.save("key", {**state(2), "secret": SECRET * 100})

    def move_on() -> None:
        if then is None:
            other.delete("key")
        else:
            other.save("key", then)
            other.prune("key", KeepLatest(1))
        other.gc()

    backend.meanwhile, backend.calls = move_on, at
    verb(CheckpointManager(backend))
    return CheckpointManager(backend) if backend.meanwhile is None else None


def test_an_export_passes_over_what_is_pruned_and_collected_meanwhile(tmp_path: Path) -> None:
    counts: list[int] = []
    moments = 0
    while raced(
        lambda manager: counts.append(manager.export_archive(tmp_path / "a", "key")),
        moments,
        state(3),
    ):
        reader = CheckpointManager()
        reader.import_archive(tmp_path / "a")
        assert reader.verify().ok
        assert reader.gc().objects == 0  # nothing in it of what it passed over
        assert len(reader.history("key")) == counts[-1]
        for row in reader.history("key"):
            assert reader.state_dict("key", row["id"])["long"] in [
                state(n)["long"] for n in (1, 2, 3)
            ]
        moments += 1
    assert counts[0] == 1
    assert counts[-2:] == [2, 2]
    assert moments > 3


def test_an_export_of_a_key_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        raced(lambda manager: manager.export_archive(tmp_path / "a", "key"), 0, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.slow
def test_a_purge_beside_somebody_who_prunes_and_collects(leaks: bool) -> None:
    """Whatever the moment: what is then the head is kept, or blotted out if it holds the secret."""
    then = state(3)
    if leaks:
        then["secret"] = SECRET * 100
    moments = 0
    while manager := raced(lambda manager: manager.purge(SECRET), moments, then):
        found = manager.state_dict("key")
        assert found["items"] == then["items"]
        if not leaks:
            assert found == then
        elif manager.purge(SECRET, dry_run=True).checkpoints == []:
            assert found == {**then, "secret": "[purged]" * 100}
        assert manager.verify().ok
        moments += 1
    assert moments > 10


def test_a_purge_finds_what_is_saved_while_it_looks() -> None:
    then = {**state(3), "secret": SECRET * 100}
    manager = raced(lambda manager: manager.purge(SECRET), 0, then)
    assert manager is not None
    assert manager.state_dict("key") == {**then, "secret": "[purged]" * 100}


def test_a_purge_that_lacks_an_object_still_tells() -> None:
    backend = MemoryBackend()
    manager = CheckpointManager(backend)
    manager.save("key", state(1))
    backend.delete_objects([min(ids(backend))])
    with pytest.raises(IntegrityError, match="cannot be searched"):
        CheckpointManager(backend).purge(SECRET)


def test_a_fork_of_what_is_pruned_and_collected_meanwhile(backend: HookedBackend) -> None:
    other, manager = CheckpointManager(backend), CheckpointManager(backend)
    first = other.save("key", state(1))

    def move_on() -> None:
        other.save("key", state(2))
        other.prune("key", KeepLatest(1))
        other.gc()

    backend.before_append = move_on
    manager.fork("key", "fork")
    assert manager.state_dict("fork") == state(2)
    with pytest.raises(NotFoundError):
        manager.fork("key", "another", first)
    assert manager.verify().ok


def test_a_stream_is_read_once_a_look(manager: CheckpointManager, backend: MemoryBackend) -> None:
    """With 40,000 keys that is most of what gc does, also while nobody can commit."""
    for n in range(20):
        manager.save(f"key {n}", state(n, 0))
    reads: Counter[str] = Counter()
    read = backend.read

    def counting(stream: str, **which: Any) -> Any:
        reads[stream] += 1
        return read(stream, **which)

    backend.read = counting  # type: ignore[method-assign]
    manager.gc()
    assert {reads[f"key/key {n}"] for n in range(20)} == {1}


class NumberedBackend(MemoryBackend):
    """Finds changes since a position, so that gc deletes in several sweeps."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, str]] = []
        self.sweeps: list[list[str]] = []
        self.read_streams: list[str] = []
        self.before_sweep: Any = lambda number: None

    def put_objects(self, objects: Any) -> None:
        super().put_objects(objects)
        self.writes += [("object", name) for name in objects]

    def append(self, stream: str, entry: bytes, **options: Any) -> int:
        self.writes.append(("stream", stream))
        return super().append(stream, entry, **options)

    def read(self, stream: str, **which: Any) -> Any:
        self.read_streams.append(stream)
        return super().read(stream, **which)

    def changes(self, position: Any = None) -> Changes:
        everything = super().changes()
        new = self.writes[position or 0 :]
        streams = [name for name in everything.streams if not position or ("stream", name) in new]
        objects = [
            info for info in everything.objects if not position or ("object", info.id) in new
        ]
        return Changes(streams, objects, len(self.writes))

    def delete_objects(self, ids: "Iterable[str]") -> None:
        self.before_sweep(len(self.sweeps))
        self.sweeps.append([])

        def noted() -> "Iterator[str]":
            for name in ids:
                self.sweeps[-1].append(name)
                yield name

        super().delete_objects(noted())


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> NumberedBackend:
    monkeypatch.setattr(gc_module, "_SWEEP_OBJECTS", 2)
    return NumberedBackend()


def test_sweeps_are_short_and_read_only_streams_that_changed(numbered: NumberedBackend) -> None:
    manager = CheckpointManager(numbered)
    for n in range(20):
        manager.save(f"key {n}", state(n, 0))
    doom(manager, state(99))
    present = ids(numbered)

    reads: list[list[str]] = []

    def begin(number: int) -> None:
        reads.append(numbered.read_streams[:])
        if number == 1:
            CheckpointManager(numbered).save("key 3", {"small": 1})
        numbered.read_streams.clear()

    numbered.before_sweep = begin
    report = manager.gc()
    assert len(numbered.sweeps) > 3
    assert max(map(len, numbered.sweeps)) <= 2
    assert sum(map(len, numbered.sweeps)) == report.objects == len(present - ids(numbered))
    assert reads[1:4] == [[], ["key/key 3"], []]  # of the sweeps 0, 1 and 2
    assert manager.verify().ok


def test_the_bytes_of_a_sweep_are_bounded(
    numbered: NumberedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_module, "_SWEEP_OBJECTS", 1000)
    monkeypatch.setattr(gc_module, "_SWEEP_BYTES", 1)
    manager = CheckpointManager(numbered)
    doom(manager, state(1))
    manager.gc()
    assert {len(sweep) for sweep in numbered.sweeps} == {1}
    assert ids(numbered) == set()


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("when", range(6))
def test_a_save_between_two_sweeps_keeps_what_it_reuses(
    numbered: NumberedBackend, when: int, is_removed: bool
) -> None:
    """Also what an earlier sweep deleted and the save wrote again, and if it is removed again."""
    manager = CheckpointManager(numbered)
    manager.save("other", {"a": 1})
    doom(manager, {"items": state(1)["items"]})

    def save(number: int) -> None:
        if number == when:
            CheckpointManager(numbered).save("key", {"items": state(1)["items"]})
            if is_removed:
                CheckpointManager(numbered).delete("key")

    numbered.before_sweep = save
    manager.gc()
    assert len(numbered.sweeps) > when
    for item in (
        open_object(name, data) for name, data in numbered.get_objects(ids(numbered)).items()
    ):
        assert not numbered.missing_objects(item.refs)
    assert manager.verify().ok
    if not is_removed:
        assert manager.state_dict("key") == {"items": state(1)["items"]}
    if not is_removed:
        manager.delete("key")
    manager.gc()
    assert ids(numbered) == set()
