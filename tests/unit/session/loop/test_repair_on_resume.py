"""Session(provider=…): the conversation of a resumed or restored session is accepted by its API."""

import json

import pytest

from agent_checkpoint import Session, tool, transcripts
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results, text_reply
from tests.unit.session.stores import Killed, killed

_mails = []


@pytest.fixture(autouse=True)
def nothing_sent():
    _mails.clear()


@tool(effect="irreversible")
def send_mail(to):
    _mails.append(to)
    if to == "killed":
        raise Killed
    return f"mail to {to}"


def listed(message):
    return message if isinstance(message, list) else [message]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_open_calls_at_the_end_are_left_to_run_tools(memory, provider):
    message = reply(provider, ("c1", "send_mail", {"to": "ann"}))
    with killed("job", memory) as session:
        session.messages.extend([USER[provider], *listed(message)])
        session.save()
        raise Killed
    with Session("job", store=memory, provider=provider) as session:
        assert list(session.messages) == [USER[provider], *listed(message)]
        assert session.notices == []
        session.run_tools(session.messages, [send_mail])
        assert _mails == ["ann"]
        assert transcripts.check(session.messages, provider=provider) == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_other_open_calls_get_what_the_session_knows(memory, provider):
    message = reply(
        provider,
        ("c1", "send_mail", {"to": "ann"}),
        ("c2", "send_mail", {"to": "killed"}),
        ("c3", "send_mail", {"to": "bob"}),
    )
    with killed("job", memory, provider=provider) as session:
        session.messages.append(USER[provider])
        session.run_tools(message, [send_mail])
    with killed("job", memory) as session:  # a loop that does not know of the calls
        session.messages.append(USER[provider])
        session.save()
        raise Killed
    with Session("job", store=memory, provider=provider) as session:
        assert transcripts.check(session.messages, provider=provider) == []
        texts = dict(results(session.messages))
        assert texts["c1"] == "mail to ann"
        assert "outcome is unknown" in json.dumps(texts["c2"])
        assert "was not executed" in json.dumps(texts["c3"])
        repaired = [notice for notice in session.notices if "conversation was repaired" in notice]
        assert len(repaired) == 3
        assert "c1 (send_mail): its recorded result" in repaired[0]
    assert _mails == ["ann", "killed"]


def test_only_the_end_of_the_conversation_is_written_again(memory):
    messages = [USER["anthropic"], text_reply("anthropic", "yes")] * 3
    messages += [reply("anthropic", ("c1", "send_mail", {"to": "ann"})), USER["anthropic"]]
    with killed("job", memory) as session:
        session.messages.extend(messages)
        session.save()
        raise Killed
    with Session("job", store=memory, provider="anthropic") as session:
        assert list(session.messages)[:7] == messages[:7]
        assert [block["type"] for block in session.messages[7]["content"]] == [
            "tool_result",
            "text",
        ]
        assert "unknown" in session.messages[7]["content"][0]["content"]
    with Session("job", store=memory, provider="anthropic") as session:
        assert not any("repaired" in notice for notice in session.notices)


def test_a_call_that_run_tools_has_not_seen_is_not_known(memory):
    """The user may have made it without run_tools: nothing is pretended."""
    with Session("job", store=memory) as session:
        session.messages.append(reply("anthropic", ("c1", "send_mail", {"to": "ann"})))
        send_mail("ann")
        assert session.call_outcome("c1") is None


def test_a_valid_conversation_is_not_touched(memory):
    with killed("job", memory) as session:
        session.messages.extend([USER["openai"], text_reply("openai", "yes")])
        session.save()
        raise Killed
    session = Session("job", store=memory, provider="openai")
    before = session.messages[0]
    session._tool_calls.repair_messages()
    assert session.messages[0] is before


def test_messages_of_another_api_are_left_alone(memory):
    with killed("job", memory) as session:
        session.messages.append("not a message")
        session.save()
        raise Killed
    with Session("job", store=memory, provider="openai") as session:
        assert list(session.messages) == ["not a message"]
        assert any("was not checked" in notice for notice in session.notices)


def test_after_a_rollback_and_its_undo_the_conversation_is_valid(memory):
    first = reply("anthropic", ("c1", "double", {"n": 1}), ("c2", "double", {"n": 2}))
    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        session.run_tools(first, {"double": lambda n: 2 * n})
        session.rollback(steps=1)
        assert list(session.messages) == [USER["anthropic"], first]  # left to run_tools
        session.messages.append(USER["anthropic"])  # a loop that goes on otherwise
        point = session.save()
        session.run_tools(text_reply("anthropic", "hm"), {})
        report = session.rollback(to=point)
        assert transcripts.check(session.messages, provider="anthropic") == []
        assert results(session.messages)[0] == ("c1", "2")
        assert "not executed" in results(session.messages)[1][1]
        assert report.id == session.head
        session.undo()
        assert transcripts.check(session.messages, provider="anthropic") == []


def test_a_fork_has_the_provider_of_its_session(memory):
    message = reply("anthropic", ("c1", "double", {"n": 1}), ("c2", "double", {"n": 2}))
    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        session.run_tools(message, {"double": lambda n: 2 * n})
        half = session.history()[0]["id"]
        with session.fork("other", at=half) as fork:
            fork.run_tools(fork.messages, {"double": lambda n: 3 * n})
            assert results(fork.messages) == [("c1", "2"), ("c2", "4")]


