"""What the kernel tells of a directory tree, on a real file system."""

import ctypes
import errno
import gc
import mmap
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Optional

import pytest

from agent_checkpoint.backends.os_support import mounts
from agent_checkpoint.workspace.changes import inotify as module
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths, WatchError
from agent_checkpoint.workspace.changes.file_systems import LOCAL
from agent_checkpoint.workspace.changes.inotify import Watcher
from tests.unit.workspace.watching import can_watch

pytestmark = pytest.mark.skipif(
    not can_watch(Path(tempfile.gettempdir())),
    reason="no inotify, or temporary files are on a file system without events",
)

MOUNTED = Path("/proc/self/mountinfo")
QUEUE = Path("/proc/sys/fs/inotify/max_queued_events")


@contextmanager
def opened(place: Path) -> Iterator[int]:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def watch(watcher: Watcher, root: Path, path: bytes = b"") -> None:
    with opened(root / os.fsdecode(path)) as fd:
        watcher.add(fd, path)


def watch_all(watcher: Watcher, root: Path, path: bytes = b"") -> None:
    watch(watcher, root, path)
    for entry in os.scandir(root / os.fsdecode(path)):
        if entry.is_dir(follow_symlinks=False):
            watch_all(watcher, root, join(path, os.fsencode(entry.name)))


def join(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def drain(watcher: Watcher) -> ChangedPaths:
    touched = watcher.drain()
    assert touched is not None
    return touched


@pytest.fixture(autouse=True)
def no_mounts_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out mounts that other tests make meanwhile: a file that is a copy never changes."""
    table = tmp_path / "mounted"
    table.write_bytes(MOUNTED.read_bytes())
    monkeypatch.setattr(mounts, "TABLE", table)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a file and a directory, in which there are a file and a directory."""
    place = tmp_path / "root"
    (place / "d" / "e").mkdir(parents=True)
    (place / "f").write_bytes(b"f")
    (place / "d" / "g").write_bytes(b"g")
    (place / "d" / "e" / "h").write_bytes(b"h")
    return place


@pytest.fixture
def watcher(root: Path) -> Iterator[Watcher]:
    made = Watcher()
    watch_all(made, root)
    assert drain(made) == ({}, set())
    yield made
    made.close()


# -- each kind of event --------------------------------------------------------------------------


def truncate(root: Path) -> None:
    os.truncate(root / "f", 0)


def append(root: Path) -> None:
    with open(root / "f", "ab", buffering=0) as file:
        file.write(b"more")


def exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) != 0:
        pytest.skip(f"names cannot be exchanged here: {os.strerror(ctypes.get_errno())}")


def store_by_mmap(root: Path) -> None:
    with open(root / "d" / "g", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 1)
    memory[0] = 0
    memory.close()


