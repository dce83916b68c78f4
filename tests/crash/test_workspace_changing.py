"""F13: files that change, vanish or become something else while a snapshot is taken.

Another process does one such thing without end. Whatever a snapshot holds of the file is something
that the file was as a whole at some moment, or the snapshot says that it is not; once all is quiet,
the next snapshot is exact.
"""

import errno
import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Callable

import pytest

from agent_checkpoint import CheckpointManager, Workspace, WorkspaceError
from agent_checkpoint.backends.os_support.mounts import MountTable
from agent_checkpoint.workspace import safe_open
from agent_checkpoint.workspace.tree.dir_state import READ_AGAIN, SIGNATURE, stat_signature
from tests.crash.crowd import ended, go, start, stop, tell
from tests.crash.workspace_scenarios import (
    SPECIAL,
    check_same,
    file,
    folder,
    link,
    noise,
    seen,
    stored,
)

HERE = "tests.crash.test_workspace_changing"
LONGEST = 20
QUIET = {
    "a": file("before it in the alphabet"),
    "quiet": folder(),
    **{f"quiet/{n}": file(f"{n}") for n in range(20)},
    "z": file("after it"),
}
SMALL, LARGE = 60_000, 2_500_000


@cache
def both(size):
    """Two contents of this size, of which no two bytes at the same place are equal."""
    one = noise(size, size)
    return one, bytes(byte ^ 0xFF for byte in one)


# -- what is done without end --------------------------------------------------------------------


