"""Going back: where to, what of it, what was done outside meanwhile, and back again."""

import re
from unittest.mock import Mock

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, KeepLatest, Session, tool
from agent_checkpoint.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RollbackRefusedError,
    StateError,
    StorageError,
)
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.rollback.rollback import Rollback
from tests.agents import Agent, Planner
from tests.unit.session.places import files_of


class World:
    """The outside."""

    def __init__(self):
        self.done = []
        self.breaks = None


world = World()


@pytest.fixture(autouse=True)
def new_world():
    world.__init__()


@tool
def count_up(agent):
    agent.count += 1
    return agent.count


@tool(effect="irreversible")
def publish(title):
    world.done.append(f"publish {title}")
    return f"published {title}"


@tool(effect="irreversible", key=lambda order: order)
def pay(order):
    world.done.append(f"pay {order}")
    return f"paid {order}"


@tool(effect="irreversible")
def hang_up():
    raise TimeoutError("no answer")


def unreserve(seat, result):
    assert result == f"seat {seat}"
    if world.breaks == seat:
        raise OSError("the line is dead")
    world.done.append(f"unreserve {seat}")


@tool(effect="reversible", undo=unreserve)
def reserve(seat):
    world.done.append(f"reserve {seat}")
    return f"seat {seat}"


@tool(effect="idempotent")
def set_price(price):
    world.done.append(f"price {price}")
    if world.breaks == price:
        raise TimeoutError("no answer")
    return price


@pytest.fixture
def agent():
    return Agent()


@pytest.fixture
def session(store, place, agent):
    session = Session("job", agent=agent, workspace=place, store=store)
    with as_current(session._tools):
        yield session
    session.close()


def step(session, number):
    """Change everything, and save."""
    session.agent.count = number
    session.messages.append(number)
    (session.workspace.path / "number.txt").write_text(str(number))
    (session.workspace.path / f"{number}.txt").write_text("x")
    return session.save(label=f"step {number}")


def present(session):
    """Return what a session is, in short."""
    place = session.workspace.path
    return session.agent.count, list(session.messages), files_of(place)


# -- where to --------------------------------------------------------------------------------------


def test_to_an_id_and_to_short_forms(session):
    ids, states = [], []
    for number in range(1, 6):
        ids.append(step(session, number))
        states.append(present(session))
    number = int(ids[0].rpartition("-")[2])
    for to, expected in [
        (ids[0], 0),
        (ids[3], 3),
        ("job~0", 3),  # a rollback counts as its target
        ("job~1", 2),
        ("job", 2),
        (f"job@{number + 1}", 1),
        (ids[4], 4),
    ]:
        report = session.rollback(to=to)
        assert present(session) == states[expected], to
        assert report.id == session.head
        assert report.parts == ["agent", "messages", "calls", "tasks", "workspace"]
    assert session.manager.verify().ok


def test_steps_count_what_a_person_would_count(session, store):
    for number in range(1, 6):
        step(session, number)
    session.rollback()
    assert session.agent.count == 4
    session.rollback()  # over the rollback and its safety checkpoint
    assert session.agent.count == 3
    session.rollback(steps=2)
    assert session.agent.count == 1
    step(session, 9)
    session.rollback()
    assert session.agent.count == 1
    session.undo()
    assert session.agent.count == 9


def test_steps_pass_over_openings(store, place):
    manager = None
    for number in range(1, 4):
        agent = Agent()
        session = Session("job", agent=agent, workspace=place, store=manager or store)
        manager = session.manager
        step(session, number)
    Session("job", store=manager)  # and once more, for nothing
    agent = Agent()
    session = Session("job", agent=agent, store=manager)
    assert agent.count == 3
    session.rollback()
    assert agent.count == 2
    session.rollback()
    assert agent.count == 1


def test_steps_from_what_was_saved_while_tools_were_running(session, agent):
    """The newest is where it stands, whatever it is: one step leads to the last settled one."""
    step(session, 1)

    @tool
    def outer():
        step(session, 2)

    session.every = "manual"
    outer()
    assert [row["kind"] for row in session.history(2)] == ["in_flight", "save"]
    session.rollback()
    assert agent.count == 1


