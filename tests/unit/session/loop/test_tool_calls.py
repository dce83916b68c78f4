"""run_tools: the calls of a model's message are made once each, and their results appended."""

import asyncio
import datetime
import functools
import json
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import PurePosixPath

import pytest

from agent_checkpoint import Session, Suspended, tool, transcripts
from agent_checkpoint.errors import ConflictError, InvalidInputError, StorageError
from agent_checkpoint.session.rollback.rollback import Rollback
from tests.agents import Agent
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results, text_reply
from tests.unit.session.stores import Killed, killed, manager_on

_mails = []
_made = []


@pytest.fixture(autouse=True)
def nothing_made():
    _mails.clear()
    _made.clear()


def double(n):
    _made.append(n)
    return 2 * n


def fails(n):
    _made.append(n)
    raise ValueError(f"no {n}")


async def adouble(n):
    await asyncio.sleep(0)
    return double(n)


@tool(effect="irreversible")
def send_mail(to):
    _mails.append(to)
    return f"mail {len(_mails)}"


@tool(effect="irreversible", key=lambda order: order)
def publish(order):
    _mails.append(order)
    if order == "killed":
        raise Killed
    return {"published": order}


@tool(effect="irreversible", approve=True)
def deploy(version):
    _mails.append(version)
    return f"deployed {version}"


@tool(approve=True)
def delete(path):
    _made.append(path)
    return "deleted"


TOOLS = [double, fails, send_mail, publish, deploy, delete]
A = "anthropic"


def session_with(api, message, store, **options):
    session = Session("job", store=store, **options)
    session.messages.extend([USER[api], *(message if isinstance(message, list) else [message])])
    return session


@pytest.mark.parametrize("provider", PROVIDERS)
def test_calls_are_made_and_their_results_are_what_the_api_wants(memory, provider):
    message = reply(provider, ("c1", "double", {"n": 1}), ("c2", "double", {"n": 2}))
    with session_with(provider, message, memory) as session:
        appended = session.run_tools(message, TOOLS, provider=provider)
        assert _made == [1, 2]
        told = results(session.messages)
        assert [call_id for call_id, _ in told] == ["c1", "c2"]
        assert [str(value) for _, value in told] == ["2", "4"]
        assert appended == list(session.messages)[-len(appended) :]
        assert transcripts.check(session.messages, provider=provider) == []
        assert [(row["call_id"], row["result"]) for row in session.calls] == [("c1", 2), ("c2", 4)]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_message_is_appended_once(memory, provider):
    message = reply(provider, ("c1", "double", {"n": 1}))
    with Session("job", store=memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(message, TOOLS)
        after = list(session.messages)
        assert session.run_tools(session.messages, TOOLS) == []
        assert list(session.messages) == after
        assert transcripts.check(after, provider=provider) == []
        answer = text_reply(provider, "done")
        assert session.run_tools(answer, TOOLS) == []
        assert session.run_tools(answer, TOOLS) == []
        assert session.run_tools(session.messages[-1], TOOLS) == []
        assert list(session.messages) == [*after, answer]
        assert _made == [1]


def test_the_same_answer_to_another_question_is_appended(memory):
    with Session("job", store=memory, provider=A) as session:
        for _ in range(2):
            session.messages.append(USER[A])
            session.run_tools(text_reply(A, "yes"), TOOLS)
        assert len(session.messages) == 4


def test_a_message_of_the_user_is_not_appended(memory):
    with Session("job", store=memory, provider=A) as session:
        session.messages.append(USER[A])
        assert session.run_tools(USER[A], TOOLS) == []
        with pytest.raises(InvalidInputError, match="a message of the model"):
            session.run_tools({"role": "user", "content": "other"}, TOOLS)
        assert len(session.messages) == 1


@pytest.mark.parametrize("message", ["hello", None, 7, b"x"])
def test_what_is_no_message_is_refused(memory, message):
    with Session("job", store=memory, provider=A) as session:
        with pytest.raises(InvalidInputError, match=r"run_tools takes a message of the model"):
            session.run_tools(message, TOOLS)
        assert len(session.messages) == 0


@pytest.mark.parametrize(
    "tools", [[{"name": "double", "input_schema": {}}], ["double"], "double", None, {"double": {}}]
)
def test_schemas_and_names_are_no_tools(memory, tools):
    with Session("job", store=memory, provider=A) as session:
        with pytest.raises(InvalidInputError, match=r"tools= is a list of Python functions"):
            session.run_tools(text_reply(A, "yes"), tools)
        assert len(session.messages) == 0


def test_the_provider_must_be_known(memory):
    with Session("job", store=memory) as session:
        with pytest.raises(InvalidInputError, match="needs a provider"):
            session.run_tools(text_reply(A, "yes"), TOOLS)
        with pytest.raises(InvalidInputError, match="provider must be"):
            session.run_tools(text_reply(A, "yes"), TOOLS, provider="other")
    with pytest.raises(InvalidInputError, match="provider must be"):
        Session("job", store=memory, provider="other")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("fails", {"n": 3}, "ValueError: no 3"),
        ("unheard", {}, "There is no tool 'unheard'. The tools are: double, fails"),
        ("double", {"m": 3}, "Invalid arguments: "),
        ("double", [3], "The arguments are not an object."),
    ],
)
def test_errors_are_results_for_the_model(memory, provider, name, arguments, words):
    message = reply(provider, ("c1", name, arguments), ("c2", "double", {"n": 2}))
    with session_with(provider, message, memory, provider=provider) as session:
        session.run_tools(message, TOOLS)
        (_, error), (_, value) = results(session.messages)
        text = error["error"] if provider == "gemini" else error
        assert words in text
        assert str(value) == "4"
        if provider == A:
            assert session.messages[-1]["content"][0]["is_error"] is True
            assert "is_error" not in session.messages[-1]["content"][1]
        assert words in session.calls[0]["error"]
        assert session.calls[0]["call_id"] == "c1"
        if name != "double" or "m" in arguments:  # other arguments are refused by the API itself
            assert transcripts.check(session.messages, provider=provider) == []


def test_arguments_that_are_not_json_are_a_result_for_the_model(memory):
    message = reply("openai", ("c1", "double", '{"n": '))
    with session_with("openai", message, memory, provider="openai") as session:
        session.run_tools(message, TOOLS)
        assert "cannot be decoded" in session.messages[-1]["content"]
        assert _made == []


