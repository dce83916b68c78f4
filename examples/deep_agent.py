"""A Deep Agent whose files travel with its thread. Scripted: it needs no model.

    pip install 'agent-checkpoint[deepagents]'
    python examples/deep_agent.py [DIRECTORY]

The agent writes a file and edits it. It is then set back to before the edit, with its files, and
edits otherwise. Nothing of the first way is lost.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from agent_checkpoint.adapters.deepagents import WorkspaceBackend
from agent_checkpoint.adapters.langgraph import CheckpointSaver

THREAD = {"configurable": {"thread_id": "plan"}}
PLAN = "/notes/plan.md"


class Scripted(GenericFakeChatModel):
    """Gives its replies one after another, whatever the tools are."""

    def bind_tools(self, tools, **options):
        return self


def call(tool, **arguments):
    """A reply of the model that calls a tool."""
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call_{tool}"}])


def build(saver, *replies):
    """An agent with file tools on the workspace."""
    model = Scripted(messages=iter(replies))
    backend = WorkspaceBackend(saver.workspace)
    return create_deep_agent(model, backend=backend, checkpointer=saver)


def main(directory: Path) -> None:
    """Run, look back, go back with the files, and take another way."""
    work = directory / "work"
    work.mkdir(exist_ok=True)
    plan = work / "notes" / "plan.md"
    with CheckpointSaver(directory / "store", workspace=work) as saver:
        agent = build(
            saver,
            call("write_file", file_path=PLAN, content="Paint it red.\n"),
            call("edit_file", file_path=PLAN, old_string="red", new_string="blue"),
            AIMessage("It is blue."),
        )
        done = agent.invoke({"messages": [("user", "Plan.")]}, THREAD, durability="sync")
        print("agent:", done["messages"][-1].content)
        print("file:", plan.read_text().strip())

    with CheckpointSaver(directory / "store", workspace=work) as saver:  # as in another process
        agent = build(
            saver,
            call("edit_file", file_path=PLAN, old_string="red", new_string="green"),
            AIMessage("It is green."),
        )
        before_edit = next(
            state
            for state in agent.get_state_history(THREAD)
            if state.next == ("model",) and state.values["messages"][-1].name == "write_file"
        )
        restored = saver.restore_files(before_edit.config)
        print("file of the checkpoint:", plan.read_text().strip())
        done = agent.invoke(None, before_edit.config, durability="sync")
        print("agent:", done["messages"][-1].content)
        print("file:", plan.read_text().strip())

        saver.workspace.restore(restored.safety)
        print("the first way:", plan.read_text().strip())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as scratch:
            main(Path(scratch))
