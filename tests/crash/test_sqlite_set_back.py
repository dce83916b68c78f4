"""F6: an SQLite store that was set back. A caller who remembers its head notices."""

import shutil

import pytest

from agent_checkpoint import CheckpointError
from agent_checkpoint.errors import ConflictError
from tests.crash.corruption import copy_of
from tests.crash.scenarios import open_manager, small

FLIPS = 40


def check_noticed(path, head):
    """Neither a load nor a save goes on as if nothing had happened, and nothing is written."""
    with open_manager(path) as manager:
        rows = manager.history("Key")
        target = {"n": "untouched"}
        with pytest.raises(ConflictError):
            manager.load("Key", target, expected_head=head)
        assert target == {"n": "untouched"}
        with pytest.raises(ConflictError):
            manager.save("Key", small(9), expected_head=head)
        assert manager.history("Key") == rows


@pytest.fixture
def set_back(scratch):
    """A store that was replaced by its copy of three saves ago, and its head before that."""
    with open_manager(scratch / "store") as manager:
        for n in range(5):
            manager.save("Key", small(n))
    shutil.copytree(scratch / "store", scratch / "older")
    with open_manager(scratch / "store") as manager:
        for n in range(3):
            head = manager.save("Key", small(10 + n))
        manager.load("Key", small(0), expected_head=head)
    shutil.rmtree(scratch / "store")
    (scratch / "older").rename(scratch / "store")
    return scratch / "store", head


def test_a_store_replaced_by_an_older_copy(set_back, tried):
    check_noticed(*set_back)
    tried("F6 set back")


def test_a_store_set_back_that_has_come_as_far_again(set_back, tried):
    """The head has the same number as the one that is remembered, and is another."""
    path, head = set_back
    with open_manager(path) as manager:
        for n in range(3):
            again = manager.save("Key", small(10 + n))
    assert again.rsplit("-", 1)[1] == head.rsplit("-", 1)[1]
    check_noticed(path, head)
    tried("F6 set back")


@pytest.mark.slow
def test_a_flipped_byte_in_the_log_that_takes_the_newest_saves_away(scratch, tried):
    """SQLite drops everything from there on without a word."""
    manager = open_manager(scratch / "live")
    for n in range(12):
        head = manager.save("Key", small(n))
    saved = copy_of(scratch / "live", scratch / "saved")
    manager.close()
    size = (saved / "store.db-wal").stat().st_size
    dropped = 0
    for number in range(FLIPS):
        path = copy_of(saved, scratch / "flipped")
        log = bytearray((path / "store.db-wal").read_bytes())
        log[size * number // FLIPS + number] ^= 0x10
        (path / "store.db-wal").write_bytes(log)
        dropped += was_dropped(path, head)
        shutil.rmtree(path)
    assert dropped > FLIPS / 2
    tried("F6 set back", FLIPS)


def was_dropped(path, head):
    with open_manager(path) as manager:
        try:
            intact = manager.history("Key", n=1)[0]["id"] == head
        except CheckpointError:
            intact = False
        if intact:
            manager.load("Key", small(0), expected_head=head)
            return False
        for verb in (manager.load, manager.save):
            with pytest.raises(CheckpointError):
                verb("Key", small(0), expected_head=head)
        return True
