"""`rewind --mine`: two sessions and a human editor in one directory; each keeps its own work."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint.agents.hook.event_saver import EventSaver, Request
from agent_checkpoint.agents.hook.protocol import LOCATION_VARIABLES
from agent_checkpoint.errors import StorageError
from tests.cli.world import run

A, B, HUMAN = "a", "b", "human"
PATHS = ["one.txt", "two.txt", "three.txt", "below/four.txt", "below/deep/five.txt"]


class Shared:
    """A directory in which sessions of Claude Code work, and the events that they send."""

    def __init__(self, place: Path, *, watch: bool = False) -> None:
        self.place = place
        (place / ".git").mkdir(parents=True)
        self.saver = EventSaver(watch=watch)
        self.numbers = iter(range(10_000))

    def send(
        self, session: str, name: str, use: str, agent: str = "claude-code", **more: Any
    ) -> None:
        event = {"hook_event_name": name, "session_id": session, "cwd": str(self.place), **more}
        if use:
            event.update({"tool_name": "Bash", "tool_input": {}, **more, "tool_use_id": use})
        places = tuple(os.environ.get(variable, "") for variable in LOCATION_VARIABLES)
        data = json.dumps(event).encode()
        self.saver.save(Request(agent, "", "", "", places, data))

    def write(self, path: str, text: str) -> None:
        (self.place / path).parent.mkdir(parents=True, exist_ok=True)
        (self.place / path).write_text(text)

    def call(self, session: str, path: str, text: str, **more: Any) -> None:
        """Have a session write a file by a call."""
        use = f"toolu_{next(self.numbers)}"
        self.send(session, "PreToolUse", use, **more)
        self.write(path, text)
        self.send(session, "PostToolUse", use, **more)

    def contents(self) -> "dict[str, str]":
        files = (path for path in self.place.rglob("*") if path.is_file())
        return {str(path.relative_to(self.place)): path.read_text() for path in files}

    def rewind(self, session: str, to: int, *more: str) -> Any:
        key = f"claude-code/{session}"
        done = run("rewind", f"@{to}", "--session", key, "--mine", *more, "--json", at=self.place)
        assert done.status == 0, done.err
        return done.data


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    found = Shared(tmp_path / "project")
    yield found
    found.saver.close()


def test_only_the_changes_of_this_session_are_taken_back(shared: Shared) -> None:
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.call(A, "mine.txt", "a")
    shared.call(B, "theirs.txt", "b")
    shared.write("by-hand.txt", "human")
    shared.call(A, "below/mine.txt", "a")
    preview = shared.rewind(A, 1, "--dry-run")
    assert sorted(preview["delete"]) == ["below", "below/mine.txt", "mine.txt"]
    assert sorted(preview["not_mine"]) == ["by-hand.txt", "theirs.txt"]
    done = shared.rewind(A, 1, "--yes")
    assert done["delete"] == preview["delete"]
    assert shared.contents() == {"theirs.txt": "b", "by-hand.txt": "human"}
    undone = run("rewind", done["safety_id"], "--yes", at=shared.place)
    assert undone.status == 0, undone.err
    assert sorted(shared.contents()) == ["below/mine.txt", "by-hand.txt", "mine.txt", "theirs.txt"]


def test_a_file_that_others_changed_as_well_is_kept_and_listed(shared: Shared) -> None:
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.call(A, "both.txt", "a")
    shared.write("both.txt", "a, and by hand")
    shared.call(A, "mine.txt", "a")
    done = run("rewind", "@1", "--mine", "--yes", at=shared.place)
    assert "keep both.txt: it changed outside of this session's calls" in done.out
    assert shared.contents() == {"both.txt": "a, and by hand"}


def test_calls_that_overlap_are_ambiguous(shared: Shared) -> None:
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.send(B, "PreToolUse", "toolu_b")  # it has not ended
    shared.call(A, "mine.txt", "a")
    assert "ran at the same time" in shared.rewind(A, 1, "--dry-run")["not_mine"]["mine.txt"]
    shared.send(B, "PostToolUse", "toolu_b")
    assert "ran at the same time" in shared.rewind(A, 1, "--dry-run")["not_mine"]["mine.txt"]
    shared.call(A, "later.txt", "a")
    assert shared.rewind(A, 1, "--yes")["delete"] == ["later.txt"]


def test_a_file_that_another_session_names_is_kept(shared: Shared) -> None:
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.call(A, "named.txt", "a")
    given = {"tool_input": {"command": "cat ./named.txt | wc"}}
    shared.call(B, "theirs.txt", "b", **given)
    assert "names it" in shared.rewind(A, 1, "--yes")["not_mine"]["named.txt"]


def test_a_tool_for_one_file_changes_no_other(shared: Shared) -> None:
    """Somebody edited by hand while it ran."""
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    tool = {"tool_name": "Write", "tool_input": {"file_path": str(shared.place / "mine.txt")}}
    shared.send(A, "PreToolUse", "toolu_x", **tool)
    shared.write("mine.txt", "a")
    shared.write("by-hand.txt", "human")
    shared.send(A, "PostToolUse", "toolu_x", **tool)
    assert shared.rewind(A, 1, "--yes")["delete"] == ["mine.txt"]
    assert shared.contents() == {"by-hand.txt": "human"}


def test_a_call_whose_first_snapshot_failed_owns_nothing(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others did before it cannot be told from what it did."""
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.write("by-hand.txt", "human")

    def fail(*args: object) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(EventSaver, "_save", fail)
        shared.send(A, "PreToolUse", "toolu_x")
    shared.write("mine.txt", "a")
    shared.send(A, "PostToolUse", "toolu_x")
    assert shared.rewind(A, 1, "--yes")["delete"] == []
    assert sorted(shared.contents()) == ["by-hand.txt", "mine.txt"]


