"""An agent in LangGraph that is killed at a tool boundary, and goes on when it is started again.

    python -m tests.adapters.langgraph.killed_program DIRECTORY memory|sqlite|ours

With `ours` the checkpoints and the files are in a store, and irreversible tools have a ledger.
"""

import os
import signal
import sqlite3
import sys
from contextlib import nullcontext
from pathlib import Path

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from agent_checkpoint import Session, tool
from agent_checkpoint.adapters.langgraph import CheckpointSaver

TURNS = [
    [("append_line", "one"), ("announce", "first")],
    [("announce", "second")],
    [("append_line", "two")],
]
CALLS = [call for turn in TURNS for call in turn]
THREAD = {"configurable": {"thread_id": "t"}}


class Tools:
    """The tools. What they do is logged, and the process dies at the boundary that is given."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.left = int(os.environ.get("KILL_AT", "0"))

    def boundary(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _act(self, name: str, place: str, text: str) -> str:
        self.boundary()
        for log, line in (("calls", f"{name} {text}"), (place, text)):
            with (self.directory / log).open("a") as lines:
                lines.write(f"{line}\n")
        self.boundary()
        return f"{name} done"

    def append_line(self, text: str) -> str:
        return self._act("append_line", "work/file.txt", text)

    def announce(self, text: str) -> str:
        return self._act("announce", "outbox", text)

    def find_announcement(self, text: str) -> "str | None":
        outbox = self.directory / "outbox"
        is_there = outbox.exists() and text in outbox.read_text().split()
        return "announce done" if is_there else None


def agent(tools: Tools, with_ledger: bool):
    """A scripted model, and a node for its tool calls."""
    announce, append_line = tools.announce, tools.append_line
    if with_ledger:
        announce = tool(
            effect="irreversible",
            key=lambda text, **_: text,
            verify=lambda text, **_: tools.find_announcement(text),
            name="announce",
        )(lambda text: tools.announce(text))

    def model(state):
        done = sum(isinstance(message, ToolMessage) for message in state["messages"])
        with (tools.directory / "replies").open("a") as replies:
            replies.write(f"{done}\n")
        for turn in TURNS:
            if done < len(turn):
                calls = [{"name": n, "args": {"text": t}, "id": t} for n, t in turn]
                return {"messages": [AIMessage("", tool_calls=calls)]}
            done -= len(turn)
        return {"messages": [AIMessage("All done.")]}

    def act(state):
        functions = {"announce": announce, "append_line": append_line}
        return {
            "messages": [
                ToolMessage(functions[call["name"]](call["args"]["text"]), tool_call_id=call["id"])
                for call in state["messages"][-1].tool_calls
            ]
        }

    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("act", act)
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda state: "act" if state["messages"][-1].tool_calls else END
    )
    builder.add_edge("act", "model")
    return builder


def main(directory: Path, kind: str) -> None:
    (directory / "work").mkdir(exist_ok=True)
    ledger = nullcontext()
    if kind == "ours":
        saver = CheckpointSaver(directory / "store", workspace=directory / "work")
        ledger = Session("effects", store=saver.manager)
    elif kind == "sqlite":
        path = str(directory / "checkpoints.sqlite")
        saver = SqliteSaver(sqlite3.connect(path, check_same_thread=False))
    else:
        saver = InMemorySaver()
    with ledger:
        graph = agent(Tools(directory), kind == "ours").compile(checkpointer=saver)
        started = graph.get_state(THREAD)
        if kind == "ours" and started.config["configurable"].get("checkpoint_id"):
            saver.restore_files(started.config)
        given = None if started.next else {"messages": [("user", "go")]}
        answer = graph.invoke(given, THREAD, durability="sync")["messages"][-1].content
    (directory / "answer").write_text(answer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
