"""A directory that was moved or renamed keeps its history; a copy begins a new one."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.directory_keys import trusted_directory
from agent_checkpoint.agents.session_note import read_note
from agent_checkpoint.backends.default_paths import default_store
from agent_checkpoint.store.directory_identity import identity_of
from agent_checkpoint.store.lookup import find
from tests.cli.test_rewind_mine import A, B, Shared
from tests.cli.world import run

KEY = f"claude-code/{A}"


@pytest.fixture(params=[False, True], ids=["direct", "daemon"])
def shared(request: Any, tmp_path: Path) -> Iterator[Shared]:
    found = Shared(tmp_path / "project", watch=request.param)
    yield found
    found.saver.close()


def begin(shared: Shared) -> None:
    """Save the directory, and have a session change it twice."""
    shared.write("app.py", "one\n")
    assert run("save", "-m", "by hand", at=shared.place).status == 0
    shared.call(A, "app.py", "one\ntwo\n")
    shared.call(A, "app.py", "one\ntwo\nthree\n")


def move(shared: Shared, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    before = shared.place
    before.rename(to)
    shared.place = to
    return before


def keys_at(place: Path) -> "list[str]":
    """Return the keys that commands find in a directory, the latest first."""
    return [row["key"] for row in run("keys", "--json").data if row["directory"] == str(place)]


def own_key(place: Path) -> str:
    found = run("save", "--json", at=place)
    assert found.status == 0, found.err
    return str(found.data["key"])


@pytest.mark.parametrize("to", ["renamed", "elsewhere/below/project"])
def test_a_moved_directory_keeps_its_history(to: str, shared: Shared, tmp_path: Path) -> None:
    begin(shared)
    before = move(shared, tmp_path / to)
    assert run("log", at=shared.place).status == 0
    assert set(keys_at(shared.place)) == {KEY, f"workspace:{before}"}
    told = run("rewind", "--json", at=shared.place)
    assert told.data["key"] == KEY
    blamed = run("blame", "app.py", "--json", at=shared.place).data
    assert [row["step"]["key"] for row in blamed] == [f"workspace:{before}", KEY, KEY]
    done = run("rewind", "@2", "--yes", "--json", at=shared.place)
    assert done.data["directory"] == str(shared.place)
    assert shared.contents() == {"app.py": "one\ntwo\n"}
    done = run("restore", f"workspace:{before}", "--yes", "--json", at=shared.place)
    assert done.data["directory"] == str(shared.place)
    assert shared.contents() == {"app.py": "one\n"}
    assert own_key(shared.place) == f"workspace:{before}"
    assert not before.exists()


@pytest.mark.parametrize("agent", AGENTS)
def test_the_next_event_of_a_session_follows_the_directory(
    agent: str, shared: Shared, tmp_path: Path
) -> None:
    after = "AfterTool" if agent == "gemini" else "PostToolUse"
    shared.write("app.py", "one\n")
    shared.send(A, after, "use_1", agent=agent)
    before = move(shared, tmp_path / "renamed")
    before.mkdir()  # a new directory at the old path is another one
    (before / "other.py").write_text("not of this session\n")
    shared.write("app.py", "two\n")
    shared.send(A, after, "use_2", agent=agent)
    with CheckpointManager(str(default_store())) as manager:
        head = manager.store.head(f"{agent}/{A}")
        assert head is not None
        assert head.seq == 2
        note = read_note(manager.store, head)
    assert note is not None
    assert note.root == str(shared.place)
    listed = run("show", f"{agent}/{A}", "--files", "--json").data
    assert "app.py" in str(listed)
    assert "other.py" not in str(listed)


@pytest.mark.parametrize("agent", ["claude-code", "qwen"])
def test_an_agent_that_finds_sessions_by_path(agent: str, shared: Shared, tmp_path: Path) -> None:
    transcript = tmp_path / "transcript.jsonl"
    transcript.write_text('{"type": "user", "message": {"role": "user", "content": "begin"}}\n')
    shared.write("app.py", "one\n")
    shared.send(A, "Stop", "", agent=agent, transcript_path=str(transcript))
    assert "moved" not in run("rewind", "@1", "--dry-run", at=shared.place).out
    before = move(shared, tmp_path / "renamed")
    preview = run("rewind", "@1", "--dry-run", at=shared.place).out
    told = f"moved since then, from {before}: qwen finds a session only"
    assert (told in preview) == (agent == "qwen")


def test_a_copy_begins_a_history_of_its_own(shared: Shared, tmp_path: Path) -> None:
    begin(shared)
    copy = tmp_path / "copy"
    shutil.copytree(shared.place, copy)
    found = run("log", at=copy)
    assert found.status != 0
    assert "has no checkpoints yet" in found.err
    assert "--moved-from" not in found.err
    found = run("save", "--moved-from", shared.place, at=copy)
    assert found.status != 0
    assert "is still there" in found.err
    assert own_key(copy) == f"workspace:{copy}"


def test_a_new_directory_with_the_old_inode_is_not_the_old_one(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    assert run("save", at=first).status == 0
    inode = first.stat().st_ino
    for _ in range(50):  # ext4 takes the number that was freed last
        shutil.rmtree(first, ignore_errors=True)
        second.mkdir()
        if second.stat().st_ino == inode:
            break
        second.rmdir()
    else:
        pytest.skip("this file system does not reuse inode numbers at once")
    assert run("log", at=second).status != 0


def test_between_file_systems_the_user_says_what_was_moved(shared: Shared, tmp_path: Path) -> None:
    begin(shared)
    before, shared.place = shared.place, tmp_path / "elsewhere"
    shutil.copytree(before, shared.place)  # as `mv` does there
    shutil.rmtree(before)
    for command in ("log", "rewind"):
        told = run(command, at=shared.place)
        assert told.status != 0
        assert f"save --moved-from {before}" in told.err
    told = run("rewind", f"{KEY}@2", "--yes", at=shared.place)
    assert told.status != 0
    assert f"save --moved-from {before}" in told.err
    saved = run("save", "--moved-from", before, "--json", at=shared.place)
    assert saved.data["key"] == f"workspace:{before}"
    assert run("rewind", "@2", "--yes", at=shared.place).status == 0
    assert shared.contents() == {"app.py": "one\ntwo\n"}
    shared.call(A, "app.py", "four\n")
    move(shared, tmp_path / "renamed")  # and this is found again
    assert run("rewind", "--json", at=shared.place).data["key"] == KEY
    assert run("save", "--moved-from", before, at=shared.place).status != 0


def test_a_new_directory_at_the_old_path(shared: Shared, tmp_path: Path) -> None:
    begin(shared)
    before = move(shared, tmp_path / "renamed")
    assert run("log", at=shared.place).status == 0
    before.mkdir()
    refused = run("log", at=before)
    assert refused.status != 0
    assert "--mine" not in refused.err  # it would take the history from the moved one
    assert own_key(before) == f"workspace:{before}//2"
    assert own_key(shared.place) == f"workspace:{before}"
    assert run("rewind", at=before).status != 0
    assert run("rewind", "--json", at=shared.place).data["key"] == KEY


def test_a_directory_that_replaces_another_continues_its_history(tmp_path: Path) -> None:
    place = tmp_path / "clone"
    place.mkdir()
    key = own_key(place)
    shutil.rmtree(place)
    (tmp_path / "taken").mkdir()
    place.mkdir()  # cloned again
    assert run("log", at=place).status == 0
    assert own_key(place) == key


def test_two_directories_that_were_swapped(shared: Shared, tmp_path: Path) -> None:
    begin(shared)
    one, two, aside = shared.place, tmp_path / "two", tmp_path / "aside"
    two.mkdir()
    (two / "other.py").write_text("two\n")
    keys = {place: own_key(place) for place in (two, one)}
    one.rename(aside)
    two.rename(one)
    aside.rename(two)
    assert run("rewind", at=one).status != 0  # the latest key of the path is not of what is there
    assert (own_key(one), own_key(two)) == (keys[two], keys[one])
    assert run("rewind", "--json", at=two).data["key"] == KEY
    done = run("rewind", "@2", "--yes", "--json", at=two)
    assert done.data["directory"] == str(two)
    assert (one / "other.py").read_text() == "two\n"


def test_a_directory_that_was_moved_away_and_back(tmp_path: Path) -> None:
    place, elsewhere, aside = tmp_path / "place", tmp_path / "elsewhere", tmp_path / "aside"
    place.mkdir()
    first = own_key(place)
    place.rename(elsewhere)
    assert run("log", at=elsewhere).status == 0  # nothing is saved there
    place.mkdir()
    second = own_key(place)
    assert second != first
    place.rename(aside)
    elsewhere.rename(place)
    # The latest key of the path is of the directory that was there meanwhile.
    assert own_key(place) == first
    assert own_key(aside) == second
    assert own_key(place) == first


def test_the_page_knows_after_the_first_command(shared: Shared, tmp_path: Path) -> None:
    begin(shared)
    before = move(shared, tmp_path / "renamed")
    with CheckpointManager(str(default_store())) as manager:
        heads = [find(manager.store, f"{key}@1") for key in (KEY, f"workspace:{before}")]
        for expected in (before, shared.place):
            found = [trusted_directory(manager.store, head) for head in heads]
            assert found == [expected, expected]
            assert run("log", at=shared.place).status == 0


def test_an_imported_archive_owns_nothing(shared: Shared, tmp_path: Path) -> None:
    begin(shared)
    archive, other = tmp_path / "run.ckpt", tmp_path / "other"
    for key in (KEY, f"workspace:{shared.place}"):
        assert run("export", key, archive).status == 0
        assert run("--store", other, "import", archive).status == 0
        archive.unlink()
    move(shared, tmp_path / "renamed")
    for command in ("log", "rewind"):
        assert run("--store", other, command, at=shared.place).status != 0


def test_an_identity_without_a_signature_is_not_trusted(shared: Shared) -> None:
    begin(shared)
    with CheckpointManager(str(default_store())) as manager:
        head = manager.store.head(KEY)
        note = None if head is None else read_note(manager.store, head)
    assert note is not None
    assert note.place.identity == identity_of(shared.place)
    assert note._replace(identity=identity_of(os.path.expanduser("~"))).place.identity == ""
    assert note._replace(root="/elsewhere").place.identity == ""
    assert note._replace(is_imported=True).place.identity == ""


def test_mine_sees_the_calls_of_others_before_the_move(shared: Shared, tmp_path: Path) -> None:
    shared.send(A, "UserPromptSubmit", "", prompt="begin")
    shared.send(B, "PreToolUse", "toolu_b")
    shared.call(A, "mine.txt", "a")
    shared.send(B, "PostToolUse", "toolu_b")
    shared.call(A, "later.txt", "a")
    move(shared, tmp_path / "renamed")
    assert shared.rewind(A, 1, "--yes")["delete"] == ["later.txt"]
    assert shared.contents() == {"mine.txt": "a"}
