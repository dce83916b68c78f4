"""The schedule of parallel calls: which run at once, and what is saved between them."""

import asyncio
import threading

import pytest

from agent_checkpoint import Session, Suspended, tool
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, results

A = "anthropic"


def run(session, message, tools, is_async):
    """Run the calls in parallel, in threads or on an event loop."""
    if is_async:
        return asyncio.run(session.arun_tools(message, tools, parallel=True))
    return session.run_tools(message, tools, parallel=True)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("is_async", [False, True])
def test_calls_with_one_key_get_one_result(memory, provider, is_async):
    sent, other_began = [], threading.Event()

    @tool(effect="irreversible", key=lambda to: to)
    def send(to):
        sent.append(to)
        if to == "ann":
            other_began.wait(30)  # the second call to ann has its chance to begin
        else:
            other_began.set()
        return f"sent to {to} as {len(sent)}"

    calls = [
        ("c1", "send", {"to": "ann"}),
        ("c2", "send", {"to": "ann"}),
        ("c3", "send", {"to": "bob"}),
    ]
    with Session("job", store=memory, provider=provider) as session:
        session.messages.append(USER[provider])
        run(session, reply(provider, *calls), [send], is_async)
        first, second, third = (str(result) for _, result in results(session.messages))
    assert sorted(sent) == ["ann", "bob"]
    assert first == second
    assert "sent to ann" in first
    assert "sent to bob" in third


@pytest.mark.parametrize("is_async", [False, True])
def test_equal_calls_without_a_key_run_at_once(memory, is_async):
    together = threading.Barrier(2, timeout=30)

    @tool(effect="irreversible")
    def send(to):
        return f"{to} {together.wait() >= 0}"

    with Session("job", store=memory, provider=A) as session:
        session.messages.append(USER[A])
        run(
            session,
            reply(A, *((f"c{n}", "send", {"to": "ann"}) for n in range(2))),
            [send],
            is_async,
        )
        assert results(session.messages) == [("c0", "ann True"), ("c1", "ann True")]


@pytest.mark.parametrize("is_async", [False, True])
def test_nothing_is_saved_after_calls_that_only_wait(memory, is_async):
    @tool(effect="irreversible", approve=True)
    def mail(to):
        return to

    with Session("job", store=memory, provider=A) as session:

        def ask(name):
            with session.subagent(name) as child:
                child.messages.append(USER[A])
                child.run_tools(reply(A, ("c1", "mail", {"to": name})), [mail])

        session.messages.append(USER[A])
        calls = [(f"c{name}", "ask", {"name": name}) for name in ("x", "y")]
        with pytest.raises(Suspended):
            run(session, reply(A, *calls), [ask], is_async)
        assert "ask, ask" not in [row["label"] for row in session.history()]
