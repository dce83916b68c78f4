"""Backtracking: back to the last good step, and the next variant."""

import pytest

from agent_checkpoint import RollbackRefusedError, Session, StorageError, backtrack, tool
from tests.agents import Agent
from tests.unit.session.places import files_of

sent = []


@tool
def write(session, text):
    (session.workspace.path / "src/app.py").write_text(text)


@tool(effect="irreversible", key=lambda to: to)
def send(to):
    sent.append(to)


def attempt(session, text, good=True):
    session.agent.memory.append(text)
    session.messages.append(text)
    write(session, text)
    if not good:
        raise LookupError(f"{text} is bad")
    return len(text)


@pytest.fixture
def session(store, place):
    sent.clear()
    with Session("work", agent=Agent(), workspace=place, store=store) as session:
        yield session


def test_the_first_that_is_good(session, place):
    found = backtrack(
        session,
        attempt,
        [{"text": "a", "good": False}, {"text": "b", "good": False}, {"text": "c"}, {"text": "d"}],
    )
    assert found
    assert found.variant == {"text": "c"}
    assert found.result == 1
    assert [(variant["text"], why) for variant, why in found.failures] == [
        ("a", "LookupError: a is bad"),
        ("b", "LookupError: b is bad"),
    ]
    assert session.agent.memory == ["c"]
    assert list(session.messages) == ["c"]
    assert (place / "src/app.py").read_text() == "c"
    assert session.history(1)[0]["label"] == "backtrack(text='c')"


def test_none_is_good_and_nothing_has_happened(session, place):
    before = files_of(place)
    found = backtrack(session, attempt, [{"text": "a", "good": False}])
    assert not found
    assert session.agent.memory == []
    assert files_of(place) == before


def test_good_enough(session):
    found = backtrack(
        session, attempt, [{"text": "a"}, {"text": "abc"}], accept=lambda size: size > 2
    )
    assert found.variant == {"text": "abc"}
    assert found.failures == [({"text": "a"}, "not accepted: 1")]
    assert session.agent.memory == ["abc"]


def test_coroutines(session):
    async def strategy(session, n):
        return n

    assert backtrack(session, strategy, [{"n": 1}]).result == 1


def test_what_cannot_be_undone_stops_it(session):
    def strategy(session, to):
        send(to)
        raise LookupError

    with pytest.raises(RollbackRefusedError, match=r"irreversible(.|\n)*send \["):
        backtrack(session, strategy, [{"to": "ann"}, {"to": "bob"}])
    assert sent == ["ann"]
    found = backtrack(session, strategy, [{"to": "cid"}], effects="warn")
    assert not found
    assert any("cid" in words for words in session.notices)


def test_a_store_that_fails_is_no_bad_variant(session):
    def strategy(session):
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        backtrack(session, strategy, [{}, {}])


def test_who_stops_it_stops_it(session):
    def strategy(session):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backtrack(session, strategy, [{}])