def test_to_a_checkpoint_of_its_ancestry(store, place):
    with Session("job", agent=Agent(), store=store) as session:
        manager = session.manager
        session.agent.count = 1
        old = session.save()
        session.agent.count = 2
        session.save()
        manager.fork("job", "try")
        fork = Session("try", agent=Agent(), store=manager)
        assert fork.agent.count == 2
        fork.agent.count = 3
        fork.save()
        fork.rollback(to=old)
        assert fork.agent.count == 1
        fork.undo()
        assert fork.agent.count == 3
        fork.rollback(steps=3)  # over the fork, into the past of the other
        assert fork.agent.count == 1
        assert session.agent.count == 2


def test_a_checkpoint_of_a_stranger_is_refused(store):
    with Session("stranger", agent=Agent(7), store=store) as stranger:
        foreign = stranger.save()
        with Session("job", agent=Agent(), store=stranger.manager) as session:
            with pytest.raises(InvalidInputError, match="not in the history of the session 'job'"):
                session.rollback(to=foreign, effects="warn")
            assert session.agent.count == 0


@pytest.mark.parametrize("how", ["delete", "prune"])
def test_a_target_that_is_gone(session, how):
    gone = step(session, 1)
    step(session, 2)
    step(session, 3)
    if how == "delete":
        session.manager.delete("job", gone)
    else:
        session.manager.prune("job", KeepLatest(1))
    session.manager.gc()
    before, length = present(session), len(session.history())
    with pytest.raises(NotFoundError, match=re.escape(gone)):
        session.rollback(to=gone)
    assert (present(session), len(session.history())) == (before, length)
    step(session, 4)
    session.rollback()
    assert session.agent.count == 3


def test_what_is_no_target(session):
    step(session, 1)
    for wrong in ({"to": "nobody"}, {"to": "job@999"}, {"steps": 99}):
        with pytest.raises(NotFoundError):
            session.rollback(**wrong)
    for wrong in (
        {"steps": -1},
        {"steps": True},
        {"steps": "2"},
        {"to": ""},
        {"effects": "ignore"},
        {"parts": "workspace"},
        {"parts": []},
        {"parts": ["agent", "nothing"]},
        {"parts": ["session"]},
    ):
        with pytest.raises(InvalidInputError):
            session.rollback(**wrong)


# -- what of it ------------------------------------------------------------------------------------


def test_only_the_files(session):
    step(session, 1)
    before = files_of(session.workspace.path)
    step(session, 2)
    report = session.rollback(parts=["workspace"])
    assert present(session) == (2, [1, 2], before)
    assert report.parts == ["workspace"]
    assert session.history(1)[0]["kind"] == "restore"
    session.undo()
    assert session.agent.count == 2
    assert (session.workspace.path / "2.txt").exists()


def test_only_the_state(session, store):
    step(session, 1)
    step(session, 2)
    files = files_of(session.workspace.path)
    session.rollback(parts=["agent", "messages"])
    assert present(session) == (1, [1], files)
    manager = session.manager
    agent = Agent()
    again = Session("job", agent=agent, store=manager)
    assert (agent.count, list(again.messages), files_of(again.workspace.path)) == (1, [1], files)
    assert again.drift is None


def test_a_part_that_was_not_there_then_stays(store):
    with Session("job", agent=Agent(1), store=store) as session:
        manager, old = session.manager, session.save()
    planner = Planner()
    with Session("job", agent=Agent(), store=manager, parts={"planner": planner}) as session:
        planner.plan.append("new")
        session.save()
        session.rollback(to=old)
        assert planner.plan == ["think", "new"]


def test_a_dry_run_changes_nothing(session):
    step(session, 1)
    step(session, 2)
    publish("a")
    before, length = present(session), len(session.history())
    objects = {info.id for info in session.manager.store.backend.list_objects()}
    report = session.rollback(steps=2, dry_run=True)
    assert (present(session), len(session.history())) == (before, length)
    assert objects >= {info.id for info in session.manager.store.backend.list_objects()}
    assert (report.id, report.safety_id) == (None, None)
    assert [effect.words for effect in report.irreversible] == ["publish(title='a')"]
    text = str(report)
    assert text.startswith("The session would roll back to job_")
    assert "delete 2.txt" in text
    assert "Irreversible external side effects:\n  publish(title='a') (irreversible, 20" in text


# -- and back again --------------------------------------------------------------------------------


def test_undo_and_undo_of_undo(session):
    step(session, 1)
    first = present(session)
    step(session, 2)
    (session.workspace.path / "unsaved.txt").write_text("never saved")
    session.agent.memory.append("never saved")
    second = present(session)
    session.rollback()
    assert present(session) == first
    for _ in range(2):
        session.undo()
        assert present(session) == second
        assert session.agent.memory == ["never saved"]
        session.undo()
        assert present(session) == first
    assert session.manager.verify().ok


