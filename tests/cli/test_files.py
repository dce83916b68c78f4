"""save, log, show, diff, restore: the files of a directory."""

from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import Tree, Workspace
from agent_checkpoint.agents.tracked_dir import open_tracked
from tests.cli.world import opened, run, run_process


def test_save_break_restore(tmp_path: Path) -> None:
    place = tmp_path / "repo"
    place.mkdir()
    (place / "app.py").write_text("good\n")
    saved = run_process("save", at=place)
    assert saved.status == 0
    assert "Saved @1" in saved.out
    (place / "app.py").write_text("broken\n")
    (place / "junk").write_text("junk\n")
    assert run_process("restore", "@1", at=place).status == 4
    assert (place / "junk").exists()
    done = run_process("restore", "@1", "--yes", at=place)
    assert done.status == 0
    assert (place / "app.py").read_text() == "good\n"
    assert not (place / "junk").exists()
    back = done.out.splitlines()[-1].partition("agent-checkpoint ")[2]
    assert run_process(*back.split(), "--yes", at=place).status == 0
    assert (place / "app.py").read_text() == "broken\n"


def test_save_tells_that_nothing_has_changed(repo: Path) -> None:
    again = run("save", at=repo)
    assert "No changes since @2" in again.out
    data = run("save", "--json", at=repo).data
    assert data["new"] is False
    assert data["files"] == 2
    assert set(data) == {
        "id",
        "key",
        "tree",
        "files",
        "bytes",
        "new",
        "incomplete",
        "notes",
        "notices",
        "left_out",
    }


