"""`rewind`: files and conversation go back together, after a preview, and forth again."""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint.errors import StorageError
from tests.cli.scene import Scene, scene, wait_for
from tests.cli.test_hook import CLAUDE


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path, "direct") as found:
        for number in (2, 3, 4):
            (found.workspace / "src" / "app.py").write_text(f"print({number})\n")
            (found.workspace / f"made-{number}").write_text("x")
            found.tool(number)
        yield found


def now(work: Scene) -> tuple[list[int], str, list[str]]:
    lines = [json.loads(line)["n"] for line in work.transcript.read_text().splitlines()]
    made = sorted(path.name for path in work.workspace.glob("made-*"))
    return lines, (work.workspace / "src" / "app.py").read_text(), made


AT_2 = ([1, 2], "print(2)\n", ["made-2"])
AT_4 = ([1, 2, 3, 4], "print(4)\n", ["made-2", "made-3", "made-4"])


def test_the_tool_calls_are_listed_newest_first(work: Scene) -> None:
    told = json.loads(work.command("rewind", "--json", cwd=work.workspace / "src"))
    assert told["key"] == CLAUDE
    assert [row["tool_use_ids"] for row in told["checkpoints"]] == [
        ["toolu_4"],
        ["toolu_3"],
        ["toolu_2"],
    ]
    assert [row["lines"] for row in told["checkpoints"]] == [4, 3, 2]
    assert "lines: length of the transcript" in work.command("rewind")
    assert "Bash sed" in work.command("rewind")
    assert len(json.loads(work.command("rewind", "-N", "1", "--json"))["checkpoints"]) == 1


@pytest.mark.parametrize("name", ["@1", "~2", "toolu_2", f"{CLAUDE}@1"])
def test_back_and_forth(name: str, work: Scene) -> None:
    mode = work.transcript.stat().st_mode
    told = json.loads(work.command("rewind", name, "--yes", "--json"))
    assert now(work) == AT_2
    assert work.transcript.stat().st_mode == mode
    kept = Path(told["transcript_before"])
    assert kept.parent == work.transcript.parent
    assert kept.suffix != ".jsonl"  # or the agent would take it for a session
    assert len(kept.read_text().splitlines()) == 4
    rows = work.history(CLAUDE)
    assert [row["kind"] for row in rows[:2]] == ["rollback", "safety"]
    assert rows[0]["parents"][0].endswith("-1")
    work.command("rewind", told["safety_id"], "--yes")
    assert now(work) == AT_4


def test_a_preview_changes_nothing(work: Scene) -> None:
    told = work.command("rewind", "@1", "--dry-run")
    assert "write src/app.py" in told
    assert "delete made-4" in told
    assert "from 4 lines to 2" in told
    assert now(work) == AT_4
    assert len(work.history(CLAUDE)) == 3
    told = work.command("rewind", "@1", status=4)  # nobody is there to be asked
    assert "Nothing was changed" in told
    assert now(work) == AT_4
    assert len(work.history(CLAUDE)) == 3


def test_it_says_what_it_cannot_do(work: Scene) -> None:
    told = work.command("rewind", "@1", "--yes")
    assert "are not undone" in told
    assert "claude --resume 5b0fd7d1" in told
    assert "To undo: " in told


def test_only_files_or_only_the_conversation(work: Scene) -> None:
    work.command("rewind", "@1", "--yes", "--only", "files")
    assert now(work) == (AT_4[0], *AT_2[1:])
    work.command("rewind", "@1", "--yes", "--only", "conversation")
    assert now(work) == AT_2


@pytest.mark.slow
def test_what_was_never_saved_is_in_the_safety_checkpoint(work: Scene) -> None:
    (work.workspace / "src" / "app.py").write_text("by hand")
    with work.transcript.open("a") as file:
        file.write('{"n": 99}\n')
    told = json.loads(work.command("rewind", "@1", "--yes", "--json"))
    assert now(work) == AT_2
    work.command("rewind", told["safety_id"], "--yes")
    assert now(work) == ([1, 2, 3, 4, 99], "by hand", AT_4[2])


