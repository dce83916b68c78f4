"""Everything at once, at random: three processes use a store that is moved, replaced and filled up.

Each run is a seed. A model knows what each copy of the store must hold, whatever its path is by
now: all that was acknowledged while it was at the path of the store, and nothing of anybody else.
What is refused is refused by a typed error, and within a bound, also beside a stopped process.
"""

import base64
import errno
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, FileBackend
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.errors import CheckpointError, NotFoundError
from tests.backends.full_disks import small_disk
from tests.crash.fault_process import child_environment

HERE = "tests.crash.test_store_storm"
BACKENDS = {"sqlite": SQLiteBackend, "file": FileBackend}
WORKERS = 3
STEPS = 50
LONGEST_ANSWER = 100.0  # seconds; the locks of these stores are waited for a second, or ten
MEGABYTES = 24
NOISE = base64.b64encode(random.Random(0).randbytes(150_000)).decode()


def state_of(n):
    """Every third state is large: an object of its own file."""
    return {"n": n, "text": f"{n} {NOISE}" if n % 3 == 0 else f"{n} " * 20}


def opened(kind, path):
    return CheckpointManager(BACKENDS[kind](path, lock_timeout=1.0, min_free=0))


# -- a process -----------------------------------------------------------------------------------


class Worker:
    """What a process does: one line in, one line out."""

    def __init__(self):
        self.manager = None

    def open(self, kind, path):
        """Open the store that is at the path now."""
        self.close()
        self.manager = opened(kind, path)

    def close(self):
        if self.manager is not None:
            self.manager.close()

    def save(self, key, n):
        return self.manager.save(key, state_of(n))

    def load(self, key):
        try:
            state = self.manager.state_dict(key)
        except NotFoundError:
            return None
        assert state == state_of(state["n"]), "another state than was saved"
        return state["n"]

    def delete(self, key, cid):
        self.manager.delete(key, cid)

    def gc(self):
        self.manager.gc()

    def run(self):
        """Answer until there are no more questions."""
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            try:
                answer = ["did", getattr(self, verb)(*arguments)]
            except CheckpointError as error:
                answer = ["refused", f"{type(error).__name__}: {error}"]
            except BaseException:
                answer = ["failed", traceback.format_exc()]
            print(json.dumps(answer), flush=True)


