"""Parts that are snapshots held elsewhere: taken, restored and let go with the checkpoints."""

import shutil
import subprocess
import time

import pytest

from agent_checkpoint import CheckpointManager, External, KeepLatest, Session
from agent_checkpoint.core import external_snapshot as module
from agent_checkpoint.errors import InvalidInputError, StateError, StateMismatchError
from agent_checkpoint.store.record_stream import RecordStream
from tests.agents import Agent
from tests.unit.workspace.fork.test_tree_copy import loop_disk


class Machine:
    """Something whose snapshots somebody else holds."""

    def __init__(self):
        self.present = "empty"
        self.snapshots = {}
        self.taken = 0
        self.restores = []
        self.fails = set()
        self.part = External("machine", take=self.take, restore=self.restore, release=self.release)

    def take(self):
        if "take" in self.fails:
            raise OSError("no space")
        self.taken += 1
        handle = {"id": self.taken, "kind": ("vm", 1)}
        self.snapshots[self.taken] = self.present
        return handle

    def restore(self, handle):
        if handle["id"] in self.fails:
            self.present = "half"
            raise OSError("no such disk")
        self.restores.append(handle["id"])
        self.present = self.snapshots[handle["id"]]

    def release(self, handle):
        assert handle["kind"] == ("vm", 1)
        del self.snapshots[handle["id"]]

    @property
    def held(self):
        return sorted(set(self.snapshots.values()))


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def session(store, machine):
    parts = {"machine": machine.part}
    session = Session("job", agent=Agent(), store=store, parts=parts)
    yield session
    session.close()


def step(session, machine, words):
    machine.present = session.agent.count = words
    return session.save(label=words)


def age(monkeypatch, days):
    """Let days pass for what waits for a day."""
    real = time.time_ns
    monkeypatch.setattr(module.time, "time_ns", lambda: real() + days * 86_400 * 10**9)


def test_it_goes_back_and_forth_with_the_rest(session, machine):
    for words in ("one", "two", "three"):
        step(session, machine, words)
    machine.present = "not saved"
    session.rollback()
    assert (machine.present, session.agent.count) == ("two", "two")
    session.rollback()
    assert machine.present == "one"
    session.undo()
    assert machine.present == "two"
    session.rollback(parts=["agent"], to="job@4")
    assert (machine.present, session.agent.count) == ("two", "three")
    session.rollback(parts=["machine"], to="job@2")
    assert (machine.present, session.agent.count) == ("one", "three")


def test_a_dry_run_neither_takes_nor_restores(session, machine):
    step(session, machine, "one")
    step(session, machine, "two")
    taken = machine.taken
    session.rollback(dry_run=True)
    assert (machine.present, machine.taken, machine.restores) == ("two", taken, [])


def test_it_is_resumed(session, machine):
    step(session, machine, "one")
    machine.present = "lost in a crash"
    agent = Agent()
    with Session(
        "job", agent=agent, store=session.manager, parts={"machine": machine.part}
    ) as again:
        assert (machine.present, agent.count) == ("one", "one")
        assert again.notices == []


def test_without_it_the_part_goes_along(session, machine):
    step(session, machine, "one")
    with Session("job", store=session.manager) as other:
        other.messages.append("x")
        other.save()
    machine.present = "other"
    Session("job", store=session.manager, parts={"machine": machine.part}).close()
    assert machine.present == "one"


def test_gc_lets_go_of_what_no_checkpoint_needs(session, machine):
    manager = session.manager
    for words in ("one", "two", "three"):
        step(session, machine, words)
    manager.gc()
    assert machine.held == ["empty", "one", "three", "two"]
    assert manager.prune("job", KeepLatest(2))
    assert machine.held == ["empty", "one", "three", "two"]  # not before gc
    manager.gc(dry_run=True)
    assert machine.held == ["empty", "one", "three", "two"]
    manager.gc()
    assert machine.held == ["three", "two"]
    manager.gc()
    assert machine.held == ["three", "two"]
    session.rollback()
    assert machine.present == "two"
    session.undo()
    assert machine.present == "three"
    assert manager.verify().ok


def test_a_rollback_needs_no_snapshot_but_that_of_the_safety_checkpoint(session, machine):
    step(session, machine, "one")
    step(session, machine, "two")
    taken = machine.taken
    session.rollback()
    assert machine.taken == taken + 1
    session.undo()
    assert machine.taken == taken + 2


def test_a_deleted_key_lets_go_of_all(session, machine):
    step(session, machine, "one")
    session.rollback(steps=0)
    session.manager.delete("job")
    session.manager.gc()
    assert machine.snapshots == {}