def test_undo_after_going_on(session):
    step(session, 1)
    step(session, 2)
    session.rollback()
    step(session, 3)
    session.undo()
    assert session.agent.count == 2
    session.undo()
    assert session.agent.count == 3


def test_undo_in_another_process(store, place):
    session = Session("job", agent=Agent(), workspace=place, store=store)
    step(session, 1)
    step(session, 2)
    before = present(session)
    session.rollback()
    agent = Agent()
    with Session("job", agent=agent, store=session.manager) as again:
        assert agent.count == 1
        again.undo()
        assert present(again) == before


def test_undo_when_what_was_there_is_not_kept(session):
    step(session, 1)
    step(session, 2)
    session.rollback()
    for row in session.history():
        if row["kind"] == "safety":
            session.manager.delete("job", row["id"])
    with pytest.raises(NotFoundError, match="no rollback, restore, revert or adopt to undo"):
        session.undo()


# -- what was done outside -------------------------------------------------------------------------


def test_it_is_refused_with_a_report_that_a_person_understands(session):
    step(session, 1)
    publish("a")
    pay("42")
    reserve("1A")
    set_price(5)
    with pytest.raises(TimeoutError):
        hang_up()
    before, length = present(session), len(session.history())
    with pytest.raises(RollbackRefusedError) as caught:
        session.rollback(steps=5)
    assert (present(session), len(session.history())) == (before, length)
    report = caught.value.report
    assert [effect.tool for effect in report.irreversible] == ["publish", "pay"]
    assert [effect.tool for effect in report.unknown] == ["hang_up"]
    assert [effect.tool for effect in report.compensable] == ["reserve"]
    assert [effect.tool for effect in report.replayable] == ["set_price"]
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", str(caught.value))
    text = re.sub(r"job_\d+-\d+", "ID", text)
    text = text.replace(report.unknown[0].id, "EFFECT")
    text = re.sub(r"\[[0-9a-f]{8}\]", "[DIGEST]", text)
    assert text == (
        "Not rolled back: 3 external side effects since the target are irreversible or in doubt. "
        'Pass effects="warn" to roll back anyway, or choose a later checkpoint. Record an unknown '
        "outcome with session.resolve('EFFECT', happened=True if the effect is in place, else "
        "False).\n"
        "The session would roll back to ID: agent, messages, calls, tasks, workspace.\n"
        "Irreversible external side effects:\n"
        "  publish [DIGEST] (irreversible, TIME)\n"
        "  pay [DIGEST] (irreversible, TIME)\n"
        "Outcome unknown:\n"
        "  hang_up [DIGEST] (irreversible, TIME)\n"
        "Still in place, can be compensated:\n"
        "  reserve [DIGEST] (reversible, TIME)\n"
        "Still in place, a repeated call returns the recorded result:\n"
        "  set_price [DIGEST] (idempotent, TIME)"
    )
    assert isinstance(caught.value, RollbackRefusedError)


def test_what_is_not_passed_over_does_not_matter(session):
    publish("a")
    step(session, 1)
    step(session, 2)
    report = session.rollback()
    assert (report.blocking, report.notices, session.notices) == ([], [], [])


def test_the_files_alone_know_nothing_of_the_outside(session):
    step(session, 1)
    step(session, 2)
    publish("a")
    report = session.rollback(steps=2, parts=["workspace"])
    assert (report.notices, session.notices) == ([], [])


def test_warn_goes_back_and_tells_what_stands(session, store):
    step(session, 1)
    assert publish("a") == "published a"
    step(session, 2)
    report = session.rollback(steps=2, effects="warn")
    assert session.agent.count == 1
    (notice,) = report.notices
    assert notice.startswith("publish(title='a') was executed at 20")
    assert "and is still in place" in notice
    assert "Do not repeat it" in notice
    assert session.notices == [notice]
    session.save()
    assert session.notices == [notice]
    agent = Agent()
    again = Session("job", agent=agent, store=session.manager)
    assert again.notices == [notice]
    with as_current(again._tools):
        assert publish("a") == "published a"  # again: it is known, and not done
        assert world.done == ["publish a"]
        assert again.notices == []
    again.close()
    with Session("job", store=session.manager) as last:
        assert last.notices == []


def test_after_an_undo_the_state_knows_again(session):
    step(session, 1)
    publish("a")
    session.rollback(steps=1, effects="warn")
    assert len(session.notices) == 1
    report = session.undo()
    assert (report.notices, session.notices) == ([], [])
    session.rollback(steps=2, effects="warn")
    assert len(session.notices) == 1


