"""Copies of trees: exact, inside their place, sharing blocks where the file system can."""

import os
import random
import resource
import shutil
import socket
import stat
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_checkpoint.backends.os_support import own_program
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace import safe_open
from agent_checkpoint.workspace.fork import subtree_copy, tree_copy
from agent_checkpoint.workspace.fork.overlay_mount import remove_tree
from agent_checkpoint.workspace.fork.reflink import can_reflink
from agent_checkpoint.workspace.fork.tree_copy import copy_tree
from agent_checkpoint.workspace.tree.dir_state import stat_signature
from tests.unit.workspace.fork.test_overlay_mount import ODD_NAMES

SECOND = 10**9


def described(root):
    """Return type, mode, time and content of everything below a directory, and of itself."""
    found = {}
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        full = os.path.join(os.fsencode(root), path)
        status = os.lstat(full)
        content = b""
        if stat.S_ISDIR(status.st_mode):
            waiting += [os.path.join(path, name) for name in os.listdir(full)]
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(full)
        else:
            with open(full, "rb") as file:
                content = file.read()
        found[path] = (status.st_mode, status.st_mtime_ns, content)
    return found


def fill(root):
    """Make a tree that has some of everything that is copied."""
    for name in ODD_NAMES:
        (root / name).mkdir()
        (root / name / name).write_text(name, encoding="utf-8", errors="surrogateescape")
        (root / name / "empty folder").mkdir()
        (root / name / f"link to {name}").symlink_to(root / name)
    (root / "empty").touch()
    (root / "dangling").symlink_to("nowhere/at all")
    for mode in (0o000, 0o400, 0o444, 0o640, 0o666, 0o755, 0o777):
        (root / f"{mode:o}").write_bytes(b"x" * mode)
        (root / f"{mode:o}").chmod(mode)
        (root / f"folder {mode:o}/below").mkdir(parents=True)
        (root / f"folder {mode:o}/below/file").touch()
    (root / "large").write_bytes(random.Random(1).randbytes(3_000_001))
    age = 10**18
    for path in sorted(root.rglob("*"), reverse=True):
        age += 17 * SECOND + 123
        os.utime(path, ns=(age, age), follow_symlinks=False)
    for mode in (0o400, 0o444, 0o640, 0o666, 0o755, 0o777):
        (root / f"folder {mode:o}").chmod(mode)
    os.utime(root, ns=(age, age))


@pytest.fixture(params=[1, 3], ids=["one process", "three processes"])
def source(tmp_path, monkeypatch, request):
    """A directory to fill. With three processes, they copy all but the files of the root."""
    if request.param > 1:
        monkeypatch.setattr(tree_copy, "PARALLEL_FROM", 1)
        monkeypatch.setattr(tree_copy, "_PARTS", 1)
    monkeypatch.setattr(own_program, "usable_cores", lambda: request.param)
    root = tmp_path / "source"
    root.mkdir()
    yield root
    for path in root.iterdir():
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)


@contextmanager
def umask(mask):
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads files of every mode")
@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_copy_is_exact(source, tmp_path, mask):
    fill(source)
    with umask(mask):
        copy_tree(source, tmp_path / "copy")
    assert described(tmp_path / "copy") == described(source)


def test_a_copy_of_what_one_can_read_is_exact(source, tmp_path):
    fill(source)
    for mode in ("0", "folder 0"):
        (source / mode).chmod(0o500)
    for mode in ("folder 400", "folder 444", "folder 640", "folder 666"):
        (source / mode).chmod(0o555)
    copy_tree(source, tmp_path / "copy")
    assert described(tmp_path / "copy") == described(source)
    for path in (tmp_path / "copy").iterdir():
        if path.is_dir():
            path.chmod(0o700)


