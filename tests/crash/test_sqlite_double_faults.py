"""F3, and F1 with F4: an SQLite store that loses its power after something else went wrong.

After a failed sync, or a process that was killed, files and names may be there that nobody has made
durable. Whoever saves next must not build on them.
"""

import shutil

import pytest

from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.call_log import OPTIONS, RECORDED, read_operations
from tests.crash.fault_process import CHANGES, SYNCS
from tests.crash.scenarios import ACTIONS, check_is_one_of, contents, large
from tests.crash.survivors import Lost, NamesKept
from tests.crash.sweeping import Failures

FEW = 2
RECORD = {"trace": RECORDED, "detail": OPTIONS}
WRITING = [name for name in ACTIONS if name != "export"]  # an archive is not of the store


def play(disk, *logs):
    """Do to a disk what several processes did, one after another."""
    for log in logs:
        for operation in read_operations(log):
            disk.apply(operation)
        disk.processes_ended()


def after_power_loss(disk, scratch):
    """The disks on which nothing is left that was not synced."""
    for survivors in (Lost(), NamesKept()):
        place = scratch.parent / f"{scratch.name}-disk"
        shutil.rmtree(place, ignore_errors=True)
        disk.build(place, survivors)
        yield place / "store"


@pytest.mark.slow
@pytest.mark.parametrize("action", WRITING)
def test_a_sync_fails(broken_store, scratch, action, sample_calls, tried):
    """Refused with a StorageError, and nothing later rests on what was not synced."""
    failures = Failures()
    points = broken_store.points(action, SYNCS)
    if not points:
        pytest.skip("it syncs nothing")
    for point in sample_calls(points, FEW):
        inject = f"{point.name}:error=EIO:when={point.when}"
        outcome = broken_store.run("act_and_go_on", action, inject=inject, **RECORD)
        with failures.at(f"EIO at {point}"):
            if not is_ignored_by_sqlite(point, action, scratch):
                assert outcome.said[0].startswith("refused StorageError"), outcome.said
            disk = broken_store.disk(action)
            play(disk, broken_store.log())
            for path in after_power_loss(disk, scratch):
                broken_store.check_went_on(action, outcome, path)
    tried("F3 failed syncs", failures.tried)
    failures.check()


def is_ignored_by_sqlite(point, action, scratch):
    """SQLite syncs the directory of a new log, and does not look at the result.

    Nor does it tell when it closes a database: what was acknowledged is in the log already.
    """
    of_the_directory = point.name == "fdatasync" and point.paths == (str(scratch / "store"),)
    return of_the_directory or ACTIONS[action].then_close


@pytest.mark.slow
@pytest.mark.parametrize("action", WRITING)
def test_killed_and_then_the_power_is_lost(broken_store, scratch, action, sample_calls, tried):
    """What the next process acknowledges is durable, though a killed one had begun the work."""
    failures = Failures()
    # A page written to a log that nobody has synced is like the next: every eighth is enough.
    points = broken_store.points(action, CHANGES)
    points = [point for point in points if point.name != "pwrite64" or point.when % 8 == 0]
    for point in sample_calls(points, FEW):
        inject = f"{point.name}:signal=KILL:when={point.when}"
        broken_store.run("act", action, inject=inject, **RECORD)
        first = broken_store.log()
        outcome = broken_store.run_next(**RECORD)
        with failures.at(f"killed at {point}"):
            assert outcome.status == 0, outcome.errors
            disk = broken_store.disk(action)
            play(disk, first, broken_store.log())
            seq = parse_checkpoint_id(outcome.said[0].split()[1]).seq
            for path in after_power_loss(disk, scratch):
                present = contents(path)
                assert present["Key"].pop(seq) == large(5)
                allowed = [ACTIONS[action].before, ACTIONS[action].after]
                check_is_one_of({k: v for k, v in present.items() if v}, allowed)
    tried("F1 and F4 killed, then without power", failures.tried)
    failures.check()
