"""Forks of a session: what they begin with, that they are apart, and what they leave."""

import os
import threading
from pathlib import Path

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointError,
    CheckpointManager,
    ConflictError,
    EffectConflictError,
    EffectError,
    External,
    InvalidInputError,
    KeepLatest,
    NotFoundError,
    RollbackRefusedError,
    Session,
    StateError,
    Suspended,
    UnsafeWorkspaceError,
    WorkspaceError,
    tool,
)
from tests.agents import Agent, Planner
from tests.team_stores import TEAM_STORES, team_store
from tests.unit.session.places import files_of

sent = []


@pytest.fixture(autouse=True)
def nothing_was_sent():
    sent.clear()


@tool
def note(agent, text):
    agent.memory.append(text)


@tool(effect="irreversible", key=lambda to: to)
def send(to):
    sent.append(to)
    return f"sent {to}"


@tool(effect="reversible", key=lambda to: to, undo=lambda to: sent.remove(to))
def book(to):
    sent.append(to)


@tool(effect="irreversible", key=lambda to: to, approve=True)
def send_if_allowed(to):
    sent.append(to)


def mounts_in(*places: Path) -> "list[str]":
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if any(str(place) in line for place in places)]


@pytest.fixture(params=["memory", "sqlite", *TEAM_STORES])
def store(request, tmp_path):
    if request.param == "memory":
        return CheckpointManager()
    return team_store(request, tmp_path) or tmp_path / "store"


@pytest.fixture
def session(store, place):
    with Session("work", agent=Agent(), workspace=place, store=store) as session:
        session.messages.append("hello")
        note(session.agent, "first")
        yield session


def test_a_fork_begins_with_everything(session, place):
    for task in session.tasks(["read", "edit"]):
        with task:
            pass
    with session.fork("try") as branch:
        assert branch.key == "try"
        assert branch.agent.memory == ["first"]
        assert branch.agent is not session.agent
        assert list(branch.messages) == ["hello"]
        assert [row["tool"] for row in branch.calls] == ["note"]
        assert [task.status for task in branch.tasks] == ["completed", "completed"]
        assert files_of(branch.workspace.path) == files_of(place)
        assert branch.workspace.path != place
        assert branch.manager is session.manager
        assert branch.history()[-1]["parents"] == [session.head]


@pytest.mark.parametrize("driver", ["auto", "copy"])
def test_both_go_on_apart(session, place, driver):
    before = files_of(place)
    with session.fork("try", driver=driver) as branch:
        note(branch.agent, "in the fork")
        branch.messages.append("there")
        (branch.workspace.path / "src/app.py").write_text("print(2)\n")
        note(session.agent, "in the session")
        assert files_of(place) == before
        (place / "run.sh").write_text("other\n")
        assert (branch.workspace.path / "run.sh").read_text() == "#!/bin/sh\n"
    assert session.agent.memory == ["first", "in the session"]
    assert list(session.messages) == ["hello"]
    state = session.manager.state_dict("try")
    assert state["agent"]["memory"] == ["first", "in the fork"]


def test_calls_in_a_fork_are_of_the_fork(session):
    with session.fork("try") as branch:
        note(branch.agent, "x")
        assert len(branch.calls) == 2
    note(session.agent, "y")
    assert [row["arguments"]["text"] for row in session.calls] == ["first", "y"]


def test_a_fork_of_an_earlier_moment(session, place):
    then = session.head
    note(session.agent, "second")
    (place / "src/app.py").write_text("print(3)\n")
    session.save()
    with session.fork("try", at=then) as branch:
        assert branch.agent.memory == ["first"]
        assert (branch.workspace.path / "src/app.py").read_text() == "print(1)\n"
    with session.fork("short", at="work~1") as branch:
        assert (branch.workspace.path / "src/app.py").read_text() == "print(1)\n"
    assert (place / "src/app.py").read_text() == "print(3)\n"


def test_a_fork_of_a_fork(session):
    with session.fork("one") as one:
        note(one.agent, "one")
        (one.workspace.path / "one").touch()
        with one.fork("two") as two:
            assert two.agent.memory == ["first", "one"]
            assert (two.workspace.path / "one").exists()
            assert [key for key, _ in two._state.record.lineage] == ["work", "one"]


