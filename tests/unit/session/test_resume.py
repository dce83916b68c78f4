"""A session that goes on where it stopped: parts, places, machines, versions, old holders."""

import os
import secrets
import shutil
from contextlib import contextmanager

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    Log,
    Session,
    Workspace,
    register_migration,
    tool,
)
from agent_checkpoint.errors import (
    ConflictError,
    EffectError,
    InvalidInputError,
    MigrationError,
    NotFoundError,
    WorkspaceError,
)
from agent_checkpoint.session.checkpoint_writer import CheckpointWriter
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.workspace.restore.journal import Decision
from agent_checkpoint.workspace.scan.walk import STAGING
from tests.agents import Agent, Planner, TorchLike
from tests.unit.session.places import files_of
from tests.unit.session.stores import Killed


@tool
def remember(agent, words):
    agent.memory.append(words)
    return len(agent.memory)


@tool(effect="irreversible")
def shout(words):
    _heard.append(words)
    return f"heard {words}"


_heard = []


@pytest.fixture(autouse=True)
def silence():
    _heard.clear()


@contextmanager
def killed():
    """Let what is in the block be stopped as by a kill: no `with` of the session saves anything."""
    with pytest.raises(Killed):
        yield


# -- every part ------------------------------------------------------------------------------------


def test_every_part_comes_back(store, place):
    agent, planner, torch = Agent(), Planner(), TorchLike()
    parts = {"planner": planner, "torch": torch, "log": Log(["a"])}
    with Session("job", agent=agent, workspace=place, store=store, parts=parts) as session:
        assert not session.resumed
        assert session.notices == []
        session.messages.append({"role": "user", "content": "héllo", "when": (1, 2)})
        planner.plan.append("act")
        torch.weights = {"w": [1.0, 2.0]}
        parts["log"].append({"b": 2})
        for task in session.tasks(["one", "two"]):
            with task:
                (place / f"{task.id}.txt").write_text(task.id)
                remember(agent, task.id)
                task.result, task.note = {"n": 1}, "fine"
                if task.id == "two":
                    task.skip("no need")
        calls = list(session.calls)
    agent, parts = Agent(), {"planner": Planner(), "torch": TorchLike(), "log": Log()}
    with Session("job", agent=agent, store=store, parts=parts) as session:
        assert session.resumed
        assert session.drift is None
        assert session.notices == []
        assert session.agent is agent
        assert agent.memory == ["one", "two"]
        assert list(session.messages) == [{"role": "user", "content": "héllo", "when": (1, 2)}]
        assert list(session.calls) == calls
        assert [row["tool"] for row in calls] == ["remember", "remember"]
        assert [(task.id, task.status, task.result, task.note) for task in session.tasks] == [
            ("one", "completed", {"n": 1}, "fine"),
            ("two", "skipped", {"n": 1}, "no need"),
        ]
        assert list(session.tasks(["one", "two"])) == []
        assert parts["planner"].plan == ["think", "act"]
        assert parts["torch"].weights == {"w": [1.0, 2.0]}
        assert list(parts["log"]) == ["a", {"b": 2}]
        assert session.workspace.path == place
        assert files_of(place)["one.txt"] == ("one", files_of(place)["one.txt"][1])
        assert session.manager.verify().ok


@pytest.mark.parametrize("kind", ["path", "text", "url", "manager", "none"])
def test_what_a_store_may_be(kind, tmp_path):
    given = {
        "path": tmp_path / "store",
        "text": str(tmp_path / "store"),
        "url": f"sqlite://{tmp_path}/store",
        "manager": CheckpointManager(backend="sqlite", path=tmp_path / "store"),
        "none": None,
    }[kind]
    with Session("job", agent=Agent(7), store=given) as session:
        session.messages.append("hello")
    agent = Agent()
    with Session("job", agent=agent, store=given) as session:
        assert session.resumed
        assert agent.count == 7
    if kind == "manager":
        assert given.list_keys() == ["job"]  # it is not the session's, and stays open
        given.close()
    else:
        path = None if kind == "none" else tmp_path / "store"
        with CheckpointManager(backend="sqlite", path=path) as manager:
            assert manager.list_keys() == ["job"]


