"""Sub-agents: their own state, conversation, calls and tasks, in the checkpoints of the session."""

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from agent_checkpoint import CheckpointManager, Session, tool
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    InvalidInputError,
    RollbackRefusedError,
    StateError,
    StorageError,
    Suspended,
)
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.tasks import Tasks
from agent_checkpoint.session.tool_runner import ToolRunner
from agent_checkpoint.store.canonical_json import write_json
from tests.agents import Agent
from tests.unit.session.stores import Killed, killed

_sent: "list[str]" = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    _sent.clear()


@tool
def note(agent: Agent, what: Any) -> int:
    agent.memory.append(what)
    return len(agent.memory)


@tool
def look() -> str:
    return "seen"


@tool
async def alook(gate: Any = None) -> str:
    if gate is not None:
        await gate.wait()
    return "seen"


@tool(effect="irreversible")
def send(to: str) -> int:
    _sent.append(to)
    return len(_sent)


@tool(effect="irreversible", key=lambda order: order)
def order_once(order: str) -> int:
    _sent.append(order)
    return len(_sent)


@tool(effect="reversible", undo=lambda to: _sent.remove(to))
def lend(to: str) -> int:
    _sent.append(to)
    return len(_sent)


@tool(effect="irreversible", approve=True)
def publish(what: str) -> str:
    _sent.append(what)
    return f"published {what}"


class Mailer(Agent):
    @tool(effect="reversible", undo=lambda self, to: self.undone.append(to))
    def mail(self, to: str) -> str:
        _sent.append(to)
        return to

    def __init__(self) -> None:
        super().__init__()
        self.undone: list[str] = []


def heads(manager: CheckpointManager, key: str = "job") -> Any:
    head = manager.store.head(key)
    assert head is not None
    return head


def parts_below(manager: CheckpointManager, prefix: str, key: str = "job") -> "dict[str, bytes]":
    parts = heads(manager, key).parts
    return {name: write_json(tree) for name, tree in parts.items() if name.startswith(prefix)}


# -- one atomic checkpoint ------------------------------------------------------------------------


def test_one_checkpoint_has_parent_and_children(manager: CheckpointManager) -> None:
    mine, sub = Agent(1), Agent(2)
    with Session("job", agent=mine, store=manager) as session:
        session.messages.append("main")
        with session.subagent("researcher", agent=sub) as child:
            child.messages.append("question")
            assert note(sub, "x") == 1
            state = manager.state_dict("job")
            assert state["subagents/researcher/agent"]["memory"] == ["x"]
            assert list(state["subagents/researcher/messages"]) == ["question"]
            assert [row["tool"] for row in state["subagents/researcher/calls"]] == ["note"]
            assert list(state["messages"]) == ["main"]
            assert list(state["calls"]) == []
            assert session.history(1)[0]["label"] == "researcher: note(agent='<Agent>', what='x')"
        look()
        assert [row["tool"] for row in session.calls] == ["look"]
        assert [row["tool"] for row in child.calls] == ["note"]


def test_messages_and_agent_can_be_assigned(manager: CheckpointManager) -> None:
    opened = Session("job", agent=Agent(), store=manager)
    with opened as session, session.subagent("a", agent=Agent(1)) as child:
        child.messages.extend([1, 2, 3])
        child.messages = child.messages[2:]
        child.agent = Agent(2)
        with pytest.raises(InvalidInputError, match="already"):
            child.agent = session.agent
        look()
    state = manager.state_dict("job")
    assert list(state["subagents/a/messages"]) == [3]
    assert state["subagents/a/agent"]["count"] == 2


