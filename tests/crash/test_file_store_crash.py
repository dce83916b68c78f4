"""The file store under real faults: kill -9, full and failing disks, Ctrl-C.

Kills and faults are aimed at every system call that changes the disk, one run for each.
"""

import os
import shutil
import stat
from contextlib import closing
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, FileBackend, KeepLatest
from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.store.objects.object_format import BLOB, make_object
from tests.crash.fault_process import CHANGES, FaultProcess, places, say

HERE = "tests.crash.test_file_store_crash"

ACTIONS = {
    "save": lambda manager: manager.save("Key", {"n": "new"}),
    "save of a new key": lambda manager: manager.save("Newer", {"n": "new"}),
    "append with objects": lambda manager: manager.store.backend.append(
        "key/raw",
        b"entry",
        after=0,
        objects=objects(b"new", b"newer"),
        requires=objects(b"old"),
    ),
    "delete the newest": lambda manager: manager.delete("Key", "Key"),
    "delete the key": lambda manager: manager.delete("Key"),
    "prune": lambda manager: manager.prune("Key", KeepLatest(1)),
    "gc": lambda manager: manager.gc().objects,
}


# -- what the processes do that break ------------------------------------------------------------


def warm_up(place):
    """Do everything once, so that all that Python loads late is loaded."""
    for name, do in ACTIONS.items():
        do(make_store(Path(place) / name))
    shutil.rmtree(place)


def act(name, path):
    """Run as a process: do it, and say so."""
    os.umask(0)  # what is private must be so by itself
    say("did", ACTIONS[name](open_manager(path)))


def act_and_go_on(name, path):
    """Run as a process: do it or be refused; then go on in the same process."""
    try:
        act(name, path)
    except StorageError as error:
        say("refused", error)
    except KeyboardInterrupt:
        say("interrupted")
    say("then", open_manager(path).save("Key", {"n": "then"}))


# -- what must hold ------------------------------------------------------------------------------


def open_manager(path):
    return CheckpointManager(backend="file", path=path)


def contents(path):
    """Every state in a store, by key and number; everything must be readable and right."""
    manager = open_manager(path)
    assert manager.verify().ok
    found = {}
    for key in manager.list_keys():
        if key == "raw":  # not a checkpoint
            continue
        rows = manager.history(key)
        states = [manager.state_dict(key, row["id"]) for row in rows]
        numbers = [parse_checkpoint_id(row["id"]).seq for row in rows]
        assert manager.state_dict(key) == states[0]
        found[key] = {seq: state["n"] for seq, state in zip(numbers, states)}
    return found


def make_store(path):
    """A store with OLD in it, and two objects."""
    manager = open_manager(path)
    for n in range(3):
        manager.save("Key", {"n": n})
    manager.store.backend.put_objects(objects(b"old", b"older"))
    return manager


def objects(*contents):
    """Objects by name."""
    made = [make_object(BLOB, data) for data in contents]
    return {name: packed.stored() for name, packed in made}


OLD = {"Key": {1: 0, 2: 1, 3: 2}}


class Sweep:
    """One action on fresh copies of one store, broken in every place it can be."""

    def __init__(self, process, scratch, action, store):
        self.process, self.action, self.store = process, action, store
        self.scratch, self.path = scratch, scratch / "store"

    def run(self, function, inject=None):
        shutil.rmtree(self.path, ignore_errors=True)
        if self.store is not None:
            shutil.copytree(self.store, self.path)
        outcome = self.process.run(f"{HERE}:{function}", self.action, self.path, inject=inject)
        assert "Traceback" not in outcome.errors, outcome.errors
        return outcome

    def calls(self, names=CHANGES):
        """The calls that the action makes."""
        whole = self.run("act")
        assert whole.status == 0
        return places(whole.calls, self.scratch, names)

    def everywhere(self, function, fault, names=CHANGES):
        """Run once to count the calls, then once for each call with the fault there."""
        aims = self.calls(names)
        assert aims, "no such call"
        for aim in aims:
            yield aim, self.path, self.run(function, f"{aim.name}:{fault}:when={aim.when}")


@pytest.fixture(scope="module")
def process(session_scratch):
    """Runs functions of this file in processes that break."""
    with closing(FaultProcess(HERE, session_scratch)) as process:
        yield process


@pytest.fixture
def sweep(process, scratch):
    make_store(scratch / "old")

    def start(action, *, new_store=False):
        return Sweep(process, scratch, action, None if new_store else scratch / "old")

    return start