def test_specials_are_left_out(source, tmp_path):
    (source / "folder").mkdir()
    os.mkfifo(source / "folder/fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(source / "socket"))
    (source / "file").touch()
    copy_tree(source, tmp_path / "copy")
    assert sorted(os.listdir(tmp_path / "copy")) == ["file", "folder"]
    assert os.listdir(tmp_path / "copy/folder") == []


def test_setuid_bits_are_dropped(source, tmp_path):
    for number, bit in enumerate((stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX)):
        (source / f"{number}").write_text("x")
        (source / f"{number}").chmod(0o755 | bit)
        (source / f"folder {number}").mkdir()
        (source / f"folder {number}").chmod(0o755 | bit)
    copy_tree(source, tmp_path / "copy")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "copy").iterdir()} == {0o755}


def test_what_is_to_be_left_out_is_not_even_looked_at(source, tmp_path):
    (source / "kept/skipped/below").mkdir(parents=True)
    (source / "kept/kept").mkdir()
    (source / "skipped").write_text("x")
    (source / "skipped").chmod(0)
    copy_tree(source, tmp_path / "copy", leave_out={b"skipped", b"kept/skipped"})
    assert [*os.walk(tmp_path / "copy")] == [
        (str(tmp_path / "copy"), ["kept"], []),
        (str(tmp_path / "copy/kept"), ["kept"], []),
        (str(tmp_path / "copy/kept/kept"), [], []),
    ]