def test_what_was_done_after_the_last_save_is_known_after_an_undo(store):
    with Session("job", agent=Agent(), store=store, every="manual") as session:
        session.save()
        publish("a")
        session.messages.append("published a")
        with pytest.raises(RollbackRefusedError):
            session.rollback(steps=0)
        session.rollback(steps=0, effects="warn")
        assert len(session.notices) == 1
        session.undo()
        assert list(session.messages) == ["published a"]
        assert session.notices == []


def test_what_was_given_again_counts_as_done_then(session):
    """After a restart of a task the ledger is long, and the state knows little of it."""
    step(session, 1)
    reserve("1A")
    session.rollback(effects="warn")
    good = session.save()
    assert reserve("1A") == "seat 1A"  # it stands already
    assert world.done == ["reserve 1A"]
    report = session.rollback(to=good, effects="compensate")
    assert [effect.words for effect in report.compensated] == ["reserve(seat='1A')"]
    assert world.done == ["reserve 1A", "unreserve 1A"]
    assert session.notices == []


def test_what_stood_before_and_stands_now_is_not_in_the_way(session):
    step(session, 1)
    publish("a")
    session.rollback(effects="warn")
    step(session, 2)
    step(session, 3)
    report = session.rollback()  # both know of it by the notice only
    assert report.blocking == []
    assert len(session.notices) == 1


def test_an_idempotent_one_that_is_done_again_is_known_again(session):
    step(session, 1)
    set_price(1)
    session.rollback(effects="warn")
    assert len(session.notices) == 1
    set_price(1)
    assert session.notices == []
    world.breaks = 2
    with pytest.raises(TimeoutError):
        set_price(2)
    session.rollback(effects="warn")
    (notice,) = session.notices
    assert "It is idempotent: the call may be repeated." in notice
    world.breaks = None
    assert set_price(2) == 2
    assert world.done == ["price 1", "price 2", "price 2"]
    assert session.notices == []


def test_compensate_undoes_the_newest_first(session):
    step(session, 1)
    for seat in "ABC":
        reserve(seat)
    report = session.rollback(steps=3, effects="compensate")
    assert world.done[3:] == ["unreserve C", "unreserve B", "unreserve A"]
    assert [effect.words for effect in report.compensated] == [
        f"reserve(seat='{seat}')" for seat in "CBA"
    ]
    assert (report.notices, session.notices) == ([], [])
    assert "Compensated:\n  reserve(seat='C')" in str(report)
    assert "could be undone" not in str(report)
    assert reserve("A") == "seat A"  # it is free, and is done anew
    assert world.done[-1] == "reserve A"


def test_compensate_is_refused_before_anything_is_undone(session):
    step(session, 1)
    reserve("A")
    publish("a")
    with pytest.raises(RollbackRefusedError):
        session.rollback(steps=2, effects="compensate")
    assert "unreserve A" not in world.done


def test_compensate_stops_honestly_half_way(session):
    step(session, 1)
    for seat in "ABC":
        reserve(seat)
    world.breaks = "B"
    session.agent.memory.append("not saved")
    before = present(session)
    with pytest.raises(RollbackRefusedError) as caught:
        session.rollback(steps=3, effects="compensate")
    assert present(session) == before
    assert session.agent.memory == ["not saved"]
    assert world.done[3:] == ["unreserve C"]
    report = caught.value.report
    assert report.id is None
    assert [effect.words for effect in report.compensated] == ["reserve(seat='C')"]
    assert "the line is dead" in report.failure
    text = str(caught.value)
    assert text.startswith("Not rolled back: a compensation failed. undo= of reserve [")
    assert "1 of 3 effects were compensated before it, newest first." in text
    assert {effect.words: effect.status for effect in session.effects} == {
        "reserve(seat='A')": "committed",
        "reserve(seat='B')": "undoing",
        "reserve(seat='C')": "undone",
    }
    assert any("'B'" in notice and "outcome unknown" in notice for notice in session.notices)
    step(session, 2)  # it goes on from where it was
    session.rollback()
    assert session.agent.count == 1
    with pytest.raises(RollbackRefusedError) as caught:
        session.rollback(steps=3, effects="compensate")
    assert [effect.words for effect in caught.value.report.unknown] == ["reserve(seat='B')"]
    (unknown,) = caught.value.report.unknown
    session.resolve(unknown.id, happened=True, result="seat B", note="still there")
    world.breaks = None
    session.rollback(steps=3, effects="compensate")
    assert world.done[4:] == ["unreserve B", "unreserve A"]
    assert session.notices == []


