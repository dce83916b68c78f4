"""What came from elsewhere, and says that a directory here is its own: it is not believed."""

import shutil
from pathlib import Path

import pytest

from agent_checkpoint import Session
from agent_checkpoint.workspace.directory_key import key_of
from tests.cli.test_tracked_dir import kinds
from tests.cli.world import run


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of somebody else")
    return monkeypatch


def test_a_session_of_another_does_not_take_over_a_directory(
    repo: Path, elsewhere: pytest.MonkeyPatch
) -> None:
    own = key_of(repo)
    with Session("evil", workspace=repo) as session:
        (repo / "app.py").write_text("evil\n")
        session.save()
    elsewhere.delenv("AGENT_CHECKPOINT_SECRET")
    assert run("log", "--json", at=repo).data["key"] == own
    assert run("show", "@2", "--json", at=repo).data["key"] == own


def test_a_fork_of_another_does_not_become_the_line_of_a_directory(
    repo: Path, elsewhere: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = key_of(repo)
    aside = tmp_path / "aside"
    repo.rename(aside)
    assert run("fork", own, "evil", "--into", repo, at=tmp_path).status == 0
    (repo / "app.py").write_text("evil\n")
    assert run("save", at=repo).status == 0
    elsewhere.delenv("AGENT_CHECKPOINT_SECRET")
    shutil.rmtree(repo)
    aside.rename(repo)
    assert run("log", "--json", at=repo).data["key"] == own
    run("restore", "evil@2", "--yes", at=repo)
    assert run("save", "-m", "mine", "--json", at=repo).data["key"] == own
    assert ("save", "mine") in kinds(repo)
    assert all(row["kind"] != "safety" for row in run("log", "evil", "--json").data["checkpoints"])
