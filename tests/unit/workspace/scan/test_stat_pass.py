"""Directories that are not listed: their times tell that no name was added or removed."""

import gc
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.workspace.changes import file_systems
from agent_checkpoint.workspace.changes.directory_times import DirectoryTimes
from agent_checkpoint.workspace.changes.file_systems import mounts_identity
from agent_checkpoint.workspace.scan import scan_cache, stat_index, stat_pass
from agent_checkpoint.workspace.scan.reading import file_reader
from agent_checkpoint.workspace.scan.reading.entry_reader import ReadResult
from agent_checkpoint.workspace.scan.walk import TreeWalk
from agent_checkpoint.workspace.tree.dir_state import NO_TIMES, TIMES

DIRECTORIES = 5
RACY = 0.025


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for place in range(DIRECTORIES):
        (root / f"dir{place}" / "below").mkdir(parents=True)
        for number in range(4):
            (root / f"dir{place}" / f"file{number}").write_text(f"{place} {number}")
    time.sleep(RACY)  # or all of them would be too new to be known by their times
    return root


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run on any file system."""
    monkeypatch.setattr(file_systems, "mounts_identity", lambda fd: b"mounted.")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> "list[str]":
    """The directories that a stat pass lists."""
    paths: list[str] = []
    compare = stat_pass.StatPass._list

    def counted(self: Any, path: bytes, *rest: Any) -> Any:
        paths.append(os.fsdecode(path))
        return compare(self, path, *rest)

    monkeypatch.setattr(stat_pass.StatPass, "_list", counted)
    return paths


def snapshot(root: Path, manager: CheckpointManager, **options: Any) -> str:
    """The tree of a new process."""
    with Workspace(root, manager.store, watch=False, **options) as workspace:
        return workspace.snapshot().id


def full_scan(root: Path, **options: Any) -> str:
    return snapshot(root, CheckpointManager(), **options)


def test_an_unchanged_directory_is_not_listed(
    root: Path, manager: CheckpointManager, listed: "list[str]"
) -> None:
    before = snapshot(root, manager)
    assert snapshot(root, manager) == before
    assert listed == []


def test_a_written_file_needs_one_listing_only(
    root: Path, manager: CheckpointManager, listed: "list[str]"
) -> None:
    snapshot(root, manager)
    (root / "dir1" / "file1").write_text("changed")
    time.sleep(RACY)
    assert snapshot(root, manager) == full_scan(root)
    assert listed == ["dir1"]
    assert snapshot(root, manager) == full_scan(root)
    assert listed == ["dir1"]


def test_a_directory_that_was_listed_once_is_not_listed_again(
    root: Path, manager: CheckpointManager, listed: "list[str]"
) -> None:
    """As an editor saves: a new file is renamed over the old one, and all names are as before."""
    snapshot(root, manager)
    for content in ("one", "two"):
        (root / "dir1" / "file1.tmp").write_text(content)
        (root / "dir1" / "file1.tmp").rename(root / "dir1" / "file1")
        time.sleep(RACY)
        assert snapshot(root, manager) == full_scan(root)
        assert snapshot(root, manager) == full_scan(root)
        assert listed == ["dir1"]
        del listed[:]


def test_unchanged_directories_are_not_kept(root: Path, manager: CheckpointManager) -> None:
    snapshot(root, manager)
    with Workspace(root, manager.store, watch=False) as workspace:
        workspace.snapshot()
        tree: Any = workspace._scanner.dir_state
        objects = [each for each in gc.get_objects() if isinstance(each, stat_index._IndexedDir)]
        kept = [each for each in objects if each.records is tree.records]
        assert len(kept) <= 1 + DIRECTORIES


def test_a_process_keeps_the_times_that_a_listing_gave(
    root: Path, manager: CheckpointManager, listed: "list[str]"
) -> None:
    snapshot(root, manager)
    (root / "dir1" / "below" / "new").touch()
    (root / "dir1" / "below" / "new").unlink()
    time.sleep(RACY)
    with Workspace(root, manager.store, watch=False) as workspace:
        for _ in range(3):
            workspace.snapshot()
            assert listed == ["dir1/below"]


def test_another_directory_at_the_same_path(
    root: Path, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two directories that are made at the same moment have the same times."""
    monkeypatch.setattr(DirectoryTimes, "are_same", lambda *_: True)
    place = root / "empty"
    place.mkdir()
    with Workspace(place, manager.store, watch=False) as workspace:
        workspace.snapshot()
        place.rename(root / "before")
        (root / "dir0").rename(place)
        assert snapshot(place, manager) == full_scan(place)
        assert workspace.snapshot().id == full_scan(place)