@pytest.mark.parametrize(
    "options",
    [
        {"every": "never"},
        {"every": 0},
        {"every": True},
        {"on_drift": "panic"},
        {"agent": object()},
        {"agent": {}},
        {"parts": {"messages": Agent()}},
        {"parts": {"workspace": Agent()}},
        {"parts": {"session": Agent()}},
        {"parts": {"x": 5}},
        {"parts": {"\ud800": Agent()}},
        {"workspace": "/nowhere at all"},
        {"store": 5},
    ],
)
def test_options_that_make_no_sense_leave_nothing(options, tmp_path):
    manager = CheckpointManager()
    with pytest.raises((InvalidInputError, WorkspaceError)):
        Session("job", **{"store": manager, **options})
    assert manager.list_keys() == []


def test_a_closed_session_does_nothing(store):
    session = Session("job", agent=Agent(), store=store)
    session.close()
    session.close()
    for verb in (session.save, session.rollback, session.undo, session.carry_out):
        with pytest.raises(InvalidInputError, match="closed"):
            verb()
    with pytest.raises(InvalidInputError, match="closed"), session:
        pass


def test_an_error_is_saved_and_passed_on(store):
    agent = Agent()
    with pytest.raises(ValueError, match="oh"), Session("job", agent=agent, store=store):
        agent.count = 5
        raise ValueError("oh")
    agent = Agent()
    with Session("job", agent=agent, store=store) as session:
        assert agent.count == 5
        assert "stopped by ValueError" in [row["label"] for row in session.history()]


def test_a_step_without_changes_writes_next_to_nothing(tmp_path, place):
    with Session("job", agent=Agent(), workspace=place, store=tmp_path / "store") as session:
        session.messages.extend({"n": n, "text": "x" * 50} for n in range(2000))
        session.save()
        before = {info.id for info in session.manager.store.backend.list_objects()}
        for _ in range(5):
            session.save()
        assert {info.id for info in session.manager.store.backend.list_objects()} == before


# -- parts that come and go ------------------------------------------------------------------------


def test_without_its_agent_the_part_goes_along_untouched(store, place):
    with Session("job", agent=Agent(3), workspace=place, store=store) as session:
        session.messages.append("one")
    with Session("job", store=store) as session:
        assert session.agent is None
        session.messages.append("two")
        session.save()
        session.rollback(steps=0)
    agent = Agent()
    with Session("job", agent=agent, store=store) as session:
        assert agent.count == 3
        assert list(session.messages) == ["one", "two"]


def test_a_part_that_is_new_is_told_and_saved(store):
    with Session("job", agent=Agent(1), store=store) as session:
        session.save()
    planner = Planner()
    planner.plan.append("new")
    with Session("job", store=store, parts={"planner": planner}) as session:
        assert session.notices == ["New parts, not in the checkpoint: planner."]
        assert planner.plan == ["think", "new"]
    agent, planner = Agent(), Planner()
    with Session("job", agent=agent, store=store, parts={"planner": planner}) as session:
        assert session.notices == []
        assert (agent.count, planner.plan) == (1, ["think", "new"])


def test_tasks_that_the_code_adds_or_drops_are_told(store):
    with Session("job", store=store) as session:
        for task in session.tasks(["a", "b"]):
            with task:
                pass
    with Session("job", store=store) as session:
        assert [task.id for task in session.tasks(["b", "c"])] == ["c"]
        assert "New tasks, not in the checkpoint: c." in session.notices
        assert "Tasks in the checkpoint that the code no longer lists: a." in session.notices


def test_a_key_that_a_manager_has_saved_becomes_a_session(store):
    manager = store if isinstance(store, CheckpointManager) else None
    own = manager or Session("other", store=store).manager
    own.save("job", Agent(4))
    own.save("job", Agent(5))
    agent = Agent()
    with Session("job", agent=agent, store=own) as session:
        assert session.resumed
        assert agent.count == 5
        session.rollback(steps=1)
        assert agent.count == 4


def test_what_a_manager_saved_keeps_its_ledger_over_a_crash(store):
    """The first save may never come: what was done outside before it must still be known."""
    manager = store if isinstance(store, CheckpointManager) else Session("o", store=store).manager
    manager.save("job", Agent(5))
    first = Session("job", store=manager)
    with as_current(first._tools), pytest.raises(OSError, match="no more"):
        first._state.writer._write = _refusing
        shout("once")
    with Session("job", store=manager, agent=Agent()) as session:
        assert [effect.words for effect in session.effects] == ["shout(words='once')"]
        assert shout("once") == "heard once"
    assert _heard == ["once"]


def _refusing(*args):
    raise OSError("no more")


