"""The real CLI of the SDK, against a scripted model: checkpoints, resume, rewind, fork."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, ConflictError, Session
from examples.offline.scripted_anthropic import LAST, ScriptedAnthropic, results, serve

sdk = pytest.importorskip("claude_agent_sdk")

from agent_checkpoint.adapters.claude_agent_sdk import (  # noqa: E402
    SessionStore,
    checkpoint_hooks,
    session_options,
)

TURNS = [
    [("Bash", {"command": "echo one > a.txt"}), ("Bash", {"command": "echo uno > c.txt"})],
    [("Bash", {"command": "echo two > b.txt"})],
]


@pytest.fixture
def model() -> Iterator[ScriptedAnthropic]:
    server = serve(TURNS)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def ask(model: ScriptedAnthropic, prompt: str, **options: Any) -> Any:
    """Run the agent; return its result message."""

    async def run() -> Any:
        given = sdk.ClaudeAgentOptions(
            permission_mode="bypassPermissions",
            setting_sources=[],
            env=model.environment,
            **options,
        )
        found = [message async for message in sdk.query(prompt=prompt, options=given)]
        return next(one for one in found if isinstance(one, sdk.ResultMessage))

    return asyncio.run(run())


def names(session: Session) -> list[str]:
    assert session.workspace is not None
    return sorted(path.name for path in session.workspace.path.iterdir())


def labels(session: Session) -> list[Any]:
    return [row["label"] for row in reversed(session.history()) if row["kind"] == "save"]


def at(session: Session, label: str) -> str:
    return next(row["id"] for row in session.history() if row["label"] == label)


def done(entries: Any) -> int:
    """The number of tool results in a transcript."""
    messages = [one["message"] for one in entries if one["type"] in ("user", "assistant")]
    return len(results(messages))


def said(body: Any) -> str:
    """The text of a request's conversation."""
    return json.dumps(body["messages"])


@pytest.mark.slow
def test_a_run_is_checkpointed_and_resumed(
    model: ScriptedAnthropic, work: Path, tmp_path: Path
) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        assert ask(model, "go", **session_options(session)).result == LAST
        assert labels(session) == ["SDK session begins", "Bash, Bash", "Bash"]
        for label, number in (("Bash, Bash", 2), ("Bash", 3)):
            state = session.manager.state_dict("s", at(session, label))
            assert done(state["messages"]) == number
        assert session.messages[-1]["type"] != "queue-operation"
    assert [len(results(body["messages"])) for body in model.requests] == [0, 2, 3]

    with Session("s", workspace=work, store=tmp_path / "store") as session:
        options = session_options(session)
        assert "resume" in options
        assert ask(model, "and now?", **options).result == LAST
        assert len(results(model.requests[-1]["messages"])) == 3
        assert "and now?" in said(model.requests[-1])
        assert len(model.requests) == 4
        stored = asyncio.run(
            options["session_store"].load(
                {
                    "project_key": sdk.project_key_for_directory(str(work)),
                    "session_id": options["resume"],
                }
            )
        )
        assert session.messages.to_list() == stored


@pytest.mark.slow
def test_files_and_conversation_are_rewound_together(
    model: ScriptedAnthropic, work: Path, tmp_path: Path
) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        first = session_options(session)["session_id"]
        ask(model, "go", **session_options(session))
        session.rollback(to=at(session, "Bash, Bash"))
        assert names(session) == ["a.txt", "c.txt"]
    # Another process goes on: it knows of the rollback.
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        options = session_options(session)
        assert options["resume"] != first
        seen = len(model.requests)
        assert ask(model, "zebra", **options).result == LAST
        assert len(results(model.requests[seen]["messages"])) == 2
        assert LAST not in said(model.requests[seen])
        assert names(session) == ["a.txt", "b.txt", "c.txt"]
        session.undo()
        assert done(session.messages) == 3
        ask(model, "after all", **session_options(session))
        assert len(results(model.requests[-1]["messages"])) == 3


@pytest.mark.slow
def test_a_fork_has_its_own_files_and_conversation(
    model: ScriptedAnthropic, work: Path, tmp_path: Path
) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        ask(model, "go", **session_options(session))
        before, history = names(session), len(session.history())
        with session.fork("try", at=at(session, "Bash, Bash")) as branch:
            assert names(branch) == ["a.txt", "c.txt"]
            options = session_options(branch)
            assert ask(model, "zebra", **options).result == LAST
            assert options["cwd"] == str(branch.workspace and branch.workspace.path)
            assert names(branch) == ["a.txt", "b.txt", "c.txt"]
            assert "zebra" in json.dumps(branch.messages.to_list())
        assert (names(session), len(session.history())) == (before, history)
        assert "zebra" not in json.dumps(session.messages.to_list())
        ask(model, "go on", **session_options(session))
        assert "zebra" not in said(model.requests[-1])


@pytest.mark.slow
def test_the_hooks_alone_capture_the_transcript_of_the_cli(
    model: ScriptedAnthropic, work: Path, tmp_path: Path
) -> None:
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        ask(model, "go", cwd=str(work), hooks=checkpoint_hooks(session))
        assert labels(session) == ["Bash, Bash", "Bash"]
        state = session.manager.state_dict("s", at(session, "Bash, Bash"))
        assert done(state["messages"]) == 2
        session.rollback(to=at(session, "Bash, Bash"))
        seen = len(model.requests)
        ask(model, "zebra", **session_options(session))
        assert len(results(model.requests[seen]["messages"])) == 2


