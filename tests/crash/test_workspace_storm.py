"""Restores of a workspace in which others write all the time, and which is killed now and then.

Writers create, append to, overwrite, replace, move and delete files, and log each write when it is
complete. Whatever they replace or delete themselves goes to a directory of theirs. So every write
that was logged must be found at the end: in the workspace, in a safety checkpoint, or there.
"""

import os
import random
import re
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from agent_checkpoint.errors import CheckpointError, RestoreIncompleteError
from agent_checkpoint.workspace.restore import atomic_rename, entry_swap
from agent_checkpoint.workspace.restore.atomic_rename import Entry, exchange, put, take
from tests.crash.crowd import ended, go, start, stop, tell
from tests.crash.workspace_scenarios import (
    build,
    check_same,
    file,
    folder,
    link,
    open_manager,
    open_workspace,
    seen,
    snapshots,
    stored,
)

HERE = "tests.crash.test_workspace_storm"
TOKEN = re.compile(rb"<\d:\d{7}>")
FOLDERS = ["a", "b", "b/c", "d"]
NAMES = [f"{folder}/{name}" for folder in FOLDERS for name in ("one", "two", "three")]
BLANK = b"." * 11
TARGETS = [
    {
        **{name: folder() for name in FOLDERS},
        **{name: file(BLANK * 40 + str(n).encode()) for n, name in enumerate(NAMES) if n % 3},
    },
    {
        **{name: folder() for name in FOLDERS[:3]},
        **{name: file(BLANK * 40) for n, name in enumerate(NAMES[:9]) if n % 4},
        "a/two": link("one"),
    },
]
A_LIFE = 8
"""So many restores a process does: of safety checkpoints only the newest ten are kept."""


# -- those who write -----------------------------------------------------------------------------


