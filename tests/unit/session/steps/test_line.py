"""The line of a checkpoint: its history, without what a rollback passed over."""

import pytest

from agent_checkpoint import CheckpointManager, Session, Workspace
from agent_checkpoint.session.steps.line import line_of, original
from tests.unit.trajectory.trajectories import write


@pytest.fixture
def manager():
    return CheckpointManager()


def labels(manager, key, name=None):
    line = line_of(manager.store, manager.store.head(key))
    return [item.label for item in line if item.label]


def test_a_rollback_stands_for_its_target(manager, tmp_path):
    with Session("s", workspace=tmp_path, store=manager) as session:
        write("a", "1")
        target = session.head
        write("a", "2")
        session.rollback(target)
        write("a", "3")
        found = [item.label for item in line_of(manager.store, manager.store.head("s"))]
    assert found == [None, "write(name='a', text='1')", "write(name='a', text='3')"]


def test_what_a_rollback_passed_over_has_a_line_too(manager, tmp_path):
    with Session("s", workspace=tmp_path, store=manager) as session:
        write("a", "1")
        target = session.head
        write("a", "2")
        over = manager.store.head("s")
        session.rollback(target)
    assert [item.seq for item in line_of(manager.store, over)] == [1, 2, 3]


def test_an_undo_brings_it_back(manager, tmp_path):
    with Session("s", workspace=tmp_path, store=manager) as session:
        write("a", "1")
        write("a", "2")
        session.rollback(steps=1)
        session.undo()
        write("a", "3")
        line = line_of(manager.store, manager.store.head("s"))
    texts = [item.label for item in line if item.kind == "save"]
    assert texts == [f"write(name='a', text='{n}')" for n in (1, 2, 3)]


def test_it_goes_on_in_the_session_that_was_forked(manager, tmp_path):
    with Session("s", workspace=tmp_path / "w", store=manager) as session:
        write("a", "1")
        with session.fork("f") as branch:
            write("a", "2")
            line = line_of(manager.store, manager.store.head("f"))
        write("a", "9")
        assert branch.key == "f"
    made = [item.label for item in line if item.label and item.label.startswith("write")]
    assert made == ["write(name='a', text='1')", "write(name='a', text='2')"]
    assert {item.key for item in line} == {"s", "f"}


@pytest.fixture(autouse=True)
def directory(tmp_path):
    (tmp_path / "w").mkdir()


def test_an_adopted_fork_is_followed_into_the_fork(manager, tmp_path):
    with Session("s", workspace=tmp_path / "w", store=manager) as session:
        write("a", "1")
        with session.fork("f") as branch:
            write("a", "2")
            write("b", "3")
            session.adopt(branch)
        line = line_of(manager.store, manager.store.head("s"))
    made = [(item.key, item.label) for item in line if (item.label or "").startswith("write")]
    assert [key for key, _ in made] == ["s", "f", "f"]


def test_a_pruned_target_is_passed_at_its_place(manager, tmp_path):
    with Session("s", workspace=tmp_path / "w", store=manager) as session:
        write("a", "1")
        write("a", "2")
        target = session.head
        write("a", "3")
        session.rollback(target)
    manager.delete("s", target)
    line = line_of(manager.store, manager.store.head("s"))
    assert [item.kind for item in line] == ["open", "save", "rollback", "close"]


def test_the_original_of_a_rollback_is_its_target(manager, tmp_path):
    with Session("s", workspace=tmp_path / "w", store=manager) as session:
        write("a", "1")
        target = manager.store.head("s")
        write("a", "2")
        session.rollback(target.id)
        assert original(manager.store, manager.store.head("s")).id == target.id
        assert original(manager.store, target) is target


def test_a_directory_has_a_line(manager, tmp_path):
    workspace = Workspace(tmp_path / "w", manager.store)
    for number in range(3):
        (tmp_path / "w" / "a").write_text(str(number))
        workspace.snapshot()
    workspace.restore(f"{workspace.key}@1")
    line = line_of(manager.store, manager.store.head(workspace.key))
    assert [item.seq for item in line][:3] == [1, 2, 3]