def test_a_fork_keeps_what_it_needs(session, machine):
    manager = session.manager
    step(session, machine, "one")
    manager.fork("job", "other")
    step(session, machine, "two")
    manager.delete("job")
    manager.gc()
    assert machine.held == ["one"]
    manager.delete("other")
    manager.gc()
    assert machine.held == []


def test_one_that_was_taken_for_a_save_that_failed(session, machine, monkeypatch):
    """A crash between taking and saving: it is let go, but not while it may yet be saved."""
    step(session, machine, "one")
    machine.present = "orphan"
    with monkeypatch.context() as patch:
        patch.setattr(session._state.writer, "_write", _stopped)
        with pytest.raises(KeyboardInterrupt):
            session.save()
    session.manager.gc()
    assert "orphan" in machine.held
    step(session, machine, "two")
    session.manager.gc()
    assert "orphan" in machine.held
    age(monkeypatch, 2)
    session.manager.gc()
    assert machine.held == ["empty", "one", "two"]


def _stopped(*args):
    raise KeyboardInterrupt


def test_what_was_there_before_a_resume_is_let_go_after_a_day(session, machine, monkeypatch):
    step(session, machine, "one")
    machine.present = "lost in a crash"
    parts = {"machine": machine.part}
    again = Session("job", store=session.manager, parts=parts)
    again.save()
    again.manager.gc()
    assert "lost in a crash" in machine.held
    age(monkeypatch, 2)
    again.manager.gc()
    assert machine.held == ["empty", "one"]
    assert again.manager.verify().ok


def test_one_handle_for_what_has_not_changed(store):
    """It is let go with the last checkpoint that has it, and not while one is being written."""
    released = []
    part = External("same", take=lambda: "v1", restore=lambda handle: None, release=released.append)
    with Session("job", store=store, parts={"same": part}) as session:
        first = session.save()
        second = session.save()
        manager = session.manager
        manager.delete("job", first)
        manager.delete("job", "job@1")
        manager.gc()
        assert released == []
        session.save()
        manager.delete("job", second)
        manager.gc()
        assert released == []
        stream = RecordStream(manager.store, "meta/external/same")
        assert len(stream.read()) == 2  # the older records are of no use


def test_it_is_not_let_go_while_it_is_saved_again(store):
    """The last checkpoint that had it is gone, and the next one that has it is on its way."""
    released = []
    part = External("same", take=lambda: "v1", restore=lambda handle: None, release=released.append)
    with Session("other", store=store) as other:
        manager = other.manager
        manager.save("job", {"same": part})
        manager.delete("job")
        real = manager.store.backend.append

        def append(stream, *args, **kwargs):
            if stream.startswith("key/"):
                manager.store.backend.append = real
                manager.gc()
            return real(stream, *args, **kwargs)

        manager.store.backend.append = append
        manager.save("job", {"same": part})
        assert released == []
        manager.gc()
        assert released == []
        manager.delete("job")
        manager.gc()
        assert released == ["v1"]


def test_another_process_lets_go_too(tmp_path, machine):
    """A part that was saved by one manager is let go by another, once that has saved it, too."""
    parts = {"machine": machine.part}
    with Session("job", store=tmp_path / "store", parts=parts) as session:
        for words in ("one", "two", "three"):
            machine.present = words
            session.save()
    with Session("job", store=tmp_path / "store", parts=parts) as session:
        session.save()
        session.manager.prune("job", KeepLatest(1))
        session.manager.gc()
        assert machine.held == ["three"]


def test_without_release_nothing_is_listed(store):
    part = External("kept", take=lambda: 1, restore=lambda handle: None)
    with Session("job", store=store, parts={"kept": part}) as session:
        session.save()
        session.manager.prune("job", KeepLatest(1))
        session.manager.gc()
        assert list(session.manager.store.backend.streams("meta/external")) == []


# -- failures --------------------------------------------------------------------------------------


def test_taking_fails(session, machine):
    step(session, machine, "one")
    machine.fails.add("take")
    length = len(session.history())
    with pytest.raises(StateError, match=r"Taking a snapshot of 'machine' failed \(OSError\)"):
        session.save()
    with pytest.raises(StateError, match="Taking a snapshot"):
        session.rollback(steps=0)
    assert len(session.history()) == length


