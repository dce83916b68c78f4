"""A session of the OpenAI Agents SDK: as its own, with files, points, approvals and forks."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Session

pytest.importorskip("agents", reason="needs openai-agents")
from agents import Agent, Runner, SessionSettings, SQLiteSession, function_tool
from agents.memory import Session as SessionProtocol
from agents.testing import (
    ModelStep,
    ScriptedModel,
    assistant_message,
    function_call,
)

from agent_checkpoint.adapters.openai_agents import CheckpointSession


def say(text: str, role: str = "user") -> Any:
    return {"role": role, "content": text}


def test_it_is_a_session_of_the_sdk() -> None:
    with Session("s", store=CheckpointManager()) as session:
        assert isinstance(CheckpointSession(session), SessionProtocol)
        assert CheckpointSession(session).session_id == "s"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.text(max_size=3), max_size=3)),
        st.tuples(st.just("pop"), st.none()),
        st.tuples(st.just("clear"), st.none()),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.one_of(st.none(), st.integers(-1, 4)))
def test_it_behaves_as_the_session_of_the_sdk(steps: Any, limit: "int | None") -> None:
    async def work() -> None:
        manager = CheckpointManager()
        theirs, session = SQLiteSession("s"), Session("s", store=manager)
        ours = CheckpointSession(session)
        for what, texts in steps:
            if what == "reopen":
                session.close()
                session = Session("s", store=manager)
                ours = CheckpointSession(session)
            elif what == "add":
                for one in (theirs, ours):
                    await one.add_items([say(text) for text in texts])
            elif what == "clear":
                await theirs.clear_session()
                await ours.clear_session()
            else:
                assert await ours.pop_item() == await theirs.pop_item()
            assert await ours.get_items() == await theirs.get_items()
            assert await ours.get_items(limit) == await theirs.get_items(limit)
        theirs.close()
        session.close()

    asyncio.run(work())


def test_the_limit_of_the_settings_counts() -> None:
    async def work() -> None:
        with Session("s", store=CheckpointManager()) as session:
            ours = CheckpointSession(session)
            ours.session_settings = SessionSettings(limit=1)
            await ours.add_items([say("a"), say("b")])
            assert await ours.get_items() == [say("b")]
            assert await ours.get_items(5) == [say("a"), say("b")]

    asyncio.run(work())


def test_what_is_read_is_a_copy() -> None:
    async def work() -> None:
        with Session("s", store=CheckpointManager()) as session:
            ours = CheckpointSession(session)
            await ours.add_items([say("a")])
            (await ours.get_items())[0]["content"] = "changed"  # type: ignore[typeddict-unknown-key]
            assert await ours.get_items() == [say("a")]

    asyncio.run(work())


# -- runs ------------------------------------------------------------------------------------------


class Script:
    """An agent that writes `one` to a.txt, then `two` to b.txt, then is done."""

    def __init__(self, work: Path, *, approval: bool = False) -> None:
        self.work = work
        self.inputs: list[Any] = []
        self.agent = Agent(
            name="writer",
            model=ScriptedModel([ModelStep.respond(self._reply) for _ in range(9)]),
            tools=[function_tool(self.write, needs_approval=approval)],
        )

    async def write(self, file: str, text: str) -> str:
        (self.work / file).write_text(text)
        return f"wrote {file}"

    def _reply(self, call: Any) -> Any:
        self.inputs.append(call.input)
        done = [one for one in call.input if one.get("type") == "function_call_output"]
        steps = [("a.txt", "one"), ("b.txt", "two")]
        if len(done) == len(steps):
            return [assistant_message("done")]
        file, text = steps[len(done)]
        return [function_call("write", {"file": file, "text": text}, call_id=uuid4().hex)]


def outputs(items: Any) -> list[str]:
    return [one["output"] for one in items if one.get("type") == "function_call_output"]


def labels(session: Session) -> list[Any]:
    return [row["label"] for row in reversed(session.history()) if row["kind"] == "save"]


def files(work: Path) -> list[str]:
    return sorted(path.name for path in work.iterdir())


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def go(script: Script, session: Session, said: Any = "go") -> Any:
    async def run() -> Any:
        ours = CheckpointSession(session)
        await ours.finish_turn(script.agent)
        return await Runner.run(script.agent, said, session=ours, hooks=ours.hooks)

    return asyncio.run(run())


def test_each_reply_and_each_tool_is_a_point(work: Path, tmp_path: Path) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        assert go(Script(work), session).final_output == "done"
        found = labels(session)
        assert [one for one in found if one in ("writer: reply", "write")] == [
            "writer: reply",
            "write",
            "writer: reply",
            "write",
            "writer: reply",
        ]
        assert all("unsettled" not in str(item) for item in session.messages)


def test_files_and_conversation_are_rolled_back_together(work: Path, tmp_path: Path) -> None:
    script = Script(work)
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        go(script, session)
        first = next(r["id"] for r in reversed(session.history()) if r["label"] == "write")
        session.rollback(to=first)
        assert files(work) == ["a.txt"]
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        seen = len(script.inputs)
        assert go(script, session, []).final_output == "done"
        assert outputs(script.inputs[seen]) == ["wrote a.txt"]
        assert files(work) == ["a.txt", "b.txt"]


def test_a_fork_has_its_own_files_and_conversation(work: Path, tmp_path: Path) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        go(Script(work), session)
        first = next(r["id"] for r in reversed(session.history()) if r["label"] == "write")
        with session.fork("try", at=first) as branch:
            assert branch.workspace is not None
            go(Script(branch.workspace.path), branch, [say("otherwise")])
            assert say("otherwise") in asyncio.run(CheckpointSession(branch).get_items())
        assert say("otherwise") not in asyncio.run(CheckpointSession(session).get_items())


def unsettled(session: Session, *items: Any) -> None:
    """Leave the session as a process does that is killed in a turn."""
    ours = CheckpointSession(session)
    asyncio.run(ours.add_items([say("go")]))
    asyncio.run(ours.note(list(items), "reply"))


def call(number: int, name: str = "write") -> Any:
    given = f'{{"file": "{number}.txt", "text": "x"}}'
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": given}


def result(number: int) -> Any:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": "kept"}


def test_a_killed_turn_is_finished_once(work: Path) -> None:
    manager = CheckpointManager()
    unsettled(Session("s", store=manager), call(1), call(2), result(1))
    script = Script(work)
    with Session("s", store=manager) as session:
        ours = CheckpointSession(session)
        assert asyncio.run(ours.finish_turn(script.agent)) == ["write"]
        assert files(work) == ["2.txt"]
        assert outputs(asyncio.run(ours.get_items())) == ["kept", "wrote 2.txt"]
        assert asyncio.run(ours.finish_turn(script.agent)) == []


def test_the_model_is_told_of_a_call_without_a_result() -> None:
    manager = CheckpointManager()
    unsettled(Session("s", store=manager), call(1), call(2, "no_such_tool"), result(1))
    with Session("s", store=manager) as session:
        items = asyncio.run(CheckpointSession(session).get_items())
        assert [one.get("call_id") for one in items] == [None, "c1", "c2", "c1", "c2"]
        assert outputs(items)[0] == "kept"
        assert "kept" not in outputs(items)[1]


def test_a_call_that_needs_an_approval_is_not_made(work: Path) -> None:
    manager = CheckpointManager()
    unsettled(Session("s", store=manager), call(1))
    with Session("s", store=manager) as session:
        ours = CheckpointSession(session)
        assert asyncio.run(ours.finish_turn(Script(work, approval=True).agent)) == []
        assert files(work) == []
        assert len(outputs(asyncio.run(ours.get_items()))) == 1


def test_an_approval_is_answered_in_another_process(work: Path, tmp_path: Path) -> None:
    async def ask() -> None:
        with Session("s", workspace=work, store=tmp_path / "store") as session:
            ours = CheckpointSession(session)
            script = Script(work, approval=True)
            assert await ours.load_state(script.agent) is None
            found = await Runner.run(script.agent, "go", session=ours, hooks=ours.hooks)
            assert len(found.interruptions) == 1
            await ours.save_state(found.to_state())
            assert session.history()[0]["label"] == "waits for approval: write"

    async def answer() -> None:
        script = Script(work, approval=True)
        with Session("s", workspace=work, store=tmp_path / "store") as session:
            ours = CheckpointSession(session)
            state = await ours.load_state(script.agent)
            assert state is not None
            assert all("run_state" not in str(item) for item in await ours.get_items())
            state.approve(state.get_interruptions()[0])
            found = await Runner.run(script.agent, state, session=ours, hooks=ours.hooks)
            await ours.save_state(found.to_state())  # waits for the second one
        with Session("s", workspace=work, store=tmp_path / "store") as session:
            ours = CheckpointSession(session)
            state = await ours.load_state(script.agent)
            assert state is not None
            state.reject(state.get_interruptions()[0], rejection_message="no")
            found = await Runner.run(script.agent, state, session=ours, hooks=ours.hooks)
            assert found.final_output == "done"
            assert await ours.load_state(script.agent) is None
            assert outputs(await ours.get_items()) == ["wrote a.txt", "no"]

    asyncio.run(ask())
    assert files(work) == []
    asyncio.run(answer())
    assert files(work) == ["a.txt"]


def test_a_rollback_takes_a_waiting_run_back(work: Path, tmp_path: Path) -> None:
    async def go_on() -> None:
        with Session("s", workspace=work, store=tmp_path / "store") as session:
            ours, script = CheckpointSession(session), Script(work, approval=True)
            found = await Runner.run(script.agent, "go", session=ours)
            await ours.save_state(found.to_state())
            session.rollback(to="@1")
            assert await CheckpointSession(session).load_state(script.agent) is None

    asyncio.run(go_on())