def test_children_nest(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session, session.subagent("a") as outer:
        with outer.subagent("b") as inner, inner.subagent("c") as innermost:
            look()
            assert (innermost.name, innermost.path) == ("c", "a/b/c")
        look()
        assert [len(child.calls) for child in (outer, inner, innermost)] == [1, 0, 1]
        assert next(iter(manager.state_dict("job")["subagents/a/b/c/calls"]))["tool"] == "look"
    with Session("job", store=manager) as session:
        outer = session.subagent("a")
        assert outer.finished
        with pytest.raises(InvalidInputError, match="'a' has finished"):
            outer.subagent("b")


def test_the_task_of_the_parent_is_there_again_after_the_child(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        (one,) = session.tasks(["one"])
        (two,) = session.tasks(["two"])
        with one, two:
            with session.subagent("a") as child:
                look()
                for part in child.tasks(["inner"]):
                    with part:
                        look()
            look()
        assert [row.get("task") for row in child.calls] == [None, "inner"]
        assert [row["task"] for row in session.calls] == ["two"]


@pytest.mark.parametrize("name", ["", "a/b", "a\0b", "a\n", 3, None, "\ud800"])
def test_a_name_is_checked(memory: CheckpointManager, name: Any) -> None:
    with Session("job", store=memory) as session, pytest.raises(InvalidInputError):
        session.subagent(name)


def test_a_name_may_be_that_of_a_part(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        for name in ("messages", "agent", "status", "workspace", "session"):
            with session.subagent(name) as child, child.subagent(name):
                look()
    with Session("job", store=manager) as session:
        assert all(session.subagent(name).finished for name in ("messages", "status", "session"))


def test_the_agent_is_checked(memory: CheckpointManager) -> None:
    mine, planner = Agent(), Agent()
    with Session("job", agent=mine, store=memory, parts={"planner": planner}) as session:
        for agent in (Agent, object(), mine, planner):
            with pytest.raises(InvalidInputError, match="agent"):
                session.subagent("a", agent=agent)
        shared = Agent()
        with session.subagent("a", agent=shared), pytest.raises(InvalidInputError, match="already"):
            session.subagent("b", agent=shared)
        session.subagent("b", agent=shared)


def test_user_parts_cannot_use_the_prefix(memory: CheckpointManager) -> None:
    with pytest.raises(InvalidInputError, match="reserved"):
        Session("job", store=memory, parts={"subagents/a/messages": Agent()})


def test_the_same_name_twice_at_once_is_refused(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        with session.subagent("a") as child:
            with pytest.raises(ConflictError, match="'a' is already open"):
                session.subagent("a")
            with child.subagent("a") as inner:
                assert inner.path == "a/a"
        assert session.subagent("a").finished


def test_a_look_does_not_take_the_name(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        looked_at = session.subagent("a")
        assert not looked_at.finished
        with session.subagent("a") as child:
            child.result = 1
        assert session.subagent("a").result == 1
        with pytest.raises(InvalidInputError, match="has ended"):
            looked_at.__enter__()


def test_a_block_runs_once(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        child = session.subagent("a")
        with child, pytest.raises(InvalidInputError, match="already entered"):
            child.__enter__()
        with pytest.raises(InvalidInputError):
            child.__enter__()
    with pytest.raises(InvalidInputError, match="closed"):
        session.subagent("b")


# -- resume ---------------------------------------------------------------------------------------


def test_resume_finds_everything(manager: CheckpointManager) -> None:
    sub = Agent()
    with killed("job", manager) as session:
        child = session.subagent("a", agent=sub)
        child.__enter__()
        child.messages.append({"n": 1})
        for task in child.tasks(["one", "two"]):
            with task:
                task.result = 7
                break
        note(sub, "x")
        raise Killed
    sub = Agent()
    with Session("job", store=manager) as session:
        with session.subagent("a", agent=sub) as child:
            assert (child.resumed, child.finished, child.status) == (True, False, "in_progress")
            assert list(child.messages) == [{"n": 1}]
            assert [row["tool"] for row in child.calls] == ["note"]
            assert [(task.id, task.status, task.result) for task in child.tasks] == [
                ("one", "completed", 7),
                ("two", "pending", None),
            ]
            assert sub.memory == ["x"]
        with session.subagent("b") as other:
            assert (other.resumed, other.finished) == (False, False)


def test_a_finished_child_is_not_run_again(manager: CheckpointManager) -> None:
    runs = []

    def run() -> Any:
        sub = Agent()
        with Session("job", store=manager) as session:
            with session.subagent("a", agent=sub) as child:
                if not child.finished:
                    runs.append(1)
                    note(sub, "x")
                    child.messages.append("m")
                    child.result = {"answer": 42}
            assert child.finished
            assert (child.result, sub.memory, list(child.messages)) == (
                {"answer": 42},
                ["x"],
                ["m"],
            )
            return child.resumed

    assert [run(), run(), run()] == [False, True, True]
    assert runs == [1]


def test_a_finished_child_is_read_only(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        with session.subagent("a") as child:
            look()
            child.messages.append(1)
        before = parts_below(manager, "subagents/")
        for ended in (child, session.subagent("a")):
            for change in (
                lambda child: child.messages.append(2),
                lambda child: child.messages.extend([2]),
                lambda child: child.messages.truncate(0),
                lambda child: child.messages.replace([]),
                lambda child: setattr(child, "messages", []),
                lambda child: child.messages.__setitem__(-1, 2),
                lambda child: child.calls.append(2),
                lambda child: setattr(child, "result", 2),
                lambda child: child.tasks(["one"]),
                lambda child: child.subagent("b"),
            ):
                with pytest.raises(CheckpointError, match=r"has ended|has finished"):
                    change(ended)
        with session.subagent("a"), pytest.raises(InvalidInputError, match="has finished"):
            look()
        with session.subagent("a"), session.subagent("a"):  # as often as you like
            session.save()
        assert parts_below(manager, "subagents/") == before
        assert list(session.calls) == []


def test_a_failed_child_continues_with_its_state(manager: CheckpointManager) -> None:
    sub = Agent()
    with Session("job", store=manager) as session:
        with pytest.raises(ZeroDivisionError), session.subagent("a", agent=sub) as child:
            note(sub, "x")
            sub.memory.append("not yet saved")
            1 / 0  # noqa: B018
        assert (child.status, child.finished, child.note) == (
            "failed",
            False,
            "ZeroDivisionError: division by zero",
        )
        assert manager.state_dict("job")["subagents/a/status"]["status"] == "failed"
        again = Agent()
        with session.subagent("a", agent=again) as child:
            assert (child.resumed, child.status, child.note[:4]) == (True, "in_progress", "Zero")
            assert again.memory == ["x", "not yet saved"]
        assert (child.finished, child.note) == (True, "")


def test_an_interrupted_child_goes_on_in_the_same_process(manager: CheckpointManager) -> None:
    for every in ("tool", "manual"):
        sub = Agent()
        with Session(every, store=manager, every=every) as session:
            with pytest.raises(KeyboardInterrupt), session.subagent("a", agent=sub) as child:
                child.messages.append("said")
                sub.memory.append("x")
                raise KeyboardInterrupt
            assert child.status == "in_progress"
            again = Agent()
            child = session.subagent("a", agent=again)
            assert (child.resumed, again.memory, list(child.messages)) == (True, ["x"], ["said"])
            with child:
                again.memory.append("y")
            if every == "manual":
                assert "subagents/a/status" not in heads(manager, every).parts
                assert session.subagent("a").finished
                session.save()
        assert manager.state_dict(every)["subagents/a/agent"]["memory"] == ["x", "y"]
        with Session(every, store=manager) as session:
            assert session.subagent("a").finished


def test_restart_starts_again(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        with session.subagent("a", agent=Agent()) as child:
            child.messages.append(1)
            child.result = 1
            with child.subagent("inner") as inner:
                inner.messages.append(2)
        sub = Agent()
        with session.subagent("a", agent=sub, restart=True) as child:
            assert (child.resumed, child.finished, child.result) == (False, False, None)
            assert (list(child.messages), sub.memory) == ([], [])
            assert parts_below(manager, "subagents/a/inner") == {}
            with child.subagent("inner") as inner:
                assert not inner.resumed
        with session.subagent("new", restart=True) as child:
            assert not child.resumed


def test_restart_discards_what_is_inside_and_not_saved_yet(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        interrupted = pytest.raises(KeyboardInterrupt)
        with interrupted, session.subagent("a") as child, child.subagent("inner") as inner:
            inner.messages.append(1)
            raise KeyboardInterrupt
        with session.subagent("a", restart=True) as child:
            assert parts_below(memory, "subagents/a/inner") == {}
            assert not child.subagent("inner").resumed


def test_no_restart_around_a_running_child(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        with pytest.raises(KeyboardInterrupt), session.subagent("a") as child:
            contextvars.copy_context().run(child.subagent("inner").__enter__)
            raise KeyboardInterrupt
        with pytest.raises(ConflictError, match=r"cannot start again.*'a/inner'"):
            session.subagent("a", restart=True)
        assert session.subagent("a").resumed


def test_a_lost_child_does_not_keep_its_parent_from_ending(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        before = session.save()
        with session.subagent("a") as first, first.subagent("inner"):
            session.rollback(to=before)
            with session.subagent("a"):
                pass
        assert session.subagent("a").finished


def test_restart_with_manual_saves(manager: CheckpointManager) -> None:
    with Session("job", store=manager, every="manual") as session:
        with session.subagent("a") as child, child.subagent("inner"):
            child.messages.append(1)
        session.save()
        with session.subagent("a", restart=True) as child, child.subagent("inner") as inner:
            assert not inner.resumed
            inner.messages.append("new")
        session.save()
    state = manager.state_dict("job")
    assert list(state["subagents/a/messages"]) == []
    assert list(state["subagents/a/inner/messages"]) == ["new"]


def test_children_that_are_not_opened_are_kept_byte_for_byte(manager: CheckpointManager) -> None:
    big = ["x" * 500] * 20
    with Session("job", store=manager) as session:
        for name in ("a", "b"):
            sub = Agent()
            with session.subagent(name, agent=sub) as child, child.subagent("inner") as inner:
                sub.memory += big
                inner.messages.extend(big)
                look()
    before = parts_below(manager, "subagents/")
    with Session("job", store=manager) as session:
        for _ in range(3):
            look()
            session.rollback(steps=1)
            look()
        with session.subagent("c"):
            look()
    after = parts_below(manager, "subagents/")
    assert {name: after[name] for name in before} == before


def test_a_result_must_be_savable(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session, session.subagent("a") as child:
        with pytest.raises(StateError, match="The result of a"):
            child.result = threading.Lock()
        given = [1]
        child.result = given
        given.append(2)
        assert child.result == [1]


def test_a_parent_does_not_end_before_its_children(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        refused = pytest.raises(ConflictError, match="still running: 'a/b'")
        with refused, session.subagent("a") as child:
            inner = child.subagent("b")
            contextvars.copy_context().run(inner.__enter__)
        assert child.status == "in_progress"


# -- tasks ----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    root.mkdir()
    (root / "a").write_text("begin")
    return root


def test_an_interrupted_task_of_a_child_runs_again_from_its_start(
    manager: CheckpointManager, files: Path
) -> None:
    sub = Agent()
    with killed("job", manager, workspace=files) as session:
        child = session.subagent("a", agent=sub)
        child.__enter__()
        for task in child.tasks(["one", "two"]):
            with task:
                note(sub, task.id)
                if task.id == "two":
                    (files / "a").write_text("half done")
                    child.messages.append("half")
                    with child.subagent("inner"):
                        look()
                    raise Killed
    sub = Agent()
    with Session("job", store=manager, workspace=files) as session:
        session.messages.append("of the parent")
        with session.subagent("a", agent=sub) as child:
            assert sub.memory == ["one", "two"]
            tasks = child.tasks(["one", "two"])
            assert (sub.memory, list(child.messages)) == (["one"], [])
            assert (files / "a").read_text() == "begin"
            assert list(session.messages) == ["of the parent"]
            assert parts_below(manager, "subagents/a/inner") == {}
            assert not child.subagent("inner").resumed
            for task in tasks:
                with task:
                    assert (task.id, task.attempt) == ("two", 2)
                    note(sub, "again")
        assert sub.memory == ["one", "again"]
        assert not session.notices[1:]


def test_on_resume_continue(manager: CheckpointManager) -> None:
    sub = Agent()
    with killed("job", manager) as session:
        child = session.subagent("a", agent=sub)
        child.__enter__()
        for task in child.tasks(["one"]):
            with task:
                note(sub, 1)
                raise Killed
    sub = Agent()
    with Session("job", store=manager) as session, session.subagent("a", agent=sub) as child:
        for task in child.tasks(["one"], on_resume="continue"):
            with task:
                assert sub.memory == [1]


def test_the_restart_of_a_task_leaves_siblings_and_their_files(
    manager: CheckpointManager, files: Path
) -> None:
    one, two = Agent(), Agent()
    with killed("job", manager, workspace=files) as session:
        first = session.subagent("one", agent=one)
        contexts = contextvars.copy_context(), contextvars.copy_context()
        contexts[0].run(first.__enter__)
        task = next(first.tasks(["work"]))
        contexts[0].run(task.__enter__)
        contexts[0].run(note, one, "half")
        second = session.subagent("two", agent=two)
        contexts[1].run(second.__enter__)
        (files / "a").write_text("by the second")
        contexts[1].run(note, two, "whole")
        contexts[1].run(send, "ann")
        raise Killed
    one, two = Agent(), Agent()
    with Session("job", store=manager, workspace=files) as session:
        with session.subagent("one", agent=one) as child:
            for task in child.tasks(["work"]):
                with task:
                    assert one.memory == []
        assert "began again with the files as they are" in session.notices[0]
        assert (files / "a").read_text() == "by the second"
        with session.subagent("two", agent=two) as second:
            assert two.memory == ["whole"]
            assert send("ann") == 2  # a second mail, not the first one again
        assert _sent == ["ann", "ann"]


def test_a_sibling_that_begins_beside_the_restart_of_a_task_waits(
    memory: CheckpointManager, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acted, go_on = Tasks._others_acted_since, threading.Event()

    def run() -> None:
        with session.subagent("other"):
            go_on.wait(10)

    def slowly(tasks: Tasks, target: Any) -> bool:
        found = acted(tasks, target)
        thread.start()
        thread.join(0.2)
        return found

    with Session("job", store=memory, workspace=files) as session:
        thread = threading.Thread(target=run)
        monkeypatch.setattr(Tasks, "_others_acted_since", slowly)
        with session.subagent("a") as child:
            for task in child.tasks(["one"], retries=1):
                with task:
                    if task.attempt == 1:
                        (files / "a").write_text("bad")
                        raise ValueError
        go_on.set()
        thread.join()
        assert (files / "a").read_text() == "begin"
        assert session.subagent("other").finished


def test_a_replay_beside_the_restart_of_a_task_is_not_forgotten(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart replaces the session record: what a sibling changes in it meanwhile stays."""
    compute, mark = Rollback._next_record, ToolRunner._mark_known
    at, go_on = threading.Event(), threading.Event()

    def waiting(runner: Any, decision: Any) -> None:
        at.set()
        go_on.wait(10)
        mark(runner, decision)

    def slowly(rollback: Rollback, standing: "list[str]") -> Any:
        record = compute(rollback, standing)
        go_on.set()
        thread.join(0.2)
        return record

    with Session("job", store=memory) as session:
        child = session.subagent("other")
        context = contextvars.copy_context()
        context.run(child.__enter__)
        before = session.head
        context.run(send, "ann")
        context.run(session.rollback, before, effects="warn")
        monkeypatch.setattr(ToolRunner, "_mark_known", waiting)
        monkeypatch.setattr(Rollback, "_next_record", slowly)
        thread = threading.Thread(target=context.run, args=(send, "ann"))
        thread.start()
        at.wait(10)
        with session.subagent("a") as restarting:
            for task in restarting.tasks(["one"], retries=1):
                with task:
                    if task.attempt == 1:
                        raise ValueError
        thread.join()
        assert session._state.record.standing == []
        assert _sent == ["ann"]


def test_retries_inside_a_tool_of_the_parent(manager: CheckpointManager, files: Path) -> None:
    """An agent as a tool: the tool of the parent runs while the child's task is retried."""

    @tool
    def research(session: Any) -> list[Any]:
        sub = Agent()
        with session.subagent("a", agent=sub) as child:
            for task in child.tasks(["one"], retries=2):
                with task:
                    note(sub, task.attempt)
                    if task.attempt < 3:
                        (files / "a").write_text("bad")
                        raise ValueError
        return sub.memory

    with Session("job", store=manager, workspace=files) as session:
        assert research(session) == [3]
        assert (files / "a").read_text() == "begin"
        assert [row["tool"] for row in session.calls] == ["research"]
        kinds = {row["label"]: row["kind"] for row in session.history()}
        assert kinds["a: note(agent='<Agent>', what=3)"] == "in_flight"
        session.rollback()
        assert list(session.calls) == []
        assert not session.subagent("a").resumed


# -- roll back, fork, adopt -----------------------------------------------------------------------


def test_roll_back_and_undo_with_a_child(manager: CheckpointManager) -> None:
    sub = Agent()
    with Session("job", store=manager) as session:
        before = session.save()
        with session.subagent("a", agent=sub) as child:
            note(sub, 1)
            note(sub, 2)
            child.messages.append("m")
            session.save()
            session.rollback(steps=2)
            assert (sub.memory, list(child.messages), len(child.calls)) == ([1], [], 1)
            session.undo()
            assert (sub.memory, list(child.messages), len(child.calls)) == ([1, 2], ["m"], 2)
            session.rollback(to=before)
            with pytest.raises(InvalidInputError, match="'a' is not running at the checkpoint"):
                look()
            other = Agent()
            with session.subagent("a", agent=other) as fresh:
                assert (fresh.resumed, other.memory) == (False, [])
            session.undo()
            session.undo()
        with session.subagent("a", agent=Agent()) as child:
            assert child.resumed


def test_undo_brings_a_child_back_to_its_block(manager: CheckpointManager) -> None:
    sub = Agent()
    with Session("job", store=manager) as session:
        before = session.save()
        with session.subagent("a", agent=sub) as child:
            note(sub, 1)
            session.rollback(to=before)
            session.undo()
            note(sub, 2)
        assert child.finished
        assert manager.state_dict("job")["subagents/a/agent"]["memory"] == [1, 2]


def test_a_block_that_was_rolled_back_records_no_end(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        before = session.save()
        with session.subagent("a"):
            session.rollback(to=before)
        look()
    assert parts_below(manager, "subagents/") == {}


def test_a_child_that_has_ended_is_rolled_back_too(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        with session.subagent("a") as child:
            look()
            running = session.head
        session.rollback(to=running)
        child = session.subagent("a")
        assert (child.resumed, child.finished, len(child.calls)) == (True, False, 1)


def test_rolled_back_to_an_earlier_run_of_the_child(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        with session.subagent("a") as child:
            child.result = 1
        first = session.head
        with session.subagent("a", restart=True):
            session.rollback(to=first)
            with pytest.raises(InvalidInputError, match="not running"):
                look()
        child = session.subagent("a")
        assert (child.finished, child.result) == (True, 1)


def test_parts_of_one_child(manager: CheckpointManager) -> None:
    one, two = Agent(), Agent()
    with Session("job", store=manager) as session:
        with session.subagent("one", agent=one), session.subagent("two", agent=two) as second:
            with second.subagent("inner"):
                before = session.save()
                note(two, 1)
            note(one, 1)
            send("ann")
            report = session.rollback(to=before, parts=["subagents/one"])
            assert "subagents/one/agent" in report.parts
            assert report.effects == []  # the mail is of the other
            assert (one.memory, two.memory) == ([], [1])
            assert send("ann") == 2
            with pytest.raises(RollbackRefusedError):
                session.rollback(to=before, parts=["subagents/two"])
            session.rollback(to=before, parts=["subagents/two"], effects="warn")
            assert two.memory == []
            assert send("ann") == 1  # replayed
        with pytest.raises(InvalidInputError, match="has no part"):
            session.rollback(to=before, parts=["subagents/three"])


def test_no_rollback_beside_running_children(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        session.save()
        child = session.subagent("a")
        context = contextvars.copy_context()
        context.run(child.__enter__)
        with pytest.raises(ConflictError, match="Sub-agents are running: 'a'"):
            session.rollback()
        with pytest.raises(ConflictError, match="Sub-agents are running: 'a'"):
            session.rollback(parts=["workspace"]) if session.workspace else session.rollback()
        context.run(session.rollback)  # from within it
        with pytest.raises(ConflictError), session.subagent("b"):
            session.rollback()
        context.run(child.__exit__, None, None, None)
        session.rollback()


def test_fork_and_adopt_with_children(manager: CheckpointManager) -> None:
    sub = Agent()
    with Session("job", store=manager) as session:
        with session.subagent("done") as done:
            done.result = 1
        with session.subagent("a", agent=sub) as child:
            note(sub, 1)
            with session.fork("try") as branch:
                assert branch.subagent("done").result == 1
                own = Agent()
                with branch.subagent("a", agent=own) as other:
                    assert (other.resumed, own.memory) == (True, [1])
                    note(own, 2)
                    other.result = "found"
                with branch.subagent("new"):
                    look()
            assert (sub.memory, len(child.calls)) == ([1], 1)
            session.adopt(branch)
            with pytest.raises(InvalidInputError, match="not running"):
                look()
        again = Agent()
        child = session.subagent("a", agent=again)
        assert (child.finished, child.result, again.memory) == (True, "found", [1, 2])
        assert session.subagent("new").finished
        session.undo()
        again = Agent()
        child = session.subagent("a", agent=again)
        assert (child.finished, again.memory) == (False, [1])
        assert not session.subagent("new").resumed
        assert session.subagent("done").finished


def test_adopt_removes_what_the_fork_does_not_have(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        before = session.save()
        with session.subagent("a"):
            pass
        with session.subagent("b") as child:
            child.result = 2
        with session.fork("try") as branch:
            branch.rollback(to=before)
            with branch.subagent("b"):
                look()
        session.adopt(branch)
        assert not session.subagent("a").resumed
        assert session.subagent("b").result is None


# -- effects and approvals ------------------------------------------------------------------------


def test_equal_calls_of_siblings_are_two_effects(manager: CheckpointManager) -> None:
    for _ in range(2):  # the second time replays both
        with Session("job", store=manager) as session:
            results = [send("ann")]
            for name in ("a", "b"):
                with session.subagent(name) as child:
                    results.append(send("ann"))
                    with child.subagent("a"):
                        results.append(send("ann"))
            assert results == [1, 2, 3, 4, 5]
            assert [effect.subagent for effect in session.effects] == [
                None,
                "a",
                "a/a",
                "b",
                "b/a",
            ]
            session.rollback(to="job@1", effects="warn")
    assert len(_sent) == 5


def test_an_effect_is_not_repeated_after_a_crash(manager: CheckpointManager) -> None:
    with killed("job", manager, every="manual") as session:
        for name in ("a", "b"):
            child = session.subagent(name)
            context = contextvars.copy_context()
            context.run(child.__enter__)
            context.run(send, "ann")
        raise Killed
    with Session("job", store=manager) as session:
        for number, name in ((2, "b"), (1, "a")):
            with session.subagent(name):
                assert send("ann") == number
                assert send("ann") > 2


def test_a_second_run_has_effects_of_its_own(manager: CheckpointManager) -> None:
    with Session("job", store=manager) as session:
        with session.subagent("a"):
            assert send("ann") == 1
        before = session.head
        with session.subagent("a", restart=True):
            assert send("ann") == 2
        session.rollback(to=before, effects="warn")
        with session.subagent("a", restart=True):
            assert send("ann") == 2


def test_an_effect_with_a_key_is_one_of_the_session(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        for name in ("a", "b"):
            with session.subagent(name):
                assert order_once("book") == 1
        assert len(session.effects) == 1


def test_counts_of_finished_children_are_dropped(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        for number in range(5):
            with session.subagent(f"a{number}"):
                send("ann")
        assert list(session._state.record.counts.rows()) == []


def test_approval_of_a_call_of_a_child(manager: CheckpointManager) -> None:
    suspended, opened = pytest.raises(Suspended), Session("job", store=manager)
    with suspended as waiting, opened as session, session.subagent("a"):
        publish("news")
    with Session("job", store=manager) as session:
        (request,) = session.approvals.pending()
        assert (request.subagent, request.id) == ("a", waiting.value.approval_id)
        session.approvals.approve(request.id)
        assert session.carry_out() == []  # not of the session's own agent
        with pytest.raises(Suspended), session.subagent("b"):
            publish("news")  # the answer is for the other one
        with session.subagent("a") as child:
            assert (child.resumed, child.status) == (True, "in_progress")
            (outcome,) = child.carry_out()
            assert outcome["result"] == "published news"
            assert [row["tool"] for row in child.calls] == ["publish"]
        assert list(session.calls) == []
    assert _sent == ["news"]


def test_an_approved_call_is_carried_out_by_calling_again(manager: CheckpointManager) -> None:
    for _ in range(2):
        try:
            with Session("job", store=manager) as session, session.subagent("a") as child:
                child.result = publish("news")
        except Suspended as waiting:
            session.approvals.approve(waiting.approval_id)
    assert child.result == "published news"
    assert child.finished


def test_compensation_of_a_child(manager: CheckpointManager) -> None:
    mailer = Mailer()
    with Session("job", store=manager) as session:
        before = session.save()
        with session.subagent("a", agent=mailer):
            mailer.mail("ann")
            lend("bob")
        with pytest.raises(RollbackRefusedError, match="subagents/a/agent"):
            session.rollback(to=before, effects="compensate")  # its agent is gone
        assert _sent == ["ann"]
        assert session.effects[0].part == "subagents/a/agent"


def test_method_tools_of_siblings_are_apart(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        before = session.save()
        one, two = Mailer(), Mailer()
        with session.subagent("a", agent=one), session.subagent("b", agent=two):
            one.mail("ann")
            two.mail("ann")
            session.rollback(to=before, effects="compensate")
        assert (one.undone, two.undone) == (["ann"], ["ann"])


# -- threads and asyncio --------------------------------------------------------------------------


def test_siblings_in_threads(manager: CheckpointManager) -> None:
    names = [f"agent {number}" for number in range(6)]

    def run(name: str) -> None:
        sub = Agent()
        with session.subagent(name, agent=sub) as child:
            for number in range(5):
                child.messages.append((name, number))
                note(sub, (name, number))
                with child.subagent(f"{number}") as inner:
                    look()
                    inner.result = (name, number)
            send("ann")
            child.result = sub.memory

    with Session("job", store=manager) as session:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(run, names))
        look()
        assert len(session.calls) == 1
    assert len(_sent) == 6
    with Session("job", store=manager) as session:
        for name in names:
            sub = Agent()
            child = session.subagent(name, agent=sub)
            said = [(name, number) for number in range(5)]
            assert (child.result, sub.memory, list(child.messages)) == (said, said, said)
            assert [row["tool"] for row in child.calls] == ["note"] * 5 + ["send"]
            state = manager.state_dict("job")
            assert state[f"subagents/{name}/3/status"]["result"] == (name, 3)
    assert manager.verify().ok


def test_a_checkpoint_of_one_thread_has_the_last_capture_of_the_others(
    manager: CheckpointManager,
) -> None:
    """State is captured by its own thread only: never in the middle of a change."""
    one, two = Agent(), Agent()
    at, go_on = threading.Event(), threading.Event()

    def run() -> None:
        with session.subagent("one", agent=one) as child:
            note(one, 1)
            one.memory.append("half a change")
            child.messages.append("half a change")
            at.set()
            go_on.wait(10)
            note(one, 2)

    with Session("job", store=manager) as session:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run)
            at.wait(10)
            with session.subagent("two", agent=two):
                note(two, 1)
            session.save()
            state = manager.state_dict("job")
            assert state["subagents/one/agent"]["memory"] == [1]
            assert list(state["subagents/one/messages"]) == []
            assert state["subagents/two/agent"]["memory"] == [1]
            go_on.set()
            running.result()
        state = manager.state_dict("job")
        assert state["subagents/one/agent"]["memory"] == [1, "half a change", 2]


def test_what_a_child_changes_of_the_session_is_saved_with_its_call(
    manager: CheckpointManager,
) -> None:
    shared = Agent()

    def run() -> None:
        with session.subagent("one"):
            note(shared, 1)
            assert manager.state_dict("job")["shared"]["memory"] == [1]

    opened = Session("job", store=manager, parts={"shared": shared})
    with opened as session, ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()


def test_a_nested_child_in_another_thread_does_not_capture_its_parent(
    manager: CheckpointManager,
) -> None:
    sub = Agent()

    def run(child: Any) -> None:
        with child.subagent("inner"):
            look()

    with Session("job", store=manager) as session, session.subagent("a", agent=sub) as child:
        sub.memory.append("half a change")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(contextvars.copy_context().run, run, child).result()
        assert manager.state_dict("job")["subagents/a/agent"]["memory"] == []
        look()
        assert manager.state_dict("job")["subagents/a/agent"]["memory"] == ["half a change"]


def test_a_child_whose_first_checkpoint_fails_can_be_entered_again(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("job", store=memory) as session:
        child = session.subagent("a")
        with monkeypatch.context() as patch:
            patch.setattr(memory.store.backend, "append", Mock(side_effect=StorageError("full")))
            with pytest.raises(StorageError, match="full"):
                child.__enter__()
        with child:
            look()
        assert [row["tool"] for row in child.calls] == ["look"]


def test_a_child_whose_last_checkpoint_fails_is_saved_with_the_next(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session("job", store=memory) as session:
        refused = pytest.raises(StorageError, match="full")
        with monkeypatch.context() as patch, refused, session.subagent("a") as child:
            child.result = 1
            patch.setattr(memory.store.backend, "append", Mock(side_effect=StorageError("full")))
        assert session.subagent("a").result == 1
        look()
    assert memory.state_dict("job")["subagents/a/status"]["status"] == "completed"


def test_tools_of_a_child_in_threads_of_its_own(manager: CheckpointManager) -> None:
    sub = Agent()
    with Session("job", store=manager) as session, session.subagent("a", agent=sub) as child:
        with ThreadPoolExecutor(3) as pool:
            contexts = [contextvars.copy_context() for _ in range(9)]
            futures = [pool.submit(context.run, note, sub, 1) for context in contexts]
            assert {future.result() for future in futures} == set(range(1, 10))
        assert len(child.calls) == 9
        assert manager.state_dict("job")["subagents/a/agent"]["memory"] == [1] * 9
        with ThreadPoolExecutor(1) as pool:  # a thread without a context belongs to the session
            pool.submit(look).result()
        assert len(session.calls) == 1


def test_a_thread_that_outlives_its_child(memory: CheckpointManager) -> None:
    with Session("job", store=memory) as session:
        with session.subagent("a"):
            context = contextvars.copy_context()
        with pytest.raises(InvalidInputError, match="'a' has finished"):
            context.run(look)
        with pytest.raises(KeyboardInterrupt), session.subagent("b"):
            context = contextvars.copy_context()
            raise KeyboardInterrupt
        with pytest.raises(InvalidInputError, match="'b' has ended"):
            context.run(look)
    assert context.run(look) == "seen"  # a plain function again


def test_a_checkpoint_beside_a_running_tool_says_so(manager: CheckpointManager) -> None:
    at, go_on = threading.Event(), threading.Event()

    @tool
    def slow() -> None:
        at.set()
        go_on.wait(10)

    def run() -> None:
        with session.subagent("one"):
            slow()

    with Session("job", store=manager) as session:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run)
            at.wait(10)
            with session.subagent("two"):
                look()
                assert session.history(1)[0]["kind"] == "in_flight"
            go_on.set()
            running.result()
        assert session.history(1)[0]["kind"] == "save"


def test_siblings_in_asyncio(manager: CheckpointManager) -> None:
    async def run(session: Session, name: str) -> None:
        sub = Agent()
        async with session.subagent(name, agent=sub) as child:
            for number in range(4):
                child.messages.append(number)
                await asyncio.sleep(0)
                await alook()
                note(sub, number)
                await asyncio.to_thread(look)
            child.result = name

    async def main() -> None:
        async with Session("job", store=manager) as session:
            await asyncio.gather(*(run(session, name) for name in "abc"))
            await alook()
            assert [row["tool"] for row in session.calls] == ["alook"]

    asyncio.run(main())
    with Session("job", store=manager) as session:
        for name in "abc":
            sub = Agent()
            child = session.subagent(name, agent=sub)
            assert (child.result, sub.memory) == (name, [0, 1, 2, 3])
            tools = [row["tool"] for row in child.calls]
            assert sorted(tools) == ["alook"] * 4 + ["look"] * 4 + ["note"] * 4
            assert list(child.messages) == [0, 1, 2, 3]


def test_an_async_save_elsewhere_is_not_lost(manager: CheckpointManager) -> None:
    """A thread that carries another sub-agent over waits for its last save in the background."""
    one = Agent()
    at, go_on, gate = threading.Event(), threading.Event(), threading.Event()

    async def run() -> None:
        async with session.subagent("one", agent=one):
            one.memory.append(1)
            manager.background.submit(lambda: str(gate.wait(10)))  # a slow write before it
            saving = asyncio.ensure_future(session.asave())
            await asyncio.sleep(0)
            at.set()
            go_on.wait(10)
            await saving

    with Session("job", store=manager) as session, ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, run())
        at.wait(10)
        threading.Timer(0.1, gate.set).start()
        session.save()
        assert manager.state_dict("job")["subagents/one/agent"]["memory"] == [1]
        go_on.set()
        running.result()


def test_every_counts_the_calls_of_each_agent(manager: CheckpointManager) -> None:
    with Session("job", store=manager, every=2) as session, session.subagent("a"):
        look()
        assert session.history(1)[0]["label"] == "a: begins"
        with session.subagent("b"):
            look()
            assert session.history(1)[0]["label"] == "b: begins"
            look()
            assert session.history(1)[0]["label"] == "b: look()"


# -- cost -----------------------------------------------------------------------------------------


def test_an_unchanged_child_costs_the_same_whatever_it_has(tmp_path: Path) -> None:
    def entry_size(items: int) -> int:
        with CheckpointManager(backend="sqlite", path=tmp_path / str(items)) as manager:
            with Session("job", store=manager) as session:
                sub = Agent()
                with session.subagent("a", agent=sub) as child:
                    sub.memory += [str(number) * 50 for number in range(items)]
                    child.messages.extend([str(number) * 50 for number in range(items)])
                objects = manager.stats()["objects"]
                look()
                session.save()
                assert manager.stats()["objects"] == objects
            (entry,) = manager.store.backend.read("key/job", limit=1, newest_first=True)
            return len(entry.data)

    assert abs(entry_size(2000) - entry_size(100)) < 20


def test_a_conversation_of_a_child_costs_its_delta(tmp_path: Path) -> None:
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "store")
    with manager, Session("job", store=manager) as session, session.subagent("a") as child:
        child.messages.extend(["x" * 200 + str(number) for number in range(2000)])
        session.save()
        objects = manager.stats()["objects"]
        for number in range(10):
            child.messages.append(number)
            session.save()
        assert manager.stats()["objects"] - objects < 40


def test_an_unsaved_restart_is_forgotten_by_a_rollback(memory: CheckpointManager) -> None:
    """The next save dropped the sub-agent, with what is inside, that the rollback had restored."""
    with Session("job", store=memory, every="manual") as session:
        with session.subagent("a") as child, child.subagent("b") as inner:
            inner.result = 1
        target = session.save()
        with session.subagent("a", restart=True):
            session.rollback(to=target)
        session.save()
        assert {"subagents/a/status", "subagents/a/b/status"} <= set(memory.state_dict("job"))
        assert session.subagent("a").finished
