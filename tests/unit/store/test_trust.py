"""What a save asks for, and what it does when objects are lost."""

import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import pytest

from agent_checkpoint import (
    CheckpointManager,
    FileBackend,
    IntegrityError,
    Log,
    MemoryBackend,
    Workspace,
    WrapperBackend,
)
from agent_checkpoint.backends.base import Backend, BackendProperties
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.records import Draft
from agent_checkpoint.store.objects.object_format import make_object
from agent_checkpoint.store.objects.reader import fetch_objects
from agent_checkpoint.store.objects.references import CapturedState, ReusedPart
from agent_checkpoint.store.objects.trust import Trust, Vouchers, trust_of
from agent_checkpoint.store.store import Store


class AskedBackend(WrapperBackend):
    """Counts the names that saves ask for, and the names that appends require."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.asked = 0
        self.required: list[set[str]] = []
        self.written: set[str] = set()

    def missing_objects(self, ids: Iterable[str]) -> "set[str]":
        names = set(ids)
        self.asked += len(names)
        return super().missing_objects(names)

    def put_objects(self, objects: "Mapping[str, bytes]") -> None:
        self.written |= set(objects)
        super().put_objects(objects)

    def append(
        self, stream: str, entry: bytes, *, requires: Collection[str] = (), **options: Any
    ) -> int:
        self.required.append(set(requires))
        self.written |= set(options.get("objects", ()))
        return super().append(stream, entry, requires=requires, **options)

    def counted(self) -> int:
        """The number of names since the last call."""
        count = self.asked + sum(map(len, self.required))
        self.asked, self.required, self.written = 0, [], set()
        return count


class Nameless(AskedBackend):
    """Shares no trust with other instances, like one in another process."""

    @property
    def properties(self) -> BackendProperties:
        return self.inner.properties._replace(url=None)


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AskedBackend]:
    made = MemoryBackend() if request.param == "memory" else SQLiteBackend(tmp_path / "store")
    yield AskedBackend(made)
    made.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of 1,000 files."""
    place = tmp_path / "files"
    place.mkdir()
    for number in range(1000):
        (place / f"{number:04}.txt").write_text(f"file {number}")
    return place


def lose(backend: Backend, content: str) -> str:
    """Delete the object of a file behind the back of everyone; return its id."""
    name, _ = make_object(b"b", content.encode())
    inner = backend.inner if isinstance(backend, WrapperBackend) else backend
    inner.delete_objects([name])
    return name


# -- counts --------------------------------------------------------------------------------------


def test_names_asked_for_after_one_changed_file(backend: AskedBackend, place: Path) -> None:
    """The last snapshot vouches for the 999 other files."""
    manager = CheckpointManager(backend)
    workspace = Workspace(place)
    manager.save("a", {"files": workspace})
    for number in range(3):
        backend.counted()
        (place / "0500.txt").write_text(f"changed {number}")
        manager.save("a", {"files": workspace})
        assert backend.counted() == 1
    backend.counted()
    (place / "0700.txt").write_text("another part of the directory")
    (place / "new").mkdir()
    (place / "new" / "file").write_text("new")
    manager.save("a", {"files": workspace})
    assert backend.counted() == 1
    assert manager.verify().ok


def test_names_asked_for_in_a_file_store(tmp_path: Path) -> None:
    """It would sync the directory of each object that it is asked for."""
    for number in range(60):
        (tmp_path / "files" / f"{number % 3}").mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / f"{number % 3}" / f"{number}").write_text(str(number))
    backend = AskedBackend(FileBackend(tmp_path / "store"))
    manager = CheckpointManager(backend)
    workspace = Workspace(tmp_path / "files")
    manager.save("a", {"files": workspace})
    backend.counted()
    (tmp_path / "files" / "1" / "1").write_text("changed")
    manager.save("a", {"files": workspace})
    assert backend.counted() == 1
    assert manager.verify().ok


def test_a_new_process_asks_for_a_directory_once(place: Path, tmp_path: Path) -> None:
    """It has not written the last snapshot, and relies on it only after a save of its own."""
    CheckpointManager(f"sqlite://{tmp_path}/store").save("a", {"files": Workspace(place)})
    backend = Nameless(SQLiteBackend(tmp_path / "store"))
    manager = CheckpointManager(backend)
    workspace = Workspace(place)
    counts = []
    for number in range(3):
        backend.counted()
        (place / "0500.txt").write_text(f"changed {number}")
        manager.save("a", {"files": workspace})
        counts.append(backend.counted())
    assert 50 < counts[0] < 400
    assert counts[1:] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Log, list])
