"""Calls of tools in a session: what is recorded of them, and when that is saved."""

import asyncio
import os
import time
from collections import deque
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    EffectUnknownError,
    InvalidInputError,
    Session,
    StateError,
    StorageError,
    Workspace,
    tool,
)
from agent_checkpoint.session.call_counts import CallCounts
from agent_checkpoint.session.effects.effects import Effects
from agent_checkpoint.session.effects.idempotency import CallNumbers
from agent_checkpoint.session.effects.outcomes import EffectOutcomes
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tool_runner import ToolRunner
from agent_checkpoint.store.ledger.ledger import Ledger
from tests.agents import Agent, TorchLike
from tests.unit.session.stores import BACKENDS, manager_on


@pytest.fixture
def manager() -> CheckpointManager:
    return CheckpointManager()


@tool
def echo(value: Any = None) -> Any:
    return value


@tool
def fail(error: BaseException) -> None:
    raise error


@tool
async def aecho(value: Any = None) -> Any:
    await asyncio.sleep(0)
    return value


def saved(manager: CheckpointManager, key: str = "work") -> int:
    return len(manager.history(key))


# -- what is recorded ----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_call_is_recorded_and_saved(backend: str, tmp_path: Path) -> None:
    with manager_on(backend, tmp_path) as manager:
        before = time.time()
        with Session("work", store=manager):
            echo([1, {"a": b"b"}])
        with Session("work", store=manager) as again:
            (row,) = again.calls
    assert row["tool"] == "echo"
    assert row["arguments"] == {"value": [1, {"a": b"b"}]}
    assert row["result"] == [1, {"a": b"b"}]
    assert before <= row["ts"] <= time.time()
    assert 0 <= row["seconds"] < 60
    assert "error" not in row
    assert "effect" not in row
    assert "task" not in row


def test_the_duration_is_that_of_the_call(manager: CheckpointManager) -> None:
    @tool
    def sleep() -> None:
        time.sleep(0.02)

    with Session("work", store=manager) as session:
        sleep()
        assert session.calls[0]["seconds"] >= 0.02


@pytest.mark.parametrize("size", [0, 10, 200_000, 5_000_000])
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_of_any_size_come_back(backend: str, size: int, tmp_path: Path) -> None:
    result = {"text": "é" * (size // 2), "bytes": b"\x00" * (size // 2), "n": list(range(20))}
    with manager_on(backend, tmp_path) as manager:
        with Session("work", store=manager):
            assert echo(result) is result
        with Session("work", store=manager) as again:
            assert again.calls[0]["result"] == result


def test_a_call_in_a_task_names_it(manager: CheckpointManager) -> None:
    with Session("work", store=manager) as session:
        for task in session.tasks(["read"]):
            with task:
                echo(1)
        echo(2)
        assert [row.get("task") for row in session.calls] == ["read", None]


# -- values that are not plain -------------------------------------------------------------------


class Odd:
    def __init__(self) -> None:
        self.lock = Lock()


@pytest.mark.parametrize("value", [Odd(), [Lock()], {"a": Odd()}, lambda: 0, object, iter([1])])
def test_a_value_that_cannot_be_saved_breaks_no_save(
    manager: CheckpointManager, value: Any
) -> None:
    with Session("work", store=manager) as session:
        assert echo(value) is value
        session.save()
        echo("later")
    with Session("work", store=manager) as again:
        assert [row["result"] == "later" for row in again.calls] == [False, True]


@pytest.mark.parametrize("value", [Agent(3), TorchLike()])
def test_a_stateful_is_an_argument_like_any_other(manager: CheckpointManager, value: Any) -> None:
    with Session("work", store=manager, agent=Agent()) as session:
        assert echo(value) is value
        assert session.calls[0]["arguments"] == {"value": f"<{type(value).__name__}>"}
        assert session.calls[0]["result"] == f"<{type(value).__name__}>"


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda value: value.append(2)),
        ({"a": {1}}, lambda value: value["a"].add(2)),
        (deque([1]), lambda value: value.append(2)),
    ],
)
def test_a_later_change_is_not_recorded(
    manager: CheckpointManager, value: Any, change: Any
) -> None:
    before = repr(value)
    with Session("work", store=manager) as session:
        change(echo(value))
        session.save()
        assert repr(session.calls[0]["arguments"]["value"]) == before
        assert repr(session.calls[0]["result"]) == before
    with Session("work", store=manager) as again:
        assert repr(again.calls[0]["result"]) == before


