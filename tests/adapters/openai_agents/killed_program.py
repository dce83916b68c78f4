"""The agent of tests/adapters/killing.py with the OpenAI Agents SDK."""

import asyncio
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from agents import Agent, Runner, SQLiteSession, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from agent_checkpoint.adapters.openai_agents import CheckpointSession
from tests.adapters.killing import LAST, Tools, asked

DIRECTORY = Path(sys.argv[1])
TASK = "Write and announce."


def reply(call: Any) -> Any:
    items = call.input if isinstance(call.input, list) else []
    done = [item for item in items if item.get("type") == "function_call_output"]
    calls = asked(DIRECTORY, len(done))
    made = [function_call(name, given, call_id=f"call_{uuid4().hex}") for name, given in calls]
    return made or [assistant_message(LAST)]


def make_agent(append_line: Any, announce: Any) -> Any:
    model = ScriptedModel([ModelStep.respond(reply) for _ in range(20)])
    return Agent(
        name="writer", model=model, tools=[function_tool(append_line), function_tool(announce)]
    )


async def own(tools: Tools) -> None:
    session = SQLiteSession("lines", DIRECTORY / "own.db")
    agent = make_agent(tools.append_line, tools.announce)
    task: Any = [] if await session.get_items() else TASK
    print((await Runner.run(agent, task, session=session)).final_output)


async def ours(tools: Tools) -> None:
    agent = make_agent(tools.append_line, tools.announce_once())
    with tools.session() as session:
        conversation = CheckpointSession(session)
        await conversation.finish_turn(agent)
        task: Any = [] if await conversation.get_items() else TASK
        result = await Runner.run(agent, task, session=conversation, hooks=conversation.hooks)
        print(result.final_output)


set_tracing_disabled(True)
asyncio.run({"own": own, "ours": ours}[sys.argv[2]](Tools(DIRECTORY)))
