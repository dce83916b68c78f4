"""Copy processes: the same copy as without them, and none that fails or dies unnoticed."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.backends.os_support import own_program, part_processes
from agent_checkpoint.backends.os_support.part_numbers import next_number
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.fork import copy_pool, tree_copy
from agent_checkpoint.workspace.fork.tree_copy import copy_tree

Started = list["subprocess.Popen[bytes]"]
FILES = 300


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Every copy has two processes, which copy all but the root; all that were started."""
    processes: Started = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(tree_copy, "PARALLEL_FROM", 1)
    monkeypatch.setattr(tree_copy, "_PARTS", 1)
    monkeypatch.setattr(own_program, "usable_cores", lambda: 3)
    monkeypatch.setattr(own_program.subprocess, "Popen", Popen)
    return processes


@pytest.fixture
def only_processes_copy(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes no part until another one has taken the first."""
    paths = copy_pool.CopyPool.paths

    def wait(pool: copy_pool.CopyPool) -> Any:
        for process in started:
            process.wait(30)
        return paths(pool)

    monkeypatch.setattr(copy_pool.CopyPool, "paths", wait)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory with many below it."""
    root = tmp_path / "source"
    for number in range(FILES):
        folder = root / f"{number}" / "below"
        folder.mkdir(parents=True)
        (folder / "file").write_text(f"{number}\n")
        (folder.parent / "link").symlink_to("below/file")
    return root


def test_processes_copy_what_one_copies(source: Path, tmp_path: Path, started: Started) -> None:
    copied = copy_tree(source, tmp_path / "copy")
    assert len(started) == 2
    assert len(copied) == 2 * FILES
    done = subprocess.run(["diff", "-r", source, tmp_path / "copy"], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.usefixtures("only_processes_copy")
def test_more_directories_than_parts(
    source: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_pool, "_PARTS", 7)
    assert len(copy_tree(source, tmp_path / "copy")) == 2 * FILES
    assert len(started) == 2


@pytest.mark.usefixtures("only_processes_copy")
def test_a_process_that_cannot_write_fails_the_copy(
    source: Path, tmp_path: Path, started: Started
) -> None:
    (source / "7/below/file").write_bytes(bytes(100_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(
            WorkspaceError, match=r"^Cannot copy '.*/source/7/below/file': File too"
        ):
            copy_tree(source, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [process.returncode for process in started] == [0, 0]


def test_a_process_that_dies_with_a_part_fails_the_copy(
    source: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = copy_pool.CopyPool.paths

    def kill_one(pool: copy_pool.CopyPool) -> Any:
        os.kill(started[1].pid, signal.SIGSTOP)
        next_number(pool._processes._numbers)  # for the process: whether it took one is chance
        os.kill(started[1].pid, signal.SIGKILL)
        return paths(pool)

    monkeypatch.setattr(copy_pool.CopyPool, "paths", kill_one)
    with pytest.raises(WorkspaceError, match=r"ended unexpectedly \(status -9\).*incomplete"):
        copy_tree(source, tmp_path / "copy")


def test_a_failure_here_ends_the_processes(
    source: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(pool: copy_pool.CopyPool) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(copy_pool.CopyPool, "paths", interrupt)
    with pytest.raises(KeyboardInterrupt):
        copy_tree(source, tmp_path / "copy")
    assert len(started) == 2
    assert None not in [process.returncode for process in started]


def test_without_further_processes_this_one_copies_all(
    source: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(own_program.subprocess, "Popen", refuse)
    assert len(copy_tree(source, tmp_path / "copy")) == 2 * FILES


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("program", ["a module without main", "cat"])
def test_processes_that_do_not_get_going_are_not_needed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    if program == "cat":  # as where Python is embedded in another program
        monkeypatch.setattr(own_program.sys, "executable", shutil.which("cat"))
    else:
        monkeypatch.setattr(copy_pool, "_WORKER", "agent_checkpoint.errors")
    assert len(copy_tree(source, tmp_path / "copy")) == 2 * FILES


def test_a_process_that_does_nothing_is_not_waited_for(
    source: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_program, "own_program", lambda module: ["sh", "-c", "exec sleep 600"])
    assert len(copy_tree(source, tmp_path / "copy")) == 2 * FILES
    assert len(started) == 2


def test_too_many_open_files_are_an_error_of_ours(
    source: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(part_processes, "part_numbers", refuse)
    with pytest.raises(WorkspaceError, match=r"^Cannot copy '.*': Too many open files"):
        copy_tree(source, tmp_path / "copy")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_process_without_standard_streams_copies(
    source: Path, tmp_path: Path, closed: int
) -> None:
    script = """
import os, sys
from pathlib import Path
from agent_checkpoint.backends.os_support import own_program
from agent_checkpoint.workspace.fork import tree_copy

tree_copy.PARALLEL_FROM = tree_copy._PARTS = 1
own_program.usable_cores = lambda: 3
os.close(int(sys.argv[3]))
count = len(tree_copy.copy_tree(Path(sys.argv[1]), Path(sys.argv[2])))
os._exit(0 if count == int(sys.argv[4]) else 3)
"""
    places = [str(source), str(tmp_path / "copy"), str(closed), str(2 * FILES)]
    command = [sys.executable, "-c", script, *places]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("only_processes_copy")
def test_a_store_that_is_open_here_is_not_copied_by_others(
    source: Path, tmp_path: Path, started: Started
) -> None:
    store = source / "5/below/store"
    with CheckpointManager(backend="sqlite", path=str(store)) as manager:
        manager.save("key", {"step": 1})
        (store / ".lock").unlink()  # as of a store on a medium that is read-only
        copied = copy_tree(source, tmp_path / "copy")
    assert len(copied) == 2 * FILES
    assert not (tmp_path / "copy/5/below/store").exists()


def test_processes_end_if_the_copying_one_is_killed(source: Path, tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from agent_checkpoint.backends.os_support import own_program
from agent_checkpoint.workspace.fork import copy_pool, tree_copy

def kill(pool):
    print(*(process.pid for process in pool._processes._processes), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

tree_copy.PARALLEL_FROM = tree_copy._PARTS = 1
own_program.usable_cores = lambda: 3
copy_pool.CopyPool.paths = kill
tree_copy.copy_tree(Path(sys.argv[1]), Path(sys.argv[2]))
"""
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = done.stdout.split()
    assert len(pids) == 2
    until = time.monotonic() + 30
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, "a process goes on"
        time.sleep(0.01)
    shutil.rmtree(tmp_path / "copy")  # nobody writes to it


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
