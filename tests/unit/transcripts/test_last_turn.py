"""The last turn of a conversation: replies of client libraries, open calls, messages of results."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from agent_checkpoint import transcripts
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.transcripts import dialect_for
from agent_checkpoint.transcripts.dialect import Answer
from agent_checkpoint.transcripts.fields import plain
from agent_checkpoint.transcripts.last_turn import LastTurn
from tests.unit.session.loop.replies import PROVIDERS, USER, reply, text_reply


def listed(message: Any) -> list[Any]:
    return message if isinstance(message, list) else [message]


def turn_of(provider: Any, *messages: Any) -> LastTurn:
    return LastTurn([one for message in messages for one in listed(message)], dialect_for(provider))


def results_of(provider: Any, turn: LastTurn) -> list[Any]:
    return turn.result_messages((call, Answer("ok", error=False)) for call in turn.open_calls)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_open_calls_are_those_without_results(provider: Any) -> None:
    calls = reply(provider, ("c1", "look", {"n": 1}), ("c2", "look", {"n": 2}))
    turn = turn_of(provider, USER[provider], calls)
    assert [call.id for call in turn.open_calls] == ["c1", "c2"]
    assert [dialect_for(provider).arguments(call) for call in turn.calls] == [{"n": 1}, {"n": 2}]
    done = turn_of(provider, USER[provider], calls, results_of(provider, turn))
    assert [call.id for call in done.calls] == ["c1", "c2"]
    assert done.open_calls == []
    whole = [USER[provider], *listed(calls), *results_of(provider, turn)]
    assert transcripts.check(whole, provider=provider) == []
    assert turn_of(provider, calls, USER[provider]).calls == []
    assert turn_of(provider).open_calls == []


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_turn_is_known_by_its_content(provider: Any) -> None:
    one = reply(provider, ("c1", "look", {"n": 1}))
    turn = turn_of(provider, USER[provider], one)
    assert turn.ends_with(listed(one))
    assert not turn.ends_with(listed(reply(provider, ("c2", "look", {"n": 1}))))
    assert not turn.ends_with(listed(reply(provider, ("c1", "look", {"n": 2}))))
    assert not turn.ends_with(listed(text_reply(provider, "ok")))
    text = text_reply(provider, "yes")
    assert turn_of(provider, USER[provider], text).ends_with([text])
    assert not turn_of(provider, USER[provider], text).ends_with([text_reply(provider, "no")])


def test_the_same_text_may_be_written_in_two_ways() -> None:
    turn = turn_of("anthropic", {"role": "assistant", "content": "yes"})
    assert turn.ends_with([text_reply("anthropic", "yes")])


def test_results_in_two_messages_are_refused() -> None:
    calls = reply("anthropic", ("c1", "look", {}), ("c2", "look", {}))
    half = {"type": "tool_result", "tool_use_id": "c1", "content": "ok"}
    turn = turn_of("anthropic", calls, {"role": "user", "content": [half]})
    with pytest.raises(InvalidInputError, match="in one message"):
        results_of("anthropic", turn)


def test_a_computer_needs_a_screenshot() -> None:
    call = {"type": "computer_call", "call_id": "c1", "action": {"type": "click"}}
    turn = turn_of("openai-responses", call)
    assert dialect_for("openai-responses").arguments(turn.calls[0]) == {"action": {"type": "click"}}
    with pytest.raises(InvalidInputError, match="screenshot"):
        results_of("openai-responses", turn)


def test_custom_tools_get_their_text() -> None:
    item = {"type": "custom_tool_call", "call_id": "c1", "name": "sql", "input": "select 1"}
    turn = turn_of("openai-responses", item)
    assert dialect_for("openai-responses").arguments(turn.calls[0]) == {"input": "select 1"}
    call = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    turn = turn_of("openai", {"role": "assistant", "content": "", "tool_calls": [call]})
    assert dialect_for("openai").arguments(turn.calls[0]) == {"input": "select 1"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_open_calls_at_the_end_can_be_kept(provider: Any) -> None:
    calls = reply(provider, ("c1", "look", {}), ("c2", "look", {}))
    messages = [USER[provider], *listed(calls)]
    kept = transcripts.repair(messages, provider=provider, keep_open=True)
    assert kept == messages
    assert kept.changes == ()
    assert len(transcripts.repair(messages, provider=provider).changes) == 2
    later = [*messages, USER[provider]]
    assert len(transcripts.repair(later, provider=provider, keep_open=True).changes) == 2


def test_a_call_that_ends_in_the_middle_is_not_kept() -> None:
    message = reply("openai", ("c1", "look", "{}"), ("c2", "look", '{"a'))
    kept = transcripts.repair([message], provider="openai", keep_open=True)
    assert [call["id"] for call in kept[0]["tool_calls"]] == ["c1"]


def test_ids_of_open_calls_are_not_renamed() -> None:
    calls = reply("openai", ("c1", "look", {}))
    done = results_of("openai", turn_of("openai", calls))
    messages = [USER["openai"], calls, *done, calls]
    assert transcripts.repair(messages, provider="openai", keep_open=True) == messages


def test_replies_of_anthropic_are_their_message() -> None:
    types = pytest.importorskip("anthropic.types")
    content = reply("anthropic", ("c1", "look", {"z": 1, "a": [2]}))["content"]
    usage = {"input_tokens": 1, "output_tokens": 1}
    body = {"id": "m", "type": "message", "role": "assistant", "model": "x", "usage": usage}
    body.update(content=content, stop_reason="tool_use", stop_sequence=None)
    read = dialect_for("anthropic").reply
    assert read(types.Message.model_validate(body)) == [{"role": "assistant", "content": content}]
    assert read(body) == [{"role": "assistant", "content": content}]
    assert read({"role": "assistant", "content": "x"}) == [{"role": "assistant", "content": "x"}]


def test_replies_of_openai_are_their_message() -> None:
    chat = pytest.importorskip("openai.types.chat")
    message = {"refusal": None, **reply("openai", ("c1", "look", {}))}
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message, "logprobs": None}
    body = {"id": "m", "object": "chat.completion", "created": 1, "model": "x", "choices": [choice]}
    read = dialect_for("openai").reply
    completion = chat.ChatCompletion.model_validate(body)
    assert read(completion) == read(completion.choices[0].message) == read(body) == [message]


def test_what_helpers_of_the_client_add_is_not_sent_back() -> None:
    chat = pytest.importorskip("openai.types.chat")
    responses = pytest.importorskip("openai.types.responses.parsed_response")
    sent = {"role": "assistant", "content": None, "refusal": None}
    sent["tool_calls"] = reply("openai", ("c1", "look", {"n": 1}))["tool_calls"]
    (call,) = sent["tool_calls"]
    function = {**call["function"], "parsed_arguments": {"n": 1}}
    parsed = chat.ParsedChatCompletionMessage.model_validate(
        {
            **sent,
            "parsed": None,
            "audio": None,
            "function_call": None,
            "tool_calls": [{**call, "index": 0, "function": function}],
        }
    )
    assert dialect_for("openai").reply(parsed) == [sent]
    (item,) = reply("openai-responses", ("c1", "look", {"n": 1}))
    parsed_item = responses.ParsedResponseFunctionToolCall.model_validate(
        {**item, "parsed_arguments": {"n": 1}}
    )
    assert dialect_for("openai-responses").reply([parsed_item]) == [item]
    text = {"type": "output_text", "text": "{}", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    given = {**message, "content": [{**text, "parsed": {}}]}
    assert dialect_for("openai-responses").reply([given]) == [{**message, "content": [text]}]


def test_replies_of_the_responses_api_are_their_items() -> None:
    responses = pytest.importorskip("openai.types.responses")
    items = reply("openai-responses", ("c1", "look", {"n": 1}))
    body = {"id": "r", "object": "response", "created_at": 1, "model": "x", "output": items}
    body.update(parallel_tool_calls=True, tool_choice="auto", tools=[])
    read = dialect_for("openai-responses").reply
    response = responses.Response.model_validate(body)
    assert read(response) == read(response.output) == read(body) == items


def test_replies_of_gemini_are_their_content() -> None:
    types = pytest.importorskip("google.genai.types")
    content = {"role": "model", "parts": [{"function_call": {"name": "look", "args": {"n": 1}}}]}
    content["parts"][0]["thought_signature"] = "aGVsbG8="
    body = {"candidates": [{"content": content}]}
    read = dialect_for("gemini").reply
    response = types.GenerateContentResponse.model_validate(body)
    assert read(response) == read(response.candidates[0].content) == read(body) == [content]
    assert types.Content.model_validate(read(response)[0]) == response.candidates[0].content


def test_plain_values() -> None:
    inner = SimpleNamespace()
    assert plain({"a": ({"b": 1}, [2]), "c": inner}) == {"a": [{"b": 1}, [2]], "c": inner}
    assert json.dumps(plain({"z": 1, "a": 2})) == '{"z": 1, "a": 2}'
