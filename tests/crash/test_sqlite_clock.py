"""F9: an SQLite store used under a clock that jumps."""

import random
import time

import pytest

from agent_checkpoint import KeepLatest
from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.scenarios import large, open_manager, small

DAY = 86_400
REAL_TIME, REAL_TIME_NS = time.time, time.time_ns


@pytest.fixture
def clock(monkeypatch):
    """Call it with the seconds by which the clock is to be wrong."""

    def wrong_by(seconds):
        monkeypatch.setattr(time, "time", lambda: REAL_TIME() + seconds)
        monkeypatch.setattr(time, "time_ns", lambda: REAL_TIME_NS() + int(seconds * 1e9))

    return wrong_by


JUMPS = {
    "back": [0, -DAY, -2 * DAY, -DAY - 0.001],
    "forward": [0, DAY, 365 * DAY, DAY],
    "to and fro": [0, 10 * DAY, -10 * DAY, 0, 3650 * DAY, -3650 * DAY, 0],
    "to the beginning of time": [0, -REAL_TIME() + 5, 0],
}


@pytest.mark.parametrize("jumps", JUMPS.values(), ids=JUMPS)
def test_order_is_by_number_and_nothing_is_lost(scratch, clock, jumps, tried):
    saved = []
    refused = 0
    with open_manager(scratch) as manager:
        for n, seconds in enumerate(jumps * 3):
            clock(seconds)
            state = large(n % 3) if n % 2 else small(n)
            saved.append((manager.save("Key", state), state))
            refused += not collected(manager)
            assert manager.state_dict("Key") == state
        assert [row["id"] for row in manager.history("Key")] == [cid for cid, _ in saved[::-1]]
        assert [parse_checkpoint_id(cid).seq for cid, _ in saved] == list(range(1, len(saved) + 1))
        assert manager.state_dict("Key", "Key~1") == saved[-2][1]
        for cid, state in saved:
            assert manager.state_dict("Key", cid) == state
        manager.prune("Key", KeepLatest(4))
        manager.gc(ignore_clock=True)
        assert [row["id"] for row in manager.history("Key")] == [cid for cid, _ in saved[:-5:-1]]
        for cid, state in saved[-4:]:
            assert manager.state_dict("Key", cid) == state
        assert manager.verify().ok
    assert refused, "gc trusted a clock that makes no sense"
    tried("F9 jumps of the clock", len(jumps) * 3)


def collected(manager):
    """Whether gc went on. It may refuse, for then objects seem to come from the future."""
    try:
        manager.gc()
    except StorageError as error:
        if "clock" in str(error):
            return False
        raise
    return True


def test_two_processes_of_different_days(scratch, clock, tried):
    """Each manager has its own idea of now; the head is whoever saved last."""
    chosen = random.Random(9)
    with open_manager(scratch) as one, open_manager(scratch) as other:
        heads = []
        for n in range(30):
            ahead = chosen.random() < 0.5
            clock(DAY if ahead else -DAY)
            head = heads[-1] if heads else None
            heads.append((one if ahead else other).save("Key", small(n), expected_head=head))
            assert one.state_dict("Key") == other.state_dict("Key") == small(n)
        assert [row["id"] for row in one.history("Key")] == heads[::-1]
        assert one.verify().ok
    tried("F9 jumps of the clock", 30)
