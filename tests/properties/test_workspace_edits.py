"""Random edits of a directory: snapshots see all of them, and restores take all of them back."""

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.backends.default_paths import ENVIRONMENT
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.plan import Plan
from agent_checkpoint.workspace.tree.snapshot import Tree
from tests.unit.workspace.disk import (
    IS_ROOT,
    Described,
    Fifo,
    File,
    Folder,
    Link,
    Socket,
    Thing,
    clear,
    describe,
    join,
    make,
    opened,
    parents,
    place,
    put,
    remove,
    restored,
    without_syncs,
)
from tests.unit.workspace.watching import can_watch

NAMES = [b"a", b"b", b"sub", b"x.txt", b"-", b"two words", b"new\nline", "é".encode(), b"e\xcc\x81"]
CONTENTS = [b"", b"1", b"same size", b"size same", b"x" * 3000]
TARGETS = [b"a", b"sub", b"../..", b"/etc", b"gone"]
TIMES = [1_000_000_000 * 10**9, 4_000_000_000 * 10**9]
"""A time that is long past, in whole seconds, and one that is to come."""

START = {
    b"a/x.txt": File(b"some text"),
    b"a/sub/b": File(b"more text", 0o755),
    b"sub/a": Link(b"../a"),
    b"b": File(b"1"),
}