def test_the_agent_of_a_factory_gets_the_state(session):
    made = []

    def factory():
        made.append(Agent(count=99))
        return made[0]

    with session.fork("try", agent=factory) as branch:
        assert branch.agent is made[0]
        assert branch.agent.memory == ["first"]
        assert branch.agent.count == 0


def test_what_is_not_captured_is_shared(session):
    with session.fork("try") as branch:
        assert branch.agent._client is session.agent._client


class Uncopyable:
    def __init__(self):
        self.lock = __import__("threading").Lock()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_an_agent_that_cannot_be_copied(tmp_path):
    with Session("work", agent=Uncopyable(), store=tmp_path / "store") as session:
        with pytest.raises(StateError, match="Pass agent="):
            session.fork("try")
        with session.fork("try", agent=Uncopyable) as branch:
            assert isinstance(branch.agent, Uncopyable)


def test_further_parts_are_copied_and_what_is_elsewhere_is_not(tmp_path):
    taken = []
    elsewhere = External("db", take=lambda: taken.append(1) or len(taken), restore=taken.append)
    parts = {"planner": Planner(), "db": elsewhere}
    with Session("work", parts=parts, store=tmp_path / "store") as session:
        session.save()
        count = len(taken)
        with session.fork("try") as branch:
            assert branch._state.parts["planner"] is not parts["planner"]
            branch._state.parts["planner"].plan.append("act")
            assert "db" not in branch._state.parts
        assert parts["planner"].plan == ["think"]
        assert len(taken) == count + 1  # by the save before the fork


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effects": "perhaps"}, "'refuse' or 'allow'"),
        ({"agent": Agent(7)}, "function"),
        ({"driver": "magic"}, "driver"),
        ({"name": ""}, "key"),
    ],
)
def test_options_that_make_no_sense(session, options, words):
    with pytest.raises(InvalidInputError, match=words):
        session.fork(**{"name": "try", **options})
    assert "try" not in session.manager.list_keys()


def test_names_that_are_taken_and_moments_that_are_not_there(session):
    session.fork("try").close()
    with pytest.raises(ConflictError, match="'try' already exists"):
        session.fork("try")
    with pytest.raises(NotFoundError):
        session.fork("other", at="work@999")
    session.manager.save("stranger", {"x": 1})
    with pytest.raises(InvalidInputError, match="stranger"):
        session.fork("other", at="stranger")


def test_the_moment_may_be_pruned_later(session):
    with session.fork("try") as branch:
        note(session.agent, "x")
        session.manager.prune("work", KeepLatest(1))
        session.manager.gc()
        note(branch.agent, "y")
    with Session(
        "try", agent=Agent(), store=session.manager, workspace=session.workspace.path, rebind=True
    ) as again:
        assert again.agent.memory == ["first", "y"]


# -- what is left --------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["auto", "copy"])
def test_nothing_is_left(session, place, driver, own_home, tmp_path):
    beside = sorted(tmp_path.iterdir())
    with pytest.raises(LookupError), session.fork("try", driver=driver) as branch:
        there = branch.workspace.path
        (there / "new").write_text("x")
        raise LookupError
    assert not there.exists()
    assert mounts_in(own_home, tmp_path) == []
    assert sorted(tmp_path.iterdir()) == beside
    for name in ("forks", "bases", "branches"):
        left = own_home / "store" / name
        assert not left.exists() or not list(left.iterdir())


@pytest.mark.parametrize("every", ["tool", "manual"])
def test_closing_saves_what_is_not_saved(store, place, every):
    with Session("work", workspace=place, store=store, every=every) as session:
        branch = session.fork("try")
        (branch.workspace.path / "late").write_text("not lost")
        branch.messages.append("late")
        branch.close()
        branch.close()
        assert session.manager.state_dict("try")["messages"][-1] == "late"
        target = place.parent / "again"
        with Session("try", workspace=target, store=session.manager) as again:
            assert (target / "late").read_text() == "not lost"
            assert list(again.messages) == ["late"]


def test_a_session_closes_its_forks(store, place):
    with Session("work", workspace=place, store=store) as session:
        branch = session.fork("try")
        there = branch.workspace.path
    assert not there.exists()
    with pytest.raises(InvalidInputError, match="closed"):
        branch.save()