def test_names_asked_for_after_one_message(backend: AskedBackend, kind: Any) -> None:
    manager = CheckpointManager(backend)
    messages = kind({"n": n, "text": f"message {n} " * 20} for n in range(10_000))
    manager.save("a", {"messages": messages})
    counts = []
    for number in range(100):
        backend.counted()
        messages.append({"n": number, "text": f"more {number} " * 20})
        manager.save("a", {"messages": messages})
        counts.append(backend.counted())
    full_leaves = [count for count in counts if count != 1]
    assert 0 < len(full_leaves) < 10
    assert max(full_leaves) <= 4  # asked for because they are large: the leaf, and what names it
    assert manager.verify().ok


# -- gc beside savers ----------------------------------------------------------------------------


def test_a_checkpoint_that_was_swept_does_not_vouch(backend: AskedBackend, place: Path) -> None:
    manager = CheckpointManager(backend)
    workspace = Workspace(place)
    manager.save("a", {"files": workspace})
    other = CheckpointManager(backend.inner)
    other.delete("a")
    other.gc()
    (place / "0500.txt").write_text("changed")
    manager.save("a", {"files": workspace})
    assert manager.verify().ok


def test_a_pruned_checkpoint_costs_no_full_scan(backend: AskedBackend, place: Path) -> None:
    """Its objects are still there for another checkpoint: only its root is not."""
    manager = CheckpointManager(backend)
    workspace = Workspace(place)
    manager.save("a", {"files": workspace})
    other = CheckpointManager(backend.inner)
    (place / "1.txt").write_text("one more")
    other.save("b", {"files": Workspace(place)})
    other.delete("a")
    other.gc()
    backend.counted()
    (place / "0500.txt").write_text("changed")
    manager.save("a", {"files": workspace})
    assert len(backend.written) < 10
    assert manager.verify().ok


# -- lost objects --------------------------------------------------------------------------------


def find_by_verify(manager: CheckpointManager) -> None:
    assert not manager.verify().ok


def find_by_purge(manager: CheckpointManager) -> None:
    with pytest.raises(IntegrityError):
        manager.purge("a secret that is nowhere")


@pytest.mark.parametrize("find", [find_by_verify, find_by_purge])
def test_the_next_save_stores_a_lost_object_again(
    backend: AskedBackend, place: Path, find: Any
) -> None:
    """Although nothing was changed, and the directory itself is stored."""
    manager = CheckpointManager(backend)
    workspace = Workspace(place)
    manager.save("a", {"files": workspace})
    manager.save("other", {"n": 1})
    lost = lose(backend, "file 7")
    backend.counted()
    manager.save("a", {"files": workspace})
    assert lost not in backend.written  # nobody has noticed
    find(manager)
    manager.save("other", {"n": 2})
    manager.save("a", {"files": workspace})
    assert lost in backend.written
    assert manager.verify().ok
    backend.counted()
    (place / "0500.txt").write_text("changed")
    manager.save("a", {"files": workspace})
    assert backend.counted() == 1


def test_an_object_that_is_lost_twice_is_stored_twice(backend: AskedBackend, place: Path) -> None:
    manager = CheckpointManager(backend)
    workspace = Workspace(place)
    manager.save("a", {"files": workspace})
    for _ in range(2):
        lost = lose(backend, "file 7")
        assert not manager.verify().ok
        backend.counted()
        manager.save("a", {"files": workspace})
        assert lost in backend.written
    assert manager.verify().ok


def test_a_lost_part_of_a_log_is_stored_again(backend: AskedBackend) -> None:
    manager = CheckpointManager(backend)
    log = Log({"n": n, "text": f"message {n} " * 20} for n in range(2000))
    manager.save("a", {"log": log})
    sizes = sorted(backend.list_objects(), key=lambda info: info.size)
    backend.inner.delete_objects([sizes[-1].id])
    assert not manager.verify().ok
    manager.save("a", {"log": log})
    assert manager.verify().ok