def test_a_directory_on_another_device(
    root: Path, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch, reads: "list[bytes]"
) -> None:
    """As if the directories were mounted: inodes and times tell nothing of another device."""
    snapshot(root, manager)
    del reads[:]
    assert snapshot(root, manager) == full_scan(root)
    begin, walk = stat_pass.StatPass.__init__, TreeWalk.__init__

    def begin_elsewhere(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self._device -= 1

    def walk_elsewhere(self: Any, *arguments: Any, device: int, **rest: Any) -> None:
        walk(self, *arguments, device=device - 1, **rest)

    monkeypatch.setattr(stat_pass.StatPass, "__init__", begin_elsewhere)
    monkeypatch.setattr(TreeWalk, "__init__", walk_elsewhere)
    del reads[:]
    snapshot(root, manager)
    assert len(reads) == 4 * DIRECTORIES
    del reads[:]
    snapshot(root, manager)
    assert reads == []


def test_a_kernel_file_system_where_another_was(
    root: Path, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same device number and inode, one after the other."""
    begin, walk = stat_pass.StatPass.__init__, TreeWalk.__init__
    pseudo: set[int] = set()

    def begin_elsewhere(self: Any, *arguments: Any) -> None:
        begin(self, *arguments)
        self._device -= 1
        self._pseudo = pseudo

    def walk_elsewhere(self: Any, *arguments: Any, device: int, **rest: Any) -> None:
        walk(self, *arguments, device=device - 1, **rest)
        self._pseudo = pseudo

    monkeypatch.setattr(stat_pass.StatPass, "__init__", begin_elsewhere)
    monkeypatch.setattr(TreeWalk, "__init__", walk_elsewhere)
    full = snapshot(root, manager)
    pseudo.add(root.stat().st_dev)
    for _ in range(2):
        assert snapshot(root, manager) == full_scan(root) != full
    pseudo.clear()
    assert snapshot(root, manager) == full_scan(root) == full


CHANGES: "dict[str, Callable[[Path], object]]" = {
    "a new file": lambda at: (at / "new").write_text("new"),
    "a new link": lambda at: (at / "new").symlink_to("file1"),
    "a new directory": lambda at: (at / "new").mkdir(),
    "a removed file": lambda at: (at / "file1").unlink(),
    "a removed directory": lambda at: (at / "below").rmdir(),
    "a renamed file": lambda at: (at / "file1").rename(at / "other"),
    "a file moved to the root": lambda at: (at / "file1").rename(at.parent / "moved"),
    "a file moved in": lambda at: (at.parent / "dir0" / "file0").rename(at / "moved"),
    "a directory in place of a file": lambda at: ((at / "file1").unlink(), (at / "file1").mkdir()),
    "a new file below": lambda at: (at / "below" / "new").write_text("new"),
    "another mode": lambda at: (at / "file1").chmod(0o700),
    "another mode of a directory": lambda at: (at / "below").chmod(0o700),
    "a removed tree": shutil.rmtree,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("is_hidden", [False, True], ids=["", "mtimes set back"])
def test_a_new_process_finds(
    root: Path, manager: CheckpointManager, change: "Callable[[Path], object]", is_hidden: bool
) -> None:
    before = snapshot(root, manager)
    directories = [root, root / "dir0", root / "dir1", root / "dir1" / "below"]
    times = {path: path.stat() for path in directories}
    change(root / "dir1")
    for path, found in times.items() if is_hidden else ():
        if path.exists():
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    after = snapshot(root, manager)
    assert after != before
    assert after == full_scan(root)
    time.sleep(RACY)
    assert snapshot(root, manager) == after


def test_two_directories_that_change_places_are_found(
    root: Path, manager: CheckpointManager
) -> None:
    snapshot(root, manager)
    (root / "dir1").rename(root / "other")
    (root / "dir2").rename(root / "dir1")
    (root / "other").rename(root / "dir2")
    assert snapshot(root, manager) == full_scan(root)


def test_a_directory_that_a_link_to_its_copy_replaces_is_found(
    root: Path, manager: CheckpointManager, tmp_path: Path
) -> None:
    before = snapshot(root, manager)
    (root / "dir1").rename(tmp_path / "dir1")
    (root / "dir1").symlink_to(tmp_path / "dir1")
    after = snapshot(root, manager)
    assert after == full_scan(root) != before


def test_a_file_added_in_the_moment_of_the_listing_is_found(
    root: Path, manager: CheckpointManager
) -> None:
    for number in range(20):
        (root / "dir1" / f"one{number}").write_text("")
        snapshot(root, manager)
        (root / "dir1" / f"two{number}").write_text("")
        assert snapshot(root, manager) == full_scan(root)


def test_times_count_only_for_the_names_of_their_listing(
    root: Path, manager: CheckpointManager
) -> None:
    with Workspace(root, manager.store) as workspace:
        workspace.snapshot()
        (root / "dir1" / "file1").write_text("changed")
        (root / "dir2" / "new").write_text("new")
        workspace.snapshot()
        state = workspace._scanner.dir_state
    assert state is not None
    found = (root / "dir1").stat()
    times = TIMES.pack(found.st_mtime_ns, found.st_ctime_ns, b"mounted.")
    assert state.subdirs[b"dir1"].times == times
    assert state.subdirs[b"dir2"].times == NO_TIMES


# -- entries that are not captured ---------------------------------------------------------------


@pytest.fixture
def ignoring(root: Path) -> Path:
    (root / "dir1" / "cache").mkdir()
    (root / "dir1" / "debug.log").write_text("noise")
    (root / ".checkpointignore").write_text("cache/\n*.log\n")
    time.sleep(RACY)
    return root


def test_a_directory_with_ignored_entries_is_not_listed(
    ignoring: Path, manager: CheckpointManager, listed: "list[str]"
) -> None:
    before = snapshot(ignoring, manager)
    (ignoring / "dir1" / "cache" / "more").write_text("noise")
    (ignoring / "dir1" / "debug.log").write_text("more noise")
    assert snapshot(ignoring, manager) == before
    assert listed == []


def test_an_ignored_directory_that_becomes_a_file_is_captured(
    ignoring: Path, manager: CheckpointManager
) -> None:
    before = snapshot(ignoring, manager)
    (ignoring / "dir1" / "cache").rmdir()
    (ignoring / "dir1" / "cache").write_text("a file, which no rule ignores")
    after = snapshot(ignoring, manager)
    assert after == full_scan(ignoring) != before


def test_an_ignored_entry_that_goes_is_forgotten(
    ignoring: Path, manager: CheckpointManager, listed: "list[str]"
) -> None:
    before = snapshot(ignoring, manager)
    (ignoring / "dir1" / "debug.log").unlink()
    time.sleep(RACY)
    assert snapshot(ignoring, manager) == before
    assert listed == ["dir1"]


def test_a_directory_that_is_no_longer_a_store_is_captured(
    root: Path, manager: CheckpointManager
) -> None:
    inner = root / "dir1" / "inner"
    with CheckpointManager(backend="sqlite", path=inner) as other:
        other.save("k", {"n": 1})
    time.sleep(RACY)
    before = snapshot(root, manager)
    for path in inner.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (inner / "plain").write_text("a file")
    after = snapshot(root, manager)
    assert after == full_scan(root) != before


# -- random changes ------------------------------------------------------------------------------


def change_somewhere(root: Path, chance: random.Random) -> None:
    directories = [root, *(path for path in root.rglob("*") if path.is_dir())]
    at = chance.choice(directories)
    entries = sorted(at.iterdir())
    new = at / f"new{chance.randrange(6)}"
    kind = chance.randrange(7)
    if kind == 0 and not new.exists():
        new.mkdir()
    elif kind == 1 and entries and not new.exists():
        chance.choice(entries).rename(new)
    elif kind == 2 and entries:
        gone = chance.choice(entries)
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    elif kind == 3:
        os.utime(at, ns=(1, chance.randrange(1 << 60)))
    elif kind == 4 and entries and not chance.choice(entries).is_dir():
        chance.choice(entries).chmod(chance.choice([0o600, 0o644]))
    elif not new.is_dir():
        new.write_text(str(chance.random()))


@pytest.mark.parametrize("seed", range(8))
def test_random_changes_are_found(root: Path, manager: CheckpointManager, seed: int) -> None:
    chance = random.Random(seed)
    with Workspace(root, manager.store) as watching:
        for _ in range(25):
            for _ in range(chance.randrange(3)):
                change_somewhere(root, chance)
            if chance.random() < 0.2:
                time.sleep(RACY)
            if chance.random() < 0.3:
                watching.snapshot()
            assert snapshot(root, manager) == full_scan(root)


# -- which times are relied on -------------------------------------------------------------------


def test_times_in_the_moment_of_the_listing_are_not_relied_on(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        (tmp_path / "new").write_text("")
        at_once = DirectoryTimes(fd)
        at_once._began = tmp_path.stat().st_mtime_ns  # however busy the machine is
        assert at_once.before_listing(fd) == NO_TIMES
        time.sleep(RACY)
        times = DirectoryTimes(fd).before_listing(fd)
        found = tmp_path.stat()
        assert times == TIMES.pack(found.st_mtime_ns, found.st_ctime_ns, b"mounted.")
        assert DirectoryTimes(fd).are_same(times, found)
        (tmp_path / "other").write_text("")
        assert not DirectoryTimes(fd).are_same(times, tmp_path.stat())
    finally:
        os.close(fd)


class ZeroTimes:
    """What `stat` tells of a directory in an image without times."""

    st_mtime_ns = st_ctime_ns = 0


class FarTimes:
    """What `stat` tells of a directory from another millennium."""

    st_mtime_ns = st_ctime_ns = -(1 << 64)


@pytest.mark.parametrize("found", [ZeroTimes, FarTimes])
def test_no_times_are_the_same_as_none(found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "mounts_identity", lambda fd: bytes(8))
    assert not DirectoryTimes(0).are_same(NO_TIMES, found)


def test_after_another_mount_all_directories_are_listed_once(
    root: Path, manager: CheckpointManager, listed: "list[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash can leave new names with old times, and so can changes of what was not mounted."""
    monkeypatch.setattr(scan_cache, "_REWRITE_AFTER", 5)
    snapshot(root, manager)
    monkeypatch.setattr(file_systems, "mounts_identity", lambda fd: b"another.")
    (root / "dir1" / "file1").write_text("changed")
    time.sleep(RACY)
    snapshot(root, manager)
    assert len(listed) == 1 + 2 * DIRECTORIES
    del listed[:]
    assert snapshot(root, manager) == full_scan(root)
    assert listed == []


def test_where_mounts_are_unknown_all_directories_are_listed(
    root: Path, manager: CheckpointManager, listed: "list[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "mounts_identity", lambda fd: None)
    for _ in range(3):
        snapshot(root, manager)
    assert len(listed) == 2 * (1 + 2 * DIRECTORIES)


def test_times_that_many_listings_gave_are_kept(
    root: Path, manager: CheckpointManager, listed: "list[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_cache, "_REWRITE_AFTER", DIRECTORIES)
    snapshot(root, manager)
    for place in range(DIRECTORIES):
        (root / f"dir{place}" / "new").write_text("new")
    time.sleep(RACY)
    snapshot(root, manager)
    (root / "dir1" / "file1").write_text("changed")
    time.sleep(RACY)
    snapshot(root, manager)
    del listed[:]
    assert snapshot(root, manager) == full_scan(root)
    assert listed == []


def test_the_times_are_those_of_the_directory_that_was_listed(
    root: Path, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent is exchanged before it is opened, and back afterwards."""
    for place in ("dir1", "dir2"):
        (root / place / "below" / "file").write_text("")
    time.sleep(RACY)
    snapshot(root, manager)
    (root / "dir1" / "below" / "new").write_text("new")
    (root / "dir1" / "below" / "file").write_text("changed: so its state is written")
    time.sleep(RACY)

    def exchange() -> None:
        (root / "dir1").rename(root / "other")
        (root / "dir2").rename(root / "dir1")
        (root / "other").rename(root / "dir2")

    opened, run = stat_pass.DirectoryOpener.open, stat_pass.StatPass.run
    exchanged = []

    def open_later(self: Any, path: bytes) -> int:
        if path == b"dir1/below" and not exchanged:
            exchanged.append(path)
            exchange()
        return opened(self, path)

    def run_and_exchange(self: Any, *arguments: Any) -> Any:
        found = run(self, *arguments)
        exchange()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(stat_pass.DirectoryOpener, "open", open_later)
        patched.setattr(stat_pass.StatPass, "run", run_and_exchange)
        snapshot(root, manager)
    assert exchanged
    for _ in range(2):
        assert snapshot(root, manager) == full_scan(root)


def test_a_listed_file_that_is_neither_captured_nor_noted_is_found_later(
    root: Path, manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader found another directory at this path, which was exchanged."""
    read = file_reader.EntryReader.read

    def lose(self: Any, fd: int, request: Any) -> ReadResult:
        return ReadResult(None) if request.name == b"file2" else read(self, fd, request)

    with monkeypatch.context() as patched:
        patched.setattr(file_reader.EntryReader, "read", lose)
        lost = snapshot(root, manager)
    assert lost != full_scan(root)
    assert snapshot(root, manager) == full_scan(root)


def test_paths_that_are_too_long_are_listed(
    root: Path, manager: CheckpointManager, listed: "list[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(root / "dir1", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=fd)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_CREAT, dir_fd=fd))
    try:
        time.sleep(RACY)
        before = snapshot(root, manager)
        monkeypatch.delattr(TreeWalk, "full")
        assert snapshot(root, manager) == before
        assert listed
    finally:
        os.close(fd)


MOUNT_TWICE = """
import os, subprocess, sys
from agent_checkpoint.workspace.changes.file_systems import mounts_identity
image, disk = sys.argv[1:]
for _ in range(2):
    subprocess.check_call(["mount", "-o", "loop", image, disk])
    fd = os.open(disk, os.O_RDONLY)
    print(mounts_identity(fd).hex(), mounts_identity(fd).hex())
    os.close(fd)
    subprocess.check_call(["umount", disk])
"""


def test_a_file_system_that_is_mounted_again_is_another_one(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or not Path("/sys/fs/ext4").exists():
        pytest.skip("only root can mount, and there has to be a mkfs.ext4 and a /sys")
    image, disk = tmp_path / "image", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, capture_output=True)
    apart = ["unshare", "-m"]  # other tests must not see the mounts
    mount = [*apart, "mount", "-o", "loop", str(image), str(disk)]
    tried = subprocess.run(mount, capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"mounting is refused: {tried.stderr.strip()}")
    program = [*apart, sys.executable, "-c", MOUNT_TWICE, str(image), str(disk)]
    output = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    first, again = (line.split() for line in output.splitlines())
    assert first[0] == first[1] != again[0] == again[1]


@pytest.mark.parametrize(
    ("lines", "is_known"),
    [
        ("7 1 8:1 / /disk rw - ext4 /dev/a rw", True),
        ("7 1 8:1 / /disk rw - xfs /dev/a rw", True),
        ("7 1 0:9 / /disk rw - tmpfs a rw", True),
        ("7 1 8:1 / /disk rw - btrfs /dev/a rw", False),
        ("7 1 0:9 / /disk rw - overlay a rw", False),
        ("7 1 8:1 / /disk rw - vfat /dev/a rw", False),
        ("7 1 8:1 / /disk rw - nfs4 host:/ rw", False),
        ("7 1 8:1 / /disk rw - ext4 /dev/a rw\n8 7 0:9 / /disk/place/below rw - fuse a rw", False),
        ("7 1 8:1 / /disk rw - xfs /dev/a rw\n8 7 0:9 / /disk/place/below rw - tmpfs a rw", True),
        ("7 1 8:1 / /disk rw - ext4 /dev/a rw\n8 7 0:9 / /disk/place2 rw - fuse a rw", True),
        ("7 1 8:2 / /disk rw - ext4 /dev/gone rw", False),
        ("9 1 8:1 / /disk rw - ext4 /dev/a rw", False),
    ],
)
def test_the_file_systems_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, is_known: bool
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(lines + "\n")
    links = {b"/proc/self/fd/0": b"/disk/place", b"/sys/dev/block/8:1": b"../a"}
    stat = os.stat
    known = {b"/sys/fs/ext4/a": tmp_path, b"/sys/fs/xfs/a": tmp_path}
    monkeypatch.setattr("agent_checkpoint.backends.os_support.mounts.TABLE", table)
    monkeypatch.setattr(file_systems, "mount_id", lambda fd: b"7")
    monkeypatch.setattr(os, "readlink", lambda path: links.get(path, b"../gone"))
    monkeypatch.setattr(os, "stat", lambda path: stat(known.get(path, path)))
    assert (mounts_identity(0) is not None) is is_known