def test_what_was_done_after_the_last_save_is_told_after_a_crash(store):
    """The state of the last checkpoint does not know of it: nobody but a notice says so."""
    session = Session("job", store=store, every="manual")
    manager = session.manager
    session.save()
    with as_current(session._tools):
        shout("once")
    for _ in range(2):  # also if that one stops before it has saved
        session = Session("job", store=manager, every="manual")
        (notice,) = session.notices
        assert notice.startswith("shout(words='once') was executed at 20")
        assert "and is still in place" in notice
    session.save()
    with Session("job", store=manager) as session:
        assert len(session.notices) == 1
        assert shout("once") == "heard once"
        assert session.notices == []
    with Session("job", store=manager) as session:
        assert session.notices == []
    assert _heard == ["once"]


def test_a_fork_keeps_its_agent_over_a_crash(store):
    """A fork's opening has notes of its own, and everything else of its parent."""
    with Session("job", agent=Agent(5), store=store) as session:
        session.messages.append("one")
        session.save()
        session.manager.fork("job", "try")
        manager = session.manager
        for _ in range(2):  # the first saves nothing
            agent = Agent()
            fork = Session("try", agent=agent, store=manager)
            assert (agent.count, list(fork.messages)) == (5, ["one"])
            fork.close()


# -- when it is saved ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "saved"), [("tool", 6), ("task", 0), (2, 3), (4, 1), ("manual", 0)]
)
def test_every(every, saved, store):
    agent = Agent()
    with Session("job", agent=agent, store=store, every=every) as session:
        before = len(session.history())
        for number in range(6):
            remember(agent, number)
        assert len(session.history()) - before == saved
        for task in session.tasks(["one"]):
            with task:
                pass
        assert len(session.history()) - before == saved + (0 if every == "manual" else 2)
        session.save(label="by hand", tags=["good"], metrics={"score": 1})
        newest = session.history(1)[0]
        assert (newest["label"], newest["tags"], newest["metrics"]) == (
            "by hand",
            ["good"],
            {"score": 1.0},
        )
        agent.count = 99
    agent = Agent()
    with Session("job", agent=agent, store=store) as session:
        assert agent.memory == list(range(6))
        assert agent.count == (0 if every == "manual" else 99)


# -- another machine -------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["missing", "empty", "only staging"])
def test_on_another_machine_the_files_are_restored(tmp_path, place, there):
    with Session("job", workspace=place, store=tmp_path / "store") as session:
        (place / "new.txt").write_text("new")
        session.save()
    before = files_of(place)
    shutil.rmtree(place)
    if there != "missing":
        place.mkdir()
    if there == "only staging":  # a restore was killed before its journal was durable
        (place / STAGING.decode()).mkdir()
    with Session("job", store=tmp_path / "store") as session:
        assert files_of(place) == before
        assert session.drift is None
        assert session.notices == []
        assert os.access(place / "run.sh", os.X_OK)


@pytest.mark.parametrize("there", ["missing", "empty", "only staging"])
def test_in_another_directory_the_files_are_restored(tmp_path, place, there):
    with Session("job", workspace=place, store=tmp_path / "store"):
        pass
    before, other = files_of(place), tmp_path / "deep/other"
    if there != "missing":
        other.mkdir(parents=True)
    if there == "only staging":
        (other / STAGING.decode()).mkdir()
    session = Session("job", workspace=other, store=tmp_path / "store")
    assert files_of(other) == before
    session.close()  # nothing was saved since it was opened
    with Session("job", store=tmp_path / "store") as session:
        assert session.workspace.path == other
    with Session("job", workspace=other, store=tmp_path / "store") as session:
        assert session.drift is None


def test_in_another_directory_with_files_it_is_refused(tmp_path, place):
    with Session("job", workspace=place, store=tmp_path / "store") as session:
        session.save()
        length = len(session.history())
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"rebind=True"):
        Session("job", workspace=other, store=tmp_path / "store")
    assert files_of(other).keys() == {"mine.txt"}
    with Session("job", workspace=other, store=tmp_path / "store", rebind=True) as session:
        assert len(session.history()) == length + 3  # the last of before, the opening, its drift
        assert files_of(other).keys() == {"mine.txt"}
        assert session.drift.added == ["mine.txt"]
        session.rollback(steps=1)
        assert files_of(other) == files_of(place)