def test_git_is_never_changed(shared: Shared) -> None:
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.call(A, ".git/HEAD", "ref: refs/heads/x")
    shared.call(A, "mine.txt", "a")
    shared.rewind(A, 1, "--yes")
    assert shared.contents() == {".git/HEAD": "ref: refs/heads/x"}


def test_after_another_rewind_nothing_is_known(shared: Shared) -> None:
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.call(A, "mine.txt", "a")
    assert run("rewind", "@1", "--yes", at=shared.place).status == 0
    done = run("rewind", "@2", "--mine", "--yes", at=shared.place)
    assert done.status == 2
    assert "was rewound since @2" in done.err


def schedule(shared: Shared, seed: int) -> None:
    """Run a random schedule, rewind one session, and compare with who wrote what."""
    chance = random.Random(seed)
    writers: dict[str, list[str]] = {path: [] for path in PATHS}
    running: dict[str, str] = {}
    for path in PATHS[:3]:
        shared.write(path, "at the beginning")
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    before = shared.contents()
    for number in range(chance.randint(4, 12)):
        who = chance.choice([A, B, HUMAN])
        path = chance.choice(PATHS)
        if who == HUMAN:
            if A in running:  # what a shell command changes cannot be told from this
                continue
        elif who not in running:
            running[who] = f"toolu_{seed}_{number}"
            shared.send(who, "PreToolUse", running[who])
        if chance.random() < 0.2 and (shared.place / path).exists():
            (shared.place / path).unlink()
        else:
            shared.write(path, f"{who} {number}")
        writers[path].append(who)
        if who in running and chance.random() < 0.6:
            shared.send(who, "PostToolUse", running.pop(who))
    if A in running:
        shared.send(A, "PostToolUse", running.pop(A))
    now = shared.contents()
    done = shared.rewind(A, 1, "--yes")
    after = shared.contents()
    for path, names in writers.items():
        if set(names) == {A} and path not in done["not_mine"]:
            assert after.get(path) == before.get(path), path
        else:
            assert after.get(path) == now.get(path), path


@pytest.mark.parametrize("seed", range(10))
def test_random_schedules(seed: int, shared: Shared) -> None:
    schedule(shared, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 210))
def test_many_random_schedules(seed: int, shared: Shared) -> None:
    schedule(shared, seed)
