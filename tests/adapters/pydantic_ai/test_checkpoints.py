"""Runs of Pydantic AI in a session: points, rollback, fork, killed turns, the workspace."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError, Session

pytest.importorskip("pydantic_ai", reason="needs pydantic-ai-slim")
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import (
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.workspaces import WorkspaceRef
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from agent_checkpoint.adapters.pydantic_ai import (
    Checkpoints,
    SessionWorkspaceBackend,
    message_history,
)


class Writer:
    """An agent that writes a.txt and b.txt in one turn, c.txt in the next, and is done."""

    steps = (("a.txt", "b.txt"), ("c.txt",))

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.made: list[str] = []
        self.fails_at = ""
        tools = [Tool(self.write, sequential=True)]
        self.agent = Agent(FunctionModel(self._reply), tools=tools)

    async def write(self, ctx: RunContext[Any], file: str) -> str:
        """Write a file of the workspace of the run."""
        if file == self.fails_at:
            raise KeyboardInterrupt
        self.made.append(file)
        await ctx.workspace.write_text(file, "x")
        return f"wrote {file}"

    def _reply(self, messages: Any, info: Any) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        done = len([part for part in parts if isinstance(part, ToolReturnPart)])
        self.asked.append(done)
        for turn in self.steps:
            if done < len(turn):
                calls = [ToolCallPart("write", {"file": file}, uuid4().hex) for file in turn]
                return ModelResponse(calls)
            done -= len(turn)
        return ModelResponse([TextPart("done")])

    def run(self, session: Session, said: "str | None" = "go") -> Any:
        history = message_history(session)
        run = self.agent.run(said, message_history=history, capabilities=[Checkpoints(session)])
        return asyncio.run(_awaited(run))  # run_sync leaves its event loop open


async def _awaited(run: "Awaitable[Any]") -> Any:
    return await run


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def files(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


def labels(session: Session) -> list[Any]:
    return [row["label"] for row in reversed(session.history()) if row["kind"] == "save"]


def at_turn(session: Session, number: int) -> str:
    rows = [row for row in reversed(session.history()) if row["label"] == "CallToolsNode"]
    return rows[number]["id"]


def test_each_reply_and_each_tool_is_a_point(work: Path, tmp_path: Path) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        result = Writer().run(session)
        assert labels(session) == [
            "UserPromptNode",
            "ModelRequestNode",
            "write",
            "write",
            "CallToolsNode",
            "ModelRequestNode",
            "write",
            "CallToolsNode",
            "ModelRequestNode",
        ]
        assert message_history(session) == result.all_messages()
        state = session.manager.state_dict("s", at_turn(session, 0))
        assert len(state["messages"]) == 3
    assert files(work) == ["a.txt", "b.txt", "c.txt"]


def test_files_and_conversation_are_rolled_back_together(work: Path, tmp_path: Path) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        Writer().run(session)
        session.rollback(to=at_turn(session, 0))
        assert files(work) == ["a.txt", "b.txt"]
    writer = Writer()
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        assert writer.run(session, None).output == "done"
        assert writer.asked == [2, 3]
        assert writer.made == ["c.txt"]


def test_a_fork_has_its_own_files_and_conversation(work: Path, tmp_path: Path) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        Writer().run(session)
        before = message_history(session)
        with session.fork("try", at=at_turn(session, 0)) as branch:
            assert branch.workspace is not None
            Writer().run(branch, "otherwise")
            assert files(branch.workspace.path) == ["a.txt", "b.txt", "c.txt"]
            assert "otherwise" in str(message_history(branch))
        assert message_history(session) == before


def test_a_killed_turn_repeats_no_call_that_had_ended(work: Path, tmp_path: Path) -> None:
    writer = Writer()
    writer.fails_at = "c.txt"
    session = Session("s", workspace=work, store=tmp_path / "store")
    with pytest.raises(KeyboardInterrupt):
        writer.run(session)
    session.rollback(to=next(r["id"] for r in session.history()[::-1] if r["label"] == "write"))
    session.close()
    assert files(work) == ["a.txt"]
    writer = Writer()
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        result = writer.run(session, None)
        assert writer.made == ["b.txt", "c.txt"]
        assert writer.asked == [2, 3]
        parts = [part for message in result.all_messages() for part in message.parts]
        returned = [part.content for part in parts if isinstance(part, ToolReturnPart)]
        assert returned == ["wrote a.txt", "wrote b.txt", "wrote c.txt"]


def test_a_second_prompt_continues_the_conversation() -> None:
    with Session("s", store=CheckpointManager()) as session:
        agent = Agent(FunctionModel(lambda messages, info: ModelResponse([TextPart("ok")])))
        for said in ("one", "two"):
            history = message_history(session)
            run = agent.run(said, message_history=history, capabilities=[Checkpoints(session)])
            asyncio.run(_awaited(run))
        assert [m.parts[0].content for m in message_history(session)] == ["one", "ok", "two", "ok"]  # type: ignore[union-attr]


# -- the workspace ---------------------------------------------------------------------------------


def test_a_session_without_a_workspace_has_no_backend() -> None:
    with Session("s", store=CheckpointManager()) as session:
        with pytest.raises(InvalidInputError, match="no workspace"):
            SessionWorkspaceBackend(session)
        assert Checkpoints(session).get_workspace(None, ref=None) is None


def test_a_reference_of_another_workspace_is_declined(work: Path, tmp_path: Path) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        backend = SessionWorkspaceBackend(session)
        assert backend.ref == WorkspaceRef(provider="agent-checkpoint", id="s")
        capability = Checkpoints(session)
        assert capability.get_workspace(None, ref=backend.ref).ref == backend.ref
        other = WorkspaceRef(provider="local", id="/")
        assert capability.get_workspace(None, ref=other) is None


class TestSessionWorkspace(WorkspaceBackendSuite):
    """The conformance suite of Pydantic AI."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    def session(self, tmp_path: Path) -> Any:
        (tmp_path / "work").mkdir()
        session = Session("s", workspace=tmp_path / "work", store=tmp_path / "store")
        yield session
        session.close()

    @pytest.fixture
    def backend(self, session: Session) -> Any:
        return SessionWorkspaceBackend(session)

    @pytest.fixture
    def destructive_backend(self, session: Session) -> "Callable[[], Any]":
        return lambda: SessionWorkspaceBackend(session)

    @pytest.fixture
    def attach_backend(self, session: Session) -> "Callable[[WorkspaceRef], Any]":
        return lambda ref: Checkpoints(session).get_workspace(None, ref=ref)

    @pytest.fixture
    def destroy_environment(self) -> "Callable[[Any], Awaitable[None]]":
        async def destroy(backend: Any) -> None:
            import shutil

            shutil.rmtree(await backend.working_dir())

        return destroy
