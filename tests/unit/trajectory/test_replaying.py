"""`replay`: would the new code do the same?"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from agent_checkpoint import (
    Checkpointable,
    InvalidInputError,
    NotFoundError,
    Session,
    Suspended,
    current_workspace,
    replay,
    tool,
)
from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.trajectory.run_log import recorded_runs
from tests.unit.trajectory.trajectories import Coding, shell, write

DONE = []


@tool(effect="irreversible", key=lambda to: to)
def mail_once(to: str) -> str:
    DONE.append(to)
    return f"sent to {to}"


@tool
def look(name: str) -> str:
    DONE.append(name)
    return (current_workspace().path / name).read_text()


@tool(approve=True)
def asked() -> None:
    DONE.append("asked")


@tool
def absolute(path: str) -> str:
    return path


@tool
def fail(message: str) -> None:
    raise ValueError(message)


@tool
def outer(name: str) -> str:
    write(name, "inside")
    return "outer"


@pytest.fixture(autouse=True)
def nothing_happened():
    DONE.clear()
    yield
    for name in ("branches", "forks"):
        directory = data_home() / name
        assert not directory.exists() or list(directory.iterdir()) == []


def loop(session):
    session.messages.append({"role": "user", "content": "begin"})
    write("f", "1\n")
    text = look("f")
    write("d/g", text * 2)
    shell("chmod 700 f; mv d/g h")
    mail_once("ann")
    session.messages.append({"role": "assistant", "content": text})
    session.save()
    return text


@pytest.fixture
def recorded(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        loop(session)
    DONE.clear()
    return session


def test_an_unchanged_loop_matches_everywhere(recorded, manager, place):
    before = manager.history("s"), sorted(path.name for path in place.iterdir())
    with replay("s", loop, store=manager) as outcome:
        assert outcome.divergence is None
        assert (outcome.matched, outcome.recorded) == (5, 5)
        assert outcome.differences == []
        assert outcome.result == "1\n"
        root = outcome.session.workspace.path
        assert {path.name: path.read_text() for path in root.iterdir() if path.is_file()} == {
            "f": "1\n",
            "h": "1\n1\n",
        }
        assert (root / "f").stat().st_mode & 0o777 == 0o700
        assert list(outcome.session.messages) == list(recorded.messages)
        assert root != place
    assert DONE == []
    assert (manager.history("s"), sorted(path.name for path in place.iterdir())) == before


def test_each_step_has_the_recorded_files_and_state(recorded, manager):
    with replay("s", loop, store=manager) as outcome:
        made = list(manager.store.newest_first(outcome.session.key))
    rows = {item.label: item for item in made if item.kind == "save" and item.label}
    then = {item.label: item for item in manager.store.newest_first("s") if item.label}
    assert len(then) == 5
    for label, item in then.items():
        for part in ("workspace", "messages", "tasks", "calls"):
            assert rows[label].parts[part] == item.parts[part]


def test_effects_happen_nowhere_and_write_no_ledger(recorded, manager):
    streams = {name: len(manager.store.backend.read(name)) for name in streams_of(manager)}
    with replay("s", loop, store=manager) as outcome:
        assert [effect.session for effect in outcome.session.effects] == []
        after = {name: len(manager.store.backend.read(name)) for name in streams_of(manager)}
    assert DONE == []
    assert {name: after[name] - number for name, number in streams.items()} == dict.fromkeys(
        streams, 1
    )  # the epoch of the fork


def streams_of(manager):
    return list(manager.store.backend.streams("fx/"))


def test_a_changed_line_is_found_at_the_right_call(recorded, manager):
    def changed(session):
        session.messages.append({"role": "user", "content": "begin"})
        write("f", "1\n")
        text = look("f")
        write("d/g", text * 3)
        raise AssertionError("unreachable: the replay stops before")

    with replay("s", changed, store=manager) as outcome:
        found = outcome.divergence
        assert (found.kind, outcome.matched) == ("call", 2)
        assert found.checkpoint.endswith("-4")
        assert 'write({"name": "d/g", "text": "1\\n1\\n"})' in found.expected
        assert "1\\n1\\n1\\n" in found.actual
        assert str(found).startswith("The record has write(")
        assert outcome.result is None
        assert not (outcome.session.workspace.path / "d").exists()


def test_a_replay_leaves_no_key_unless_it_made_calls(recorded, manager):
    before = manager.list_keys()
    with replay("s", loop, store=manager) as outcome:
        assert outcome.session.key in manager.list_keys()
    outcome.close()
    assert manager.list_keys() == before
    live = replay("s", lambda session: write("g", "x"), store=manager, on_divergence="live")
    live.close()
    assert manager.list_keys() == sorted([*before, live.session.key])


def test_no_handler_of_the_loop_catches_the_stop(recorded, manager):
    def careful(session):
        try:
            write("other", "x")
        except Exception:
            return "caught"
        return "went on"

    with replay("s", careful, store=manager) as outcome:
        assert (outcome.divergence.kind, outcome.result) == ("call", None)


def test_nothing_is_called_after_the_stop(recorded, manager):
    """A `finally` block, or another task, makes further calls."""

    def changed(session):
        try:
            write("f", "other\n")
        finally:
            look("f")

    def swallowed(session):
        try:
            write("f", "other\n")
        except BaseException:
            session.model(lambda **request: DONE.append("model"), model="m", messages=[])

    for run in (changed, swallowed):
        with replay("s", run, store=manager) as outcome:
            assert (outcome.matched, outcome.divergence.kind) == (0, "call")
        assert DONE == []


def test_a_record_without_times_is_replayed(recorded, manager):
    from agent_checkpoint.session.tools.recorded_calls import RecordedCall

    for ts in ("x", [1], None, float("nan"), 10**400):
        call = RecordedCall({"ts": ts, "seconds": ts}, None)
        assert (call.began, call.ended) == (0.0, 0.0)


def test_a_loop_that_ends_early(recorded, manager):
    with replay("s", lambda session: write("f", "1\n"), store=manager) as outcome:
        assert (outcome.divergence.kind, outcome.matched) == ("end", 1)
        assert "goes on with look(" in str(outcome.divergence)


def test_a_loop_that_goes_on(recorded, manager):
    def longer(session):
        loop(session)
        write("more", "x")

    with replay("s", longer, store=manager) as outcome:
        assert (outcome.divergence.kind, outcome.divergence.expected) == ("call", None)
        assert "The record has ended" in str(outcome.divergence)


def test_live_goes_on_in_the_fork(recorded, manager, place):
    def changed(session):
        write("f", "1\n")
        write("new", "live\n")
        return look("new")

    with replay("s", changed, store=manager, on_divergence="live") as outcome:
        assert (outcome.divergence.kind, outcome.matched) == ("call", 1)
        assert outcome.result == "live\n"
        assert DONE == ["new"]
    assert not (place / "new").exists()


def test_live_refuses_irreversible_effects(recorded, manager):
    def changed(session):
        mail_once("bob")

    with replay("s", changed, store=manager, on_divergence="live") as outcome:
        assert (outcome.divergence.kind, outcome.matched, outcome.result) == ("call", 0, None)
        assert "irreversible" in str(outcome.error)
        (run,) = recorded_runs(manager, "s")
        assert "irreversible" in run.values["error"]
    assert DONE == []


def test_live_has_an_outcome_if_a_call_waits_for_an_approval(recorded, manager):
    with replay("s", lambda session: asked(), store=manager, on_divergence="live") as outcome:
        assert isinstance(outcome.error, Suspended)
        outcome.session.approvals.approve(outcome.error.approval_id)
        (row,) = outcome.session.carry_out()
        assert "The replay has ended" in row["error"]
    assert DONE == []


@pytest.mark.parametrize("on_divergence", ["stop", "live"])
def test_no_call_is_made_after_the_end(recorded, manager, on_divergence):
    """A thread that outlives the loop makes calls later."""
    ended, refused = Event(), []

    def late(session):
        ended.wait(60)
        for call in (
            lambda: look("f"),
            lambda: session.model(lambda **request: DONE.append("model"), model="m", messages=[]),
        ):
            try:
                call()
            except InvalidInputError as error:
                refused.append(str(error))

    threads = []

    def run(session):
        threads.append(Thread(target=copy_context().run, args=(late, session)))
        threads[0].start()
        write("f", "other\n")

    with replay("s", run, store=manager, on_divergence=on_divergence) as outcome:
        assert outcome.divergence.kind == "call"
        ended.set()
        threads[0].join()
    assert DONE == []
    assert ["The replay has ended" in words for words in refused] == [True, True]


@pytest.mark.skipif(not hasattr(asyncio, "TaskGroup"), reason="TaskGroup is new in Python 3.11")
def test_a_group_of_tasks_is_stopped(manager, place):
    @tool
    async def awaited(name: str) -> str:
        await asyncio.sleep(0)
        return name

    def in_group(*names):
        async def run(session):
            async with asyncio.TaskGroup() as group:
                for name in names:
                    group.create_task(awaited(name))

        return run

    with Session("s", workspace=place, store=manager) as session:
        asyncio.run(in_group("a", "b")(session))
    with replay("s", in_group("b", "a"), store=manager) as outcome:
        assert (outcome.divergence, outcome.error) == (None, None)
    with replay("s", in_group("a", "c"), store=manager) as outcome:
        assert (outcome.divergence.kind, outcome.matched, outcome.error) == ("call", 1, None)


def test_until_a_checkpoint(recorded, manager):
    with replay("s", loop, store=manager, until="@3") as outcome:
        assert (outcome.matched, outcome.recorded, outcome.divergence) == (2, 2, None)
        assert outcome.result is None


def test_files_that_are_not_as_they_were(recorded, manager):
    def changed(session):
        session.messages.append({"role": "user", "content": "begin"})
        write("f", "1\n")
        (session.workspace.path / "f").write_text("spoiled\n")
        look("f")
        write("d/g", "1\n1\n")
        shell("chmod 700 f; mv d/g h")

    with replay("s", changed, store=manager) as outcome:
        assert (outcome.divergence.kind, outcome.matched) == ("files", 3)
        assert list(outcome.divergence.actual) == ["f"]
        assert "f is not as it was before shell(" in str(outcome.divergence)


def test_files_that_the_loop_writes_itself(manager, place):
    def by_itself(session):
        (session.workspace.path / "own").write_text("by the loop\n")
        write("f", "1\n")
        return (session.workspace.path / "own").read_text()

    with Session("s", workspace=place, store=manager) as session:
        by_itself(session)
    with replay("s", by_itself, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched) == (None, 1)


def test_files_of_a_person_between_calls_are_there_again(manager, place):
    def by_loop(session):
        write("f", "1\n")
        write("g", "2\n")
        return look("by-a-person")

    with Session("s", workspace=place, store=manager):
        write("f", "1\n")
        (place / "by-a-person").write_text("x\n")
        write("g", "2\n")
        look("by-a-person")
    with replay("s", by_loop, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched, outcome.differences) == (None, 3, [])
        assert (outcome.session.workspace.path / "by-a-person").read_text() == "x\n"


def test_a_recorded_error_is_raised_again(manager, place):
    def caught(session):
        try:
            fail("boom")
        except ValueError as error:
            write("f", str(error))

    with Session("s", workspace=place, store=manager) as session:
        caught(session)
    with replay("s", caught, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched) == (None, 2)


def test_a_tool_that_calls_tools(manager, place):
    def nested(session):
        outer("f")
        write("g", "after")

    with Session("s", workspace=place, store=manager) as session:
        nested(session)
    with replay("s", nested, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched, outcome.recorded) == (None, 2, 2)
        assert (outcome.session.workspace.path / "f").read_text() == "inside"


def test_parallel_calls_match_in_any_order(manager, place):
    @tool
    def slow_write(name: str, seconds: float) -> str:
        time.sleep(seconds)
        (current_workspace().path / name).write_text(name)
        return name

    def parallel(names):
        def run(session):
            with ThreadPoolExecutor(3) as pool:
                futures = [pool.submit(copy_context().run, slow_write, name, 0.2) for name in names]
                return sorted(future.result() for future in futures)

        return run

    with Session("s", workspace=place, store=manager) as session:
        parallel("abc")(session)
    with replay("s", lambda session: [slow_write(n, 0.2) for n in "cab"], store=manager) as outcome:
        assert (outcome.divergence, outcome.matched) == (None, 3)
        assert sorted(path.name for path in outcome.session.workspace.path.iterdir()) == list("abc")


def test_calls_one_after_another_match_in_their_order(manager, place):
    with Session("s", workspace=place, store=manager):
        write("a", "1")
        write("b", "1")

    def swapped(session):
        write("b", "1")
        write("a", "1")

    with replay("s", swapped, store=manager) as outcome:
        assert outcome.matched == 0
        assert outcome.divergence.kind == "call"


def test_paths_of_the_workspace_are_translated(manager, place):
    def with_paths(session):
        return absolute(str(session.workspace.path / "f"))

    with Session("s", workspace=place, store=manager) as session:
        with_paths(session)
    with replay("s", with_paths, store=manager) as outcome:
        assert outcome.divergence is None
        assert outcome.result == str(place / "f")


def test_model_calls_are_answered_from_the_record(manager, place):
    asked = []

    def send(**request):
        asked.append(request)
        return {"content": [{"type": "text", "text": f"reply {len(asked)}"}], "model": "m"}

    def chat(question):
        def run(session):
            session.messages.append({"role": "user", "content": question})
            reply = session.model(send, model="m", messages=session.messages)
            write("f", reply["content"][0]["text"])
            session.messages.append({"role": "assistant", "content": reply["content"]})
            again = session.model(send, model="m", messages=session.messages)
            return again["content"][0]["text"]

        return run

    with Session("s", workspace=place, store=manager) as session:
        chat("hi")(session)
    asked.clear()
    with replay("s", chat("hi"), store=manager) as outcome:
        assert (outcome.divergence, outcome.result, outcome.differences) == (None, "reply 2", [])
        assert len(outcome.session.model_calls) == 2
    with replay("s", chat("hello"), store=manager) as outcome:
        found = outcome.divergence
        assert (found.kind, outcome.matched) == ("model", 0)
        assert "messages[0].content: recorded hi, now hello" in str(found)
    assert asked == []


def test_a_reply_has_attributes_as_well(manager, place):
    def send(**request):
        return SimpleNamespace(content=[SimpleNamespace(type="text", text="hi")], model="m")

    def chat(session):
        return session.model(send, model="m", messages=[]).content[0].text

    with Session("s", workspace=place, store=manager) as session:
        chat(session)
        session.save()
    with replay("s", chat, store=manager) as outcome:
        assert (outcome.divergence, outcome.result) == (None, "hi")


class Clock(Checkpointable):
    def __init__(self) -> None:
        self.steps = 0
        self.now = 0.0


def test_differences_of_the_clock_are_reported(manager, place):
    def timed(session):
        session.agent.steps += 1
        session.agent.now = time.time()
        write("f", "1\n")

    with Session("s", agent=Clock(), workspace=place, store=manager) as session:
        timed(session)
    with replay("s", timed, store=manager, agent=Clock()) as outcome:
        assert (outcome.divergence, outcome.matched) == (None, 1)
        (difference,) = outcome.differences
        assert difference.part == "agent"
        assert difference.words.startswith("now: recorded 1")
        assert difference.checkpoint.endswith("-2")


def test_a_coroutine(manager, place):
    @tool
    async def awaited(name: str) -> str:
        await asyncio.sleep(0)
        (current_workspace().path / name).write_text("x")
        return name

    async def run(session):
        return await awaited("f")

    async def record():
        async with Session("s", workspace=place, store=manager) as session:
            await run(session)

    asyncio.run(record())
    with replay("s", run, store=manager) as outcome:
        assert (outcome.divergence, outcome.result) == (None, "f")


def test_subagents(manager, place):
    def delegate(session):
        with session.subagent("helper"):
            write("f", "1\n")
        write("g", "2\n")

    with Session("s", workspace=place, store=manager) as session:
        delegate(session)
    with replay("s", delegate, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched) == (None, 2)


def test_tasks(manager, place):
    def work(session):
        for task in session.tasks(["one", "two"]):
            with task:
                write(task.id, task.id)

    with Session("s", workspace=place, store=manager) as session:
        work(session)
    with replay("s", work, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched, outcome.differences) == (None, 2, [])


def test_run_tools(manager, place):
    def ask(session):
        blocks = [
            {"type": "tool_use", "id": "t1", "name": "write", "input": {"name": "f", "text": "x"}}
        ]
        session.messages.append({"role": "user", "content": "go"})
        session.run_tools({"role": "assistant", "content": blocks}, [write], provider="anthropic")

    with Session("s", workspace=place, store=manager) as session:
        ask(session)
        said = session.messages.to_list()
    with replay("s", ask, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched) == (None, 1)
        assert outcome.session.messages.to_list() == said


def test_a_rollback_is_not_replayed(manager, place):
    with Session("s", workspace=place, store=manager) as session:
        write("f", "1")
        write("f", "wrong")
        session.rollback(steps=1)
        write("f", "2")

    def straight(session):
        write("f", "1")
        write("f", "2")

    with replay("s", straight, store=manager) as outcome:
        assert (outcome.divergence, outcome.matched) == (None, 2)


def test_an_error_of_the_loop_is_raised(recorded, manager):
    def broken(session):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replay("s", broken, store=manager)


def test_a_store_by_its_path(recorded, tmp_path):
    with replay("s", loop, store=tmp_path / "store") as outcome:
        assert outcome.divergence is None
    outcome.close()


@pytest.mark.parametrize(
    ("key", "options", "error"),
    [
        ("nokey", {}, NotFoundError),
        ("s", {"until": "@99"}, NotFoundError),
        ("s", {"on_divergence": "ignore"}, InvalidInputError),
        ("s", {"run": 3}, InvalidInputError),
    ],
)
def test_what_cannot_be_replayed_is_refused(recorded, manager, key, options, error):
    with pytest.raises(error):
        replay(key, **{"run": loop, "store": manager, **options})


def test_a_coding_agent_has_no_loop_to_replay(manager, place, tmp_path):
    agent = Coding(tmp_path / "store", place)
    agent.write("f", "x")
    with pytest.raises(InvalidInputError, match="is not a session"):
        replay(agent.key, loop, store=manager)
