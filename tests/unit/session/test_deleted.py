"""A session whose key is deleted while somebody holds it: that holder does nothing more outside."""

from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, ConflictError, Session, tool
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.store.ledger.ledger import Ledger

SENT: list[str] = []


@tool(effect="irreversible", name="deleted_mail", key=lambda to: to)
def mail(to: str) -> str:
    SENT.append(to)
    return to


@tool(effect="idempotent", name="deleted_put")
def put(name: str) -> str:
    SENT.append(name)
    if name == "broken":
        raise OSError("no answer")
    return name


@pytest.fixture(autouse=True)
def nothing_is_sent() -> None:
    SENT.clear()


@pytest.fixture
def manager(store: Any) -> Any:
    return (
        store
        if isinstance(store, CheckpointManager)
        else CheckpointManager(str(store) if "://" in str(store) else f"sqlite://{store}")
    )


@pytest.mark.parametrize("anew", [True, False])
def test_who_held_it_does_nothing_more_outside(manager: CheckpointManager, anew: bool) -> None:
    session = Session("work", store=manager)
    with as_current(session._tools):
        mail("ann")
        with pytest.raises(OSError, match="no answer"):
            put("broken")
    manager.delete("work")
    fresh = Session("work", store=manager) if anew else None
    with as_current(session._tools):
        for act in (lambda: mail("bob"), lambda: put("a"), lambda: put("broken")):
            with pytest.raises(ConflictError):
                act()
    assert SENT == ["ann", "broken"]
    if fresh is not None:
        with as_current(fresh._tools):
            assert mail("bob") == "bob"
        fresh.close()
    session.close()


def test_who_opens_it_while_it_is_deleted_may_go_on(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Session("work", store=manager)
    first.close()
    opened: list[Session] = []
    remove = manager.store.remove

    def slow(key: str, seqs: Any) -> None:
        monkeypatch.undo()
        opened.append(Session("work", store=manager))
        remove(key, seqs)

    monkeypatch.setattr(manager.store, "remove", slow)
    manager.delete("work")
    (session,) = opened
    with session:
        assert mail("cid") == "cid"
    assert SENT == ["cid"]


def test_a_key_without_a_session_gets_no_ledger(manager: CheckpointManager) -> None:
    manager.save("plain", {"n": 1})
    manager.delete("plain")
    assert list(manager.store.backend.streams("fx/")) == []


def test_a_damaged_ledger_keeps_nobody_from_deleting(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_checkpoint.errors import IntegrityError

    def damaged(self: Ledger) -> None:
        raise IntegrityError("damaged")

    Session("work", store=manager).close()
    monkeypatch.setattr(Ledger, "refresh", damaged)
    manager.delete("work")
    assert manager.list_keys() == []
