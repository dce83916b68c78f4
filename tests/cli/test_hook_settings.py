"""`hook install`: the settings of agents get our hooks, and lose nothing."""

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from agent_checkpoint.cli.hooks.events import AGENTS
from agent_checkpoint.cli.hooks.settings import (
    FORMS,
    command_of,
    events_of,
    install,
    installed,
    uninstall,
)
from agent_checkpoint.cli.hooks.spans import parse
from agent_checkpoint.errors import InvalidInputError
from tests.cli.scene import Scene, scene
from tests.cli.test_hook import CLAUDE

OWN = """{
    // what a person wrote
    "theme": "dark", /* and
    why */
    "hooks": {
        "BeforeTool": [
            // checks
            {"matcher": "write_.*", "hooks": [{"type": "command", "command": "./check.sh"}]}
        ],
        "Notification": []
    },
    "last": [1, 2.50, "ü // no comment"]
}
"""


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        yield found


@pytest.mark.parametrize("agent", AGENTS)
def test_a_new_file_has_all_events_of_the_format(agent: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "settings.json"
    assert not installed(agent, path)
    assert install(agent, path)
    assert installed(agent, path)
    hooks = json.loads(path.read_text())["hooks"]
    assert list(hooks) == list(events_of(agent))
    for groups in hooks.values():
        ((handler,),) = (group["hooks"] for group in groups)
        assert handler["type"] == "command"
        assert handler["command"] == command_of(agent)
        assert handler["timeout"] == (30_000 if agent == "gemini" else 30)
    assert path.read_text().startswith('{\n  "hooks": {\n    "')


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{}\n",
        '{\n  "a": 1\n}\n',
        '{\n\t"a": {"b": [1]},\n\t"c": null\n}',
        '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "mine"}]}]}, "z": 1}',
        '{"z": 1, "hooks": {"Other": [{"hooks": []}]}}',
        '{\r\n  "a": "\\u00fc\\"{"\r\n}\r\n',
    ],
)
def test_out_again_the_file_is_what_it_was(agent: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(text.encode())
    path.chmod(0o640)
    assert install(agent, path)
    found = json.loads(path.read_text())
    own = json.loads(text)
    for name, value in own.items():
        if name != "hooks":
            assert found[name] == value
    once = path.read_bytes()
    assert not install(agent, path)
    assert path.read_bytes() == once
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    backup = tmp_path / "settings.json.before-agent-checkpoint"
    assert backup.read_bytes() == text.encode()
    assert uninstall(agent, path)
    assert path.read_bytes().decode() == text
    assert not uninstall(agent, path)


def test_comments_and_order_stay(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(OWN)
    assert install("gemini", path)
    text = path.read_text()
    for piece in ("// what a person wrote", "/* and\n    why */", "// checks", "2.50"):
        assert piece in text
    hooks = parse(text, comments=True).value["hooks"]
    assert [len(hooks[event]) for event in ("BeforeTool", "AfterTool")] == [2, 1]
    assert hooks["BeforeTool"][0]["hooks"][0]["command"] == "./check.sh"
    assert uninstall("gemini", path)
    assert path.read_text() == OWN


def test_what_the_user_put_beside_ours_stays(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    install("codex", path)
    data = json.loads(path.read_text())
    mine = {"type": "command", "command": "mine"}
    data["hooks"]["Stop"][0]["hooks"].append(mine)
    data["hooks"]["PostToolUse"].insert(0, {"hooks": [mine]})
    path.write_text(json.dumps(data))
    assert uninstall("codex", path)
    left = json.loads(path.read_text())["hooks"]
    assert left == {"PostToolUse": [{"hooks": [mine]}], "Stop": [{"hooks": [mine]}]}


def test_an_older_command_of_ours_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    install("claude-code", path)
    path.write_text(path.read_text().replace("-I -S", "-I"))
    assert not installed("claude-code", path)
    assert install("claude-code", path)
    hooks = json.loads(path.read_text())["hooks"]
    assert all(len(groups) == 1 for groups in hooks.values())


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"hooks": []}', '{"hooks": {"Stop": {}}}', "{'a': 1}", '{"a": 1,}', "\udcff"],
)
@pytest.mark.parametrize("agent", AGENTS)
def test_a_file_that_does_not_parse_is_not_touched(text: str, agent: str, tmp_path: Path) -> None:
    text = text.replace("Stop", FORMS[agent].events[0])
    path = tmp_path / "settings.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    for verb in (install, uninstall):
        with pytest.raises(InvalidInputError, match=r"settings\.json"):
            verb(agent, path)
    assert path.read_bytes() == text.encode("utf-8", "surrogateescape")
    assert [found.name for found in tmp_path.iterdir()] == ["settings.json"]


def test_comments_are_refused_where_the_agent_refuses_them(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text("{} // mine")
    with pytest.raises(InvalidInputError):
        install("codex", path)


@pytest.mark.parametrize(
    ("says", "is_known"),
    [
        ("2.1.145 (Claude Code)", True),
        ("2.2.0 (Claude Code)", True),
        ("2.1.100 (Claude Code)", False),
        ("what?", False),
        (None, False),
    ],
)
def test_events_that_an_old_version_would_choke_on(
    says: Optional[str], is_known: bool, work: Scene
) -> None:
    programs = work.place / "bin"
    programs.mkdir()
    if says is not None:
        (programs / "claude").write_text(f"#!/bin/sh\necho '{says}'\n")
        (programs / "claude").chmod(0o755)
    path = f"{programs}:/usr/bin:/bin"
    work.command("hook", "install", "claude-code", PATH=path)
    assert "already" in work.command("hook", "install", "claude-code", PATH=path)
    settings = work.place / "home" / ".claude" / "settings.json"
    hooks = json.loads(settings.read_text())["hooks"]
    assert ("PostToolBatch" in hooks) == is_known
    (programs / "claude").write_text("#!/bin/sh\necho 2.1.200\n")
    (programs / "claude").chmod(0o755)
    work.command("hook", "install", "claude-code", PATH=path)  # after an update
    assert "PostToolBatch" in json.loads(settings.read_text())["hooks"]
    work.command("hook", "uninstall", "claude-code", PATH="/nowhere")
    assert json.loads(settings.read_text()) == {}


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, path = tmp_path / "dotfiles.json", tmp_path / "settings.json"
    real.write_text("{}")
    path.symlink_to(real)
    install("claude-code", path)
    assert path.is_symlink()
    assert "hooks" in json.loads(real.read_text())


def test_the_command_installs_for_the_user_or_the_project(work: Scene) -> None:
    home = Path(work.environment["HOME"])
    assert str(home / ".claude" / "settings.json") in work.command("hook", "install", "claude-code")
    assert "already" in work.command("hook", "install", "claude-code", "--user")
    work.command("hook", "install", "codex", "--project")
    assert (work.workspace / ".codex" / "hooks.json").exists()
    told = json.loads(work.command("hook", "status", "--json"))
    states = {(row["agent"], row["scope"]): row["installed"] for row in told["agents"]}
    assert [name for name, found in states.items() if found] == [
        ("claude-code", "user"),
        ("codex", "project"),
    ]
    work.command("hook", "uninstall", "claude-code")
    assert json.loads((home / ".claude" / "settings.json").read_text()) == {}
    work.command("hook", "install", "cursor", status=2)
    work.command("hook", "install", status=2)
    work.hook("claude-code", b"no json")
    assert "no JSON" in work.command("hook", "status")


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_installed_runs(agent: str, work: Scene) -> None:
    name = {"gemini": "gemini.after-tool"}.get(agent, f"{agent}.post-tool-use")
    done = subprocess.run(
        ["sh", "-c", command_of(agent)],
        input=json.dumps(work.event(name)).encode(),
        env=work.environment,
        cwd=work.workspace,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (b"{}\n" if agent == "gemini" else b"")
    assert len(work.keys()) == 1


@pytest.mark.parametrize("agent", AGENTS)
def test_without_the_package_the_agent_goes_on(agent: str) -> None:
    # The status 2, which Python has for a missing file, would stop every tool call.
    for gone in ("client.py", "python"):
        command = command_of(agent).replace(gone, f"gone-{gone}", 1)
        done = subprocess.run(["sh", "-c", command], input=b"{}", capture_output=True, timeout=60)
        assert done.returncode == 0
        assert done.stderr == b""
        assert done.stdout == (b"{}\n" if agent == "gemini" else b"")


def test_the_plain_command_takes_events_too(work: Scene) -> None:
    done = subprocess.run(
        [*_python(), "hook", "claude-code"],
        input=json.dumps(work.event("claude-code.post-tool-use")).encode(),
        env=work.environment,
        cwd=work.workspace,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert work.keys() == [CLAUDE]


def _python() -> list[str]:
    import sys

    return [sys.executable, "-m", "agent_checkpoint"]
