"""Tasks: their states, their attempts, and where a session that goes on begins."""

import io
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    InvalidInputError,
    Session,
    StateError,
    StateMismatchError,
    tool,
)
from agent_checkpoint.session import task_progress
from tests.agents import Agent
from tests.unit.session.stores import Killed, killed


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "files"
    root.mkdir()
    (root / "a").write_text("begin")
    return root


@tool
def note(agent: Agent, what: str) -> None:
    agent.memory.append(what)


def table(session: Session) -> "list[tuple[str, str, int]]":
    return [(task.id, task.status, task.attempt) for task in session.tasks]


# -- states --------------------------------------------------------------------------------------


def test_from_pending_to_completed(manager: CheckpointManager) -> None:
    with Session("work", store=manager) as session:
        seen = []
        for task in session.tasks(["read", "edit"]):
            seen.append((task.id, task.status, task.attempt))
            with task:
                seen.append((task.id, task.status, task.attempt))
            seen.append((task.id, task.status, task.attempt))
        assert seen == [
            ("read", "pending", 0),
            ("read", "in_progress", 1),
            ("read", "completed", 1),
            ("edit", "pending", 0),
            ("edit", "in_progress", 1),
            ("edit", "completed", 1),
        ]
    with Session("work", store=manager) as session:
        assert table(session) == [("read", "completed", 1), ("edit", "completed", 1)]
        assert list(session.tasks(["read", "edit"])) == []


def test_each_change_is_saved_at_once(manager: CheckpointManager) -> None:
    def stored() -> Any:
        return [row["status"] for row in manager.state_dict("work")["tasks"]["tasks"]]

    with Session("work", store=manager) as session:
        for task in session.tasks(["one", "two"]):
            with task:
                assert "in_progress" in stored()
        assert stored() == ["completed", "completed"]
        assert session.history()[0]["label"] == "task two completed"


def test_a_task_that_fails(manager: CheckpointManager) -> None:
    with Session("work", store=manager) as session:
        with pytest.raises(LookupError, match="gone"):
            for task in session.tasks(["one", "two"]):
                with task:
                    raise LookupError("gone")
        assert session.tasks["one"].note == "LookupError: gone"
        assert table(session) == [("one", "failed", 1), ("two", "pending", 0)]
    with Session("work", store=manager) as session:  # failed is not done
        for task in session.tasks(["one", "two"]):
            with task:
                pass
        assert table(session) == [("one", "completed", 2), ("two", "completed", 1)]
        assert session.tasks["one"].note == ""


