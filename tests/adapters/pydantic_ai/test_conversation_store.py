"""Conversations of Pydantic AI in a store: as its own store in memory, with conflicts and forks."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager

pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim")
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.conversation_store import (
    ConversationConflict,
    InMemoryConversationStore,
)
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    TextPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel
from pydantic_ai.tools import DeferredToolRequests

from agent_checkpoint.adapters.pydantic_ai import CheckpointConversationStore

TestModel.__test__ = False  # type: ignore[attr-defined]


def say(text: str) -> Any:
    return ModelRequest([UserPromptPart(text)])


def answer(text: str) -> Any:
    return ModelResponse([TextPart(text)])


def talk(name: str, *texts: str) -> Conversation:
    return Conversation(conversation_id=name, messages=[say(text) for text in texts])


def texts(conversation: Any) -> Any:
    return None if conversation is None else [m.parts[0].content for m in conversation.messages]


def test_what_a_run_says_is_loaded_again(manager: CheckpointManager) -> None:
    async def work() -> None:
        agent = Agent(TestModel(), tools=[answer_of])
        store = CheckpointConversationStore(manager)
        result = await agent.run("hello", conversation=Conversation(conversation_id="c"))
        assert len(await store.save(result)) == 4
        loaded = await CheckpointConversationStore(manager).load("c")
        assert loaded is not None
        assert loaded.messages == result.all_messages()
        assert loaded.usage == result.usage
        again = await agent.run("more", conversation=loaded)
        assert len(await store.save(again)) == 2
        assert (await store.load("c")) == again.conversation

    asyncio.run(work())


def answer_of(question: str) -> str:
    return f"about {question}"


def test_a_waiting_call_is_answered_in_another_process(tmp_path: Path) -> None:
    made = []

    def send(to: str) -> str:
        made.append(to)
        return "sent"

    def agent() -> Any:
        found = Agent(TestModel(), output_type=[str, DeferredToolRequests])
        found.tool_plain(requires_approval=True)(send)
        return found

    async def ask() -> None:
        result = await agent().run("go", conversation=Conversation(conversation_id="c"))
        await CheckpointConversationStore(tmp_path / "store").save(result)

    async def approve() -> None:
        store = CheckpointConversationStore(tmp_path / "store")
        loaded = await store.load("c")
        assert loaded is not None
        assert loaded.deferred_tool_requests is not None
        answers = loaded.deferred_tool_requests.build_results(approve_all=True)
        result = await agent().run(conversation=loaded, deferred_tool_results=answers)
        await store.save(result)

    asyncio.run(ask())
    assert made == []
    asyncio.run(approve())
    assert len(made) == 1


def test_a_stale_save_conflicts_and_changes_nothing(manager: CheckpointManager) -> None:
    async def work() -> None:
        store = CheckpointConversationStore(manager)
        await store.save(talk("c", "a"))
        mine, theirs = await store.load("c"), await CheckpointConversationStore(manager).load("c")
        assert mine is not None
        assert theirs is not None
        theirs.messages.append(say("theirs"))
        await store.save(theirs)
        mine.messages.append(say("mine"))
        with pytest.raises(ConversationConflict):
            await store.save(mine)
        with pytest.raises(ConversationConflict):
            await store.save(talk("c", "new"))
        assert texts(await store.load("c")) == ["a", "theirs"]

    asyncio.run(work())


def test_the_store_itself_refuses_a_stale_write(manager: CheckpointManager) -> None:
    """Another process may write between the check of the framework and the write."""

    async def work() -> None:
        store = CheckpointConversationStore(manager)
        await store.save(talk("c", "a"))
        record = await store.read_record("c")
        assert record is not None
        for stale in (None, "another"):
            with pytest.raises(ConversationConflict):
                await store.write_record(record, expected_revision=stale)
        with pytest.raises(ConversationConflict):
            await store.delete_record("c", expected_revision="another")
        with pytest.raises(ConversationConflict):
            await store.delete_record("none", expected_revision=record.revision)
        lost = replace(record, conversation_id="d", head_id="no such entry")
        with pytest.raises(ConversationConflict):
            await store.write_record(lost, expected_revision=None)
        assert texts(await store.load("c")) == ["a"]
        assert await store.load("d") is None

    asyncio.run(work())


def test_writers_at_once_lose_nothing(manager: CheckpointManager) -> None:
    async def write(name: str) -> None:
        store = CheckpointConversationStore(manager)
        for number in range(4):
            while True:
                conversation = await store.load("c") or talk("c")
                conversation.messages.append(say(f"{name}{number}"))
                try:
                    await store.save(conversation)
                    break
                except ConversationConflict:
                    continue

    async def work() -> Any:
        await asyncio.gather(write("a"), write("b"))
        return texts(await CheckpointConversationStore(manager).load("c"))

    found = asyncio.run(work())
    assert sorted(found) == sorted(f"{name}{number}" for name in "ab" for number in range(4))


def test_a_fork_outlives_its_origin_and_shares_its_messages(manager: CheckpointManager) -> None:
    async def work() -> None:
        store = CheckpointConversationStore(manager)
        await store.save(talk("c", "a", "b", "c"))
        fork = await store.fork("c", at=2, new_conversation_id="f")
        await store.delete("c")
        store = CheckpointConversationStore(manager)
        assert await store.load("c") is None
        assert texts(await store.load("f")) == ["a", "b"]
        fork.messages.append(say("d"))
        await store.save(fork)
        assert texts(await CheckpointConversationStore(manager).load("f")) == ["a", "b", "d"]

    asyncio.run(work())


def test_deleted_messages_are_gone_after_gc(tmp_path: Path) -> None:
    async def work() -> None:
        store = CheckpointConversationStore(tmp_path / "store")
        await store.save(talk("c", "secret words " * 500))
        await store.delete("c")
        store.manager.gc(ignore_clock=True)
        assert await store.load("c") is None
        await store.save(talk("c", "new"))
        assert texts(await store.load("c")) == ["new"]
        assert len(store.manager.history("conversation/c")) == 2

    asyncio.run(work())


def test_an_entry_is_found_without_its_conversation(manager: CheckpointManager) -> None:
    async def work() -> None:
        store = CheckpointConversationStore(manager)
        await store.save(talk("other", "x"))
        entries = await store.save(talk("c", "a", "b"))
        cold = CheckpointConversationStore(manager)
        assert (await cold.read_entry(entries[0].id)).message.parts[0].content == "a"  # type: ignore[union-attr]
        assert [one.id for one in await cold.read_history(entries[1].id)] == [
            one.id for one in entries
        ]
        with pytest.raises(LookupError):
            await cold.read_entry("none")

    asyncio.run(work())


# -- differential ----------------------------------------------------------------------------------

NAMES = st.sampled_from("ab")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), NAMES, st.integers(0, 2), st.sampled_from([None, "s", "t"])),
        st.tuples(st.just("rewrite"), NAMES, st.integers(0, 3), st.none()),
        st.tuples(st.just("stale"), NAMES, st.integers(0, 3), st.none()),
        st.tuples(st.just("fork"), NAMES, st.integers(0, 3), NAMES),
        st.tuples(st.just("branch"), NAMES, st.integers(0, 3), st.none()),
        st.tuples(st.just("delete"), NAMES, st.none(), st.sampled_from([None, "s"])),
    ),
    max_size=14,
)


async def do(store: Any, old: "dict[str, Any]", number: int, step: Any) -> Any:
    """Make a step; return what can be seen of its result."""
    what, name, amount, other = step
    try:
        if what == "delete":
            return await store.delete(name, scope=other)
        if what == "fork":
            made = await store.fork(name, at=amount, new_conversation_id=f"{other}{amount}")
            return texts(made)
        if what == "branch":
            loaded = await store.load(name)
            revision = "none" if loaded is None else loaded.revision
            return texts(await store.branch(name, at=amount, expected_revision=revision))
        if what == "stale":
            conversation = old.get(name) or talk(name)
        else:
            conversation = await store.load(name) or talk(name)
            old[name] = conversation
        if what == "rewrite":
            conversation.messages = conversation.messages[:amount]
            conversation.new_message_index = None
        added = [answer(f"{number}.{n}") if n else say(f"{number}") for n in range(amount)]
        conversation.messages = [*conversation.messages, *added]
        return len(await store.save(conversation, scope=other))
    except (UserError, ConversationConflict) as error:
        return type(error)


async def seen(store: Any) -> Any:
    records = await store.list_conversations()
    return {
        one.conversation_id: (
            one.scope,
            one.forked_from,
            len(one.branches),
            texts(await store.load(one.conversation_id)),
            texts(await store.load(one.conversation_id, limit=2)),
            [
                [e.message.parts[0].content for e in await store.read_history(tip)]
                for tip in one.branches
            ],
        )
        for one in records
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_it_behaves_as_the_store_of_pydantic_ai(steps: Any) -> None:
    async def work() -> None:
        manager = CheckpointManager()
        theirs, ours = InMemoryConversationStore(), CheckpointConversationStore(manager)
        olds: list[dict[str, Any]] = [{}, {}]
        for number, step in enumerate(steps):
            expected = await do(theirs, olds[0], number, step)
            assert await do(ours, olds[1], number, step) == expected
            assert await seen(ours) == await seen(theirs)
            assert await seen(CheckpointConversationStore(manager)) == await seen(theirs)

    asyncio.run(work())
