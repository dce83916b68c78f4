"""Stat processes: the same changes as without them, and none that dies unnoticed."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.backends.os_support import own_program
from agent_checkpoint.backends.os_support.part_numbers import part_numbers
from agent_checkpoint.workspace.scan import scanner, stat_pool, stat_worker
from agent_checkpoint.workspace.scan.stat_index import read_index
from agent_checkpoint.workspace.scan.stat_pass import StatPass

Started = list["subprocess.Popen[bytes]"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Every stat pass of an index has two processes; all that were started."""
    processes: Started = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(scanner, "PARALLEL_FROM_FILES", 1)
    monkeypatch.setattr(own_program, "usable_cores", lambda: 3)
    monkeypatch.setattr(own_program.subprocess, "Popen", Popen)
    return processes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of 300 files, some with names that are not UTF-8, and hard links."""
    chance = random.Random(5)
    root = tmp_path / "root"
    folders = [root]
    root.mkdir()
    for number in range(300):
        if number % 4 == 0:
            folders.append(chance.choice(folders[-20:]) / f"d{number}")
            folders[-1].mkdir()
        path = Path(os.fsdecode(bytes(chance.choice(folders)) + b"/\xff%d" % number))
        path.write_text(f"{number}\n")
    os.link(path, root / "link")
    return root


def new_process(root: Path, store: Path) -> Workspace:
    """A workspace that knows only what is on disk."""
    manager = CheckpointManager(backend="sqlite", path=str(store))
    return Workspace(root, store=manager.store, watch=False)


def id_without_index(root: Path, tmp_path: Path) -> str:
    return new_process(root, tmp_path / f"other-{os.urandom(4).hex()}").snapshot().id


def change(root: Path, chance: random.Random) -> None:
    """Edit, add, remove and replace files and directories."""
    folders = [root, *sorted(path for path in root.rglob("*") if path.is_dir())]
    files = sorted(path for path in root.rglob("*") if path.is_file())
    for _ in range(chance.randrange(1, 6)):
        folder, file = chance.choice(folders), chance.choice(files)
        kind = chance.randrange(6)
        if kind == 0 and file.exists():
            file.write_text(f"{chance.random()}\n")
        elif kind == 1 and folder.exists():
            (folder / f"new{chance.randrange(10**9)}").write_text("new\n")
        elif kind == 2:
            file.unlink(missing_ok=True)
        elif kind == 3 and folder is not root and folder.exists():
            shutil.rmtree(folder)
        elif kind == 4 and folder is not root and folder.exists():
            folder.rename(root / f"moved{chance.randrange(10**9)}")
        elif kind == 5 and folder is not root and folder.exists():
            shutil.rmtree(folder)
            folder.symlink_to("/")


def let_processes_begin(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan takes its first part after the end of the processes."""
    real = stat_pool.PartProcesses.numbers

    def numbers(self: Any) -> Any:
        for process in started:
            process.wait()
        return real(self)

    monkeypatch.setattr(stat_pool.PartProcesses, "numbers", numbers)


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_is_the_same_as_of_a_scan_without_an_index(
    seed: int, root: Path, tmp_path: Path, started: Started
) -> None:
    chance = random.Random(seed)
    new_process(root, tmp_path / "store").snapshot()
    for _ in range(3):
        change(root, chance)
        assert new_process(root, tmp_path / "store").snapshot().id == id_without_index(
            root, tmp_path
        )
    assert started
    assert all(process.returncode is not None for process in started), "left behind"


def test_processes_report_changes_and_links(root: Path, tmp_path: Path, started: Started) -> None:
    new_process(root, tmp_path / "store").snapshot()
    index_path = next(path for path in Path(os.environ["AGENT_CHECKPOINT_HOME"]).glob("index/*"))
    index = read_index(index_path)
    assert index is not None
    parts = stat_worker.split(index.root)
    assert len(parts) > 10
    changed = root / os.fsdecode(parts[0].path) / "new"
    changed.write_text("new")
    os.link(root / "link", changed.with_name("other"))
    fd = os.open(root, os.O_RDONLY)
    numbers = part_numbers(len(parts))
    try:
        # All parts are for the process: the scan would take some of them.
        output = subprocess.run(
            [
                *own_program.own_program(stat_pool._WORKER),
                *map(str, (fd, numbers, index_path, index.digest.hex())),
            ],
            pass_fds=[fd, numbers],
            check=True,
            capture_output=True,
        ).stdout
        serial = StatPass(fd, None)
        for part in parts:
            serial.run(part.state, part.path)
        merged = StatPass(fd, None)
    finally:
        os.close(fd)
        os.close(numbers)
    reported = stat_pool.json.loads(output)
    for _, found in reported:
        stat_pool._add(merged, found)
    assert [number for number, _ in reported] == list(range(len(parts)))
    assert merged.changed == serial.changed
    assert parts[0].path in merged.changed.names
    assert (parts[0].path, b"other") in {link[2:] for link in merged.links.entries()}


