"""`hook install`: the settings of agents get our hooks, and lose nothing."""

import json
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.settings.agent_settings import (
    FORMATS,
    command_of,
    events_of,
    install,
    installed,
    store_of,
    uninstall,
)
from agent_checkpoint.agents.settings.hook_health import hook_health
from agent_checkpoint.agents.settings.jsonc import parse
from agent_checkpoint.agents.settings.plugin_files import PLUGIN_AGENTS
from agent_checkpoint.errors import InvalidInputError
from tests.cli.scene import Scene, scene
from tests.cli.test_hook import CLAUDE
from tests.cli.world import run

JSON_AGENTS = [agent for agent in AGENTS if agent not in PLUGIN_AGENTS]
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


@pytest.mark.parametrize("agent", JSON_AGENTS)
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


@pytest.mark.parametrize("agent", JSON_AGENTS)
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
    assert [found.name for found in tmp_path.iterdir()] == ["settings.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert not uninstall(agent, path)


@pytest.mark.parametrize("agent", JSON_AGENTS)
@pytest.mark.parametrize("text", ["", "\n", "{ }", '{"hooks" : { } , "a":1}'])
def test_byte_for_byte_and_whatever_was_installed_meanwhile(
    agent: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    install(agent, path)
    path.write_text(path.read_text().replace("-I -S", "-I"))  # as an older version did
    assert install(agent, path)
    assert install(agent, path, "/elsewhere/a store")
    backup = tmp_path / "settings.json.before-agent-checkpoint"
    assert backup.read_text() == text
    assert uninstall(agent, path)
    assert path.read_text() == text
    assert not backup.exists()


@pytest.mark.parametrize("agent", AGENTS)
def test_a_file_of_ours_alone_is_taken_away(agent: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    install(agent, path)
    install(agent, path, "/elsewhere")
    assert uninstall(agent, path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("agent", PLUGIN_AGENTS)
def test_a_plug_in(agent: str, tmp_path: Path) -> None:
    path = tmp_path / "plugins" / "agent-checkpoint.js"
    assert install(agent, path, "/a store")
    assert installed(agent, path)
    assert store_of(agent, path) == "/a store"
    assert json.dumps(command_of(agent, "/a store")) in path.read_text()
    assert not install(agent, path, "/a store")
    path.write_text(path.read_text().replace("Stop", "Other"))  # another version
    assert not installed(agent, path)
    assert install(agent, path)
    assert installed(agent, path)
    assert uninstall(agent, path)
    assert not uninstall(agent, path)
    path.write_text("// mine\n")
    with pytest.raises(InvalidInputError, match="not a plug-in of agent-checkpoint"):
        install(agent, path)
    assert not uninstall(agent, path)
    assert path.read_text() == "// mine\n"


def test_what_changed_meanwhile_stays_and_so_does_the_original(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1}\n')
    install("claude-code", path)
    path.write_text(path.read_text().replace('"a": 1', '"a": 2'))
    assert uninstall("claude-code", path)
    assert json.loads(path.read_text()) == {"a": 2}
    backup = tmp_path / "settings.json.before-agent-checkpoint"
    assert backup.read_text() == '{"a": 1}\n'
    install("claude-code", path)
    assert json.loads(backup.read_text()) == {"a": 2}


def test_a_backup_of_another_version_is_not_put_back(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1}\n')
    install("claude-code", path)
    backup = tmp_path / "settings.json.before-agent-checkpoint"
    backup.write_text(path.read_text())  # with our hooks, as it once was
    assert uninstall("claude-code", path)
    assert json.loads(path.read_text()) == {"a": 1}


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


def test_a_hook_of_version_0_1_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    old = "/usr/bin/python3 -I -S /lib/agent_checkpoint/cli/hooks/client.py claude-code"
    handler = {"type": "command", "command": f"{old} 2>/dev/null || true"}
    path.write_text(json.dumps({"hooks": {"Stop": [{"hooks": [handler]}]}}))
    assert install("claude-code", path)
    assert "cli/hooks" not in path.read_text()
    assert uninstall("claude-code", path)
    assert not path.exists()  # nothing else was in it


@pytest.mark.parametrize(
    "command",
    [
        "notify-send done; agent-checkpoint hook claude-code",
        "echo remember: agent-checkpoint hook status",
        "cat agent_checkpoint/agents/hook/client.py",
        "agent-checkpoint hook claude-code && make",
        "'",
    ],
)
def test_a_command_that_only_mentions_ours_is_the_users(command: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    theirs = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}}
    path.write_text(json.dumps(theirs))
    assert install("claude-code", path)
    assert json.loads(path.read_text())["hooks"]["Stop"][0] == theirs["hooks"]["Stop"][0]
    assert uninstall("claude-code", path)
    assert json.loads(path.read_text()) == theirs
    assert not uninstall("claude-code", path)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1 /* one */, // two\n  "hooks": {%s}}',
        '{"hooks": {%s}, /* three */ "a": 1}',
        '{"hooks": {/* four */ %s // five\n}}',
        '{"hooks": {"Notification": [] /* six */, // seven\n %s, /* eight */ "x": [1]}}',
        '{"hooks": {%s /* nine */, // ten\n "Notification": []}}',
    ],
)
def test_comments_beside_ours_stay(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    install("gemini", path)
    (ours,) = json.loads(path.read_text())["hooks"]["AfterTool"]
    path.write_text(text % f'"AfterTool": [{json.dumps(ours)}]')
    assert uninstall("gemini", path)
    left = path.read_text()
    parse(left, comments=True)
    assert "command" not in left
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    for word in words:
        assert (word in left) == (word in text)


@pytest.mark.parametrize(
    "text", ['{"a":1,"hooks":{},"a":2}', '{"hooks":{},"a":1,"hooks":{"Stop":[]}}']
)
def test_a_name_that_stands_twice_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    for change in (install, uninstall):
        with pytest.raises(InvalidInputError, match="twice"):
            change("claude-code", path)
    assert path.read_text() == text


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
@pytest.mark.parametrize("agent", JSON_AGENTS)
def test_a_file_that_does_not_parse_is_not_touched(text: str, agent: str, tmp_path: Path) -> None:
    text = text.replace("Stop", FORMATS[agent].events[0])
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
    assert "Already installed" in work.command("hook", "install", "claude-code", PATH=path)
    settings = work.place / "home" / ".claude" / "settings.json"
    hooks = json.loads(settings.read_text())["hooks"]
    assert ("PostToolUseFailure" in hooks) == is_known
    (programs / "claude").write_text("#!/bin/sh\necho 2.1.200\n")
    (programs / "claude").chmod(0o755)
    work.command("hook", "install", "claude-code", PATH=path)  # after an update
    assert "PostToolUseFailure" in json.loads(settings.read_text())["hooks"]
    work.command("hook", "uninstall", "claude-code", PATH="/nowhere")
    assert not settings.exists()


def test_an_event_of_earlier_versions_is_valid_until_the_next_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "settings.json"
    form = FORMATS["claude-code"]
    with monkeypatch.context() as earlier:
        batch = form._replace(events=(*form.events, "PostToolBatch"))
        earlier.setitem(FORMATS, "claude-code", batch)
        events_of.cache_clear()
        install("claude-code", path)
    events_of.cache_clear()
    assert "PostToolBatch" in json.loads(path.read_text())["hooks"]
    assert installed("claude-code", path)
    assert not hook_health("claude-code", path, None).is_outdated
    assert install("claude-code", path)  # the agent no longer waits for that event
    assert list(json.loads(path.read_text())["hooks"]) == list(events_of("claude-code"))
    assert installed("claude-code", path)


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
    assert "Already installed" in work.command("hook", "install", "claude-code", "--user")
    work.command("hook", "install", "codex", "--project")
    assert (work.workspace / ".codex" / "hooks.json").exists()
    told = json.loads(work.command("hook", "status", "--json", status=1))  # Codex: not reviewed
    states = {(row["agent"], row["scope"]): row["installed"] for row in told["agents"]}
    assert [name for name, found in states.items() if found] == [
        ("claude-code", "user"),
        ("codex", "project"),
    ]
    work.command("hook", "uninstall", "claude-code")
    assert not (home / ".claude" / "settings.json").exists()
    work.command("hook", "install", "cursor", status=2)
    work.command("hook", "install", status=2)
    work.hook("claude-code", b"no json")
    assert "is not JSON" in work.command("hook", "status", status=1)


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


@pytest.mark.parametrize("way", ["direct", "served"])
@pytest.mark.slow
def test_a_named_store_is_the_one_that_is_used(way: str, tmp_path: Path) -> None:
    with scene(tmp_path, way) as work:
        store = tmp_path / "a store"
        told = work.command("--store", "../a store", "hook", "install", "codex", "--project")
        assert f"agent-checkpoint --store '{store}' rewind" in told
        file = work.workspace / ".codex" / "hooks.json"
        once = file.read_text()
        assert "Already installed" in work.command(
            "hook", "install", "codex", "--project", "--store", str(store)
        )
        assert file.read_text() == once
        (row,) = [
            row
            for row in json.loads(work.command("hook", "status", "--json", status=1))["agents"]
            if row["installed"]
        ]
        assert row["store"] == str(store)
        ((group,), *_) = json.loads(once)["hooks"].values()
        done = subprocess.run(
            ["sh", "-c", group["hooks"][0]["command"]],
            input=json.dumps(work.event("codex.post-tool-use")).encode(),
            env={**work.environment, "AGENT_CHECKPOINT_STORE": str(tmp_path / "other")},
            cwd=work.workspace,
            capture_output=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert not (tmp_path / "other").exists()
        assert work.keys() == []
        with work.manager(store) as manager:
            (key,) = manager.list_keys()
        assert key in work.command("--store", str(store), "rewind")
        (work.workspace / "src" / "app.py").write_text("print('new')\n")
        work.command("rewind", "@1", "--yes", "--store", str(store))
        assert (work.workspace / "src" / "app.py").read_text() == "print('old')\n"
        work.command("hook", "install", "codex", "--project")
        assert "--store" not in file.read_text()
        assert file.read_text().count("client.py") == once.count("client.py")
        work.command("--store", "file:///y", "hook", "install", "codex", "--project")
        assert "--store file:///y" in file.read_text()
        work.command("hook", "uninstall", "codex", "--project")
        assert not file.exists()


def test_the_plain_command_takes_a_store_too(work: Scene) -> None:
    done = subprocess.run(
        [*_python(), "hook", "claude-code", "--store", "../named"],
        input=json.dumps(work.event("claude-code.post-tool-use")).encode(),
        env={**work.environment, "AGENT_CHECKPOINT_STORE": str(work.place / "other")},
        cwd=work.workspace,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    with work.manager(work.place / "named") as manager:
        assert manager.list_keys() == [CLAUDE]


@pytest.mark.parametrize("word", ["instal", "list", "claude"])
def test_a_word_that_nobody_knows(word: str, work: Scene) -> None:
    done = subprocess.run(
        [*_python(), "hook", word],
        input=b"{}",
        env=work.environment,
        cwd=work.workspace,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (1, b"")  # 2 would block the agent's call
    assert f"Unknown argument '{word}'" in done.stderr.decode()
    assert (
        "install, uninstall, status, stop, claude-code, codex, gemini, qwen, copilot, opencode, "
        "cline, goose." in done.stderr.decode()
    )


def _python() -> list[str]:
    import sys

    return [sys.executable, "-m", "agent_checkpoint"]


def test_files_that_look_like_secrets_are_named(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "deep").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / ".env").write_text("TOKEN=never-shown")
    ran = run("hook", "install", "claude-code", "--project", at=project / "deep")
    assert "look like secrets and are saved, too: .env" in ran.out
    assert "never-shown" not in ran.out
    assert not (project / ".checkpointignore").exists()
    ran = run("hook", "install", "claude-code", "--leave-out-secrets", at=project / "deep")
    assert "Left out from now on, by .checkpointignore: .env" in ran.out
    assert (project / ".checkpointignore").read_text() == "/.env\n"
    assert "secrets" not in run("hook", "install", "claude-code", at=project).out


def test_a_password_in_the_store_url_reaches_no_settings(tmp_path: Path) -> None:
    words = ["--store", "postgresql://me:secret@host/db", "hook", "install", "codex", "--project"]
    refused = run(*words, at=tmp_path)
    assert (refused.status, list(tmp_path.iterdir())) == (2, [])
    assert "has a password" in refused.err
    assert "secret" not in refused.err
    path = tmp_path / ".codex" / "hooks.json"
    install("codex", path, words[1])  # as version 0.1 did
    assert "secret" in path.read_text()
    for form in ([], ["--json"]):
        assert "secret" not in run("hook", "status", *form, at=tmp_path).out