@pytest.mark.slow
def test_the_store_alone_resumes_on_another_machine(
    model: ScriptedAnthropic, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SessionStore(tmp_path / "store")
    first = ask(model, "go", cwd=str(work), session_store=store)
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "other"))  # no local transcript
    store = SessionStore(tmp_path / "store")
    again = ask(model, "and now?", cwd=str(work), session_store=store, resume=first.session_id)
    assert again.result == LAST
    assert len(results(model.requests[-1]["messages"])) == 3


@pytest.mark.slow
def test_the_cli_does_not_make_a_call_that_stands_open_in_a_transcript(
    model: ScriptedAnthropic, work: Path, tmp_path: Path
) -> None:
    """Why a kill costs a reply of the model: see docs/frameworks.md.

    If this fails, the CLI has learnt it, and `session_options` could keep the reply.
    """
    with Session("s", workspace=work, store=tmp_path / "store") as session:
        ask(model, "go", **session_options(session))
        whole = session.messages.to_list()
    calls = [n for n, entry in enumerate(whole) if "tool_use" in str(entry.get("message"))]
    for path in work.iterdir():
        path.unlink()
    store, known = SessionStore(tmp_path / "other"), "22222222-2222-4222-8222-222222222222"
    key: Any = {"project_key": sdk.project_key_for_directory(str(work)), "session_id": known}
    # The transcript as it is if the reply was captured before its tools began.
    store.append_entries(key, [{**one, "sessionId": known} for one in whole[: calls[1] + 1]])
    seen = len(model.requests)
    ask(model, "Continue.", cwd=str(work), session_store=store, resume=known)
    told = results(model.requests[seen]["messages"])
    assert [block["is_error"] for block in told] == [True, True]
    assert all("interrupted" in str(block["content"]) for block in told)
    assert sorted(path.name for path in work.iterdir()) == ["b.txt"]  # not a.txt, c.txt


def entries(*numbers: int) -> list[Any]:
    return [{"type": "user", "uuid": f"u{number}", "sessionId": "old"} for number in numbers]


def keep(session: Session, options: Any, added: list[Any]) -> None:
    """Append to the transcript as the SDK does."""
    sdk_id = options.get("resume") or options["session_id"]
    project = sdk.project_key_for_directory(options.get("cwd"))
    key: Any = {"project_key": project, "session_id": sdk_id}
    asyncio.run(options["session_store"].append(key, added))


def test_what_came_after_the_last_checkpoint_is_not_lost() -> None:
    manager = CheckpointManager()
    session = Session("s", store=manager)
    options = session_options(session)
    keep(session, options, entries(1, 2))
    session.save()
    keep(session, options, entries(3))
    # Killed here.
    with Session("s", store=manager) as session:
        assert len(session.messages) == 2
        again = session_options(session)
        assert again["resume"] == options["session_id"]
        assert [one["uuid"] for one in session.messages] == ["u1", "u2", "u3"]


def test_a_session_that_was_killed_before_its_first_entry_begins_again() -> None:
    manager = CheckpointManager()
    first = session_options(Session("s", store=manager))["session_id"]
    with Session("s", store=manager) as session:
        assert session_options(session)["session_id"] != first


@pytest.mark.parametrize(("on_drift", "expected"), [("keep", 2), ("restore", 1)])
def test_restored_files_go_with_the_conversation_of_their_checkpoint(
    on_drift: Any, expected: int, work: Path, tmp_path: Path
) -> None:
    session = Session("s", workspace=work, store=tmp_path / "store")
    options = session_options(session)
    keep(session, options, entries(1))
    session.save()
    keep(session, options, entries(2))
    (work / "later.txt").write_text("x")
    session.close()
    other = Session("s", workspace=work, store=tmp_path / "store", on_drift=on_drift)
    again = session_options(other)
    assert (again["resume"] == options["session_id"]) == (on_drift == "keep")
    assert len(other.messages) == expected
    other.close()


def test_sub_agents_do_not_mix_with_the_conversation() -> None:
    with Session("s", store=CheckpointManager()) as session:
        options = session_options(session)
        keep(session, options, entries(1))
        project = sdk.project_key_for_directory(None)
        sub: Any = {"project_key": project, "session_id": options["session_id"], "subpath": "a"}
        asyncio.run(options["session_store"].append(sub, entries(1, 7)))
        assert [one["uuid"] for one in session.messages] == ["u1"]
        assert asyncio.run(options["session_store"].load(sub)) == entries(1, 7)


def test_a_checkpoint_that_fails_stops_the_agent() -> None:
    manager = CheckpointManager()
    session = Session("s", store=manager)
    callback = session_options(session)["hooks"]["PostToolBatch"][0].hooks[0]
    event = {"tool_calls": [], "transcript_path": "none"}
    assert asyncio.run(callback(event, None, {})) == {}
    Session("s", store=manager)  # another process takes over
    with pytest.raises(ConflictError):
        session.save()
    told = asyncio.run(callback(event, None, {}))
    assert told["continue_"] is False
    assert "opened again elsewhere" in told["stopReason"]
