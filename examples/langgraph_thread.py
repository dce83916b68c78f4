"""A LangGraph agent whose files travel with its thread. Scripted: it needs no model.

    pip install 'agent-checkpoint[langgraph]' langgraph
    python examples/langgraph_thread.py [DIRECTORY]

The agent writes a draft in three steps and asks for approval. It is then set back by one step, with
its files, and takes another way. Nothing of the first way is lost.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from agent_checkpoint.adapters.langgraph import CheckpointSaver

THREAD = {"configurable": {"thread_id": "draft"}}


def build(draft: Path) -> StateGraph:
    """Three nodes that add a line each, and one that asks."""

    def writes(line):
        def node(state):
            with draft.open("a") as lines:
                lines.write(f"{line}\n")
            return {"messages": [("ai", f"wrote: {line}")]}

        return node

    def ask(state):
        answer = interrupt(f"Publish {len(draft.read_text().splitlines())} lines?")
        return {"messages": [("ai", f"published: {answer}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("title", writes("A title"))
    builder.add_node("body", writes("A body"))
    builder.add_node("end", writes("An end"))
    builder.add_node("ask", ask)
    builder.add_edge(START, "title")
    builder.add_edge("title", "body")
    builder.add_edge("body", "end")
    builder.add_edge("end", "ask")
    return builder


def main(directory: Path) -> None:
    """Run, interrupt, look back, go back with the files, and take another way."""
    work = directory / "work"
    work.mkdir(exist_ok=True)
    draft = work / "draft.txt"
    with CheckpointSaver(directory / "store", workspace=work) as saver:
        graph = build(draft).compile(checkpointer=saver)
        found = graph.invoke({"messages": [("user", "go")]}, THREAD, durability="sync")
        print("asked:", found["__interrupt__"][0].value)

    with CheckpointSaver(directory / "store", workspace=work) as saver:  # as in another process
        graph = build(draft).compile(checkpointer=saver)
        history = list(graph.get_state_history(THREAD))
        print("history:", [state.next for state in history])
        before_end = next(state for state in history if state.next == ("end",))
        print("files now:", draft.read_text().split("\n"))

        config = graph.update_state(before_end.config, {"messages": [("user", "shorter")]}, "end")
        plan = saver.restore_files(before_end.config)
        print("files of the checkpoint:", draft.read_text().split("\n"))
        print("asked:", graph.invoke(None, config, durability="sync")["__interrupt__"][0].value)
        done = graph.invoke(Command(resume="yes"), THREAD, durability="sync")
        print(done["messages"][-1].content)

        saver.workspace.restore(plan.safety)
        print("the first way:", draft.read_text().split("\n"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as scratch:
            main(Path(scratch))