class Writer:
    """Edits a workspace without a lock, as people and programs do."""

    def __init__(self, place, number, seed):
        self.files, self.trash = place / "workspace", place / "trash"
        self.number, self.chosen, self.count = number, random.Random(f"{seed}/{number}"), 0
        self.log = os.open(place / f"log-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.root = os.open(self.files, os.O_RDONLY)
        self.bin = os.open(self.trash, os.O_RDONLY)

    def step(self):
        """Do one thing, and log what was written if that is complete."""
        often = (self.append, self.overwrite, self.replace)
        seldom = (self.create, self.delete, self.move, self.link, self.swap_folders)
        act = self.chosen.choice((*often, *often, *seldom))
        self.count += 1
        token = b"<%d:%07d>" % (self.number, self.count)
        with suppress(OSError):
            act(self.chosen.choice(NAMES), token)
            os.write(self.log, token)

    def create(self, name, token):
        (self.files / name).parent.mkdir(exist_ok=True, parents=True)
        # At the end: another may have found the new file and written to it already.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        self._write(os.open(self.files / name, flags, 0o644), token)

    def append(self, name, token):
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
        self._write(os.open(self.files / name, flags), token)

    def overwrite(self, name, token):
        """Write where nothing was written yet; the size stays what it is."""
        fd = os.open(self.files / name, os.O_RDWR | os.O_NOFOLLOW)
        try:
            slot = self.number * 10 + self.chosen.randrange(10)
            if os.pread(fd, len(BLANK), slot * len(BLANK)) != BLANK:
                raise OSError
            os.pwrite(fd, token, slot * len(BLANK))
        finally:
            os.close(fd)

    def replace(self, name, token):
        mine = self._mine()
        (self.trash / os.fsdecode(mine.name)).write_bytes(token)
        exchange(mine, self._theirs(name))

    def delete(self, name, token):
        take(self._theirs(name), self._mine())
        raise OSError  # nothing was written

    def move(self, name, token):
        put(self._theirs(name), self._theirs(self.chosen.choice(NAMES)))
        raise OSError

    def link(self, name, token):
        os.symlink(token, self.files / name)

    def swap_folders(self, name, token):
        one, other = (self._theirs(self.chosen.choice(FOLDERS)) for _ in range(2))
        exchange(one, other)
        raise OSError

    def _write(self, fd, token):
        try:
            assert os.write(fd, token) == len(token)
        finally:
            os.close(fd)

    def _mine(self):
        return Entry(b"%d-%d" % (self.number, self.count), self.bin)

    def _theirs(self, name):
        return Entry(os.fsencode(name), self.root)


def write(place, number, seed, stop_file):
    """Run as a process: write until told to stop."""
    writer = Writer(Path(place), int(number), seed)
    tell("begun")
    for n in count():
        writer.step()
        if n % 16 == 0 and os.path.exists(stop_file):
            break
        if n % 4 == 0:
            time.sleep(0.001)


# -- those who restore ---------------------------------------------------------------------------


def be_patient(patch):
    """Wait for whoever has a file open: how long that is on a busy machine is not the question."""
    patch.setattr(entry_swap, "_WRITER_SECONDS", 60.0)
    patch.setattr(entry_swap, "_ALL_WRITERS_SECONDS", 60.0)


def dawdle(patch, seed):
    """Make every moment between a look and a rename a long one."""
    rename, chosen = atomic_rename._rename, random.Random(seed)

    def rename_in_time(*what):
        for act in (lambda: None, lambda: rename(*what)):
            act()
            time.sleep(chosen.choice((0, 0, 0.0002, 0.002)))

    patch.setattr(atomic_rename, "_rename", rename_in_time)


def restore(place, seed):
    """Run as a process: restore one state after the other; tell what was done each time."""
    place = Path(place)
    with (
        pytest.MonkeyPatch.context() as patch,
        open_manager(place) as manager,
        open_workspace(place, manager) as ws,
    ):
        be_patient(patch)
        dawdle(patch, seed)
        trees = [tree for kind, tree in snapshots(ws) if kind == "save"]
        for n in range(A_LIFE):
            try:
                plan = ws.restore(trees[n % 2])
                tell("did", len(plan.leave), len(plan.kept))
            except CheckpointError as error:
                tell("refused", type(error).__name__)


class Storm:
    """A workspace with two states to restore, and what was found of all that was written."""

    def __init__(self, place):
        self.place, self.files, self.trash = place, place / "workspace", place / "trash"
        self.found, self._read = set(), set()
        self.trash.mkdir(parents=True)
        with open_manager(place) as manager:
            for target in TARGETS:
                build(self.files, target)
                with open_workspace(place, manager) as ws:
                    ws.snapshot(label="target")

    def look_into_checkpoints(self):
        """Open the workspace, which finishes what was killed, and read all that is held."""
        with suppress(RestoreIncompleteError), open_manager(self.place) as manager:
            open_workspace(self.place, manager).close()  # directories come and go meanwhile
        with open_manager(self.place) as manager, open_workspace(self.place, manager) as ws:
            for _, tree in snapshots(ws):
                if tree.ref not in self._read:
                    self._read.add(tree.ref)
                    for what in stored(tree).values():
                        self._look(what)

    def check_quiet(self):
        """Once nobody writes, a restore is exact."""
        with open_manager(self.place) as manager, open_workspace(self.place, manager) as ws:
            ws.restore(next(tree for kind, tree in snapshots(ws) if kind == "save"))
            check_same(seen(self.files), TARGETS[0])
            assert manager.verify().ok

    def look_at_files(self):
        for what in (*seen(self.files).values(), *seen(self.trash).values()):
            self._look(what)

    def _look(self, what):
        self.found.update(TOKEN.findall(os.fsencode(what[1]) if what[0] == "link" else b""))
        self.found.update(TOKEN.findall(what[2] if what[0] == "file" else b""))

    def missing(self):
        logs = [path.read_bytes() for path in self.place.glob("log-*")]
        written = {token for log in logs for token in TOKEN.findall(log)}
        assert len(written) > 100
        return sorted(written - self.found)


def weather(storm, seed, lives, *, kills):
    """Have two write and one restore, over and over; return how many restores there were."""
    chosen, stop_file = random.Random(seed), storm.place / "stop"
    processes = [start(f"{HERE}:write", storm.place, n, seed, stop_file) for n in (1, 2)]
    restores = 0
    try:
        for process in processes:
            go(process)
            assert process.stdout.readline() == "begun\n"
        for life in range(lives):
            one = start(f"{HERE}:restore", storm.place, f"{seed}/{life}")
            processes.append(one)
            go(one)
            if kills:
                time.sleep(chosen.uniform(0.02, 1))
                one.kill()
                restores += len(one.communicate()[0].splitlines())
            else:
                restores += len(ended(one))
            storm.look_into_checkpoints()
        stop_file.touch()
        for process in processes[:2]:
            ended(process)
    finally:
        stop(processes)
    return restores


def pytest_generate_tests(metafunc):
    is_full = metafunc.config.getoption("--full-faults", default=False)
    metafunc.parametrize("seed", range(12 if is_full else 1))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True], ids=["alive", "killed"])
def test_nothing_that_was_written_is_lost(scratch, monkeypatch, seed, kills, tried):
    be_patient(monkeypatch)
    storm = Storm(scratch / "place")
    restores = weather(storm, seed, 6 if kills else 3, kills=kills)
    storm.look_into_checkpoints()
    storm.look_at_files()
    assert storm.missing() == []
    storm.check_quiet()
    tried(f"restores in a storm{', many killed' if kills else ''}", restores)
