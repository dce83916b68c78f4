"""The agent of tests/adapters/killing.py with Pydantic AI."""

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import FunctionModel

from agent_checkpoint.adapters.pydantic_ai import Checkpoints, message_history
from tests.adapters.killing import LAST, Tools, asked

DIRECTORY = Path(sys.argv[1])
TASK = "Write and announce."


def reply(messages: Any, info: Any) -> ModelResponse:
    parts = [part for message in messages for part in message.parts]
    calls = asked(DIRECTORY, len([part for part in parts if isinstance(part, ToolReturnPart)]))
    made = [ToolCallPart(name, given, f"call_{uuid4().hex}") for name, given in calls]
    return ModelResponse(made or [TextPart(LAST)])


def make_agent(append_line: Any, announce: Any) -> Agent[None, str]:
    return Agent(FunctionModel(reply), tools=[append_line, announce])


async def own(tools: Tools) -> None:
    """The documented way: the messages of a run are written to a file when it ends."""
    saved = DIRECTORY / "own.json"
    agent = make_agent(tools.append_line, tools.announce)
    before = ModelMessagesTypeAdapter.validate_json(saved.read_bytes()) if saved.exists() else []
    result = await agent.run(None if before else TASK, message_history=before)
    saved.write_bytes(result.all_messages_json())
    print(result.output)


async def ours(tools: Tools) -> None:
    agent = make_agent(tools.append_line, tools.announce_once())
    with tools.session() as session:
        before = message_history(session)
        result = await agent.run(
            None if before else TASK,
            message_history=before,
            capabilities=[Checkpoints(session)],
        )
        print(result.output)


asyncio.run({"own": own, "ours": ours}[sys.argv[2]](Tools(DIRECTORY)))
