"""Adopting a fork: when it may be, what becomes of everything, and back again."""

import gc

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    EffectConflictError,
    EffectUnknownError,
    External,
    InvalidInputError,
    NotFoundError,
    RollbackRefusedError,
    Session,
    WorkspaceError,
    tool,
)
from agent_checkpoint.session.branch.adopt import Adoption
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.workspace.workspace import Workspace
from tests.agents import Agent
from tests.team_stores import TEAM_STORES, team_store
from tests.unit.session.places import files_of

sent = []


@pytest.fixture(autouse=True)
def nothing_was_sent():
    sent.clear()


@tool
def note(agent, text):
    agent.memory.append(text)


@tool(effect="reversible", key=lambda to: to, undo=lambda to: sent.remove(to))
def book(to):
    sent.append(to)
    return f"booked {to}"


@tool(effect="irreversible", key=lambda to: to)
def send(to):
    sent.append(to)
    return f"sent {to}"


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


def work(branch):
    """Change everything."""
    with as_current(branch._tools):
        _work(branch)


def _work(branch):
    note(branch.agent, branch.key)
    branch.messages.append(f"from {branch.key}")
    for task in branch.tasks(["edit"]):
        with task:
            (branch.workspace.path / "src/app.py").write_text(f"print({branch.key!r})\n")
            (branch.workspace.path / "run.sh").unlink()
            (branch.workspace.path / "new").write_text(branch.key)


def everything(session):
    return (
        list(session.agent.memory),
        list(session.messages),
        len(session.calls),
        [(task.id, task.status) for task in session.tasks],
        files_of(session.workspace.path),
    )


def test_the_winner_becomes_the_present(session, place):
    with session.fork("try") as branch:
        work(branch)
        after = everything(branch)
        report = session.adopt(branch)
        assert not branch._state.is_open
    assert everything(session) == after
    assert session.head == report.id
    head = session.history(1)[0]
    assert head["kind"] == "adopt"
    assert head["parents"] == [session.manager.history("try")[-1]["parents"][0], report.target]
    assert session.agent.memory[-1] == "try"


def test_adopt_then_undo_is_exact(session):
    before = everything(session)
    with session.fork("try") as branch:
        work(branch)
        session.adopt(branch)
    assert everything(session) != before
    session.undo()
    assert everything(session) == before
    session.undo()
    assert session.agent.memory[-1] == "try"


@pytest.mark.parametrize("how", ["steps", "id"])
def test_adopt_then_rollback_is_exact(session, how):
    before = everything(session)
    with session.fork("try") as branch:
        work(branch)
        report = session.adopt(branch)
    if how == "steps":
        session.rollback(steps=1)
    else:
        session.rollback(to=report.safety_id)
    assert everything(session) == before


def test_what_was_adopted_is_there_when_it_is_opened_again(session, place):
    with session.fork("try") as branch:
        work(branch)
        after = everything(branch)
    session.adopt("try")
    store = session.manager
    session.close()
    with Session("work", agent=Agent(), store=store) as again:
        assert again.workspace.path == place
        assert again.drift is None
        assert everything(again) == after


def test_one_of_two(session):
    one, two = session.fork("one"), session.fork("two")
    for branch in (one, two):
        work(branch)
    session.adopt(two)
    assert session.agent.memory == ["first", "two"]
    with pytest.raises(ConflictError, match="changed since"):
        session.adopt(one)
    session.undo()
    session.adopt(one)
    assert session.agent.memory == ["first", "one"]


@pytest.mark.parametrize("what", ["state", "message", "file", "call"])
@pytest.mark.parametrize("saved", [True, False])
def test_a_session_that_has_gone_on(session, place, what, saved):
    branch = session.fork("try")
    work(branch)
    if what == "state":
        session.agent.count = 7
    elif what == "message":
        session.messages.append("later")
    elif what == "file":
        (place / "later").touch()
    else:
        note(session.agent, "later")
    if saved:
        session.save()
    before = everything(session)
    with pytest.raises(ConflictError, match=r"changed since work_.*merge="):
        session.adopt(branch)
    assert everything(session) == before
    assert branch._state.is_open
    note(session.agent, "and on it goes")


def test_what_is_no_fork_of_it(session, store):
    with Session("other", store=session.manager):
        pass
    with pytest.raises(InvalidInputError, match="not a checkpoint of a fork of the session 'work'"):
        session.adopt("other")
    with session.fork("one") as one, one.fork("two") as two:
        with pytest.raises(InvalidInputError, match="into its parent fork first"):
            session.adopt(two)
        note(two.agent, "deep")
        one.adopt(two)
        session.adopt(one)
    assert session.agent.memory == ["first", "deep"]
    with pytest.raises(NotFoundError):
        session.adopt("nobody")
    with pytest.raises(InvalidInputError, match="merge"):
        session.adopt("one", merge="everything")


def test_while_a_tool_runs(session):
    branch = session.fork("try")

    @tool
    def adopt_it():
        session.adopt(branch)

    with pytest.raises(ConflictError, match="Tools are running"):
        adopt_it()