def check_still_usable(path, present):
    """The next open works unaided: a save gets a number that nobody had, and can be deleted."""
    manager = open_manager(path)
    cid = manager.save("Key", {"n": "after"})
    assert manager.state_dict("Key") == {"n": "after"}
    seq = parse_checkpoint_id(cid).seq
    assert seq > max(present.get("Key", {0: 0}))
    manager.delete("Key", cid)
    assert contents(path) == present
    assert os.listdir(path / ".tmp") == []
    manager.gc()
    assert contents(path) == present
    return seq


def check_private(path):
    for item in [path, *path.rglob("*")]:
        mode = stat.S_IMODE(item.lstat().st_mode)
        assert mode == (0o700 if item.is_dir() else 0o600), item


# -- what is durable when ------------------------------------------------------------------------


def plain_names(calls):
    """The names of calls, also where an architecture has but those that end with `at`."""
    return [call.name[:-2] if call.name.endswith("at") else call.name for call in calls]


def test_an_entry_is_durable_before_it_has_a_name_and_its_name_before_the_answer(sweep):
    """A kill cannot show a missing fsync, only a power cut could: so the order of calls is told."""
    assert plain_names(sweep("save").calls()) == ["write", "fsync", "link", "fsync", "unlink"]


def test_a_number_is_durable_before_its_entry_goes(sweep):
    names = plain_names(sweep("delete the newest").calls())
    assert names == ["write", "fsync", "rename", "fsync", "unlink", "fsync"]


# -- F1: kill -9 ---------------------------------------------------------------------------------


def check_killed_save(aim, path, outcome, old, new):
    assert outcome.was_killed, aim
    present = contents(path)
    assert present in (old, new), aim
    if outcome.said:
        assert present == new, aim
    if path.exists():
        check_private(path)
    check_still_usable(path, present)


def test_killed_in_a_save(sweep):
    new = {"Key": {**OLD["Key"], 4: "new"}}
    for aim, path, outcome in sweep("save").everywhere("act", "signal=KILL"):
        check_killed_save(aim, path, outcome, OLD, new)


@pytest.mark.slow
def test_killed_in_the_first_save_of_a_store(sweep):
    killed = sweep("save", new_store=True).everywhere("act", "signal=KILL")
    for aim, path, outcome in killed:
        check_killed_save(aim, path, outcome, {}, {"Key": {1: "new"}})


@pytest.mark.slow
def test_killed_in_the_first_save_of_a_key(sweep):
    new = {**OLD, "Newer": {1: "new"}}
    for aim, path, outcome in sweep("save of a new key").everywhere("act", "signal=KILL"):
        check_killed_save(aim, path, outcome, OLD, new)


@pytest.mark.slow
def test_killed_in_an_append_with_objects(sweep):
    """The entry is there only if all objects that it names are."""
    seen = set()
    for aim, path, outcome in sweep("append with objects").everywhere("act", "signal=KILL"):
        assert outcome.was_killed
        backend = FileBackend(path)
        entries = [entry.data for entry in backend.read("key/raw")]
        assert entries in ([], [b"entry"]), aim
        stored = backend.get_objects(i.id for i in backend.list_objects()).items()
        old, new = objects(b"old", b"older").items(), objects(b"new", b"newer").items()
        assert old <= stored <= old | new
        if entries:
            assert new <= stored, aim
        else:
            assert not outcome.said
        seen.add((len(entries), len(stored)))
        backend.remove("key/raw", [1])
        assert backend.append("key/raw", b"again") == len(entries) + 1
    assert {(0, 2), (0, 4), (1, 4)} <= seen


def check_killed_removal(killed, new):
    """What is left are the newest of those that were to go; no number comes back."""
    for aim, path, outcome in killed:
        assert outcome.was_killed, aim
        present = contents(path)
        left = present.get("Key", {})
        doomed = sorted(OLD["Key"].keys() - new.keys())
        still = [seq for seq in doomed if seq in left]
        assert still == doomed[len(doomed) - len(still) :], aim
        assert left == {seq: n for seq, n in OLD["Key"].items() if seq in new or seq in still}
        assert not outcome.said
        assert check_still_usable(path, present) > 3, aim


def test_killed_in_a_delete_of_the_newest(sweep):
    killed = sweep("delete the newest").everywhere("act", "signal=KILL")
    check_killed_removal(killed, {1: 0, 2: 1})


@pytest.mark.slow
@pytest.mark.parametrize(("action", "new"), [("delete the key", {}), ("prune", {3: 2})])
def test_killed_in_a_delete_of_many(sweep, action, new):
    check_killed_removal(sweep(action).everywhere("act", "signal=KILL"), new)


