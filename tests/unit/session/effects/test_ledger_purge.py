"""Ledgers after a purge: the secret is in no record, and what was done stays known."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError, Session, Suspended, tool
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from tests.unit.session.stores import BACKENDS, ledger_of, manager_on

SECRET = "hunter2-4711"
REDACTED = "[purged]"
IDENTITY = "0123456789abcdef" * 4


@pytest.fixture(params=BACKENDS)
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[CheckpointManager]":
    with manager_on(request.param, tmp_path) as manager:
        yield manager


@pytest.fixture
def memory() -> CheckpointManager:
    return CheckpointManager()


CALL: "dict[str, Any]" = {
    "session": "work",
    "tool": "mail",
    "module": "shop",
    "part": "agent",
    "identity": IDENTITY,
    "digest": "d" * 64,
    "task": "send",
    "at": "work_1-1",
    "words": "mail(to='ann')",
}
RECORDS: "dict[str, dict[str, Any]]" = {
    "started": {
        **CALL,
        "effect": "e" * 16,
        "epoch": 1,
        "kind": "irreversible",
        "also": "f" * 64,
        "generation": 0,
        "request": None,
    },
    "failed": {"effect": "e" * 16, "note": "was away"},
    "resolved": {"effect": "e" * 16, "happened": True, "note": "it was"},
    "asked": {**CALL, "request": "approval-0123456789ab", "expires": None},
    "answered": {
        "request": "approval-0123456789ab",
        "approved": False,
        "reason": "too rude",
        "by": "eve",
    },
    "void": {"requests": ["approval-0123456789ab"], "reason": "too late"},
    "finished": {"checkpoint": "work_1-1"},
}
FIRST = {"failed": "started", "resolved": "started", "answered": "asked", "void": "asked"}
SAID = ("words", "note", "reason")
NAMES = ("session", "tool", "module", "part", "task", "at", "by", "checkpoint")
FIELDS = [(what, name) for what in RECORDS for name in RECORDS[what] if name in (*SAID, *NAMES)]


def purged(manager: CheckpointManager, what: str, parts: Any = None, **changes: Any) -> Any:
    """Return a record of a ledger as it is after a purge, and all the bytes of the ledger."""
    ledger = Ledger(manager.store, "family")
    if what in FIRST:
        first = FIRST[what]
        ledger.append(first, parts={"arguments": encode({})}, **RECORDS[first])
    ledger.append(what, parts=parts, **{**RECORDS[what], **changes})
    manager.purge(SECRET)
    entries = manager.store.backend.read(PREFIX + "family")
    assert not any(SECRET.encode() in entry.data for entry in entries)
    Ledger(manager.store, "family").refresh()
    assert manager.verify().ok
    (_, record) = ledger.stream.read()[-1]
    assert record["instead"] == (2 if what in FIRST else 1)
    return record


@pytest.mark.parametrize(("what", "name"), FIELDS)
def test_a_secret_in_any_member(memory: CheckpointManager, what: str, name: str) -> None:
    value = f"before {SECRET} after"
    found = purged(memory, what, **{name: value})
    assert found[name] == (REDACTED if name in SAID else f"before {REDACTED} after")
    for other, was in RECORDS[what].items():
        if other != name:
            assert found[other] == (REDACTED if other in SAID else was)
    assert found["parts"] == {}


@pytest.mark.parametrize("what", ["started", "asked"])
def test_a_secret_in_the_arguments(manager: CheckpointManager, what: str) -> None:
    found = purged(manager, what, parts={"arguments": encode({"to": SECRET})})
    assert found["words"] == REDACTED  # which may have had a part of it
    assert found["parts"] == {}
    assert {name: found[name] for name in CALL if name != "words"} == {
        name: CALL[name] for name in CALL if name != "words"
    }


@pytest.mark.parametrize("name", ["identity", "also", "digest", "effect"])
def test_names_that_are_not_ours_are_no_exception(memory: CheckpointManager, name: str) -> None:
    assert purged(memory, "started", **{name: f"my {SECRET}"})[name] == f"my {REDACTED}"


def test_a_list_of_names(memory: CheckpointManager) -> None:
    ledger = Ledger(memory.store, "family")
    for name in ("sound", f"my {SECRET}"):
        ledger.append("asked", parts={"arguments": 1}, **{**RECORDS["asked"], "request": name})
    ledger.append("void", requests=["sound", f"my {SECRET}"], reason=None)
    memory.purge(SECRET)
    found = Ledger(memory.store, "family")
    found.refresh()
    assert {item.id: item.status for item in found.state.requests.values()} == {
        "sound": "void",
        f"my {REDACTED}": "void",
    }


def test_hashes_and_ids_are_left_alone(memory: CheckpointManager) -> None:
    """A secret of a few hex digits is in some of them by chance."""
    ledger = Ledger(memory.store, "family")
    ledger.append("started", parts={"arguments": encode({})}, **RECORDS["started"])
    memory.purge("abcdef01")
    assert ledger.stream.read()[0][1]["identity"] == IDENTITY
    assert "instead" not in ledger.stream.read()[0][1]


@pytest.mark.parametrize("secret", ["session", "identity", "started", "irreversible"])
def test_our_own_words_are_no_secret(memory: CheckpointManager, secret: str) -> None:
    ledger = Ledger(memory.store, "family")
    ledger.append("started", parts={"arguments": encode({})}, **RECORDS["started"])
    memory.purge(secret)
    assert [seq for seq, _ in ledger.stream.read()] == [1]


def test_a_secret_that_json_writes_otherwise(memory: CheckpointManager) -> None:
    ledger = Ledger(memory.store, "family")
    secret = 'pass"word\n\\1'
    ledger.append("started", parts={}, **{**RECORDS["started"], "task": f"use {secret}!"})
    memory.purge(secret)
    assert ledger.stream.read()[0][1]["task"] == f"use {REDACTED}!"


# -- what it means -------------------------------------------------------------------------------


def make(effect: str = "irreversible") -> "tuple[Any, list[Any]]":
    done: list[Any] = []

    @tool(effect=effect, key=lambda to, **_: to, approve=True, name="mail")
    def mail(to: str, body: str = "Hello") -> str:
        done.append((to, body))
        return f"to {to}"

    return mail, done


def ask(mail: Any, *args: str) -> str:
    with pytest.raises(Suspended) as caught:
        mail(*args)
    return caught.value.approval_id


def test_what_was_edited_is_not_made_as_it_was_before(manager: CheckpointManager) -> None:
    mail, done = make()
    with Session("work", store=manager) as session:
        name = ask(mail, "ann", "Hey")
        session.approvals.approve(name, edit={"body": f"Use {SECRET}"})
    manager.purge(SECRET)
    with Session("work", store=manager) as session:
        assert session.carry_out() == []
        request = session.approvals.get(name)
        assert (request.status, request.reason) == ("void", "its arguments were purged")
        assert ask(mail, "ann", "Hey") != name
    assert done == []


def test_a_request_whose_arguments_nobody_knows_is_void(manager: CheckpointManager) -> None:
    mail, done = make()
    with Session("work", store=manager) as session:
        name = ask(mail, "ann", f"Use {SECRET}")
        other = ask(mail, "bob")
    manager.purge(SECRET)
    with Session("work", store=manager) as session:
        assert [request.id for request in session.approvals.pending()] == [other]
        with pytest.raises(InvalidInputError, match="was purged"):
            session.approvals.arguments(name)
        assert ask(mail, "ann", f"Use {SECRET}") != name
    assert done == []


def test_what_was_made_is_not_made_again(manager: CheckpointManager) -> None:
    mail, done = make()
    with Session("work", store=manager) as session:
        session.approvals.approve(ask(mail, "ann", SECRET), by=f"Eve {SECRET}")
        mail("ann", SECRET)
    manager.purge(SECRET)
    with Session("work", store=manager) as session:
        (effect,) = session.effects
        assert (effect.status, effect.words, effect.tool) == ("committed", REDACTED, "mail")
        (request,) = ledger_of(session).state.requests.values()
        assert (request.status, request.by) == ("used", f"Eve {REDACTED}")
        mail("ann", SECRET)
    assert len(done) == 1
