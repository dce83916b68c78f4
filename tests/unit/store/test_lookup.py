"""`@17` and `~2` stand for checkpoints wherever a key is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, Session, Workspace, explore
from agent_checkpoint.errors import InvalidInputError, NotFoundError


@pytest.fixture
def manager() -> CheckpointManager:
    manager = CheckpointManager()
    for step in (1, 2, 3):
        manager.save("job", {"step": step})
    return manager


@pytest.mark.parametrize(("name", "step"), [("@1", 1), ("@3", 3), ("~0", 3), ("~2", 1), ("@~1", 2)])
def test_a_manager_finds_them(manager: CheckpointManager, name: str, step: int) -> None:
    state: dict[str, int] = {}
    manager.load("job", state, checkpoint_id=name)
    assert state == {"step": step}
    assert manager.state_dict("job", name) == {"step": step}
    manager.fork("job", "other", checkpoint_id=name)
    assert manager.state_dict("other") == {"step": step}


def test_a_diff_takes_them(manager: CheckpointManager) -> None:
    changes = manager.diff("job", checkpoint_id_a="@1", checkpoint_id_b="~1")
    assert changes["changed"] == {"step": (1, 2)}
    assert manager.diff("job", checkpoint_id_a="~2")["changed"] == {"step": (1, 3)}
    assert manager.diff("job", checkpoint_id_a="@2", agent={"step": 9})["changed"] == {
        "step": (2, 9)
    }


def test_a_deletion_takes_them(manager: CheckpointManager) -> None:
    manager.delete("job", "@2")
    assert [row["id"].rpartition("-")[2] for row in manager.history("job")] == ["3", "1"]
    with pytest.raises(NotFoundError, match=r"The key 'job' has no checkpoint 'job@2'"):
        manager.delete("job", "@2")


def test_an_existing_key_of_that_name_wins(manager: CheckpointManager) -> None:
    manager.save("@1", {"step": 100})
    with pytest.raises(NotFoundError, match=r"'@1' belongs to the key '@1', not to 'job'"):
        manager.load("job", {}, checkpoint_id="@1")
    assert manager.diff("job", checkpoint_id_a="@1")["changed"] == {"step": (100, 3)}
    assert manager.state_dict("job", "job@1") == {"step": 1}
    manager.delete("@1")
    assert manager.state_dict("job", "@1") == {"step": 1}


def test_an_imported_key_of_that_name_does_not(manager: CheckpointManager, tmp_path: Path) -> None:
    with CheckpointManager() as other:
        other.save("@1", {"step": 100})
        other.export_archive(tmp_path / "archive", "@1")
    manager.import_archive(tmp_path / "archive")
    assert manager.state_dict("job", "@1") == {"step": 1}


def test_they_need_a_key(manager: CheckpointManager) -> None:
    with pytest.raises(NotFoundError):
        manager.state_dict("@1")


def test_a_session_takes_them() -> None:
    manager = CheckpointManager()
    with Session("run", store=manager) as session:
        session.messages.append("one")
        session.save()
        session.messages.append("two")
        session.save()
        with session.fork("try", at="@2") as branch:
            assert list(branch.messages) == ["one"]
        outcome = explore(session, lambda fork: len(fork.messages), [{}], at="~1")
        assert outcome.best().score == 1
        assert session.rollback(to="@2", dry_run=True).target.endswith("-2")
        session.rollback(to="~1")
        assert list(session.messages) == ["one"]
        session.rollback(to="@1")
        assert list(session.messages) == []
        manager.save("@2", {})
        with pytest.raises(InvalidInputError, match="not in the history"):
            session.rollback(to="@2")


def test_a_workspace_takes_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one")
    with Workspace(tmp_path, CheckpointManager()) as workspace:
        workspace.snapshot()
        (tmp_path / "file").write_text("two")
        workspace.snapshot()
        assert workspace.diff("@1").changed == {"file": ("content",)}
        workspace.restore("~1")
    assert (tmp_path / "file").read_text() == "one"