def test_arguments_are_recorded_as_they_were_given(manager: CheckpointManager) -> None:
    @tool
    def drain(items: "list[int]", seen: "set[int]") -> None:
        seen.update(items)
        items.clear()

    with Session("work", store=manager) as session:
        drain([1, 2], set())
        assert session.calls[0]["arguments"] == {"items": [1, 2], "seen": set()}


def test_a_record_is_readable_where_the_class_and_the_secret_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import subprocess

    with CheckpointManager(backend="sqlite", path=tmp_path / "s") as manager:
        with Session("work", store=manager):
            echo(subprocess.CompletedProcess(["make"], 0))
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "another machine's")
    with Session("work", store=tmp_path / "s") as again:
        assert "CompletedProcess" in again.calls[0]["result"]


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [LookupError("gone"), InvalidInputError("ours"), StateError()])
def test_an_error_is_recorded_and_passed_on_unchanged(
    manager: CheckpointManager, error: Exception
) -> None:
    with Session("work", store=manager) as session:
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert caught.value is error
        assert error.__cause__ is None
        (row,) = session.calls
        assert row["error"] == f"{type(error).__name__}: {error}".rstrip(": ")
        assert "result" not in row
        assert session.history()[0]["id"] == session.head
    with Session("work", store=manager) as again:
        assert "error" in again.calls[0]


def test_an_error_without_a_readable_message(manager: CheckpointManager) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    with Session("work", store=manager) as session:
        with pytest.raises(Silent):
            fail(Silent())
        assert session.calls[0]["error"].startswith("Silent: ")
        session.save()


def test_a_long_error_is_cut(manager: CheckpointManager) -> None:
    with Session("work", store=manager) as session:
        with pytest.raises(LookupError):
            fail(LookupError("x" * 10**6))
        assert len(session.calls[0]["error"]) == 2000


def test_an_error_is_passed_on_even_if_the_save_fails(manager: CheckpointManager) -> None:
    agent = Agent()
    with Session("work", store=manager, agent=agent):
        agent.memory.append(Lock())
        with pytest.raises(LookupError):
            fail(LookupError("mine"))
        with pytest.raises(StateError, match="memory"):
            echo()
        agent.memory.clear()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_stops_the_process_is_no_outcome_of_the_call(
    manager: CheckpointManager, error: BaseException
) -> None:
    with Session("work", store=manager) as session:
        with pytest.raises(type(error)):
            fail(error)
        assert len(session.calls) == 0
        assert session._state.in_flight == []


# -- when it is saved ----------------------------------------------------------------------------


def test_each_call_is_saved(manager: CheckpointManager) -> None:
    with Session("work", store=manager):
        before = saved(manager)
        echo()
        assert saved(manager) == before + 1
        asyncio.run(aecho())
        assert saved(manager) == before + 2


