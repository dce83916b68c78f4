"""Redaction together with run_tools and session.model: nothing in the store, everything works."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import Approvals, CheckpointManager, Session, Suspended, tool
from tests.secrets_of_each_kind import SECRETS, places
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results, text_reply
from tests.unit.session.stores import Killed, killed

TOKEN = SECRETS["github-token"]
GONE = "[redacted:github-token]"
_pushed: "list[str]" = []


@pytest.fixture(autouse=True)
def nothing_pushed():
    _pushed.clear()


@pytest.fixture
def stores(tmp_path: Path):
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


def read_token(path):
    return {"path": path, "content": f"GITHUB={TOKEN}"}


def fail_with_token(path):
    raise ValueError(f"{path}: {TOKEN} is not valid")


@tool(effect="irreversible")
def push(token):
    _pushed.append(token)
    return f"pushed with {token}"


@tool(effect="irreversible", approve=True)
def push_approved(token):
    _pushed.append(token)
    return "pushed"


TOOLS = [read_token, fail_with_token, push, push_approved]


def opened(store, provider, **options):
    return Session("job", store=store, provider=provider, redact="secrets", **options)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("way", ["one by one", "parallel", "async"])
def test_secrets_in_arguments_results_and_errors(stores, provider, way):
    calls = [
        ("c1", "read_token", {"path": ".env"}),
        ("c2", "push", {"token": TOKEN}),
        ("c3", "fail_with_token", {"path": "x"}),
        ("c4", "no_tool", {"token": TOKEN}),
    ]
    with opened(stores, provider) as session:
        session.messages.append(USER[provider])
        if way == "async":
            asyncio.run(session.arun_tools(reply(provider, *calls), TOOLS))
        else:
            session.run_tools(reply(provider, *calls), TOOLS, parallel=way == "parallel")
        assert _pushed == [TOKEN]
        told = dict(results(session.messages))
        assert list(told) == ["c1", "c2", "c3", "c4"]
        assert "redact= replaced" in " ".join(session.notices)
    assert places(stores, TOKEN) == []
    assert sum(row.get("redacted", 0) for row in stores.history("job")) > 0
    with opened(stores, provider) as session:
        again = dict(results(session.messages))
        assert list(again) == list(told)
        assert again["c2"] == f"pushed with {GONE}"
        assert GONE in str(again["c1"])
        assert session.run_tools(text_reply(provider, "done"), TOOLS) == []
    assert _pushed == [TOKEN]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_batch_with_secrets_is_resumed(stores, provider):
    """Ended calls keep their results; the others are not made with placeholders."""
    message = reply(
        provider,
        ("c1", "push", {"token": TOKEN}),
        ("c2", "stop", {"token": TOKEN}),
        ("c3", "read_token", {"path": "a"}),
    )

    @tool(name="stop in a loop", effect="irreversible")
    def stop(token):
        _pushed.append(token)
        raise Killed

    tools = {"push": push, "stop": stop, "read_token": read_token}
    with killed("job", stores, provider=provider, redact="secrets") as session:
        session.messages.append(USER[provider])
        session.run_tools(message, tools)
    assert places(stores, TOKEN) == []
    with opened(stores, provider) as session:
        assert session.call_outcome("c1").status == "done"
        assert session.call_outcome("c2").status == "unknown"
        session.run_tools(session.messages, tools)
        told = dict(results(session.messages))
        assert told["c1"] == f"pushed with {GONE}"
        assert "is unknown" in str(told["c2"])
        assert "GITHUB" in str(told["c3"])
    assert _pushed == [TOKEN, TOKEN]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_call_is_not_made_with_placeholders(stores, provider):
    message = reply(provider, ("c1", "stop", {}), ("c2", "push", {"token": TOKEN}))

    def stop():
        raise Killed

    with killed("job", stores, provider=provider, redact="secrets") as session:
        session.messages.append(USER[provider])
        session.run_tools(message, [stop, push])
    with opened(stores, provider) as session:
        session.run_tools(session.messages, {"stop": lambda: 1, "push": push})
        told = dict(results(session.messages))
        assert str(told["c1"]) == "1"
        assert "were redacted when the session was saved" in str(told["c2"])
        session.run_tools(reply(provider, ("c3", "push", {"token": TOKEN})), [push])
    assert _pushed == [TOKEN]


def test_a_call_that_waits_for_approval_with_a_secret(stores):
    provider = "anthropic"
    message = reply(provider, ("c1", "push_approved", {"token": TOKEN}))
    with opened(stores, provider) as session:
        session.messages.append(USER[provider])
        with pytest.raises(Suspended) as suspended:
            session.run_tools(message, TOOLS)
        Approvals(stores).approve(suspended.value.approval_id)
        session.run_tools(message, TOOLS)  # with the real argument, which this process has
        assert _pushed == [TOKEN]
        assert results(session.messages) == [("c1", "pushed")]
    assert places(stores, TOKEN) == []


def test_secrets_in_requests_and_replies_of_a_model(stores):
    def send(**request: Any) -> "dict[str, Any]":
        assert request["messages"][0]["content"] == f"use {TOKEN}"
        return {"content": [{"type": "text", "text": f"done with {TOKEN}"}], "usage": {}}

    with opened(stores, "anthropic") as session:
        for n in range(3):
            session.messages.append({"role": "user", "content": f"use {TOKEN}"})
            answer = session.model(
                send, model="m", system=f"key {TOKEN}", messages=session.messages, n=n
            )
            assert TOKEN in answer["content"][0]["text"]
            session.messages.append({"role": "assistant", "content": answer["content"]})
            session.save()
            assert TOKEN in json.dumps(session.model_request(-1))
    assert places(stores, TOKEN) == []
    with opened(stores, "anthropic") as session:
        for n in range(3):
            request = session.model_request(n)
            assert request["system"] == f"key {GONE}"
            assert [one["role"] for one in request["messages"]] == ["user", "assistant"] * n + [
                "user"
            ]
            assert request["messages"][-1]["content"] == f"use {GONE}"
        assert GONE in str(session.model_calls[0]["reply"])


PLACEHOLDERS = {
    "pattern": "secrets",
    "function": lambda text: text.replace(TOKEN, "***"),
}


def killed_before_a_push(store, provider, redact):
    def stop():
        raise Killed

    message = reply(provider, ("c1", "stop", {}), ("c2", "push", {"token": TOKEN}))
    with killed("job", store, provider=provider, redact=redact) as session:
        session.messages.append(USER[provider])
        session.run_tools(message, [stop, push])


NOW = {"stop": lambda: 1, "push": push}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("kind", PLACEHOLDERS)
@pytest.mark.parametrize("later", ["as before", "moved", "without the option"])
def test_no_kind_of_placeholder_reaches_a_tool(memory, provider, kind, later):
    redact = PLACEHOLDERS[kind]
    killed_before_a_push(memory, provider, redact)
    option = None if later == "without the option" else redact
    with Session("job", store=memory, provider=provider, redact=option) as session:
        if later == "moved":
            session.messages = [USER[provider], text_reply(provider, "yes"), *session.messages]
        session.run_tools(session.messages, NOW)
        assert "were redacted when the session was saved" in str(results(session.messages)[-1][1])
    assert _pushed == []


@pytest.mark.parametrize("kind", PLACEHOLDERS)
def test_a_call_that_was_given_its_real_arguments_again_is_made(memory, kind):
    provider, redact = "anthropic", PLACEHOLDERS[kind]
    killed_before_a_push(memory, provider, redact)
    with Session("job", store=memory, provider=provider, redact=redact) as session:
        message = reply(provider, ("c1", "stop", {}), ("c2", "push", {"token": TOKEN}))
        session.messages[-1] = message
        session.run_tools(session.messages, NOW)
    assert _pushed == [TOKEN]


@pytest.mark.parametrize("redact", [r"[0-9a-f]{32}", r"[0-9a-f]{12}", r"[a-z0-9]{12,}"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_patterns_that_match_our_own_identifiers(memory, provider, redact):
    made = []

    def step(n):
        made.append(n)
        if made == [0, 9, 1]:
            raise Killed
        return f"did {n}"

    @tool(effect="irreversible")
    def mail(n):
        made.append(n)
        raise ValueError("no answer")

    calls = [("c0", "step", {"n": 0}), ("c1", "mail", {"n": 9}), ("c2", "step", {"n": 1})]
    options = {"provider": provider, "redact": redact}
    with killed("job", memory, **options) as session:
        session.messages.append(USER[provider])
        session.run_tools(reply(provider, *calls), [step, mail])
    with Session("job", store=memory, **options) as session:
        session.run_tools(session.messages, [step, mail])
        told = [str(result) for _, result in results(session.messages)]
    assert made == [0, 9, 1, 1]
    assert "did 0" in told[0]
    assert "no answer The outcome is unknown" in told[1]
    assert "did 1" in told[2]
