"""Assigning to the attributes of a session works, or is refused at once."""

import threading
from inspect import getmembers
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointError,
    ImmutableError,
    InvalidInputError,
    Log,
    Session,
    StateError,
    transcripts,
)


class Chat(Checkpointable):
    def __init__(self) -> None:
        self.log: Log[Any] = Log()


def messages(n: int) -> "list[dict[str, Any]]":
    return [{"role": "user", "content": f"message {i}"} for i in range(n)]


@pytest.mark.parametrize(
    "trimmed",
    [
        lambda log: log[-5:],
        lambda log: iter(log[-5:]),
        lambda log: tuple(log[-5:]),
        lambda log: Log(log[-5:]),
        lambda log: [dict(message) for message in log[-5:]],
    ],
    ids=["slice", "iterator", "tuple", "log", "copies"],
)
def test_assigning_messages_replaces_the_conversation(manager, trimmed) -> None:
    with Session("a", store=manager) as session:
        held = session.messages
        session.messages.extend(messages(9))
        before = session.save()
        session.messages = trimmed(session.messages)
        assert session.messages is held
        assert held == messages(9)[-5:]
        session.messages.append({"role": "assistant", "content": "more"})
        session.save()
    with Session("a", store=manager) as session:
        assert session.messages == [*messages(9)[-5:], {"role": "assistant", "content": "more"}]
        session.rollback(to=before)
        assert session.messages == messages(9)


def test_a_conversation_can_be_compacted_again_and_again(manager) -> None:
    with Session("a", store=manager) as session:
        for turn in range(6):
            session.messages.append({"role": "user", "content": f"turn {turn}"})
            if len(session.messages) > 3:
                session.messages = [{"role": "user", "content": "so far"}, *session.messages[-2:]]
            session.save()
    with Session("a", store=manager) as session:
        assert [one["content"] for one in session.messages] == ["so far", "turn 4", "turn 5"]


def test_a_repaired_conversation_can_be_assigned(memory) -> None:
    call = {"type": "tool_use", "id": "t1", "name": "ls", "input": {}}
    with Session("a", store=memory) as session:
        session.messages.append({"role": "user", "content": "list"})
        session.messages.append({"role": "assistant", "content": [call]})
        session.messages = transcripts.repair(session.messages, provider="anthropic")
        assert transcripts.check(session.messages, provider="anthropic") == []
        assert session.messages[2]["content"][0]["tool_use_id"] == "t1"


@pytest.mark.parametrize("value", ["hello", b"hello", {"role": "user"}, None, 5, object()])
def test_messages_that_cannot_be_are_refused(memory, value) -> None:
    with Session("a", store=memory) as session:
        session.messages.extend(messages(2))
        with pytest.raises(InvalidInputError, match="a list of items, not"):
            session.messages = value
        assert session.messages == messages(2)
        session.save()


def test_a_message_that_cannot_be_copied_is_refused(memory) -> None:
    with Session("a", store=memory) as session:
        session.messages.extend(messages(2))
        with pytest.raises(StateError, match=r"\[1\]\.content"):
            session.messages = [{"role": "user"}, {"content": threading.Lock()}]
        assert session.messages == messages(2)


READ_ONLY = [
    name
    for name, value in getmembers(Session)
    if isinstance(value, property) and value.fset is None
]


def test_what_is_read_only() -> None:
    assert {"key", "manager", "calls", "tasks", "workspace", "head", "resumed"} <= {*READ_ONLY}
    assert not {"agent", "every", "messages"} & {*READ_ONLY}


@pytest.mark.parametrize("name", READ_ONLY)
def test_what_a_session_reports_cannot_be_assigned(memory, place, name) -> None:
    with Session("a", store=memory, workspace=place) as session:
        before = getattr(session, name)
        with pytest.raises(ImmutableError, match=rf"session\.{name} cannot be assigned\. \w+"):
            setattr(session, name, [])
        with pytest.raises(AttributeError):
            setattr(session, name, before)
        now = getattr(session, name)
        assert now is before or name in ("approvals", "effects", "head", "notices")
        session.save()


def test_an_agent_that_cannot_be_saved_is_refused(memory) -> None:
    with Session("a", store=memory, agent=Chat()) as session:
        agent = session.agent
        for value in (5, Chat):
            with pytest.raises(InvalidInputError, match="agent"):
                session.agent = value
        assert session.agent is agent
        session.agent = other = Chat()
        other.log.append("mine")
        session.save()
    with Session("a", store=memory, agent=Chat()) as session:
        assert session.agent.log == ["mine"]


def test_a_time_to_save_that_does_not_exist_is_refused(memory) -> None:
    with Session("a", store=memory) as session:
        with pytest.raises(InvalidInputError, match="every must be"):
            session.every = "tols"
        assert session.every == "tool"
        session.every = 3
        assert session.every == 3


def test_a_fork_has_its_own_conversation(memory) -> None:
    with Session("a", store=memory) as session:
        session.messages.extend(messages(3))
        with session.fork("b") as branch:
            branch.messages = branch.messages[:1]
            assert len(session.messages) == 3
        session.adopt(branch)
        assert session.messages == messages(1)


# -- the log of an agent --------------------------------------------------------------------------


def test_an_agent_may_assign_a_list_to_its_log(manager) -> None:
    agent = Chat()
    with Session("a", store=manager, agent=agent) as session:
        agent.log.extend(messages(4))
        first = session.save()
        agent.log = agent.log[-2:]  # a list from now on
        assert type(agent.log) is list
        second = session.save()
        session.rollback(to=first)
        assert agent.log == messages(4)
        session.rollback(to=second, effects="warn")
        assert agent.log == messages(4)[-2:]
    fresh = Chat()
    with Session("a", store=manager, agent=fresh):
        assert type(fresh.log) is Log
        assert fresh.log == messages(4)[-2:]


def test_every_refusal_is_of_this_package() -> None:
    assert issubclass(ImmutableError, CheckpointError)