def test_the_scan_uses_what_processes_report(
    root: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(root, tmp_path / "store").snapshot()
    change(root, random.Random(3))
    let_processes_begin(started, monkeypatch)
    snapshot = new_process(root, tmp_path / "store").snapshot()
    assert [process.returncode for process in started] == [0, 0]
    assert snapshot.id == id_without_index(root, tmp_path)


@pytest.mark.parametrize("status", [0, 1, -9])
def test_what_a_dead_process_took_is_compared_by_the_scan(
    status: int,
    root: Path,
    tmp_path: Path,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_process(root, tmp_path / "store").snapshot()
    change(root, random.Random(3))
    # It takes all parts and reports none: with status 0 it says that it took none.
    end = "print('[]')" if status == 0 else f"os.kill(os.getpid(), {-status})"
    end = "sys.exit(1)" if status == 1 else end
    program = f"import os, sys\nwhile os.read(int(sys.argv[2]), 4): pass\n{end}"
    program_line = [sys.executable, "-c", program]
    monkeypatch.setattr(own_program, "own_program", lambda module: program_line)
    let_processes_begin(started, monkeypatch)
    snapshot = new_process(root, tmp_path / "store").snapshot()
    assert [process.returncode for process in started] == [status, status]
    assert snapshot.id == id_without_index(root, tmp_path)


def test_a_process_that_finds_another_index_takes_no_part(root: Path, tmp_path: Path) -> None:
    new_process(root, tmp_path / "store").snapshot()
    index_path = next(path for path in Path(os.environ["AGENT_CHECKPOINT_HOME"]).glob("index/*"))
    fd = os.open(root, os.O_RDONLY)
    try:
        done = subprocess.run(
            [*own_program.own_program(stat_pool._WORKER), str(fd), "0", str(index_path), "00"],
            pass_fds=[fd],
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    finally:
        os.close(fd)
    assert (done.returncode, done.stdout) == (stat_worker._OTHER_INDEX, b"")


def test_no_process_can_be_started(
    root: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise BlockingIOError("no more processes")

    new_process(root, tmp_path / "store").snapshot()
    change(root, random.Random(4))
    monkeypatch.setattr(own_program.subprocess, "Popen", fail)
    snapshot = new_process(root, tmp_path / "store").snapshot()
    assert snapshot.id == id_without_index(root, tmp_path)


def test_only_files_that_changed_are_read(
    root: Path, tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(root, tmp_path / "store").snapshot()
    for path in list(root.rglob("*")):  # files as new as a scan are read again
        if path.is_file():
            os.utime(path, ns=(10**18, 10**18))
    new_process(root, tmp_path / "store").snapshot()
    (root / "new").write_text("new")
    seen: list[dict[bytes, set[bytes]]] = []
    real = scanner.TreeWalk.partial

    def partial(self: Any, known: Any, names: Any, *args: Any, **options: Any) -> Any:
        seen.append(names)
        return real(self, known, names, *args, **options)

    monkeypatch.setattr(scanner.TreeWalk, "partial", partial)
    new_process(root, tmp_path / "store").snapshot()
    assert b"new" in seen[0][b""]
    assert sum(map(len, seen[0].values())) < 300


def test_parts_cover_the_tree_once(root: Path, tmp_path: Path) -> None:
    workspace = new_process(root, tmp_path / "store")
    workspace.snapshot()
    state = workspace._scanner.dir_state
    assert state is not None
    parts = stat_worker.split(state)
    paths = [part.path for part in parts]
    assert len(set(paths)) == len(paths)
    assert not [one for one in paths for other in paths if one.startswith(other + b"/")]
    assert b"" not in paths
