"""An agent of the OpenAI Agents SDK: files with the conversation, and an approval on another day.

    pip install 'agent-checkpoint[openai-agents]'
    python examples/openai_agents_session.py [DIRECTORY]

It needs no network: the model is scripted. For a real one, leave `model` out.
"""

import asyncio
import sys
from pathlib import Path

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from agent_checkpoint import Session
from agent_checkpoint.adapters.openai_agents import CheckpointSession

WRITE = function_call("write", {"file": "letter.txt", "text": "Dear all"}, call_id="call_1")
SEND = function_call("send", {"file": "letter.txt"}, call_id="call_2")


def make_agent(work, *replies):
    """Return the agent; its model gives these replies."""

    @function_tool
    def write(file: str, text: str) -> str:
        """Write a file."""
        (work / file).write_text(text)
        return "written"

    @function_tool(needs_approval=True)
    def send(file: str) -> str:
        """Send a file."""
        return f"sent {(work / file).read_text()!r}"

    return Agent(name="writer", model=ScriptedModel(list(replies)), tools=[write, send])


async def ask(directory, work):
    """Run until an approval is needed, and end the process."""
    with Session("letter", workspace=work, store=directory / "store") as session:
        conversation = CheckpointSession(session)
        agent = make_agent(work, [WRITE], [SEND])
        result = await Runner.run(
            agent, "Write to all.", session=conversation, hooks=conversation.hooks
        )
        await conversation.save_state(result.to_state())
        print("waits for:", [item.name for item in result.interruptions])


async def answer(directory, work):
    """Approve in another process, and let the run go on."""
    with Session("letter", workspace=work, store=directory / "store") as session:
        conversation = CheckpointSession(session)
        agent = make_agent(work, [assistant_message("All done.")])
        state = await conversation.load_state(agent)
        state.approve(state.get_interruptions()[0])
        result = await Runner.run(agent, state, session=conversation, hooks=conversation.hooks)
        items = await conversation.get_items()
        print("result:", [item["output"] for item in items if "output" in item][-1])
        print("agent:", result.final_output)
        written = next(row for row in reversed(session.history()) if row["label"] == "write")
        (work / "letter.txt").write_text("changed by hand")
        session.rollback(to=written["id"])
        print("rolled back:", (work / "letter.txt").read_text())


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "letter")
    (place / "work").mkdir(parents=True, exist_ok=True)
    set_tracing_disabled(True)
    asyncio.run(ask(place, place / "work"))
    asyncio.run(answer(place, place / "work"))