def test_the_agent_goes_on_from_there(work: Scene) -> None:
    work.command("rewind", "@1", "--yes")
    work.tool(5)
    (row, *_) = work.history(CLAUDE)
    assert row["tags"][-1] == "toolu_5"
    with work.manager() as manager:
        saved = list(manager.state_dict(CLAUDE)["transcript"])
    assert [json.loads(line)["n"] for line in saved] == [1, 2, 5]


@pytest.mark.slow
def test_a_transcript_that_was_written_anew_or_is_gone(work: Scene) -> None:
    work.transcript.write_text('{"n": 7}\n')
    assert "was rewritten since" in work.command("rewind", "@1", "--yes")
    assert now(work) == AT_2
    work.transcript.unlink()
    assert "which is missing" in work.command("rewind", "@3", "--yes")
    assert now(work) == AT_4


def test_a_transcript_without_a_last_newline(tmp_path: Path) -> None:
    with scene(tmp_path, "direct") as work:
        work.transcript = tmp_path / "session.json"  # as Gemini CLI had them
        first = json.dumps({"messages": [1]}, indent=2)
        work.transcript.write_text(first)
        work.hook("gemini", work.event("gemini.after-tool"))
        work.transcript.write_text(json.dumps({"messages": [1, 2]}, indent=2))
        work.hook("gemini", work.event("gemini.after-tool"))
        work.command("rewind", "@1", "--yes")
        assert work.transcript.read_text() == first


def test_a_session_without_a_transcript(tmp_path: Path) -> None:
    with scene(tmp_path, "direct") as work:
        work.hook("codex", work.event("codex.post-tool-use"))
        (work.workspace / "src" / "app.py").write_text("new")
        work.hook("codex", work.event("codex.post-tool-use", tool_use_id="call_2"))
        work.command("rewind", "call_q8Xb2", "--yes")
        with work.manager() as manager:
            assert (
                manager.history("codex/019a8b1c-6f5e-7c31-9a44-2f1d8f0c7b55")[0]["kind"]
                == "rollback"
            )
        assert (work.workspace / "src" / "app.py").read_text() == "print('old')\n"


@pytest.mark.slow
def test_the_last_session_here_is_meant_unless_another_is_named(work: Scene) -> None:
    work.hook(
        "claude-code",
        work.event("claude-code.post-tool-use", session_id="other", transcript_path=None),
    )
    assert json.loads(work.command("rewind", "--json"))["key"] == "claude-code/other"
    told = json.loads(work.command("rewind", "--session", CLAUDE, "--json"))
    assert len(told["checkpoints"]) == 3
    work.command("rewind", "@1", "--session", CLAUDE, "--yes")
    assert now(work) == AT_2


@pytest.mark.slow
def test_a_checkpoint_from_elsewhere_names_no_paths_here(work: Scene) -> None:
    """Anybody can write a note: without this user's seal nothing is written to its paths."""
    victim = work.place / "home" / ".profile"
    victim.write_text("mine")
    config = work.place / "home" / ".config"
    work.hook(
        "claude-code",
        work.event("claude-code.post-tool-use", session_id="foreign", transcript_path=str(victim)),
    )
    victim.write_text("changed since")
    shutil.rmtree(config)  # now that secret is somebody else's
    told = work.command("rewind", "claude-code/foreign", "--yes", status=2)
    assert "not signed with your secret" in told
    assert victim.read_text() == "changed since"


@pytest.mark.slow
def test_nothing_to_rewind(work: Scene) -> None:
    outside = work.place / "outside"
    outside.mkdir()
    assert "hook status" in work.command("rewind", status=3, cwd=outside)
    work.command("rewind", "@99", status=3)
    work.command("rewind", "toolu_unknown", status=3)


def test_a_transcript_that_cannot_be_written_leaves_it_as_it_was(work: Scene) -> None:
    before = work.transcript.read_bytes()
    moved = work.place / "moved"
    moved.mkdir()
    work.transcript.rename(moved / "t.jsonl")
    os.symlink("/proc/version", work.transcript)
    work.command("rewind", "@1", "--yes", status=1)
    assert (moved / "t.jsonl").read_bytes() == before
    work.transcript.unlink()
    (moved / "t.jsonl").rename(work.transcript)
    assert now(work) == AT_4  # and no file went back without the conversation
    assert list(work.place.glob(".rewind-*")) == []