def test_a_fork_of_an_earlier_moment_after_going_back_there(session):
    then = session.head
    note(session.agent, "second")
    branch = session.fork("try", at=then)
    with as_current(branch._tools):
        note(branch.agent, "other")
    with pytest.raises(ConflictError):
        session.adopt(branch)
    session.rollback(to=then)
    session.adopt(branch)
    assert session.agent.memory == ["first", "other"]


# -- the outside ---------------------------------------------------------------------------------


def test_what_the_fork_did_is_the_sessions_own(session):
    with session.fork("try", effects="allow") as branch:
        send("ann")
        book("room")
        session.adopt(branch)
    assert [effect.words for effect in session.effects] == ["send(to='ann')", "book(to='room')"]
    assert send("ann") == "sent ann"
    assert session.notices == []
    assert sent == ["ann", "room"]


def test_undoing_the_adopt_tells_what_stands(session):
    with session.fork("try", effects="allow") as branch:
        send("ann")
        session.adopt(branch)
    with pytest.raises(RollbackRefusedError, match=r"irreversible(.|\n)*send \["):
        session.rollback(steps=1)
    session.undo()
    assert any("send(to='ann')" in words for words in session.notices)
    assert send("ann") == "sent ann"
    assert sent == ["ann"]


def test_what_is_reversible_is_undone_with_the_adopt(session):
    with session.fork("try") as branch:
        book("room")
        session.adopt(branch)
    session.rollback(steps=1, effects="compensate")
    assert sent == []


def test_the_effects_of_another_fork_stay_in_the_way(session):
    with session.fork("one", effects="allow") as one:
        send("ann")
        note(one.agent, "x")
    with session.fork("two") as two:
        note(two.agent, "y")
        session.adopt(two)
    with pytest.raises(EffectConflictError):
        send("ann")


def test_what_a_fork_did_after_its_last_checkpoint_is_told(session):
    branch = session.fork("try", effects="allow")
    head = branch.head
    with as_current(branch._tools):
        send("ann")
    branch.close()
    session.adopt(head)
    assert any("send(to='ann')" in words for words in session.notices)
    assert send("ann") == "sent ann"
    assert sent == ["ann"]


# -- when it fails -------------------------------------------------------------------------------


class Broken(Exception):
    pass


def test_files_that_cannot_be_set_leave_everything_as_it_was(session, monkeypatch):
    with session.fork("try") as branch:
        work(branch)
    before = everything(session)

    def refuse(*args, **options):
        raise WorkspaceError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "restore_held", refuse)
        with pytest.raises(WorkspaceError, match="no room"):
            session.adopt("try")
    assert everything(session) == before
    session.adopt("try")
    assert session.agent.memory == ["first", "try"]


def test_a_crash_after_the_decision_is_made_good(session, store, place, monkeypatch):
    with session.fork("try") as branch:
        work(branch)
        after = everything(branch)
    manager = session.manager

    class Killed(BaseException):
        pass

    def die(self, safety, decision):
        decision.append(None)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Adoption, "_restore_parts", die)
        patch.setattr(Adoption, "_abort", lambda *args: None)  # a kill aborts nothing
        with pytest.raises(Killed):
            session.adopt("try")
        session.close()
    with Session("work", agent=Agent(), store=manager) as again:
        assert everything(again) == after
        assert again.drift is None


# -- files alone ---------------------------------------------------------------------------------


def test_edits_of_different_files_are_joined(session, place):
    one, two = session.fork("one"), session.fork("two")
    (one.workspace.path / "src/app.py").write_text("one\n")
    (one.workspace.path / "new").mkdir()
    (one.workspace.path / "new/one").write_text("1")
    (two.workspace.path / "run.sh").unlink()
    (two.workspace.path / "new").mkdir()
    (two.workspace.path / "new/two").write_text("2")
    two.agent.memory.append("not taken")
    session.adopt(one)
    report = session.adopt(two, merge="files")
    names = {name: text for name, (text, _) in files_of(place).items()}
    assert names == {"src/app.py": "one\n", "new/one": "1", "new/two": "2"}
    assert session.agent.memory == ["first"]
    assert report.parts == ["workspace"]
    assert session.history(1)[0]["kind"] == "adopt"
    assert session.history(1)[0]["parents"][1].startswith("two_")
    session.undo()
    assert set(files_of(place)) == {"src/app.py", "run.sh", "new/one"}


def test_the_session_may_have_gone_on(session, place):
    branch = session.fork("try")
    (branch.workspace.path / "there").write_text("t")
    note(session.agent, "here")
    (place / "here").write_text("h")
    session.adopt(branch, merge="files")
    assert {"here", "there"} <= set(files_of(place))
    assert session.agent.memory == ["first", "here"]


