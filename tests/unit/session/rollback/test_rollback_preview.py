"""What a rollback would do, told without opening the session."""

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    Session,
    tool,
)
from agent_checkpoint.session.rollback.rollback_preview import preview_rollback


@tool(effect="irreversible", key=lambda to: to)
def send(to):
    return "sent"


@pytest.fixture
def manager():
    return CheckpointManager()


def content(manager):
    backend = manager.store.backend
    return {name: backend.read(name) for name in backend.streams()}


def test_it_says_what_the_rollback_says_and_appends_nothing(manager, tmp_path):
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.txt").write_text("old\n")
    with Session("key", store=manager, workspace=repo) as session:
        start = session.save()
        (repo / "a.txt").write_text("new\n")
        send("ann")
        before = content(manager)
        seen = preview_rollback(manager, "key", to=start)
        assert content(manager) == before
        report = session.rollback(to=start, dry_run=True)
        assert str(seen.report) == str(report)
        assert [effect.words for effect in seen.report.blocking] == ["send(to='ann')"]
        assert seen.report.files is not None
        assert seen.report.files.write == ["a.txt"]
        session.save()  # it is still its holder's


def test_without_a_look_nothing_is_said_of_files(manager, tmp_path):
    repo = tmp_path / "repo"
    repo.mkdir()
    with Session("key", store=manager, workspace=repo) as session:
        seen = preview_rollback(manager, "key", to=session.head, look=False)
        assert seen.report.files is None
        assert seen.no_files == "the directory was not scanned"
        parts = preview_rollback(manager, "key", to=session.head, parts=["messages"], look=False)
        assert parts.no_files is None


def test_why_nothing_can_be_said_of_files(manager, tmp_path, monkeypatch):
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "a.txt").write_text("old\n")
    with Session("key", store=manager, workspace=repo) as session:
        session.save()
        with session.fork("fork") as branch:
            branch.save()
    assert "a fork" in str(preview_rollback(manager, "fork", to="fork").no_files)
    (repo / ".agent-checkpoint-restore").mkdir()
    assert "interrupted" in str(preview_rollback(manager, "key", to="key").no_files)
    (repo / ".agent-checkpoint-restore").rmdir()
    repo.rename(tmp_path / "away")
    assert "does not exist" in str(preview_rollback(manager, "key", to="key").no_files)
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "another secret")
    assert "not signed with your secret" in str(preview_rollback(manager, "key", to="key").no_files)


def test_what_is_no_session_is_refused(manager):
    manager.save("plain", {"n": 1})
    with pytest.raises(InvalidInputError, match="not a session"):
        preview_rollback(manager, "plain", to="plain", look=False)
    with pytest.raises(NotFoundError):
        preview_rollback(manager, "none", to="none", look=False)


def test_a_fork_that_was_never_opened_is_looked_at_as_one(manager):
    with Session("key", store=manager) as session:
        start = session.save()
        send("bob")
    manager.fork("key", "other")
    report = preview_rollback(manager, "other", to=start, look=False).report
    assert report.target == start


def test_a_session_is_opened_only_at_the_head_that_was_seen(manager, tmp_path):
    with Session("key", store=manager, every="manual") as session:
        seen = session.save()
    with Session("key", store=manager, every="manual", only_at=seen) as session:
        assert session.resumed
        later = session.head
        with pytest.raises(ConflictError, match="nothing was done"):
            Session("key", store=manager, only_at=seen)
        with pytest.raises(ConflictError, match="nothing was done"):
            Session("none", store=manager, only_at=seen)
        assert session.head == later == manager.history("key", 1)[0]["id"]
        session.save()
    assert manager.list_keys() == ["key"]


def test_what_nobody_saved_is_left_alone_as_the_preview_says(manager, tmp_path):
    (tmp_path / "saved").write_text("1")
    with Session("key", workspace=tmp_path, store=manager, every="manual") as session:
        first = session.save()
        (tmp_path / "saved").write_text("2")
        session.save()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "new").write_text("by nobody")
    plan = preview_rollback(manager, "key", to=first, keep_unseen=True).report.files
    assert plan is not None
    assert (plan.write, plan.delete) == (["saved"], [])
    assert set(plan.leave) == {"folder", "folder/new"}
    with Session("key", store=manager, every="manual") as session:
        done = session.rollback(to=first, keep_unseen=True).files
    assert done is not None
    assert (done.write, done.delete, set(done.leave)) == (plan.write, [], set(plan.leave))
    assert (tmp_path / "folder" / "new").read_text() == "by nobody"
    assert (tmp_path / "saved").read_text() == "1"
