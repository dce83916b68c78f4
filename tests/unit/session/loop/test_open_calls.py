"""Which call is which: edited calls, repeated ids, abandoned turns, cut-off replies."""

import copy
import json
import threading

import pytest

from agent_checkpoint import CheckpointManager, Session, Suspended, tool, transcripts
from agent_checkpoint.errors import StateMismatchError
from agent_checkpoint.session.open_calls import Before, OpenCall, OpenCalls
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results, text_reply
from tests.unit.session.stores import Killed, killed

_made = []


@pytest.fixture(autouse=True)
def nothing_made():
    _made.clear()


def double(n):
    _made.append(n)
    return 2 * n


def look(path="."):
    _made.append(path)
    return f"content of {path}"


def poll():
    _made.append("poll")
    return len(_made)


def stop():
    raise Killed


def interrupt():
    raise KeyboardInterrupt


@tool(effect="irreversible", approve=True)
def release(version):
    _made.append(version)
    return f"released {version}"


TOOLS = [double, look, poll, stop, interrupt, release]
NOW = [double, look, poll, release, tool(name="stop")(lambda: "done")]


def listed(message):
    return message if isinstance(message, list) else [message]


def without_ids(message):
    message = copy.deepcopy(message)
    for part in message["parts"]:
        part.get("function_call", {}).pop("id", None)
    return message


def replace_end(session, message):
    """Replace the model's last message, item by item where it is several."""
    items = listed(message)
    session.messages.truncate(len(session.messages) - len(items))
    session.messages.extend(items)


# -- edited calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("way", ["here", "resumed"])
def test_an_edited_call_is_made_and_the_others_keep_their_results(memory, provider, way):
    def message(n, version):
        calls = [("c1", "double", {"n": 1}), ("c2", "double", {"n": n})]
        return reply(provider, *calls, ("c3", "release", {"version": version}))

    session = Session("job", store=memory, provider=provider)
    session.messages.append(USER[provider])
    with pytest.raises(Suspended):
        session.run_tools(message(2, 7), TOOLS)
    if way == "resumed":
        session.close()
        session = Session("job", store=memory, provider=provider)
    replace_end(session, message(3, 8))
    with pytest.raises(Suspended):
        session.run_tools(session.messages, TOOLS)
    assert _made == [1, 2, 3]
    assert [session.call_outcome(name).result for name in ("c1", "c2")] == [2, 6]
    replace_end(session, message(3, 8))  # nothing changes
    with pytest.raises(Suspended):
        session.run_tools(session.messages, TOOLS)
    assert _made == [1, 2, 3]
    session.close()


