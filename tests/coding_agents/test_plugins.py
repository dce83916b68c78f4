"""The packages in `plugins/`: each agent installs its own, and every call is saved."""

import json
from pathlib import Path

import pytest

from tests.coding_agents.model_server import Ask
from tests.coding_agents.programs import (
    ClaudeCode,
    Cline,
    Codex,
    CopilotCli,
    GeminiCli,
    Goose,
    OpenCode,
    Program,
    QwenCode,
)

pytestmark = pytest.mark.slow

PLUGINS = Path(__file__).parents[2] / "plugins"
NAME = "agent-checkpoint@agent-checkpoint"


def add_plugin(program: Program) -> None:
    """Install the package as the documentation says; some have only the hook."""
    if isinstance(program, (OpenCode, Cline, Goose)):
        return
    program.command("hook", "uninstall", program.agent)
    if isinstance(program, ClaudeCode):
        program.run(["claude", "plugin", "marketplace", "add", str(PLUGINS)])
        program.run(["claude", "plugin", "install", NAME])
    elif isinstance(program, Codex):
        program.run([str(program.program), "plugin", "marketplace", "add", str(PLUGINS)])
        program.run([str(program.program), "plugin", "add", NAME])
    elif isinstance(program, GeminiCli):
        link = ["extensions", "link", str(PLUGINS / "gemini"), "--consent"]
        program.run([*program.program, *link])
    elif isinstance(program, QwenCode):
        program.run([*program.program, "extensions", "install", str(PLUGINS / "qwen"), "--consent"])
    elif isinstance(program, CopilotCli):
        program.run([str(program.program), "plugin", "marketplace", "add", str(PLUGINS)])
        program.run([str(program.program), "plugin", "install", NAME])


def test_every_call_is_saved(program: Program) -> None:
    add_plugin(program)
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    program.run(program.start("make a file"))
    rows = program.command("rewind")["checkpoints"]
    program.command("rewind", rows[-1]["id"], "--yes")
    assert program.files() == []
    rows = program.command("hook", "status")["agents"]
    found = {row["scope"]: row for row in rows if row["agent"] == program.agent}
    assert found["user"]["last_checkpoint"] is not None
    is_plugin = not isinstance(program, (OpenCode, Cline, Goose))
    assert found["user"]["installed"] != is_plugin
    if is_plugin:
        assert found["user"]["problems"] == []
        assert found["plugin"]["installed"]


SKILLS = {
    "checkpoints": "Run `agent-checkpoint rewind`",
    "rewind-preview": "Run `agent-checkpoint rewind @N --dry-run`",
}
OUTPUT = {"checkpoints": "echo 1 > f1.txt", "rewind-preview": "delete f1.txt"}


@pytest.mark.parametrize("name", OUTPUT)
def test_the_commands_inside_the_agent(program: Program, name: str) -> None:
    """The model hears the output of ours, or, where there are only skills, what to run."""
    if isinstance(program, (Cline, Goose)):
        return  # they have no commands of plug-ins
    add_plugin(program)
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    program.turn(program.start("make a file"), 2)
    words = name if name == "checkpoints" else f"{name} @1"
    command, expected = program.resume(f"/{words}"), OUTPUT[name]
    if isinstance(program, ClaudeCode):
        command = program.resume(f"/agent-checkpoint:{words.replace('-preview', '')}")
    elif isinstance(program, Codex):
        command, expected = program.resume(f"$agent-checkpoint:{words}"), SKILLS[name]
    elif isinstance(program, CopilotCli):  # headless, its model starts a skill by a call
        expected = SKILLS[name]
        program.model.script.append((Ask("skill", {"skill": name}),))
    elif isinstance(program, OpenCode):
        typed = words.replace("-preview", "").split()
        command = [str(program.program), "run", "-s", program.session, "--command", *typed]
    program.run(command)
    assert expected in json.dumps(program.model.heard[-1][-1])