def written_in_place(place, size):
    contents = both(size)
    fd = os.open(place / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    for n in count():
        os.pwrite(fd, contents[n % 2], 0)
        time.sleep(0.0002)
        yield


def written_in_passing(place, size):
    (place / "f").write_bytes(both(size)[0])
    for n in count():
        with (place / "f").open("r+b", buffering=0) as file:
            file.write(both(size)[n % 2])
        time.sleep(0.0002)
        yield


def growing(place, size):
    pattern = both(size)[0]
    fd = os.open(place / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    while True:
        os.ftruncate(fd, 0)
        for at in range(0, size, 7_000):
            os.pwrite(fd, pattern[at : at + 7_000], at)
            yield


def truncated(place, size):
    pattern = both(size)[0]
    fd = os.open(place / "f", os.O_RDWR | os.O_CREAT, 0o644)
    while True:
        os.pwrite(fd, pattern, 0)
        yield
        os.ftruncate(fd, size // 3)
        yield


def replaced(place, size):
    for n in count():
        (place / "new").write_bytes(both(size)[n % 2])
        (place / "new").rename(place / "f")
        yield


def removed(place, size):
    while True:
        (place / "f").write_bytes(both(size)[0])
        yield
        (place / "f").unlink()
        yield


def now_a_directory(place, size):
    while True:
        (place / "new").write_bytes(both(size)[0])
        (place / "new").rename(place / "f")
        yield
        (place / "f").unlink()
        (place / "f").mkdir()
        (place / "f" / "inner").write_bytes(b"inner")
        yield
        (place / "f" / "inner").unlink()
        (place / "f").rmdir()


def now_a_link(place, size):
    while True:
        (place / "new").write_bytes(both(size)[0])
        (place / "new").rename(place / "f")
        yield
        (place / "new").symlink_to("../outside/precious")
        (place / "new").rename(place / "f")
        yield
        (place / "new").symlink_to("../outside")
        (place / "new").rename(place / "f")
        yield


def now_a_fifo(place, size):
    while True:
        (place / "new").write_bytes(both(size)[0])
        (place / "new").rename(place / "f")
        yield
        os.mkfifo(place / "new")
        (place / "new").rename(place / "f")
        yield


def moved_away(place, size):
    (place / "f").mkdir()
    for n in range(30):
        (place / "f" / f"{n}").write_bytes(both(size)[0])
    while True:
        for there in (place / "g", place.parent / "away"):
            (place / "f").rename(there)
            yield
            there.rename(place / "f")
            yield


def swapped(place, size):
    for name, data in zip(("f", "g"), both(size)):
        (place / name).mkdir()
        for n in range(30):
            (place / name / f"{n}").write_bytes(data)
    while True:
        (place / "f").rename(place / "h")
        (place / "g").rename(place / "f")
        (place / "h").rename(place / "g")
        yield


# -- what a snapshot may hold of it --------------------------------------------------------------


def one_of_both(path, what, size):
    return what in map(file, both(size))


def a_beginning(path, what, size):
    return what[0] == "file" and both(size)[0].startswith(what[2])


def flipping(path, what, size):
    whole = {"f": [file(both(size)[0]), link("../outside/precious"), link("../outside")]}
    allowed = {**whole, "f/inner": [file("inner"), file("")]}
    if path == "new":  # it is written there, and may be seen half
        return what[0] == "link" or a_beginning(path, what, size)
    return what[0] == "dir" or what in allowed.get(path, ())


def replacing(path, what, size):
    if path == "new":
        return what[0] == "file" and any(one.startswith(what[2]) for one in both(size))
    return one_of_both(path, what, size)


def in_a_folder(path, what, size):
    return what[0] == "dir" if "/" not in path else one_of_both(path, what, size)


@dataclass(frozen=True)
class Case:
    do: Callable
    is_right: Callable
    size: int


CASES = {
    "written in place": Case(written_in_place, one_of_both, SMALL),
    "large, written in place": Case(written_in_place, one_of_both, LARGE),
    "written in passing": Case(written_in_passing, one_of_both, 800_000),
    "large, written in passing": Case(written_in_passing, one_of_both, LARGE),
    "growing": Case(growing, a_beginning, SMALL),
    "large, growing": Case(growing, a_beginning, LARGE),
    "truncated": Case(truncated, a_beginning, SMALL),
    "large, truncated": Case(truncated, a_beginning, LARGE),
    "replaced": Case(replaced, replacing, SMALL),
    "large, replaced": Case(replaced, replacing, LARGE),
    "removed": Case(removed, a_beginning, SMALL),
    "a directory": Case(now_a_directory, flipping, SMALL),
    "a link": Case(now_a_link, flipping, SMALL),
    "a fifo": Case(now_a_fifo, flipping, SMALL),
    "moved away": Case(moved_away, in_a_folder, 1_000),
    "swapped": Case(swapped, in_a_folder, 1_000),
}


def disturb(name, place, stop_file):
    """Run as a process: do it until told to stop; tell how often it was done."""
    case, place, stop_file = CASES[name], Path(place), Path(stop_file)
    # One that had to wait for a processor in the middle of a write for longer than readers have
    # patience would go unnoticed. It need not wait, or (see above) is seldom in the middle of one.
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    steps = case.do(place, case.size)
    next(steps)
    tell("begun")
    for n in count():
        next(steps)
        if n % 16 == 0 and stop_file.exists():
            break
        if n % 64 == 0:
            time.sleep(0.001)  # whoever need not wait must not keep others waiting
    tell(n)


@contextmanager
def disturbed(name, place):
    stop_file = place.parent / "stop"
    stop_file.unlink(missing_ok=True)
    process = start(f"{HERE}:disturb", name, place, stop_file)
    try:
        go(process)
        assert process.stdout.readline() == "begun\n"
        yield
        stop_file.touch()
        assert int(ended(process)[0]) > 16
    finally:
        stop([process])


@pytest.fixture
def place(scratch):
    place = scratch / "workspace"
    (scratch / "outside").mkdir()
    (scratch / "outside" / "precious").write_bytes(b"not to be captured")
    (place / "quiet").mkdir(parents=True)
    for path, (kind, _, *data) in QUIET.items():
        if kind == "file":
            (place / path).write_bytes(data[0])
    return place


def check_snapshot(tree, case):
    """All that it holds is right or said to be torn; the quiet files are there in any case."""
    state = stored(tree)
    torn = {note.path for note in tree.notes if note.kind == "torn"}
    assert tree.incomplete or not torn
    check_same({path: state.get(path) for path in QUIET}, QUIET)
    for path, what in state.items():
        if path not in QUIET and path not in torn:
            assert case.is_right(path, what, case.size), f"{path}: {str(what)[:80]}"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_snapshot_of_what_changes(name, place, scratch, full_faults, tried):
    taken = 0
    with CheckpointManager(backend="sqlite", path=scratch / "store") as manager:
        both_ways = [Workspace(place, manager.store, watch=watch) for watch in (True, False)]
        with disturbed(name, place):
            until = time.monotonic() + (8 if full_faults else 0.25)
            while time.monotonic() < until or taken < 6:
                for ws in both_ways:
                    began = time.monotonic()
                    tree = ws.snapshot()
                    assert time.monotonic() - began < LONGEST
                    check_snapshot(tree, CASES[name])
                    taken += 1
        found = {path: what for path, what in seen(place).items() if what != SPECIAL}
        for ws in both_ways:
            tree = ws.snapshot()
            check_same(stored(tree), found)
            assert not tree.incomplete, tree.notes
            ws.close()
        assert manager.verify().ok
    tried("F13 snapshots of what changes", taken)


# -- at a chosen moment --------------------------------------------------------------------------


@pytest.fixture
def ws(place, scratch):
    with (
        CheckpointManager(backend="sqlite", path=scratch / "store") as manager,
        Workspace(place, manager.store) as ws,
    ):
        yield ws


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_whoever_has_it_open_may_finish_writing(ws, place, size, monkeypatch):
    """Its time tells only when the writing began: one that is at it is given a moment."""
    old, new = both(size)
    (place / "f").write_bytes(old)
    with (place / "f").open("r+b", buffering=0) as another:
        another.write(new[: size // 2])
        rest = [new[size // 2 :]]

        def write_instead(seconds):
            if rest:
                another.write(rest.pop())

        monkeypatch.setattr(time, "sleep", write_instead)
        for moment in ("_COARSE_NS", "_WRITE_NS"):  # a busy machine may take long to get there
            monkeypatch.setattr(safe_open, moment, 3600 * 10**9)
        tree = ws.snapshot()
    assert not rest
    assert not tree.incomplete
    assert stored(tree)["f"] == file(new)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_whoever_has_it_open_and_leaves_it_alone_is_no_reason_to_doubt_it(ws, place, size):
    (place / "f").write_bytes(both(size)[0])
    with (place / "f").open("r+b"):
        tree = ws.snapshot()
    assert tree.notes == ()
    assert stored(tree)["f"] == file(both(size)[0])


def test_what_somebody_has_open_is_read_again_the_next_time(place):
    """Also if it seems to be whole: a write may be under way for any time."""
    (place / "f").write_bytes(both(SMALL)[0])
    time.sleep(0.05)
    directory = os.open(place, os.O_RDONLY)
    try:
        with (place / "f").open("r+b"):
            data, _, stamp, is_still = safe_open.read_whole(directory, b"f")
            assert (data, stamp, is_still) == (both(SMALL)[0], READ_AGAIN, True)
        data, found, stamp, is_still = safe_open.read_whole(directory, b"f")
        assert (data, stamp, is_still) == (both(SMALL)[0], stat_signature(found), True)
    finally:
        os.close(directory)


def signature_of(place, monkeypatch, *, seconds):
    """Return the signature with which a file is read, as if changes were recent for so long."""
    monkeypatch.setattr(safe_open, "_FINE_NS", 0)  # no change is so new that its time tells nothing
    monkeypatch.setattr(safe_open, "_COARSE_NS", seconds * 10**9)
    monkeypatch.setattr(safe_open, "_WRITE_NS", 0)
    directory = os.open(place, os.O_RDONLY)
    try:
        return safe_open.read_whole(directory, b"f")[2]
    finally:
        os.close(directory)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EINVAL, errno.ENOLCK])
def test_what_may_be_open_is_read_again_only_if_it_is_recent(place, error, monkeypatch):
    """Only the owner of a file may ask who has it open, and only where there are leases."""
    (place / "f").write_bytes(both(SMALL)[0])

    def refuse(*arguments):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(safe_open.fcntl, "fcntl", refuse)
    assert signature_of(place, monkeypatch, seconds=3600) == READ_AGAIN
    assert signature_of(place, monkeypatch, seconds=0) == stat_signature((place / "f").stat())


def test_a_small_file_that_is_open_is_read_again_for_longer(place, monkeypatch):
    """A store through a map, and the rest of a long write, leave its times as they are."""
    (place / "f").write_bytes(both(SMALL)[0])
    now = stat_signature((place / "f").stat())
    monkeypatch.setattr(safe_open, "_UNSEEN_NS", 3600 * 10**9)
    assert signature_of(place, monkeypatch, seconds=0) == now
    with (place / "f").open("r+b"):
        assert signature_of(place, monkeypatch, seconds=0) == READ_AGAIN
        monkeypatch.setattr(safe_open, "_UNSEEN_BYTES", SMALL - 1)
        assert signature_of(place, monkeypatch, seconds=0) == now
        monkeypatch.setattr(safe_open, "_UNSEEN_BYTES", SMALL)
        monkeypatch.setattr(safe_open, "_UNSEEN_NS", 0)
        assert signature_of(place, monkeypatch, seconds=0) == now


def test_a_file_that_was_just_changed_is_opened_once(place, monkeypatch):
    """A step of an agent changes files right before its snapshot."""
    (place / "f").write_bytes(both(SMALL)[0])
    directory = os.open(place, os.O_RDONLY)
    names, opened = [], os.open

    def noting(name, *arguments, **options):
        names.append(name)
        return opened(name, *arguments, **options)

    monkeypatch.setattr(os, "open", noting)
    try:
        data, *_, is_still = safe_open.read_whole(directory, b"f")
    finally:
        os.close(directory)
    assert (data, is_still) == (both(SMALL)[0], True)
    assert names == [b"f"]


def changing_as_it_is_read(path, new, monkeypatch):
    """Have a file written to, once, when a part of it was read; return what is left to write."""
    left, read = [new], os.read

    def read_and_change(fd, number):
        data = read(fd, number // 2 if number > len(new) // 2 else number)
        if left and os.readlink(f"/proc/self/fd/{fd}") == str(path):
            path.write_bytes(left.pop())
        return data

    monkeypatch.setattr(os, "read", read_and_change)
    return left


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_change_in_the_middle_of_reading(ws, place, size, monkeypatch):
    old, new = both(size)
    (place / "f").write_bytes(old)
    time.sleep(0.05)  # it is at rest by then
    left = changing_as_it_is_read(place / "f", new, monkeypatch)
    tree = ws.snapshot()
    assert not left
    assert stored(tree)["f"] == file(new)
    assert not tree.incomplete


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_change_that_no_time_tells(ws, place, size, monkeypatch):
    """Where the clock of files is coarse, two changes of a moment have the same time."""
    old, new = both(size)
    (place / "f").write_bytes(old)
    soon = time.time_ns() + 3_600_000_000_000  # a time that is new, however long this takes
    os.utime(place / "f", ns=(soon, soon))

    def by_size_alone(found):
        return stat_signature(found)[:8] + bytes(SIGNATURE.size - 8)

    monkeypatch.setattr(safe_open, "stat_signature", by_size_alone)
    left = changing_as_it_is_read(place / "f", new, monkeypatch)
    tree = ws.snapshot()
    assert not left
    assert stored(tree)["f"] == file(new)
    assert not tree.incomplete


@pytest.mark.parametrize("watch", [True, False], ids=["watching", "not watching"])
def test_a_directory_that_goes_while_it_is_looked_at(place, scratch, monkeypatch, watch):
    """Its watch tells that it went. Without, its files are missed when they are to be read."""
    (place / "d").mkdir()
    (place / "d" / "f").write_bytes(b"a file")
    scandir = os.scandir

    def scan_and_change(where):
        found = scandir(where)
        if isinstance(where, int) and os.readlink(f"/proc/self/fd/{where}") == str(place / "d"):
            moved = list(found)
            (place / "d").rename(place.parent / "away")
            return contextmanager(lambda: iter([moved]))()
        return found

    with (
        CheckpointManager(backend="sqlite", path=scratch / "store") as manager,
        Workspace(place, manager.store, watch=watch) as ws,
    ):
        monkeypatch.setattr(os, "scandir", scan_and_change)
        # After a mount of another test, at this moment, only the next snapshot would miss it.
        monkeypatch.setattr(MountTable, "have_changed", lambda self: False)
        tree = ws.snapshot()
        monkeypatch.undo()
        assert not tree.incomplete
        check_same(stored(tree), QUIET)
        check_same(stored(ws.snapshot()), QUIET)
        (place.parent / "away").rename(place / "d")
        assert stored(ws.snapshot())["d/f"] == file("a file")


@pytest.mark.parametrize("watch", [True, False], ids=["watching", "not watching"])
def test_what_could_not_be_read_once_is_read_the_next_time(place, scratch, monkeypatch, watch):
    (place / "f").write_bytes(b"a file")
    (place / "d").mkdir()
    (place / "d" / "f").write_bytes(b"another")
    opening = os.open

    def refuse(path, *options, **where):
        if path == b"f":
            raise OSError(errno.EMFILE, "Too many open files")
        return opening(path, *options, **where)

    with (
        CheckpointManager(backend="sqlite", path=scratch / "store") as manager,
        Workspace(place, manager.store, watch=watch) as ws,
    ):
        monkeypatch.setattr(os, "open", refuse)
        tree = ws.snapshot()
        assert [(note.path, note.kind) for note in tree.notes] == [
            ("d/f", "unreadable"),
            ("f", "unreadable"),
        ]
        assert tree.incomplete
        monkeypatch.undo()
        tree = ws.snapshot()
        assert tree.notes == ()
        check_same(stored(tree), seen(place))


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_rules_that_cannot_be_read_are_no_reason_to_capture_what_they_exclude(
    ws, place, monkeypatch, error
):
    (place / ".checkpointignore").write_text("*.secret\n")
    (place / "a.secret").write_bytes(b"secret")
    opening = os.open

    def refuse(path, *options, **where):
        if path == b".checkpointignore":
            raise OSError(error, os.strerror(error))
        return opening(path, *options, **where)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(WorkspaceError):
            ws.snapshot()
    assert "a.secret" not in stored(ws.snapshot())
