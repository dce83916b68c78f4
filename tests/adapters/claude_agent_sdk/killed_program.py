"""The agent of tests/adapters/killing.py with the Claude Agent SDK and its real CLI."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk

from agent_checkpoint.adapters.claude_agent_sdk import session_options
from examples.offline.scripted_anthropic import LAST, ScriptedAnthropic, results, serve
from tests.adapters.killing import TURNS, Tools, asked

DIRECTORY = Path(sys.argv[1])
SESSION = "11111111-1111-4111-8111-111111111111"


class LoggedModel(ScriptedAnthropic):
    def reply(self, body: Any) -> Any:
        if body.get("tools"):
            asked(DIRECTORY, len(results(body["messages"])))
        return super().reply(body)


def server_of(append_line: Any, announce: Any) -> Any:
    def text(said: str) -> Any:
        return {"content": [{"type": "text", "text": said}]}

    @sdk.tool("append_line", "Append a line to a file.", {"file": str, "line": str})
    async def append(given: Any) -> Any:
        return text(append_line(**given))

    @sdk.tool("announce", "Announce a message to everybody.", {"text": str})
    async def announced(given: Any) -> Any:
        return text(announce(**given))

    return sdk.create_sdk_mcp_server("lines", tools=[append, announced])


async def run(server: Any, **options: Any) -> None:
    turns = [[(f"mcp__lines__{name}", given) for name, given in turn] for turn in TURNS]
    model = serve(turns, LoggedModel)
    given = sdk.ClaudeAgentOptions(
        permission_mode="bypassPermissions",
        setting_sources=[],
        mcp_servers={"lines": server},
        env=model.environment,
        **options,
    )
    async for message in sdk.query(prompt="Write and announce.", options=given):
        if isinstance(message, sdk.ResultMessage):
            print(message.result)
    assert LAST


async def own(tools: Tools) -> None:
    """The transcripts that the CLI keeps itself."""
    found = list((DIRECTORY / "home").rglob(f"{SESSION}.jsonl"))
    which = {"resume": SESSION} if found else {"session_id": SESSION}
    await run(server_of(tools.append_line, tools.announce), cwd=str(tools.work), **which)


async def ours(tools: Tools) -> None:
    with tools.session() as session:
        server = server_of(tools.append_line, tools.announce_once())
        await run(server, **session_options(session))


(DIRECTORY / "home").mkdir(exist_ok=True)
os.environ["HOME"] = str(DIRECTORY / "home")
asyncio.run({"own": own, "ours": ours}[sys.argv[2]](Tools(DIRECTORY)))