@pytest.mark.slow
def test_killed_in_gc(sweep):
    for aim, path, outcome in sweep("gc").everywhere("act", "signal=KILL"):
        assert outcome.was_killed, aim
        assert contents(path) == OLD
        check_still_usable(path, OLD)
        assert list(FileBackend(path).list_objects()) == []


# -- F2: a full disk, a failing disk -------------------------------------------------------------


def check_refused(refused, advice=""):
    """A typed error and nothing acknowledged; the same process saves again at once."""
    for aim, path, outcome in refused:
        assert outcome.status == 0, aim
        first, then = outcome.said
        assert first.startswith("refused Cannot "), aim
        assert str(path) in first
        assert advice in first
        present = contents(path)
        seq = parse_checkpoint_id(then.split()[1]).seq
        assert present["Key"].pop(seq) == "then", aim
        # A name whose directory could not be synced may be there all the same.
        unsure = {4: "new"} if aim.name == "fsync" and len(present["Key"]) == 4 else {}
        assert present == {"Key": {**OLD["Key"], **unsure}}, aim
        check_private(path)
        check_still_usable(path, {"Key": {**present["Key"], seq: "then"}})


@pytest.mark.parametrize(
    ("call", "error", "advice"),
    [
        ("write", "ENOSPC", "Free some space. Existing checkpoints are intact."),
        ("fsync", "EIO", ""),
        pytest.param("write", "EIO", "", marks=pytest.mark.slow),
        pytest.param("write", "EDQUOT", "Free some of your disk quota", marks=pytest.mark.slow),
        pytest.param("fsync", "ENOSPC", "Free some space", marks=pytest.mark.slow),
    ],
)
def test_a_save_that_the_disk_refuses(sweep, call, error, advice):
    check_refused(sweep("save").everywhere("act_and_go_on", f"error={error}", [call]), advice)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_the_first_save_of_a_store_that_the_disk_refuses(sweep, error):
    refused = sweep("save", new_store=True).everywhere(
        "act_and_go_on", f"error={error}", ["write", "fsync", "mkdir", "link", "rename"]
    )
    for aim, path, outcome in refused:
        assert outcome.status == 0, aim
        first, then = outcome.said
        assert first.startswith("refused Cannot "), aim
        present = contents(path)
        seq = parse_checkpoint_id(then.split()[1]).seq
        assert present["Key"].pop(seq) == "then", aim
        assert present["Key"] in ({}, {1: "new"}), aim
        check_still_usable(path, contents(path))


@pytest.mark.slow
@pytest.mark.parametrize("action", ["delete the newest", "delete the key"])
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_delete_that_the_disk_refuses(sweep, action, error):
    refused = sweep(action).everywhere(
        "act_and_go_on", f"error={error}", ["write", "fsync", "unlink"]
    )
    for aim, path, outcome in refused:
        assert outcome.status == 0, aim
        first, then = outcome.said
        # A full disk has a reserve for just that: there it may also have been done.
        done = error == "ENOSPC" and first.startswith("did ")
        assert done or first.startswith("refused Cannot "), aim
        seq = parse_checkpoint_id(then.split()[1]).seq
        assert seq >= 4, aim
        present = contents(path)
        assert present["Key"].pop(seq) == "then"
        assert present["Key"].items() <= OLD["Key"].items()
        check_still_usable(path, contents(path))


# -- F12: Ctrl-C ---------------------------------------------------------------------------------


def check_interrupted(interrupted, old, new):
    for aim, path, outcome in interrupted:
        assert outcome.status == 0, aim
        assert outcome.said[0] == "interrupted" or outcome.said[0].startswith("did "), aim
        present = contents(path)
        seq = parse_checkpoint_id(outcome.said[1].split()[1]).seq
        assert present["Key"].pop(seq) == "then", aim
        assert present["Key"] in (old, new), aim
        if outcome.said[0].startswith("did "):
            assert present["Key"] == new, aim
        check_still_usable(path, contents(path))


def test_interrupted_in_a_save(sweep):
    """Ctrl-C at any call: all of the checkpoint or nothing, and the process goes on saving."""
    interrupted = sweep("save").everywhere("act_and_go_on", "signal=INT")
    check_interrupted(interrupted, OLD["Key"], {**OLD["Key"], 4: "new"})


@pytest.mark.slow
def test_interrupted_in_the_first_save_of_a_store(sweep):
    interrupted = sweep("save", new_store=True).everywhere("act_and_go_on", "signal=INT")
    check_interrupted(interrupted, {}, {1: "new"})


@pytest.mark.slow
def test_interrupted_in_a_delete(sweep):
    interrupted = sweep("delete the newest").everywhere("act_and_go_on", "signal=INT")
    check_interrupted(interrupted, OLD["Key"], {1: 0, 2: 1})