# -- a hostile or a busy place ---------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_running_agent_still_writes_is_not_lost(work: Scene) -> None:
    """It has the file open, and the file that it writes to is kept, whatever is its name."""
    with work.transcript.open("a") as agent:
        told = json.loads(work.command("rewind", "@1", "--yes", "--json"))
        agent.write('{"n": 77}\n')
    kept = Path(told["transcript_before"])
    assert [json.loads(line)["n"] for line in kept.read_text().splitlines()] == [1, 2, 3, 4, 77]
    assert now(work) == AT_2
    with work.transcript.open("a") as agent:
        told = json.loads(work.command("rewind", "@3", "--yes", "--json"))
        agent.write('{"n": 78}\n')
    other = Path(told["transcript_before"])
    assert other != kept
    assert [json.loads(line)["n"] for line in other.read_text().splitlines()] == [1, 2, 78]
    assert len(kept.read_text().splitlines()) == 5
    assert "keeps writing to it" in work.command("rewind", "@1", "--yes")


def test_where_files_have_one_name_only(work: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_checkpoint.agents.transcript_file import Replacement

    def link(*_: object) -> None:
        raise PermissionError(1, "no such links")

    monkeypatch.setattr(os, "link", link)
    before = work.transcript.read_bytes()
    kept = [Replacement(str(work.transcript), b"new\n").put() for _ in range(2)]
    assert work.transcript.read_bytes() == b"new\n"
    assert [Path(str(path)).read_bytes() for path in kept] == [before, b"new\n"]
    monkeypatch.setattr(os, "replace", link)
    with pytest.raises(StorageError):
        Replacement(str(work.transcript), b"newer\n").put()
    assert work.transcript.read_bytes() == b"new\n"
    assert len(list(work.place.glob("*.before-rewind*"))) == 2


def test_a_transcript_that_has_become_a_link_is_not_written_through(work: Scene) -> None:
    victim = work.place / "home" / ".profile"
    victim.write_text("mine")
    work.transcript.unlink()
    work.transcript.symlink_to(victim)
    told = work.command("rewind", "@1", "--yes", status=1)
    assert "is a link or not a regular file" in told
    assert "--only files" in told
    assert victim.read_text() == "mine"
    assert list(victim.parent.glob(".profile*")) == [victim]
    assert (work.workspace / "src" / "app.py").read_text() == AT_4[1]
    work.command("rewind", "@1", "--yes", "--only", "files")
    assert (work.workspace / "src" / "app.py").read_text() == AT_2[1]
    assert victim.read_text() == "mine"
    assert work.transcript.is_symlink()


def test_the_preview_names_real_paths(work: Scene) -> None:
    moved = work.place / "moved"
    moved.mkdir()
    linked = work.place / "linked"
    linked.symlink_to(moved)
    work.transcript = linked / "t.jsonl"
    work.transcript.write_text('{"n": 1}\n')
    work.tool(5)
    work.tool(6)
    told = work.command("rewind", "~1", "--dry-run")
    assert f"truncate {moved}/t.jsonl from 3 lines" in told
    told = work.command("rewind", "@1", "--dry-run")
    assert f"In {work.workspace}:" in told
    assert json.loads(work.command("rewind", "@1", "--dry-run", "--json"))["directory"] == str(
        work.workspace
    )


def test_a_directory_that_has_become_a_link_is_left_alone(work: Scene) -> None:
    other = work.place / "other"
    shutil.copytree(work.workspace, other)
    work.workspace.rename(work.place / "elsewhere")
    work.workspace.symlink_to(other)
    told = work.command("rewind", f"{CLAUDE}@1", "--yes", status=1)
    assert f"is now a link to '{other}'" in told
    assert (other / "src" / "app.py").read_text() == AT_4[1]
    assert len(work.transcript.read_text().splitlines()) == 4


def test_commands_that_are_shown_can_be_typed(work: Scene) -> None:
    name = "x'; touch PWN; echo '"
    work.hook(
        "claude-code",
        work.event("claude-code.post-tool-use", session_id=name, transcript_path=None),
    )
    told = work.command("rewind", f"claude-code/{name}@1", "--yes")
    (undo,) = [line for line in told.splitlines() if line.startswith("To undo: ")]
    words = shlex.split(undo.removeprefix("To undo: "))
    assert words[:2] == ["agent-checkpoint", "rewind"]
    assert words[2].startswith(f"claude-code/{name}_")
    (resume,) = [line for line in told.splitlines() if "--resume" in line]
    assert shlex.split(resume) == ["claude", "--resume", name]


def test_a_name_with_a_new_line_forges_none(work: Scene) -> None:
    (work.workspace / "made\nNothing to do").write_text("x")
    told = work.command("rewind", "@1", "--dry-run")
    assert "  delete made\\nNothing to do" in told.splitlines()
    outside = work.place / "out\nside"
    outside.mkdir()
    for command in ("rewind", "log"):
        assert "out\\nside" in work.command(command, status=3, cwd=outside)


def test_for_a_program_nothing_is_shown_and_nobody_is_asked(work: Scene) -> None:
    program = f"""
import os, pty, sys
os.environ["TERM"] = "dumb"
status = pty.spawn([{sys.executable!r}, "-m", "agent_checkpoint", "rewind", "@1", "--json"])
sys.exit(os.WEXITSTATUS(status))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=work.workspace,
        env=work.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = json.loads(done.stdout)
    assert done.returncode == 4
    assert told["done"] is False
    assert told["write"] == ["src/app.py"]
    assert now(work) == AT_4


@pytest.mark.slow
def test_a_session_that_another_process_works_on_is_waited_for(work: Scene) -> None:
    name = hashlib.sha256(CLAUDE.encode()).hexdigest()[:32] + ".session.lock"
    with (work.home / "hook" / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        event = work.event("claude-code.post-tool-use", tool_use_id="toolu_5")
        work.hook("claude-code", event, AGENT_CHECKPOINT_HOOK_SECONDS="0.3")
        wait_for(lambda: "has been locked by" in work.log)
    assert len(work.history(CLAUDE)) == 3
    work.command("rewind", "@1", "--yes")
    assert now(work) == AT_2


@pytest.mark.slow
def test_what_has_ended_is_not_done_again_when_later_checkpoints_are_deleted(work: Scene) -> None:
    told = json.loads(work.command("rewind", "@1", "--yes", "--json"))
    work.command("rewind", told["safety_id"], "--yes")
    assert now(work) == AT_4
    with work.manager() as manager:
        rows = manager.history(CLAUDE)
        place = [row["id"] for row in rows].index(told["safety_id"])
        for row in rows[:place]:
            manager.delete(CLAUDE, row["id"])
    assert "interrupted" not in work.command("rewind")
    work.tool(5)
    assert now(work)[1:] == AT_4[1:]


@pytest.mark.slow
def test_an_unfinished_rewind_of_another_store_is_not_finished(work: Scene, tmp_path: Path) -> None:
    """An archive of a session that was rewound, without what came after."""
    told = json.loads(work.command("rewind", "@1", "--yes", "--json"))
    work.command("rewind", told["safety_id"], "--yes")
    with work.manager() as manager:
        rows = manager.history(CLAUDE)
        place = [row["id"] for row in rows].index(told["safety_id"])
        for row in rows[:place]:
            manager.delete(CLAUDE, row["id"])
        manager.export_archive(tmp_path / "archive", CLAUDE)
    work.command("--store", str(tmp_path / "fresh"), "import", str(tmp_path / "archive"))
    listed = work.command("--store", str(tmp_path / "fresh"), "rewind", "--session", CLAUDE)
    assert "interrupted" not in listed
    assert now(work) == AT_4


@pytest.mark.slow
def test_an_imported_session_is_not_that_of_the_directory(work: Scene, tmp_path: Path) -> None:
    """The notes are sealed by this user; what is beside them may have been changed since."""
    with work.manager() as manager:
        manager.export_archive(tmp_path / "archive", CLAUDE)
    fresh = ("--store", str(tmp_path / "fresh"))
    work.command(*fresh, "import", str(tmp_path / "archive"))
    before = now(work)
    work.command(*fresh, "rewind", status=3)
    work.command(*fresh, "rewind", "@1", "--session", CLAUDE, "--yes", status=2)
    work.command(*fresh, "restore", f"{CLAUDE}@1", "--yes", status=2)
    assert now(work) == before


@pytest.mark.slow
def test_a_fork_of_a_session_is_not_the_session(work: Scene) -> None:
    work.command("fork", CLAUDE, "try-a")
    assert json.loads(work.command("rewind", "--json"))["key"] == CLAUDE


@pytest.mark.slow
def test_what_the_hook_has_saved_is_not_called_unsaved(work: Scene) -> None:
    for command in ("rewind", "restore"):
        assert "never saved" not in work.command(command, f"{CLAUDE}@1", "--dry-run")
    (work.workspace / "made-2").write_text("and more")
    assert "1 of these was never saved" in work.command("rewind", "@1", "--dry-run")
    work.command("restore", f"{CLAUDE}@1", "--keep-unseen", "--yes")
    assert (work.workspace / "made-2").read_text() == "and more"
    assert not (work.workspace / "made-3").exists()


def test_undo_takes_files_and_conversation_back(work: Scene) -> None:
    work.command("rewind", "@1", "--yes")
    assert now(work) == AT_2
    told = work.command("undo", "--yes")
    assert told.startswith(f"Last operation: rollback of {CLAUDE} to @1, ")
    assert now(work) == AT_4


# -- the conversation of a moment ------------------------------------------------------------------


def call_line(number: int) -> str:
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": {}}
    message = {"id": f"msg_{number}", "role": "assistant", "content": [use]}
    return json.dumps({"type": "assistant", "message": message, "n": number}) + "\n"


def result_line(number: int) -> str:
    block = {"type": "tool_result", "tool_use_id": f"toolu_{number}"}
    message = {"role": "user", "content": [block]}
    return json.dumps({"type": "user", "message": message, "n": -number}) + "\n"


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Scene]:
    """A session whose agent creates the transcript and writes each result after its hook."""
    with scene(tmp_path, "direct") as found:
        found.transcript.unlink()
        found.hook("claude-code", found.event("claude-code.user-prompt-submit"))
        found.transcript.write_text('{"type": "user", "message": {"content": "do it"}, "n": 1}\n')
        for number in (2, 3):
            (found.workspace / f"made-{number}").write_text("x")
            write(found, call_line(number))
            event = found.event("claude-code.post-tool-use", tool_use_id=f"toolu_{number}")
            found.hook("claude-code", event)
            write(found, result_line(number))
        yield found


def write(work: Scene, line: str) -> None:
    with work.transcript.open("a") as file:
        file.write(line)


@pytest.mark.parametrize("number", [2, 3])  # from the next checkpoint, from the transcript itself
def test_the_result_of_a_call_is_in_its_conversation(number: int, late: Scene) -> None:
    late.command("rewind", f"toolu_{number}", "--yes")
    assert now(late)[0] == [1, 2, -2, 3, -3][: 2 * number - 1]
    with late.manager() as manager:  # the head is what is there
        assert "".join(f"{line}\n" for line in manager.state_dict(CLAUDE)["transcript"]) == (
            late.transcript.read_text()
        )


def test_a_result_that_nothing_holds_is_told(late: Scene) -> None:
    late.transcript.unlink()
    told = late.command("rewind", "toolu_3", "--dry-run")
    assert "the resumed model hears that the call was interrupted" in told
    assert "interrupted" not in late.command("rewind", "toolu_2", "--dry-run")


def test_results_of_an_abandoned_line_are_not_taken(late: Scene) -> None:
    """After a rewind the transcript is of another line of work."""
    late.command("rewind", "@1", "--yes", "--only", "conversation")
    assert not late.transcript.exists()
    told = json.loads(late.command("rewind", "toolu_3", "--yes", "--json"))
    assert told["warning"] is None  # the safety checkpoint has it
    assert now(late)[0] == [1, 2, -2, 3, -3]


def test_before_the_first_prompt_nothing_was_said(late: Scene) -> None:
    before = late.transcript.read_bytes()
    told = late.command("rewind", "@1", "--yes")
    assert "nothing was said yet" in told
    assert "claude --session-id 5b0fd7d1" in told
    assert not late.transcript.exists()
    assert Path(f"{late.transcript}.before-rewind").read_bytes() == before
    assert sorted(path.name for path in late.workspace.glob("made-*")) == []
    with late.manager() as manager:
        assert "transcript" not in manager.state_dict(CLAUDE)
    undo = next(row["id"] for row in late.history(CLAUDE) if row["kind"] == "safety")
    late.command("rewind", undo, "--yes")
    assert late.transcript.read_bytes() == before


def test_an_undo_to_a_moment_without_a_transcript(late: Scene) -> None:
    before = late.transcript.read_bytes()
    late.command("rewind", "@1", "--yes")
    late.command("undo", "--yes")
    assert late.transcript.read_bytes() == before
    assert "nothing was said yet" in late.command("undo", "--yes")
    assert not late.transcript.exists()
    assert list(late.workspace.glob("made-*")) == []
    late.command("undo", "--yes")
    assert late.transcript.read_bytes() == before
    rewound = [row["id"] for row in late.history(CLAUDE) if row["kind"] == "rollback"]
    assert "nothing was said yet" in late.command("rewind", rewound[-1], "--dry-run")


@pytest.mark.parametrize("event", ["pre-tool-use", "post-tool-use"])
def test_a_call_before_the_agent_created_the_transcript(event: str, tmp_path: Path) -> None:
    with scene(tmp_path, "direct") as work:
        work.transcript.unlink()
        work.hook("claude-code", work.event(f"claude-code.{event}", tool_use_id="toolu_2"))
        write(work, '{"type": "user", "message": {"content": "do it"}, "n": 1}\n')
        for line in (call_line(2), result_line(2), call_line(3), result_line(3)):
            write(work, line)
        work.hook("claude-code", work.event("claude-code.post-tool-use", tool_use_id="toolu_3"))
        work.command("rewind", "@1", "--yes")
        assert now(work)[0] == ([1] if event == "pre-tool-use" else [1, 2, -2])


def test_a_call_that_no_transcript_has(tmp_path: Path) -> None:
    with scene(tmp_path, "direct") as work:
        work.transcript.unlink()
        work.hook("claude-code", work.event("claude-code.post-tool-use", tool_use_id="toolu_2"))
        write(work, '{"type": "user", "message": {"content": "do it"}, "n": 1}\n')
        work.hook("claude-code", work.event("claude-code.stop"))
        told = json.loads(work.command("rewind", "@1", "--yes", "--json"))
        assert "no transcript yet" in told["transcript_missing"]
        assert now(work)[0] == [1]


def qwen_line(second: int, kind: str, *parts: "dict[str, Any]") -> str:
    record = {"type": kind, "uuid": str(second), "n": second, "message": {"parts": parts}}
    return json.dumps({**record, "timestamp": f"2026-11-18T00:00:{second:02}.000Z"}) + "\n"


def test_an_agent_that_creates_the_transcript_after_its_turn(tmp_path: Path) -> None:
    """Qwen Code may be several steps behind: the times of its lines tell what was said when."""
    shell = "run_shell_command"
    commands = [{"name": shell, "args": {"command": "make"}, "id": f"call_{n}"} for n in (1, 2)]
    lines = [
        qwen_line(10, "user", {"text": "do it"}),
        qwen_line(12, "assistant", {"functionCall": commands[0]}),
        qwen_line(15, "tool_result", {"functionResponse": {"id": "call_1"}}),
        qwen_line(20, "assistant", {"functionCall": commands[1]}),
        qwen_line(25, "tool_result", {"functionResponse": {"id": "call_2"}}),
        qwen_line(30, "assistant", {"text": "done"}),
    ]
    called = {"tool_name": shell, "tool_input": {"command": "make"}}
    whole = [10, 12, 15, 20, 25, 30]
    events: list[tuple[int, str, dict[str, Any], list[int]]] = [
        (1, "UserPromptSubmit", {"prompt": "do it"}, []),
        (13, "PreToolUse", called, [10]),
        (14, "PostToolUse", called, [10, 12, 15]),
        (16, "UserPromptSubmit", {"prompt": ""}, [10, 12, 15]),
        (22, "PostToolUse", called, [10, 12, 15, 20, 25]),
        (31, "Stop", {}, whole),
        (32, "SessionEnd", {}, whole),
    ]
    with scene(tmp_path, "direct") as work:
        work.transcript.unlink()
        for number, (second, name, said, _) in enumerate(events):
            (work.workspace / f"made-{number}").write_text("x")
            if name == "SessionEnd":
                write(work, "".join(lines))
            event = work.event("qwen.post-tool-use")
            event = {key: value for key, value in event.items() if not key.startswith("tool_")}
            time = f"2026-11-18T00:00:{second:02}.000Z"
            ids = {"tool_use_id": f"toolu_{second}"} if said is called else {}
            work.hook("qwen", {**event, **said, **ids, "hook_event_name": name, "timestamp": time})
        for number, (_, name, _, expected) in enumerate(events, 1):
            told = json.loads(work.command("rewind", f"@{number}", "--yes", "--json"))
            assert told["warning"] is None
            assert told["starts_anew"] == (not expected)
            found = now(work)[0] if work.transcript.exists() else []
            assert found == expected, (number, name)
            assert len(list(work.workspace.glob("made-*"))) == number
            work.command("rewind", told["safety_id"], "--yes")


def test_a_session_that_goes_on_in_another_file(late: Scene) -> None:
    """The conversation that was there is saved and moved away: an agent may resume either."""
    first = late.transcript
    late.command("rewind", "@1", "--yes")
    late.transcript = first.with_name("other.jsonl")
    write(late, call_line(5))
    late.hook("claude-code", late.event("claude-code.post-tool-use", tool_use_id="toolu_5"))
    write(late, result_line(5))
    told = json.loads(late.command("rewind", "toolu_2", "--yes", "--json"))
    assert [json.loads(line)["n"] for line in first.read_text().splitlines()] == [1, 2, -2]
    assert not late.transcript.exists()
    late.command("rewind", told["safety_id"], "--yes")
    assert not first.exists()
    assert now(late)[0] == [5, -5]


def test_between_parallel_calls_no_conversation_can_continue(late: Scene) -> None:
    both = json.loads(call_line(6))
    both["message"]["content"] += json.loads(call_line(7))["message"]["content"]
    write(late, json.dumps(both) + "\n")
    for number in (6, 7):
        (late.workspace / f"made-{number}").write_text("x")
        event = late.event("claude-code.post-tool-use", tool_use_id=f"toolu_{number}")
        late.hook("claude-code", event)
    write(late, result_line(6) + result_line(7))
    told = late.command("rewind", "toolu_6", "--yes", status=2)
    assert "is between the parallel calls of one reply" in told
    assert "@4 (before) or @5 (after), or `--only files`" in told
    late.command("rewind", "toolu_7", "--yes")
    assert now(late)[0] == [1, 2, -2, 3, -3, 6, -6, -7]
    late.command("rewind", "toolu_6", "--yes", "--only", "files")
    assert not (late.workspace / "made-7").exists()


# -- an agent that is running, and other sessions --------------------------------------------------


@pytest.fixture
def running(work: Scene) -> "Iterator[subprocess.Popen[bytes]]":
    with running_claude(work) as process:
        yield process


@contextmanager
def running_claude(work: Scene) -> "Iterator[subprocess.Popen[bytes]]":
    """A process called `claude` that has reported a tool call and waits for its input to end."""
    claude = work.place / "claude"
    claude.symlink_to("/bin/sh")
    event = work.place / "event.json"
    event.write_text(json.dumps(work.event("claude-code.post-tool-use", tool_use_id="toolu_9")))
    hook = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(work.client))} claude-code"
    process = subprocess.Popen(
        [str(claude), "-c", f"{hook} < {shlex.quote(str(event))}; echo done; read line; exit 0"],
        env=work.environment,
        cwd=work.workspace,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"done\n"
    try:
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def test_a_running_agent_is_noticed(work: Scene, running: "subprocess.Popen[bytes]") -> None:
    told = work.command("rewind", "@1", "--yes", status=4)
    assert f"claude (process {running.pid}) has this session open" in told
    assert "Nothing was changed" in told
    assert now(work) == AT_4
    assert "lose their past" in work.command("rewind", "@1", "--dry-run")
    told = work.command("rewind", "@1", "--yes", "--only", "files")
    assert "does not know that files change" in told
    work.command("rewind", "@1", "--yes", "--while-running")
    assert now(work) == AT_2


def test_the_end_of_the_agent_is_waited_for(
    work: Scene, running: "subprocess.Popen[bytes]"
) -> None:
    command = [sys.executable, "-m", "agent_checkpoint", "rewind", "@1", "--yes", "--wait"]
    waiting = subprocess.Popen(
        command, cwd=work.workspace, env=work.environment, stderr=subprocess.PIPE
    )
    assert waiting.stderr is not None
    assert b"Waiting: claude" in waiting.stderr.readline()
    assert now(work) == AT_4
    assert running.stdin is not None
    running.stdin.write(b"\n")
    running.stdin.flush()
    running.wait()
    waiting.communicate()
    assert waiting.returncode == 0
    assert now(work) == AT_2


def test_a_session_that_has_ended_is_not_open(
    work: Scene, running: "subprocess.Popen[bytes]"
) -> None:
    work.hook("claude-code", work.event("claude-code.session-end"))
    work.command("rewind", "@1", "--yes")
    assert now(work) == AT_2


def test_a_session_in_the_background_process_of_codex(work: Scene) -> None:
    """It stays when the user exits Codex, and closes the session a minute later."""
    codex = work.place / "codex"
    codex.symlink_to("/bin/sh")
    given = work.event("codex.post-tool-use", transcript_path=str(work.transcript))
    event = work.place / "event.json"
    event.write_text(json.dumps(given))
    lock = work.place / f"{given['session_id']}.lock"
    hook = f"{shlex.quote(sys.executable)} -I -S {shlex.quote(str(work.client))} codex"
    steps = f"exec 9> {shlex.quote(str(lock))}; {hook} < {shlex.quote(str(event))}; echo saved; "
    steps += "read line; exec 9>&-; echo closed; read line; exit 0"
    with subprocess.Popen(
        [str(codex), "-c", steps, "app-server"],
        env=work.environment,
        cwd=work.workspace,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"saved\n"
        rewind = ("rewind", "--session", f"codex/{given['session_id']}", "@1", "--yes")
        told = work.command(*rewind, status=4)
        assert f"background process of codex (process {process.pid}) has this session open" in told
        assert "Exit, and retry in a minute, or use `--wait`" in told
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"closed\n"
        work.command(*rewind)
        assert process.poll() is None


def test_other_sessions_in_the_directory_are_named(work: Scene) -> None:
    assert "other session" not in work.command("rewind", "@1", "--dry-run")
    (work.workspace / "theirs").write_text("x")
    event = work.event("claude-code.post-tool-use", session_id="other", transcript_path=None)
    work.hook("claude-code", event)
    told = work.command("rewind", "@1", "--session", CLAUDE, "--dry-run")
    assert "1 other session worked here, whose changes are reverted as well" in told
    assert "claude-code/other" in told


@pytest.mark.parametrize("way", ["--yes", "--dry-run"])
def test_saved_files_are_not_called_unsaved(way: str, work: Scene) -> None:
    assert "never saved" not in work.command("rewind", "@1", way)


def test_after_an_undo_the_line_of_work_goes_on(late: Scene) -> None:
    """Its transcript is that of the line again, also if the safety checkpoint is gone."""
    told = json.loads(late.command("rewind", "toolu_2", "--yes", "--json"))
    late.command("rewind", told["safety_id"], "--yes")
    with late.manager() as manager:
        for row in manager.history(CLAUDE):
            if row["kind"] == "safety":
                manager.delete(CLAUDE, row["id"])
    told = json.loads(late.command("rewind", "toolu_3", "--yes", "--json"))
    assert told["warning"] is None
    assert now(late)[0] == [1, 2, -2, 3, -3]
