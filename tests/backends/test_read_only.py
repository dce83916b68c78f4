"""A store on a read-only mount, or in a directory that its user may only read."""

import os
import shutil
import subprocess
import sys

import pytest

from agent_checkpoint import CheckpointManager, StorageError, Workspace
from tests.backends.full_disks import KINDS, read_only, run, small_disk


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    with small_disk(request.param, tmp_path, 32) as mounted:
        yield mounted


@pytest.fixture(params=["file", "sqlite"])
def name(request):
    return request.param


def make(path, name):
    with CheckpointManager(backend=name, path=path) as manager:
        for number in range(3):
            manager.save("a", {"n": number, "large": f"{number:06}" * 30_000})
        manager.delete("a", "a@1")


def check_reading(manager):
    assert manager.state_dict("a")["n"] == 2
    assert manager.state_dict("a", checkpoint_id="a@2")["n"] == 1
    assert [item["id"][-1] for item in manager.history("a")] == ["3", "2"]
    assert manager.list_keys() == ["a"]
    assert manager.verify().ok


def check_refused(manager):
    for change in (lambda: manager.save("a", {"n": 3}), lambda: manager.delete("a", "a@2")):
        with pytest.raises(StorageError, match="copy the store to a writable directory"):
            change()


def test_a_read_only_mount(disk, name, tmp_path):
    make(disk / "store", name)
    with read_only(disk):
        with CheckpointManager(backend=name, path=disk / "store") as manager:
            check_reading(manager)
            check_refused(manager)
            check_reading(manager)
            assert manager.export_archive(tmp_path / "a.ckpt", "a")
        shutil.copytree(disk / "store", tmp_path / "copy")
    with CheckpointManager(backend=name, path=tmp_path / "copy") as manager:
        check_reading(manager)
        manager.save("a", {"n": 3})


def test_restoring_files_from_it(disk, name, tmp_path):
    """The safety checkpoint would have to be written: what to do is said, and nothing is done."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("old")
    with CheckpointManager(backend=name, path=disk / "store") as manager:
        saved = manager.save("w", {"workspace": Workspace(files, store=manager.store)})
    (files / "a.txt").write_text("new")
    with read_only(disk):
        with CheckpointManager(backend=name, path=disk / "store") as manager:
            work = Workspace(files, store=manager.store)
            with pytest.raises(StorageError, match="To save, restore or delete, copy the store"):
                work.restore(saved)
        assert (files / "a.txt").read_text() == "new"
        shutil.copytree(disk / "store", tmp_path / "copy")
    with CheckpointManager(backend=name, path=tmp_path / "copy") as manager:
        Workspace(files, store=manager.store).restore(saved)
    assert (files / "a.txt").read_text() == "old"


KILLED = """
import os, sys
from agent_checkpoint import CheckpointManager
manager = CheckpointManager(backend="sqlite", path=sys.argv[1])
manager.save("a", {"n": 1})
os._exit(9)
"""


def test_the_log_of_a_killed_process_on_it(disk):
    for name in ("whole", "without shared memory"):
        subprocess.run([sys.executable, "-c", KILLED, disk / name])
        assert (disk / name / "store.db-wal").stat().st_size
    (disk / "without shared memory" / "store.db-shm").unlink()
    with read_only(disk):
        with CheckpointManager(backend="sqlite", path=disk / "whole") as manager:
            assert manager.state_dict("a") == {"n": 1}
            assert manager.verify().ok
        cut = CheckpointManager(backend="sqlite", path=disk / "without shared memory")
        with pytest.raises(StorageError, match=r"there is a write-ahead log.*Copy the directory"):
            cut.state_dict("a")
        cut.close()
    with CheckpointManager(backend="sqlite", path=disk / "without shared memory") as manager:
        assert manager.state_dict("a") == {"n": 1}


ONLY_READ = """
import os, sys
from agent_checkpoint import CheckpointManager, StorageError
path, name = sys.argv[1:]
manager = CheckpointManager(backend=name, path=path)
for number in range(3):
    manager.save("a", {"n": number})
manager.close()
for top, _, files in os.walk(path, topdown=False):
    for each in files:
        os.chmod(os.path.join(top, each), 0o400)
    os.chmod(top, 0o500)
manager = CheckpointManager(backend=name, path=path)
assert manager.state_dict("a") == {"n": 2}
assert len(manager.history("a")) == 3
assert manager.verify().ok
for change in (lambda: manager.save("a", {"n": 3}), lambda: manager.delete("a", "a@1")):
    try:
        change()
    except StorageError as error:
        assert "Permission denied" in str(error), error
    else:
        raise AssertionError("it was changed")
assert manager.verify().ok
"""


def test_a_directory_that_one_may_only_read(tmp_path, name):
    command = [sys.executable, "-c", ONLY_READ, tmp_path / "store", name]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write everywhere, and there is no setpriv")
        powers = "-dac_override,-dac_read_search"
        command = ["setpriv", "--bounding-set", powers, "--inh-caps", powers, *command]
    done = run(*command)
    assert done.returncode == 0, done.stderr
