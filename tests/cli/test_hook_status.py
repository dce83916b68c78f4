"""`hook status`: what is installed, what was received, and what is wrong, in words."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint.agents.settings.codex_review import hook_hash
from tests.backends.full_disks import fill, read_only, small_disk
from tests.cli.scene import Scene, scene


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        yield found


def status(work: Scene, agent: str, scope: str = "user", **environment: str) -> "dict[str, Any]":
    """The row of an agent; the exit status must say whether a row is blocked."""
    arguments = ["hook", "status", "--json"]
    try:
        rows = json.loads(work.command(*arguments, **environment))["agents"]
        assert not any(row["blocked"] for row in rows)
    except AssertionError:
        rows = json.loads(work.command(*arguments, status=1, **environment))["agents"]
        assert any(row["blocked"] for row in rows)
    (found,) = [row for row in rows if (row["agent"], row["scope"]) == (agent, scope)]
    return dict(found)


@pytest.mark.parametrize(
    ("agent", "variable", "file"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("codex", "CODEX_HOME", "hooks.json"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
        ("copilot", "COPILOT_HOME", "hooks/agent-checkpoint.json"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/plugins/agent-checkpoint.js"),
        ("cline", "CLINE_DIR", "plugins/agent-checkpoint.js"),
    ],
)
def test_settings_that_a_variable_moves(
    agent: str, variable: str, file: str, work: Scene, tmp_path: Path
) -> None:
    moved = {variable: str(tmp_path / "moved")}
    work.command("hook", "install", agent, **moved)
    assert (tmp_path / "moved" / file).exists()
    assert list(Path(work.environment["HOME"]).iterdir()) == []
    assert status(work, agent, **moved)["installed"]
    assert not status(work, agent)["installed"]
    work.command("hook", "uninstall", agent, **moved)
    assert not (tmp_path / "moved" / file).exists()


def test_a_hook_in_a_directory_that_the_agent_does_not_read(work: Scene, tmp_path: Path) -> None:
    work.command("hook", "install", "codex")
    (problem,) = status(work, "codex", CODEX_HOME=str(tmp_path / "moved"))["problems"]
    assert problem.startswith(f"CODEX_HOME is set, so codex reads {tmp_path}/moved/hooks.json")
    assert problem.endswith("hook install codex`.")


def test_an_agent_without_a_hook(work: Scene, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "copilot").write_text("#!/bin/sh\n")
    (programs / "copilot").chmod(0o755)
    path = f"{programs}:{work.environment['PATH']}"
    assert status(work, "copilot", PATH=path)["problems"] == [
        "`copilot` is on this machine, but its hook is not installed: run `agent-checkpoint hook "
        "install copilot`."
    ]
    work.hook("copilot", work.event("copilot.post-tool-use"))  # from a plug-in
    assert status(work, "copilot", PATH=path)["problems"] == []


@pytest.mark.parametrize("agent", ["codex", "opencode", "cline"])
def test_a_hook_whose_program_is_gone(agent: str, work: Scene) -> None:
    work.command("hook", "install", agent)
    file = Path(status(work, agent)["file"])
    file.write_text(file.read_text().replace(sys.executable, "/gone/python"))
    found = status(work, agent)
    assert found["outdated"]
    assert "runs /gone/python, which does not exist" in found["problems"][0]
    assert "outdated" in work.command("hook", "status", status=1)
    work.command("hook", "install", agent)
    assert not status(work, agent)["outdated"]


def test_a_project_that_ships_hooks_of_another_machine(work: Scene) -> None:
    work.command("hook", "install", "claude-code", "--project")
    file = Path(status(work, "claude-code", "project")["file"])
    file.write_text(file.read_text().replace(sys.executable, "/gone/python"))
    (problem, *_) = status(work, "claude-code", "project")["problems"]
    assert "runs /gone/python, which does not exist" in problem
    assert problem.endswith("`agent-checkpoint hook install claude-code --project` again.")
    work.command("hook", "install", "claude-code", "--project")  # as it says
    assert not status(work, "claude-code", "project")["outdated"]


def test_what_was_received_and_saved(work: Scene) -> None:
    work.command("hook", "install", "gemini")
    found = status(work, "gemini")
    assert (found["last_event"], found["last_checkpoint"]) == (None, None)
    assert "No event of gemini was received yet" in work.command("hook", "status")
    work.hook("gemini", work.event("gemini.after-tool"))
    found = status(work, "gemini")
    assert found["last_event"] >= found["last_checkpoint"] > 0
    assert found["problems"] == []
    work.hook("gemini", work.event("gemini.before-tool"))  # nothing has changed
    again = status(work, "gemini")
    assert again["last_event"] > found["last_event"]
    assert again["last_checkpoint"] == found["last_checkpoint"]
    assert status(work, "codex")["last_event"] is None


def test_an_event_that_could_not_be_saved_was_received(work: Scene) -> None:
    (work.home / "hook").mkdir(parents=True, mode=0o700)
    (work.home / "store").write_text("not a store")
    work.hook("codex", work.event("codex.post-tool-use"))
    found = status(work, "codex")
    assert found["last_event"] is not None
    assert found["last_checkpoint"] is None


def test_hooks_that_codex_was_not_told_to_trust(work: Scene) -> None:
    work.command("hook", "install", "codex")
    home = Path(work.environment["HOME"]) / ".codex"
    assert status(work, "codex")["reviewed"] is False
    assert "type /hooks in Codex" in work.command("hook", "status", status=1)
    events = json.loads((home / "hooks.json").read_text())["hooks"]
    names = ["user_prompt_submit", "pre_tool_use", "post_tool_use", "pre_compact", "stop"]
    assert len(names) == len(events)
    states = [
        f'[hooks.state."{home}/hooks.json:{name}:0:0"]\n'
        f'trusted_hash = "{hook_hash(event, group, 0)}"\n'
        for name, (event, (group,)) in zip(names, events.items())
    ]
    (home / "config.toml").write_text('model = "x"\n' + "\n".join(states))
    assert status(work, "codex")["reviewed"] is True
    assert "type /hooks" not in work.command("hook", "status")
    (home / "config.toml").write_text("\n".join(states[1:]))
    assert status(work, "codex")["reviewed"] is False
    off = states[0] + "enabled = false\n"
    (home / "config.toml").write_text("\n".join([off, *states[1:]]))
    assert status(work, "codex")["reviewed"] is False
    (home / "config.toml").write_text("\n".join(f"# {line}" for line in "".join(states).split()))
    assert status(work, "codex")["reviewed"] is False
    (home / "config.toml").write_text("\n".join(states))
    work.command("--store", str(work.place / "other"), "hook", "install", "codex")
    found = status(work, "codex")
    assert found["reviewed"] is False
    assert "have changed since you reviewed them" in found["problems"][0]


@pytest.mark.parametrize(
    ("agent", "setting"),
    [
        ("claude-code", {"disableAllHooks": True}),
        ("gemini", {"hooksConfig": {"enabled": False}}),
    ],
)
def test_hooks_that_are_disabled(agent: str, setting: "dict[str, Any]", work: Scene) -> None:
    home = Path(work.environment["HOME"])
    file = home / {"claude-code": ".claude", "gemini": ".gemini"}[agent] / "settings.json"
    file.parent.mkdir()
    file.write_text(json.dumps(setting))
    work.command("hook", "install", agent)
    assert f"Hooks are disabled in {file}" in work.command("hook", "status", status=1)


def test_entries_of_another_version(work: Scene) -> None:
    work.command("hook", "install", "gemini")
    file = Path(work.environment["HOME"]) / ".gemini" / "settings.json"
    settings = json.loads(file.read_text())
    settings["hooks"]["PreCompress"] = settings["hooks"]["AfterTool"]  # as version 0.1 installed it
    file.write_text(json.dumps(settings))
    told = work.command("hook", "status")
    assert "outdated" in told
    assert "run `agent-checkpoint hook install gemini` again" in told
    work.command("hook", "install", "gemini")
    assert "outdated" not in work.command("hook", "status")


def test_claude_that_is_not_on_the_path(work: Scene) -> None:
    work.command("hook", "install", "claude-code")
    assert "failed calls get no checkpoint" in work.command("hook", "status")
    programs = work.place / "programs"
    programs.mkdir()
    (programs / "claude").write_text("#!/bin/sh\necho 2.1.325\n")
    (programs / "claude").chmod(0o755)
    path = f"{programs}:{work.environment['PATH']}"
    assert "outdated" in work.command("hook", "status", PATH=path)
    work.command("hook", "install", "claude-code", PATH=path)
    assert "failed calls" not in work.command("hook", "status", PATH=path)


@pytest.mark.parametrize("former", [(), ("PostToolBatch",)])
def test_claude_that_is_on_the_path_of_another_shell(
    former: "tuple[str, ...]", work: Scene
) -> None:
    programs = work.place / "programs"
    programs.mkdir()
    (programs / "claude").write_text("#!/bin/sh\necho 2.1.325\n")
    (programs / "claude").chmod(0o755)
    work.command("hook", "install", "claude-code", PATH=f"{programs}:{work.environment['PATH']}")
    file = Path(work.environment["HOME"]) / ".claude" / "settings.json"
    settings = json.loads(file.read_text())
    for event in former:
        settings["hooks"][event] = settings["hooks"]["Stop"]
    file.write_text(json.dumps(settings))
    for _ in range(2):
        found = status(work, "claude-code")
        assert (found["installed"], found["outdated"]) == (True, False)
        assert found["problems"] == ["No event of claude-code was received yet. Start a session."]
        work.command("hook", "install", "claude-code")
        hooks = json.loads(file.read_text())["hooks"]
        assert "PostToolUseFailure" in hooks
        assert "PostToolBatch" not in hooks
    work.command("--store", str(work.place / "other"), "hook", "install", "claude-code")
    assert "PostToolUseFailure" in json.loads(file.read_text())["hooks"]
    work.command("hook", "uninstall", "claude-code")
    assert not file.exists()


def test_all_agents_that_are_here_are_installed_at_once(work: Scene) -> None:
    assert "No coding agent found" in work.command("hook", "install", "--all", status=3)
    programs, home = work.place / "programs", Path(work.environment["HOME"])
    programs.mkdir()
    (programs / "codex").symlink_to("/bin/true")
    (home / ".gemini").mkdir()
    path = f"{programs}:/usr/bin:/bin"
    told = json.loads(work.command("hook", "install", "--all", "--json", PATH=path))
    assert [row["agent"] for row in told["agents"]] == ["codex", "gemini"]
    assert status(work, "codex")["installed"]
    assert status(work, "gemini")["installed"]
    assert not status(work, "claude-code")["installed"]
    work.command("hook", "uninstall", "--all", PATH=path)
    assert not status(work, "codex")["installed"]
    assert "or use --all" in work.command("hook", "install", status=2)


def test_one_of_all_agents_whose_settings_are_broken(work: Scene) -> None:
    home = Path(work.environment["HOME"])
    for name in (".codex", ".gemini", ".qwen"):
        (home / name).mkdir()
    file = home / ".gemini" / "settings.json"
    file.write_text('{"a":')
    told = work.command("hook", "install", "--all", status=1)
    assert f"gemini: Cannot parse '{file}'" in told
    assert f"Installed in {home}/.qwen/settings.json." in told
    assert (status(work, "codex")["installed"], status(work, "qwen")["installed"]) == (True, True)
    told = work.command("hook", "uninstall", "--all", status=1)
    assert f"Removed from {home}/.qwen/settings.json." in told
    assert file.read_text() == '{"a":'
    assert "Cannot parse" in work.command("hook", "install", "gemini", status=2)


def test_the_next_step_after_an_installation(work: Scene) -> None:
    assert '"Trust all and continue"' in work.command("hook", "install", "codex")
    assert "trust" not in work.command("hook", "install", "gemini")
    told = work.command("hook", "install", "gemini", "--project")
    assert "only in a folder that you trust" in told


def test_the_table_has_only_agents_that_are_here(work: Scene) -> None:
    (Path(work.environment["HOME"]) / ".qwen").mkdir()
    work.command("hook", "install", "cline")
    path = {"PATH": "/usr/bin:/bin"}
    told = work.command("hook", "status", **path).splitlines()
    assert [line.split()[0] for line in told[1:3]] == ["qwen", "cline"]
    assert told[3] == (
        "Not found on this machine: claude-code, codex, gemini, copilot, opencode, goose."
    )
    rows = json.loads(work.command("hook", "status", "--json", **path))["agents"]
    assert {row["agent"] for row in rows} > {"codex", "goose"}


def test_a_hook_of_the_project_alone(work: Scene) -> None:
    programs = work.place / "programs"
    programs.mkdir()
    (programs / "gemini").symlink_to("/bin/true")
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    assert "its hook is not installed" in status(work, "gemini", **path)["problems"][0]
    work.command("hook", "install", "gemini", "--project")
    assert status(work, "gemini", **path)["problems"] == []


@pytest.mark.parametrize(("agent", "is_read"), [("gemini", False), ("codex", True)])
def test_a_hook_of_the_project_above(agent: str, is_read: bool, work: Scene) -> None:
    """Some agents read only the settings of the directory where they start."""
    work.command("hook", "install", agent, "--project")
    below = work.workspace / "src"
    blocked = 1 if agent == "codex" else 0  # not reviewed
    rows = json.loads(work.command("hook", "status", "--json", cwd=below, status=blocked))["agents"]
    (found,) = [row for row in rows if (row["agent"], row["scope"]) == (agent, "above")]
    assert found["file"].startswith(str(work.workspace))
    told = [problem for problem in found["problems"] if "only in the directory where" in problem]
    assert len(told) == (0 if is_read else 1)
    work.command("hook", "install", agent)
    told = [work.command("hook", "status", cwd=below, status=blocked)]
    assert ("only in the directory where" in told[0]) is False
    assert ("saved twice" in told[0]) is is_read


CODEX_PLUGIN = """\
[plugins."agent-checkpoint@agent-checkpoint"]
enabled = true
"""
CODEX_REVIEW = """
[hooks.state."agent-checkpoint@agent-checkpoint:hooks/hooks.json:post_tool_use:0:0"]
trusted_hash = "sha256:1604cca0745ab6956be4372dd4c2dccd47210b628514d586fd599850dc2e7ccd"