def test_the_workspace_may_be_one_of_the_users(tmp_path, place):
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "store")
    workspace = Workspace(place, manager.store, ignore=["*.log"])
    with manager, Session("job", workspace=workspace, store=manager) as session:
        assert session.workspace is workspace
        (place / "x.log").write_text("not captured")
        (place / "a.txt").write_text("a")
        session.save()
        (place / "a.txt").write_text("b")
        session.save()
        session.rollback()
        assert (place / "a.txt").read_text() == "a"
        assert (place / "x.log").exists()


def test_a_workspace_of_another_store_works_too(tmp_path, place):
    own = CheckpointManager(backend="sqlite", path=tmp_path / "own")
    workspace = Workspace(place, own.store, ignore=["*.log"])
    with own, Session("job", workspace=workspace, store=tmp_path / "store") as session:
        (place / "x.log").write_text("not captured")
        (place / "a.txt").write_text("a")
        session.save()
        (place / "a.txt").write_text("b")
        session.save()
        session.rollback()
        assert (place / "a.txt").read_text() == "a"
        assert (place / "x.log").exists()
        assert own.list_keys() == []
    workspace.close()


# -- versions --------------------------------------------------------------------------------------


def versions():
    """Return two versions of a class whose name nobody else has."""
    name = f"Versioned{secrets.token_hex(4)}"

    def init(self):
        self.words = []

    def init_2(self):
        self.sentences = []

    old = type(name, (Checkpointable,), {"__init__": init})
    new = type(
        name,
        (Checkpointable,),
        {"__init__": init_2, "_checkpoint_version": lambda self: "2.0"},
    )
    return name, old, new


def test_an_older_agent_is_migrated(store, place):
    name, old, new = versions()
    agent = old()
    with Session("job", agent=agent, workspace=place, store=store) as session:
        agent.words.append("a")
        session.save()
        agent.words.append("b")
        (place / "x").touch()
    register_migration(name, "1.0", lambda state: {"sentences": [state["words"]]})
    agent = new()
    with Session("job", agent=agent, store=store) as session:
        assert agent.sentences == [["a", "b"]]
        session.rollback(steps=1)  # to a checkpoint of the older version
        assert agent.sentences == [["a"]]
        assert not (place / "x").exists()
        session.save()
    agent = new()
    with Session("job", agent=agent, store=store):
        assert agent.sentences == [["a"]]


def test_without_a_migration_nothing_is_lost(store, place):
    name, old, new = versions()
    agent = old()
    with Session("job", agent=agent, workspace=place, store=store) as session:
        agent.words.append("a")
        session.messages.append("hello")
    before = files_of(place)
    fresh, agent = new(), old()
    holder = Session("job", agent=agent, store=store)
    length = len(holder.history())
    for _ in range(2):
        with pytest.raises(MigrationError, match=rf"{name}.*1\.0") as caught:
            Session("job", agent=fresh, store=holder.manager)
        assert "register_migration" in str(caught.value)
    assert fresh.sentences == []
    assert files_of(place) == before
    assert len(holder.history()) == length
    holder.save()  # who could open it is not disturbed by who could not
    holder.close()
    agent = old()
    with Session("job", agent=agent, store=store) as session:  # the older code still has it all
        assert agent.words == ["a"]
        assert list(session.messages) == ["hello"]
        assert session.manager.list_keys() == ["job"]


# -- old holders -----------------------------------------------------------------------------------


def test_who_held_it_before_does_nothing_more(store, place):
    manager = store if isinstance(store, CheckpointManager) else None
    agent = Agent()
    old = Session("job", agent=agent, workspace=place, store=store)
    manager = manager or old.manager
    agent.count = 1
    old.save()
    taken = Agent()
    new = Session("job", agent=taken, store=manager)
    assert taken.count == 1
    agent.count = 2
    with pytest.raises(ConflictError, match="opened again elsewhere"):
        old.save()
    with as_current(old._tools), pytest.raises(ConflictError):
        shout("too late")
    assert _heard == []
    with pytest.raises(ConflictError):
        old.rollback()
    taken.count = 3
    new.save()
    with as_current(new._tools):
        shout("now")
    assert _heard == ["now"]
    new.close()
    last = Agent()
    with Session("job", agent=last, store=manager) as session:
        assert last.count == 3
        assert session.notices == []
    old.close()


def test_the_with_of_an_old_holder_tells(store):
    manager = store if isinstance(store, CheckpointManager) else Session("o", store=store).manager
    with pytest.raises(ConflictError), Session("job", store=manager):
        Session("job", store=manager)


