"""A session that a released format wrote: its ledger counts, here and now, as it did then."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint import (
    CheckpointManager,
    EffectUnknownError,
    RollbackRefusedError,
    Session,
)
from agent_checkpoint.session.session_list import list_sessions
from tests.compat import reader, session_subject
from tests.compat.session_subject import ARCHIVE, KEY, Clerk, charge, mail, publish, put, suspended

STATUSES = {
    "golden_put(name='a')": "committed",
    "golden_charge(order='order 1')": "undone",
    "golden_charge(order='order 2')": "committed",
    "golden_mail(to='ann'": "committed",
    "golden_publish(version='1.1')": "committed",
    "golden_mail(to='bob', body='killed')": "unknown",
}


@pytest.fixture(params=["sqlite", "file"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[CheckpointManager]":
    session_subject.DONE.clear()
    with CheckpointManager(backend=request.param, path=tmp_path / "store") as found:
        assert found.import_archive(ARCHIVE) == KEY
        yield found


def test_it_goes_on_and_does_nothing_twice(manager: CheckpointManager) -> None:
    agent = Clerk()
    with Session(KEY, agent=agent, store=manager) as session:
        assert session.resumed
        assert agent.letters == 2
        assert [task.status for task in session.tasks] == ["completed", "completed", "pending"]
        assert session.tasks["second"].result == ("done", 2)
        assert [effect.status for effect in session.effects] == list(STATUSES.values())
        for effect, words in zip(session.effects, STATUSES):
            assert effect.words.startswith(words)
        assert mail("ann", "long " * 1000) == {"to": "ann", "bytes": 5000}
        assert charge("order 2") == "charged"
        assert publish("1.1") == "1.1"
        with pytest.raises(EffectUnknownError):
            mail("bob", "killed")
        assert session_subject.DONE == []
        assert charge("order 1") == "charged"
        assert put("b") == 1
        assert session_subject.DONE == ["charge order 1", "put b"]


def test_requests_and_answers_from_elsewhere_are_void(manager: CheckpointManager) -> None:
    with Session(KEY, agent=Clerk(), store=manager) as session:
        assert session.approvals.pending() == []
        request = suspended("1.2")
        session.approvals.approve(request)
        assert publish("1.2") == "1.2"
        assert suspended("1.0") != request  # denied elsewhere


def test_a_rollback_is_refused_as_it_was(manager: CheckpointManager) -> None:
    with Session(KEY, agent=Clerk(), store=manager) as session:
        with pytest.raises(RollbackRefusedError) as caught:
            session.rollback(to=f"{KEY}@1")
        assert [len(caught.value.report.irreversible), len(caught.value.report.unknown)] == [2, 1]


def test_it_is_listed(manager: CheckpointManager) -> None:
    (row,) = list_sessions(manager.store)
    assert row.key == KEY
    assert row.pending == []
    assert row.unknown == ["golden_mail(to='bob', body='killed')"]
    assert row.trouble is None
    assert manager.verify().ok


def test_the_format_page_is_enough_to_read_its_checkpoints() -> None:
    (checkpoints,) = reader.read(ARCHIVE).values()
    session = checkpoints[-1]["parts"]["session"]
    assert session["key"] == KEY
    assert session["family"].startswith(f"{KEY}.")
