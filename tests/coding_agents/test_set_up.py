"""What a user sets up: settings in other places, reviews, sub-directories; and what status says."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.coding_agents.programs import Cline, Codex, Program
from tests.coding_agents.terminal import wait_until

pytestmark = pytest.mark.slow


def status(program: Program) -> "dict[str, Any]":
    rows = program.command("hook", "status")["agents"]
    (found,) = [one for one in rows if (one["agent"], one["scope"]) == (program.agent, "user")]
    return dict(found)


def test_a_sub_directory_of_a_repository(program: Program) -> None:
    """All of the repository is saved and rewound, wherever in it the agent starts."""
    (program.project / ".git").mkdir()
    below = program.project / "below"
    below.mkdir()
    program.model.script = [(program.ask("echo 1 > ../f1.txt"),), ("done",)]
    program.run(program.start("make a file"), cwd=below)
    rows = program.command("rewind", cwd=below)["checkpoints"]
    found = program.command("rewind", rows[-1]["id"], "--yes", cwd=below)
    assert found["directory"] == str(program.project)
    assert program.files() == [".git", "below"]
    if program.agent != "codex":  # its tests do not review hooks, but bypass the review
        assert status(program)["problems"] == []


MOVED = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude", "."),
    "codex": ("CODEX_HOME", ".codex", "."),
    "gemini": ("GEMINI_CLI_HOME", ".gemini", ".gemini"),
    "qwen": ("QWEN_HOME", ".qwen", "."),
    "copilot": ("COPILOT_HOME", ".copilot", "."),
    "opencode": ("XDG_CONFIG_HOME", ".config", "."),
    "cline": ("CLINE_DIR", ".cline", "."),
}
"""The variable that moves settings, their directory, and the one in the new place."""


def test_settings_in_another_place(program: Program) -> None:
    if program.agent not in MOVED:
        return  # no variable moves the settings of goose
    variable, usual, name = MOVED[program.agent]
    moved = program.home / "moved"
    program.command("hook", "uninstall", program.agent)
    program.environment[variable] = str(moved)
    if (program.home / usual).exists():
        moved.mkdir()
        (program.home / usual).rename(moved / name if name != "." else moved)
    program.command("hook", "install", program.agent)
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    program.run(program.start("make a file"))
    assert any("f1.txt" in row["label"] for row in program.command("rewind")["checkpoints"])


def hooks_list(program: Codex) -> "list[dict[str, Any]]":
    """Return the hooks as Codex itself sees them."""
    server = subprocess.Popen(
        [str(program.program), "app-server"],
        cwd=program.project,
        env=program.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    about = {"clientInfo": {"name": "test", "title": "test", "version": "1"}}
    for message in (
        {"id": 1, "method": "initialize", "params": about},
        {"method": "initialized"},
        {"id": 2, "method": "hooks/list", "params": {"cwds": [str(program.project)]}},
    ):
        server.stdin.write(json.dumps(message) + "\n")
        server.stdin.flush()
    answers = (json.loads(line) for line in server.stdout)
    found = next(answer for answer in answers if answer.get("id") == 2)
    server.kill()
    server.wait()
    server.stdin.close()
    server.stdout.close()
    return [hook for one in found["result"]["data"] for hook in one["hooks"]]


def test_codex_runs_only_hooks_that_were_reviewed(program: Program) -> None:
    if not isinstance(program, Codex):
        return
    program.trust = ()
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    program.run(program.start("make a file"))
    assert status(program)["last_event"] is None
    assert status(program)["reviewed"] is False
    with program.settings.open("a") as file:
        for hook in hooks_list(program):
            file.write(f"\n[hooks.state.{json.dumps(hook['key'])}]\n")
            file.write(f"trusted_hash = {json.dumps(hook['currentHash'])}\n")
    assert status(program)["reviewed"] is True
    program.model.script = [(program.ask("echo 2 > f2.txt"),), ("done",)]
    program.run(program.start("make another file"))
    assert status(program)["last_checkpoint"] is not None
    assert any("f2.txt" in row["label"] for row in program.command("rewind")["checkpoints"])
    assert Path(status(program)["file"]).name == "hooks.json"
    other = str(program.home / "other")
    program.command("--store", other, "hook", "install", program.agent)
    program.model.script = [(program.ask("echo 3 > f3.txt"),), ("done",)]
    program.run(program.start("make a third file"))  # the hook has changed since the review
    assert "have changed since you reviewed them" in status(program)["problems"][0]
    assert not Path(other).exists()


def test_a_slow_save_does_not_fail_a_run_of_cline(program: Program) -> None:
    """Cline fails a run if a hook takes 3 seconds; the save goes on."""
    if not isinstance(program, Cline):
        return
    file = Path(status(program)["file"])
    before = 'const COMMAND = "'
    file.write_text(file.read_text().replace(before, f"{before}sleep 5; "))
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    program.run(program.start("make a file"))
    assert len(program.model.heard) == 2
    wait_until(lambda: status(program)["last_checkpoint"] is not None)
