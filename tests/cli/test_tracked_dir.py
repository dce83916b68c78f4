"""A directory and its line of checkpoints: what a restore ends with, forks, and `save` within."""

from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import Draft
from agent_checkpoint.store.store import Store
from tests.cli.world import Ran, run


def kinds(at: Path) -> "list[tuple[str, str | None]]":
    rows = run("log", "--json", at=at).data["checkpoints"]
    return [(row["kind"], row["label"]) for row in rows]


def contents(place: Path) -> "dict[str, bytes]":
    found = sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def undo(done: Ran, at: Path) -> None:
    """Do what the last line of a restore says."""
    words = done.out.splitlines()[-1].partition("agent-checkpoint ")[2].split()
    assert run(*words, "--yes", at=at).status == 0


def test_a_restore_ends_with_what_is_there_now(repo: Path) -> None:
    (repo / "app.py").write_text("broken\n")
    (repo / "junk").write_text("junk\n")
    broken = contents(repo)
    done = run("restore", "@1", "--yes", at=repo)
    assert kinds(repo)[:2] == [("rollback", "restored to @1"), ("safety", None)]
    shown = run("log", at=repo).out.splitlines()
    assert shown[0].startswith("↶ @4")
    assert shown[0].endswith("restored to @1  ← now")
    assert "@3" in shown[1]
    assert run("diff", "--exit-code", at=repo).status == 0
    assert run("save", at=repo).out.startswith("No changes since @4")
    undo(done, repo)
    assert contents(repo) == broken
    assert kinds(repo)[0] == ("rollback", "restored to @3")
    assert run("diff", "--exit-code", at=repo).status == 0


def test_steps_back_go_on_from_where_a_restore_went(repo: Path) -> None:
    (repo / "app.py").write_text("third\n")
    assert run("save", at=repo).status == 0
    assert run("restore", "@2", "--yes", at=repo).status == 0
    # @2 was gone back to: one before it is @1, and not the third or the safety checkpoint.
    assert run("show", "@~1", "--json", at=repo).data["seq"] == 1


def test_a_restore_of_a_part_ends_with_a_checkpoint_too(repo: Path) -> None:
    (repo / "notes.md").write_text("kept\n")
    before = contents(repo)
    done = run("restore", "@1", "app.py", "--yes", at=repo)
    assert kinds(repo)[0] == ("restore", "restored app.py from @1")
    assert run("log", at=repo).out.startswith("↶ @4")
    assert run("diff", "--exit-code", at=repo).status == 0
    # The other files are still those of @2, so that is one step back.
    assert run("show", "@~1", "--json", at=repo).data["seq"] == 2
    undo(done, repo)
    assert contents(repo) == before


def test_a_restore_that_leaves_something_ends_with_what_is_there(repo: Path) -> None:
    (repo / ".git").mkdir()
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    assert run("restore", "@1", "--keep-git", "--yes", at=repo).status == 0
    assert (repo / ".git" / "HEAD").exists()
    assert kinds(repo)[0] == ("rollback", "restored to @1")
    assert run("diff", "--exit-code", at=repo).status == 0