def test_results_are_json_unless_they_are_text_or_blocks(memory):
    @dataclass
    class Weather:
        degrees: int
        sky: str

    blocks = [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]
    tools = {
        "text": lambda: "plain",
        "weather": lambda: Weather(3, "blå"),
        "blocks": lambda: blocks,
        "rows": lambda: [{"type": "row", "n": 1}],
        "nothing": lambda: None,
    }
    calls = [(f"c{n}", name, {}) for n, name in enumerate(tools)]
    message = reply(A, *calls)
    with session_with(A, message, memory, provider=A) as session:
        session.run_tools(message, tools)
        told = [content for _, content in results(session.messages)]
    assert told[0] == "plain"
    assert told[1] == '{"degrees": 3, "sky": "blå"}'
    assert told[2] == blocks
    assert told[3] == '[{"type": "row", "n": 1}]'
    assert "finished" in told[4]


# -- tools -----------------------------------------------------------------------------------------


def test_tools_are_known_by_their_names(memory):
    class Desk:
        def __init__(self):
            self.papers = []

        @tool
        def file(self, paper):
            self.papers.append(paper)
            return len(self.papers)

        def count(self):
            return len(self.papers)

    @tool(name="mail")
    def other_name(to):
        return to

    desk = Desk()
    message = reply(
        A, ("c1", "file", {"paper": 1}), ("c2", "count", {}), ("c3", "mail", {"to": "ann"})
    )
    with session_with(A, message, memory, provider=A) as session:
        session.run_tools(message, [desk.file, desk.count, other_name])
        assert [value for _, value in results(session.messages)] == ["1", "1", "ann"]


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([double, double], "Two tools are named 'double'"),
        ({"a": 3}, "'a' is not a function"),
        ([object()], "has no name"),
    ],
)
def test_other_things_are_no_tools(memory, tools, words):
    session = session_with(A, reply(A), memory, provider=A)
    with pytest.raises(InvalidInputError, match=words):
        session.run_tools(session.messages, tools)


def test_a_loop_within_a_tool_is_refused(memory):
    session = Session("job", store=memory, provider=A)

    def inner():
        session.run_tools(session.messages, TOOLS)

    session.messages.append(USER[A])
    session.run_tools(reply(A, ("c1", "inner", {})), [inner])
    assert "already running" in results(session.messages)[0][1]


# -- once each -------------------------------------------------------------------------------------


def test_the_reply_is_saved_before_the_first_call(memory):
    def first():
        _made.append(1)
        raise Killed

    message = reply(A, ("c1", "first", {}))
    with killed("job", memory, provider=A) as session:
        session.messages.append(USER[A])
        session.run_tools(message, [first])
    with Session("job", store=memory, provider=A) as session:
        assert list(session.messages) == [USER[A], message]
        assert session.notices == []
        session.run_tools(session.messages, {"first": lambda: "done"})
        assert results(session.messages) == [("c1", "done")]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("number", range(4))
