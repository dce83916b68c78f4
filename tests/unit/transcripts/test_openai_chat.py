"""OpenAI Chat Completions: calls in assistant messages, tool messages right after them."""

from typing import Any, Optional

import pytest

from agent_checkpoint import transcripts
from agent_checkpoint.transcripts import CallOutcome, Repaired

USER = {"role": "user", "content": "Deploy it."}


def call(call_id: str, arguments: str = "{}") -> "dict[str, Any]":
    function = {"name": "deploy", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def assistant(*calls: Any, content: Optional[str] = None) -> "dict[str, Any]":
    message = {"role": "assistant", "content": content}
    return {**message, "tool_calls": list(calls)} if calls else message


def tool(call_id: str, content: Any = "done") -> "dict[str, Any]":
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def codes(*messages: Any) -> "list[str]":
    return [one.code for one in transcripts.check(messages, provider="openai")]


def repair(*messages: Any, session: Any = None) -> Repaired:
    repaired = transcripts.repair(messages, provider="openai", session=session)
    assert transcripts.check(repaired, provider="openai") == []
    return repaired


def test_a_missing_tool_message_is_inserted_behind_the_others() -> None:
    first = tool("b")
    messages = [USER, assistant(call("a"), call("b")), first, USER]
    assert codes(*messages) == ["call-without-result"]
    repaired = repair(*messages)
    assert repaired[2] is first
    assert repaired[3]["tool_call_id"] == "a"
    assert "unknown" in repaired[3]["content"]
    assert repaired[4] is USER


def test_a_recorded_result_is_inserted_as_it_is() -> None:
    class Known:
        def call_outcome(self, call_id: str) -> CallOutcome:
            return CallOutcome("done", "deployed v2", "deploy")

    repaired = repair(USER, assistant(call("a")), session=Known())
    assert repaired[2] == tool("a", "deployed v2")
    assert "its recorded result" in repaired.changes[0].text


def test_a_late_tool_message_is_moved_as_it_is() -> None:
    late = tool("a")
    repaired = repair(USER, assistant(call("a")), USER, late)
    assert repaired[2] is late
    assert len(repaired) == 4


def test_tool_messages_without_a_call_and_second_ones_are_dropped() -> None:
    messages = [USER, tool("x"), assistant(call("a")), tool("a"), tool("a", "again")]
    assert codes(*messages) == ["result-without-call", "duplicate-result"]
    assert repair(*messages) == [USER, assistant(call("a")), tool("a")]


def test_a_second_call_with_the_same_id_gets_another() -> None:
    messages = [USER, assistant(call("a")), tool("a"), assistant(call("a")), tool("a", "2nd")]
    assert codes(*messages) == ["duplicate-id"]
    assert repair(*messages)[3:] == [assistant(call("a_2")), tool("a_2", "2nd")]


def test_a_call_that_was_half_streamed_is_cut() -> None:
    half = call("b", '{"pa')
    assert repair(USER, assistant(half)) == [USER]
    assert repair(USER, assistant(half, content="I will")) == [USER, assistant(content="I will")]
    assert repair(USER, assistant(call("a"), half))[1] == assistant(call("a"))
    # The API takes bad arguments of a call that was answered.
    assert codes(USER, assistant(half), tool("b", "invalid JSON")) == []
    # Some models call a tool that takes nothing in this way.
    assert repair(USER, assistant(call("a", "")))[2]["tool_call_id"] == "a"


def test_a_half_streamed_call_with_a_record_is_answered() -> None:
    class Known:
        def call_outcome(self, call_id: str) -> CallOutcome:
            return CallOutcome("done", "ok")

    assert repair(USER, assistant(call("b", '{"pa')), session=Known())[2] == tool("b", "ok")


def test_messages_without_content_are_mended() -> None:
    empty = {"role": "assistant", "content": "x", "tool_calls": []}
    assert codes(USER, empty) == ["empty-tool-calls"]
    assert repair(USER, empty)[1] == assistant(content="x")
    assert codes(USER, assistant(), USER) == ["empty-content"]
    assert repair(USER, assistant(), USER) == [USER, USER]
    assert codes(USER, {"role": "assistant", "content": None, "refusal": "No."}) == []
    silent = [USER, assistant(call("a")), tool("a", None)]
    assert codes(*silent) == ["empty-content"]
    assert repair(*silent)[2] == tool("a", "")


def test_a_message_of_the_client_keeps_its_class() -> None:
    chat = pytest.importorskip("openai.types.chat")
    message = chat.ChatCompletionMessage.model_validate(assistant(call("a"), call("b", '{"')))
    repaired = repair(USER, message)
    assert isinstance(repaired[1], chat.ChatCompletionMessage)
    assert [one.id for one in repaired[1].tool_calls] == ["a"]
    assert repaired[2]["tool_call_id"] == "a"
    assert len(message.tool_calls) == 2
    only_text = chat.ChatCompletionMessage(role="assistant", content="x", tool_calls=[])
    assert "tool_calls" not in repair(USER, only_text)[1].model_fields_set
