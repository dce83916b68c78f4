"""An agent of the Claude Agent SDK whose files and conversation are rewound and forked together.

    pip install 'agent-checkpoint[claude-agent-sdk]'
    python examples/claude_sdk_session.py [DIRECTORY]

It needs no network: the CLI of the SDK talks to a scripted model on this computer. For a real one,
leave `env` out.
"""

import asyncio
import sys
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from offline.scripted_anthropic import serve

from agent_checkpoint import Session
from agent_checkpoint.adapters.claude_agent_sdk import session_options

TURNS = [
    [("Bash", {"command": "echo a plan > plan.txt"})],
    [("Bash", {"command": "echo a mistake > plan.txt; echo more > notes.txt"})],
]


async def ask(session, model, prompt):
    """Run the agent in a session; return its last words."""
    options = ClaudeAgentOptions(
        permission_mode="bypassPermissions",
        setting_sources=[],
        env=model.environment,
        **session_options(session),
    )
    messages = [message async for message in query(prompt=prompt, options=options)]
    return next(one.result for one in messages if isinstance(one, ResultMessage))


def show(what, session):
    """Print the files of a session."""
    files = sorted(session.workspace.path.iterdir())
    print(f"{what}: { ({file.name: file.read_text().strip() for file in files}) }")


def run(directory):
    """Run, rewind, fork."""
    work = directory / "work"
    work.mkdir(parents=True, exist_ok=True)
    model = serve(TURNS)
    with Session("plan", workspace=work, store=directory / "store") as session:
        print("agent:", asyncio.run(ask(session, model, "Make a plan.")))
        show("after the run", session)
        first = [row["id"] for row in session.history() if row["label"] == "Bash"][-1]
        session.rollback(to=first)
        show("rewound", session)
        with session.fork("try", at=first) as branch:
            print("fork:", asyncio.run(ask(branch, model, "Go on.")))
            show("in the fork", branch)
        show("in the session", session)
    model.shutdown()
    model.server_close()


if __name__ == "__main__":
    run(Path(sys.argv[1] if len(sys.argv) > 1 else "plan"))