def test_every_third_call_is_saved(manager: CheckpointManager) -> None:
    with Session("work", store=manager, every=3):
        before = saved(manager)
        counts = []
        for _ in range(7):
            echo()
            counts.append(saved(manager) - before)
    assert counts == [0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("every", ["task", "manual"])
def test_calls_are_not_saved_where_that_is_said(manager: CheckpointManager, every: str) -> None:
    with Session("work", store=manager, every=every) as session:
        before = saved(manager)
        echo()
        assert saved(manager) == before
        session.save()
    with Session("work", store=manager) as again:
        assert len(again.calls) == 1


def test_only_the_outermost_of_nested_tools_saves(manager: CheckpointManager) -> None:
    counts = []

    @tool
    def inner(value: int) -> int:
        counts.append(saved(manager))
        return value

    @tool
    def outer() -> int:
        return inner(1) + inner(2)

    with Session("work", store=manager) as session:
        before = saved(manager)
        assert outer() == 3
        assert counts == [before, before]
        assert saved(manager) == before + 1
        assert [row["tool"] for row in session.calls] == ["inner", "inner", "outer"]
        assert session.history()[0].get("kind", "save") == "save"


def test_nested_coroutines_save_once_as_well(manager: CheckpointManager) -> None:
    @tool
    async def outer() -> Any:
        return await asyncio.gather(aecho(1), aecho(2))

    with Session("work", store=manager) as session:
        before = saved(manager)
        assert asyncio.run(outer()) == [1, 2]
        assert saved(manager) == before + 1
        assert len(session.calls) == 3


def test_an_inner_error_that_the_outer_handles_is_recorded(manager: CheckpointManager) -> None:
    @tool
    def outer() -> str:
        try:
            fail(LookupError("inner"))
        except LookupError:
            return "handled"
        return ""

    with Session("work", store=manager) as session:
        assert outer() == "handled"
        assert [row.get("error") for row in session.calls] == ["LookupError: inner", None]


def test_a_tool_of_another_session_within_one_saves_there(manager: CheckpointManager) -> None:
    @tool
    def outer() -> int:
        with Session("inside", store=manager):
            before = saved(manager, "inside")
            echo(1)
            return saved(manager, "inside") - before

    with Session("work", store=manager):
        assert outer() == 1


def test_parallel_tools_are_recorded_as_they_finish(manager: CheckpointManager) -> None:
    @tool
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def both() -> Any:
        return await asyncio.gather(wait(0.05), wait(0.0))

    with Session("work", store=manager) as session:
        assert asyncio.run(both()) == [0.05, 0.0]
        assert [row["result"] for row in session.calls] == [0.0, 0.05]
        kinds = [item.kind for item in manager.store.newest_first("work")][:2]
        assert kinds == ["save", "in_flight"]


# -- calls that do not come to their end ---------------------------------------------------------


def test_a_closed_session_takes_no_call(manager: CheckpointManager) -> None:
    session = Session("work", store=manager)
    session.close()
    with pytest.raises(InvalidInputError, match="closed"):
        session._tools.run(echo.tool, (), {})  # type: ignore[attr-defined]


def test_a_call_whose_commit_fails_is_not_in_flight_for_ever(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(effect="idempotent")
    def act() -> None:
        pass

    @tool(effect="idempotent")
    async def aact() -> None:
        pass

    def broken(*args: Any) -> None:
        raise StorageError("the disk is gone")

    with Session("work", store=manager) as session:
        monkeypatch.setattr(EffectOutcomes, "commit", broken)
        with pytest.raises(StorageError):
            act()
        with pytest.raises(StorageError):
            asyncio.run(aact())
        assert session._state.in_flight == []


def cancelled_at(cls: type, step: str, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    """Run a coroutine function that is cancelled while a step of its effect is written."""
    reached, go_on = [], []
    original = getattr(cls, step)

    def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
        reached.append(1)
        while not go_on:
            time.sleep(0.001)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(cls, step, slow)

    async def main() -> None:
        running = asyncio.ensure_future(call())
        while not reached:
            await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.sleep(0.01)
        go_on.append(1)
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())


def test_an_effect_that_is_cancelled_before_it_is_made_was_not_made(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    @tool(effect="irreversible")
    async def act() -> str:
        called.append(1)
        return "done"

    with Session("work", store=manager) as session:
        cancelled_at(Effects, "decide", monkeypatch, act)
        assert called == []
        assert session._state.in_flight == []
        assert [effect.status for effect in session.effects] == ["failed"]
        assert asyncio.run(act()) == "done"
        assert called == [1]


def test_an_effect_that_is_cancelled_after_it_was_made_is_recorded(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    @tool(effect="irreversible", key=lambda: "one")
    async def act() -> str:
        called.append(1)
        return "done"

    with Session("work", store=manager) as session:
        cancelled_at(EffectOutcomes, "commit", monkeypatch, act)
        assert session._state.in_flight == []
        assert [effect.status for effect in session.effects] == ["committed"]
        assert [row["result"] for row in session.calls] == ["done"]
        assert asyncio.run(act()) == "done"
        assert called == [1]


# -- calls whose result reaches nobody -----------------------------------------------------------


class Mail:
    """A tool without a key, and what it did."""

    def __init__(self) -> None:
        self.sent: list[str] = []

        @tool(effect="irreversible", name="send")
        def send(to: str) -> str:
            self.sent.append(to)
            return f"mail {len(self.sent)}"

        @tool(effect="irreversible", name="asend")
        async def asend(to: str) -> str:
            self.sent.append(to)
            return f"mail {len(self.sent)}"

        self.send = send
        self.asend = asend


def is_clean(session: Session) -> bool:
    effects = session._state.effects
    return not (effects.in_progress or effects.call_numbers._reserved or session._state.running)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_after_which_nothing_could_be_saved_is_replayed(
    manager: CheckpointManager, is_async: bool
) -> None:
    mail = Mail()

    def send() -> Any:
        return asyncio.run(mail.asend("bob")) if is_async else mail.send("bob")

    agent = Agent()
    with Session("work", store=manager, agent=agent) as session:
        assert send() == "mail 1"
        agent.memory = (i for i in [1])  # type: ignore[assignment]
        with pytest.raises(StateError):
            send()
        assert is_clean(session)
        assert len(session.calls) == 2
        agent.memory = []
        assert send() == "mail 2"
        assert send() == "mail 3"
        assert [row["replayed"] for row in session.calls] == [False, False, True, False]
    assert len(mail.sent) == 3


def test_a_call_that_was_given_back_is_replayed_by_the_next_process(
    manager: CheckpointManager,
) -> None:
    mail, agent = Mail(), Agent()
    with pytest.raises(StateError), Session("work", store=manager, agent=agent):
        agent.memory = (i for i in [1])  # type: ignore[assignment]
        try:
            mail.send("bob")
        finally:
            agent.memory = []
    with Session("work", store=manager, agent=agent):
        assert mail.send("bob") == "mail 1"
        assert mail.send("bob") == "mail 2"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_whose_commit_failed_is_not_made_again(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    mail = Mail()
    real = Ledger.append

    def append(self: Ledger, what: str, /, **options: Any) -> int:
        if what == "committed":
            raise StorageError("the disk is full")
        return real(self, what, **options)

    def send() -> Any:
        return asyncio.run(mail.asend("bob")) if is_async else mail.send("bob")

    with Session("work", store=manager) as session:
        with monkeypatch.context() as patch:
            patch.setattr(Ledger, "append", append)
            with pytest.raises(StorageError):
                send()
        assert is_clean(session)
        with pytest.raises(EffectUnknownError):
            send()
        session.resolve(session.effects[0].id, happened=True, result="found")
        assert send() == "found"
    assert mail.sent == ["bob"]


PLACES = [
    (CallNumbers, "reserve", "ok"),
    (Effects, "find_existing", "ok"),
    (Effects, "decide", "EffectUnknownError"),
    (EffectOutcomes, "commit", "ok"),
    (Effects, "call_ended", "ok"),
    (CallCounts, "mark_used", "ok"),
    (ToolRunner, "_save", "ok"),
    (CallNumbers, "release", "ok"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("cls", "name", "then"), PLACES)
def test_an_interrupt_anywhere_does_not_make_a_call_twice(
    manager: CheckpointManager,
    monkeypatch: pytest.MonkeyPatch,
    cls: type,
    name: str,
    then: str,
    when: str,
) -> None:
    mail = Mail()
    real = getattr(cls, name)

    def step(*args: Any, **kwargs: Any) -> Any:
        if when == "after":
            real(*args, **kwargs)
        raise KeyboardInterrupt

    with Session("work", store=manager) as session:
        with monkeypatch.context() as patch:
            patch.setattr(cls, name, step)
            with pytest.raises(KeyboardInterrupt):
                mail.send("bob")
        assert is_clean(session)
        try:
            assert mail.send("bob") == "mail 1"
            made = 1
        except EffectUnknownError:
            made = 0 if name == "decide" else 1
            assert then != "ok" or (name, when) == ("commit", "before")
        assert mail.sent == ["bob"] * made
        assert is_clean(session)


def test_numbers_are_given_back_in_any_order(manager: CheckpointManager) -> None:
    mail = Mail()
    with Session("work", store=manager) as session:
        for _ in range(3):
            mail.send("bob")
        record = session._state.record
        ((task, kind, _),) = record.counts.rows()
        numbers = CallNumbers(record)
        taken = [numbers.reserve(mail.send.tool, "", None, i)._replace(kind=kind, number=i)
                 for i in (1, 2, 3)]  # fmt: skip
        numbers.release_for_retry(2, taken[1])
        assert list(record.counts.rows()) == [[task, kind, 1, 3]]
        numbers.release_for_retry(3, taken[2])
        assert list(record.counts.rows()) == [[task, kind, 1]]
        numbers.release_for_retry(3, taken[2])
        numbers.release_for_retry(1, taken[0])
        assert not record.counts
        assert [mail.send("bob") for _ in range(4)] == ["mail 1", "mail 2", "mail 3", "mail 4"]


def test_the_child_of_a_fork_must_open_the_session_again(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = Mail()
    with Session("work", store=manager) as session:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            for act in (lambda: mail.send("bob"), session.save, session._state.save):
                with pytest.raises(ConflictError, match="Open the session again"):
                    act()
        assert mail.sent == []
        mail.send("bob")


# -- files that changed outside of calls ---------------------------------------------------------


def kinds(manager: CheckpointManager) -> list[str]:
    return [row["kind"] for row in manager.history("work")][::-1]


@pytest.mark.parametrize("is_async", [False, True])
def test_files_changed_outside_of_calls_have_a_checkpoint_before_the_next(
    manager: CheckpointManager, tmp_path: Path, is_async: bool
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    agent = Agent()
    with Session("work", agent=agent, workspace=place, store=manager):
        agent.memory.append("not saved yet")
        (place / "f").write_text("by a person")
        if is_async:
            asyncio.run(aecho())
            asyncio.run(aecho())
        else:
            echo()
            echo()
        assert kinds(manager) == ["open", "outside", "save", "save"]
    drift = manager.store.read("work", 2)
    first = manager.store.read("work", 1)
    assert drift is not None
    assert first is not None
    assert drift.parts["workspace"] != first.parts["workspace"]
    assert drift.parts["agent"] == first.parts["agent"]


def test_steps_back_do_not_count_files_changed_outside_of_calls(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    with Session("work", workspace=tmp_path, store=manager) as session:
        for number in "123":
            (tmp_path / "f").write_text(number)
            echo(number)
        session.rollback(steps=2)
        assert (tmp_path / "f").read_text() == "1"
        assert [row["result"] for row in session.calls] == ["1"]


def test_unchanged_files_have_no_checkpoint_before_a_call(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    (tmp_path / "f").write_text("1")
    with Session("work", workspace=tmp_path, store=manager):
        echo()
        (tmp_path / "f").write_text("1")  # the same content
        echo()
        assert kinds(manager) == ["open", "save", "save"]


def test_changes_of_calls_that_are_not_saved_yet_are_not_outside(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    @tool
    def write(name: str) -> None:
        (tmp_path / name).write_text(name)

    with Session("work", workspace=tmp_path, store=manager, every=2):
        write("a")
        write("b")
        assert kinds(manager) == ["open", "save"]


def test_changes_while_another_call_runs_are_not_outside(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    events: dict[str, asyncio.Event] = {}

    @tool
    async def write(name: str) -> None:
        (tmp_path / name).write_text(name)
        events[name].set()
        await events["end"].wait()

    async def both() -> None:
        events.update({name: asyncio.Event() for name in ("a", "b", "end")})
        calls = []
        for name in ("a", "b"):
            calls.append(asyncio.ensure_future(write(name)))
            await events[name].wait()
        events["end"].set()
        await asyncio.gather(*calls)

    with Session("work", workspace=tmp_path, store=manager):
        asyncio.run(both())
        assert "outside" not in kinds(manager)


@pytest.mark.parametrize("every", ["task", "manual"])
def test_a_session_that_saves_by_hand_has_no_checkpoint_before_a_call(
    manager: CheckpointManager, tmp_path: Path, every: Any
) -> None:
    with Session("work", workspace=tmp_path, store=manager, every=every):
        (tmp_path / "f").write_text("1")
        echo()
        assert kinds(manager) == ["open"]


def test_files_that_cannot_be_saved_do_not_keep_a_call_from_mending_that(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()

    @tool
    def remove() -> None:
        (place / "large").unlink()

    with Session("work", workspace=Workspace(place, store=manager, limit=1000), store=manager):
        (place / "large").write_bytes(os.urandom(5000))
        remove()
        assert kinds(manager) == ["open", "save"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_begins_before_it_waits_for_the_files(
    manager: CheckpointManager,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_async: bool,
) -> None:
    """Calls that were made at the same time overlap, which a replay must know."""
    waited: list[float] = []

    def save_outside_changes(state: SessionState, write: Any) -> None:
        waited.append(time.time())

    monkeypatch.setattr(SessionState, "save_outside_changes", save_outside_changes)
    with Session("work", workspace=tmp_path, store=manager) as session:
        if is_async:
            asyncio.run(aecho())
        else:
            echo()
        assert session.calls[0]["ts"] <= waited[0]


@pytest.mark.parametrize(("on_drift", "kinds"), [("keep", ["outside"]), ("restore", [])])
def test_changes_that_the_next_opening_undoes_are_not_saved(on_drift, kinds, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    with Session("s", workspace=work, store=tmp_path / "store", on_drift=on_drift) as session:
        (work / "of_a_person").write_text("x")
        tool(lambda: None, name="nothing")()
        assert [row["kind"] for row in session.history() if row["kind"] == "outside"] == kinds
