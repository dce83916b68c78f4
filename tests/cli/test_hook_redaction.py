"""`hook install --redact on`: conversations are saved without secrets, and the preview says so."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.backends.default_paths import default_store
from tests.cli.test_rewind_mine import A, Shared
from tests.cli.world import run

KEY = f"claude-code/{A}"
TOKEN = "ghp_" + "Zx81kd0dJw2nQ7vLmP4sT6yUa9Bc3De5Fg7H"
HIDDEN = "[redacted:github-token]"


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    found = Shared(tmp_path / "project")
    yield found
    found.saver.close()


def say(shared: Shared, **record: Any) -> str:
    """Write a line of the transcript; return its path."""
    path = shared.place.parent / "transcript.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    return str(path)


def session(shared: Shared) -> str:
    path = say(shared, type="user", message={"role": "user", "content": f"push with {TOKEN}"})
    shared.send(A, "UserPromptSubmit", "", prompt=f"push with {TOKEN}", transcript_path=path)
    given = {"command": f"git push https://x:{TOKEN}@host/x"}
    use = [{"type": "tool_use", "id": "toolu_0", "name": "Bash", "input": given}]
    say(shared, type="assistant", message={"role": "assistant", "content": use})
    shared.call(A, "key.txt", TOKEN, tool_input=given, transcript_path=path)
    result = [{"type": "tool_result", "tool_use_id": "toolu_0", "content": "done"}]
    say(shared, type="user", message={"role": "user", "content": result})
    shared.send(A, "Stop", "", transcript_path=path)
    return path


def saved() -> str:
    """Return all that is saved of the session, but for the files."""
    with CheckpointManager(str(default_store())) as manager:
        found = []
        for row in manager.history(KEY, n=100):
            state = manager.state_dict(KEY, checkpoint_id=row["id"])
            found += [row, list(state["transcript"]), state["hook"]]
        return json.dumps(found, default=str)


def turn_on(shared: Shared) -> None:
    done = run("hook", "install", "claude-code", "--redact", "on", at=shared.place)
    assert done.status == 0, done.err


def test_nothing_is_redacted_unless_asked(shared: Shared) -> None:
    session(shared)
    assert TOKEN in saved()
    assert HIDDEN not in saved()
    assert run("hook", "status", "--json", at=shared.place).data["redacted"] is False


def test_secrets_are_not_saved_and_the_preview_says_so(shared: Shared) -> None:
    turn_on(shared)
    path = Path(session(shared))
    assert TOKEN not in saved()
    assert HIDDEN in saved()
    assert run("hook", "status", "--json", at=shared.place).data["redacted"] is True
    rows = run("log", KEY, "--json", at=shared.place).data["checkpoints"]
    assert rows[0]["redacted"] == 2
    before = path.read_text()
    preview = run("rewind", "@~1", "--dry-run", at=shared.place)
    assert "Secrets in 2 lines of the saved conversation were redacted (1, 2)" in preview.out
    done = run("rewind", "@~1", "--yes", "--json", at=shared.place).data
    assert TOKEN not in path.read_text()
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert Path(done["transcript_before"]).read_text() == before  # the real one is kept
    assert (shared.place / "key.txt").read_text() == TOKEN  # files are saved as they are
    run("rewind", done["safety_id"], "--yes", at=shared.place)
    assert TOKEN not in saved()


def test_it_is_turned_off_again(shared: Shared) -> None:
    turn_on(shared)
    done = run("hook", "install", "claude-code", "--redact", "off", at=shared.place)
    assert done.status == 0, done.err
    session(shared)
    assert TOKEN in saved()


def test_a_daemon_follows_the_setting(shared: Shared) -> None:
    path = session(shared)
    turn_on(shared)
    shared.call(A, "more.txt", "x", transcript_path=path)
    with CheckpointManager(str(default_store())) as manager:
        state = manager.state_dict(KEY)
    assert TOKEN not in json.dumps([list(state["transcript"]), state["hook"]])
