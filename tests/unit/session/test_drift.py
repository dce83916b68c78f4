"""Files that others change while no session is open, or between its checkpoints."""

import shutil

import pytest

from agent_checkpoint import CheckpointManager, Session
from agent_checkpoint.errors import InvalidInputError, WorkspaceError
from agent_checkpoint.session.session_record import read_session_record
from tests.agents import Agent
from tests.unit.session.places import files_of


@pytest.fixture
def manager(tmp_path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def drifted(manager, place):
    """The files that a session had before others changed them."""
    with Session("job", agent=Agent(1), workspace=place, store=manager):
        pass
    before = files_of(place)
    (place / "added.txt").write_text("added")
    (place / "run.sh").unlink()
    (place / "src/app.py").write_text("print(2)\n")
    return before


def test_nothing_has_changed(manager, place):
    for _ in range(3):
        with Session("job", workspace=place, store=manager, on_drift="raise") as session:
            assert session.drift is None
            assert session.notices == []
    assert [row["kind"] for row in manager.history("job")] == ["close", "open"] * 3


def test_it_is_kept_and_recorded(manager, place, drifted):
    now = files_of(place)
    with Session("job", store=manager) as session:
        assert files_of(place) == now
        assert session.drift.added == ["added.txt"]
        assert session.drift.removed == ["run.sh"]
        assert session.drift.changed == {"src/app.py": ("content",)}
        (notice,) = session.notices
        assert notice == (
            "3 files changed since the last checkpoint, by another process or by an interrupted "
            "tool: 'added.txt', 'run.sh', 'src/app.py'. The files were kept."
        )
        (row, opened) = session.history(2)
        assert (row["kind"], opened["kind"]) == ("drift", "open")
        assert row["label"] == "files that others have changed"
        record = read_session_record(manager.store, manager.store.head("job"))
        assert record.drift == ["added.txt", "run.sh", "src/app.py"]
        session.save()
        assert read_session_record(manager.store, manager.store.head("job")).drift == []
        session.rollback(steps=2)
        assert files_of(place) == drifted
        session.undo()
        assert files_of(place) == now
    with Session("job", store=manager) as session:
        assert session.drift is None
        assert session.notices == []


def test_it_is_restored(manager, place, drifted):
    with Session("job", store=manager, on_drift="restore") as session:
        assert files_of(place) == drifted
        assert session.drift.added == ["added.txt"]
        assert len(session.notices) == 1
        safety = manager.history(session.workspace.key)[0]  # what was there is not lost
        assert safety["kind"] == "safety"
        session.workspace.restore(manager.state_dict(session.workspace.key)["workspace"])
        assert (place / "added.txt").read_text() == "added"


def test_it_is_refused(manager, place, drifted):
    now, length = files_of(place), len(manager.history("job"))
    with pytest.raises(WorkspaceError, match=r"(?s)changed since.*added\.txt"):
        Session("job", store=manager, on_drift="raise")
    assert files_of(place) == now
    assert len(manager.history("job")) == length
    holder = Session("job", store=manager)
    with pytest.raises(InvalidInputError):
        Session("job", store=manager, on_drift="what")
    holder.save()  # who holds it does not notice


def test_who_holds_it_is_not_disturbed_by_who_is_refused(manager, place):
    holder = Session("job", workspace=place, store=manager)
    (place / "added.txt").write_text("being written")
    with pytest.raises(WorkspaceError):
        Session("job", store=manager, on_drift="raise")
    holder.save()
    holder.close()


def test_a_task_that_is_run_again_has_the_files_of_its_start(manager, place):
    session = Session("job", workspace=place, store=manager)
    before = files_of(place)
    for task in session.tasks(["one"]):
        task.__enter__()
        (place / "half.txt").write_text("half done")
    session.close()  # as by a crash: the task is under way, and half of its files are not saved
    with Session("job", store=manager) as session:
        assert session.drift.added == ["half.txt"]
        for task in session.tasks(["one"]):
            with task:
                assert task.attempt == 2
                assert files_of(place) == before
        session.undo()
        assert (place / "half.txt").read_text() == "half done"


def test_many_changes_are_counted_and_some_are_named(manager, place):
    with Session("job", workspace=place, store=manager):
        pass
    for number in range(50):
        (place / f"{number:02}.txt").touch()
    with Session("job", store=manager) as session:
        (notice,) = session.notices
        assert notice.startswith("50 files changed since the last checkpoint, by another process")
        assert notice.endswith("'03.txt', '04.txt', …. The files were kept.")
        assert len(read_session_record(manager.store, manager.store.head("job")).drift) == 20


def test_a_session_that_gets_a_workspace_later(manager, place):
    with Session("job", agent=Agent(1), store=manager):
        pass
    with Session("job", workspace=place, store=manager) as session:
        assert session.drift is None
        session.save()
    before = files_of(place)
    shutil.rmtree(place)
    with Session("job", store=manager) as session:
        assert session.workspace.path == place
        assert files_of(place) == before


def test_a_change_of_permissions_is_one(manager, place):
    with Session("job", workspace=place, store=manager):
        pass
    (place / "run.sh").chmod(0o644)
    with Session("job", store=manager, on_drift="restore") as session:
        assert session.drift.changed == {"run.sh": ("mode",)}
        assert files_of(place)["run.sh"][1] == 0o755


def test_the_notice_says_that_files_were_restored(manager, place, drifted):
    with Session("job", store=manager, on_drift="restore") as session:
        assert files_of(place) == drifted
        (notice,) = session.notices
        assert "'added.txt'" in notice
        assert notice.endswith("The files were restored as the checkpoint has them.")