def test_what_another_process_saved_meanwhile_is_not_new(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if `watch` of the same directory writes the checkpoint, after `save` has read the head."""
    (repo / "app.py").write_text("changed")
    snapshot = Workspace.snapshot

    def other_is_first(workspace: Workspace, **options: Any) -> Tree:
        with open_tracked(repo, workspace.store, workspace.key) as other:
            snapshot(other)
        return snapshot(workspace, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "snapshot", other_is_first)
        saved = run("save", at=repo)
    assert saved.out.startswith("No changes since @3")
    assert "To restore" not in saved.out
    assert run("save", "-m", "label", at=repo).out.startswith("Saved @4")


def test_save_leaves_out_what_it_is_told_to(repo: Path) -> None:
    (repo / "x.log").write_text("x")
    assert run("save", "--ignore", "*.log", "--json", at=repo).data["files"] == 2
    assert run("save", "--json", at=repo).data["files"] == 3


def test_save_has_a_limit(repo: Path) -> None:
    (repo / "big").write_bytes(bytes(3_000_000))
    refused = run("save", "--limit", "0.001", at=repo)
    assert refused.status == 1
    assert "--limit" in refused.err
    assert "limit=" not in refused.err
    assert run("save", "--limit", "0", at=repo).status == 0


def test_save_of_nothing(tmp_path: Path) -> None:
    assert run("save", "nowhere", at=tmp_path).status == 2


def test_log_lists_what_was_saved(repo: Path) -> None:
    lines = run("log", at=repo).out.splitlines()
    assert [line.split()[1] for line in lines] == ["@2", "@1"]
    assert "now" in lines[0]
    assert "better" in lines[0]
    data = run("log", "--json", at=repo).data
    assert set(data) == {"key", "head", "checkpoints", "more", "branches", "from"}
    assert [row["label"] for row in data["checkpoints"]] == ["better", None]
    assert "is_head" not in data["checkpoints"][0]


def test_log_works_below_the_directory(repo: Path) -> None:
    (repo / "src").mkdir()
    assert run("log", "-n", 1, at=repo / "src").out.count("\n") == 2


def test_short_forms_are_those_of_the_directory(repo: Path) -> None:
    ids = [row["id"] for row in run("log", "--json", at=repo).data["checkpoints"]]
    assert run("show", "--json", at=repo).data["id"] == ids[0]
    assert run("show", "~1", "--json", at=repo).data["id"] == ids[1]
    assert run("show", "@1", "--json", at=repo).data["id"] == ids[1]
    assert run("show", ids[1], "--json").data["id"] == ids[1]


def test_a_restore_does_not_change_what_short_forms_mean(repo: Path, session: Path) -> None:
    assert run("restore", "@1", "--yes", at=repo).status == 0
    assert run("show", "@1", "--json", at=repo).data["key"].startswith("workspace:")


def test_show_tells_what_is_in_it(session: Path) -> None:
    shown = run("show", "fix").out
    for words in ("Coder", "steps: 3", "I tell now.", "3 of 3 done", "4 files", str(session)):
        assert words in shown
    data = run("show", "fix", "--json").data
    assert data["parts"]["agent"] == {"type": "state", "class": "Coder", "value": {"steps": 3}}
    assert data["parts"]["workspace"]["files"] == 4
    assert data["parts"]["messages"]["items"] == 3


def test_show_one_part(session: Path) -> None:
    assert '"I read now."' in run("show", "fix", "--part", "messages").out
    assert run("show", "fix", "--part", "messages", "--json").data["$log"][0]["role"] == "assistant"
    strange = run("show", "fix", "--part", "mesages")
    assert strange.status == 3
    assert "messages" in strange.err


def test_diff_to_the_present_files(repo: Path) -> None:
    assert run("diff", at=repo).out.startswith("No difference")
    (repo / "notes.md").write_text("second\n")
    (repo / "new.txt").write_text("new\n")
    shown = run("diff", at=repo).out
    assert "-first" in shown
    assert "+second" in shown
    assert "+new" in shown
    data = run("diff", "--json", at=repo).data
    assert data["files"]["added"] == ["new.txt"]
    assert data["files"]["changed"] == {"notes.md": ["content"]}
    assert data["directory"] == str(repo.resolve())
    assert run("diff", "--stat", at=repo).out.splitlines()[1:] == [
        "  + new.txt",
        "  ~ notes.md (content)",
    ]


def test_diff_between_two(repo: Path) -> None:
    assert "+print('better')" in run("diff", "@1", "@2", at=repo).out
    assert run("diff", "@1", "@2", "--exit-code", at=repo).status == 1
    assert run("diff", "@2", "@2", "--exit-code", at=repo).status == 0


def test_diff_of_state_messages_and_files(session: Path) -> None:
    shown = run("diff", "fix@1", "fix").out
    assert "agent.steps: 0 -> 3" in shown
    assert "+ assistant: I edit now." in shown
    assert "+++ b/edit.txt" in shown
    only = run("diff", "fix@1", "fix", "--only", "state").out
    assert "steps" in only
    assert "edit.txt" not in only
    data = run("diff", "fix", "fix@1", "--json").data
    assert len(data["messages"]["removed"]) == 3
    assert data["state"]["changed"]["agent.steps"] == [3, 0]


def test_restore_of_one_file(repo: Path) -> None:
    (repo / "app.py").write_text("broken")
    (repo / "notes.md").write_text("kept")
    assert run("restore", "@1", "app.py", "--yes", at=repo).status == 0
    assert (repo / "app.py").read_text() == "print('hello')\n"
    assert (repo / "notes.md").read_text() == "kept"


def test_restore_only_tells(repo: Path) -> None:
    told = run("restore", "@1", "--dry-run", at=repo)
    assert "write app.py" in told.out
    assert (repo / "app.py").read_text() == "print('better')\n"
    data = run("restore", "@1", "--dry-run", "--json", at=repo).data
    assert (data["done"], data["write"]) == (False, ["app.py"])


def test_restore_asks_nothing_of_a_program(repo: Path) -> None:
    refused = run("restore", "@1", "--json", at=repo)
    assert refused.status == 4
    assert refused.data["done"] is False
    assert run("restore", "@1", "--json", "--yes", at=repo).data["done"] is True


def test_restore_elsewhere(session: Path, tmp_path: Path) -> None:
    assert run("restore", "fix@1", "--into", "copy", "--yes", at=tmp_path).status == 0
    assert sorted(item.name for item in (tmp_path / "copy").iterdir()) == ["app.py"]
    assert len(list(session.iterdir())) == 4


def test_restore_believes_no_directory_that_others_have_named(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of an archive that came from elsewhere: whoever made it could name any directory.
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of somebody else")
    refused = run("restore", "fix@1", "--yes", at=tmp_path)
    assert refused.status == 2
    assert "--into" in refused.err
    assert len(list(session.iterdir())) == 4
    assert run("restore", "fix@1", "--yes", at=session).status == 0


def test_a_key_without_files() -> None:
    with opened() as manager:
        manager.save("plain", {"x": 1})
    assert run("restore", "plain", "--yes").status == 3
    assert run("show", "plain", "--json").data["parts"]["agent"]["value"] == {"x": 1}
    assert run("diff", "plain", "plain").status == 0


def test_nothing_was_saved_here(tmp_path: Path) -> None:
    for typed in (["log"], ["show"], ["diff"], ["restore", "~1"]):
        ran = run(*typed, at=tmp_path)
        assert ran.status == 3, typed
        assert "agent-checkpoint save" in ran.err


def test_a_fork_that_nobody_opened_has_no_directory(session: Path) -> None:
    with opened() as manager:
        manager.fork("fix", "try")
    assert run("show", "--json", at=session).data["key"] == "fix"
    refused = run("restore", "try", "--yes", at=session)
    assert refused.status == 2
    assert "--into" in refused.err


def test_elsewhere_takes_nothing_away_from_there(tmp_path: Path, repo: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis").write_text("mine")
    refused = run("restore", "@1", "--into", other, "--yes", at=repo)
    assert (refused.status, "--force" in refused.err) == (4, True)
    assert (other / "thesis").read_text() == "mine"
    done = run("restore", "@1", "--into", other, "--yes", "--force", "--json", at=repo)
    assert not (other / "thesis").exists()
    safety = done.data["safety_id"]
    run("restore", safety, "--into", other, "--force", "--yes", at=repo)
    assert (other / "thesis").read_text() == "mine"
    for words in (["--dry-run"], []):
        run("restore", "@1", "--into", tmp_path / "new" / "deep", *words, at=repo)
        assert not (tmp_path / "new").exists()


def test_a_home_directory_is_nowhere_to_restore_to(own_home: Path, repo: Path) -> None:
    assert run("restore", "@1", "--into", own_home, "--yes", at=repo).status == 4


def test_a_home_directory_is_restored_only_if_that_is_said(own_home: Path) -> None:
    (own_home / "a").write_text("one")
    assert run("save", "--force", at=own_home).status == 0
    (own_home / "a").write_text("two")
    assert run("restore", "@1", "--yes", at=own_home).status == 4
    assert (own_home / "a").read_text() == "two"
    assert run("restore", "@1", "--yes", "--force", at=own_home).status == 0
    assert (own_home / "a").read_text() == "one"


def test_a_plan_begins_with_totals_of_files(repo: Path) -> None:
    (repo / "src").mkdir()
    for number in range(3):
        (repo / "src" / f"{number}.py").write_text("new")
    assert run("save", at=repo).status == 0

    def heading(checkpoint: str) -> str:
        first = run("restore", checkpoint, "--dry-run", at=repo).out.splitlines()[0]
        return first.partition(f"In {repo.resolve()}: ")[2]

    assert heading("@1") == "1 file to write, 3 to delete"
    assert heading("@2") == "3 files to delete"
    (repo / "notes.md").chmod(0o755)
    (repo / "empty").mkdir()
    assert heading("@3") == "1 directory to delete, 1 mode to set"
