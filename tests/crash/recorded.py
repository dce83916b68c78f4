"""A run of acknowledged saves that is recorded, to be cut short by a loss of power anywhere.

Owns the steps of that run, the states of the store between them, and what must be left of it.
"""

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from agent_checkpoint import CheckpointManager, KeepLatest
from agent_checkpoint.backends.sqlite import SQLiteBackend
from tests.crash.call_log import OPTIONS, RECORDED, read_operations
from tests.crash.fault_process import say
from tests.crash.power_loss import Disk
from tests.crash.scenarios import big_text, check_is_one_of, contents, small
from tests.crash.survivors import Kept, Lost, NamesKept, Torn
from tests.crash.sweeping import Failures

TORN = 4  # disks a moment, besides those where all is lost or kept


def medium(n):
    """About 160 kB."""
    return {"n": n, "own": big_text(n)}


STEPS = (
    ("save", "A", small(1)),
    ("save", "A", medium(2)),
    ("save", "B", medium(2)),
    ("save", "B", small(3)),
    ("close",),
    ("save", "A", small(4)),
    ("save", "C", medium(5)),
    ("delete", "B", 1),
    ("delete", "A", 2),
    ("gc",),
    ("save", "B", medium(2)),  # just what gc has taken away
    ("save", "A", small(6)),
    ("restart the log",),
    ("save", "A", small(7)),
    ("save", "C", small(8)),
    ("save", "C", medium(9)),
    ("prune", "C", 1),
    ("gc",),
    ("close",),
    ("save", "A", medium(5)),
    ("save", "A", small(10)),
    ("save", "D", medium(9)),
    ("save", "D", small(11)),
    ("delete key", "B"),
    ("save", "B", small(12)),
    ("gc",),
    ("save", "E", small(13)),
    ("save", "E", medium(14)),
    ("save", "A", small(15)),
    ("save", "B", small(16)),
)


def do_steps(path, durability):
    """Run as a process: do all steps, saying when each begins and ends."""
    manager = CheckpointManager(SQLiteBackend(path, durability=durability))
    for number, (verb, *arguments) in enumerate(STEPS):
        say("begin", number)
        if verb == "save":
            manager.save(*arguments)
        elif verb == "delete":
            key, seq = arguments
            manager.delete(key, f"{key}@{seq}")
        elif verb == "delete key":
            manager.delete(*arguments)
        elif verb == "prune":
            key, latest = arguments
            manager.prune(key, KeepLatest(latest))
        elif verb == "gc":
            manager.gc()
        elif verb == "close":
            manager.close()
        else:
            _restart_log(Path(path) / "store.db")
        say("end", number)


def _restart_log(database):
    # As SQLite does by itself once the log is long: the next save begins it anew, over the old.
    db = sqlite3.connect(database)
    db.execute("PRAGMA wal_checkpoint(RESTART)")
    db.close()


def states_between():
    """What the store holds before the first step, and after each."""
    states = [{}]
    numbers = {}
    for verb, *arguments in STEPS:
        now = {key: dict(saved) for key, saved in states[-1].items()}
        if verb == "save":
            key, state = arguments
            numbers[key] = numbers.get(key, 0) + 1
            now.setdefault(key, {})[numbers[key]] = state
        elif verb == "delete":
            key, seq = arguments
            del now[key][seq]
        elif verb == "delete key":
            del now[arguments[0]]
        elif verb == "prune":
            key, latest = arguments
            now[key] = dict(sorted(now[key].items())[-latest:])
        states.append({key: saved for key, saved in now.items() if saved})
    return states


@dataclass(frozen=True)
class Moment:
    """A point at which the power goes: how many steps had begun, and how many had ended."""

    place: int
    begun: int
    ended: int

    def __str__(self):
        return f"operation {self.place}, with {self.ended} steps done and {self.begun} begun"


class Recording:
    """The operations of one run, to be played to any moment."""

    def __init__(self, operations, root):
        self.operations = operations
        self.root = root

    def moments(self):
        """Every moment at which something on the disk has changed, or a step has ended."""
        return [moment for moment, _, changed in self._played() if changed]

    def disks(self, moments, **options):
        """The disk at each of the moments, which must be in order. It is one and the same."""
        wanted = {moment.place for moment in moments}
        for moment, disk, _ in self._played(**options):
            if moment.place in wanted:
                yield moment, disk

    def _played(self, **options):
        disk = Disk(self.root, **options)
        begun = ended = 0
        for place, operation in enumerate(self.operations):
            changed = disk.apply(operation)
            if operation.name == "writev" and operation.words[0] == "1":
                word, number = operation.texts[0].decode().split()
                begun, ended = (int(number) + 1, ended) if word == "begin" else (begun, begun)
                changed = word == "end"
            yield Moment(place, begun, ended), disk, changed


def record(fault_process, root, durability):
    """Do the steps in a store below `root`, and return the recording."""
    outcome = fault_process.run(
        "tests.crash.recorded:do_steps",
        Path(root) / "store",
        durability,
        trace=RECORDED,
        detail=OPTIONS,
    )
    assert outcome.status == 0, outcome.errors
    check_is_one_of(contents(Path(root) / "store"), states_between()[-1:])
    log = (fault_process.scratch / "calls").read_text()
    return Recording(read_operations(log), root)


# -- what is left on the disk --------------------------------------------------------------------


def acknowledged(moment):
    """With durability full: all that was acknowledged, and perhaps what was under way."""
    return states_between()[moment.ended : moment.begun + 1]


def prefix(moment):
    """With durability fast: what there was at some step up to here."""
    return states_between()[: moment.begun + 1]


def lose_power(recording, moments, scratch, allowed, **options):
    """Build the disks of each moment; the store on each must hold one of the allowed states."""
    failures = Failures()
    place = scratch / "disk"
    for moment, disk in recording.disks(moments, **options):
        for survivors in _survivors(moment):
            disk.build(place, survivors)
            with failures.at(f"{type(survivors).__name__} at {moment}"):
                check_is_one_of(contents(place / "store"), allowed(moment))
            shutil.rmtree(place)
    return failures


def _survivors(moment):
    yield from (Lost(), Kept(), NamesKept())
    yield from (Torn(f"{moment.place}/{number}") for number in range(TORN))