def test_an_adopted_fork_goes_on_with_its_calls(memory):
    made = []

    def double(n):
        made.append(n)
        if n == 2 and len(made) == 2:
            raise KeyboardInterrupt
        return 2 * n

    message = reply("anthropic", ("c1", "double", {"n": 1}), ("c2", "double", {"n": 2}))
    with Session("job", store=memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        fork = session.fork("other")
        with pytest.raises(KeyboardInterrupt):
            fork.run_tools(message, [double])
        session.adopt(fork.head)
        assert session.call_outcome("c1").result == 2
        session.run_tools(session.messages, [double])
        assert results(session.messages) == [("c1", "2"), ("c2", "4")]
        assert made == [1, 2, 2]
        fork.close()


def test_a_task_that_starts_again_has_its_calls_again(memory):
    made = []

    def double(n):
        made.append(n)
        if len(made) == 2:
            raise Killed
        return 2 * n

    message = reply("anthropic", ("c1", "double", {"n": 1}), ("c2", "double", {"n": 2}))

    def work(session):
        for task in session.tasks(["one"]):
            with task:
                session.messages.append(USER["anthropic"])
                session.run_tools(message, [double])

    with killed("job", memory, provider="anthropic") as session:
        work(session)
    with Session("job", store=memory, provider="anthropic") as session:
        work(session)
        assert made == [1, 2, 1, 2]
        assert len(session.messages) == 3
        assert session.tasks["one"].status == "completed"


def test_by_hand_repair_fills_open_calls(memory):
    message = reply(
        "anthropic", ("c1", "send_mail", {"to": "ann"}), ("c2", "send_mail", {"to": "killed"})
    )
    with killed("job", memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        session.run_tools(message, [send_mail])
    with Session("job", store=memory, provider="anthropic") as session:
        repaired = transcripts.repair(session.messages, provider="anthropic", session=session)
        assert results(repaired)[0] == ("c1", "mail to ann")
        assert "outcome is unknown" in results(repaired)[1][1]
        assert len(session.messages) == 2


def test_the_recorded_error_of_a_call_is_repaired_as_an_error(memory):
    def fails():
        raise ValueError("no")

    def stops():
        raise Killed

    message = reply("anthropic", ("c1", "fails", {}), ("c2", "stops", {}))
    with killed("job", memory, provider="anthropic") as session:
        session.messages.append(USER["anthropic"])
        session.run_tools(message, [fails, stops])
    with Session("job", store=memory) as session:
        repaired = transcripts.repair(session.messages, provider="anthropic", session=session)
        (error, stopped) = repaired[-1]["content"]
        assert (error["content"], error["is_error"]) == ("ValueError: no", True)
        assert "not executed" in stopped["content"]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("n", range(8))
def test_a_trimmed_conversation_is_repaired_at_once(memory, provider, n):
    def look(n):
        return n

    with Session("job", store=memory, provider=provider) as session:
        session.messages.append(USER[provider])
        for turn in range(3):
            calls = [(f"c{turn}{i}", "look", {"n": i}) for i in range(2)]
            session.run_tools(reply(provider, *calls), [look])
        whole = list(session.messages)
        session.messages = session.messages[-n:] if n else []
        assert transcripts.check(session.messages, provider=provider) == []
        was_valid = not transcripts.check(whole[-n:] if n else [], provider=provider)
        assert (session.notices == []) == was_valid
        assert all(notice.startswith("The conversation was repaired") for notice in session.notices)
        if was_valid and n:
            assert list(session.messages) == whole[-n:]


def test_assigning_messages_leaves_open_calls_to_run_tools(memory):
    message = reply("anthropic", ("c1", "send_mail", {"to": "ann"}))
    with Session("job", store=memory, provider="anthropic") as session:
        session.messages = [USER["anthropic"], message]
        assert list(session.messages) == [USER["anthropic"], message]
        session.run_tools(session.messages, [send_mail])
        assert results(session.messages) == [("c1", "mail to ann")]


def test_assigning_messages_without_a_provider_changes_nothing(memory):
    message = reply("anthropic", ("c1", "send_mail", {"to": "ann"}))
    with Session("job", store=memory) as session:
        session.messages = [message, USER["anthropic"]]
        assert list(session.messages) == [message, USER["anthropic"]]
        assert session.notices == []


@pytest.mark.parametrize(
    ("provider", "message", "path"),
    [
        ("anthropic", {"role": "user", "content": 5}, "messages.0.content"),
        ("anthropic", {"role": "user", "content": {"type": "text"}}, "messages.0.content"),
        ("openai", {"role": "assistant", "tool_calls": {"id": "x"}}, "messages.0.tool_calls"),
        ("gemini", {"role": "user", "parts": 5}, "contents.0.parts"),
    ],
)
def test_a_malformed_message_does_not_lock_the_session(provider, message, path, tmp_path):
    with Session("s", provider=provider, store=tmp_path / "store") as session:
        session.messages.append(message)
    with Session("s", provider=provider, store=tmp_path / "store") as session:
        (notice,) = session.notices
        assert f"{path} must be a list" in notice
        assert session.messages == [message]