def test_restoring_fails_and_all_is_as_it_was(session, machine, tmp_path):
    step(session, machine, "one")
    bad = machine.taken
    step(session, machine, "two")
    session.messages.append("not saved")
    machine.fails.add(bad)
    with pytest.raises(StateError, match=r"Restoring the snapshot of 'machine' failed \(OSError\)"):
        session.rollback()
    assert (machine.present, session.agent.count) == ("two", "two")
    assert list(session.messages) == ["not saved"]
    machine.fails.clear()
    session.rollback(to="job@2")
    assert machine.present == "one"


def test_another_part_fails_and_it_is_taken_back(store, machine):
    class Stubborn:
        def __init__(self):
            self.is_stubborn = False

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            if self.is_stubborn:
                raise ValueError("no")

    stubborn = Stubborn()
    parts = {"machine": machine.part, "stubborn": stubborn}
    with Session("job", store=store, parts=parts) as session:
        machine.present = "one"
        session.save()
        machine.present = "two"
        session.save()
        stubborn.is_stubborn = True
        with pytest.raises(StateError):
            session.rollback()
        assert machine.present == "two"
        assert machine.restores[-2:] != []
        stubborn.is_stubborn = False


def test_what_makes_no_sense(store, machine):
    for name in ("", None, 5):
        with pytest.raises(InvalidInputError):
            External(name, take=int, restore=int)
    assert repr(machine.part) == "External('machine')"
    with Session("job", store=store, parts={"machine": machine.part}) as session:
        session.save()
        manager = session.manager
    other = External("other", take=int, restore=int)
    with pytest.raises(StateMismatchError, match="not a snapshot of 'other'"):
        Session("job", store=manager, parts={"machine": other})
    bad = External("bad", take=lambda: (n for n in ()), restore=int)
    with pytest.raises(StateError):
        manager.save("bad", {"bad": bad})


# -- a real one ------------------------------------------------------------------------------------


class Subvolume:
    """A btrfs subvolume; its snapshots are read-only subvolumes beside it."""

    def __init__(self, disk):
        self.path, self.place = disk / "data", disk / "snapshots"
        self.number = 0
        self.part = External("data", take=self.take, restore=self.restore, release=self.release)

    def make(self):
        btrfs("subvolume", "create", self.path)
        self.place.mkdir()

    def take(self):
        self.number = 1 + max([0, *(int(path.name) for path in self.place.iterdir())])
        btrfs("subvolume", "snapshot", "-r", self.path, self.place / str(self.number))
        return str(self.number)

    def restore(self, handle):
        if not (self.place / handle).exists():
            raise FileNotFoundError(handle)
        btrfs("subvolume", "delete", self.path)
        btrfs("subvolume", "snapshot", self.place / handle, self.path)

    def release(self, handle):
        btrfs("subvolume", "delete", self.place / handle)


def btrfs(*words):
    subprocess.run(["btrfs", *map(str, words)], check=True, capture_output=True)


@pytest.mark.slow
def test_a_subvolume_goes_back_with_the_session(tmp_path):
    if shutil.which("btrfs") is None:
        pytest.skip("there is no btrfs")
    place = tmp_path / "mounted"
    place.mkdir()
    with loop_disk("btrfs", place, 256) as disk:
        volume = Subvolume(disk)
        volume.make()
        check_subvolume(volume, tmp_path)


def check_subvolume(volume, tmp_path):
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "store")
    table, parts = volume.path / "table", {"data": volume.part}
    with manager, Session("job", agent=Agent(), store=manager, parts=parts) as session:
        for words in ("one", "two", "three"):
            table.write_text(words * 1000)
            session.agent.count = words
            session.save()
        table.write_text("not saved")
        session.rollback()
        assert (table.read_text(), session.agent.count) == ("two" * 1000, "two")
        session.undo()
        assert (table.read_text(), session.agent.count) == ("not saved", "three")
        manager.gc()
        everything = {path.name for path in volume.place.iterdir()}
        needed = {
            manager.state_dict("job", checkpoint_id=row["id"])["data"].name
            for row in session.history()
        }
        assert len(everything) == len(needed)
        session.save()  # else the way back is kept, too
        manager.prune("job", KeepLatest(1))
        manager.gc()
        (left,) = volume.place.iterdir()
        assert (left / "table").read_text() == "not saved"
        table.write_text("lost in a crash")
        again = Session("job", agent=Agent(), store=manager, parts=parts)
        assert (table.read_text(), again.agent.count) == ("not saved", "three")
        shutil.rmtree(volume.path, ignore_errors=True)
        again.close()
        session.every = "manual"  # it is a zombie by now
    assert manager is session.manager