class Playground:
    """A directory, what was taken of it, and a description for each that was taken."""

    def __init__(self, above: Path, store: Store, *, watch: bool) -> None:
        self.root, self.outside = above / "root", above / "outside"
        for path in (self.root, self.outside):
            path.mkdir()
        make(self.root, START)
        self.store = store
        self.watch = watch
        self.workspace = self.open()
        self.taken: list[tuple[Tree, Described]] = []
        self.count = 0
        self.snapshot(random.Random(0))

    def open(self) -> Workspace:
        return Workspace(self.root, self.store, watch=self.watch)

    # -- finding something to change -------------------------------------------------------------

    def some(self, by: random.Random, *types: str) -> Optional[bytes]:
        """Return the path of an entry of one of these types, if there is one."""
        found = sorted(path for path, entry in describe(self.root).items() if entry.type in types)
        return by.choice(found) if found else None

    def folder(self, by: random.Random) -> bytes:
        return by.choice([self.some(by, "folder"), b""]) or b""

    def change(self, by: random.Random, act: Callable[[int, bytes], Any]) -> None:
        """Do something with a file, if there is one."""
        path = self.some(by, "file")
        if path is not None:
            with place(self.root, path) as (fd, name):
                act(fd, name)

    # -- making and removing ---------------------------------------------------------------------

    def make(self, by: random.Random, name: bytes, thing: Thing) -> None:
        path = join(self.folder(by), name)
        with suppress(FileNotFoundError):
            remove(self.root, path)
        put(self.root, path, thing)

    def make_file(self, by: random.Random) -> None:
        self.make(by, by.choice(NAMES), File(by.choice(CONTENTS), mode(by, 0o600)))

    def make_link(self, by: random.Random) -> None:
        self.make(by, by.choice(NAMES), Link(by.choice(TARGETS)))

    def make_folder(self, by: random.Random) -> None:
        self.make(by, by.choice(NAMES), Folder())

    def make_folders(self, by: random.Random) -> None:
        path = self.folder(by)
        with suppress(FileExistsError, NotADirectoryError):
            for name in by.sample(NAMES, 3):
                path = join(path, name)
                put(self.root, path, Folder())
            put(self.root, join(path, b"file"), File(b"in new folders"))

    def make_special(self, by: random.Random) -> None:
        self.make(by, b"special", by.choice([Fifo(), Socket()]))

    def remove_something(self, by: random.Random) -> None:
        path = self.some(by, "file", "folder", "link", "special")
        if path is not None:
            remove(self.root, path)

    def remove_everything(self, by: random.Random) -> None:
        clear(self.root)

    # -- changing files --------------------------------------------------------------------------

    def append(self, by: random.Random) -> None:
        self.change(by, lambda fd, name: write(fd, name, os.O_APPEND, by.choice(CONTENTS)))

    def truncate(self, by: random.Random) -> None:
        self.change(by, lambda fd, name: write(fd, name, os.O_TRUNC, by.choice(CONTENTS)))

    def write_as_much_with_the_same_time(self, by: random.Random) -> None:
        def act(fd: int, name: bytes) -> None:
            found = os.stat(name, dir_fd=fd)
            write(fd, name, 0, by.randbytes(found.st_size))
            os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=fd)

        self.change(by, act)

    def set_time(self, by: random.Random) -> None:
        when = by.choice(TIMES)
        self.change(by, lambda fd, name: os.utime(name, ns=(when, when), dir_fd=fd))

    def replace(self, by: random.Random) -> None:
        def act(fd: int, name: bytes) -> None:
            write(fd, b"new", os.O_CREAT | os.O_EXCL, by.choice(CONTENTS))
            os.rename(b"new", name, src_dir_fd=fd, dst_dir_fd=fd)

        self.change(by, act)

    def set_mode(self, by: random.Random) -> None:
        path = self.some(by, "file", "folder")
        if path is not None:
            with place(self.root, path) as (fd, name):
                os.chmod(name, mode(by, 0o700), dir_fd=fd)

    def give_another_name(self, by: random.Random) -> None:
        there = self.folder(by)

        def act(fd: int, name: bytes) -> None:
            self.count += 1
            with opened(self.root, there) as new:
                os.link(name, b"hard-%d" % self.count, src_dir_fd=fd, dst_dir_fd=new)

        self.change(by, act)
        # Of what is written by a name that is gone before anybody looks, the kernel tells nothing.
        self.snapshot(by)

    # -- moving ----------------------------------------------------------------------------------

    def move(self, by: random.Random) -> None:
        old, new = self.some(by, "file", "folder", "link"), join(self.folder(by), by.choice(NAMES))
        if old is None or old in (new, *parents(new)):
            return
        with suppress(FileNotFoundError):
            remove(self.root, new)
        both = place(self.root, old), place(self.root, new)
        with suppress(FileNotFoundError), both[0] as (source, name), both[1] as (target, there):
            os.rename(name, there, src_dir_fd=source, dst_dir_fd=target)

    def move_out(self, by: random.Random) -> None:
        path = self.some(by, "file", "folder")
        if path is not None:
            self.count += 1
            with place(self.root, path) as (fd, name):
                os.rename(name, self.outside / str(self.count), src_dir_fd=fd)

    def move_in_after_a_change(self, by: random.Random) -> None:
        found = sorted(self.outside.iterdir())
        if found:
            path = by.choice(found)
            if path.is_dir():
                self.count += 1
                (path / f"from-outside-{self.count}").write_bytes(by.choice(CONTENTS))
            with opened(self.root, self.folder(by)) as fd:
                os.rename(path, b"in-" + os.fsencode(path.name), dst_dir_fd=fd)

    def change_while_it_is_away(self, by: random.Random) -> None:
        path, away = self.some(by, "folder"), self.outside / "away"
        if path is not None:
            with place(self.root, path) as (fd, name):
                os.rename(name, away, src_dir_fd=fd)
                self.count += 1
                (away / f"from-outside-{self.count}").write_bytes(by.choice(CONTENTS))
                os.rename(away, name, dst_dir_fd=fd)

    def exchange(self, by: random.Random) -> None:
        one, two = self.some(by, "file", "folder"), self.some(by, "file", "folder")
        if one is None or two is None or one in (two, *parents(two)) or two in parents(one):
            return
        with place(self.root, one) as (fd, name), place(self.root, two) as (there, other):
            os.rename(name, b"on-its-way", src_dir_fd=fd, dst_dir_fd=fd)
            os.rename(other, name, src_dir_fd=there, dst_dir_fd=fd)
            os.rename(b"on-its-way", other, src_dir_fd=fd, dst_dir_fd=there)

    # -- what is tested --------------------------------------------------------------------------

    def wait_until_times_differ(self, by: random.Random) -> None:
        time.sleep(0.025)

    def open_anew(self, by: random.Random) -> None:
        self.workspace.close()
        self.workspace = self.open()

    def snapshot(self, by: random.Random) -> None:
        tree = self.workspace.snapshot()
        is_watching = self.workspace.watch_trouble is None
        assert is_watching == (self.watch and can_watch(self.root))
        fresh = Workspace(self.root, CheckpointManager().store, watch=False).snapshot()
        assert (tree.id, tree.files, tree.bytes) == (fresh.id, fresh.files, fresh.bytes)
        assert tree.notes == fresh.notes
        self.taken.append((tree, describe(self.root)))

    def restore(self, by: random.Random) -> None:
        now = describe(self.root)
        tree, then = by.choice(self.taken)
        told = self.workspace.restore(tree, dry_run=True) if by.random() < 0.5 else None
        assert describe(self.root) == now
        plan = self.workspace.restore(tree)
        assert describe(self.root) == restored(now, then)
        assert told is None or as_told(told) == as_told(plan)
        if by.random() < 0.5:
            assert plan.safety is not None
            self.workspace.restore(plan.safety)
            assert describe(self.root) == now


