"""The file store under real faults: kill -9, full and failing disks, Ctrl-C.

Kills and faults are aimed at every system call that changes the disk, one run for each.
"""

import os
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from agent_checkpoint import CheckpointManager, FileBackend
from agent_checkpoint.records import parse_checkpoint_id
from agent_checkpoint.store.objects import BLOB, make_object
from tests.crash.tracing import places, run_traced

AT_ONCE = 3

# Every script warms up in a store of its own: what Python loads late is loaded before it is traced.
OPENED = """
from agent_checkpoint import CheckpointManager, FileBackend, KeepLatest
from agent_checkpoint.errors import StorageError
from agent_checkpoint.store.objects import BLOB, make_object

os.umask(0)
path, warm = sys.argv[1:3]
once = sys.argv[3:] == ["once"]

def objects(*contents):
    made = [make_object(BLOB, data) for data in contents]
    return {name: packed.stored() for name, packed in made}

def act(path):
    manager = CheckpointManager(backend="file", path=path)
    backend = manager.store.backend
    ACTION

old = CheckpointManager(backend="file", path=warm)
for n in range(3):
    old.save("Key", {"n": n})
old.store.backend.put_objects(objects(b"old", b"older"))
act(warm)
ready()
"""

TO_BE_KILLED = OPENED + "say('did', act(path))\nos._exit(0)\n"

GOES_ON = (
    OPENED
    + """
try:
    say("did", act(path))
except StorageError as error:
    say("refused", error)
except KeyboardInterrupt:
    say("interrupted")
if not once:
    manager = CheckpointManager(backend="file", path=path)
    say("then", manager.save("Key", {"n": "then"}))
os._exit(0)
"""
)

ACTIONS = {
    "save": 'return manager.save("Key", {"n": "new"})',
    "save of a new key": 'return manager.save("Newer", {"n": "new"})',
    "append with objects": (
        'return backend.append("key/raw", b"entry", after=0, objects=objects(b"new", b"newer"), '
        'requires=objects(b"old"))'
    ),
    "delete the newest": 'return manager.delete("Key", "Key")',
    "delete the key": 'return manager.delete("Key")',
    "prune": 'return manager.prune("Key", KeepLatest(1))',
    "gc": "return manager.gc().objects",
}


def contents(path):
    """Every state in a store, by key and number; everything must be readable and right."""
    manager = CheckpointManager(backend="file", path=path)
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
    """A store as the scripts make it, too: three checkpoints and two objects."""
    manager = CheckpointManager(backend="file", path=path)
    for n in range(3):
        manager.save("Key", {"n": n})
    manager.store.backend.put_objects(objects(b"old", b"older"))
    return manager


def objects(*contents):
    """Objects by name, as the scripts make them."""
    made = [make_object(BLOB, data) for data in contents]
    return {name: packed.stored() for name, packed in made}


OLD = {"Key": {1: 0, 2: 1, 3: 2}}


class Sweep:
    """One action on fresh copies of one store, broken in every place it can be."""

    def __init__(self, tmp_path, action, form, store):
        self.tmp_path, self.store = tmp_path, store
        self.source = form.replace("ACTION", ACTIONS[action])
        self.numbers = count()

    def run(self, inject=None, *arguments):
        scratch = self.tmp_path / f"run{next(self.numbers)}"
        scratch.mkdir()
        path = scratch / "store"
        if self.store is not None:
            shutil.copytree(self.store, path)
        outcome = run_traced(
            self.source, path, scratch / "warm", *arguments, scratch=scratch, inject=inject
        )
        assert "Traceback" not in outcome.errors, outcome.errors
        return path, outcome

    def everywhere(self, fault, names=None):
        """Run once to count the calls, then once for each call with the fault there."""
        _, whole = self.run(None, "once")
        assert whole.status == 0
        aims = [aim for aim in places(whole.calls) if names is None or aim[0] in names]
        assert aims, f"no such call among {whole.calls}"
        with ThreadPoolExecutor(AT_ONCE) as pool:
            runs = pool.map(lambda aim: self.run(f"{aim[0]}:{fault}:when={aim[1]}"), aims)
            yield from ((aim, path, outcome) for aim, (path, outcome) in zip(aims, runs))


@pytest.fixture
def sweep(tmp_path):
    make_store(tmp_path / "old")

    def start(action, form, *, new_store=False):
        return Sweep(tmp_path, action, form, None if new_store else tmp_path / "old")

    return start


def check_still_usable(path, present):
    """The next open works unaided: a save gets a number that nobody had, and can be deleted."""
    manager = CheckpointManager(backend="file", path=path)
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