def test_conflicts_are_named_and_nothing_is_done(session, place):
    branch = session.fork("try")
    for root in (branch.workspace.path, place):
        (root / "src/app.py").write_text(f"{root}\n")
        (root / "same").write_text("equal in both")
    (branch.workspace.path / "there").write_text("t")
    before = everything(session)
    with pytest.raises(ConflictError, match=r"both changed 'src/app.py'\."):
        session.adopt(branch, merge="files")
    assert everything(session) == before
    (place / "src/app.py").write_text(f"{branch.workspace.path}\n")
    session.adopt(branch, merge="files")
    assert (place / "there").exists()


def test_what_the_fork_did_outside_is_told_when_its_files_are_taken(session):
    with session.fork("try", effects="allow") as branch:
        send("ann")
        (branch.workspace.path / "letter").touch()
        report = session.adopt(branch, merge="files")
    assert "send(to='ann')" in report.notices[0]
    assert "send(to='ann')" in session.notices[0]
    assert send("ann") == "sent ann"


def test_no_files_no_merge(store):
    with Session("work", agent=Agent(), store=store) as session:
        session.fork("try").close()
        with pytest.raises(InvalidInputError, match="no files"):
            session.adopt("try", merge="files")


def test_a_fork_that_nobody_holds_is_closed_with_the_session(store, place, own_home):
    with Session("work", workspace=place, store=store) as session:
        session.fork("try")
        gc.collect()
    left = own_home / "store/branches"
    assert not left.exists() or not list(left.iterdir())


def test_adopted_undone_and_adopted_again(session):
    with session.fork("try", effects="allow") as branch:
        send("ann")
        session.adopt(branch)
    session.undo()
    assert len(session.notices) == 1
    session.adopt("try")
    assert session.notices == []
    assert len(session.calls) == 2


def test_what_is_held_elsewhere_stays_as_it_is(tmp_path):
    restored, taken = [], []
    db = External("db", take=lambda: taken.append(1) or len(taken), restore=restored.append)
    session = Session("work", agent=Agent(), parts={"db": db}, store=tmp_path / "s")
    with session, session.fork("try") as branch:
        note(branch.agent, "x")
        report = session.adopt(branch)
    assert sorted(report.parts) == ["agent", "calls"]
    assert restored == []


@pytest.mark.parametrize(("before", "after"), [(0, False), (1, 1.0), (1, True), (0.0, -0.0)])
@pytest.mark.parametrize("who", ["fork", "session"])
def test_values_that_only_look_the_same(session, before, after, who):
    session.agent.count = before
    with session.fork("try") as branch:
        (branch if who == "fork" else session).agent.count = after
        if who == "session":
            with pytest.raises(ConflictError):
                session.adopt(branch)
            return
        session.adopt(branch)
    assert repr(session.agent.count) == repr(after)


def test_a_fork_whose_tool_is_running(session):
    with session.fork("try") as branch:

        @tool
        def adopt_me():
            session.adopt(branch)

        with pytest.raises(ConflictError, match=r"running: adopt_me.*adopt it"):
            adopt_me()


def test_a_fork_of_what_was_adopted(session):
    with session.fork("one") as one:
        note(one.agent, "one")
        then = one.head
        note(one.agent, "more")
        session.adopt(one)
    with session.fork("two", at=then) as two:
        note(two.agent, "two")
    with pytest.raises(ConflictError):
        session.adopt("two")
    session.rollback(to=then)
    session.adopt("two")
    assert session.agent.memory == ["first", "one", "two"]


@pytest.mark.parametrize("what", [5, object(), ["x"]])
def test_what_cannot_be_adopted(session, what):
    with pytest.raises(InvalidInputError, match="adopt takes"):
        session.adopt(what)


def test_an_unknown_outcome_of_the_fork_is_told(session):
    class Killed(BaseException):
        pass

    @tool(effect="irreversible", key=lambda to: to)
    def call(to):
        raise Killed

    branch = session.fork("try", effects="allow")
    with as_current(branch._tools), pytest.raises(Killed):
        call("ann")
    session.adopt(branch)
    (words,) = session.notices
    assert "call(to='ann')" in words
    assert "outcome unknown" in words
    with pytest.raises(EffectUnknownError):
        call("ann")


def test_the_mode_of_a_directory_stays_ours(session, place):
    branch = session.fork("try")
    (branch.workspace.path / "src/new").write_text("x")
    (place / "src").chmod(0o700)
    session.adopt(branch, merge="files")
    assert (place / "src/new").exists()
    assert (place / "src").stat().st_mode & 0o777 == 0o700


def test_an_interrupt_while_files_are_set(session, place, monkeypatch):
    with session.fork("try") as branch:
        work(branch)
    before = everything(session)
    real = Workspace.restore_held

    def interrupted(self, *args, **options):
        real(self, *args, **options)
        raise KeyboardInterrupt

    for merge in (None, "files"):
        with monkeypatch.context() as patch:
            patch.setattr(Workspace, "restore_held", interrupted)
            with pytest.raises(KeyboardInterrupt):
                session.adopt("try", merge=merge)
        assert everything(session) == before
    session.adopt("try")
    assert session.agent.memory == ["first", "try"]
