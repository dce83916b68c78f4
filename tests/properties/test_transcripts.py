"""Any conversation, broken in any way: the repaired one is accepted, and nothing vanishes."""

import json
from collections import Counter
from random import Random
from typing import Any, Optional

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("anthropic")
pytest.importorskip("openai")
pytest.importorskip("google.genai")

from agent_checkpoint import Log, transcripts
from agent_checkpoint.transcripts import CallOutcome
from tests.properties.conversations import APIS, Api, plain

EXAMPLES = settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
SEEDS = st.integers(0, 2**32).map(Random)


class Ledger:
    """Knows something about some calls, always the same."""

    def call_outcome(self, call_id: str) -> Optional[CallOutcome]:
        choice = sum(map(ord, call_id)) % 5
        if choice == 0:
            return None
        if choice in (1, 2):
            return CallOutcome("done", "text" if choice == 1 else {"json": [1]}, "read")
        return CallOutcome("not-done" if choice == 3 else "unknown")


def blocks(messages: "list[Any]") -> "Counter[str]":
    """The texts, calls, results and thoughts of a conversation."""
    found: Counter[str] = Counter()
    for message in plain(messages):
        inner = message.get("content") if "type" not in message else None
        inner = inner if isinstance(inner, list) else message.get("parts")
        if isinstance(inner, list):
            found.update(json.dumps(block, sort_keys=True) for block in inner)
        elif message.get("role") == "assistant":
            calls = message.get("tool_calls") or []
            found.update(json.dumps(call, sort_keys=True) for call in calls)
            found.update([json.dumps(message["content"])] if message["content"] else [])
        elif message.get("role") == "user" and isinstance(message.get("content"), str):
            found.update([json.dumps({"text": message["content"], "type": "text"}, sort_keys=True)])
        else:
            found.update([json.dumps(message, sort_keys=True)])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", APIS, ids=lambda kind: kind.provider)
@EXAMPLES
@given(rng=SEEDS)
def test_a_valid_conversation_comes_back_untouched(kind: "type[Api]", rng: Random) -> None:
    api = kind(rng)
    messages = [api.maybe_object(message) for message in api.conversation()]
    assert list(api.complaints(messages)) == []
    api.validate(messages)
    assert transcripts.check(messages, provider=api.provider) == []  # type: ignore[arg-type]
    repaired = transcripts.repair(messages, provider=api.provider)  # type: ignore[arg-type]
    assert repaired.changes == ()
    assert all(new is old for new, old in zip(repaired, messages))
    assert len(repaired) == len(messages)


@pytest.mark.slow
@pytest.mark.parametrize("kind", APIS, ids=lambda kind: kind.provider)
@EXAMPLES
@given(rng=SEEDS)
def test_a_broken_conversation_is_repaired(kind: "type[Api]", rng: Random) -> None:
    api = kind(rng)
    provider: Any = api.provider
    messages = api.broken(api.conversation())
    before = repr(messages)

    problems = transcripts.check(messages, provider=provider)
    assert bool(problems) == bool(list(api.complaints(messages)))
    session = rng.choice([None, Ledger()])
    repaired = transcripts.repair(messages, provider=provider, session=session)

    assert repr(messages) == before
    assert list(api.complaints(repaired)) == []
    assert transcripts.check(repaired, provider=provider) == []
    api.validate(repaired)
    again = transcripts.repair(repaired, provider=provider, session=session)
    assert again.changes == ()
    assert all(new is old for new, old in zip(again, repaired))

    assert bool(repaired.changes) == bool(problems)
    start = problems[0].index if problems else len(messages)
    assert all(new is old for new, old in zip(repaired[:start], messages[:start]))
    reported = [change.value for change in repaired.changes]
    gone = blocks(messages) - blocks(repaired)
    assert not gone - reported_blocks(reported), gone


def reported_blocks(values: "list[Any]") -> "Counter[str]":
    found = Counter(json.dumps(plain(value), sort_keys=True) for value in values)
    whole = [value for value in plain(values) if isinstance(value, dict)]
    return found + blocks([value for value in whole if "role" in value])


@pytest.mark.parametrize("kind", APIS, ids=lambda kind: kind.provider)
def test_a_log_is_as_good_as_a_list(kind: "type[Api]") -> None:
    api = kind(Random(7))
    messages = api.broken(api.conversation())
    provider: Any = api.provider
    assert list(transcripts.repair(Log(messages), provider=provider)) == list(
        transcripts.repair(messages, provider=provider)
    )