def test_a_fork_that_was_taken_over_still_saves_its_files(session):
    branch = session.fork("try")
    (branch.workspace.path / "late").write_text("not lost")
    elsewhere = session.workspace.path.parent / "elsewhere"
    with Session("try", agent=Agent(), workspace=elsewhere, store=session.manager):
        key = branch.workspace.key
        branch.close()
    assert key in session.manager.list_keys()


def test_a_closed_fork_is_opened_where_one_says(session, tmp_path):
    with session.fork("try") as branch:
        there = branch.workspace.path
    with pytest.raises(InvalidInputError, match="workspace="):
        Session("try", agent=Agent(), store=session.manager)
    assert not there.exists()
    with Session("try", agent=Agent(), workspace=tmp_path / "new", store=session.manager) as again:
        assert again.agent.memory == ["first"]
        assert files_of(tmp_path / "new") == files_of(session.workspace.path)


def test_a_place_of_ones_own(session, tmp_path):
    with session.fork("try", path=tmp_path / "mine") as branch:
        assert branch.workspace.path == tmp_path / "mine"
    assert not (tmp_path / "mine").exists()


def test_a_place_that_is_taken_leaves_no_key(session, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").touch()
    with pytest.raises(UnsafeWorkspaceError, match="already exists"):
        session.fork("try", path=tmp_path / "mine")
    assert "try" not in session.manager.list_keys()
    session.fork("try").close()


def test_without_files(store):
    with Session("work", agent=Agent(), store=store) as session, session.fork("try") as branch:
        assert branch.workspace is None
        note(branch.agent, "x")
        assert session.agent.memory == []


def test_history_costs_nothing(tmp_path):
    with Session("work", store=tmp_path / "store", every="manual") as session:
        session.messages.extend({"n": n} for n in range(2000))
        session.save()
        before = session.manager.stats()["stored_bytes"]
        session.fork("try").close()
        assert session.manager.stats()["stored_bytes"] - before < 20_000


# -- the outside ---------------------------------------------------------------------------------


def test_a_fork_may_not_do_what_cannot_be_undone(session):
    with session.fork("try") as branch, pytest.raises(EffectError, match="fork"):
        assert branch is not session
        send("ann")
    assert sent == []


def test_unless_it_is_allowed(session):
    with session.fork("try", effects="allow"):
        assert send("ann") == "sent ann"
    with pytest.raises(EffectConflictError, match="related session"):
        send("ann")
    with session.fork("other", effects="allow"), pytest.raises(EffectConflictError):
        send("ann")
    assert sent == ["ann"]


def test_what_was_done_before_is_given_back(session):
    send("ann")
    with session.fork("try", effects="allow"):
        assert send("ann") == "sent ann"
    assert sent == ["ann"]


def test_leave_to_do_it_lasts(session, tmp_path):
    with session.fork("try", effects="allow"):
        pass
    with Session("try", agent=Agent(), workspace=tmp_path / "t", store=session.manager):
        send("ann")
    assert sent == ["ann"]


def test_requests_stay_with_who_asked(session):
    with pytest.raises(Suspended) as waiting:
        send_if_allowed("ann")
    with session.fork("try", effects="allow") as branch:
        assert branch._state.record.pending == []
        session.approvals.approve(waiting.value.approval_id)
        assert branch.carry_out() == []
    assert [row["tool"] for row in session.carry_out()] == ["send_if_allowed"]
    assert sent == ["ann"]


def test_a_task_in_progress_is_run_again_from_its_start(session, place):
    for task in session.tasks(["one", "two"]):
        with task:
            if task.id == "two":
                note(session.agent, "half of two")
                (place / "half").touch()
                branch = session.fork("try")
    with branch:
        assert branch.tasks["two"].status == "in_progress"
        for task in branch.tasks(["one", "two"]):
            with task:
                assert task.id == "two"
                assert branch.agent.memory == ["first"]
                assert not (branch.workspace.path / "half").exists()


def test_the_process_that_is_a_fork_of_ours_may_not(session):
    if os.fork() == 0:
        try:
            session.fork("try")
        except ConflictError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7


def test_the_manager_can_fork_as_well(store, place):
    with Session("work", agent=Agent(), workspace=place, store=store) as session:
        session.manager.fork("work", "try")
        there = place.parent / "there"
        with Session("try", agent=Agent(), workspace=there, store=session.manager) as branch:
            assert branch._state.record.origin == "work"
            note(branch.agent, "x")
            session.adopt(branch)
        assert session.agent.memory == ["x"]


def test_classes_are_what_they_were(session):
    with session.fork("try") as branch:
        assert isinstance(branch, Session)
        assert isinstance(branch.agent, Checkpointable)
    assert isinstance(session.manager, CheckpointManager)


def test_a_fork_that_may_not_cannot_let_its_forks(session):
    with session.fork("try") as branch:
        with pytest.raises(InvalidInputError, match="its own forks may not either"):
            branch.fork("deeper", effects="allow")
        assert "deeper" not in session.manager.list_keys()


def test_a_fork_does_not_undo_what_the_session_did(session):
    before = session.save()
    book("room")
    with session.fork("try") as branch:
        with pytest.raises(RollbackRefusedError, match="book"):
            branch.rollback(to=before, effects="compensate")
        report = branch.rollback(to=before, effects="warn")
        assert [effect.tool for effect in report.irreversible] == ["book"]
    assert sent == ["room"]
    session.rollback(to=before, effects="compensate")
    assert sent == []


def test_a_thread_that_outlives_its_fork_does_nothing_in_the_sessions_name(session):
    errors = []
    gate = threading.Event()

    def late():
        gate.wait(20)
        try:
            send("ann")
        except CheckpointError as error:
            errors.append(str(error))

    with session.fork("try"):
        thread = threading.Thread(target=late)
        thread.start()
    gate.set()
    thread.join()
    assert "session" in errors[0]
    assert sent == []


def test_forks_end_with_the_hold_that_they_were_made_in(session, tmp_path):
    earlier = session.fork("earlier")
    with session.workspace.hold():
        branch = session.fork("try", path=tmp_path / "there")
        branch.messages.append("not lost")
        (branch.workspace.path / "late").write_text("not lost")
    assert not branch._state.is_open
    branch.close()
    assert session.manager.state_dict("try")["messages"][-1] == "not lost"
    assert earlier._state.is_open
    assert (earlier.workspace.path / "run.sh").exists()
    with Session("try", agent=Agent(), workspace=tmp_path / "x", store=session.manager):
        assert (tmp_path / "x/late").read_text() == "not lost"


def test_a_fork_whose_files_are_gone_is_closed_all_the_same(session):
    branch = session.fork("try")
    branch.workspace.close(save=False)
    with pytest.raises(WorkspaceError):
        branch.close()
    assert not branch._state.is_open
    assert session._state.branches == []
    branch.close()


def test_a_fork_of_nothing_leaves_no_key_but_its_own(store, tmp_path):
    (tmp_path / "empty").mkdir()
    with Session("work", workspace=tmp_path / "empty", store=store) as session:
        session.fork("try").close()
        assert sorted(session.manager.list_keys()) == ["try", "work"]


@pytest.mark.parametrize("path", [5, b"x"])
def test_paths_that_are_none(session, path):
    with pytest.raises(InvalidInputError, match="directory"):
        session.fork("try", path=path)


def test_nobody_is_asked_for_what_a_fork_may_not(session):
    with session.fork("try") as branch:
        with pytest.raises(EffectError, match='effects="allow"'):
            send_if_allowed("ann")
        assert branch.approvals.pending() == []


def test_requests_of_a_fork_are_void_once_it_is_adopted(session):
    with session.fork("try", effects="allow") as branch:
        with pytest.raises(Suspended) as waiting:
            send_if_allowed("ann")
        report = session.adopt(branch)
    assert report.void == [waiting.value.approval_id]
    assert session.approvals.pending() == []


def test_how_it_is_shown(session):
    with session.fork("try") as branch:
        assert repr(branch) == "<Branch 'try' of 'work'>"


def test_an_agent_that_is_a_class(tmp_path):
    with pytest.raises(InvalidInputError, match="pass an instance"):
        Session("work", agent=Agent, store=tmp_path / "s")