def test_who_catches_the_error_goes_on_with_the_next(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        for task in session.tasks(["one", "two", "three"]):
            try:
                with task:
                    if task.id == "two":
                        raise LookupError
            except LookupError:
                continue
        assert [task.status for task in session.tasks] == ["completed", "failed", "completed"]
        assert session.tasks["two"].note == "LookupError"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_stops_the_process_leaves_it_in_progress(
    manager: CheckpointManager, error: "type[BaseException]"
) -> None:
    with pytest.raises(error), Session("work", store=manager) as session:
        for task in session.tasks(["one", "two"], retries=5):
            with task:
                raise error
    with Session("work", store=manager) as session:
        assert table(session) == [("one", "in_progress", 1), ("two", "pending", 0)]
        assert [task.id for task in session.tasks(["one", "two"])] == ["one", "two"]


def test_skip_before_and_within(manager: CheckpointManager) -> None:
    with Session("work", store=manager) as session:
        for task in session.tasks(["one", "two", "three"]):
            if task.id == "one":
                task.skip("no need")
                continue
            with task:
                if task.id == "two":
                    task.skip("of no use")
        assert [task.note for task in session.tasks] == ["no need", "of no use", ""]
        assert [task.status for task in session.tasks] == ["skipped", "skipped", "completed"]
        assert [task.is_done for task in session.tasks] == [True, True, True]
    with Session("work", store=manager) as session:
        assert list(session.tasks(["one", "two", "three"])) == []


def test_a_task_that_is_not_entered_is_passed_over(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        assert [task.id for task in session.tasks(["one", "two"])] == ["one", "two"]
        assert [task.id for task in session.tasks(["one", "two"])] == ["one", "two"]
        assert [task.status for task in session.tasks] == ["pending", "pending"]


def test_tasks_are_found_by_id(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        session.tasks(["one", "two"])
        assert session.tasks["two"].id == "two"
        assert len(session.tasks) == 2
        assert repr(session.tasks["one"]) == "<Task 'one': pending>"
        with pytest.raises(KeyError):
            session.tasks["three"]


# -- notes and results ---------------------------------------------------------------------------


@dataclass
class Finding:
    path: str
    lines: "list[int]"


@pytest.mark.parametrize(
    "result",
    [
        None,
        0,
        "text",
        b"\xff",
        [1, (2, {3})],
        {"a": Finding("x", [1])},
        Finding("x", [1, 2]),
        datetime(2026, 1, 2, tzinfo=timezone.utc),
        {(1, 2): "pair"},
    ],
    ids=repr,
)
def test_results_come_back_as_they_were(manager: CheckpointManager, result: Any) -> None:
    with Session("work", store=manager, pickles="allow") as session:
        for task in session.tasks(["one"]):
            with task:
                task.result, task.note = result, "a note"
    with Session("work", store=manager, pickles="allow") as session:
        found = session.tasks["one"].result
        assert found == result
        assert type(found) is type(result)
        assert session.tasks["one"].note == "a note"


def test_a_result_is_a_copy(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        for task in session.tasks(["one"]):
            with task:
                result = [1]
                task.result = result
                result.append(2)
                assert task.result == [1]


@pytest.mark.parametrize("result", [Lock(), [Lock()], lambda: 0])
def test_a_result_that_cannot_be_saved_is_refused_at_once(
    memory: CheckpointManager, result: Any
) -> None:
    with Session("work", store=memory) as session:
        for task in session.tasks(["one"]):
            with task:
                with pytest.raises(StateError, match="The result of one"):
                    task.result = result
                session.save()
        assert session.tasks["one"].status == "completed"


def test_the_note_of_a_long_error_is_cut(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        with pytest.raises(LookupError):
            for task in session.tasks(["one"]):
                with task:
                    raise LookupError("x" * 10**5)
        assert len(session.tasks["one"].note) == 2000


# -- again from the top --------------------------------------------------------------------------


def test_a_session_goes_on_at_the_first_that_is_not_done(manager: CheckpointManager) -> None:
    names = ["one", "two", "three"]
    with killed("work", manager) as session:
        for task in session.tasks(names):
            with task:
                if task.id == "two":
                    raise Killed
    with Session("work", store=manager) as session:
        assert [task.id for task in session.tasks(names)] == ["two", "three"]


@pytest.mark.parametrize("every", ["tool", "task", 2])
def test_one_in_progress_begins_from_its_top(
    manager: CheckpointManager, files: Path, every: Any
) -> None:
    agent = Agent()
    with killed("work", manager, agent=agent, workspace=files, every=every) as session:
        for task in session.tasks(["one", "two"]):
            with task:
                note(agent, task.id)
                (files / "a").write_text(task.id)
                session.messages.append(task.id)
                note(agent, task.id + " again")
                (files / task.id).write_text("new")
                note(agent, "third")
                if task.id == "two":
                    raise Killed
    after = Agent()
    with Session("work", store=manager, agent=after, workspace=files) as session:
        left = session.tasks(["one", "two"])
        assert after.memory == ["one", "one again", "third"]
        assert list(session.messages) == ["one"]
        assert len(session.calls) == 3
        assert (files / "a").read_text() == "one"
        assert sorted(path.name for path in files.iterdir()) == ["a", "one"]
        for task in left:
            with task:
                assert (task.id, task.attempt) == ("two", 2)


def test_one_that_was_killed_at_its_start_begins_from_there(
    manager: CheckpointManager, files: Path
) -> None:
    with killed("work", manager, workspace=files) as session:
        session.messages.append("before")
        for task in session.tasks(["one"]):
            with task:
                (files / "a").write_text("half")
                raise Killed
    with Session("work", store=manager, workspace=files) as session:
        assert session.drift is not None
        for task in session.tasks(["one"]):
            with task:
                assert list(session.messages) == ["before"]
                assert (files / "a").read_text() == "begin"


def test_the_broken_attempt_stays_in_history(memory: CheckpointManager) -> None:
    agent = Agent()
    with killed("work", memory, agent=agent) as session:
        for task in session.tasks(["one"]):
            with task:
                note(agent, "broken")
                broken = session.head
                raise Killed
    with Session("work", store=memory, agent=agent) as session:
        session.tasks(["one"])
        assert agent.memory == []
        assert broken in [item["id"] for item in session.history()]
        assert memory.state_dict("work", checkpoint_id=broken)["agent"]["memory"] == ["broken"]


def test_killed_again_and_again_it_still_begins_at_its_top(memory: CheckpointManager) -> None:
    agent = Agent()
    for number in range(1, 4):
        agent = Agent()
        with killed("work", memory, agent=agent) as session:
            for task in session.tasks(["one"]):
                with task:
                    assert (task.attempt, agent.memory) == (number, [])
                    note(agent, "x")
                    raise Killed
    assert agent.memory == ["x"]


def test_continue_keeps_the_state_of_the_last_call(manager: CheckpointManager, files: Path) -> None:
    agent, done = Agent(), []

    @tool(effect="irreversible")
    def mail() -> int:
        done.append(1)
        return len(done)

    with killed("work", manager, agent=agent, workspace=files) as session:
        for task in session.tasks(["one"]):
            with task:
                (files / "a").write_text("kept")
                note(agent, "kept")
                assert mail() == 1
                raise Killed
    agent = Agent()
    with Session("work", store=manager, agent=agent, workspace=files) as session:
        for task in session.tasks(["one"], on_resume="continue"):
            with task:
                assert agent.memory == ["kept"]
                assert (files / "a").read_text() == "kept"
                assert task.attempt == 2
                assert mail() == 2  # the first is known: this is meant as a second
        assert session.tasks["one"].status == "completed"


# -- retries -------------------------------------------------------------------------------------


def test_a_retry_has_the_state_of_its_start(manager: CheckpointManager, files: Path) -> None:
    agent, seen = Agent(), []
    with Session("work", store=manager, agent=agent, workspace=files) as session:
        for task in session.tasks(["one", "two"], retries=2):
            with task:
                seen.append((task.id, task.attempt, list(agent.memory), task.note))
                assert (files / "a").read_text() == ("begin" if task.id == "one" else "one")
                note(agent, task.id)
                (files / "a").write_text(task.id)
                session.messages.append(task.id)
                if task.id == "two" and task.attempt < 3:
                    raise LookupError(f"try {task.attempt}")
        assert table(session) == [("one", "completed", 1), ("two", "completed", 3)]
        assert session.tasks["two"].note == ""
        assert list(session.messages) == ["one", "two"]
    assert seen == [
        ("one", 1, [], ""),
        ("two", 1, ["one"], ""),
        ("two", 2, ["one"], "LookupError: try 1"),
        ("two", 3, ["one"], "LookupError: try 2"),
    ]


def test_after_the_last_retry_the_error_is_passed_on(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        with pytest.raises(LookupError):
            for task in session.tasks(["one"], retries=2):
                with task:
                    raise LookupError
        assert table(session) == [("one", "failed", 3)]


def test_retries_count_from_each_start_of_the_program(memory: CheckpointManager) -> None:
    """Attempts that were killed, or were of the day before, are no reason not to try again."""
    for _ in range(3):
        with killed("work", memory) as session:
            for task in session.tasks(["one"], retries=1):
                with task:
                    raise Killed
    fails = [LookupError(), None]
    with Session("work", store=memory) as session:
        for task in session.tasks(["one"], retries=1):
            with task:
                error = fails.pop(0)
                if error:
                    raise error
        assert table(session) == [("one", "completed", 5)]


@pytest.mark.parametrize("keyed", [True, False])
def test_effects_of_a_failed_attempt_are_given_back(
    manager: CheckpointManager, keyed: bool
) -> None:
    done = []

    @tool(effect="irreversible", key=(lambda to: to) if keyed else None)
    def mail(to: str) -> int:
        done.append(to)
        return len(done)

    with Session("work", store=manager) as session:
        for task in session.tasks(["one"], retries=1):
            with task:
                assert (mail("ann"), mail("bob")) == (1, 2)
                if task.attempt == 1:
                    raise LookupError
        assert session.notices == []
    assert done == ["ann", "bob"]


def test_a_retry_leaves_answers_to_requests(memory: CheckpointManager) -> None:
    @tool(effect="irreversible", approve=True)
    def mail() -> str:
        return "sent"

    from agent_checkpoint import Suspended

    with pytest.raises(Suspended) as caught, Session("work", store=memory) as session:
        for task in session.tasks(["one"]):
            with task:
                mail()
    with Session("work", store=memory) as session:
        session.approvals.approve(caught.value.approval_id)
        for task in session.tasks(["one"], retries=1):
            with task:
                if session.tasks["one"].attempt == 2:
                    raise LookupError
                assert mail() == "sent"


@pytest.mark.parametrize("every", ["task", 10, "manual"])
def test_retries_where_little_is_saved(memory: CheckpointManager, every: Any) -> None:
    """With `manual` it goes back to before the tasks: then those that were done are run again."""
    fails = ["one", "two"]
    with Session("work", store=memory, every=every) as session:
        for task in session.tasks(["one", "two"], retries=1):
            with task:
                session.messages.append(task.id)
                if task.id in fails:
                    fails.remove(task.id)
                    raise LookupError
        assert [task.status for task in session.tasks] == ["completed", "completed"]
        assert list(session.messages) == ["one", "two"]


def test_attempts_are_counted_where_little_is_saved(memory: CheckpointManager) -> None:
    with Session("work", store=memory, every="manual") as session:
        left = session.tasks(["one"], retries=1)
        session.save()
        for task in left:
            with task:
                if task.attempt == 1:
                    raise LookupError
        assert table(session) == [("one", "completed", 2)]


def test_one_that_is_entered_again_begins_at_its_top(memory: CheckpointManager) -> None:
    done = []

    @tool(effect="irreversible")
    def mail() -> int:
        done.append(1)
        return len(done)

    with Session("work", store=memory) as session:
        (task,) = session.tasks(["one"])
        with pytest.raises(KeyboardInterrupt), task:
            mail()
            raise KeyboardInterrupt
        with task:
            assert mail() == 1
        assert table(session) == [("one", "completed", 2)]


# -- rollbacks within ----------------------------------------------------------------------------


def test_a_rollback_within_a_task_leaves_it_in_progress(memory: CheckpointManager) -> None:
    agent = Agent()
    with Session("work", store=memory, agent=agent) as session:
        for task in session.tasks(["one"]):
            with task:
                note(agent, "good")
                note(agent, "bad")
                session.rollback(steps=1)
                assert agent.memory == ["good"]
                assert task.status == "in_progress"
        assert session.tasks["one"].status == "completed"


def test_a_rollback_to_before_a_task_has_it_run_again(memory: CheckpointManager) -> None:
    seen = []
    with Session("work", store=memory) as session:
        start = session.save()
        for task in session.tasks(["one", "two", "three"]):
            with task:
                seen.append(task.id)
                if seen == ["one", "two"]:
                    session.rollback(to=start)
        assert [task.status for task in session.tasks] == ["completed"] * 3
    assert seen == ["one", "two", "one", "two", "three"]


# -- the list changes ----------------------------------------------------------------------------


def test_ids_that_are_new_or_gone_are_told(manager: CheckpointManager) -> None:
    with Session("work", store=manager) as session:
        for task in session.tasks(["one", "old", "two"]):
            with task:
                pass
        assert session.notices == []
    with Session("work", store=manager) as session:
        assert [task.id for task in session.tasks(["zero", "one", "two", "three"])] == [
            "zero",
            "three",
        ]
        assert (session.tasks.added, session.tasks.removed) == (["zero", "three"], ["old"])
        assert "zero, three" in session.notices[0]
        assert "old" in session.notices[1]
        assert session.tasks["old"].status == "completed"  # it is not forgotten


def test_another_order_is_no_change(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        for task in session.tasks(["one", "two"]):
            if task.id == "two":
                with task:
                    pass
    with Session("work", store=memory) as session:
        assert [task.id for task in session.tasks(["two", "one"])] == ["one"]
        assert session.notices == []


def test_two_lists_in_one_session(manager: CheckpointManager) -> None:
    with Session("work", store=manager) as session:
        for task in session.tasks(["one"], retries=1):
            with task:
                for inner in session.tasks(["inner a", "inner b"]):
                    with inner:
                        session.messages.append(inner.id)
                if task.attempt == 1:
                    raise LookupError
        for task in session.tasks(["two"]):
            with task:
                pass
        assert table(session) == [
            ("one", "completed", 2),
            ("inner a", "completed", 1),
            ("inner b", "completed", 1),
            ("two", "completed", 1),
        ]
        assert list(session.messages) == ["inner a", "inner b"]


@pytest.mark.parametrize(
    ("ids", "options", "words"),
    [
        (["one", "one"], {}, "unique"),
        (["one", 2], {}, "non-empty string"),
        ([""], {}, "non-empty string"),
        ("one", {}, r"\['one'\]"),
        (["one"], {"on_resume": "stop"}, "'restart' or 'continue'"),
        (["one"], {"retries": -1}, "retries must be an integer"),
        (["one"], {"retries": True}, "retries must be an integer"),
        (["one"], {"retries": "2"}, "retries must be an integer"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    memory: CheckpointManager, ids: Any, options: Any, words: str
) -> None:
    with Session("work", store=memory) as session:
        with pytest.raises(InvalidInputError, match=words):
            session.tasks(ids, **options)
        assert len(session.tasks) == 0


@pytest.mark.parametrize("state", [None, {}, {"tasks": [1]}, {"tasks": [{"name": "x"}]}])
def test_a_state_of_something_else_is_refused(memory: CheckpointManager, state: Any) -> None:
    with Session("work", store=memory) as session:
        session.tasks(["one"])
        with pytest.raises(StateMismatchError, match="not a list of tasks"):
            session.tasks.load_state_dict(state)
        assert len(session.tasks) == 1


def test_tasks_may_come_from_a_generator(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        found = session.tasks(str(number) for number in range(3))
        assert [task.id for task in found] == ["0", "1", "2"]


# -- progress ------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(memory: CheckpointManager) -> None:
    with Session("work", store=memory) as session:
        for task in session.tasks(["one", "two"]):
            with task:
                pass


def test_a_terminal_is_told_how_far_it_is(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr(task_progress, "_MIN_SECONDS", 0.0)
    run(memory)
    told = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert told == ["0/2 one …", "1/2 one completed", "1/2 two …", "2/2 two completed"]
    assert out.getvalue().endswith("\n")
    assert "\r" not in out.getvalue()


def test_quick_tasks_do_not_flood_the_terminal(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr(task_progress, "_MIN_SECONDS", 1000.0)
    monkeypatch.setattr(task_progress._LastLine, "written", float("-inf"))
    for number in range(1000):
        task_progress.show_progress(number, 1000, "quick\none")
    task_progress.show_progress(1000, 1000, "the last")
    told = [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]
    assert told == ["0/1000 quick one", "1000/1000 the last"]


def test_it_can_be_switched_off(memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("AGENT_CHECKPOINT_PROGRESS", "0")
    run(memory)
    assert out.getvalue() == ""


def test_nothing_is_written_elsewhere(
    memory: CheckpointManager, capsys: pytest.CaptureFixture[str]
) -> None:
    run(memory)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("out", [None, Terminal(), io.TextIOWrapper(io.BytesIO(), "ascii")])
def test_a_terminal_that_is_gone_stops_nothing(
    memory: CheckpointManager, monkeypatch: pytest.MonkeyPatch, out: Any
) -> None:
    if isinstance(out, Terminal):
        out.close()
    monkeypatch.setattr("sys.stderr", out)
    run(memory)


def test_a_line_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("COLUMNS", "40")
    task_progress.show_progress(3, 3, "x" * 500)
    assert len(out.getvalue().rstrip("\n")) == 39
    task_progress.show_progress(0, 0, "nothing to do")