def test_the_undone_is_known_in_another_process(session):
    step(session, 1)
    reserve("A")
    session.rollback(effects="compensate")
    with Session("job", agent=Agent(), store=session.manager) as again:
        assert [effect.status for effect in again.effects] == ["undone"]
        assert again.notices == []
        reserve("A")
        assert world.done == ["reserve A", "unreserve A", "reserve A"]


def test_running_tools_are_in_the_way(session):
    step(session, 1)

    @tool
    def go_back():
        session.rollback()

    with pytest.raises(ConflictError, match="running: go_back"):
        go_back()


# -- files -----------------------------------------------------------------------------------------


def test_keep_unseen_leaves_alone_what_nobody_has_saved(session):
    step(session, 1)
    step(session, 2)
    place = session.workspace.path
    (place / "unseen.txt").write_text("mine")
    (place / "1.txt").write_text("changed by me")
    report = session.rollback(keep_unseen=True)
    assert session.agent.count == 1
    assert (place / "unseen.txt").read_text() == "mine"
    assert (place / "1.txt").read_text() == "changed by me"
    assert not (place / "2.txt").exists()
    assert "unseen.txt" in str(report)
    session.undo()
    assert (place / "2.txt").exists()


@pytest.mark.parametrize("keep_unseen", [False, True])
@pytest.mark.parametrize("name", ["2.txt", "came.txt"])
def test_only_what_was_previewed_is_done(session, name, keep_unseen):
    step(session, 1)
    step(session, 2)
    place = session.workspace.path
    (place / "unseen.txt").write_text("seen in the preview")
    shown = session.rollback(keep_unseen=keep_unseen, dry_run=True)
    (place / name).write_text("not seen")
    before, head = files_of(place), session.agent.count
    with pytest.raises(ConflictError, match="Files have changed since the preview"):
        session.rollback(shown.target, keep_unseen=keep_unseen, only_if=shown)
    assert (files_of(place), session.agent.count) == (before, head)
    shown = session.rollback(shown.target, keep_unseen=keep_unseen, dry_run=True)
    done = session.rollback(shown.target, keep_unseen=keep_unseen, only_if=shown)
    assert session.agent.count == 1
    assert done.id is not None
    assert (place / "unseen.txt").exists() == keep_unseen


def test_what_was_never_saved_is_held_by_the_safety_checkpoint(session):
    step(session, 1)
    place = session.workspace.path
    (place / "unseen.txt").write_text("mine")
    report = session.rollback(steps=0)
    assert not (place / "unseen.txt").exists()
    assert "in no other checkpoint: unseen.txt" in str(report)
    assert report.safety_id in str(report)
    session.undo()
    assert (place / "unseen.txt").read_text() == "mine"


# -- a load that fails -----------------------------------------------------------------------------


class Moody(Checkpointable):
    def __init__(self):
        self.mood = "good"

    def load_state_dict(self, state, strict=False):
        if self.mood == "stubborn":
            raise ValueError("I will not")
        return super().load_state_dict(state, strict)


def test_a_load_that_fails_takes_everything_back(store, place):
    agent, moody = Agent(1), Moody()
    session = Session("job", agent=agent, workspace=place, store=store, parts={"moody": moody})
    session.messages.append("one")
    session.save()
    agent.count = 2
    session.messages.append("two")
    moody.mood = "stubborn"
    (place / "new.txt").write_text("new")
    session.save()
    (place / "newer.txt").write_text("newer")
    before = present(session)
    for _ in range(2):
        with pytest.raises((ValueError, StateError), match="rejected the state"):
            session.rollback()
        assert present(session) == before
        assert moody.mood == "stubborn"
    moody.mood = "good again"
    session.save()
    session.rollback(to="job~1")
    agent, moody = Agent(), Moody()
    with Session("job", agent=agent, store=session.manager, parts={"moody": moody}) as again:
        assert again.drift is None
        assert again.manager.verify().ok


def test_the_head_after_a_load_that_failed_is_the_present(store, place):
    agent, moody = Agent(1), Moody()
    session = Session("job", agent=agent, workspace=place, store=store, parts={"moody": moody})
    session.save()
    agent.count, moody.mood = 2, "stubborn"
    (place / "new.txt").write_text("new")
    session.save()
    with pytest.raises((ValueError, StateError)):
        session.rollback()
    again = Agent()
    with Session("job", agent=again, store=session.manager) as resumed:
        assert again.count == 2
        assert (place / "new.txt").exists()
        assert resumed.drift is None