def test_a_removed_call_leaves_the_others(memory):
    calls = [
        ("c1", "double", {"n": 1}),
        ("c2", "double", {"n": 2}),
        ("c3", "release", {"version": 1}),
    ]
    with Session("job", store=memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        with pytest.raises(Suspended):
            session.run_tools(reply("openai", *calls), TOOLS)
        session.messages[-1] = reply("openai", *calls[1:2])
        session.run_tools(session.messages, TOOLS)
        assert results(session.messages) == [("c2", "4")]
        assert _made == [1, 2]


def test_the_effect_of_an_edited_call_is_not_its_outcome(memory):
    @tool(effect="irreversible")
    def send(to):
        _made.append(to)
        raise Killed

    with killed("job", memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        session.run_tools(reply("openai", ("c1", "send", {"to": "ann"})), [send])
    with Session("job", store=memory, provider="openai") as session:
        assert session.call_outcome("c1").status == "unknown"
        session.messages[-1] = reply("openai", ("c1", "double", {"n": 4}))
        session.run_tools(session.messages, [send, double])
        assert results(session.messages) == [("c1", "8")]


def test_calls_are_known_when_their_arguments_were_redacted(tmp_path):
    """The saved conversation has no secret, so after a resume the arguments are others."""
    secret = "ghp_" + "a1B2" * 9
    calls = [("c1", "look", {"path": secret}), ("c2", "stop", {})]
    manager = CheckpointManager(backend="sqlite", path=tmp_path / "store", redact="secrets")
    for provider in PROVIDERS:
        _made.clear()
        with killed(provider, manager, provider=provider) as session:
            session.messages.append(USER[provider])
            session.run_tools(reply(provider, *calls), TOOLS)
        with Session(provider, store=manager, provider=provider) as session:
            assert secret not in json.dumps(session.messages.to_list())
            session.run_tools(session.messages, NOW)
            assert _made == [secret]


# -- repeated ids ----------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", ["openai", "anthropic", "openai-responses"])
def test_a_malformed_call_with_the_id_of_an_earlier_one_is_kept(memory, provider):
    message = reply(
        provider,
        ("call_0", "double", '{"n": '),
        ("call_1", "double", {"n": 2}),
        ("call_2", "stop", {}),
    )
    with killed("job", memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(reply(provider, ("call_0", "double", {"n": 1})), TOOLS)
        session.run_tools(message, TOOLS)
    with Session("job", store=memory, provider=provider) as session:
        assert not any("never made" in notice for notice in session.notices)
        session.run_tools(session.messages, NOW)
        assert _made == [1, 2]
        told = results(session.messages)
        assert [name for name, _ in told] == ["call_0", "call_0", "call_1", "call_2"]
        assert "cannot be decoded" in told[1][1]


@pytest.mark.parametrize("provider", ["openai", "openai-responses"])
def test_an_abandoned_call_does_not_get_the_result_of_an_open_one(memory, provider):
    with killed("job", memory, provider=provider) as session:
        session.messages.append(USER[provider])
        with pytest.raises(Suspended):
            session.run_tools(reply(provider, ("call_0", "release", {"version": 1})), TOOLS)
        session.messages.append(USER[provider])
        calls = [("call_0", "look", {"path": "b"}), ("call_1", "stop", {})]
        session.run_tools(reply(provider, *calls), TOOLS)
    with Session("job", store=memory, provider=provider) as session:
        (abandoned,) = results(session.messages)
        assert "unknown" in abandoned[1]
        session.run_tools(session.messages, NOW)
        assert [value for _, value in results(session.messages)][1:] == ["content of b", "done"]
        assert _made == ["b"]


def test_a_later_call_by_hand_does_not_get_the_result_of_the_open_one(memory):
    calls = [("call_0", "look", {"path": "a"}), ("call_1", "stop", {})]
    with killed("job", memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        session.run_tools(reply("openai", *calls), TOOLS)
    with killed("job", memory) as session:  # another loop
        later = reply("openai", ("call_0", "look", {"path": "b"}))
        session.messages.extend([USER["openai"], later, USER["openai"]])
        session.save()
        raise Killed
    with Session("job", store=memory, provider="openai") as session:
        told = [value for _, value in results(session.messages)]
        assert told[0] == "content of a"
        assert "unknown" in told[2]


def test_calls_without_ids_are_repaired_with_their_results(memory):
    calls = [("", "look", {"path": "a"}), ("", "look", {"path": "b"}), ("", "stop", {})]
    with killed("job", memory, provider="gemini") as session:
        session.messages.append(USER["gemini"])
        session.run_tools(without_ids(reply("gemini", *calls)), TOOLS)
    with Session("job", store=memory, provider="gemini") as session:
        repaired = transcripts.repair(session.messages, provider="gemini", session=session)
        told = [value for _, value in results(repaired)]
        assert told[:2] == ["content of a", "content of b"]
        assert "not executed" in str(told[2])


def test_an_outcome_with_a_digest_is_that_of_the_last_such_call():
    dialect = transcripts.dialect_for("openai")

    def message(n):
        return reply("openai", ("c1", "look", {"n": n}))

    class Lookup:
        def __init__(self, n):
            digest = "" if n is None else dialect.digest(*dialect.read(message(n), 0).blocks[1:])
            self.outcome = transcripts.CallOutcome("done", "it", digest=digest)

        def call_outcome(self, call_id):
            return self.outcome if call_id == "c1" else None

    user = USER["openai"]
    messages = [user, message(1), user, message(2), user, message(2), user, message(3), user]

    def answered(n):
        repaired = transcripts.repair(messages, provider="openai", session=Lookup(n))
        return [value == "it" for _, value in results(repaired)]

    assert answered(1) == [True, False, False, False]
    assert answered(2) == [False, False, True, False]
    assert answered(4) == [False, False, False, False]
    assert answered(None) == [True, False, False, False]


# -- positions -------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", ["ended", "open"])
def test_a_rollback_of_the_messages_goes_back_to_the_open_calls(memory, later):
    """Turns with equal calls and no ids: each has its own results."""
    calls = [("", "poll", {}), ("", "release", {"version": 1})]
    message = without_ids(reply("gemini", *calls[: 1 if later == "ended" else 2]))
    with Session("job", store=memory, provider="gemini") as session:
        session.messages.append(USER["gemini"])
        points = []
        for _ in range(2):
            if later == "open":
                with pytest.raises(Suspended):
                    session.run_tools(message, TOOLS)
                points.append(session.head)
                session.messages.append(USER["gemini"])
            else:
                session.run_tools(message, TOOLS)
                points.append(session.head)
        report = session.rollback(to=points[0], parts=["messages"])
        assert report.parts == ["messages", "open_calls"]
        if later == "ended":
            session.run_tools(session.messages, TOOLS)
            assert [value for _, value in results(session.messages)] == [1]
        else:
            assert session.call_outcome("#0").result == 1
        assert _made == ["poll", "poll"]
        session.undo()
        session.rollback(to=points[0])
        assert session.call_outcome("#0").result == 1


def test_a_rollback_of_the_messages_to_before_the_calls_closes_them(memory):
    message = reply("openai", ("c1", "double", {"n": 1}), ("c2", "release", {"version": 1}))
    with Session("job", store=memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        before = session.save()
        with pytest.raises(Suspended):
            session.run_tools(message, TOOLS)
        session.rollback(to=before, parts=["messages"])
        assert session.call_outcome("c1") is None
    with Session("job", store=memory, provider="openai") as session:
        assert session.call_outcome("c1") is None
        session.messages.append(message)  # the same calls, made anew
        with pytest.raises(Suspended):
            session.run_tools(session.messages, TOOLS)
        assert _made == [1, 1]


def test_a_rollback_of_the_calls_makes_them_again(memory):
    message = reply("openai", ("c1", "double", {"n": 1}), ("c2", "release", {"version": 1}))
    with Session("job", store=memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        tool(look)()
        before = session.save()
        with pytest.raises(Suspended):
            session.run_tools(message, TOOLS)
        session.rollback(to=before, parts=["calls"])
        for _ in range(2):
            with pytest.raises(Suspended):
                session.run_tools(session.messages, TOOLS)
        assert _made == [".", 1, 1]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_reply_after_an_interrupted_one_gets_its_own_results(memory, provider):
    first = reply(
        provider, ("t1", "double", {"n": 1}), ("t2", "interrupt", {}), ("t3", "double", {"n": 3})
    )
    with Session("job", store=memory, provider=provider) as session:
        session.messages.append(USER[provider])
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(first, TOOLS)
        appended = session.run_tools(reply(provider, ("t4", "double", {"n": 4})), TOOLS)
        assert _made == [1, 4]
        told = results(session.messages)
        assert [name for name, _ in told] == ["t1", "t2", "t3", "t4"]
        assert [str(told[n][1]) for n in (0, 3)] == ["2", "8"]
        assert "unknown" in str(told[1][1])
        assert "not executed" in str(told[2][1])
        assert results(appended) == told[3:]
        assert transcripts.check(session.messages, provider=provider) == []


def test_an_abandoned_call_is_not_taken_for_an_interrupted_one_later(memory):
    """Otherwise closing the session would save nothing."""
    with Session("job", store=memory, provider="openai") as session:
        session.messages.append(USER["openai"])
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(reply("openai", ("c1", "interrupt", {})), TOOLS)
        assert session._state.is_interrupted
        session.run_tools(reply("openai", ("c2", "double", {"n": 1})), TOOLS)
        session._state.save, save = lambda **options: interrupt(), session._state.save
        with pytest.raises(KeyboardInterrupt):  # between calls
            session.run_tools(reply("openai", ("c3", "double", {"n": 2})), TOOLS)
        session._state.save = save
        assert not session._state.is_interrupted


def test_a_turn_by_hand_after_an_abandoned_one_is_another_turn(memory):
    """The calls are equal and have no ids: only their place tells them apart."""
    calls = without_ids(reply("gemini", ("", "poll", {}), ("", "interrupt", {})))
    with Session("job", store=memory, provider="gemini") as session:
        session.messages.append(USER["gemini"])
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(calls, TOOLS)
        repaired = transcripts.repair(session.messages, provider="gemini", session=session)
        session.messages = [*repaired, calls]
        with pytest.raises(KeyboardInterrupt):
            session.run_tools(session.messages, TOOLS)
        assert _made == ["poll", "poll"]


def test_a_trimmed_conversation_still_ends_with_its_open_calls(memory):
    message = reply("openai", ("c1", "double", {"n": 1}), ("c2", "release", {"version": 1}))
    with Session("job", store=memory, provider="openai") as session:
        session.messages.extend([USER["openai"], text_reply("openai", "yes")] * 3)
        session.messages.append(USER["openai"])
        with pytest.raises(Suspended):
            session.run_tools(message, TOOLS)
        session.messages = session.messages[-2:]
        with pytest.raises(Suspended):
            session.run_tools(session.messages, TOOLS)
        session.messages = [USER["openai"], text_reply("openai", "a summary"), *session.messages]
        with pytest.raises(Suspended):
            session.run_tools(session.messages, TOOLS)
        assert _made == [1]


def test_a_reply_in_place_of_an_equal_one_that_was_removed_is_new(memory):
    message = without_ids(reply("gemini", ("", "poll", {}), ("", "release", {"version": 1})))
    with Session("job", store=memory, provider="gemini") as session:
        session.messages.append(USER["gemini"])
        for _ in range(2):
            session.messages.truncate(1)
            with pytest.raises(Suspended):
                session.run_tools(message, TOOLS)
        assert _made == ["poll", "poll"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_same_reply_object_is_a_new_reply_after_its_results(memory, provider):
    """A client that caches, or a scripted model, returns one object again and again."""
    message = reply(provider, ("c1", "poll", {}))
    with Session("job", store=memory, provider=provider) as session:
        session.messages.append(USER[provider])
        for n in range(3):
            answer = session.model(lambda **request: message, model="m")
            (result,) = results(session.run_tools(answer, TOOLS))
            assert str(result[1]) == str(n + 1)
        assert len(results(session.messages)) == 3


# -- replies that were cut off ---------------------------------------------------------------------


def ended(provider, message, reason):
    """Return the reply of an API with this message, which ended for a reason."""
    if provider == "anthropic":
        return {"type": "message", **message, "stop_reason": reason}
    if provider == "openai":
        return {"choices": [{"finish_reason": reason, "message": message}]}
    if provider == "gemini":
        return {"candidates": [{"finish_reason": reason, "content": message}]}
    return {"object": "response", "status": reason, "output": message}


@pytest.mark.parametrize(
    ("provider", "reason"),
    [
        ("anthropic", "max_tokens"),
        ("anthropic", "model_context_window_exceeded"),
        ("anthropic", None),
        ("openai", "length"),
        ("openai", "content_filter"),
        ("openai", None),
        ("openai-responses", "incomplete"),
        ("openai-responses", "in_progress"),
        ("gemini", "MAX_TOKENS"),
    ],
)
@pytest.mark.parametrize("way", ["here", "resumed"])
def test_the_last_call_of_a_reply_that_was_cut_off_is_not_made(memory, provider, reason, way):
    message = reply(provider, ("c1", "look", {"path": "a"}), ("c2", "look", {}))
    with killed("job", memory, provider=provider) as session:
        session.messages.append(USER[provider])
        if way == "resumed":
            session._tool_calls._end = lambda run: stop()
        session.run_tools(ended(provider, message, reason), TOOLS)
    if way == "resumed":
        session = Session("job", store=memory, provider=provider)
        session.run_tools(session.messages, TOOLS)
    (_, first), (_, second) = results(session.messages)
    assert first == "content of a"
    assert "The reply ended before this call was complete" in json.dumps(second)
    assert "not made" in json.dumps(second)
    assert _made == ["a"]
    assert transcripts.check(session.messages, provider=provider) == []
    session.close()


@pytest.mark.parametrize(
    ("provider", "reason", "arguments"),
    [
        ("anthropic", "tool_use", {}),
        ("anthropic", "end_turn", {}),
        ("openai", "tool_calls", {}),
        ("openai", "tool_calls", ""),
        ("openai", "stop", {}),
        ("openai", "stop", ""),
        ("openai-responses", "completed", {}),
        ("openai-responses", "completed", ""),
        ("gemini", "STOP", {}),
        ("gemini", None, {}),
    ],
)
def test_a_complete_call_without_arguments_is_made(memory, provider, reason, arguments):
    message = reply(provider, ("c1", "look", arguments), ("c2", "poll", arguments))
    with Session("job", store=memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(ended(provider, message, reason), TOOLS)
        session.messages.extend(listed(message))
        session.run_tools(session.messages, TOOLS)
        session.run_tools(message, TOOLS)
    assert _made == [".", "poll"] * 3


def test_a_text_that_was_cut_off_is_a_reply(memory):
    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        message = {**reply("anthropic", ("c1", "look", {})), "type": "message"}
        message["content"].append({"type": "text", "text": "and"})
        session.run_tools({**message, "stop_reason": "max_tokens"}, TOOLS)
        assert _made == ["."]  # the call had ended before the text


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("options", [{"provider": True}, {}])
def test_a_streamed_call_whose_arguments_have_not_arrived_is_not_made(memory, provider, options):
    empty = "" if provider.startswith("openai") else {}
    message = reply(provider, ("c1", "look", {"path": "a"}), ("c2", "look", empty))
    with killed("job", memory) as session:
        session.messages.extend([USER[provider], *listed(message)])
        session.save()
        raise Killed
    options = {"provider": provider} if options else {}
    with Session("job", store=memory, **options) as session:
        session.run_tools(session.messages, TOOLS, provider=provider)
        (_, first), (_, second) = results(session.messages)
        assert first == "content of a"
        assert "not made" in json.dumps(second)
        assert _made == ["a"]
        session.run_tools(reply(provider, ("c3", "look", empty)), TOOLS, provider=provider)
        assert _made == ["a", "."]  # the model has made it again


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_streamed_call_of_a_tool_without_parameters_is_made(memory, provider):
    class Desk:
        @tool
        def tidy(self):
            return "tidied"

    empty = "" if provider.startswith("openai") else {}
    message = reply(provider, ("c1", "tidy", empty))
    with killed("job", memory) as session:
        session.messages.extend([USER[provider], *listed(message)])
        session.save()
        raise Killed
    with Session("job", store=memory, provider=provider) as session:
        session.run_tools(session.messages, [Desk().tidy])
        assert results(session.messages) == [("c1", "tidied")]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_call_without_arguments_that_run_tools_has_taken_on_is_made(memory, provider):
    message = reply(provider, ("c1", "stop", {}), ("c2", "look", {}))
    with killed("job", memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(message, TOOLS)
    with Session("job", store=memory, provider=provider) as session:
        session.run_tools(session.messages, NOW)
        assert _made == ["."]


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_an_item_of_a_stream_that_was_killed_is_dropped(memory, status):
    (item,) = reply("openai-responses", ("c1", "look", '{"path": "a"}'))
    messages = [USER["openai-responses"], {**item, "status": status}]
    repaired = transcripts.repair(messages, provider="openai-responses", keep_open=True)
    assert repaired == messages[:1]
    whole = [USER["openai-responses"], {**item, "status": "completed"}]
    assert transcripts.repair(whole, provider="openai-responses", keep_open=True) == whole


# -- equal calls without a key ---------------------------------------------------------------------


@pytest.mark.parametrize("unknown", [0, 1])
@pytest.mark.parametrize("parallel", [False, True])
def test_of_two_equal_mails_the_one_in_doubt_is_in_doubt(memory, unknown, parallel):
    """Both run at once; one returns, and the process is killed in the other."""
    both, sent = threading.Barrier(2, timeout=20), threading.Event()

    @tool(effect="irreversible")
    def mail(to, *, effect):
        (number,) = (
            int(call.call_id[1])
            for call in session._state.running
            if call.context is not None and call.context.id == effect.id
        )
        _made.append(number)
        both.wait()
        if number == unknown:
            sent.wait(20)
            raise Killed
        return f"mail {number}"

    message = reply("anthropic", ("c0", "mail", {"to": "ann"}), ("c1", "mail", {"to": "ann"}))
    with killed("job", memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        real = session._state.effects.outcomes.commit

        def commit(*arguments):
            real(*arguments)
            sent.set()

        session._state.effects.outcomes.commit = commit
        session.run_tools(message, [mail], parallel=True)
    for _ in range(2):
        with killed("job", memory, provider="anthropic") as session:
            (answer,) = session.run_tools(session.messages, [mail], parallel=parallel)
            told = [value for _, value in results([answer])]
            assert told[1 - unknown] == f"mail {1 - unknown}"
            assert "outcome is unknown" in told[unknown]
            raise Killed
    assert sorted(_made) == [0, 1]


def test_a_mail_that_was_not_begun_is_not_in_doubt_with_an_equal_one(memory):
    """The second runs first, and the process is killed in it."""

    @tool(effect="irreversible")
    def mail(to):
        _made.append(to)
        if len(_made) == 1:
            raise Killed
        return "sent"

    message = reply("anthropic", ("c0", "mail", {"to": "ann"}), ("c1", "mail", {"to": "ann"}))
    with killed("job", memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        take = session._tool_calls._prepare

        def prepare(run, *arguments, **options):
            take(run, *arguments, **options)
            run.to_make.reverse()

        session._tool_calls._prepare = prepare
        session.run_tools(message, [mail])
    with Session("job", store=memory, provider="anthropic") as session:
        session.run_tools(session.messages, [mail])
        (_, first), (_, second) = results(session.messages)
        assert first == "sent"
        assert "outcome is unknown" in second
        assert _made == ["ann", "ann"]
        session.run_tools(reply("anthropic", ("c2", "mail", {"to": "ann"})), [mail])
        assert "outcome is unknown" in results(session.messages)[-1][1]  # as long as it is in doubt
        assert _made == ["ann", "ann"]


# -- the part --------------------------------------------------------------------------------------


def test_the_part_is_there_from_the_first_call_on(memory):
    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        first = session.save()
        session.run_tools(text_reply("anthropic", "yes"), TOOLS)
        assert "open_calls" not in memory.store.head("job").parts
        session.run_tools(reply("anthropic", ("c1", "double", {"n": 1})), TOOLS)
        (row,) = session.calls
        ref = f"{row['call_ref']:012x}"
        assert memory.store.head("job").parts["open_calls"]["calls"][0][:2] == [ref, "c1"]
        session.save()
        assert memory.store.head("job").parts["open_calls"] == {}
        session.rollback(to=first)
        assert "open_calls" not in memory.store.head("job").parts


def test_the_fields_of_the_part():
    calls = OpenCalls(
        [OpenCall("r1", "c1", "d1"), OpenCall("r2", "#1", "d2")], 4, Before(1, 2, "d"), ["r2"]
    )
    loaded = OpenCalls()
    loaded.load_state_dict(calls.state_dict())
    assert loaded == calls
    assert (loaded.find("#1"), loaded.find("c2")) == (calls.calls[1], None)
    loaded.load_state_dict({})
    assert not loaded


@pytest.mark.parametrize(
    "state",
    [
        [],
        None,
        {"calls": 3},
        {"calls": [["r", "c"]]},
        {"calls": [["r", "c", 1]]},
        {"calls": [], "at": -1},
        {"calls": [], "at": True},
        {"calls": [], "at": 2**63},
        {"calls": [], "before": [1, 2]},
        {"calls": [], "before": [1, 2, 3]},
        {"calls": [], "redacted": 1},
        {"calls": [], "redacted": [1]},
    ],
    ids=str,
)
def test_other_states_are_not_of_open_calls(state):
    with pytest.raises(StateMismatchError, match="open tool calls"):
        OpenCalls().load_state_dict(state)
