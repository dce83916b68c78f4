"""An agent of Pydantic AI that is stopped in the middle of a turn, and goes on in another process.

    pip install 'agent-checkpoint[pydantic-ai]'
    python examples/pydantic_ai_session.py [DIRECTORY]

It needs no network: the model is a function. For a real one, pass its name to `Agent`.
"""

import asyncio
import sys
from pathlib import Path

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from agent_checkpoint import Session
from agent_checkpoint.adapters.pydantic_ai import Checkpoints, message_history


def reply(messages, info):
    """Answer as a model would: write two files, then a sentence."""
    if any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts):
        return ModelResponse([TextPart("All done.")])
    files = ("a.txt", "b.txt")
    return ModelResponse([ToolCallPart("write", {"file": file}, f"call_{file}") for file in files])


async def run(directory, stop_at=None):
    """Run the agent, or go on where it was."""
    work = directory / "work"
    work.mkdir(parents=True, exist_ok=True)
    agent = Agent(FunctionModel(reply))

    @agent.tool(sequential=True)
    async def write(ctx: RunContext, file: str) -> str:
        """Write a file of the workspace."""
        if file == stop_at:
            raise KeyboardInterrupt
        await ctx.workspace.write_text(file, "written\n")
        print("wrote", file)
        return "written"

    with Session("files", workspace=work, store=directory / "store") as session:
        before = message_history(session)
        print("messages:", len(before))
        prompt = None if before else "Write two files."
        result = await agent.run(
            prompt, message_history=before, capabilities=[Checkpoints(session)]
        )
        print("agent:", result.output)


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "files")
    try:
        asyncio.run(run(place, stop_at="b.txt"))
    except KeyboardInterrupt:
        print("interrupted")
    asyncio.run(run(place))