class Process:
    """A worker, as its driver sees it."""

    def __init__(self):
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            f"from {HERE} import Worker; Worker().run()",
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=child_environment(), bufsize=0, **pipes)
        self.asked = None
        self.seen = []  # the stores that were at the path since it was asked
        self.before = 0  # what was saved before has lower numbers
        self.saw_none = False  # whether there was none, too, for a moment
        self.is_stopped = False
        self.is_lost = False  # it has open what is not at the path any more

    def ask(self, *question):
        self.asked, self.seen, self.saw_none = question, [], False
        self.process.stdin.write(json.dumps(question).encode() + b"\n")

    def answer(self, seconds):
        """Its answer, None if there is none yet."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return None
        return json.loads(self.process.stdout.readline())

    def signal(self, number):
        self.process.send_signal(number)
        self.is_stopped = number == signal.SIGSTOP

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


# -- what must hold ------------------------------------------------------------------------------


class Copy:
    """One store, wherever it is: what it must hold, and what it may hold."""

    def __init__(self, path, must=(), may=()):
        self.path = path
        self.must = dict(must)  # by key and number of the state: the checkpoint
        self.may = set(may)

    def doubt(self, key, n):
        self.must.pop((key, n), None)
        self.may.add((key, n))

    def contents(self, kind):
        with opened(kind, self.path) as manager:
            found = {}
            for key in manager.list_keys():
                for row in manager.history(key):
                    with suppress(NotFoundError):  # it is deleted right now
                        state = manager.state_dict(key, row["id"])
                        assert state == state_of(state["n"])
                        found[key, state["n"]] = row["id"]
            return found

    def check(self, kind):
        found = self.contents(kind)
        lost = {name: cid for name, cid in self.must.items() if found.get(name) != cid}
        assert not lost, f"acknowledged, and not in {self.path.name}: {lost}"
        foreign = found.keys() - self.must.keys() - self.may
        assert not foreign, f"in {self.path.name}, and of another store: {foreign}"
        with opened(kind, self.path) as manager:
            report = manager.verify()
            assert report.ok, report.problems


class Storm:
    """A store at a path, three processes that use it, and all that befalls it."""

    def __init__(self, kind, disk, seed, processes):
        self.kind, self.disk, self.processes = kind, disk, processes
        self.chance = random.Random(f"{kind} {seed}")
        self.path = disk / "store"
        self.copies = {}  # by inode
        self.away = []  # copies that can be moved back
        self.filler = disk / "filler"
        self.number = 0
        self.log = []

    # -- what happens to the store ----------------------------------------------------------------

    def look(self):
        """Return the copy at the path, None if there is none; whoever is busy may be using it."""
        try:
            inode = os.stat(self.path).st_ino
        except FileNotFoundError:
            return None
        copy = self.copies.setdefault(inode, Copy(self.path))
        for process in self.processes:
            if process.asked and copy not in process.seen:
                process.seen.append(copy)
                if process.asked[0] == "save":
                    copy.may.add(process.asked[1:])
        return copy

    def put_aside(self):
        copy = self.look()
        if copy is not None:
            copy.path = self.disk / f"aside-{self.number}"
            self.log.append(("from the path:", copy.path.name))
            self.number += 1
            os.rename(self.path, copy.path)
            for process in self.processes:
                process.saw_none = True
        return copy

    def move_away(self):
        copy = self.put_aside()
        if copy is not None:
            self.away.append(copy)

    def move_back(self):
        if self.kind == "sqlite":
            # SQLite finds the log beside a database by its name, when it opens and when it removes
            # it. A database that takes the place of another in that very instant loses its log.
            self.wait_for_all()
        if self.away:
            copy = self.away.pop(self.chance.randrange(len(self.away)))
            self.put_aside()
            self.log.append(("to the path:", copy.path.name))
            os.rename(copy.path, self.path)
            copy.path = self.path
            self.look()

    def remove(self):
        copy = self.look()
        if copy is None:
            return
        # A process may make a directory of it anew meanwhile; that is part of what is removed.
        doomed = self.put_aside().path
        for inode in [inode for inode, item in self.copies.items() if item is copy]:
            del self.copies[inode]
        copy.path = None
        while doomed.exists():
            shutil.rmtree(doomed, ignore_errors=True)

    def copy_store(self):
        """Copy it while nobody writes; the copy may take its place later."""
        self.wait_for_all()
        copy = self.look()
        target = self.disk / f"copy-{self.number}"
        self.number += 1
        if copy is None:
            return
        try:
            shutil.copytree(self.path, target)
        except shutil.Error:  # no room
            shutil.rmtree(target)
            return
        fresh = Copy(target, copy.must, copy.may)
        self.copies[os.stat(target).st_ino] = fresh
        self.away.append(fresh)

    def fill(self):
        fd = os.open(self.filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        size = 1 << 20
        while size >= 4096:
            try:
                os.write(fd, bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
        os.close(fd)

    def free(self):
        self.filler.unlink(missing_ok=True)

    def stop(self):
        self.chance.choice(self.processes).signal(signal.SIGSTOP)

    def go_on(self):
        for process in self.processes:
            process.signal(signal.SIGCONT)

    def kill(self):
        place = self.chance.randrange(WORKERS)
        process = self.processes[place]
        if process.asked:
            self.look()
            process.end()
            self.note(process, ["killed", None])
        process.end()
        process = self.processes[place] = Process()
        self.ask(process, "open", self.kind, str(self.path))

    # -- what the processes do --------------------------------------------------------------------

    def ask(self, process, *question):
        self.log.append((self.processes.index(process), *question))
        process.ask(*question)
        process.saw_none = self.look() is None
        process.before = min(
            [item.asked[2] for item in self.processes if item.asked and item.asked[0] == "save"],
            default=self.number + 1,
        )

    def use(self):
        process = self.chance.choice(self.processes)
        if process.asked or process.is_stopped:
            return
        key = f"key{self.processes.index(process)}"
        verb = self.chance.choice(["save"] * 6 + ["load"] * 3 + ["delete", "delete", "gc", "open"])
        if process.is_lost and self.chance.random() < 0.5:
            verb = "open"
        copy = self.look()
        if verb == "save":
            self.number += 1
            self.ask(process, "save", key, self.number)
        elif verb == "load":
            self.ask(process, "load", f"key{self.chance.randrange(WORKERS)}")
        elif verb == "gc":
            self.ask(process, "gc")
        elif verb == "open":
            self.ask(process, "open", self.kind, str(self.path))
        elif copy is not None:
            cids = [cid for (of, _), cid in copy.must.items() if of == key]
            if len(cids) > 1:
                self.ask(process, "delete", key, cids[0])

    def note(self, process, answer):
        """Learn from an answer what the store must hold now."""
        how, result = answer
        self.log.append((self.processes.index(process), how, result))
        assert how != "failed", result
        process.is_lost = how == "refused" and "open the store" in result
        if how == "refused" and "Integrity" in result:
            assert any(copy.path is None for copy in process.seen), result
        verb, *arguments = process.asked
        seen = [copy for copy in process.seen if copy.path is not None]
        process.asked = None
        if verb == "save":
            self.note_save(process, seen, how, result, *arguments)
        elif verb == "delete":
            key, cid = arguments
            for copy in seen:
                for (of, n), present in list(copy.must.items()):
                    if (of, present) == (key, cid):
                        copy.doubt(of, n)
        elif verb == "load" and how == "did":
            (key,) = arguments
            if result is None:
                seen = [] if process.saw_none else process.seen
                before = process.before
                sure = [n for copy in seen for of, n in copy.must if of == key and n < before]
                assert not sure, f"{sure} of {key} are not found"
            elif len(seen) == len(process.seen):
                known = set().union(*[copy.must.keys() | copy.may for copy in seen])
                assert (key, result) in known, f"{result} of {key} was read, and never saved here"

    def note_save(self, process, seen, how, cid, key, n):
        if how != "did" or len(seen) < len(process.seen):
            return  # it may have been in one that was removed since
        if len(seen) > 1:
            seen = [copy for copy in seen if copy.contents(self.kind).get((key, n)) == cid]
        assert seen, f"{n} of {key} was acknowledged, and is in no store that was at the path"
        for copy in seen:
            copy.must[key, n] = cid
            copy.may.discard((key, n))

    def collect(self, seconds=0.0):
        for process in self.processes:
            if process.asked and not process.is_stopped:
                answer = process.answer(seconds)
                self.look()
                if answer is not None:
                    self.note(process, answer)

    def wait_for_all(self):
        self.go_on()
        self.collect(LONGEST_ANSWER)
        assert not any(process.asked for process in self.processes), "a process hangs"

    def run(self, can_fill):
        for process in self.processes:
            self.ask(process, "open", self.kind, str(self.path))
        self.wait_for_all()
        world = [self.move_away, self.move_back, self.move_back, self.copy_store, self.remove]
        world += [self.stop, self.go_on, self.go_on, self.kill, *[self.wait_for_all] * 4]
        world += [self.fill, self.free, self.free] if can_fill else []
        for _ in range(STEPS):
            for _ in range(self.chance.randrange(1, 6)):
                self.use()
                self.collect(self.chance.choice([0, 0, 0.002, 0.02]))
            befalls = self.chance.choice(world)
            self.log.append((befalls.__name__,))
            befalls()
        self.wait_for_all()
        for _ in range(2):  # first as it is, maybe on a full disk; then with room
            for copy in list(self.copies.values()):
                if copy.path.exists():
                    copy.check(self.kind)
            self.free()
        for process in self.processes:
            self.ask(process, "open", self.kind, str(self.path))
            self.wait_for_all()
            self.number += 1
            self.ask(process, "save", "last", self.number)
            self.wait_for_all()
            assert self.log[-1][1] == "did", self.log[-1]


# -- the tests -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def processes():
    """Three workers; those that are killed are replaced."""
    running = [Process() for _ in range(WORKERS)]
    yield running
    for process in running:
        process.end()


@contextmanager
def place(tmp_path, can_fill):
    if can_fill:
        with small_disk("tmpfs", tmp_path, MEGABYTES) as disk:
            yield disk
    else:
        yield tmp_path


def pytest_generate_tests(metafunc):
    is_full = metafunc.config.getoption("--full-faults", default=False)
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(60 if is_full else 1))


@pytest.mark.slow
@pytest.mark.parametrize("can_fill", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_nothing_acknowledged_is_lost_in_a_storm(kind, can_fill, seed, processes, tmp_path, tried):
    with place(tmp_path, can_fill) as disk:
        storm = Storm(kind, disk, f"{seed} {can_fill}", processes)
        try:
            storm.run(can_fill)
        except BaseException:
            print(*storm.log[-100:], sep="\n")
            with suppress(OSError):
                print(*sorted(Path(disk).iterdir()), sep="\n")
            raise
        finally:
            storm.go_on()
            for process in processes:
                if process.asked:
                    process.answer(LONGEST_ANSWER)
                process.ask("close")
                process.answer(LONGEST_ANSWER)
        tried("storms of a store", 1)