def test_no_link_is_followed(source, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    (source / "link").symlink_to(outside)
    copy_tree(source, tmp_path / "copy")
    assert (tmp_path / "copy/link").is_symlink()


@pytest.fixture
def before_entries(monkeypatch):
    """Calls a function between the listing of a directory and the copying of its entries."""
    real = os.scandir

    def set_hook(hook):
        @contextmanager
        def scandir(path):
            with real(path) as entries:
                found = list(entries)
            hook({entry.name for entry in found})
            yield found

        monkeypatch.setattr(subtree_copy.os, "scandir", scandir)

    return set_hook


def test_a_directory_that_becomes_a_link_meanwhile_is_not_followed(
    source, tmp_path, before_entries
):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    (source / "folder").mkdir()

    def swap(names):
        if not (source / "folder").is_symlink():
            (source / "folder").rename(source / "moved")
            (source / "folder").symlink_to(outside)

    before_entries(swap)
    with pytest.raises(WorkspaceError, match=r"Cannot copy .*folder'"):
        copy_tree(source, tmp_path / "copy")
    assert not list((tmp_path / "copy").rglob("secret"))


def test_a_file_that_becomes_a_fifo_meanwhile_is_not_waited_for(source, tmp_path, monkeypatch):
    (source / "file").touch()
    real = os.open

    def swap(path, flags, *rest, **options):
        if path == b"file" and flags & os.O_NONBLOCK:
            (source / "file").unlink()
            os.mkfifo(source / "file")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(WorkspaceError, match=r"Cannot copy .*file': the file was replaced"):
        copy_tree(source, tmp_path / "copy")


def test_what_vanishes_meanwhile_is_left_out(source, tmp_path, before_entries):
    (source / "kept").touch()
    (source / "gone").touch()
    (source / "link").symlink_to("kept")
    (source / "folder/below").mkdir(parents=True)

    def remove(names):
        if "gone" in names:
            (source / "gone").unlink()
            (source / "link").unlink()
            (source / "folder/below").rmdir()
            (source / "folder").rmdir()

    before_entries(remove)
    copy_tree(source, tmp_path / "copy")
    assert (tmp_path / "copy/kept").exists()
    assert not os.path.lexists(tmp_path / "copy/gone")
    assert not os.path.lexists(tmp_path / "copy/link")


def test_a_copy_into_the_source_does_not_hold_itself(source):
    (source / "folder").mkdir()
    (source / "file").touch()
    copy_tree(source, source / "folder/copy")
    assert sorted(os.listdir(source / "folder/copy")) == ["file", "folder"]
    assert os.listdir(source / "folder/copy/folder") == []


def test_holes_stay_holes(source, tmp_path):
    with open(source / "holes", "wb") as file:
        file.seek(5_000_000)
        file.write(b"middle")
        file.truncate(50_000_000)
    (source / "only a hole").touch()
    os.truncate(source / "only a hole", 10_000_000)
    copy_tree(source, tmp_path / "copy")
    assert described(tmp_path / "copy") == described(source)
    if (source / "holes").stat().st_blocks < 1000:
        assert (tmp_path / "copy/holes").stat().st_blocks < 1000


@pytest.mark.parametrize("has_kernel", [True, False])
def test_many_large_files_go_through_both_threads(source, tmp_path, monkeypatch, has_kernel):
    if not has_kernel:
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    rng = random.Random(2)
    for number in range(30):
        (source / f"{number}").write_bytes(rng.randbytes(300_000 + number))
    copy_tree(source, tmp_path / "copy")
    assert described(tmp_path / "copy") == described(source)


def test_a_file_system_without_a_copy_of_its_own_gets_one(source, tmp_path, monkeypatch):
    (source / "file").write_bytes(bytes(range(256)) * 4000)

    def refuse(*arguments):
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    copy_tree(source, tmp_path / "copy")
    assert described(tmp_path / "copy") == described(source)


@pytest.mark.parametrize("size", [1000, 3_000_000], ids=["small", "large"])
def test_a_write_that_fails_is_told(source, tmp_path, size):
    (source / "file").write_bytes(bytes(size))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(WorkspaceError, match=r"Cannot copy .*file': File too large"):
            copy_tree(source, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_target_that_exists_is_left_alone(source, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/kept").touch()
    with pytest.raises(WorkspaceError, match=r"Cannot copy .*copy': File exists"):
        copy_tree(source, tmp_path / "copy")
    with pytest.raises(WorkspaceError, match=r"Cannot copy .*missing'"):
        copy_tree(tmp_path / "missing", tmp_path / "other")
    assert os.listdir(tmp_path / "copy") == ["kept"]
    assert not (tmp_path / "other").exists()


def test_files_of_others_stay_theirs_if_root_copies(source, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    (source / "folder").mkdir()
    (source / "folder/file").write_text("x")
    (source / "link").symlink_to("x")
    for path in ("folder", "folder/file", "link"):
        os.chown(source / path, 65534, 65533, follow_symlinks=False)
    copy_tree(source, tmp_path / "copy")
    for path in ("folder", "folder/file", "link"):
        status = os.lstat(tmp_path / "copy" / path)
        assert (status.st_uid, status.st_gid) == (65534, 65533)
    assert (tmp_path / "copy").stat().st_uid == 0


def test_the_signatures_of_what_was_copied_are_told(source, tmp_path):
    fill(source)
    copied = copy_tree(source, tmp_path / "copy")
    assert copied == {
        os.fsencode(path.relative_to(source)): (
            stat_signature(path.lstat()),
            stat_signature((tmp_path / "copy" / path.relative_to(source)).lstat()),
        )
        for path in source.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_no_signature_is_told_that_a_later_change_could_have(source, tmp_path, monkeypatch):
    """Where the clock of files is coarse, a change right after the copy has the same time."""
    (source / "file").write_text("x")
    monkeypatch.setattr(tree_copy, "_next_change", lambda *_: 0)
    assert copy_tree(source, tmp_path / "copy") == {}


def test_what_cannot_be_read_is_told(source, tmp_path):
    """As nobody: root reads everything."""
    (source / "closed").touch()
    (source / "closed").chmod(0)
    script = """
import os, sys
from pathlib import Path
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.fork.tree_copy import copy_tree
fd = os.open(sys.argv[1], os.O_RDONLY)
os.fchdir(fd)
if os.geteuid() == 0:
    os.fchmod(fd, 0o777)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    copy_tree(Path("."), Path("copy"))
except WorkspaceError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(source)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "Cannot copy './closed': Permission denied.\n", done.stderr


@pytest.mark.slow
def test_nothing_is_too_deep_to_be_copied(source, tmp_path):
    depth = 1500  # more than files may be open
    fd = os.open(source, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("down", 0o750, dir_fd=fd)
        below = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0o640, dir_fd=fd))
        os.close(fd)
        fd = below
    os.close(fd)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 512), limits[1]))
    try:
        copy_tree(source, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    fd = os.open(tmp_path / "copy", os.O_RDONLY)
    for level in range(depth):
        assert sorted(os.listdir(fd)) == ["down", "file"], level
        below = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o750
    os.close(fd)
    for tree in (source / "down", tmp_path / "copy"):
        remove_tree(tree)  # pytest cannot


def test_no_descriptor_is_left_open(source, tmp_path):
    fill(source)
    for mode in ("0", "folder 0", "folder 400", "folder 444", "folder 640", "folder 666"):
        (source / mode).chmod(0o755)
    before = os.listdir("/dev/fd")
    copy_tree(source, tmp_path / "copy")
    with pytest.raises(WorkspaceError):
        copy_tree(source, tmp_path / "copy")
    assert os.listdir("/dev/fd") == before


@contextmanager
def loop_disk(kind, place, megabytes):
    """Mount a new file system of a kind; the test is skipped where that is refused."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("only root on Linux can mount a disk")
    if shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"there is no mkfs.{kind}")
    image, disk = place / "image", place / "disk"
    disk.mkdir()
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    made = subprocess.run([f"mkfs.{kind}", "-q", image], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    done = subprocess.run(["mount", "-o", "loop", image, disk], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting is refused: {done.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
        image.unlink()


@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
def test_copies_share_their_blocks_where_they_can(tmp_path, kind):
    with loop_disk(kind, tmp_path, 400) as disk:
        assert can_reflink(disk)
        assert os.listdir(disk) == []
        source = disk / "source"
        source.mkdir()
        fill(source)
        (source / "very large").write_bytes(os.urandom(60_000_000))
        for number in range(12):  # more than the disk could hold
            copy_tree(source, disk / f"{number}")
        assert described(disk / "11") == described(source)
        with open(disk / "11/very large", "r+b") as file:
            file.write(b"changed")
        with open(source / "very large", "rb") as file:
            assert file.read(7) != b"changed"


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_where_blocks_cannot_be_shared_that_is_found_out(tmp_path, kind):
    if kind == "tmpfs":
        if not os.path.isdir("/dev/shm"):
            pytest.skip("there is no /dev/shm")
        assert not can_reflink(Path("/dev/shm"))
        return
    with loop_disk(kind, tmp_path, 32) as disk:
        assert not can_reflink(disk)
        (disk / "source").mkdir()
        (disk / "source/file").write_text("x")
        copy_tree(disk / "source", disk / "copy")
        assert described(disk / "copy") == described(disk / "source")


def test_copies_go_from_disk_to_disk(tmp_path):
    with loop_disk("btrfs", tmp_path, 200) as disk:
        source = disk / "source"
        source.mkdir()
        fill(source)
        copy_tree(source, tmp_path / "copy")
        assert described(tmp_path / "copy") == described(source)


def test_a_directory_that_is_not_there_shares_nothing(tmp_path):
    assert not can_reflink(tmp_path / "missing")


def test_a_reach_keeps_few_directories_open(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_open, "_MAX_OPEN", 2)
    for path in ("a/b/c/d", "a/b/x/y", "q"):
        (tmp_path / path).mkdir(parents=True)
    before = len(os.listdir("/dev/fd"))
    with safe_open.DirectoryOpener(os.open(tmp_path, os.O_RDONLY)) as reach:
        for path in (b"a/b/c/d", b"a/b/c/d", b"a/b/x/y", b"", b"a/b/x", b"q", b"a"):
            seen = os.fstat(reach.open(path))
            assert seen.st_ino == (tmp_path / os.fsdecode(path)).stat().st_ino
            assert len(os.listdir("/dev/fd")) <= before + 4
        with pytest.raises(FileNotFoundError):
            reach.open(b"a/b/missing")
    assert len(os.listdir("/dev/fd")) == before
