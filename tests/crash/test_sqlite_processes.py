"""F7: an SQLite store that many processes save to at once."""

import pytest

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.records import parse_checkpoint_id
from tests.crash.crowd import tell, together
from tests.crash.scenarios import open_manager

HERE = "tests.crash.test_sqlite_processes"


@pytest.fixture
def crowd(full_faults):
    """How many processes, and how many saves each."""
    return (8, 200) if full_faults else (4, 40)


def save_many(path, key, number, name):
    """Run as a process: save, whatever others do."""
    manager = open_manager(path)
    for n in range(int(number)):
        tell(manager.save(key, {"by": name, "n": n}))


def save_many_alone(path, key, number, name):
    """Run as a process: save only on top of the head that was seen; if it moved, look again."""
    manager = open_manager(path)
    done = 0
    while done < int(number):
        head = manager.history(key, n=1)[0]["id"]
        try:
            tell(manager.save(key, {"by": name, "n": done}, expected_head=head))
        except ConflictError:
            continue
        done += 1


def check_all_there(path, key, told, number):
    """Each acknowledged save is in the history, once, with what its writer saved."""
    with open_manager(path) as manager:
        rows = manager.history(key)
        ids = [row["id"] for row in reversed(rows)]
        assert sorted(ids) == sorted(cid for one in told.values() for cid in one)
        assert [parse_checkpoint_id(cid).seq for cid in ids] == list(range(1, len(ids) + 1))
        for name, acknowledged in told.items():
            assert len(acknowledged) == number
            for n, cid in enumerate(acknowledged):
                assert manager.state_dict(key, cid) == {"by": str(name), "n": n}
        assert manager.verify().ok
    return rows


@pytest.mark.slow
def test_processes_saving_to_one_key(scratch, crowd, tried):
    processes, number = crowd
    calls = [(f"{HERE}:save_many", scratch, "Key", number, name) for name in range(processes)]
    told = together(calls)
    check_all_there(scratch, "Key", dict(enumerate(told)), number)
    tried("F7 saves by many processes", processes * number)


@pytest.mark.slow
def test_processes_saving_to_keys_of_their_own(scratch, crowd, tried):
    processes, number = crowd
    keys = [f"Key {name}" for name in range(processes)]
    calls = [(f"{HERE}:save_many", scratch, key, number, n) for n, key in enumerate(keys)]
    told = together(calls)
    with open_manager(scratch) as manager:
        assert manager.list_keys() == keys
    for name, key in enumerate(keys):
        check_all_there(scratch, key, {name: told[name]}, number)
    tried("F7 saves by many processes", processes * number)


@pytest.mark.slow
def test_processes_that_must_be_alone_make_a_linear_history(scratch, crowd, tried):
    processes, number = crowd
    with open_manager(scratch) as manager:
        first = manager.save("Key", {"by": "first", "n": 0})
    calls = [(f"{HERE}:save_many_alone", scratch, "Key", number, n) for n in range(processes)]
    told = together(calls)
    with open_manager(scratch) as manager:
        rows = manager.history("Key")
        assert len(rows) == processes * number + 1
        assert {row["id"] for row in rows} == {first, *(cid for one in told for cid in one)}
        for row, before in zip(rows, rows[1:]):
            assert row["parents"] == [before["id"]]
        assert rows[-1]["parents"] == []
        assert manager.verify().ok
    tried("F7 saves by many processes", processes * number)
