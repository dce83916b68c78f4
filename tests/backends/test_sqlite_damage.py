"""Rows that a flipped bit has moved or changed: noticed one by one, the others stay readable."""

import sqlite3

import pytest

from agent_checkpoint import CheckpointError, CheckpointManager
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.records import Entry

ID = "ab" * 32


@pytest.fixture
def backend(tmp_path):
    opened = SQLiteBackend(tmp_path / "store")
    for stream in ("key/a", "key/b"):
        for number in range(1, 6):
            opened.append(stream, f"{stream} {number}".encode())
    opened.close()
    yield opened
    opened.close()


def damage(backend, statement, *values):
    db = sqlite3.connect(backend.path / "store.db", isolation_level=None)
    done = db.execute(statement, values)
    assert done.rowcount == 1
    db.close()


def good(stream, *numbers):
    return [Entry(number, f"{stream} {number}".encode()) for number in numbers]


def test_an_entry_under_another_number(backend):
    damage(backend, "UPDATE entries SET seq = 7 WHERE stream = 1 AND seq = 3")
    assert backend.read("key/a") == [*good("key/a", 1, 2, 4, 5), Entry(7, b"")]
    assert backend.read("key/a", limit=1, newest_first=True) == [Entry(7, b"")]
    assert backend.read("key/b") == good("key/b", 1, 2, 3, 4, 5)


def test_an_entry_in_another_stream(backend):
    damage(backend, "DELETE FROM entries WHERE stream = 2 AND seq = 3")
    damage(backend, "UPDATE entries SET stream = 2 WHERE stream = 1 AND seq = 3")
    assert backend.read("key/a") == good("key/a", 1, 2, 4, 5)
    assert backend.read("key/b") == [
        *good("key/b", 1, 2),
        Entry(3, b""),
        *good("key/b", 4, 5),
    ]


def test_a_stream_under_another_name(backend):
    """All of its entries are damaged, and nobody takes them for those of the other name."""
    damage(backend, "UPDATE streams SET name = CAST('key/c' AS BLOB) WHERE id = 1")
    assert sorted(backend.streams()) == ["key/b", "key/c"]
    assert backend.read("key/a") == []
    assert backend.read("key/c") == [Entry(number, b"") for number in range(1, 6)]


@pytest.mark.parametrize(
    "change",
    [
        "data = x'00'",
        "data = CAST('key/a 4' AS BLOB)",
        "data = CAST(x'ff80' AS TEXT)",
        "data = 5",
        "data = 0.5",
        "mark = mark + 1",
        "mark = 0.5",
        "mark = 'text'",
        "seq = 3.5",
    ],
)
def test_a_row_that_was_changed(backend, change):
    damage(backend, f"UPDATE entries SET {change} WHERE stream = 1 AND seq = 3")
    expected = [*good("key/a", 1, 2), Entry(3, b""), *good("key/a", 4, 5)]
    assert backend.read("key/a") == expected
    assert backend.read("key/b") == good("key/b", 1, 2, 3, 4, 5)
    assert backend.append("key/a", b"key/a 6") == 6
    assert backend.read("key/a", after=4) == good("key/a", 5, 6)


@pytest.mark.parametrize("name", ["x'6b65792fff'", "5", "'key/a'", "1000000000000"])
def test_a_name_that_is_none_hides_no_other(backend, name):
    damage(backend, f"UPDATE streams SET name = {name} WHERE id = 1")
    assert "key/b" in list(backend.streams())
    assert backend.read("key/b") == good("key/b", 1, 2, 3, 4, 5)


@pytest.mark.parametrize("last", ["'text'", "0.5", "-1", "9223372036854775807", "3"])
def test_a_last_number_that_is_none_stops_appends(backend, last):
    damage(backend, f"UPDATE streams SET last = {last} WHERE id = 1")
    with pytest.raises(CheckpointError):
        backend.append("key/a", b"next")
    assert backend.read("key/a") == good("key/a", 1, 2, 3, 4, 5)
    assert backend.append("key/b", b"next") == 6


@pytest.mark.parametrize("change", ["id = x'00'", "id = 7", "id = 'text'", "data = 7"])
def test_an_object_whose_row_was_changed(backend, change):
    other = "cd" * 32
    backend.put_objects({ID: b"object", other: b"other"})
    damage(backend, f"UPDATE objects SET {change} WHERE number = 1")
    assert backend.get_objects([ID, other]) == {other: b"other"}
    assert other in [info.id for info in backend.list_objects()]
    backend.delete_objects([ID])
    assert backend.get_objects([other]) == {other: b"other"}


def test_the_store_names_the_damaged_checkpoint(tmp_path):
    manager = CheckpointManager(backend="sqlite", path=tmp_path)
    for number in range(3):
        manager.save("a", {"n": number})
    damage(
        manager.store.backend,
        "UPDATE entries SET seq = 9 WHERE seq = 2 AND "
        "stream = (SELECT id FROM streams WHERE name = ?)",
        b"key/a",
    )
    report = manager.verify()
    assert [problem.checkpoint for problem in report.problems] == ["a@9"]
    assert manager.state_dict("a", "a@3") == {"n": 2}
    manager.close()