def test_a_restore_that_cannot_be_saved_changes_nothing(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "app.py").write_text("broken\n")
    written = []
    write = Store.write

    def failing(self: Store, draft: Draft, **options: Any) -> Any:
        written.append((draft.kind, (repo / "app.py").read_text()))
        if draft.kind == "rollback":
            raise StorageError("The disk is full.")
        return write(self, draft, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", failing)
        failed = run("restore", "@1", "--yes", at=repo)
    assert written == [("safety", "broken\n"), ("rollback", "broken\n")]
    assert failed.status == 1
    assert "The disk is full" in failed.err
    assert (repo / "app.py").read_text() == "broken\n"
    assert not list(repo.glob(".agent-checkpoint-restore*"))


def test_a_restore_elsewhere_adds_nothing(repo: Path, tmp_path: Path) -> None:
    assert run("restore", "@1", "--into", tmp_path / "copy", "--yes", at=repo).status == 0
    assert len(kinds(repo)) == 2


def test_a_restore_of_a_session_s_files_is_no_checkpoint_of_it(session: Path) -> None:
    before = kinds(session)
    assert run("restore", "fix@1", "--yes", at=session).status == 0
    assert kinds(session) == before


def test_a_fork_in_a_directory_goes_on_there(repo: Path, tmp_path: Path) -> None:
    key = run("log", "--json", at=repo).data["key"]
    there = tmp_path / "try-a"
    made = run("fork", key, "try-a", "--at", "@1", "--into", there, at=repo)
    assert made.status == 0
    assert contents(there)["app.py"] == b"print('hello')\n"
    assert run("log", "--json", at=there).data["key"] == "try-a"
    assert kinds(there) == [("fork", None)]
    assert run("diff", "--exit-code", at=there).status == 0
    (there / "app.py").write_text("tried\n")
    assert run("diff", "--stat", at=there).out.splitlines()[1] == "  ~ app.py (content)"
    saved = run("save", "-m", "tried", "--json", at=there).data
    assert (saved["key"], saved["id"][:6]) == ("try-a", "try-a_")
    done = run("restore", "@1", "--yes", at=there)
    assert contents(there)["app.py"] == b"print('hello')\n"
    assert [kind for kind, _ in kinds(there)] == ["rollback", "safety", "save", "fork"]
    undo(done, there)
    assert contents(there)["app.py"] == b"tried\n"
    assert run("run", "--", "touch", "made", at=there).status == 0
    assert kinds(there)[0] == ("save", "after touch made")
    assert {row["key"] for row in run("keys", "--json").data} == {key, "try-a"}
    assert run("log", "--json", at=repo).data["key"] == key


def test_a_fork_of_a_fork_has_a_directory_of_its_own(repo: Path, tmp_path: Path) -> None:
    key = run("log", "--json", at=repo).data["key"]
    assert run("fork", key, "try-a", "--into", tmp_path / "a", at=repo).status == 0
    assert run("fork", "try-a", "try-b", at=repo).status == 0
    assert run("fork", "try-a", "try-c", "--into", tmp_path / "c", at=repo).status == 0
    assert run("log", "--json", at=tmp_path / "a").data["key"] == "try-a"
    assert run("log", "--json", at=tmp_path / "c").data["key"] == "try-c"
    assert run("restore", "try-b", "--yes", at=tmp_path / "a").status == 2


def test_save_below_a_saved_directory_saves_that(repo: Path) -> None:
    (repo / "src").mkdir()
    (repo / "src" / "new.py").write_text("new\n")
    saved = run("save", at=repo / "src")
    assert saved.out.startswith(f"Saved @3: {repo.resolve()} ")
    assert "agent-checkpoint save ." in saved.out
    assert len(run("keys", "--json").data) == 1
    own = run("save", ".", at=repo / "src")
    assert own.out.startswith(f"Saved @1: {(repo / 'src').resolve()} ")
    assert "save ." not in own.out


def test_save_of_a_file_and_of_a_home(repo: Path) -> None:
    refused = run("save", "app.py", at=repo)
    assert (refused.status, "is a file" in refused.err) == (2, True)
    refused = run("save", "/", at=repo)
    assert refused.status == 4
    assert "or pass --force" in refused.err
    refused = run("watch", "/", at=repo)
    assert refused.status == 4
    assert "force" not in refused.err


@pytest.mark.parametrize("said", ["@1", ".", "key@1"])
def test_a_fork_is_made_of_what_is_here(repo: Path, tmp_path: Path, said: str) -> None:
    key = run("log", "--json", at=repo).data["key"]
    made = run("fork", said.replace("key", key), "try", "--into", tmp_path / "a", "--json", at=repo)
    assert (
        made.data["from"]
        == run("show", "@2" if said == "." else "@1", "--json", at=repo).data["id"]
    )


def test_a_fork_that_is_interrupted_leaves_no_key(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("agent_checkpoint.cli.commands.fork._put_files", interrupted)
    assert run("fork", "@1", "try", "--into", tmp_path / "a", at=repo).status == 130
    assert "try" not in {row["key"] for row in run("keys", "--json").data}