def test_after_a_load_that_failed_the_rollback_before_it_can_be_undone(store, place):
    agent, moody = Agent(1), Moody()
    parts = {"moody": moody}
    with Session("job", agent=agent, workspace=place, store=store, parts=parts) as session:
        session.save()
        agent.count = 2
        session.save()
        session.rollback()
        moody.mood = "stubborn"
        with pytest.raises((ValueError, StateError)):
            session.rollback(steps=0)
        moody.mood = "good"
        assert agent.count == 1
        session.undo()
        assert agent.count == 2


def test_each_rollback_is_in_the_history(session):
    first = step(session, 1)
    step(session, 2)
    report = session.rollback()
    rows = session.history(2)
    assert [row["kind"] for row in rows] == ["rollback", "safety"]
    assert rows[0]["id"] == report.id
    assert rows[0]["parents"] == [first]
    assert rows[0]["label"] == "step 1"
    assert rows[1]["id"] == report.safety_id


def test_many_safety_checkpoints_do_not_pile_up(tmp_path):
    with Session("job", agent=Agent(), store=CheckpointManager()) as session:
        for number in range(15):
            session.agent.count = number
            session.save()
            session.rollback(steps=1)
        kinds = [row["kind"] for row in session.history()]
        assert kinds.count("safety") == 10
        session.undo()
        assert session.agent.count == 14


class TestWhatTheStateHasAgain:
    """Effects that were compensated, and a state that was taken back."""

    def test_undo_says_what_stays_undone(self, session):
        good = session.save()
        reserve("A")
        reserve("B")
        session.rollback(to=good, effects="compensate")
        assert session.notices == []
        report = session.undo()
        assert world.done[-2:] == ["unreserve B", "unreserve A"]
        assert [effect.words for effect in report.gone] == [
            "reserve(seat='A')",
            "reserve(seat='B')",
        ]
        assert len(report.notices) == 2
        assert "reserve(seat='A')" in report.notices[0]
        assert "is no longer in place" in report.notices[0]
        assert "although the restored state has the result" in str(report)
        assert session.notices == report.notices

    def test_it_is_told_until_it_is_done_again_or_gone_back(self, session):
        good = session.save()
        reserve("A")
        reserve("B")
        session.rollback(to=good, effects="compensate")
        session.undo()
        reserve("A")
        assert world.done[-1] == "reserve A"
        (notice,) = session.notices
        assert "reserve(seat='B')" in notice
        session.save()
        again = Session("job", agent=Agent(), store=session.manager)
        assert notice in again.notices
        again.rollback(to=good, effects="warn")
        assert not any("is no longer in place" in item for item in again.notices)
        again.close()

    def test_a_state_that_never_knew_it_says_nothing(self, session):
        good = session.save()
        reserve("A")
        session.rollback(to=good, effects="compensate")
        session.save()
        count_up(session.agent)
        session.rollback(steps=1)
        report = session.undo()
        assert report.gone == []
        assert session.notices == []

    def test_files_alone_change_nothing_of_it(self, session):
        good = session.save()
        reserve("A")
        session.rollback(to=good, effects="compensate")
        session.undo()
        told = session.notices
        session.rollback(steps=1, parts=["workspace"])
        assert session.notices == told

    def test_a_compensation_that_stops_half_way_says_so(self, session):
        session.save()
        reserve("A")
        reserve("B")
        world.breaks = "A"
        with pytest.raises(RollbackRefusedError) as caught:
            session.rollback(steps=2, effects="compensate")
        assert [effect.words for effect in caught.value.report.gone] == ["reserve(seat='B')"]
        assert any("'B'" in item and "is no longer in place" in item for item in session.notices)


def test_the_oldest_safety_checkpoint_is_kept_until_it_was_gone_back_to(tmp_path, monkeypatch):
    with Session("work", agent=Agent(), store=tmp_path / "store") as session:
        first = session.save(label="first")
        safeties = []
        for number in range(10):
            session.agent.count = number + 1
            safeties.append(session.rollback(to=first).safety_id)
        with monkeypatch.context() as patch:
            patch.setattr(Rollback, "_restore", Mock(side_effect=StorageError("full")))
            with pytest.raises(StorageError):
                session.rollback(to=safeties[0])
        session.rollback(to=safeties[0])
        assert session.agent.count == 1
