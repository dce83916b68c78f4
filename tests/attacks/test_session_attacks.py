"""Sessions from elsewhere, and sessions that were broken on purpose: nothing leaves its place."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Approvals,
    Checkpointable,
    CheckpointManager,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    KeepLatest,
    Log,
    RestoreIncompleteError,
    Session,
    Suspended,
    list_sessions,
    tool,
)
from agent_checkpoint.records import Checkpoint, Draft
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.store.objects.references import ReusedPart
from agent_checkpoint.workspace.restore.journal import Decision


class Worker(Checkpointable):
    def __init__(self) -> None:
        self.n = 0


@tool(effect="irreversible", key=lambda to: to, approve=True)
def wire(to: str) -> str:
    return f"wired to {to}"


@pytest.fixture
def manager(tmp_path: Path) -> "Iterator[CheckpointManager]":
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as found:
        yield found


@pytest.fixture
def other(tmp_path: Path) -> "Iterator[CheckpointManager]":
    with CheckpointManager(backend="sqlite", path=tmp_path / "other") as found:
        yield found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    for name in ("a", "b", "c"):
        (place / name).write_text("one")
    return place


def edit(manager: CheckpointManager, **notes: Any) -> None:
    """Write a checkpoint whose session says something else."""
    head = manager.store.head("job")
    parts = {name: ReusedPart(tree) for name, tree in head.parts.items()}
    parts["session"] = {**head.parts["session"], **notes}
    parts["session"] = {key: value for key, value in parts["session"].items() if value != "drop"}
    manager.store.write(Draft("job", parts))


# -- where it writes -------------------------------------------------------------------------------


@pytest.mark.parametrize("is_there", [False, True])
def test_a_session_from_elsewhere_does_not_say_where_it_writes(
    manager: CheckpointManager, tmp_path: Path, place: Path, is_there: bool
) -> None:
    with Session("job", workspace=place, store=manager):
        pass
    target = tmp_path / "home" / "autostart"
    if is_there:
        target.mkdir(parents=True)
    edit(manager, workspace=str(target))
    with pytest.raises(InvalidInputError, match="not signed with your secret"):
        Session("job", store=manager)
    assert not target.exists() or not any(target.iterdir())


def test_nor_does_one_that_was_imported_by_another_user(
    manager: CheckpointManager,
    other: CheckpointManager,
    tmp_path: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Session("job", workspace=place, store=manager):
        pass
    manager.export_archive(tmp_path / "job.ckpt", "job")
    other.import_archive(tmp_path / "job.ckpt")
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of somebody else")
    with pytest.raises(InvalidInputError, match="not signed with your secret"):
        Session("job", store=other)
    with Session("job", workspace=tmp_path / "mine", store=other) as session:
        assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["a", "b", "c"]
        assert session.drift is None


@pytest.mark.parametrize(
    "notes",
    [
        {"workspace": ""},
        {"workspace": "relative"},
        {"workspace": "/a\0b"},
        {"workspace": 5},
        {"family": ""},
        {"family": "drop"},
        {"lineage": [[1]]},
        {"lineage": "x"},
        {"ledger": -1},
        {"counts": [["x"]]},
        {"standing": [{}]},
        {"under_way": [[]]},
        {"pending": 5},
        {"irreversible": "yes"},
    ],
)
def test_notes_of_any_other_form_are_damage(
    manager: CheckpointManager, notes: "dict[str, Any]"
) -> None:
    with Session("job", store=manager):
        pass
    with Session("sound", store=manager):
        pass
    edit(manager, **notes)
    with pytest.raises(IntegrityError, match=r"session record .* is damaged"):
        Session("job", store=manager)
    rows = {row.key: row.trouble for row in list_sessions(manager.store)}
    assert rows["sound"] is None
    assert "damaged" in rows["job"]


# -- what it believes ------------------------------------------------------------------------------


def test_an_archive_does_not_answer_requests(
    manager: CheckpointManager, other: CheckpointManager, tmp_path: Path
) -> None:
    with Session("pay", store=manager), pytest.raises(Suspended) as caught:
        wire("mallory")
    manager.export_archive(tmp_path / "1.ckpt", "pay")
    other.import_archive(tmp_path / "1.ckpt")
    with pytest.raises(ConflictError):
        Approvals(other.store).approve(caught.value.approval_id)
    with Session("pay", store=other) as session:
        with pytest.raises(Suspended) as again:
            wire("mallory")
        session.approvals.approve(again.value.approval_id)
    other.fork("pay", "analysis")
    other.export_archive(tmp_path / "2.ckpt", "analysis")
    manager.import_archive(tmp_path / "2.ckpt")
    assert Approvals(manager.store).get(caught.value.approval_id).status == "pending"
    manager.delete("pay")
    other.export_archive(tmp_path / "3.ckpt", "pay")
    with pytest.raises(ConflictError, match="which are not trusted"):
        manager.import_archive(tmp_path / "3.ckpt")
    assert manager.list_keys() == ["analysis"]


def test_what_was_pruned_and_imported_can_be_opened(
    manager: CheckpointManager, other: CheckpointManager, tmp_path: Path
) -> None:
    agent = Worker()
    with pytest.raises(KeyboardInterrupt), Session("job", agent=agent, store=manager) as session:
        for task in session.tasks(["a", "b"]):
            with task:
                agent.n += 1
                session.save()
                if task.id == "b":
                    raise KeyboardInterrupt
    manager.prune("job", KeepLatest(4))
    manager.export_archive(tmp_path / "job.ckpt", "job")
    other.import_archive(tmp_path / "job.ckpt")
    agent = Worker()
    with Session("job", agent=agent, store=other) as session:
        for task in session.tasks(["a", "b"]):
            with task:
                agent.n += 1
        assert agent.n == 2


# -- half of a rollback ----------------------------------------------------------------------------


def contents(place: Path) -> "dict[str, str]":
    return {path.name: path.read_text() for path in place.iterdir() if path.is_file()}


@pytest.fixture
def stuck(place: Path) -> "Iterator[Path]":
    """A file that nobody can change."""
    done = subprocess.run(["chattr", "+i", place / "b"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("files cannot be made immutable here")
    yield place / "b"
    subprocess.run(["chattr", "-i", place / "b"], check=True)


def test_a_rollback_that_fails_leaves_all_as_it_was(
    manager: CheckpointManager, place: Path, request: pytest.FixtureRequest
) -> None:
    with Session("job", workspace=place, store=manager) as session:
        start = session.save()
        for name in ("a", "b", "c"):
            (place / name).write_text("two")
        session.messages.append("later")
        session.save()
        request.getfixturevalue("stuck")
        before = contents(place)
        with pytest.raises(RestoreIncompleteError):
            session.rollback(to=start)
        assert contents(place) == before
        assert session.messages == Log(["later"])
    with Session("job", workspace=place, store=manager) as session:
        assert session.drift is None
        assert session.messages == Log(["later"])


def test_one_that_cannot_be_finished_does_not_lock_the_session(
    manager: CheckpointManager,
    place: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(BaseException):
        pass

    real = Rollback._restore_parts

    def restore_parts(self: Rollback, safety: Checkpoint, decision: Decision) -> None:
        def append(plan: Any) -> Checkpoint:
            decision.append(plan)
            raise Killed

        real(self, safety, decision._replace(append=append))

    session = Session("job", workspace=place, store=manager)
    start = session.save()
    for name in ("a", "b", "c"):
        (place / name).write_text("two")
    session.save()
    with monkeypatch.context() as patch:
        patch.setattr(Rollback, "_restore_parts", restore_parts)
        patch.setattr(Rollback, "_abort", lambda *_: None)  # a kill aborts nothing
        with pytest.raises(Killed):
            session.rollback(to=start)
    request.getfixturevalue("stuck")
    notices: list[list[str]] = []
    for _ in range(2):
        with Session("job", workspace=place, store=manager) as session:
            assert contents(place)["a"] == "one"
            assert contents(place)["b"] == "two"
            notices.append(session.notices)
    assert "could not be completed" in notices[0][0]


def test_the_way_back_is_not_pruned(manager: CheckpointManager, place: Path) -> None:
    with Session("job", workspace=place, store=manager) as session:
        (place / "a").write_text("two")
        session.save()
        session.rollback()
        manager.prune("job", KeepLatest(1))
        session.undo()
        assert contents(place)["a"] == "two"


def test_a_secret_in_the_name_of_a_task_is_purged(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    @tool(effect="idempotent", key=lambda: 1)
    def act() -> None:
        pass

    with Session("job", store=manager) as session:
        for task in session.tasks(["deploy with SECRET-4711"]):
            with task:
                act()
    manager.purge("SECRET-4711")
    manager.close()
    found = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert not any(b"SECRET-4711" in path.read_bytes() for path in found)


def test_the_notes_are_plain_json(manager: CheckpointManager, place: Path) -> None:
    with Session("job", workspace=place, store=manager):
        pass
    head = manager.store.head("job")
    assert json.loads(json.dumps(head.parts["session"]))["workspace"] == os.fspath(place)
