"""F8: gc and prune in an SQLite store beside processes that save what is about to be deleted.

Few large texts are saved again and again, in states that are pruned soon: at any moment some of the
texts are needed by nobody and may be deleted, just while somebody saves them once more.
"""

import random
from pathlib import Path

import pytest

from agent_checkpoint import KeepLatest
from agent_checkpoint.errors import NotFoundError
from tests.crash.crowd import ended, go, start, stop, tell
from tests.crash.scenarios import big_text, open_manager

HERE = "tests.crash.test_sqlite_gc_beside_saves"
SAVERS, KEPT, TEXTS = 4, 2, 4


def state(name, n):
    chosen = random.Random(f"{name}/{n}")
    return {
        "n": n,
        "texts": [big_text(chosen.randrange(TEXTS)) for _ in range(2)],
        "middle": [big_text(chosen.randrange(TEXTS))[:20_000], {"more": "x" * 5000}],
    }


def save_and_load(path, name, number):
    """Run as a process: load each checkpoint right after it was saved, and some older ones."""
    manager = open_manager(path)
    ids = []
    for n in range(int(number)):
        ids.append(manager.save(name, state(name, n)))
        tell(ids[-1])
        assert manager.state_dict(name) == state(name, n), "the head is always kept"
        for m in range(max(0, n - KEPT - 1), n):
            try:
                assert manager.state_dict(name, ids[m]) == state(name, m)
            except NotFoundError:
                assert m <= n - KEPT, f"save {m} of {n} is gone"


def prune_and_collect(path, stop_file):
    """Run as a process: prune every key and delete what nobody needs, until told to stop."""
    manager = open_manager(path)
    rounds = 0
    while not Path(stop_file).exists():
        for key in manager.list_keys():
            manager.prune(key, KeepLatest(KEPT))
        manager.gc()
        rounds += 1
    tell(rounds)


@pytest.mark.slow
def test_nothing_that_is_needed_is_ever_collected(scratch, full_faults, tried):
    number = 150 if full_faults else 25
    path, stop_file = scratch / "store", scratch / "stop"
    processes = [start(f"{HERE}:prune_and_collect", path, stop_file)]
    try:
        names = [f"Saver {n}" for n in range(SAVERS)]
        processes += [start(f"{HERE}:save_and_load", path, name, number) for name in names]
        for process in processes:
            go(process)
        told = {name: ended(process) for name, process in zip(names, processes[1:])}
        stop_file.touch()
        (rounds,) = ended(processes[0])
    finally:
        stop_file.touch()
        stop(processes)
    assert int(rounds) > 2
    with open_manager(path) as manager:
        for _ in range(2):  # as it was left, and after one more gc
            assert manager.verify().ok
            for name in names:
                assert len(told[name]) == number
                left = [row["id"] for row in reversed(manager.history(name))]
                assert left[-KEPT:] == told[name][-KEPT:]
                for cid in left:
                    assert manager.state_dict(name, cid) == state(name, told[name].index(cid))
            manager.gc()
    tried("F8 saves beside gc", SAVERS * number)
