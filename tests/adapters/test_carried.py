"""What the adapters keep, in another store by an archive: it is the same there."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Session


def carried(source: CheckpointManager, place: Path) -> CheckpointManager:
    target = CheckpointManager()
    for number, key in enumerate(source.list_keys()):
        source.export_archive(place / f"{number}.ckpt", key)
        assert target.import_archive(place / f"{number}.ckpt") == key
    return target


def test_a_transcript_of_the_claude_agent_sdk(tmp_path: Path) -> None:
    pytest.importorskip("claude_agent_sdk")
    from agent_checkpoint.adapters.claude_agent_sdk import SessionStore

    key: Any = {"project_key": "p", "session_id": "s"}
    sub: Any = {**key, "subpath": "subagents/agent-1"}
    source = CheckpointManager()

    async def work() -> None:
        here = SessionStore(source)
        for at in (key, sub):
            await here.append(at, [{"type": "x", "uuid": "1"}])
            await here.append(at, [{"type": "x", "uuid": "2"}])
        there = SessionStore(carried(source, tmp_path))
        for one in (here, there):
            await one.append(key, [{"type": "x", "uuid": "2"}, {"type": "x", "uuid": "3"}])
        assert await there.list_subkeys(key) == await here.list_subkeys(key)
        for at in (key, sub):
            assert await there.load(at) == await here.load(at)

    asyncio.run(work())


def test_a_session_of_the_openai_agents_sdk(tmp_path: Path) -> None:
    pytest.importorskip("agents")
    from agent_checkpoint.adapters.openai_agents import CheckpointSession

    source = CheckpointManager()
    items: Any = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    with Session("s", store=source) as session:
        asyncio.run(CheckpointSession(session).add_items(items))
    with Session("s", store=carried(source, tmp_path)) as session:
        there = CheckpointSession(session)
        assert asyncio.run(there.get_items()) == items
        asyncio.run(there.add_items(items))
        assert asyncio.run(there.get_items()) == items * 2


def test_a_conversation_of_pydantic_ai(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai")
    from pydantic_ai import Agent
    from pydantic_ai.conversation import Conversation
    from pydantic_ai.models.test import TestModel

    from agent_checkpoint.adapters.pydantic_ai import CheckpointConversationStore

    source = CheckpointManager()

    async def work() -> None:
        agent = Agent(TestModel())
        result = await agent.run("hello", conversation=Conversation(conversation_id="c"))
        await CheckpointConversationStore(source).save(result)
        there = CheckpointConversationStore(carried(source, tmp_path))
        loaded = await there.load("c")
        assert loaded is not None
        assert loaded.messages == result.all_messages()
        await there.save(await agent.run("more", conversation=loaded))
        again = await there.load("c")
        assert again is not None
        assert len(again.messages) == 4

    asyncio.run(work())
