"""What holds for every provider: errors, kinds of messages, the returned list."""

import copy
import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_checkpoint import InvalidInputError, Log, transcripts


def call(call_id: str) -> "dict[str, Any]":
    return {"type": "tool_use", "id": call_id, "name": "deploy", "input": {}}


CONVERSATION = [
    {"role": "user", "content": "Deploy it."},
    {"role": "assistant", "content": [call("a")]},
    {"role": "user", "content": "Well?"},
]


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"provider must be 'anthropic', .* not 'claude'"):
        transcripts.check([], provider="claude")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("anthropic", {"role": "tool", "tool_call_id": "a", "content": ""}),
        ("openai", {"role": "model", "parts": []}),
        ("openai-responses", {"parts": []}),
        ("gemini", {"role": "assistant", "content": "x"}),
        ("anthropic", None),
    ],
)
def test_a_message_of_another_provider_is_refused(provider: Any, message: Any) -> None:
    with pytest.raises(InvalidInputError, match="Check provider="):
        transcripts.check([message], provider=provider)


@pytest.mark.parametrize("provider", ["anthropic", "openai", "openai-responses", "gemini"])
def test_an_empty_conversation_is_fine(provider: Any) -> None:
    assert transcripts.check([], provider=provider) == []
    assert transcripts.repair([], provider=provider) == []


def test_the_input_is_not_changed_and_not_returned() -> None:
    messages = copy.deepcopy(CONVERSATION)
    repaired = transcripts.repair(messages, provider="anthropic")
    assert messages == CONVERSATION
    assert repaired is not messages
    assert repaired[0] is messages[0]
    assert repaired[1] is messages[1]
    valid = messages[:1]
    assert transcripts.repair(valid, provider="anthropic") == valid
    assert transcripts.repair(valid, provider="anthropic") is not valid


def test_a_repaired_list_is_json_and_can_be_copied() -> None:
    repaired = transcripts.repair(CONVERSATION, provider="anthropic")
    assert json.loads(json.dumps(repaired)) == repaired
    for same in (
        copy.copy(repaired),
        copy.deepcopy(repaired),
        pickle.loads(pickle.dumps(repaired)),
    ):
        assert same == repaired
        assert same.changes == repaired.changes
    assert str(repaired.changes[0]) == (
        "messages.1.content.0: inserted a result for call a (deploy): outcome unknown"
    )


class Frozen(Mapping[str, Any]):
    """A mapping that is no dict."""

    def __init__(self, **items: Any) -> None:
        self._items = items

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


@dataclass
class Note:
    """An object with attributes."""

    content: Any
    role: str = "user"
    extra: "dict[str, Any]" = field(default_factory=dict)


def test_messages_may_be_logs_mappings_and_objects() -> None:
    expected = list(transcripts.repair(CONVERSATION, provider="anthropic"))
    assert transcripts.repair(Log(CONVERSATION), provider="anthropic") == expected
    assert transcripts.repair(iter(CONVERSATION), provider="anthropic") == expected
    frozen = Frozen(role="user", content=(Frozen(type="text", text="Well?"),))
    repaired = transcripts.repair([*CONVERSATION[:2], frozen], provider="anthropic")
    assert repaired[2]["content"][1] is frozen["content"][0]
    noted = transcripts.repair([*CONVERSATION[:2], Note("Well?")], provider="anthropic")
    assert noted[2]["content"] == expected[2]["content"]
    assert noted[2]["extra"] == {}


def test_a_reply_that_does_not_fit_its_class_becomes_a_dict() -> None:
    chat = pytest.importorskip("openai.types.chat")
    half = {"id": "b", "type": "function", "function": {"name": "x", "arguments": "{"}}
    reply = chat.ChatCompletionMessage.model_construct(
        role="assistant", content=7, tool_calls=[half]
    )
    repaired = transcripts.repair([CONVERSATION[0], reply], provider="openai")
    assert repaired[1] == {"role": "assistant", "content": 7}