def test_a_reused_part_is_no_full_scan(place: Path) -> None:
    """A save that carries the files over has not looked at them."""
    backend = AskedBackend(MemoryBackend())
    store = Store(backend)
    workspace = Workspace(place)
    capture = {"files": CapturedState(workspace, store.writer)}  # type: ignore[arg-type]
    first = store.write(Draft("a", capture))
    lost = lose(backend, "file 7")
    with pytest.raises(IntegrityError):
        list(fetch_objects(backend, [lost]))
    store.write(Draft("a", {"files": ReusedPart(first.parts["files"])}))
    backend.counted()
    store.write(Draft("a", {"files": CapturedState(workspace, store.writer)}))  # type: ignore[dict-item,arg-type]
    assert lost in backend.written


CHILD = """
import sys
from agent_checkpoint import CheckpointManager, Workspace
manager = CheckpointManager(f"{sys.argv[3]}://{sys.argv[1]}")
if sys.argv[4] == "lose":
    from tests.unit.store.test_trust import lose
    lose(manager.store.backend, "file 7")
elif sys.argv[4] == "verify":
    assert not manager.verify().ok
else:
    manager.save("a", {"files": Workspace(sys.argv[2])})
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_an_object_lost_in_another_process(place: Path, tmp_path: Path, kind: Any) -> None:
    """Lost, found and stored again, by this process and by new ones."""

    def child(what: str) -> None:
        arguments = [str(tmp_path / "store"), str(place), kind, what]
        subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, timeout=100)

    manager = CheckpointManager(f"{kind}://{tmp_path}/store")
    workspace = Workspace(place)
    manager.save("a", {"files": workspace})
    child("lose")
    assert not manager.verify().ok
    manager.save("a", {"files": workspace})
    assert manager.verify().ok
    child("lose")
    child("verify")
    child("save")
    assert manager.verify().ok


# -- the memory of it ----------------------------------------------------------------------------


def test_a_known_loss_ends_the_trust_once() -> None:
    trust = Trust()
    trust.report_lost(["a" * 64])
    trust.report_lost(["a" * 64])
    assert trust.epoch == 1
    trust.report_lost(["b" * 64])
    assert trust.epoch == 2
    trust.add([make_object(b"b", b"")], epoch=2)
    assert trust.epoch == 2


def test_objects_of_a_writer_from_before_a_loss_are_not_trusted() -> None:
    trust = Trust()
    leaf, _ = make_object(b"b", b"leaf")
    name, plain = make_object(b"t", b"", [leaf])
    trust.report_lost([leaf])
    trust.add([(name, plain)], epoch=0)
    assert trust.refs(name) == []
    trust.add([(name, plain)], epoch=1)
    assert trust.refs(name) == [leaf]
    assert Vouchers(trust, [name]).find({leaf}, {leaf}) == ({leaf}, {name})


def test_the_oldest_objects_are_forgotten() -> None:
    trust = Trust()
    objects = [
        make_object(b"d", b"%d" % number, [f"{number:064x}"] * 1000) for number in range(200)
    ]
    trust.add(objects, epoch=0)
    assert trust.refs(objects[0][0]) == []
    assert len(trust.refs(objects[-1][0])) == 1000


def test_instances_of_one_store_share_their_trust(tmp_path: Path) -> None:
    one, two = SQLiteBackend(tmp_path / "store"), SQLiteBackend(tmp_path / "store")
    first: Optional[Trust] = trust_of(one)
    assert trust_of(two) is first
    assert trust_of(MemoryBackend()) is not trust_of(MemoryBackend())


def test_a_change_in_a_tree_that_is_too_large_to_remember_requires_the_last_snapshot_only(
    backend: AskedBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_checkpoint.store.objects.trust._MAX_BYTES", 8000)
    place = tmp_path / "tree"
    for number in range(1000):
        path = place / f"{number % 10}" / f"{number % 100}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}")
    workspace = Workspace(place, CheckpointManager(backend))
    last = workspace.snapshot()
    for name in ("7/57/57", "3/new", "4/44/new", "0/0/0"):
        backend.counted()
        (place / name).write_text(f"another {name}")
        tree = workspace.snapshot()
        assert backend.required == [{last.ref}]
        last = tree


def test_a_snapshot_is_complete_if_the_one_that_vouches_for_it_was_deleted(
    backend: AskedBackend, place: Path
) -> None:
    manager = CheckpointManager(backend)
    workspace = Workspace(place, manager)
    below = place / "one"
    below.mkdir()
    (below / "file").write_text("kept")
    workspace.snapshot()
    manager.delete(workspace.key)
    manager.gc()
    (below / "other").write_text("new")
    workspace.snapshot()
    assert manager.verify().ok
    assert backend.counted()
