"""The numbers of calls without a key: what is saved is what has changed."""

import random
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Session, tool
from agent_checkpoint.session.call_counts import CallCounts
from agent_checkpoint.session.session_record import SessionRecord, read_session_record


@tool(effect="idempotent", name="counted_put")
def put(n: Any) -> Any:
    return n


def stored(counts: CallCounts) -> list[Any]:
    return counts.frozen().inline()  # type: ignore[return-value]


@pytest.mark.slow
def test_rows_are_read_as_they_were_written() -> None:
    rng = random.Random(1)
    counts = CallCounts()
    for _ in range(3000):
        task, name = rng.choice([None, "a", "b\u00e9"]), f"put {rng.randrange(5)}"
        move = rng.random()
        if move < 0.6:
            number = counts.next_number(task, name, rng.sample(range(1, 9), 2))
            counts.mark_used(task, name, number)
        elif move < 0.99:
            counts.mark_unused(task, name, rng.randrange(1, 9))
        elif task is not None:
            counts.reset(task)
            assert counts.next_number(task, name, ()) == 1
        read = CallCounts(stored(counts))
        assert sorted(map(repr, read.rows())) == sorted(map(repr, counts.rows()))
        assert bool(read) == bool(counts) == bool(list(counts.rows()))
        assert len(stored(counts)) <= 2 * len(list(counts.rows())) + 64


def test_a_row_for_each_as_before_is_read() -> None:
    counts = CallCounts([[None, "put 1", 2, 4], ["a", "put 1", 1]])
    assert counts.next_number(None, "put 1", ()) == 3
    assert counts.next_number(None, "put 1", {3}) == 5
    assert counts.next_number("a", "put 1", ()) == 2


def test_a_copy_goes_on_by_itself() -> None:
    counts = CallCounts([[None, "put", 1]])
    twin = SessionRecord("k", "f").replaced(counts=counts).fork("other", None).counts
    twin.mark_used(None, "put", 2)
    assert list(counts.rows()) == [[None, "put", 1]]
    assert list(twin.rows()) == [[None, "put", 2]]


@pytest.mark.slow
@pytest.mark.parametrize("alike", [True, False])
def test_a_call_writes_as_much_after_a_thousand_of_them(
    alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager()
    sizes: list[int] = []
    append = manager.store.backend.append

    def counting(stream: str, entry: bytes, **options: Any) -> int:
        if stream.startswith("key/"):
            sizes.append(len(entry) + sum(map(len, options.get("objects", {}).values())))
        return append(stream, entry, **options)

    monkeypatch.setattr(manager.store.backend, "append", counting)
    with Session("work", store=manager) as session:
        for n in range(1000):
            put(0 if alike else n)
        first, last = sizes[50:150], sizes[900:1000]
        assert sum(last) < 2 * sum(first)
        head = manager.store.head("work")
        assert head is not None
        record = read_session_record(manager.store, head)
        assert record is not None
        assert list(record.counts.rows()) == list(session._state.record.counts.rows())
    with Session("work", store=manager) as session:
        assert session._state.record.counts.next_number(None, next(record.counts.rows())[1], ()) > 1