def test_a_manager_that_saves_to_the_key_takes_over(store):
    manager = store if isinstance(store, CheckpointManager) else Session("o", store=store).manager
    session = Session("job", agent=Agent(1), store=manager)
    manager.save("job", Agent(9))
    with pytest.raises(ConflictError):
        session.save()
    session.close()


# -- stopped in the middle of a rollback -----------------------------------------------------------

STOPS = ["before the move", "before the files", "after the files", "before it is noted"]


def stop_at(monkeypatch, point):
    """Have the next rollback stop at a point, as by a kill."""

    def stop(*args, **kwargs):
        raise Killed

    if point == "before the move":
        monkeypatch.setattr(Rollback, "_apply", stop)
    elif point == "before it is noted":
        monkeypatch.setattr(Rollback, "finish", stop)
    else:
        real = Rollback._restore_parts

        def restore_parts(self, safety, decision):
            def append(plan):
                if decision is not None:
                    decision.append(plan)
                if point == "before the files":
                    raise Killed

            real(self, safety, Decision(() if decision is None else decision.parents, append))
            raise Killed

        monkeypatch.setattr(Rollback, "_restore_parts", restore_parts)
        monkeypatch.setattr(Rollback, "_abort", lambda *args: None)  # a kill aborts nothing


@pytest.mark.parametrize("on_drift", ["keep", "restore", "raise"])
@pytest.mark.parametrize("point", STOPS)
@pytest.mark.slow
def test_a_rollback_that_was_stopped_is_finished(store, place, monkeypatch, point, on_drift):
    agent = Agent(1)
    session = Session("job", agent=agent, workspace=place, store=store)
    manager = session.manager
    before = files_of(place)
    agent.count = 2
    (place / "src/app.py").write_text("print(2)\n")
    (place / "new.txt").write_text("new")
    session.save()
    after = files_of(place)
    with monkeypatch.context() as patch, killed():
        stop_at(patch, point)
        session.rollback()
    agent = Agent()
    with Session("job", agent=agent, store=manager, on_drift=on_drift) as session:
        assert session.drift is None
        if point == "before the move":  # it has not gone back, and nothing has changed
            assert (agent.count, files_of(place)) == (2, after)
        else:
            assert (agent.count, files_of(place)) == (1, before)
            session.undo()
            assert (agent.count, files_of(place)) == (2, after)
        assert manager.verify().ok
    assert not list(place.parent.rglob(".agent-checkpoint-restore*"))


def test_a_rollback_that_was_stopped_twice_is_finished(store, place, monkeypatch):
    session = Session("job", workspace=place, store=store)
    manager, before = session.manager, files_of(place)
    (place / "new.txt").write_text("new")
    session.save()
    with monkeypatch.context() as patch, killed():
        stop_at(patch, "before the files")
        session.rollback()
    with monkeypatch.context() as patch, killed():
        stop_at(patch, "before the files")
        Session("job", store=manager)
    (place / "later.txt").write_text("somebody's")
    with Session("job", store=manager):
        assert files_of(place).keys() == {*before, "later.txt"}  # nothing holds that one


def test_a_rollback_finished_elsewhere_is_still_finished_here(store, place, tmp_path, monkeypatch):
    session = Session("job", workspace=place, store=store)
    manager, before = session.manager, files_of(place)
    (place / "src/app.py").write_text("print(2)\n")
    session.save()
    with monkeypatch.context() as patch, killed():
        stop_at(patch, "before the files")
        session.rollback()
    with Session("job", workspace=tmp_path / "elsewhere", store=manager):
        assert files_of(tmp_path / "elsewhere") == before
    assert files_of(place) != before
    with Session("job", workspace=place, store=manager, rebind=True) as session:
        assert files_of(place) == before
        assert session.drift is None


def _killed_at_the_rollback(write):
    def until_then(self, draft, parents=None):
        if draft.kind == "rollback":
            raise Killed
        return write(self, draft, parents)

    return until_then


