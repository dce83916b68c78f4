"""`hook`: what a coding agent sends becomes checkpoints, by a process that stays and without it."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.agents.session_note import read_note
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from tests.cli.scene import EVENTS, Scene, scene

CLAUDE = "claude-code/5b0fd7d1-33a5-4e7e-a2c4-0e9b6a6c9b11"
CODEX = "codex/019a8b1c-6f5e-7c31-9a44-2f1d8f0c7b55"
GEMINI = "gemini/c0f6b5de-8d30-4d75-8a49-93b2f3f2a0a9"
QWEN = "qwen/7d6f2f63-0a5e-4f37-9c3c-58f1f6f7d3a4"
COPILOT = "copilot/f1d93dc5-989e-4806-8a00-4b97872e1251"
CLINE = "cline/1794966528520_b1x5w"
GOOSE = "goose/20261118_1"
OPENCODE = "opencode/ses_e148d62caffewiYahowtnbaTW7"
LABELS = {
    "claude-code.post-tool-use": (CLAUDE, "Bash sed -i s/old/new/ src/app.py"),
    "claude-code.pre-tool-use": (CLAUDE, "before Write src/app.py"),
    "claude-code.post-tool-batch": (CLAUDE, "Read README.md, Edit src/app.py"),
    "claude-code.user-prompt-submit": (CLAUDE, "prompt: Rename old to new in all files."),
    "claude-code.stop": (CLAUDE, "end of turn"),
    "claude-code.session-end": (CLAUDE, "session ends"),
    "claude-code.pre-compact": (CLAUDE, "before the conversation is compacted"),
    "codex.post-tool-use": (CODEX, "apply_patch apply_patch <<'EOF' *** Begin Patch"),
    "codex.stop": (CODEX, "end of turn"),
    "gemini.after-tool": (GEMINI, "run_shell_command npm test"),
    "gemini.before-tool": (GEMINI, "before write_file src/app.py"),
    "qwen.post-tool-use": (QWEN, "run_shell_command sed -i s/old/new/ src/app.py"),
    "copilot.post-tool-use": (COPILOT, "Bash sed -i s/old/new/ src/app.py"),
    "cline.post-tool-use": (CLINE, "run_commands sed -i s/old/new/ src/app.py"),
    "goose.post-tool-use": (GOOSE, "shell sed -i s/old/new/ src/app.py"),
    "goose.user-prompt-submit": (GOOSE, "prompt: Rename old to new in all files."),
    "opencode.post-tool-use": (OPENCODE, "bash sed -i s/old/new/ src/app.py"),
}


@pytest.fixture(params=["served", "direct"])
def work(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, request.param) as found:
        yield found


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        yield found


def lines(manager: CheckpointManager, key: str, checkpoint_id: Any = None) -> list[str]:
    return list(manager.state_dict(key, checkpoint_id)["transcript"])


def test_every_recorded_event_has_a_label() -> None:
    assert sorted(LABELS) == sorted(path.stem for path in EVENTS.glob("*.json"))


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("is_told", [True, False], ids=["told", "found out"])
@pytest.mark.slow
def test_an_event_becomes_a_checkpoint(
    name: str, is_told: bool, direct: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "a secret that is known here as well")
    direct.environment["AGENT_CHECKPOINT_SECRET"] = "a secret that is known here as well"
    agent = name.partition(".")[0]
    event = direct.event(name)
    process = direct.start(agent if is_told else "", event)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert printed == (b"" if is_told and agent != "gemini" else b"{}\n")
    key, label = LABELS[name]
    if agent in ("qwen", "copilot", "opencode", "cline", "goose") and not is_told:
        return  # their events look like those of other agents, or name no directory
    assert direct.keys() == [key]
    (row,) = direct.history(key)
    assert row["label"].startswith(label)
    assert len(row["label"]) <= 100
    field, name_of = (
        ("tool_call_id", "event") if agent == "goose" else ("tool_use_id", "hook_event_name")
    )
    ids = [call.get(field) for call in event.get("tool_calls", [event])]
    assert {f"event:{event[name_of]}", *filter(None, ids)} <= set(row["tags"])
    with direct.manager() as manager:
        checkpoint = manager.store.head(key)
        assert checkpoint is not None
        note = read_note(manager.store, checkpoint)
        assert note is not None
        assert note.is_ours
        assert (note.agent, note.root) == (agent, str(direct.workspace))
        has_transcript = event.get("transcript_path") is not None
        assert ("transcript" in row["parts"]) == has_transcript
        assert (note.transcript is not None) == has_transcript
    assert direct.log == ""


def test_files_and_conversation_are_one_checkpoint(work: Scene) -> None:
    app = work.workspace / "src" / "app.py"
    work.tool(2)
    app.write_text("print('new')\n")  # by a shell, which the agent's own undo would not see
    (work.workspace / ".env").write_text("SECRET=1")
    work.tool(3)
    app.unlink()
    work.tool(4)
    rows = work.history(CLAUDE)
    assert [row["tags"][-1] for row in rows] == ["toolu_4", "toolu_3", "toolu_2"]
    with work.manager() as manager:
        for place, (row, files) in enumerate(zip(rows, [2, 2, 1])):
            saved = lines(manager, CLAUDE, row["id"])
            assert [json.loads(line)["n"] for line in saved] == list(range(1, 5 - place))
            checkpoint = next(c for c in manager.store.newest_first(CLAUDE) if c.id == row["id"])
            tree = tree_in(manager.store, checkpoint)
            assert tree is not None
            assert tree.files == (1 if place == 0 else files)
        assert manager.verify().ok
    assert work.log == ""


def test_log_shows_the_words_of_a_call_and_not_the_tags_of_the_hook(direct: Scene) -> None:
    direct.tool(2)
    shown = direct.command("log", CLAUDE)
    assert "Bash sed -i" in shown
    assert "#" not in shown
    (row,) = json.loads(direct.command("log", CLAUDE, "--json"))["checkpoints"]
    assert "toolu_2" in row["tags"]


def test_a_torn_last_line_is_left_out_until_it_is_whole(work: Scene) -> None:
    event = work.event("claude-code.post-tool-use")
    with work.transcript.open("a") as file:
        file.write('{"type":"assist')
    work.hook("claude-code", event)
    with work.transcript.open("a") as file:
        file.write('ant"}\n{"whole":"but no end"}')
    work.hook("claude-code", {**event, "tool_use_id": "toolu_2"})
    with work.transcript.open("a") as file:
        file.write("\n")
    work.hook("claude-code", {**event, "tool_use_id": "toolu_3"})
    with work.manager() as manager:
        found = [lines(manager, CLAUDE, f"{CLAUDE}@{seq}") for seq in (1, 2, 3)]
    first = '{"type":"user","n":1}'
    assert found[0] == [first]
    assert found[1] == found[2] == [first, '{"type":"assistant"}', '{"whole":"but no end"}']


def test_a_transcript_that_is_written_anew_is_read_anew(work: Scene) -> None:
    work.tool(2)
    text = '{"type":"user","n":9}\n{"type":"summary"}\n{"n":3}\n'
    work.transcript.write_text(text)
    work.tool(4)
    other = work.place / "other"
    other.write_text('{"replaced": true}\n')
    other.replace(work.transcript)
    work.tool(5)
    with work.manager() as manager:
        assert [json.loads(line).get("n") for line in lines(manager, CLAUDE, f"{CLAUDE}@2")] == [
            9,
            None,
            3,
            4,
        ]
        assert lines(manager, CLAUDE)[0] == '{"replaced": true}'


def test_bytes_that_are_no_text_come_back(direct: Scene) -> None:
    direct.transcript.write_bytes(b'{"a":"\xff\xfe"}\n\xf0\x9f\x98\x80\n')
    direct.hook("claude-code", direct.event("claude-code.post-tool-use"))
    with direct.manager() as manager:
        saved = lines(manager, CLAUDE)
    text = "\n".join(saved).encode("utf-8", "surrogateescape") + b"\n"
    assert text == direct.transcript.read_bytes()


def test_a_missing_transcript_does_no_harm(work: Scene) -> None:
    work.transcript.unlink()
    work.hook("claude-code", work.event("claude-code.post-tool-use"))
    (row,) = work.history(CLAUDE)
    assert row["parts"] == ["workspace", "hook"]
    assert work.log == ""


def test_before_a_tool_call_only_what_is_not_saved_is(work: Scene) -> None:
    before = work.event("claude-code.pre-tool-use")
    work.tool(2)
    work.hook("claude-code", before)
    assert len(work.history(CLAUDE)) == 1
    (work.workspace / "by-hand.txt").write_text("by a person, between two tool calls")
    work.hook("claude-code", before)
    work.hook("claude-code", before)
    rows = work.history(CLAUDE)
    assert rows[0]["label"] == "before Write src/app.py"
    assert len(rows) == 2


def test_a_call_of_opencode_is_named_by_its_file(direct: Scene) -> None:
    given = {"filePath": str(direct.workspace / "src" / "app.py"), "content": "new"}
    event = direct.event("opencode.post-tool-use", tool_name="write", tool_input=given)
    direct.hook("opencode", event)
    (row,) = direct.history(f"opencode/{event['session_id']}")
    assert row["label"] == "write src/app.py"


def test_nothing_changed_is_next_to_nothing_written(work: Scene) -> None:
    for number in range(300):
        work.say(number)
        (work.workspace / f"file{number}").write_text("x" * 1000)
    event = work.event("claude-code.post-tool-use")
    work.hook("claude-code", event)
    work.hook("claude-code", work.event("claude-code.stop"))
    work.hook("claude-code", event)  # a hook that is installed twice
    assert len(work.history(CLAUDE)) == 1
    with work.manager() as manager:
        objects = {info.id for info in manager.store.backend.list_objects()}
    work.hook("claude-code", {**event, "tool_use_id": "toolu_other"})
    with work.manager() as manager:
        assert {info.id for info in manager.store.backend.list_objects()} == objects
        (entry,) = list(manager.store.entries(CLAUDE, page=1))[:1]
        assert len(entry.data) < 3000
    assert len(work.history(CLAUDE)) == 2


def test_both_ways_give_the_same_checkpoint(tmp_path: Path) -> None:
    found = []
    with scene(tmp_path, "served") as work:
        for name, way in (("a", ""), ("b", "1")):
            store = tmp_path / name
            work.hook(
                "claude-code",
                work.event("claude-code.post-tool-use"),
                AGENT_CHECKPOINT_HOOK_DIRECT=way,
                AGENT_CHECKPOINT_STORE=str(store),
            )
            with work.manager(store) as manager:
                head = manager.store.head(CLAUDE)
                assert head is not None
                found.append((head.parts, head.label, head.tags, head.kind, head.size))
        assert work.servers() != []
        assert found[0] == found[1]


def test_many_at_once_lose_and_mix_nothing(work: Scene) -> None:
    processes = []
    for session in ("one", "two"):
        transcript = work.place / f"{session}.jsonl"
        transcript.write_text(f'{{"session":"{session}"}}\n')
        for number in range(6):
            event = work.event(
                "claude-code.post-tool-use",
                session_id=session,
                transcript_path=str(transcript),
                tool_use_id=f"toolu_{session}_{number}",
            )
            (work.workspace / f"{session}{number}").write_text("x")
            processes.append(work.start("claude-code", event))
    for process in processes:
        printed, complaints = process.communicate(timeout=60)
        assert (process.returncode, printed, complaints) == (0, b"", b"")
    for session in ("one", "two"):
        rows = work.history(f"claude-code/{session}")
        ids = {tag for row in rows for tag in row["tags"] if tag.startswith("toolu_")}
        assert ids == {f"toolu_{session}_{number}" for number in range(6)}
        with work.manager() as manager:
            assert lines(manager, f"claude-code/{session}") == [f'{{"session":"{session}"}}']
            assert manager.verify().ok
    assert work.log == ""


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"no json",
        b"[1, 2]",
        b"{}",
        b'{"session_id": 7, "cwd": "/", "hook_event_name": "Stop"}',
        b'{"session_id": "a", "cwd": "relative", "hook_event_name": "Stop"}',
        b'{"session_id": "a", "cwd": "/nowhere/at/all", "hook_event_name": "Stop"}',
        b'{"session_id": "a", "cwd": "/", "hook_event_name": "Stop"}',
        b'{"session_id": "\xff\xff", "cwd": "/nowhere"}',
        b"[" * 100_000,
        b'{"session_id": "' + b"a" * 2000 + b'", "cwd": "/tmp", "hook_event_name": "Stop"}',
    ],
    ids=lambda text: repr(text[:40]),
)
@pytest.mark.parametrize("agent", ["claude-code", "gemini"])
def test_a_malformed_event_is_taken_well(text: bytes, agent: str, direct: Scene) -> None:
    direct.hook(agent, text)
    assert direct.keys() == []
    assert len(direct.log.splitlines()) == 1


def test_a_malformed_event_does_not_end_the_process_that_stays(tmp_path: Path) -> None:
    with scene(tmp_path, "served") as work:
        for text in (b"no json", b"{}", b"[" * 100_000):
            work.hook("claude-code", text)
        work.hook("claude-code", work.event("claude-code.post-tool-use"))
        assert len(work.history(CLAUDE)) == 1
        assert len(work.servers()) == 1
        assert len(work.log.splitlines()) == 3


@pytest.mark.slow
def test_strange_calls_still_have_words(direct: Scene) -> None:
    for number, (name, given) in enumerate(
        [
            ("T\x1b[31m", {"command": "a\x1b[0m\nb" * 200}),
            ("\ud800", "text"),
            ("Tool", None),
            ("Tool", ["a", 1]),
            ("Tool", {"x": {"y": "\ud800"}}),
        ]
    ):
        direct.hook(
            "claude-code",
            direct.event(
                "claude-code.post-tool-use",
                tool_name=name,
                tool_input=given,
                tool_use_id=f"toolu_{number}",
            ),
        )
    rows = direct.history(CLAUDE)
    assert len(rows) == 5
    assert max(len(row["label"]) for row in rows) <= 100
    assert direct.log == ""
    assert "\x1b" not in direct.command("log")


def test_a_busy_store_costs_the_agent_no_more_than_its_limit(work: Scene) -> None:
    work.tool(2)
    with (work.home / "store" / ".lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        started = time.monotonic()
        (work.workspace / "more").write_text("x")
        event = work.event("claude-code.post-tool-use", tool_use_id="toolu_3")
        work.hook("claude-code", event, AGENT_CHECKPOINT_HOOK_SECONDS="1")
        assert time.monotonic() - started < 25  # not the 30 seconds of the other tests
        assert work.log != ""
    work.tool(4)
    assert "toolu_4" in work.history(CLAUDE)[0]["tags"]


def test_a_full_store_does_not_stop_the_agent(work: Scene) -> None:
    store = work.place / "small"
    said = f"sqlite://{store}?max_bytes=400000"
    work.hook("claude-code", work.event("claude-code.post-tool-use"), AGENT_CHECKPOINT_STORE=said)
    (work.workspace / "large").write_bytes(os.urandom(2_000_000))
    event = work.event("claude-code.post-tool-use", tool_use_id="toolu_2")
    work.hook("claude-code", event, AGENT_CHECKPOINT_STORE=said)
    assert work.log != ""
    (work.workspace / "large").unlink()
    event = work.event("claude-code.post-tool-use", tool_use_id="toolu_3")
    work.hook("claude-code", event, AGENT_CHECKPOINT_STORE=said)
    with work.manager(store) as manager:
        tags = [row["tags"][-1] for row in manager.history(CLAUDE)]
        assert tags == ["toolu_3", "toolu_01ABC123"]


def test_a_store_may_be_named_by_a_relative_path(work: Scene) -> None:
    event = work.event("claude-code.post-tool-use")
    work.hook("claude-code", event, AGENT_CHECKPOINT_STORE="../named")
    with work.manager(work.place / "named") as manager:
        assert manager.list_keys() == [CLAUDE]


def test_a_damaged_store_does_not_stop_the_agent(work: Scene) -> None:
    (work.home / "store").mkdir(parents=True)
    (work.home / "store" / "store.db").write_bytes(b"this is no database" * 1000)
    work.hook("claude-code", work.event("claude-code.post-tool-use"))
    assert work.log != ""


def test_a_place_where_nothing_can_be_written_does_not_stop_the_agent(direct: Scene) -> None:
    direct.environment["AGENT_CHECKPOINT_HOME"] = "/proc/nowhere"
    direct.hook("claude-code", direct.event("claude-code.post-tool-use"))
    direct.environment["AGENT_CHECKPOINT_HOME"] = "relative"
    direct.hook("gemini", direct.event("gemini.after-tool"))


def test_a_home_directory_is_not_captured(direct: Scene) -> None:
    home = direct.environment["HOME"]
    direct.hook("claude-code", direct.event("claude-code.post-tool-use", cwd=home))
    assert direct.keys() == []
    assert "home directory" in direct.log


def test_nothing_of_the_workspace_is_run(work: Scene) -> None:
    trap = f"open({str(work.place / 'trapped')!r}, 'w').close()\n"
    for name in ("json", "socket", "site", "sitecustomize", "os", "agent_checkpoint", "_socket"):
        (work.workspace / f"{name}.py").write_text(trap)
    other = {"PYTHONPATH": ".", "PYTHONSTARTUP": "os.py", "PYTHONHOME": str(work.workspace)}
    work.hook("claude-code", work.event("claude-code.post-tool-use"), **other)
    assert len(work.history(CLAUDE)) == 1
    assert not (work.place / "trapped").exists()


def test_a_session_belongs_to_where_it_began(work: Scene) -> None:
    event = work.event("claude-code.post-tool-use", cwd=str(work.workspace / "src"))
    work.hook("claude-code", event)
    outside = work.place / "elsewhere"
    outside.mkdir()
    (work.workspace / "src" / "new.py").write_text("x")
    work.hook("claude-code", {**event, "cwd": str(outside), "tool_use_id": "toolu_2"})
    with work.manager() as manager:
        for checkpoint in manager.store.newest_first(CLAUDE):
            note = read_note(manager.store, checkpoint)
            assert note is not None
            assert note.root == str(work.workspace)
    work.hook(
        "claude-code",
        {**event, "cwd": str(outside), "session_id": "other"},
        CLAUDE_PROJECT_DIR=str(work.workspace / "src"),
    )
    with work.manager() as manager:
        head = manager.store.head("claude-code/other")
        assert head is not None
        note = read_note(manager.store, head)
        assert note is not None
        assert note.root == str(work.workspace)  # the repository around it


def test_the_other_commands_find_the_session_of_the_directory(direct: Scene) -> None:
    direct.tool(2)
    (direct.workspace / "src" / "app.py").write_text("broken")
    direct.tool(3)
    assert CLAUDE in direct.command("log", "--json")
    assert CLAUDE in direct.command("keys")
    direct.command("restore", "~1", "--yes", cwd=direct.workspace / "src")
    assert (direct.workspace / "src" / "app.py").read_text() == "print('old')\n"


def test_the_record_of_failures_is_bounded(direct: Scene) -> None:
    log = direct.home / "hook" / "hook.log"
    log.parent.mkdir(mode=0o700, parents=True)
    log.write_text("old\n" * 100_000)
    for _ in range(2):
        direct.hook("claude-code", b"no json")
    assert len(direct.log.splitlines()) == 1
    assert sorted(path.name for path in log.parent.iterdir()) == ["hook.log", "hook.log.1"]
