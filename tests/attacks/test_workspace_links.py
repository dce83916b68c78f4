"""A6, A8: whatever links are in a workspace, nothing outside of it is written to or read."""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.workspace.restore import atomic_rename
from tests.attacks.forging_trees import look

STAGING = ".agent-checkpoint-restore"
JOURNAL = f"{STAGING}/journal"


@pytest.fixture(autouse=True)
def nothing_hangs():
    def give_up(number, frame):
        raise AssertionError("it hangs")

    usual = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, usual)


@pytest.fixture
def outside(tmp_path):
    """Somebody's directory, with names such as those in the workspace, which must stay as it is."""
    place = tmp_path / "outside"
    (place / "sub").mkdir(parents=True)
    names = ("f", "0", "1", "precious", "journal", "new", "sub/f", "sub/new")
    for name in names:
        (place / name).write_bytes(b"theirs")
        (place / name).chmod(0o640)
    before = look(place)
    yield place
    assert look(place) == before


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def ws(tmp_path, outside, manager):
    place = tmp_path / "workspace"
    (place / "d" / "sub").mkdir(parents=True)
    for name in ("f", "precious", "d/f", "d/precious", "d/sub/f"):
        (place / name).write_bytes(b"ours")
    with Workspace(place, manager.store) as ws:
        yield ws


def turned_into_link(path, target):
    if path.is_dir() and not path.is_symlink():
        path.rename(path.with_name(f"{path.name}.old"))
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(target)


# -- links that are there ------------------------------------------------------------------------


@pytest.mark.parametrize("is_absolute", [True, False], ids=["absolute", "relative"])
@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("f", "outside/f"),
        ("f", "outside/none"),
        ("d", "outside"),
        ("d/f", "outside/f"),
        ("d/sub", "outside/sub"),
        ("d/sub", "outside/f"),
        ("d", "workspace"),
        ("d/sub", "workspace/d"),
    ],
)
def test_links_in_the_place_of_what_is_restored(ws, outside, path, target, is_absolute):
    tree, before = ws.snapshot(), look(ws.path)
    there = outside.parent / target
    text = there if is_absolute else os.path.relpath(there, (ws.path / path).parent)
    turned_into_link(ws.path / path, text)
    with_link = look(ws.path)
    plan = ws.restore(tree)
    assert look(ws.path) == before
    ws.restore(plan.safety)
    assert look(ws.path) == with_link


def test_what_is_behind_a_link_is_not_deleted(ws, outside):
    tree = ws.snapshot()
    (ws.path / "link").symlink_to(outside)
    (ws.path / "d" / "link").symlink_to(outside / "f")
    assert sorted(ws.restore(tree).delete) == ["d/link", "link"]


def test_links_are_restored_as_links(ws, outside):
    (ws.path / "link").symlink_to(outside / "f")
    (ws.path / "folder link").symlink_to(outside)
    (ws.path / "d" / "broken").symlink_to("nowhere")
    tree, before = ws.snapshot(), look(ws.path)
    for path in ("link", "folder link", "d/broken"):
        (ws.path / path).unlink()
        (ws.path / path).write_bytes(b"a file now")
    ws.restore(tree)
    assert look(ws.path) == before


def test_one_link_that_changed_does_not_keep_others_from_being_restored(ws, outside, monkeypatch):
    """All of them are staged under the same name."""
    for name in "abc":
        (ws.path / name).symlink_to("f")
    tree = ws.snapshot()
    for name in "abc":
        (ws.path / name).unlink()
        (ws.path / name).symlink_to("d")
    symlink = os.symlink

    def change_first(*names, **where):
        symlink(*names, **where)
        if os.readlink(ws.path / "a") == "d":
            (ws.path / "a").unlink()
            symlink("mine", ws.path / "a")

    monkeypatch.setattr(os, "symlink", change_first)
    plan = ws.restore(tree)
    assert list(plan.leave) == ["a"]
    assert [os.readlink(ws.path / name) for name in "abc"] == ["mine", "f", "f"]


def test_a_workspace_that_is_a_link_itself(ws, outside, manager):
    tree, before = ws.snapshot(), look(ws.path)
    (ws.path.parent / "link").symlink_to(ws.path)
    with Workspace(ws.path.parent / "link", manager.store) as by_link:
        assert by_link.path == ws.path
        (ws.path / "f").write_bytes(b"changed")
        by_link.restore(tree)
    assert look(ws.path) == before


@pytest.mark.parametrize("path", ["../outside/f", "/etc", "d/../../outside", "..", ".", "", "/"])
def test_paths_that_lead_outside_are_refused(ws, outside, path):
    tree = ws.snapshot()
    with pytest.raises(CheckpointError):
        ws.restore(tree, paths=[path])


# -- hard links ----------------------------------------------------------------------------------


