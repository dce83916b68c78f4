"""The agent loop of sub-agents: `run_tools`, `model`, the provider, the repaired conversation."""

import contextvars
from typing import Any

from agent_checkpoint import CheckpointManager, Session, tool
from tests.unit.session.stores import Killed, killed

_sent: "list[str]" = []


@tool
def double(n: int) -> int:
    return 2 * n


@tool(effect="irreversible")
def send(to: str) -> int:
    _sent.append(to)
    return len(_sent)


def asking(name: str, call_id: str = "t1", **arguments: Any) -> "dict[str, Any]":
    use = {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
    return {"role": "assistant", "content": [use]}


def reply(**request: Any) -> "dict[str, Any]":
    return {"model": "m", "usage": {"input_tokens": 3, "output_tokens": 2}}


def test_a_child_runs_the_calls_of_its_own_messages(manager: CheckpointManager) -> None:
    _sent.clear()
    with Session("job", store=manager, provider="anthropic") as session:
        session.messages.append({"role": "user", "content": "parent"})
        with session.subagent("a") as child:
            child.messages.append({"role": "user", "content": "go"})
            child.model(reply, model="m", messages=child.messages)
            child.run_tools(asking("double", n=4), [double])
            assert [row["tool"] for row in child.calls] == ["double"]
            assert len(child.messages) == 3
            with session.subagent("b", provider="openai") as other:  # the same ids
                use = {"name": "send", "arguments": '{"to": "ann"}'}
                calls = [{"id": "t1", "type": "function", "function": use}]
                other.messages.append({"role": "user", "content": "go"})
                other.run_tools({"role": "assistant", "tool_calls": calls}, [send])
                assert other.messages[-1]["role"] == "tool"
        assert len(session.messages) == 1
        assert (len(child.model_calls), len(session.model_calls)) == (1, 0)
    with Session("job", store=manager) as session:
        child = session.subagent("a")
        assert child.model_calls[0]["tokens"]["input"] == 3
        assert [row["tool"] for row in session.subagent("b").calls] == ["send"]


def test_labels_name_the_child(manager: CheckpointManager) -> None:
    with Session("job", store=manager, provider="anthropic") as session:
        with session.subagent("a") as child:
            child.run_tools(asking("double", n=4), [double])
        labels = [row["label"] for row in session.history()]
    assert "a: reply: double" in labels
    assert "a: double(n=4)" in labels


def test_calls_of_two_children_with_equal_ids_after_a_crash(manager: CheckpointManager) -> None:
    _sent.clear()
    with killed("job", manager, provider="anthropic", every="manual") as session:
        for name in ("a", "b"):
            child = session.subagent(name)
            context = contextvars.copy_context()
            context.run(child.__enter__)
            child.messages.append({"role": "user", "content": "go"})
            child.messages.append(asking("send", to="ann"))
            session.save()
            context.run(child.run_tools, child.messages, [send])
        raise Killed
    with Session("job", store=manager, provider="anthropic") as session:
        for name in ("b", "a"):
            with session.subagent(name) as child:
                child.run_tools(child.messages, [send])
                assert len(child.messages) == 3
    assert _sent == ["ann", "ann"]


def test_a_rollback_takes_the_model_calls_of_a_child_back(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session, session.subagent("a") as child:
        before = session.save()
        child.model(reply, model="m", messages=[])
        session.save()
        session.rollback(to=before)
        assert len(child.model_calls) == 0
        session.undo()
        assert len(child.model_calls) == 1