def make_unnamed(root: Path) -> None:
    try:
        fd = os.open(root / "d", os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as error:
        pytest.skip(f"no files without a name here: {error}")
    libc = ctypes.CDLL(None)
    os.write(fd, b"whole")
    link = b"/proc/self/fd/%d" % fd
    assert libc.linkat(-100, link, -100, os.fsencode(root / "d" / "named"), 0x400) == 0
    os.close(fd)


KINDS: list[tuple[str, Callable[[Path], object], dict[bytes, set[bytes]], set[bytes]]] = [
    ("create", lambda root: (root / "n").touch(), {b"": {b"n"}}, set()),
    ("create below", lambda root: (root / "d" / "n").touch(), {b"d": {b"n"}}, set()),
    ("create deeper", lambda root: (root / "d/e/n").touch(), {b"d/e": {b"n"}}, set()),
    ("write", append, {b"": {b"f"}}, set()),
    ("truncate", truncate, {b"": {b"f"}}, set()),
    ("mode", lambda root: (root / "f").chmod(0o600), {b"": {b"f"}}, set()),
    ("times", lambda root: os.utime(root / "f", (1, 1)), {b"": {b"f"}}, set()),
    ("delete", lambda root: (root / "f").unlink(), {b"": {b"f"}}, set()),
    ("symlink", lambda root: (root / "s").symlink_to("d"), {b"": {b"s"}}, set()),
    ("hard link", lambda root: os.link(root / "f", root / "d/l"), {b"d": {b"l"}}, set()),
    ("fifo", lambda root: os.mkfifo(root / "p"), {b"": {b"p"}}, set()),
    ("move", lambda root: (root / "f").rename(root / "n"), {b"": {b"f", b"n"}}, set()),
    (
        "move over",
        lambda root: (root / "f").replace(root / "d" / "g"),
        {b"": {b"f"}, b"d": {b"g"}},
        set(),
    ),
    ("move out", lambda root: (root / "f").rename(root.parent / "f"), {b"": {b"f"}}, set()),
    ("store by mmap", store_by_mmap, {b"d": {b"g"}}, set()),
    ("directory", lambda root: (root / "n").mkdir(), {b"": {b"n"}}, {b"n"}),
    ("directory below", lambda root: (root / "d/n").mkdir(), {b"d": {b"n"}}, {b"d/n"}),
    ("mode of a directory", lambda root: (root / "d").chmod(0o700), {b"": {b"d"}}, set()),
    ("mode of the root", lambda root: root.chmod(0o700), {b"": set()}, set()),
    (
        "move of a directory",
        lambda root: (root / "d" / "e").rename(root / "n"),
        {b"d": {b"e"}, b"": {b"n"}},
        {b"d/e", b"n"},
    ),
    (
        "move of a directory out",
        lambda root: (root / "d" / "e").rename(root.parent / "n"),
        {b"d": {b"e"}},
        {b"d/e"},
    ),
    (
        "deleted tree",
        lambda root: shutil.rmtree(root / "d"),
        {b"": {b"d"}, b"d": {b"e", b"g"}, b"d/e": {b"h"}},
        {b"d", b"d/e"},
    ),
    (
        "exchange",
        lambda root: exchange(root / "f", root / "d" / "e"),
        {b"": {b"f"}, b"d": {b"e"}},
        {b"f", b"d/e"},
    ),
]


@pytest.mark.parametrize(
    ("act", "names", "replaced"), [pytest.param(*kind[1:], id=kind[0]) for kind in KINDS]
)
def test_every_kind_of_change_is_told(
    watcher: Watcher,
    root: Path,
    act: Callable[[Path], object],
    names: dict[bytes, set[bytes]],
    replaced: set[bytes],
) -> None:
    act(root)
    assert drain(watcher) == (names, replaced)
    assert drain(watcher) == ({}, set())


def test_looking_is_not_told(watcher: Watcher, root: Path) -> None:
    (root / "f").read_bytes()
    (root / "f").stat()
    list(root.iterdir())
    assert drain(watcher) == ({}, set())


def test_a_file_that_got_its_name_when_it_was_whole(watcher: Watcher, root: Path) -> None:
    make_unnamed(root)
    assert b"named" in drain(watcher).names[b"d"]


def test_a_directory_that_is_moved_in(watcher: Watcher, root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    outside.rename(root / "d" / "inside")
    assert drain(watcher) == ({b"d": {b"inside"}}, {b"d/inside"})


def test_a_file_that_is_written_to_after_it_moved(watcher: Watcher, root: Path) -> None:
    with open(root / "f", "ab", buffering=0) as file:
        (root / "f").rename(root / "d" / "n")
        drain(watcher)
        file.write(b"more")
        assert drain(watcher).names == {b"d": {b"n"}}


def test_a_store_by_mmap_is_told_when_the_file_is_unmapped(watcher: Watcher, root: Path) -> None:
    with open(root / "d" / "g", "r+b") as file:
        memory = mmap.mmap(file.fileno(), 1)
    memory[0] = 0
    drain(watcher)
    memory[0] = 1
    memory.close()
    assert drain(watcher).names == {b"d": {b"g"}}


@pytest.mark.parametrize(
    "name",
    [b"\n", b"a\nb", b"\xff\xfe", b" ", b"x" * 255, b"\xff" * 255, b"y" * 15, b"z" * 16, b"..."],
)
def test_any_name(watcher: Watcher, root: Path, name: bytes) -> None:
    place = os.fsencode(root) + b"/d/" + name
    try:
        os.mkdir(place)
    except OSError as error:
        pytest.skip(f"this file system has no such names: {error}")
    assert drain(watcher) == ({b"d": {name}}, {b"d/" + name})
    watch(watcher, root, b"d/" + name)
    open(place + b"/" + name, "xb").close()
    assert drain(watcher) == ({b"d/" + name: {name}}, set())


def test_many_different_names_at_once(watcher: Watcher, root: Path) -> None:
    names = {b"n" * length for length in range(1, 256)}
    for name in names:
        os.symlink("f", os.fsencode(root) + b"/" + name)
    assert drain(watcher) == ({b"": names}, set())


# -- watches -------------------------------------------------------------------------------------


def test_a_new_directory_with_files_made_before_its_watch(watcher: Watcher, root: Path) -> None:
    (root / "n" / "deep").mkdir(parents=True)
    (root / "n" / "early").touch()
    assert drain(watcher) == ({b"": {b"n"}}, {b"n"})
    watch(watcher, root, b"n")
    (root / "n" / "late").touch()
    assert set(os.listdir(root / "n")) == {"deep", "early", "late"}
    assert drain(watcher).names == {b"n": {b"late"}}


def test_they_are_counted(watcher: Watcher, root: Path) -> None:
    assert len(watcher) == 3
    watch_all(watcher, root)
    assert len(watcher) == 3
    shutil.rmtree(root / "d")
    drain(watcher)
    assert len(watcher) == 1
    watcher.forget(b"d")
    watcher.forget(b"")
    assert len(watcher) == 0


def test_forgetting_takes_all_below_and_nothing_else(watcher: Watcher, root: Path) -> None:
    for name in ["d-", "d0", "dd"]:
        (root / name / "e").mkdir(parents=True)
        watch_all(watcher, root, name.encode())
    drain(watcher)
    watcher.forget(b"d")
    assert len(watcher) == 7
    assert Path(f"/proc/self/fdinfo/{watcher._fd}").read_text().count("inotify wd:") == 7
    for name in ["d", "d-", "d0", "dd"]:
        (root / name / "e" / "n").touch()
        (root / name / "n").touch()
    assert set(drain(watcher).names) == {
        path for name in [b"d-", b"d0", b"dd"] for path in (name, name + b"/e")
    }


def test_forgetting_what_is_not_known(watcher: Watcher) -> None:
    watcher.forget(b"nothing/here")
    watcher.forget(b"d/e/nothing")
    assert len(watcher) == 3


def test_forgetting_a_parent_that_was_never_watched(root: Path) -> None:
    watcher = Watcher()
    watch(watcher, root, b"d/e")
    watcher.forget(b"d")
    assert len(watcher) == 0
    watcher.close()


def test_what_was_forgotten_is_told_of_nobody(watcher: Watcher, root: Path) -> None:
    (root / "d" / "late").touch()
    (root / "d" / "sub").mkdir()
    watcher.forget(b"d")
    (root / "other").mkdir()
    watch(watcher, root, b"other")
    assert drain(watcher) == ({b"": {b"other"}}, {b"other"})


def test_a_moved_directory_is_watched_at_its_new_path(watcher: Watcher, root: Path) -> None:
    (root / "d").rename(root / "m")
    touched = drain(watcher)
    assert touched.replaced == {b"d", b"m"}
    for path in touched.replaced:
        watcher.forget(path)
    watch_all(watcher, root, b"m")
    (root / "m" / "e" / "n").touch()
    assert drain(watcher) == ({b"m/e": {b"n"}}, set())
    assert len(watcher) == 3


def test_a_directory_that_moved_between_drain_and_add(watcher: Watcher, root: Path) -> None:
    (root / "d").rename(root / "m")
    watch_all(watcher, root, b"m")  # the kernel gives the watches of d and d/e
    assert len(watcher) == 3
    (root / "m" / "e" / "n").touch()
    touched = drain(watcher)
    assert touched.replaced == {b"d", b"m"}
    assert touched.names[b"m/e"] == {b"n"}
    watcher.forget(b"d")
    (root / "m" / "e" / "o").touch()
    assert drain(watcher) == ({b"m/e": {b"o"}}, set())
    watcher.forget(b"m")
    assert len(watcher) == 1


def test_another_directory_at_a_path_that_was_not_forgotten(watcher: Watcher, root: Path) -> None:
    (root / "d").rename(root.parent / "out")
    (root / "d" / "e").mkdir(parents=True)
    watch(watcher, root, b"d")
    assert len(watcher) == 2
    drain(watcher)
    (root.parent / "out" / "e" / "n").touch()
    (root.parent / "out" / "n").touch()
    assert drain(watcher) == ({}, set())
    (root / "d" / "n").touch()
    assert drain(watcher) == ({b"d": {b"n"}}, set())


def test_a_directory_that_takes_the_place_of_its_parent(watcher: Watcher, root: Path) -> None:
    (root / "d" / "e").rename(root.parent / "out")
    shutil.rmtree(root / "d")
    (root.parent / "out").rename(root / "d")
    watch(watcher, root, b"d")  # not forgotten before, and its watch is the one of d/e
    drain(watcher)
    (root / "d" / "n").touch()
    assert drain(watcher) == ({b"d": {b"n"}}, set())


def test_a_directory_that_is_deleted_while_it_is_open(watcher: Watcher, root: Path) -> None:
    with opened(root / "d" / "e"):
        shutil.rmtree(root / "d" / "e")
        assert drain(watcher).replaced == {b"d/e"}
        (root / "d" / "e").mkdir()
        assert drain(watcher).replaced == {b"d/e"}
        watcher.forget(b"d/e")
        watch(watcher, root, b"d/e")
    assert drain(watcher) == ({}, set())  # the old one is gone only now
    (root / "d" / "e" / "n").touch()
    assert drain(watcher) == ({b"d/e": {b"n"}}, set())


def test_forgetting_very_many_does_not_overflow_the_queue(tmp_path: Path) -> None:
    watcher = Watcher()
    watch(watcher, tmp_path)
    names = [b"%d" % number for number in range(1000)]
    for name in names:
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
    drain(watcher)
    (tmp_path / "kept").touch()
    for _ in range(int(QUEUE.read_text()) // len(names) + 2):
        for name in names:
            watch(watcher, tmp_path, name)
        assert len(watcher) == len(names) + 1
        for name in names:
            watcher.forget(name)
        assert len(watcher) == 1
    assert drain(watcher) == ({b"": {b"kept"}}, set())
    watcher.close()


def test_only_directories_are_watched(watcher: Watcher, root: Path) -> None:
    with open(root / "f", "rb") as file, pytest.raises(WatchError, match="'f' cannot be watched"):
        watcher.add(file.fileno(), b"f")
    assert watcher.drain() is None


def test_no_symlink_is_followed(watcher: Watcher, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with opened(root / "d" / "e") as fd:
        (root / "d" / "e").rename(root / "d" / "away")
        (root / "d" / "e").symlink_to(outside)
        watcher.forget(b"d/e")
        watcher.add(fd, b"d/e")
    drain(watcher)
    (outside / "n").touch()
    assert drain(watcher) == ({}, set())


# -- nothing is missed ---------------------------------------------------------------------------

WRITER = """
import os, sys
for line in sys.stdin:
    fd = os.open(line.strip(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, b"x")
    print(flush=True)
    sys.stdin.readline()
    os.close(fd)
"""


def test_no_write_of_another_process_is_missing_when_it_has_returned(
    watcher: Watcher, root: Path
) -> None:
    random_ = random.Random(3)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for _ in range(2000):
            folder = random_.choice([b"", b"d", b"d/e"])
            name = b"%d" % random_.randrange(50)
            writer.stdin.write(os.path.join(os.fsencode(root), folder, name) + b"\n")
            writer.stdin.flush()
            writer.stdout.readline()
            assert name in drain(watcher).names.get(folder, set())
            writer.stdin.write(b"\n")


class Follower:
    """Keeps a copy of a tree, looking only at what is told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.watcher = Watcher()
        self.copy: dict[bytes, Optional[bytes]] = {}
        self.list(b"")

    def follow(self) -> None:
        names, replaced = drain(self.watcher)
        for path in replaced:
            self.remove(path)
        for folder, touched in names.items():
            for name in touched:
                self.look(join(folder, name))

    def remove(self, path: bytes) -> None:
        self.watcher.forget(path)
        below = path + b"/"
        self.copy = {
            key: data
            for key, data in self.copy.items()
            if key != path and not key.startswith(below)
        }

    def look(self, path: bytes) -> None:
        place = self.root / os.fsdecode(path)
        if not place.is_dir():
            self.remove(path)
            if place.exists():
                self.copy[path] = place.read_bytes()
        elif self.copy.get(path, b"") is not None:
            self.remove(path)
            self.copy[path] = None
            self.list(path)

    def list(self, path: bytes) -> None:
        watch(self.watcher, self.root, path)
        for name in os.listdir(self.root / os.fsdecode(path)):
            self.look(join(path, os.fsencode(name)))


def whole(root: Path) -> dict[bytes, Optional[bytes]]:
    return {
        os.fsencode(place.relative_to(root)): None if place.is_dir() else place.read_bytes()
        for place in root.rglob("*")
    }


def change(random_: random.Random, root: Path) -> None:
    """Do something to the tree; nothing if it is impossible."""
    folders = [root, *(place for place in root.rglob("*") if place.is_dir())]
    outside = root.parent / "outside"

    def some() -> Path:
        return random_.choice(folders) / random_.choice("abcd")

    def out_and_in() -> None:
        some().rename(outside)
        with open(outside if outside.is_file() else outside / "a", "ab") as file:
            file.write(b"out")
        outside.rename(some())

    acts = [
        lambda: some().write_bytes(b"%d" % random_.randrange(100)),
        lambda: some().write_bytes(b""),
        lambda: some().open("ab").close(),
        lambda: some().unlink(),
        lambda: some().mkdir(),
        lambda: (some() / "a" / "b").mkdir(parents=True),
        lambda: some().rename(some()),
        lambda: some().rename(some()),
        lambda: exchange(some(), some()),
        lambda: shutil.rmtree(some()),
        out_and_in,
    ]
    try:
        random_.choice(acts)()
    except (OSError, pytest.skip.Exception):
        if outside.is_dir():
            shutil.rmtree(outside)
        else:
            outside.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.slow
def test_what_is_told_is_enough_to_keep_a_copy(root: Path, seed: int) -> None:
    random_ = random.Random(seed)
    follower = Follower(root)
    for _ in range(60):
        for _ in range(random_.randrange(8)):
            change(random_, root)
        follower.follow()
        assert follower.copy == whole(root)
    assert len(follower.watcher) == 1 + sum(data is None for data in follower.copy.values())
    follower.watcher.close()


# -- doubt ---------------------------------------------------------------------------------------


def test_too_many_events(watcher: Watcher, root: Path) -> None:
    most = int(QUEUE.read_text())
    if most > 200_000:
        pytest.skip(f"the queue of this machine takes {most} events")
    for number in range(most + 10):
        os.utime(root / ("f" if number % 2 else "d/g"), (number, number))
    assert watcher.drain() is None
    assert watcher.drain() is None  # the paths that it knows may be wrong from now on


def test_as_many_events_as_there_is_room_for(watcher: Watcher, root: Path) -> None:
    most = int(QUEUE.read_text())
    if most > 200_000:
        pytest.skip(f"the queue of this machine takes {most} events")
    for number in range(most):
        os.utime(root / ("f" if number % 2 else "d/g"), (number, number))
    assert drain(watcher) == ({b"": {b"f"}, b"d": {b"g"}}, set())


def test_the_root_is_deleted(watcher: Watcher, root: Path) -> None:
    shutil.rmtree(root)
    assert watcher.drain() is None


def test_the_root_is_deleted_while_it_is_open(watcher: Watcher, root: Path) -> None:
    with opened(root):
        shutil.rmtree(root)
        assert watcher.drain() is None


def test_the_root_is_moved(watcher: Watcher, root: Path) -> None:
    root.rename(root.parent / "elsewhere")
    assert watcher.drain() is None


def test_the_root_is_moved_and_comes_back(watcher: Watcher, root: Path) -> None:
    root.rename(root.parent / "elsewhere")
    (root.parent / "elsewhere").rename(root)
    assert watcher.drain() is None


def test_a_directory_above_the_root_is_moved(tmp_path: Path) -> None:
    (tmp_path / "above" / "root").mkdir(parents=True)
    watcher = Watcher()
    watch(watcher, tmp_path / "above" / "root")
    assert drain(watcher) == ({}, set())
    (tmp_path / "above").rename(tmp_path / "renamed")
    assert watcher.drain() is None
    watcher.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("in_pid", ["other", "same"])
def test_a_forked_child_is_told_nothing(
    watcher: Watcher, root: Path, monkeypatch: pytest.MonkeyPatch, in_pid: str
) -> None:
    if in_pid == "same":  # as in a PID namespace of its own
        monkeypatch.setattr(os, "getpid", lambda: 1)
        watcher = Watcher()
        watch_all(watcher, root)
    (root / "f").write_bytes(b"before")
    child = os.fork()
    if not child:
        try:
            assert watcher.drain() is None
            watcher.forget(b"d")
            with opened(root / "d") as fd, pytest.raises(WatchError, match="another process"):
                watcher.add(fd, b"d")
            watcher.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (root / "d" / "g").write_bytes(b"after")
    assert drain(watcher) == ({b"": {b"f"}, b"d": {b"g"}}, set())
    watcher.close()


def test_closing_twice(watcher: Watcher, root: Path) -> None:
    watcher.close()
    watcher.close()
    assert len(watcher) == 0
    assert watcher.drain() is None
    watcher.forget(b"")
    with pytest.raises(WatchError, match="closed"):
        watch(watcher, root)


def test_one_that_is_lost_sight_of_is_closed(root: Path) -> None:
    gc.collect()  # what other tests left open
    before = set(os.listdir("/proc/self/fd"))
    watcher: Optional[Watcher] = Watcher()
    assert watcher is not None
    watch(watcher, root)
    del watcher
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


def test_it_is_not_inherited_by_other_programs(root: Path) -> None:
    watcher = Watcher()
    assert not any(os.get_inheritable(fd) for fd in (watcher._fd, watcher._mounts.fd))
    watcher.close()


# -- limits and file systems ---------------------------------------------------------------------


class Refusing:
    """The C library, but one call fails."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number

    def __getattr__(self, name: str) -> object:
        if name != self.name:
            return getattr(module._libc(), name)

        def fail(*_: object) -> int:
            ctypes.set_errno(self.number)
            return -1

        return fail


def test_no_more_watches(watcher: Watcher, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "n").mkdir()
    drain(watcher)
    monkeypatch.setattr(watcher, "_libc", Refusing("inotify_add_watch", errno.ENOSPC))
    with pytest.raises(WatchError, match=r"'n' cannot be .*max_user_watches"):
        watch(watcher, root, b"n")
    assert watcher.drain() is None


def test_no_more_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing("inotify_init1", errno.EMFILE)
    monkeypatch.setattr(module, "_libc", lambda: refusing)
    with pytest.raises(WatchError, match="max_user_instances"):
        Watcher()


def test_no_inotify(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    module._libc.cache_clear()
    with pytest.raises(WatchError, match="inotify is not available"):
        Watcher()
    assert not can_watch(tmp_path)


def test_no_mount_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(mounts, "TABLE", tmp_path / "nothing")
    with pytest.raises(WatchError, match="Changes cannot be watched: No such file"):
        Watcher()
    assert not can_watch(tmp_path)
    assert set(os.listdir("/proc/self/fd")) == before


def refuses(root: Path, table: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tell whether a root is not watched, given a mount table."""
    monkeypatch.setattr(mounts, "TABLE", table)
    watcher = Watcher()
    message = ""
    try:
        watch(watcher, root)
    except WatchError as error:
        message = str(error)
    assert ("may change without events" in message) == bool(message)
    assert (watcher.drain() is None) == bool(message)
    assert can_watch(root) == (not message)
    watcher.close()
    return bool(message)


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "virtiofs", "9p", "proc", "unheard-of"])
def test_where_changes_may_be_unseen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = tmp_path / "table"
    table.write_bytes(re.sub(rb" - \S+", b" - " + kind.encode(), MOUNTED.read_bytes()))
    assert refuses(root, table, monkeypatch)


@pytest.mark.parametrize(
    ("place", "kind", "is_refused"),
    [
        (b"/d", b"nfs", True),
        (b"/d", b"tmpfs", False),
        (b"/f", b"ext4", True),  # its events go to the directory of its source
        (b"/a\\040b\\134", b"cifs", True),
        (b"/a\rb", b"cifs", True),
        (b"-beside", b"nfs", False),
        (b"/../beside", b"nfs", False),
    ],
)
def test_a_mount_below_the_root(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: bytes,
    kind: bytes,
    is_refused: bool,
) -> None:
    point = os.path.normpath(os.fsencode(root) + place)
    table = tmp_path / "table"
    row = b"99999 1 0:99 / %s rw,relatime shared:1 - %s none rw\n" % (point, kind)
    table.write_bytes(MOUNTED.read_bytes() + row)
    assert refuses(root, table, monkeypatch) == is_refused


def test_a_mount_below_a_root_of_an_odd_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "a b\\"
    root.mkdir()
    table = tmp_path / "table"
    point = os.fsencode(tmp_path) + b"/a\\040b\\134/c"
    table.write_bytes(MOUNTED.read_bytes() + b"99999 1 0:99 / %s rw - nfs none rw\n" % point)
    assert refuses(root, table, monkeypatch)


@pytest.mark.parametrize("text", [b"", b"1 0 0:1 / / rw - ext4 none rw\n"])
def test_a_mount_that_is_not_in_the_table(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    table = tmp_path / "table"
    table.write_bytes(text)
    monkeypatch.setattr(mounts, "TABLE", table)
    assert not can_watch(root)


def test_what_can_be_watched(root: Path) -> None:
    assert can_watch(root)
    assert not can_watch(root / "nothing")
    assert not can_watch(root / "f")
    assert not can_watch(Path("/proc"))
    assert not can_watch(Path("/"))  # /proc is below it


def test_no_network_is_taken_for_local() -> None:
    assert not {kind.encode() for kind in mounts.NETWORK} & LOCAL


# -- in namespaces of their own, where mounts and limits disturb nobody --------------------------

BEGINNING = """
import os, subprocess, sys
from pathlib import Path
from agent_checkpoint.backends.os_support import mounts
from agent_checkpoint.workspace.changes.inotify import Watcher, WatchError
from tests.unit.workspace.changes.test_inotify import watch, watch_all
root = Path(sys.argv[1])
def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, end="")
        sys.exit(77)
"""


def in_namespaces(script: str, root: Path) -> None:
    """Run a script as root of new user and mount namespaces; skip where that is refused."""
    alone = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    tried = subprocess.run([*alone, "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"namespaces are refused: {tried.stderr.strip()}")
    done = subprocess.run(
        [*alone, sys.executable, "-c", BEGINNING + script, str(root)],
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        pytest.skip(f"this machine refuses: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_mount_over_a_directory(root: Path) -> None:
    in_namespaces(
        """
watcher = Watcher()
watch_all(watcher, root)
assert watcher.drain() == ({}, set())
run("mount", "-t", "tmpfs", "none", root / "d")
try:
    assert watcher.drain() is None
    assert watcher.drain() is None
    watcher.close()
    watcher = Watcher()
    watch_all(watcher, root)
    assert len(watcher) == 2
    (root / "d" / "n").touch()
    assert watcher.drain() == ({b"d": {b"n"}}, set())
finally:
    run("umount", root / "d")
assert watcher.drain() is None
""",
        root,
    )


def test_a_mount_that_came_and_went_while_the_caller_looked(root: Path) -> None:
    in_namespaces(
        """
watcher = Watcher()
watch_all(watcher, root)
assert watcher.drain() == ({}, set())
(root / "f").touch()
assert watcher.drain() == ({b"": {b"f"}}, set())
run("mount", "--bind", root / "d", root / "d" / "e")
watch(watcher, root, b"d/e")  # this is d, if one looks now
run("umount", root / "d" / "e")
(root / "d" / "g").touch()
assert watcher.drain() == ({b"": {b"f"}, b"d": {b"e", b"g"}, b"d/e": {b"g"}}, {b"d/e"})
watcher.forget(b"d/e")
watch(watcher, root, b"d/e")
(root / "d" / "e" / "h").touch()
assert watcher.drain() == ({b"d/e": {b"h"}}, set())
""",
        root,
    )


def test_a_mount_that_came_and_went_while_everything_was_looked_at(root: Path) -> None:
    in_namespaces(
        """
watcher = Watcher()
watch_all(watcher, root)
run("mount", "-t", "tmpfs", "none", root / "d")
run("umount", root / "d")
assert watcher.drain() is None
""",
        root,
    )


def test_a_mount_elsewhere(root: Path) -> None:
    in_namespaces(
        """
watcher = Watcher()
watch_all(watcher, root)
assert watcher.drain() == ({}, set())
elsewhere = root.with_name("root-elsewhere")
elsewhere.mkdir()
run("mount", "-t", "tmpfs", "none", elsewhere)
try:
    (root / "f").touch()
    assert watcher.drain() == ({b"": {b"f"}}, set())
finally:
    run("umount", elsewhere)
assert watcher.drain() == ({b"": {b"f"}}, set())  # once more, since it was looked at meanwhile
assert watcher.drain() == ({}, set())
""",
        root,
    )


def test_a_mount_over_the_root_and_above_it(root: Path) -> None:
    in_namespaces(
        """
for place in [root, root.parent]:
    watcher = Watcher()
    watch_all(watcher, root)
    run("mount", "-t", "tmpfs", "none", place)
    try:
        assert watcher.drain() is None
    finally:
        run("umount", place)
""",
        root,
    )


@pytest.mark.parametrize("told_by", ["table", "event"])
def test_a_file_system_that_is_unmounted(root: Path, told_by: str) -> None:
    in_namespaces(
        f"""
run("mount", "-t", "tmpfs", "none", root / "d")
if {told_by!r} == "event":
    table = root.with_name("table")
    table.write_bytes(mounts.TABLE.read_bytes())
    mounts.TABLE = table
watcher = Watcher()
watch_all(watcher, root)
assert watcher.drain() == ({{}}, set())
run("umount", root / "d")
assert watcher.drain() is None
""",
        root,
    )


def test_a_directory_that_is_at_two_paths(root: Path) -> None:
    in_namespaces(
        """
(root / "twin").mkdir()
run("mount", "--bind", root / "d", root / "twin")
watcher = Watcher()
watch_all(watcher, root)
assert len(watcher) == 3
(root / "d" / "e" / "n").touch()
assert watcher.drain() == ({b"d/e": {b"n"}, b"twin/e": {b"n"}}, set())
watcher.forget(b"d")
assert len(watcher) == 3
(root / "d" / "e" / "o").touch()
assert watcher.drain() == ({b"twin/e": {b"o"}}, set())
watcher.forget(b"twin")
assert len(watcher) == 1
""",
        root,
    )


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("max_inotify_watches", "max_user_watches"),
        ("max_inotify_instances", "max_user_instances"),
    ],
)
def test_a_limit_of_the_kernel(root: Path, limit: str, message: str) -> None:
    in_namespaces(
        f"""
watcher = Watcher()
watch(watcher, root)
try:
    Path("/proc/sys/user/{limit}").write_text("1")
except OSError as error:
    print(error)
    sys.exit(77)
try:
    watch(watcher, root, b"d")
    Watcher()
except WatchError as error:
    assert "{message}" in str(error), error
else:
    sys.exit(1)
""",
        root,
    )


@pytest.mark.slow
def test_very_many_watches_are_forgotten_one_by_one(tmp_path: Path) -> None:
    """Each must not cost a look at all others: that would take minutes."""
    watcher = Watcher()
    count = 5000
    for number in range(count):
        (tmp_path / str(number)).mkdir()
    watch_all(watcher, tmp_path)
    begin = time.monotonic()
    for number in range(count):
        watcher.forget(b"%d" % number)
    assert len(watcher) == 1
    assert time.monotonic() - begin < 10
    watcher.close()
