"""Real graphs: step by step the same as with LangGraph's own saver in memory."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from agent_checkpoint.adapters.langgraph import CheckpointSaver

THREAD: Any = {"configurable": {"thread_id": "t"}}


class GraphState(TypedDict, total=False):
    """What the nodes share."""

    messages: Annotated["list[AnyMessage]", add_messages]
    log: Annotated["list[str]", operator.add]
    answer: str
    count: int


def child_graph():
    def ask(state):
        return {"log": ["child asks"], "answer": interrupt({"question": len(state["log"])})}

    builder = StateGraph(GraphState)
    builder.add_node("before", lambda state: {"log": ["child before"]})
    builder.add_node("ask", ask)
    builder.add_edge(START, "before")
    builder.add_edge("before", "ask")
    return builder.compile(checkpointer=True)


def parent_graph(saver):
    """Parallel nodes, Send, Command, a subgraph with an interrupt, messages with ids."""

    def fan_out(state):
        return [Send("worker", {"count": number}) for number in range(3)]

    def route(state):
        goto = "again" if state.get("count", 0) < 2 else "last"
        return Command(update={"log": [f"route {goto}"]}, goto=goto)

    builder = StateGraph(GraphState)
    builder.add_node("left", lambda state: {"log": ["left"], "messages": [AIMessage("l", id="l")]})
    builder.add_node("right", lambda state: {"log": ["right"]})
    builder.add_node("worker", lambda state: {"log": [f"worker {state['count']}"]})
    builder.add_node("child", child_graph())
    builder.add_node("route", route, destinations=("again", "last"))
    builder.add_node(
        "again",
        lambda state: {"count": state.get("count", 0) + 1, "messages": [AIMessage("a", id="a")]},
    )
    builder.add_node("last", lambda state: {"log": [f"last {state.get('answer')}"]})
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_conditional_edges("left", fan_out, ["worker"])
    builder.add_edge("worker", "child")
    builder.add_edge("child", "route")
    builder.add_edge("again", "route")
    builder.add_edge("last", END)
    return builder.compile(checkpointer=saver)


class Names:
    """Replaces ids and times, which differ from run to run, by the order of their appearance."""

    def __init__(self):
        self.known = {}

    def of(self, text):
        return self.known.setdefault(text, f"#{len(self.known)}")


def picture(state, names):
    """All that a snapshot says, without ids and times."""

    def where(config):
        conf = (config or {}).get("configurable", {})
        namespace = conf.get("checkpoint_ns", "").split(":")[0]
        return config and (conf["thread_id"], namespace, names.of(conf.get("checkpoint_id", "")))

    return {
        "values": state.values,
        "next": state.next,
        "config": where(state.config),
        "parent": where(state.parent_config),
        "metadata": {k: v for k, v in (state.metadata or {}).items() if k in ("source", "step")},
        "tasks": [
            (
                task.name,
                task.path[:2],
                task.error,
                [item.value for item in task.interrupts],
                task.result,
                picture(task.state, names) if hasattr(task.state, "next") else None,
            )
            for task in state.tasks
        ],
        "interrupts": [item.value for item in state.interrupts],
    }


def story(graph, durability):
    """Run, interrupt, resume, travel in time, fork and update; yield all that can be seen."""
    names = Names()

    def history():
        return [picture(state, names) for state in graph.get_state_history(THREAD)]

    def states():
        return list(graph.get_state_history(THREAD))

    def before(node):
        found = states()  # the mode `exit` saves only the end of a run
        return next((state for state in found if node in state.next), found[-1])

    start = {"messages": [HumanMessage("go", id="h")], "log": ["start"], "count": 0}
    yield list(graph.stream(start, THREAD, stream_mode="values", durability=durability))
    yield picture(graph.get_state(THREAD, subgraphs=True), names)
    yield history()
    resume = Command(resume="blue")
    yield list(graph.stream(resume, THREAD, stream_mode="updates", durability=durability))
    yield history()
    # Time travel: again from a checkpoint in the middle, without and with a change.
    middle = before("route")
    yield graph.invoke(None, middle.config, durability=durability)
    yield history()
    forked = graph.update_state(middle.config, {"log": ["forked"], "count": 5}, as_node="child")
    yield picture(graph.get_state(forked), names)
    yield graph.invoke(None, forked, durability=durability)
    yield history()
    asked = before("child")
    graph.invoke(None, asked.config, durability=durability)
    yield picture(graph.get_state(THREAD), names)
    yield graph.invoke(Command(resume="red"), THREAD, durability=durability)
    yield history()
    second = {"messages": [HumanMessage("more", id="h2")], "log": ["second"]}
    yield graph.invoke(second, THREAD, durability=durability, interrupt_before=["route"])
    yield history()
    graph.update_state(THREAD, {"messages": [AIMessage("edited", id="l")]}, as_node="right")
    yield picture(graph.get_state(THREAD), names)
    yield history()


def told(story_of):
    return [_plain(item) for item in story_of]


def _plain(item):
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items() if key != "__interrupt__"}
    return [_plain(value) for value in item] if isinstance(item, (list, tuple)) else item


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_story_is_the_same_as_in_memory(saver, durability):
    expected = told(story(parent_graph(InMemorySaver()), durability))
    found = told(story(parent_graph(saver), durability))
    for step, (ours, theirs) in enumerate(zip(found, expected)):
        assert ours == theirs, f"step {step}"
    assert len(found) == len(expected) == 17


async def async_story(graph):
    names = Names()
    start = {"messages": [HumanMessage("go", id="h")], "log": ["start"], "count": 0}
    seen = [[item async for item in graph.astream(start, THREAD, stream_mode="values")]]
    seen.append(picture(await graph.aget_state(THREAD), names))
    seen.append(await graph.ainvoke(Command(resume="blue"), THREAD))
    seen.append([picture(state, names) async for state in graph.aget_state_history(THREAD)])
    middle = [state async for state in graph.aget_state_history(THREAD) if state.next == ("route",)]
    forked = await graph.aupdate_state(middle[0].config, {"log": ["f"]}, as_node="child")
    seen.append(await graph.ainvoke(None, forked))
    seen.append([picture(state, names) async for state in graph.aget_state_history(THREAD)])
    return told(seen)


def test_an_asynchronous_story_is_the_same_as_in_memory(saver):
    expected = asyncio.run(async_story(parent_graph(InMemorySaver())))
    assert asyncio.run(async_story(parent_graph(saver))) == expected


def test_a_run_goes_on_in_another_process_where_it_stopped(tmp_path):
    """A node that finished is not repeated: its writes are pending."""
    ran = []

    def graph(saver, fails):
        def flaky(state):
            ran.append("flaky")
            if fails:
                raise RuntimeError("killed")
            return {"log": ["flaky"]}

        def steady(state):
            ran.append("steady")
            return {"log": ["steady"]}

        builder = StateGraph(GraphState)
        builder.add_node("steady", steady)
        builder.add_node("flaky", flaky)
        builder.add_edge(START, "steady")
        builder.add_edge(START, "flaky")
        return builder.compile(checkpointer=saver)

    with CheckpointSaver(tmp_path / "s") as saver, pytest.raises(RuntimeError, match="killed"):
        graph(saver, True).invoke({"log": []}, THREAD)
    with CheckpointSaver(tmp_path / "s") as saver:
        assert sorted(graph(saver, False).invoke(None, THREAD)["log"]) == ["flaky", "steady"]
    assert sorted(ran) == ["flaky", "flaky", "steady"]