def test_after_a_crash_no_call_is_repeated_or_skipped(memory, provider, number):
    """The process is killed in each of three calls, and after the last one."""
    message = reply(provider, *((f"c{n}", "step", {"n": n}) for n in range(3)))
    alive = []

    def step(n):
        if n == number and not alive:
            raise Killed
        _made.append(n)
        if n == 1:
            raise ValueError("no 1")
        return n

    with killed("job", memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(message, [step])
        raise Killed
    alive.append(True)
    with Session("job", store=memory, provider=provider) as session:
        assert [row["arguments"]["n"] for row in session.calls] == list(range(min(number, 3)))
        session.run_tools(session.messages, [step])
        assert _made == [0, 1, 2]
        assert [row["call_id"] for row in session.calls] == ["c0", "c1", "c2"]
        told = results(session.messages)
        assert [call_id for call_id, _ in told] == ["c0", "c1", "c2"]
        assert "ValueError: no 1" in str(told[1][1])
        assert transcripts.check(session.messages, provider=provider) == []


def test_calls_without_ids_are_known_by_their_place(memory):
    def message():
        calls = reply("gemini", ("", "step", {"n": 1}), ("", "step", {"n": 1}))
        for part in calls["parts"][1:]:
            del part["function_call"]["id"]
        return calls

    alive = []

    def step(n):
        _made.append(n)
        if len(_made) == 2 and not alive:
            raise Killed
        return len(_made)

    with killed("job", memory, provider="gemini") as session:
        session.messages.append(USER["gemini"])
        session.run_tools(message(), [step])
    alive.append(True)
    with Session("job", store=memory, provider="gemini") as session:
        session.run_tools(session.messages, [step])
        assert [value for _, value in results(session.messages)] == [1, 3]
        session.run_tools(message(), [step])  # a new message with the same calls
        assert [value for _, value in results(session.messages)] == [1, 3, 4, 5]


def test_ids_that_a_server_repeats_are_other_calls(memory):
    with Session("job", store=memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        for n in range(3):
            session.run_tools(reply("openai", ("call_0", "double", {"n": n})), TOOLS)
        assert _made == [0, 1, 2]
        assert [value for _, value in results(session.messages)] == ["0", "2", "4"]


def test_a_result_appended_by_hand_is_not_made_again(memory):
    alive = []

    def step(n):
        _made.append(n)
        if n == 2 and not alive:
            raise Killed
        return n

    message = reply("openai", *((f"c{n}", "step", {"n": n}) for n in range(3)))
    with killed("job", memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        session.run_tools(message, [step])
    alive.append(True)
    with Session("job", store=memory) as session:
        session.messages.append({"role": "tool", "tool_call_id": "c0", "content": "by hand"})
        session.run_tools(session.messages, [step], provider="openai")
        assert results(session.messages) == [("c0", "by hand"), ("c1", "1"), ("c2", "2")]
        assert _made == [0, 1, 2, 2]


def test_every_says_when_to_save(memory):
    message = reply(A, *((f"c{n}", "double", {"n": n}) for n in range(4)))
    kinds = {}
    for every in ("tool", 2, "task", "manual"):
        with session_with(A, message, memory, provider=A, every=every) as session:
            before = session.head
            session.run_tools(message, TOOLS)
            rows = session.history()
            at = next(n for n, row in enumerate(rows) if row["id"] == before)
            kinds[every] = [row["label"] for row in reversed(rows[:at])]
        memory.delete("job")
    calls = [f"double(n={n})" for n in range(4)]
    assert kinds["tool"] == ["reply: double, double, double, double", *calls]
    assert kinds[2] == [calls[1], calls[3]]
    assert kinds["task"] == kinds["manual"] == []


def test_a_failed_checkpoint_is_raised(memory):
    message = reply(A, ("c1", "steal", {}))

    def steal():
        Session("job", store=memory).close()

    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(ConflictError):
            session.run_tools(message, [steal])
        session.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reply_whose_save_failed_is_saved_before_the_first_call(memory, is_async, monkeypatch):
    saved = []

    def look():
        saved.append(memory.history("job", 1)[0]["label"])

    def run(session):
        if is_async:
            return asyncio.run(session.arun_tools(message, [look]))
        return session.run_tools(message, [look])

    message = reply(A, ("c1", "look", {}))
    with Session("job", store=memory, provider=A) as session:
        session.messages.append(USER[A])
        with monkeypatch.context() as patch:
            patch.setattr(memory.store, "write", failing)
            with pytest.raises(StorageError):
                run(session)
        run(session)
        assert saved == ["reply: look"]
        run(session)
        assert [row["label"] for row in session.history(2)] == ["look()", "reply: look"]


def failing(*_, **__):
    raise StorageError("disk full")


def test_a_rollback_runs_the_calls_again(memory):
    message = reply(A, ("c1", "double", {"n": 1}), ("c2", "double", {"n": 2}))
    with session_with(A, message, memory, provider=A) as session:
        session.run_tools(message, TOOLS)
        session.rollback(steps=1)
        assert list(session.messages) == [USER[A], message]
        session.run_tools(session.messages, TOOLS)
        assert _made == [1, 2, 2]
        assert [value for _, value in results(session.messages)] == ["2", "4"]


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [False, True])
def test_files_of_an_interrupted_call_go_back(memory, place, parallel):
    """A line of the first call is saved, that of the second is not; both are there once at last."""
    alive, both = [], threading.Barrier(2, timeout=20)

    def write(n):
        with open(place / "lines", "a") as file:
            file.write(f"{n}\n")
        if parallel and not alive:
            both.wait()
        if n == 2 and not alive:
            raise Killed
        return n

    message = reply(A, ("c1", "write", {"n": 1}), ("c2", "write", {"n": 2}))
    options = {"provider": A, "workspace": place, "on_drift": "restore"}
    with killed("job", memory, **options) as session:
        session.messages.append(USER[A])
        session.run_tools(message, [write], parallel=parallel)
    alive.append(True)
    with Session("job", store=memory, **options) as session:
        session.run_tools(session.messages, [write], parallel=parallel)
        assert sorted((place / "lines").read_text().split()) == ["1", "2"]
        assert [value for _, value in results(session.messages)] == ["1", "2"]


def test_kept_drift_is_reported_and_the_call_is_in_doubt(memory, place):
    def write():
        (place / "half").write_text("")
        raise Killed

    message = reply(A, ("c1", "write", {}))
    with killed("job", memory, provider=A, workspace=place) as session:
        session.messages.append(USER[A])
        session.run_tools(message, [write])
    with Session("job", store=memory, provider=A) as session:
        assert any("1 file changed" in notice for notice in session.notices)
        assert session.call_outcome("c1").status == "unknown"


def test_an_interrupt_is_like_a_crash(memory, place):
    def write():
        (place / "half").write_text("")
        raise KeyboardInterrupt

    message = reply(A, ("c1", "write", {}))
    options = {"provider": A, "workspace": place, "on_drift": "restore"}
    with pytest.raises(KeyboardInterrupt), Session("job", store=memory, **options) as session:
        session.messages.append(USER[A])
        session.run_tools(message, [write])
    with Session("job", store=memory, **options) as session:
        assert not (place / "half").exists()
        session.run_tools(session.messages, {"write": lambda: "done"})
        assert results(session.messages) == [("c1", "done")]


def test_a_rollback_of_another_part_keeps_the_results_of_the_open_calls(memory):
    message = reply(A, ("c1", "double", {"n": 1}), ("c2", "deploy", {"version": 7}))
    with Session("job", store=memory, provider=A, agent=Agent()) as session:
        session.messages.append(USER[A])
        before = session.save()
        for _ in range(2):
            with pytest.raises(Suspended):
                session.run_tools(message, TOOLS)
            session.rollback(to=before, parts=["agent"])
    assert _made == [1]


def test_calls_are_known_however_their_arguments_are_written(memory):
    message = reply(A, ("c1", "double", {"n": 1}), ("c2", "deploy", {"version": 7}))
    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(Suspended):
            session.run_tools(message, TOOLS)
        blocks = session.messages.to_list()[-1]["content"]
        blocks[-2]["input"], blocks[-1]["cache_control"] = '{"n": 1}', {"type": "ephemeral"}
        session.messages[-1] = {"content": blocks, "role": "assistant"}
        with pytest.raises(Suspended):
            session.run_tools(session.messages, TOOLS)
    assert _made == [1]


def test_an_older_request_does_not_answer_a_call_of_the_open_batch(memory):
    with Session("job", store=memory, provider="gemini") as session:
        session.messages.append(USER["gemini"])
        requests = []
        for message in (
            reply("gemini", ("c1", "deploy", {"version": 1})),
            reply("gemini", ("c1", "double", {"n": 3}), ("c2", "deploy", {"version": 2})),
        ):
            session.messages.truncate(1)  # the first reply is abandoned
            with pytest.raises(Suspended) as suspended:
                session.run_tools(message, TOOLS)
            requests.append(suspended.value.approval_id)
        for request in requests:
            session.approvals.approve(request)
        session.carry_out()
        session.run_tools(session.messages, TOOLS)
        assert [str(value) for _, value in results(session.messages)] == ["6", "deployed 2"]


def test_what_follows_a_caught_interrupt_is_saved(memory):
    def stop():
        raise KeyboardInterrupt

    with session_with(A, message := reply(A, ("c1", "stop", {})), memory, provider=A) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(message, [stop])
        session.messages = transcripts.repair(session.messages, provider=A, session=session)
        session.messages.append(USER[A])
        count = len(session.messages)
    with Session(session.key, store=memory, provider=A) as session:
        assert len(session.messages) == count


@pytest.mark.parametrize("api", ["openai", "gemini"])
def test_the_id_of_an_interrupted_call_may_be_used_again(api, memory):
    def work(n):
        _made.append(n)
        if n == 1:
            raise KeyboardInterrupt
        return n

    with session_with(api, message := reply(api, ("c1", "work", {"n": 1})), memory) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(message, [work], provider=api)
        session.messages = transcripts.repair(session.messages, provider=api, session=session)
        session.messages.append(USER[api])
        session.run_tools(reply(api, ("c1", "work", {"n": 2})), [work], provider=api)
    assert _made == [1, 2]


def test_a_program_that_goes_on_after_an_interrupt_tells_the_model(memory):
    def stop():
        _made.append(1)
        raise KeyboardInterrupt

    message = reply(A, ("c1", "stop", {}), ("c2", "double", {"n": 2}))
    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(message, [stop, double])
        assert session.call_outcome("c1").status == "unknown"
        assert session.call_outcome("c2").status == "not-done"
        session.run_tools(message, [stop, double])
        assert _made == [1, 2]
        assert "The call was interrupted. Its outcome is unknown." in str(
            results(session.messages)[0]
        )
    with Session("job", store=memory, provider=A) as session:
        assert len(results(session.messages)) == 2


def interrupt_main_thread():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def test_an_interrupt_cancels_the_coroutine_tool_that_runs(memory):
    ended = []

    async def slow():
        try:
            interrupt_main_thread()
            await asyncio.sleep(20)
        finally:
            ended.append("cancelled")

    message = reply(A, ("c1", "slow", {}))
    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(message, [slow])
        assert ended == ["cancelled"]
        assert session._state.running == []
        assert session.call_outcome("c1").status == "unknown"


def test_a_coroutine_tool_that_ends_in_spite_of_an_interrupt_has_ended(memory):
    async def stubborn():
        interrupt_main_thread()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(20)
        return "done"

    message = reply(A, ("c1", "stubborn", {}))
    session = session_with(A, message, memory, provider=A)
    with pytest.raises(KeyboardInterrupt), session:
        session.run_tools(message, [stubborn])
    with Session("job", store=memory, provider=A) as session:
        assert [row["result"] for row in session.calls] == ["done"]
        session.run_tools(session.messages, {"stubborn": fails})
        assert results(session.messages) == [("c1", "done")]


def test_the_row_of_a_call_that_was_left_running_answers_no_other_call(memory):
    """A second Ctrl-C leaves a tool behind that does not end."""
    go_on = threading.Event()

    async def stuck(n):
        interrupt_main_thread()
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            interrupt_main_thread()
            await asyncio.to_thread(go_on.wait)
            return "late"

    def other(n):
        go_on.set()
        while session._state.in_flight != ["other"]:
            time.sleep(0.001)
        return "other"

    message = reply("gemini", (None, "stuck", {"n": 1}))
    with session_with("gemini", message, memory, provider="gemini") as session:
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(message, [stuck])
        assert session._state.in_flight == ["stuck"]
        session.run_tools(message, [stuck])
        session.messages.append(USER["gemini"])
        session.run_tools(reply("gemini", (None, "other", {"n": 2})), [other])
        assert results(session.messages)[-1] == (None, "other")
        assert [row["tool"] for row in session.calls] == ["stuck", "other"]


# -- external side effects -------------------------------------------------------------------------


def test_an_effect_that_was_committed_is_not_repeated(memory):
    """The process is killed between the record of the effect and the checkpoint."""
    message = reply(A, ("c1", "send_mail", {"to": "ann"}))
    with killed("job", memory, provider=A) as session:
        session.messages.append(USER[A])
        real, saves = session._state.save, []

        def save(**options):
            saves.append(options)
            if len(saves) > 1:
                raise Killed
            return real(**options)

        session._state.save = save
        session.run_tools(message, TOOLS)
    with Session("job", store=memory, provider=A) as session:
        outcome = session.call_outcome("c1")
        assert (outcome.status, outcome.result) == ("done", "mail 1")
        session.run_tools(session.messages, TOOLS)
        assert results(session.messages) == [("c1", "mail 1")]
        assert _mails == ["ann"]


def test_the_model_is_told_when_an_outcome_is_unknown(memory):
    message = reply(A, ("c1", "publish", {"order": "killed"}), ("c2", "double", {"n": 2}))
    with killed("job", memory, provider=A) as session:
        session.messages.append(USER[A])
        session.run_tools(message, TOOLS)
    with Session("job", store=memory, provider=A) as session:
        assert session.call_outcome("c1").status == "unknown"
        assert session.call_outcome("c2").status == "not-done"
        assert session.call_outcome("c3") is None
        session.run_tools(session.messages, TOOLS)
        (_, told), (_, value) = results(session.messages)
        assert "outcome is unknown" in told
        assert "until a person has recorded" in told
        assert value == "4"
        assert session.messages[-1]["content"][0]["is_error"]
        session.run_tools(reply(A, ("c4", "publish", {"order": "killed"})), TOOLS)
        assert "outcome is unknown" in results(session.messages)[-1][1]
        assert _mails == ["killed"]
        (effect,) = session.effects
        session.resolve(effect.id, happened=True, result="it is there")
        session.run_tools(reply(A, ("c5", "publish", {"order": "killed"})), TOOLS)
        assert results(session.messages)[-1] == ("c5", "it is there")
        assert _mails == ["killed"]


def test_a_person_can_answer_before_the_loop_goes_on(memory):
    message = reply(A, ("c1", "publish", {"order": "killed"}))
    with killed("job", memory, provider=A) as session:
        session.messages.append(USER[A])
        session.run_tools(message, TOOLS)
    with Session("job", store=memory, provider=A) as session:
        session.resolve(session.effects[0].id, happened=True, result="it is there")
        assert session.call_outcome("c1").result == "it is there"
        session.run_tools(session.messages, TOOLS)
        assert results(session.messages) == [("c1", "it is there")]


def test_an_unknown_outcome_is_looked_up_again(memory):
    """It is not recorded with the other calls: a person may answer until the model is told."""

    def stop():
        raise Killed

    calls = [("c1", "publish", {"order": "killed"}), ("c2", "double", {"n": 2}), ("c3", "stop", {})]
    with killed("job", memory, provider=A) as session:
        session.messages.append(USER[A])
        session.run_tools(reply(A, *calls), [*TOOLS, stop])
    with killed("job", memory, provider=A) as session:
        session.run_tools(session.messages, [*TOOLS, stop])
    with Session("job", store=memory, provider=A) as session:
        assert _made == [2]
        session.resolve(session.effects[0].id, happened=True, result="it is there")
        session.run_tools(
            session.messages, {**{f.__name__: f for f in TOOLS}, "stop": lambda: "ok"}
        )
        told = [("c1", "it is there"), ("c2", "4"), ("c3", "ok")]
        assert results(session.messages) == told
        assert _made == [2]


def test_the_error_of_an_effect_says_that_its_outcome_is_unknown(memory):
    @tool(effect="irreversible")
    def risky(*, effect, sure):
        if sure:
            effect.not_done()
        raise OSError("line is dead")

    calls = [("c1", "risky", {"sure": False}), ("c2", "risky", {"sure": True})]
    message = reply(A, *calls)
    with session_with(A, message, memory, provider=A) as session:
        session.run_tools(message, [risky])
        (_, unsure), (_, sure) = results(session.messages)
        assert unsure.startswith("OSError: line is dead The outcome is unknown.")
        assert sure == "OSError: line is dead"


def test_after_a_rollback_a_new_call_id_is_the_same_mail(memory):
    with Session("job", store=memory, provider=A) as session:
        session.messages.append(USER[A])
        start = session.save()
        session.run_tools(reply(A, ("c1", "send_mail", {"to": "ann"})), TOOLS)
        session.rollback(to=start, effects="warn")
        again = reply(A, ("c7", "send_mail", {"to": "ann"}), ("c8", "send_mail", {"to": "ann"}))
        session.run_tools(again, TOOLS)
        assert results(session.messages) == [("c7", "mail 1"), ("c8", "mail 2")]
        assert _mails == ["ann", "ann"]  # the second was meant to be another one
        assert [row["replayed"] for row in session.calls] == [True, False]


# -- approvals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("name", ["deploy", "delete"])
@pytest.mark.parametrize("way", ["run_tools", "carry_out"])
def test_a_call_that_waits_is_completed_after_the_answer(memory, parallel, name, way):
    arguments = {"version": 2} if name == "deploy" else {"path": "x"}
    message = reply(A, ("c1", name, arguments), ("c2", "double", {"n": 2}))
    session = session_with(A, message, memory, provider=A)
    with pytest.raises(Suspended) as waiting, session:
        session.run_tools(message, TOOLS, parallel=parallel)
    assert _made == [2]
    assert _mails == []
    with Session("job", store=memory, provider=A) as session:
        assert list(session.messages) == [USER[A], message]
        with pytest.raises(Suspended):
            session.run_tools(session.messages, TOOLS, parallel=parallel)
        session.approvals.approve(waiting.value.approval_id)
        if way == "carry_out":
            session.carry_out()
        session.run_tools(session.messages, TOOLS, parallel=parallel)
        (_, told), (_, value) = results(session.messages)
        assert told == ("deployed 2" if name == "deploy" else "deleted")
        assert value == "4"
        assert _made == ([2] if name == "deploy" else [2, "x"])
        assert _mails == ([2] if name == "deploy" else [])


class Release:
    """A local tool that changes state and files, and then calls a tool that needs approval."""

    def __init__(self, place):
        self.agent, self.path = Agent(), place / "notes"

    def open(self, store):
        options = {"agent": self.agent, "workspace": self.path.parent}
        return Session("job", store=store, provider=A, **options)

    def release(self, version):
        self.agent.count += 1
        with self.path.open("a") as file:
            file.write("bump ")
        return deploy(version)

    @property
    def changes(self):
        text = self.path.read_text() if self.path.exists() else ""
        return self.agent.count, text


RELEASE = reply(A, ("c1", "release", {"version": 1}), ("c2", "double", {"n": 1}))


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize("way", ["one by one", "parallel", "async", "async parallel"])
def test_a_call_within_which_another_one_waits_begins_again(memory, place, way, is_resumed):
    job = Release(place)

    def run(session):
        tools, options = [job.release, double], {"parallel": "parallel" in way}
        if "async" in way:
            return asyncio.run(session.arun_tools(session.messages, tools, **options))
        return session.run_tools(session.messages, tools, **options)

    with job.open(memory) as session:
        session.messages.extend([USER[A], RELEASE])
        with pytest.raises(Suspended) as suspended:
            run(session)
        assert job.changes == (0, "")
        label = f"release waits for {suspended.value.approval_id}"
        assert session.history(1)[0]["label"] == label
        if not is_resumed:
            count = len(session.history())
            with pytest.raises(Suspended):  # it is not begun while there is no answer
                run(session)
            assert len(session.history()) == count
            session.approvals.approve(suspended.value.approval_id)
            run(session)
    if is_resumed:
        assert job.changes == (0, "")
        job = Release(place)
        with job.open(memory) as session:
            session.approvals.approve(suspended.value.approval_id)
            run(session)
    assert job.changes == (1, "bump ")
    assert _mails == [1]
    assert results(session.messages) == [("c1", "deployed 1"), ("c2", "2")]


def test_what_cannot_be_rolled_back_before_an_approval_is_reported(memory, place, monkeypatch):
    def refuse(*_, **__):
        raise StorageError("disk full")

    job = Release(place)
    with pytest.raises(Suspended), job.open(memory) as session:
        session.messages.extend([USER[A], RELEASE])
        monkeypatch.setattr(Rollback, "run", refuse)
        session.run_tools(session.messages, [job.release, double])
    assert any("could not be rolled back: disk full" in notice for notice in session.notices)
    with Release(place).open(memory) as session:
        assert session._state.root.agent.count == 0


@pytest.mark.parametrize("name", ["deploy", "release"])
@pytest.mark.parametrize("is_answered", [False, True])
def test_a_request_is_withdrawn_if_the_conversation_goes_on(memory, is_answered, name):
    def release(version):
        return deploy(version)

    message = reply(A, ("c1", name, {"version": 1}))
    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(Suspended) as suspended:
            session.run_tools(message, [deploy, release])
        asked = suspended.value.approval_id
        assert session.call_outcome("c1").status == "not-done"
        assert "may still be executed" in session.call_outcome("c1").note
        session.messages.append(USER[A])
        if is_answered:
            session.approvals.approve(asked)
    with Session("job", store=memory, provider=A) as session:
        assert "not executed" in str(results(session.messages))
        assert "may still be" not in str(results(session.messages))
        (notice,) = [one for one in session.notices if asked in one]
        assert "was withdrawn: the conversation went on without the call" in notice
        assert session.approvals.get(asked).status == "void"
        assert session.carry_out() == []
    assert _mails == []


def test_a_request_is_kept_if_the_program_has_answered_the_call(memory):
    message = reply(A, ("c1", "deploy", {"version": 1}))
    block = {"type": "tool_result", "tool_use_id": "c1", "content": "waits for approval"}
    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(Suspended) as suspended:
            session.run_tools(message, [deploy])
        session.messages.append({"role": "user", "content": [block]})
        session.messages.append(reply(A, ("c2", "double", {"n": 1})))
        session.messages.append(USER[A])
    with Session("job", store=memory, provider=A) as session:
        assert any("repaired" in notice for notice in session.notices)
        session.approvals.approve(suspended.value.approval_id)
        assert len(session.carry_out()) == 1
    assert _mails == [1]


def test_a_denied_call_is_told_to_the_model_once(memory):
    message = reply(A, ("c1", "deploy", {"version": 2}), ("c2", "deploy", {"version": 3}))
    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(Suspended) as waiting:
            session.run_tools(message, TOOLS)
        session.approvals.deny(waiting.value.approval_id, "not on a Friday")
        with pytest.raises(Suspended):  # the second is still waiting
            session.run_tools(message, TOOLS)
        session.approvals.approve(session.approvals.pending()[0].id)
        session.run_tools(message, TOOLS)
        (_, denied), (_, done) = results(session.messages)
        assert "not on a Friday" in denied
        assert done == "deployed 3"


@tool(effect="idempotent", approve=True)
def refund(amount):
    _made.append(amount)
    if len(_made) == 1 and amount == 9:
        raise Killed
    return "ok"


def _approved_with_9(memory, provider, message, tools, way="run_tools"):
    session = session_with(provider, message, memory, provider=provider)
    with pytest.raises(Suspended) as waiting:
        session.run_tools(message, tools)
    session.approvals.approve(waiting.value.approval_id, edit={"amount": 9})
    if way == "carry_out":
        session.carry_out()
    session.run_tools(message, tools)
    return session


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("way", ["run_tools", "carry_out"])
@pytest.mark.parametrize("effect", ["irreversible", "local"])
def test_the_model_is_told_of_edited_arguments(memory, provider, way, effect):
    @tool(effect=effect, approve=True)
    def pay(amount, to):
        return "ok"

    message = reply(provider, ("c1", "pay", {"amount": 900, "to": "ann"}))
    with _approved_with_9(memory, provider, message, [pay], way) as session:
        told = json.dumps(session.messages[-1])
        assert "A person approved this call with other arguments than yours" in told
        assert 'amount\\": 9}' in told
        assert "ann" not in told
        assert "ok" in told
        assert session.calls[-1]["edited"] == ["amount"]
        assert session.calls[-1]["arguments"] == {"amount": 9, "to": "ann"}
        assert transcripts.check(session.messages, provider=provider) == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_note_on_edited_arguments_comes_before_content_blocks(memory, provider):
    type_ = "input_text" if provider == "openai-responses" else "text"

    @tool(approve=True)
    def pay(amount):
        return [{"type": type_, "text": "ok"}]

    message = reply(provider, ("c1", "pay", {"amount": 900}))
    with _approved_with_9(memory, provider, message, [pay]) as session:
        ((_, told),) = results(session.messages)
        assert told[-1] == {"type": type_, "text": "ok"}
        note = session.messages[-1]["parts"][0] if provider == "gemini" else told[0]
        assert "A person approved" in json.dumps(note)


def test_unedited_arguments_need_no_note(memory):
    message = reply(A, ("c1", "deploy", {"version": 2}))
    with session_with(A, message, memory, provider=A) as session:
        with pytest.raises(Suspended) as waiting:
            session.run_tools(message, TOOLS)
        session.approvals.approve(waiting.value.approval_id, edit={"version": 2})
        session.run_tools(message, TOOLS)
        assert results(session.messages) == [("c1", "deployed 2")]
        assert "edited" not in session.calls[-1]


def test_after_a_kill_the_edited_arguments_are_used_and_told(memory):
    """The idempotent call is made again: with the arguments that were approved."""
    message = reply(A, ("c1", "refund", {"amount": 900}))
    with killed("job", memory, provider=A) as session:
        session.messages.extend([USER[A], message])
        with pytest.raises(Suspended) as waiting:
            session.run_tools(message, [refund])
        session.approvals.approve(waiting.value.approval_id, edit={"amount": 9})
        session.run_tools(message, [refund])
    with Session("job", store=memory, provider=A) as session:
        assert "were used" in session.call_outcome("c1").note
        session.run_tools(session.messages, [refund])
        assert _made == [9, 9]
        ((_, told),) = results(session.messages)
        assert told.startswith("A person approved")
        assert told.endswith('{"amount": 9} were used.\n\nok')


def test_a_replayed_result_says_that_its_arguments_were_edited(memory):
    @tool(effect="irreversible", key=lambda amount: "the one", approve=True)
    def pay(amount):
        return "ok"

    message = reply(A, ("c1", "pay", {"amount": 900}))
    with _approved_with_9(memory, A, message, [pay]) as session:
        session.run_tools(reply(A, ("c2", "pay", {"amount": 900})), [pay])
        told = dict(results(session.messages))
        assert told["c1"] == told["c2"]
        assert "9} were used" in told["c2"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("backend", ["memory", "file", "sqlite"])
def test_polling_for_an_answer_saves_only_what_is_new(tmp_path, place, backend, is_async):
    async def wait(path):
        return "done"

    waits = tool(approve=True, name="waits")(wait)
    tools = [waits, deploy]
    message = reply(A, ("c1", "waits", {"path": "x"}), ("c2", "deploy", {"version": 2}))

    def poll(session):
        before = len(session.history())
        with pytest.raises(Suspended):
            if is_async:
                asyncio.run(session.arun_tools(session.messages, tools))
            else:
                session.run_tools(session.messages, tools)
        return len(session.history()) - before

    agent = Agent(1)
    store = manager_on(backend, tmp_path)
    options = {"provider": A, "agent": agent, "workspace": place}
    with session_with(A, message, store, **options) as session:
        assert poll(session) == 3  # the reply and two questions
        assert [poll(session) for _ in range(3)] == [0, 0, 0]
        agent.memory.append("new")
        assert [poll(session) for _ in range(2)] == [1, 0]
        (place / "new.txt").write_text("new")
        assert [poll(session) for _ in range(2)] == [2, 0]  # the file, and the questions
        session.save(label="mine")
        assert [poll(session) for _ in range(2)] == [1, 0]
        session.approvals.approve(session.approvals.pending()[0].id)
        assert poll(session) > 0
        assert [poll(session) for _ in range(2)] == [0, 0]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("backend", ["memory", "file", "sqlite"])
def test_a_restart_that_only_asks_again_adds_its_open(tmp_path, place, backend, is_async):
    store = manager_on(backend, tmp_path)
    agent = Agent(1)
    agent.memory = ["long " * 2000, 1e-9, (1, 2)]
    message = reply(A, ("c1", "deploy", {"version": 2}))

    def restart(agent, *, then=lambda: None):
        before = sum(1 for _ in store.store.entries("job"))
        options = {"provider": A, "agent": agent, "workspace": place}
        with pytest.raises(Suspended), Session("job", store=store, **options) as session:
            if not session.messages:
                session.messages.extend([USER[A], message])
            then()
            if is_async:
                asyncio.run(session.arun_tools(session.messages, TOOLS))
            session.run_tools(session.messages, TOOLS)
        return len(store.history("job")) - before

    assert restart(agent) == 4
    assert [restart(Agent()) for _ in range(3)] == [1, 1, 1]
    changed = Agent()
    assert restart(changed, then=lambda: changed.memory.append("new")) == 3
    assert restart(Agent()) == 1
    with Session("job", store=store, provider=A, agent=Agent(), workspace=place) as session:
        session.rollback()  # one step, over all that have the same content
        assert session.agent.memory != [*agent.memory, "new"]
    store.close()


# -- parallel, asyncio -----------------------------------------------------------------------------


@pytest.mark.parametrize("parallel", [True, 2])
@pytest.mark.parametrize("is_async", [False, True])
def test_parallel_calls_run_at_once_and_stay_in_order(memory, parallel, is_async):
    both = threading.Barrier(2, timeout=20)

    def meet(n):
        both.wait()
        return n

    message = reply(A, *((f"c{n}", "meet", {"n": n}) for n in range(4)))
    with session_with(A, message, memory, provider=A) as session:
        if is_async:
            asyncio.run(session.arun_tools(message, [meet], parallel=2))
        else:
            session.run_tools(message, [meet], parallel=2 if parallel == 2 else 4)
        assert results(session.messages) == [(f"c{n}", str(n)) for n in range(4)]
        assert {row["kind"] for row in session.history()} <= {"open", "save"}


@pytest.mark.parametrize("is_async", [False, True])
def test_no_checkpoint_is_taken_while_a_local_call_runs(memory, is_async):
    """It would hold half of what the call does, and the call would be made again on top."""
    saved = threading.Event()

    def slow():
        return "saved meanwhile" if saved.wait(0.5) else "alone"

    @tool(effect="idempotent")
    def slow_put():
        return "saved meanwhile" if saved.wait(20) else "alone"

    def spy(session):
        real, areal = session._state.save, session._state.asave

        def save(**options):
            saved.set()
            return real(**options)

        def asave(**options):
            saved.set()
            return areal(**options)

        session._state.save, session._state.asave = save, asave

    for other, told in ((slow, "alone"), (slow_put, "saved meanwhile")):
        message = reply(A, ("c1", "double", {"n": 1}), ("c2", other.__name__, {}))
        session = Session(other.__name__, store=memory, provider=A, every=1)
        session.messages.append(USER[A])
        spy(session)
        saved.clear()
        if is_async:
            asyncio.run(session.arun_tools(message, [double, other], parallel=True))
        else:
            session.run_tools(message, [double, other], parallel=True)
        assert results(session.messages)[1] == ("c2", told)
        session.close()


@pytest.mark.parametrize("is_async", [False, True])
def test_the_label_of_a_parallel_step_names_all_its_calls(memory, is_async):
    both = threading.Barrier(2, timeout=20)

    def meet(n):
        both.wait()
        return n

    def meet_too(n):
        return meet(n)

    message = reply(A, ("c1", "meet", {"n": 1}), ("c2", "meet_too", {"n": 2}))
    with session_with(A, message, memory, provider=A) as session:
        if is_async:
            asyncio.run(session.arun_tools(message, [meet, meet_too], parallel=True))
        else:
            session.run_tools(message, [meet, meet_too], parallel=True)
        calls = [(f"c{n}", "double", {"n": n}) for n in range(40)]
        session.run_tools(reply(A, *calls), TOOLS)
        labels = [row["label"] for row in reversed(session.history())]
        assert labels[1:3] == ["reply: meet, meet_too", "meet, meet_too"]
        assert len(labels[3]) == 120
        assert labels[3].endswith("…")


def test_workers_are_a_number(memory):
    message = reply(A, ("c1", "double", {"n": 1}))
    with session_with(A, message, memory, provider=A) as session:
        for parallel in (0, -1, "yes"):
            with pytest.raises(InvalidInputError, match="parallel must be"):
                session.run_tools(text_reply(A, "new"), TOOLS, parallel=parallel)
        assert len(session.messages) == 2


@pytest.mark.parametrize("parallel", [False, True])
def test_coroutines_are_awaited_and_functions_called(memory, parallel):
    message = reply(
        A,
        ("c1", "adouble", {"n": 1}),
        ("c2", "double", {"n": 2}),
        ("c3", "fails", {"n": 3}),
        ("c4", "send_mail", {"to": "ann"}),
    )
    tools = [adouble, double, fails, send_mail]
    with session_with(A, message, memory, provider=A) as session:
        asyncio.run(session.arun_tools(message, tools, parallel=parallel))
        told = [value for _, value in results(session.messages)]
        assert told == ["2", "4", "ValueError: no 3", "mail 1"]
        session.run_tools(reply(A, ("c5", "adouble", {"n": 5})), tools, parallel=parallel)
        assert results(session.messages)[-1] == ("c5", "10")


def test_a_cancelled_run_goes_on_later(memory):
    async def forever():
        await asyncio.Event().wait()

    message = reply(A, ("c1", "double", {"n": 1}), ("c2", "forever", {}))

    async def main(session):
        await asyncio.wait_for(session.arun_tools(message, [double, forever], parallel=True), 0.3)

    session = session_with(A, message, memory, provider=A)
    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        asyncio.run(main(session))
    assert session._state.running == []
    tools = {"double": double, "forever": lambda: "done"}
    session.run_tools(message, tools)
    assert _made == [1]
    assert "interrupted" in results(session.messages)[1][1]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("user_function", ["approve", "verify", "result"])
def test_functions_of_a_tool_may_await_objects_of_the_loop(memory, user_function, parallel):
    """A function in arun_tools must not keep the event loop from answering it."""

    async def main():
        answers = asyncio.Queue()

        async def answer(*_, **__):
            return await answers.get()

        def work(n):
            if user_function == "verify":
                raise ValueError(n)
            return answer() if user_function == "result" else n

        options = {} if user_function == "result" else {user_function: answer}
        tools = {"work": tool(effect="irreversible", **options)(work), "double": double}
        calls = reply(A, ("c1", "work", {"n": 1}), ("c2", "double", {"n": 2}))
        async with Session("job", store=memory, provider=A) as session:
            session.messages.append(USER[A])
            running = asyncio.ensure_future(session.arun_tools(calls, tools, parallel=parallel))
            while not answers._getters:
                await asyncio.sleep(0)
            answers.put_nowait("7")
            await running
            return results(session.messages)

    value = "1" if user_function == "approve" else "7"
    assert asyncio.run(asyncio.wait_for(main(), 20)) == [("c1", value), ("c2", "4")]


def test_a_run_that_is_cancelled_twice_leaves_nothing_running(memory):
    go_on = threading.Event()

    def slow(n):
        go_on.wait()
        return double(n)

    message = reply(A, ("c1", "slow", {"n": 1}), ("c2", "slow", {"n": 2}))

    async def main(session):
        running = asyncio.ensure_future(session.arun_tools(message, [slow], parallel=True))
        while len(session._state.running) < 2:
            await asyncio.sleep(0)
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert session._state.running == []

    session = session_with(A, message, memory, provider=A)
    asyncio.run(main(session))
    session.run_tools(message, [slow])
    assert sorted(_made) == [1, 2]
    assert results(session.messages) == [("c1", "2"), ("c2", "4")]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    "value",
    [
        {(1, 2): 3},
        {"when": datetime.date(2026, 1, 2)},
        {1},
        b"x",
        Decimal(1),
        PurePosixPath("/x"),
        float("nan"),
        [{1: {"a": float("inf")}}],
    ],
    ids=str,
)
def test_a_result_that_is_not_json_becomes_json(memory, provider, value):
    def get_value():
        return value

    with Session("job", store=memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(reply(provider, ("c1", "get_value", {})), [get_value])
        json.dumps(session.messages.to_list(), allow_nan=False)
    with Session("job", store=memory, provider=provider) as session:
        assert not session.notices


def test_a_result_with_references_to_its_parents_is_recorded(memory):
    def tree():
        root = {"name": "root", "children": []}
        for _ in range(4):
            child = {"parent": root, "children": []}
            child["children"] = [{"parent": child, "root": root} for _ in range(3)]
            root["children"].append(child)
        return root

    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        session.run_tools(reply("anthropic", ("c1", "tree", {})), [tree])
        result = session.calls[-1]["result"]
        leaf = {"parent": "<dict>", "root": "<dict>"}
        assert result["children"][3] == {"parent": "<dict>", "children": [leaf] * 3}


@pytest.mark.parametrize("parallel", [False, True])
def test_a_tool_that_raises_stop_iteration_has_failed(memory, parallel):
    def take_next():
        return next(iter([]))

    async def main():
        async with Session("job", store=memory, provider="anthropic") as session:
            session.messages.append(USER["anthropic"])
            calls = reply("anthropic", ("c1", "take_next", {}), ("c2", "double", {"n": 1}))
            (message,) = await session.arun_tools(calls, [take_next, double], parallel=parallel)
            return message["content"]

    first, second = asyncio.run(main())
    assert "StopIteration" in first["content"]
    assert (first["is_error"], second["content"]) == (True, "2")


class _AsyncObject:
    async def __call__(self, n):
        return await adouble(n)


def _decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class _WithMethod:
    @tool
    def double(self, n):
        return adouble(n)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        _decorated(adouble),
        _AsyncObject(),
        lambda n: adouble(n),
        tool(_decorated(adouble)),
        _WithMethod().double,
    ],
    ids=["decorated", "object", "lambda", "tool", "method"],
)
def test_an_awaitable_result_is_awaited(memory, function, is_async):
    async def arun(session, calls):
        return await session.arun_tools(calls, {"double": function})

    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        calls = reply("anthropic", ("c1", "double", {"n": 2}))
        if is_async:
            asyncio.run(arun(session, calls))
        else:
            session.run_tools(calls, {"double": function})
        assert session.calls[-1]["result"] == 4
    assert _made == [2]


def _numbers(n):
    yield n


async def _anumbers(n):
    yield n


@pytest.mark.parametrize("function", [_numbers, _anumbers])
def test_a_generator_is_not_a_result(memory, function):
    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        calls = reply("anthropic", ("c1", "numbers", {"n": 2}))
        (message,) = session.run_tools(calls, {"numbers": function})
        (result,) = message["content"]
        assert result["is_error"] is True
        assert "returned a generator" in result["content"]


# -- the names that the model knows ----------------------------------------------------------------


@tool(effect="irreversible", approve=True)
def _ship_implementation(version):
    _mails.append(version)
    if version == "killed":
        raise Killed
    return f"shipped {version}"


SHIP = {"ship": _ship_implementation}


def test_a_tool_has_the_name_that_the_model_knows(memory):
    with Session("job", store=memory, provider=A) as session:
        session.messages.append(USER[A])
        with pytest.raises(Suspended, match=r"ship \["):
            session.run_tools(reply(A, ("c1", "ship", {"version": "1"})), SHIP)
        (request,) = session.approvals.pending()
        assert (request.words, request.title[:6]) == ("ship(version='1')", "ship [")
        session.approvals.deny(request.id)
        session.run_tools(session.messages, SHIP)
        assert results(session.messages)[0][1].startswith("ApprovalDeniedError: ship [")
        session.approvals.close()
    told = str([session.calls.to_list(), session.notices, session.history()])
    assert "_ship_implementation" not in told


@pytest.mark.parametrize("way", ["run_tools", "carry_out"])
def test_a_call_in_doubt_has_the_name_that_the_model_knows(memory, way):
    with killed("job", memory, provider=A) as session:
        session.messages.append(USER[A])
        with pytest.raises(Suspended):
            session.run_tools(reply(A, ("c1", "ship", {"version": "killed"})), SHIP)
        (request,) = session.approvals.pending()
        session.approvals.approve(request.id)
        _ = session.run_tools(session.messages, SHIP) if way == "run_tools" else session.carry_out()
    with Session("job", store=memory, provider=A) as session:
        assert any("ship(version='killed')" in notice for notice in session.notices)
        session.run_tools(session.messages, SHIP)
        assert results(session.messages)[0][1].startswith("ship [")
        told = str([session.calls.to_list(), session.notices, session.history(), session.effects])
    assert "_ship_implementation" not in told


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("is_committed", [False, True])
def test_a_call_whose_tool_is_gone_has_its_outcome(memory, provider, is_committed):
    """A new version of a program lacks a tool that was running when the old one was killed."""

    @tool(effect="irreversible")
    def tell(n):
        raise Killed

    with killed("job", memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(
            reply(provider, ("c1", "tell", {"n": 1}), ("c2", "tell", {"n": 2})), [tell]
        )
    with Session("job", store=memory, provider=provider) as session:
        if is_committed:
            (effect,) = session.effects
            session.resolve(effect.id, happened=True, result="told 1")
        session.run_tools(session.messages, [double])
        first, second = (str(result) for _, result in results(session.messages))
    assert ("told 1" if is_committed else "Its outcome is unknown") in first
    assert "There is no tool 'tell'" in second