def test_an_entry_is_durable_before_it_has_a_name_and_its_name_before_the_answer(sweep):
    """A kill cannot show a missing fsync, only a power cut could: so the order of calls is told."""
    _, outcome = sweep("save", TO_BE_KILLED).run()
    plain = [name.replace("at", "") if name.endswith("at") else name for name in outcome.calls]
    assert plain == ["write", "fsync", "link", "fsync", "unlink"]


def test_a_number_is_durable_before_its_entry_goes(sweep):
    _, outcome = sweep("delete the newest", TO_BE_KILLED).run()
    plain = [name.replace("at", "") if name.endswith("at") else name for name in outcome.calls]
    assert plain == ["write", "fsync", "rename", "fsync", "unlink", "fsync"]


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
    for aim, path, outcome in sweep("save", TO_BE_KILLED).everywhere("signal=KILL"):
        check_killed_save(aim, path, outcome, OLD, new)


@pytest.mark.slow
def test_killed_in_the_first_save_of_a_store(sweep):
    killed = sweep("save", TO_BE_KILLED, new_store=True).everywhere("signal=KILL")
    for aim, path, outcome in killed:
        check_killed_save(aim, path, outcome, {}, {"Key": {1: "new"}})


@pytest.mark.slow
def test_killed_in_the_first_save_of_a_key(sweep):
    new = {**OLD, "Newer": {1: "new"}}
    for aim, path, outcome in sweep("save of a new key", TO_BE_KILLED).everywhere("signal=KILL"):
        check_killed_save(aim, path, outcome, OLD, new)


@pytest.mark.slow
def test_killed_in_an_append_with_objects(sweep):
    """The entry is there only if all objects that it names are."""
    seen = set()
    for aim, path, outcome in sweep("append with objects", TO_BE_KILLED).everywhere("signal=KILL"):
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
    killed = sweep("delete the newest", TO_BE_KILLED).everywhere("signal=KILL")
    check_killed_removal(killed, {1: 0, 2: 1})


@pytest.mark.slow
@pytest.mark.parametrize(("action", "new"), [("delete the key", {}), ("prune", {3: 2})])
def test_killed_in_a_delete_of_many(sweep, action, new):
    check_killed_removal(sweep(action, TO_BE_KILLED).everywhere("signal=KILL"), new)


@pytest.mark.slow
def test_killed_in_gc(sweep):
    for aim, path, outcome in sweep("gc", TO_BE_KILLED).everywhere("signal=KILL"):
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
        unsure = {4: "new"} if aim[0] == "fsync" and len(present["Key"]) == 4 else {}
        assert present == {"Key": {**OLD["Key"], **unsure}}, aim
        check_private(path)
        check_still_usable(path, {"Key": {**present["Key"], seq: "then"}})


@pytest.mark.parametrize(
    ("call", "error", "advice"),
    [
        ("write", "ENOSPC", "Free some space; what was saved before is intact."),
        ("fsync", "EIO", ""),
        pytest.param("write", "EIO", "", marks=pytest.mark.slow),
        pytest.param("write", "EDQUOT", "Free some of your quota", marks=pytest.mark.slow),
        pytest.param("fsync", "ENOSPC", "Free some space", marks=pytest.mark.slow),
    ],
)
def test_a_save_that_the_disk_refuses(sweep, call, error, advice):
    check_refused(sweep("save", GOES_ON).everywhere(f"error={error}", [call]), advice)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_the_first_save_of_a_store_that_the_disk_refuses(sweep, error):
    refused = sweep("save", GOES_ON, new_store=True).everywhere(
        f"error={error}", ["write", "fsync", "mkdir", "link", "rename"]
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
    refused = sweep(action, GOES_ON).everywhere(f"error={error}", ["write", "fsync", "unlink"])
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
    interrupted = sweep("save", GOES_ON).everywhere("signal=INT")
    check_interrupted(interrupted, OLD["Key"], {**OLD["Key"], 4: "new"})


@pytest.mark.slow
def test_interrupted_in_the_first_save_of_a_store(sweep):
    interrupted = sweep("save", GOES_ON, new_store=True).everywhere("signal=INT")
    check_interrupted(interrupted, {}, {1: "new"})


@pytest.mark.slow
def test_interrupted_in_a_delete(sweep):
    interrupted = sweep("delete the newest", GOES_ON).everywhere("signal=INT")
    check_interrupted(interrupted, OLD["Key"], {1: 0, 2: 1})
