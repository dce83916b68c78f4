"""The packages in `plugins/`: each agent installs its own, and every call is saved."""

import json
from pathlib import Path

import pytest

from tests.coding_agents.programs import ClaudeCode, Codex, GeminiCli, Program

pytestmark = pytest.mark.slow

PLUGINS = Path(__file__).parents[2] / "plugins"
NAME = "agent-checkpoint@agent-checkpoint"


def add_plugin(program: Program) -> None:
    """Install the package as the documentation says."""
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


def test_every_call_is_saved(program: Program) -> None:
    if program.agent not in ("claude-code", "codex", "gemini"):
        return
    add_plugin(program)
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    program.run(program.start("make a file"))
    rows = program.command("rewind")["checkpoints"]
    program.command("rewind", rows[-1]["id"], "--yes")
    assert program.files() == []
    (found,) = [
        row
        for row in program.command("hook", "status")["agents"]
        if (row["agent"], row["scope"]) == (program.agent, "user")
    ]
    assert found["last_checkpoint"] is not None


def test_the_command_that_lists_checkpoints(program: Program) -> None:
    if program.agent not in ("claude-code", "gemini"):
        return  # plugins of Codex have no commands
    add_plugin(program)
    program.model.script = [(program.ask("echo 1 > f1.txt"),), ("done",)]
    program.run(program.start("make a file"))
    name = "/agent-checkpoint:checkpoints" if program.agent == "claude-code" else "/checkpoints"
    program.run(program.resume(name))
    assert "echo 1 > f1.txt" in json.dumps(program.model.heard[-1][-1])
