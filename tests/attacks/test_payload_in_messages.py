"""Texts of errors name calls, types and paths, and quote no argument, result or state."""

import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointError,
    CheckpointManager,
    RollbackRefusedError,
    Session,
    Suspended,
    tool,
)

SECRET = "hunter2-in-an-argument"


class Fails(Exception):
    """What a user's function raises, with what it was given in its text."""


def fail(**given: Any) -> Any:
    raise Fails(given)


@tool(effect="irreversible", key=lambda to, **_: to)
def login(to: str, password: str) -> str:
    return password


@tool(effect="irreversible", key=lambda to, **_: to, verify=fail)
def crash(to: str, password: str) -> str:
    raise Fails(password)


@tool(effect="irreversible", key=lambda to, **_: to)
def lost(to: str, password: str) -> str:
    raise KeyboardInterrupt


@tool(effect="reversible", key=lambda to, **_: to, undo=fail)
def charge(to: str, password: str) -> str:
    return password


@tool(effect="irreversible", key=lambda to, **_: to, approve=True)
def ask(to: str, password: str) -> str:
    return password


@tool(effect="irreversible", key=lambda to, **_: to, approve=lambda question: False)
def never(to: str, password: str) -> str:
    return password


@tool(effect="irreversible", key=fail)
def keyless(to: str, password: str) -> str:
    return password


@tool(effect="irreversible", key=lambda to, **_: to)
def odd(to: str, password: str) -> Any:
    return {"password": password, "it": threading.Lock()}


class Vault(Checkpointable):
    def __init__(self) -> None:
        self.value = SECRET

    def __setattr__(self, name: str, value: Any) -> None:
        if value == f"{SECRET} of old":
            raise Fails(value)
        super().__setattr__(name, value)


@pytest.fixture
def manager() -> "Iterator[CheckpointManager]":
    with CheckpointManager() as found:
        yield found


def other_arguments(session: Session) -> None:
    login("ann", SECRET)
    login("ann", "another one")


def unknown(session: Session) -> None:
    with pytest.raises(KeyboardInterrupt):
        lost("ann", SECRET)
    lost("ann", SECRET)


def unverified(session: Session) -> None:
    with pytest.raises(Fails):
        crash("ann", SECRET)
    crash("ann", SECRET)


def refused(session: Session) -> None:
    start = session.save()
    login("ann", SECRET)
    session.rollback(to=start)


def not_compensated(session: Session) -> None:
    start = session.save()
    charge("ann", SECRET)
    session.rollback(to=start, effects="compensate")


def in_a_fork(session: Session) -> None:
    with session.fork("try") as branch, branch:
        login("ann", SECRET)


def not_kept(session: Session) -> None:
    odd("ann", SECRET)
    odd("ann", SECRET)


def denied(session: Session) -> None:
    with pytest.raises(Suspended) as waiting:
        ask("ann", SECRET)
    session.approvals.deny(waiting.value.approval_id)
    ask("ann", SECRET)


CASES: "list[Callable[[Session], object]]" = [
    other_arguments,
    unknown,
    unverified,
    refused,
    not_compensated,
    in_a_fork,
    not_kept,
    denied,
    lambda session: never("ann", SECRET),
    lambda session: keyless("ann", SECRET),
    lambda session: ask("ann", SECRET),
]


@pytest.mark.parametrize("case", CASES)
def test_no_argument_is_in_the_text_of_an_error(
    manager: CheckpointManager, case: "Callable[[Session], object]"
) -> None:
    with Session("job", store=manager) as session:
        with pytest.raises((CheckpointError, Suspended)) as caught:
            case(session)
        for text in (
            str(caught.value),
            repr(caught.value),
            *getattr(caught.value, "__notes__", ()),
        ):
            assert SECRET not in text
        for effect in session.effects:
            assert SECRET not in repr(effect)
        assert all(SECRET not in repr(request) for request in session.approvals.pending())


def test_an_old_effect_is_not_quoted_by_a_later_process(manager: CheckpointManager) -> None:
    with Session("job", store=manager):
        login("ann", SECRET)
    with Session("job", store=manager), pytest.raises(CheckpointError) as caught:
        login("ann", "another one")
    text = "".join(traceback.format_exception_only(type(caught.value), caught.value))
    assert SECRET not in text
    assert "login" in text


def test_the_values_are_in_the_report(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        with pytest.raises(RollbackRefusedError) as caught:
            refused(session)
        assert SECRET in str(caught.value.report)


def test_what_waits_can_be_pickled(manager: CheckpointManager) -> None:
    with Session("job", store=manager), pytest.raises(Suspended) as waiting:
        ask("ann", SECRET)
    again = pickle.loads(pickle.dumps(waiting.value))
    assert (again.approval_id, str(again)) == (waiting.value.approval_id, str(waiting.value))


def test_a_state_that_is_refused_is_not_quoted(manager: CheckpointManager) -> None:
    state = {**Vault().state_dict(), "value": f"{SECRET} of old"}
    with pytest.raises(CheckpointError) as caught:
        Vault().load_state_dict(state)
    assert SECRET not in str(caught.value)
    assert "value" in str(caught.value)
    assert "Fails" in str(caught.value)