[hooks.state."agent-checkpoint@agent-checkpoint:hooks/hooks.json:stop:0:0"]
trusted_hash = "sha256:bf56dc4d676a5cd5cc7546707880af19bc3a4e594d50b880c8360811c0167296"
"""
"""As Codex 0.166 wrote it."""


def test_the_plugin_of_codex(work: Scene) -> None:
    home = Path(work.environment["HOME"]) / ".codex"
    shipped = Path(__file__).parents[2] / "plugins" / "codex" / "hooks" / "hooks.json"
    hooks = json.loads(shipped.read_text())["hooks"]
    file = home / "plugins/cache/agent-checkpoint/agent-checkpoint/0.2.0/hooks/hooks.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"hooks": {name: hooks[name] for name in ("PostToolUse", "Stop")}}))
    programs = work.place / "programs"
    programs.mkdir()
    (programs / "agent-checkpoint-hook").symlink_to("/bin/true")
    path = {"PATH": f"{programs}:/usr/bin:/bin"}
    (home / "config.toml").write_text(CODEX_PLUGIN)
    (problem,) = status(work, "codex", "plugin", **path)["problems"]
    assert "runs no hook before you have reviewed it" in problem
    assert status(work, "codex")["problems"] == []
    (home / "config.toml").write_text(CODEX_PLUGIN + CODEX_REVIEW)
    found = status(work, "codex", "plugin", **path)
    assert (found["installed"], found["reviewed"]) == (True, True)
    assert found["problems"] == ["No event of codex was received yet. Start a session."]
    (problem,) = status(work, "codex", "plugin", PATH="/usr/bin:/bin")["problems"]
    assert "runs `agent-checkpoint-hook`, which is not on PATH" in problem
    work.command("hook", "install", "codex")
    problem = status(work, "codex", "plugin")["problems"][-1]
    assert (
        "saved twice. Keep one: `codex plugin remove agent-checkpoint@agent-checkpoint`" in problem
    )
    work.command("hook", "uninstall", "codex")
    (home / "config.toml").write_text(CODEX_PLUGIN.replace("true", "false"))
    assert '"plugin"' not in work.command("hook", "status", "--json")


@pytest.mark.parametrize("agent", ["claude-code", "gemini", "qwen", "copilot"])
def test_the_plugin_of_other_agents(agent: str, work: Scene) -> None:
    names = {"claude-code": ".claude", "copilot": ".copilot"}
    home = Path(work.environment["HOME"]) / names.get(agent, f".{agent}")
    if agent in names:
        home.mkdir()
        enabled = {"enabledPlugins": {"agent-checkpoint@agent-checkpoint": True}}
        (home / "settings.json").write_text(json.dumps(enabled))
    else:
        (home / "extensions" / "agent-checkpoint").mkdir(parents=True)
    assert status(work, agent, "plugin")["installed"]
    assert status(work, agent)["problems"] == []


def test_a_full_disk_that_has_the_log_too(work: Scene) -> None:
    with small_disk("tmpfs", work.place, 4) as disk:
        place = {"AGENT_CHECKPOINT_HOME": str(disk)}
        work.command("hook", "install", "gemini")
        assert json.loads(work.command("hook", "status", "--json", **place))["problems"] == []
        fill(disk)
        work.hook("gemini", work.event("gemini.after-tool"), **place)
        assert (disk / "hook" / "hook.log").read_text() == ""  # the failure is told nowhere else
        told = work.command("hook", "status", status=1, **place)
        assert f"Nothing is saved. Write refused: the file system of {disk}" in told


def test_a_store_that_is_read_only(work: Scene) -> None:
    with small_disk("tmpfs", work.place, 4) as disk:
        work.command("--store", str(disk / "store"), "hook", "install", "gemini")
        assert "Nothing is saved" not in work.command("hook", "status")
        with read_only(disk):
            told = work.command("hook", "status", status=1)
        assert f"Nothing is saved: {disk}/store does not exist, and {disk} is read-only" in told
        assert "`agent-checkpoint --store DIR hook install AGENT`" in told


def test_a_home_that_is_read_only_and_a_store_elsewhere(work: Scene) -> None:
    with small_disk("tmpfs", work.place, 4) as disk:
        home = {"HOME": str(disk), "AGENT_CHECKPOINT_HOME": ""}
        moved = {**home, "GEMINI_CLI_HOME": str(work.place / "gemini")}
        store = str(work.place / "elsewhere")
        with read_only(disk):
            told = work.command("hook", "install", "--all", status=1, **home, PATH=with_codex(work))
            assert "codex: Cannot write" in told
            assert "To rewind" not in told
            assert "look like secrets" not in told
            work.command("--store", store, "hook", "install", "gemini", **moved)
            told = work.command("hook", "status", **moved)
            assert "Nothing is saved" not in told
            assert (
                "Errors and last events are not recorded, and conversations cannot be rewound: "
                f"{disk}/.local/state/agent-checkpoint does not exist, and {disk} is read-only or "
                "not yours. Make it writable." in told
            )
            event = work.event("gemini.after-tool")
            work.hook("gemini", event, **moved, AGENT_CHECKPOINT_STORE=store)
            assert "gemini/" in work.command("--store", store, "keys", **moved)
            told = work.command("save", status=1, **home)
            assert told == (
                "agent-checkpoint: Cannot create the store "
                f"{disk}/.local/share/agent-checkpoint/store: Read-only file system. Make it "
                "writable, or pass --store DIR.\n"
            )


def with_codex(work: Scene) -> str:
    """A PATH with a program of that name; the project has a file that looks like a secret."""
    programs = work.place / "programs"
    programs.mkdir()
    (programs / "codex").symlink_to("/bin/true")
    (work.workspace / ".env").write_text("x")
    return f"{programs}:/usr/bin:/bin"


def test_a_store_that_is_a_file(work: Scene) -> None:
    wrong, settings = work.place / "file", Path(work.environment["HOME"]) / ".codex" / "hooks.json"
    work.command("--store", str(wrong), "hook", "install", "codex")  # not there yet
    before = settings.read_text()
    wrong.write_text("x")
    told = work.command("--store", str(wrong), "hook", "install", "codex", status=2)
    assert told == work.command("--store", str(wrong), "save", status=2)
    assert f"{wrong} is a file, but an SQLite store is a directory" in told
    assert settings.read_text() == before
    problem = f"Nothing is saved. {wrong} is a file"
    told = work.command("hook", "status", "--json", status=1)
    assert problem in json.loads(told)["problems"][0]
    work.command("hook", "uninstall", "codex")
    assert problem in work.command("--store", str(wrong), "hook", "status")
    work.command("hook", "install", "gemini")
    assert problem not in work.command("hook", "status")
    assert problem in work.command("--store", str(wrong), "hook", "status", status=1)
    assert problem in work.command("hook", "status", status=1, AGENT_CHECKPOINT_STORE=str(wrong))


def test_errors_before_the_last_checkpoint(work: Scene) -> None:
    work.hook("codex", work.event("codex.post-tool-use"))
    log = work.home / "hook" / "hook.log"
    log.write_text("2020-01-01 00:00:00 first\n2020-01-02 00:00:00 second\n")
    told = work.command("hook", "status")
    assert f"Before the last checkpoint, in {log}:\n  2020-01-01 00:00:00 first\n" in told
    assert "Recent errors" not in told
    with log.open("a") as file:
        file.write("2999-01-01 00:00:00 third\n")
    told = work.command("hook", "status")
    assert told.endswith(f"second\nRecent errors in {log}:\n  2999-01-01 00:00:00 third\n")


def test_hooks_in_settings_that_a_project_has_committed(work: Scene) -> None:
    work.command("hook", "install", "claude-code", "--project")
    file = Path(status(work, "claude-code", "project")["file"])
    shared = file.with_name("settings.json")
    shared.write_text(file.read_text().replace(sys.executable, "/gone/python"))
    file.unlink()
    found = status(work, "claude-code", "shared")
    assert (found["file"], found["outdated"]) == (str(shared), True)
    assert "runs /gone/python, which does not exist" in found["problems"][0]
    assert found["problems"][0].endswith("and remove the entries of that file.")
    shared.write_text("{}")
    assert str(shared) not in work.command("hook", "status")
    shared.write_text("{")
    assert f"Cannot parse '{shared}'" in work.command("hook", "status", status=1)


def test_two_installations(work: Scene) -> None:
    work.command("hook", "install", "gemini")
    assert "saved twice" not in work.command("hook", "status")
    work.command("hook", "install", "gemini", "--project")
    told = status(work, "gemini", "project")["problems"]
    assert "so an event may be saved twice. Keep one: " in told[-1]
    assert told[-1].endswith(
        "`agent-checkpoint hook uninstall gemini --project` removes that of the project."
    )
    work.command("hook", "uninstall", "gemini", "--project")
    assert "saved twice" not in work.command("hook", "status")