def mode(by: random.Random, at_least: int) -> int:
    return by.choice([0o644, 0o755, by.randrange(0o1000)]) | (0 if IS_ROOT else at_least)


def as_told(plan: Plan) -> "tuple[Any, ...]":
    return plan.write, plan.delete, plan.mode, plan.leave, plan.git


def write(fd: int, name: bytes, flags: int, content: bytes) -> None:
    file = os.open(name, os.O_WRONLY | flags, 0o644, dir_fd=fd)
    os.write(file, content)
    os.close(file)


EDITS = [
    *(Playground.make_file, Playground.make_link, Playground.make_folder, Playground.make_folders),
    *(Playground.make_special, Playground.remove_something, Playground.remove_everything),
    *(Playground.append, Playground.truncate, Playground.write_as_much_with_the_same_time),
    *(Playground.set_time, Playground.replace, Playground.set_mode, Playground.give_another_name),
    *(Playground.move, Playground.move_out, Playground.move_in_after_a_change, Playground.exchange),
    *(Playground.change_while_it_is_away, Playground.wait_until_times_differ),
    Playground.open_anew,
]
STEPS = st.sampled_from([*EDITS, *[Playground.snapshot] * 8, *[Playground.restore] * 4])
RUNS = st.lists(st.tuples(STEPS, st.integers(0, 1 << 16)), min_size=20, max_size=40)
ours = settings(
    max_examples=18,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # to shrink a run takes minutes, and as it is it can be read
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@contextmanager
def playground(
    *, watch: bool, durable: bool = False, below: Optional[str] = without_syncs()
) -> Iterator[Playground]:
    with tempfile.TemporaryDirectory(dir=below) as above:
        patch = pytest.MonkeyPatch()
        patch.setenv(ENVIRONMENT, str(Path(above, "home")))
        backend = {"backend": "sqlite", "path": Path(above, "store")} if durable else {}
        manager = CheckpointManager(**backend)
        made = Playground(Path(above), manager.store, watch=watch)
        try:
            yield made
        finally:
            made.workspace.close()
            manager.close()
            patch.undo()


def play(ground: Playground, run: "list[tuple[Any, int]]") -> None:
    for number, (step, seed) in enumerate(run):
        step(ground, random.Random(f"{number} {seed}"))  # small seeds come up again and again
    ground.snapshot(random.Random(0))
    ground.restore(random.Random(1))


@pytest.mark.slow
@ours
@given(RUNS)
def test_one_who_watches_sees_all_edits_and_takes_them_back(run: "list[tuple[Any, int]]") -> None:
    with playground(watch=True) as ground:
        play(ground, run)


@pytest.mark.slow
@ours
@given(RUNS)
def test_one_who_has_an_index_sees_all_edits_and_takes_them_back(
    run: "list[tuple[Any, int]]",
) -> None:
    with playground(watch=False, durable=True) as ground:
        play(ground, run)


@pytest.mark.slow
@settings(ours, max_examples=12)
@given(RUNS)
def test_all_edits_are_seen_where_inodes_are_used_again(run: "list[tuple[Any, int]]") -> None:
    with playground(watch=True, below=None) as ground:
        play(ground, run)