def test_a_file_that_is_also_outside_is_replaced_and_never_written_to(ws, outside):
    for name in ("content", "mode", "both", "gone"):
        (ws.path / name).write_bytes(b"ours")
        (ws.path / name).chmod(0o600)
    tree, before = ws.snapshot(), look(ws.path)
    for name in ("content", "mode", "both"):
        (ws.path / name).unlink()
        (outside / name).write_bytes(b"ours" if name == "mode" else b"theirs")
        (outside / name).chmod(0o600 if name == "content" else 0o755)
        os.link(outside / name, ws.path / name)
    (outside / "added").write_bytes(b"theirs")
    os.link(outside / "added", ws.path / "added")
    theirs = look(outside)
    plan = ws.restore(tree)
    assert look(ws.path) == before
    assert look(outside) == theirs
    ws.restore(plan.safety)
    assert look(outside) == theirs
    assert (ws.path / "mode").stat().st_mode & 0o777 == 0o755
    for name in ("content", "mode", "both", "added"):
        (outside / name).unlink()


# -- links that come in the middle ---------------------------------------------------------------


CHANGES = ("rename", "unlink", "rmdir", "mkdir", "symlink", "fchmod", "fsync", "open", "stat")


class Swap:
    """Swaps a directory for a link to somewhere else, right before some call of a restore."""

    def __init__(self, folder, target, at):
        self.folder, self.target, self.left = folder, target, at
        self.away = folder.with_name("away")
        self._real = {name: getattr(os, name) for name in CHANGES}
        self._renameat2 = atomic_rename._rename

    def __enter__(self):
        for name, call in self._real.items():
            setattr(os, name, self._before(call))
        atomic_rename._rename = self._before(self._renameat2)
        return self

    def __exit__(self, *problem):
        for name, call in self._real.items():
            setattr(os, name, call)
        atomic_rename._rename = self._renameat2

    def _before(self, call):
        def swap_and_call(*arguments, **options):
            if os.access(self.folder.parent / JOURNAL, os.F_OK):  # from then on files are touched
                if self.left == 0:
                    self._real["rename"](self.folder, self.away)
                    self._real["symlink"](self.target, self.folder)
                self.left -= 1
            return call(*arguments, **options)

        return swap_and_call


def changed(ws):
    """Change all that there is in a directory, in every way."""
    (ws.path / "d" / "f").write_bytes(b"changed")
    (ws.path / "d" / "precious").chmod(0o777)
    (ws.path / "d" / "new").write_bytes(b"new")
    (ws.path / "d" / "sub" / "f").unlink()
    (ws.path / "d" / "sub" / "new").symlink_to("f")


def twin_of(folder, place):
    """Somebody's directory that looks just like one of ours: it, too, must stay as it is."""
    shutil.copytree(folder, place, symlinks=True)
    return place


@pytest.mark.slow
def test_a_parent_swapped_at_any_call_of_a_restore(ws, tmp_path):
    folder, tree, before = ws.path / "d", ws.snapshot(), look(ws.path)
    changed(ws)
    twin = twin_of(folder, tmp_path / "twin")
    theirs = look(twin)
    for at in count():
        with Swap(folder, twin, at) as swap, suppress(CheckpointError):
            ws.restore(tree)
        assert look(twin) == theirs, f"at call {at}"
        if swap.left >= 0:
            break
        folder.unlink()
        swap.away.rename(folder)
        ws.restore(tree)
        assert look(ws.path) == before, f"at call {at}"
        changed(ws)
    assert at > 20


@pytest.mark.slow
def test_a_parent_that_is_swapped_all_the_time(ws, tmp_path):
    tree = ws.snapshot()
    changed(ws)
    other = ws.snapshot()
    folder, away = ws.path / "d", tmp_path / "away"
    twin = twin_of(folder, tmp_path / "twin")
    theirs = look(twin)
    is_over, chosen = threading.Event(), random.Random(6)

    def swap():
        while not is_over.is_set():
            try:
                folder.rename(away)
                folder.symlink_to(twin)
                time.sleep(chosen.choice((0, 0.0003, 0.003)))
                folder.unlink()
                away.rename(folder)
            except OSError:  # the restore was there first
                if folder.is_symlink():
                    folder.unlink()
                if not folder.exists() and away.exists():
                    away.rename(folder)
            time.sleep(chosen.choice((0, 0.001, 0.005)))

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes = []
    try:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            for one in (tree, other):
                try:
                    outcomes.append(bool(ws.restore(one).leave))
                except CheckpointError as error:
                    outcomes.append(type(error))
    finally:
        is_over.set()
        thread.join()
    assert look(twin) == theirs
    assert len(outcomes) > 4
    if not folder.is_dir():
        folder.mkdir()
    ws.restore(tree)
    assert (folder / "f").read_bytes() == b"ours"