def test_a_rollback_that_was_not_decided_is_not_decided_by_another(
    store, place, tmp_path, monkeypatch
):
    session = Session("job", workspace=place, store=store)
    manager, target = session.manager, session.save()
    (place / "src/app.py").write_text("print(2)\n")
    session.save()
    after = files_of(place)
    with monkeypatch.context() as patch, killed():
        patch.setattr(CheckpointWriter, "write", _killed_at_the_rollback(CheckpointWriter.write))
        patch.setattr("agent_checkpoint.workspace.restore.transition.remove_staging", print)
        patch.setattr(Rollback, "_abort", lambda *args: None)  # a kill aborts nothing
        session.rollback(to=target)
    with Session("job", workspace=tmp_path / "elsewhere", store=manager) as session:
        session.rollback(to=target)
    with Session("job", workspace=place, store=manager, rebind=True) as session:
        assert files_of(place) == after


def test_a_stopped_rollback_still_leaves_alone_what_it_was_to(store, place, monkeypatch):
    session = Session("job", workspace=place, store=store)
    manager = session.manager
    (place / "seen.txt").write_text("seen")
    session.save()
    (place / "unseen.txt").write_text("unseen")
    with monkeypatch.context() as patch, killed():
        stop_at(patch, "before the files")
        session.rollback(keep_unseen=True)
    with Session("job", store=manager) as session:
        assert not (place / "seen.txt").exists()
        assert (place / "unseen.txt").read_text() == "unseen"
        (place / "other.txt").touch()
        session.save()
        session.rollback(steps=1)  # it is not kept for the next one
        assert not (place / "other.txt").exists()


def test_a_stopped_return_of_a_part_is_finished(store, place, monkeypatch):
    agent = Agent(1)
    session = Session("job", agent=agent, workspace=place, store=store)
    manager, before = session.manager, files_of(place)
    agent.count = 2
    (place / "new.txt").write_text("new")
    session.save()
    with monkeypatch.context() as patch, killed():
        stop_at(patch, "before the files")
        session.rollback(parts=["workspace"])
    agent = Agent()
    with Session("job", agent=agent, store=manager):
        assert (agent.count, files_of(place)) == (2, before)


# -- what cannot be read ---------------------------------------------------------------------------


def test_others_who_open_it_at_the_same_time(store, monkeypatch):
    """Who loses the race for the place after the head takes over from who was faster."""
    manager = store if isinstance(store, CheckpointManager) else Session("o", store=store).manager
    real, raced = manager.store.head, []

    def head(key):
        found = real(key)
        if key == "job" and not raced:
            raced.append(None)
            raced[0] = Session("job", store=manager)
        return found

    monkeypatch.setattr(manager.store, "head", head)
    with Session("job", store=manager) as session:
        session.save()
        with pytest.raises(ConflictError):
            raced[0].save()


def test_there_is_nothing_to_undo(store):
    with Session("job", store=store) as session:
        with pytest.raises(NotFoundError, match="no rollback, restore, revert or adopt to undo"):
            session.undo()
        with pytest.raises(NotFoundError, match="5 steps back"):
            session.rollback(steps=5)
        with pytest.raises(InvalidInputError, match="a number of checkpoints"):
            session.rollback(steps=-1)


def test_effects_need_a_session():
    with pytest.raises(EffectError, match="no session"):
        shout("alone")


def test_fields_that_changed_without_a_version_are_a_notice(manager):
    def classes(name):
        class Worker(Checkpointable):
            def __init__(self):
                setattr(self, name, [])

        return Worker()

    first = classes("notes")
    first.notes.append("important")
    with Session("job", agent=first, parts={"helper": classes("notes")}, store=manager) as session:
        assert session.notices == []
    with Session("job", agent=classes("notes"), store=manager) as session:
        assert session.notices == []
    parts = {"helper": classes("memory")}
    with Session("job", agent=classes("memory"), parts=parts, store=manager) as session:
        agent, helper = session.notices
        assert agent.startswith("The fields of 'agent' have changed; not in the checkpoint")
        assert "kept as they are: 'memory'; only in the checkpoint" in agent
        assert "'notes'. If a field was renamed" in agent
        assert "'helper'" in helper


def test_fields_of_a_sub_agent_that_changed_are_a_notice(manager):
    def helper(name):
        class Helper(Checkpointable):
            def __init__(self):
                setattr(self, name, [])

        return Helper()

    first, second = Session("job", store=manager), helper("notes")
    with pytest.raises(KeyError), first as session, session.subagent("help", agent=second):
        session.save()
        raise KeyError
    again = Session("job", store=manager)
    with again as session, session.subagent("help", agent=helper("memory")):
        (notice,) = [words for words in session.notices if "have changed" in words]
        assert "help" in notice
        assert "'memory'" in notice
        assert "'notes'" in notice
