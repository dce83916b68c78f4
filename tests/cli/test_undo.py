"""`undo` takes back the last rollback, restore or adopt."""

from pathlib import Path

from agent_checkpoint import Session
from tests.cli.world import run


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
        assert "has no rollback, restore or adopt to undo" in ran.err