def test_a_link_that_came_before_a_restore_is_finished(ws, outside, manager, monkeypatch):
    tree = ws.snapshot()
    changed(ws)
    rename = atomic_rename._rename

    def stop(*what):
        rename(*what)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic_rename, "_rename", stop)
        with pytest.raises(KeyboardInterrupt):
            ws.restore(tree)
    turned_into_link(ws.path / "d", outside)
    with Workspace(ws.path, manager.store) as again:
        assert "d" in again.recovered.leave
    assert os.readlink(ws.path / "d") == str(outside)


# -- our own directory ---------------------------------------------------------------------------


OURS = {
    "a link": lambda place, outside: place.symlink_to(outside),
    "a file": lambda place, outside: place.write_bytes(b"mine"),
    "with a linked folder": lambda place, outside: (
        place.mkdir(),
        (place / "files").symlink_to(outside),
    ),
    "with linked files": lambda place, outside: (
        (place / "files").mkdir(parents=True),
        [(place / "files" / name).symlink_to(outside / name) for name in ("0", "1")],
        (place / "journal.new").symlink_to(outside / "journal"),
    ),
    "with folders": lambda place, outside: (
        (place / "files" / "0").mkdir(parents=True),
        (place / "other").mkdir(),
    ),
    "with a linked journal": lambda place, outside: (
        place.mkdir(),
        (place / "journal").symlink_to(outside / "journal"),
    ),
    "with a fifo for a journal": lambda place, outside: (
        place.mkdir(),
        os.mkfifo(place / "journal"),
    ),
}


@pytest.mark.parametrize("kind", OURS)
def test_our_own_directory_made_by_somebody_else(ws, outside, manager, kind):
    """It blocks nothing, is kept by another name, and nothing that it leads to is touched."""
    tree, before = ws.snapshot(), look(ws.path)
    (ws.path / "f").write_bytes(b"changed")
    OURS[kind](ws.path / STAGING, outside)
    made = sorted(path.relative_to(ws.path / STAGING) for path in (ws.path / STAGING).rglob("*"))
    with Workspace(ws.path, manager.store) as again:
        (notice,) = again.notices
        (aside,) = ws.path.glob(f"{STAGING}*")
        assert aside.name in notice
        assert made == sorted(path.relative_to(aside) for path in aside.rglob("*"))
        assert not [loss for loss in again.snapshot().notes if loss.path == STAGING]
        again.restore(tree, exclude=[aside.name])
    found = {path: what for path, what in look(ws.path).items() if STAGING not in path}
    assert found == before


# -- another file system -------------------------------------------------------------------------


def test_a_mounted_directory_with_a_link_in_our_way(ws, outside):
    """A file cannot be renamed into it, and is copied beside its place first."""
    folder = ws.path / "d" / "sub"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (folder / "f").write_bytes(b"there")
        (folder / "link").symlink_to("f")
        tree, before = ws.snapshot(), look(ws.path)
        (folder / "f").write_bytes(b"changed")
        (folder / "link").unlink()
        (folder / ".agent-checkpoint-new").symlink_to(outside / "f")
        ws.restore(tree)
        assert look(ws.path) == before
    finally:
        subprocess.run(["umount", folder], check=True)


# -- A8 ------------------------------------------------------------------------------------------


class Opened:
    """Tells whether files are opened or read, by inotify."""

    _OPEN, _ACCESS = 0x20, 0x1

    def __init__(self, *paths):
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            pytest.skip("needs inotify")
        self._fd = libc.inotify_init1(os.O_NONBLOCK)
        for path in paths:
            mask = ctypes.c_uint32(self._OPEN | self._ACCESS)
            assert libc.inotify_add_watch(self._fd, os.fsencode(path), mask) >= 0

    def any(self):
        try:
            return bool(os.read(self._fd, 4096))
        except BlockingIOError:
            return False

    def close(self):
        os.close(self._fd)


def test_a_private_file_behind_a_link_is_never_opened(ws, outside, tmp_path):
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "key").write_bytes(b"secret")
    (private / "key").chmod(0o600)
    opened = Opened(private, private / "key")
    try:
        (ws.path / "to the key").symlink_to(private / "key")
        (ws.path / "to the folder").symlink_to(private)
        (ws.path / "d" / ".gitignore").symlink_to(private / "key")
        (ws.path / ".checkpointignore").symlink_to(private / "key")
        with Workspace(ws.path, ws.store, gitignore=True) as again:
            tree = again.snapshot()
            (ws.path / "to the key").unlink()
            (ws.path / "to the folder").unlink()
            str(again.diff(tree))
            again.restore(tree, dry_run=True)
            again.restore(tree)
            again.snapshot(full=True)
        assert os.readlink(ws.path / "to the key") == str(private / "key")
        assert tree.notes == ()
        assert not opened.any()
        (private / "key").read_bytes()
        assert opened.any(), "it would have been noticed"
    finally:
        opened.close()
    assert not any(b"secret" in path.read_bytes() for path in files_of(tmp_path / "store"))


def files_of(place):
    return [Path(above, name) for above, _, names in os.walk(place) for name in names]
