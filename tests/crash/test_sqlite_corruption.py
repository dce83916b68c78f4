"""F5: an SQLite store of which one file is damaged.

Whatever is damaged, a load gives the exact state or a typed error, `verify` names what is damaged,
and the rest is as it was.
"""

import shutil

import pytest

from agent_checkpoint import CheckpointError
from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.corruption import cases, copy_of, damage
from tests.crash.scenarios import big_text, large, open_manager, small
from tests.crash.sweeping import Failures

FEW, MANY = 36, 700  # for each of two stores
PARTS = 3


def make_rich_store(path):
    """A store with everything in it, still open; states and rows of history by id."""
    manager = open_manager(path)
    saved = {}
    for n in range(1, 5):
        saved[manager.save("Small", small(n), label=f"number {n}", tags=["t"])] = small(n)
    for n in (1, 2, 3):
        saved[manager.save("Large", large(n))] = large(n)
    log = {"n": 0, "log": [{"role": "user", "text": big_text(n)[:9000]} for n in range(40)]}
    saved[manager.save("Log", log)] = log
    rows = {row["id"]: row for key in manager.list_keys() for row in manager.history(key)}
    return manager, {cid: (state, rows[cid]) for cid, state in saved.items()}


@pytest.fixture(scope="session")
def rich_stores(session_scratch):
    """Two stores to damage: as an open process has it on disk, with a log; and closed."""
    live = session_scratch / "rich"
    manager, saved = make_rich_store(live)
    logged = copy_of(live, session_scratch / "rich-logged")
    manager.close()
    closed = copy_of(live, session_scratch / "rich-closed")
    return {"with a log": logged, "closed": closed}, saved


def typed(call, *arguments):
    """The result of a call and None, or None and its error, which must be of our tree."""
    try:
        return call(*arguments), None
    except CheckpointError as error:
        return None, error


def check_damaged(path, saved):
    """Everything that F5 asks of a damaged store. Returns whether the damage was noticed."""
    with open_manager(path) as manager:
        report, _ = typed(manager.verify)
        named = None if report is None else {problem.checkpoint for problem in report.problems}
        sound = report is not None and report.ok
        lost = []
        for cid, (state, _) in saved.items():
            key, seq = parse_checkpoint_id(cid).key, parse_checkpoint_id(cid).seq
            found, wrong = typed(manager.state_dict, key, cid)
            if wrong is None:
                assert found == state, f"{cid} is loaded with another state"
                continue
            lost.append(cid)
            if isinstance(wrong, NotFoundError) or named is None:
                continue
            assert not sound, f"{cid} does not load ({wrong}), and verify says ok"
            # A key is named as a whole where not even its list of checkpoints can be read.
            told = named & {cid, f"{key}@{seq}", key, "meta/format"}
            assert told, f"verify does not name {cid}: {wrong}"
        for key in {parse_checkpoint_id(cid).key for cid in saved}:
            rows, _ = typed(manager.history, key)
            for row in rows or ():
                assert row["kind"] == "unreadable" or row == saved[row["id"]][1]
        typed(manager.list_keys)
        typed(manager.stats)
        typed(manager.gc)
        for cid, (
            state,
            _,
        ) in saved.items():  # gc takes nothing from the sound ones
            if cid not in lost:
                found, wrong = typed(manager.state_dict, parse_checkpoint_id(cid).key, cid)
                assert found == state, f"{cid} loaded before gc, and not after it: {wrong}"
        typed(manager.save, "Small", small(9))
    return bool(lost) or not sound


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("which", ["with a log", "closed"])
def test_damaged(rich_stores, scratch, which, part, full_faults, tried):
    """Exact or a typed error, and never anything but a typed error."""
    stores, saved = rich_stores
    failures = Failures()
    noticed = 0
    for file, kind, seed in list(cases(stores[which], MANY if full_faults else FEW))[part::PARTS]:
        path = copy_of(stores[which], scratch / "damaged")
        told = damage(path, file, kind, seed)
        with failures.at(told):
            noticed += check_damaged(path, saved)
        shutil.rmtree(path)
    tried("F5 damaged files", failures.tried)
    failures.check()
    assert noticed, "no damage did any harm: these cases prove nothing"


def test_an_undamaged_store_passes(rich_stores, scratch):
    stores, saved = rich_stores
    for name, store in stores.items():
        assert not check_damaged(copy_of(store, scratch / name), saved)
