"""`undo` takes back the last rollback, restore, revert or adopt."""

from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session, Workspace
from agent_checkpoint.cli.commands.rollback import _part_words
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from tests.cli.world import opened, run, send_mail


def test_a_restore_of_the_directory_is_undone(repo: Path) -> None:
    (repo / "new").write_text("not saved yet")
    told = run("restore", "@1", "--yes", at=repo).out
    assert told.splitlines()[-1] == "To undo: agent-checkpoint undo"
    assert not (repo / "new").exists()
    shown = run("undo", "--dry-run", at=repo)
    assert (shown.status, "write new" in shown.out) == (0, True)
    assert run("undo", at=repo).status == 4  # not confirmed
    assert not (repo / "new").exists()
    done = run("undo", "--yes", "--json", at=repo).data
    assert (done["done"], sorted(done["write"])) == (True, ["app.py", "new"])
    assert (repo / "new").read_text() == "not saved yet"
    assert (repo / "app.py").read_text() == "print('better')\n"
    assert run("undo", "--yes", at=repo).status == 0  # of the undo
    assert not (repo / "new").exists()


def test_a_partial_restore_is_undone(repo: Path) -> None:
    run("restore", "@1", "app.py", "--yes", at=repo)
    assert run("undo", ".", "--yes", at=repo).status == 0
    assert (repo / "app.py").read_text() == "print('better')\n"


def test_a_rollback_of_a_session_is_undone(session: Path) -> None:
    assert run("rollback", "fix", "--to", "@2", "--effects", "warn", "--yes").status == 0
    assert not (session / "tell.txt").exists()
    data = run("undo", "fix", "--json").data
    assert data["done"] is False
    assert not (session / "tell.txt").exists()
    assert run("undo", "fix", "--yes").status == 0
    assert (session / "tell.txt").exists()
    with Session("fix", workspace=session) as opened:
        assert len(opened.messages) == 3


def test_an_adopt_is_undone(tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "file").write_text("old")
    with Session("main", workspace=place) as session, session.fork("try") as branch:
        assert branch.workspace is not None
        (branch.workspace.path / "file").write_text("new")
        session.adopt(branch)
    assert (place / "file").read_text() == "new"
    assert run("undo", "--yes", at=place).status == 0
    assert (place / "file").read_text() == "old"


def test_nothing_to_undo(repo: Path, session: Path) -> None:
    for place in (repo, session):
        ran = run("undo", "--yes", at=place)
        assert (ran.status, ran.out) == (3, "")
        assert "has no rollback, restore, revert or adopt to undo" in ran.err


def _edits(place: Path, *, rolls_back: bool = False) -> None:
    place.mkdir()
    with Session("job", workspace=place) as job:
        for text in ("1", "2", "3"):
            (place / "a").write_text(text)
            job.save()
        if rolls_back:
            job.rollback(steps=2)
            (place / "b").write_text("precious")
            job.save()


@pytest.mark.parametrize("rolls_back", [False, True])
@pytest.mark.parametrize("paths", [["a"], []])
def test_a_restore_in_the_directory_of_a_session_is_undone(
    tmp_path: Path, rolls_back: bool, paths: list[str]
) -> None:
    place = tmp_path / "w"
    _edits(place, rolls_back=rolls_back)
    before = {path.name: path.read_text() for path in place.iterdir()}
    done = run("restore", "@3", *paths, "--yes", at=place)
    assert "\nTo undo: agent-checkpoint undo\n" in done.out
    assert (place / "a").read_text() == "2"
    shown = run("undo", "--dry-run", at=place).out
    assert shown.startswith(
        f"Last operation: restored {paths[0] + ' from' if paths else 'to'} job@3, "
    )
    assert run("undo", "--yes", at=place).status == 0
    assert {path.name: path.read_text() for path in place.iterdir()} == before
    assert run("undo", "--yes", at=place).status == 0  # of the undo
    assert (place / "a").read_text() == "2"


def test_a_rollback_after_a_restore_is_undone_first(tmp_path: Path) -> None:
    place = tmp_path / "w"
    _edits(place)
    run("restore", "@2", "--yes", at=place)
    run("rollback", "--to", "@3", "--yes", at=place)
    assert (place / "a").read_text() == "2"
    shown = run("undo", "--dry-run", at=place).out
    assert shown.startswith("Last operation: rollback of job to @3, just now\n")
    run("undo", "--yes", at=place)
    assert (place / "a").read_text() == "1"  # as the restore left it


def test_a_restore_by_a_program_is_not_passed_over(repo: Path) -> None:
    run("restore", "@1", "--yes", at=repo)
    (repo / "app.py").write_text("later")
    with opened() as manager:
        tree = manager.store.head(manager.list_keys()[0])
        assert tree is not None
        with Workspace(repo, manager) as workspace:
            safety = workspace.restore(tree.id).safety_id
    refused = run("undo", "--yes", at=repo)
    assert (refused.status, refused.out) == (3, "")
    assert f"agent-checkpoint restore {safety}" in refused.err
    assert (repo / "app.py").read_text() == "print('hello')\n"


def test_a_rollback_whose_safety_checkpoint_was_removed_is_not_passed_over(tmp_path: Path) -> None:
    place = tmp_path / "w"
    _edits(place)
    run("restore", "@2", "--yes", at=place)
    safety = run("rollback", "--to", "@3", "--yes", "--json", at=place).data["safety_id"]
    with CheckpointManager(backend="sqlite") as manager:
        manager.delete("job", safety)
    refused = run("undo", "--yes", at=place)
    assert (refused.status, refused.out) == (3, "")
    assert "its safety checkpoint was removed: rollback of job to @3, just now" in refused.err


def test_an_undo_past_an_irreversible_effect_is_refused(session: Path) -> None:
    run("rollback", "--to", "@4", "--effects", "warn", "--yes", at=session)
    with Session("fix", workspace=session):
        send_mail("bob@example.org", "Later")
    shown = run("undo", "--dry-run", at=session)
    assert shown.status == 0
    assert "refused without --effects warn: 1 external side effect" in shown.out
    refused = run("undo", "--yes", at=session)
    assert (refused.status, "bob@example.org" in refused.out) == (4, True)
    assert run("undo", "--yes", "--effects", "warn", at=session).status == 0
    assert (session / "tell.txt").exists()


def test_a_dry_run_says_that_the_rollback_is_refused(session: Path) -> None:
    shown = run("rollback", "--to", "@2", "--dry-run", at=session)
    assert shown.status == 0
    assert "refused without --effects warn: 1 external side effect cannot be undone" in shown.out
    assert run("rollback", "--to", "@2", "--dry-run", "--json", at=session).data["refused"] is True
    warned = run("rollback", "--to", "@2", "--dry-run", "--effects", "warn", at=session)
    assert "refused" not in warned.out


def test_many_subagents_are_counted() -> None:
    own = ["messages", "workspace"]
    one = [f"subagents/a{n}/{name}" for n in range(9) for name in ("messages", "status")]
    assert _part_words(RollbackReport("x", own + one)) == "messages, workspace, 9 sub-agents"
    few = "messages, workspace, subagents/a0"
    assert _part_words(RollbackReport("x", own + one[:2])) == few
