"""Anthropic Messages: what is found, where results go, what happens to thinking."""

from typing import Any

import pytest

from agent_checkpoint import transcripts
from agent_checkpoint.transcripts import CallOutcome, Repaired

USER = {"role": "user", "content": "Deploy it."}


def assistant(*blocks: Any) -> "dict[str, Any]":
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: Any) -> "dict[str, Any]":
    return {"role": "user", "content": list(blocks)}


def call(call_id: str, **fields: Any) -> "dict[str, Any]":
    return {"type": "tool_use", "id": call_id, "name": "deploy", "input": {}, **fields}


def result(call_id: str, content: Any = "done") -> "dict[str, Any]":
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def text(words: str) -> "dict[str, Any]":
    return {"type": "text", "text": words}


def thinking(signature: str) -> "dict[str, Any]":
    return {"type": "thinking", "thinking": "hm", "signature": signature}


def codes(*messages: Any) -> "list[str]":
    return [one.code for one in transcripts.check(messages, provider="anthropic")]


def repair(*messages: Any, session: Any = None) -> Repaired:
    repaired = transcripts.repair(messages, provider="anthropic", session=session)
    assert transcripts.check(repaired, provider="anthropic") == []
    return repaired


def test_a_call_at_the_end_gets_a_new_user_message() -> None:
    asked = assistant(thinking("s1"), call("a"))
    (problem,) = transcripts.check([USER, asked], provider="anthropic")
    assert (problem.index, problem.path) == (1, "messages.1.content.1")
    assert str(problem) == "messages.1.content.1: call a (deploy) has no result"
    repaired = repair(USER, asked)
    assert repaired[:2] == [USER, asked]
    assert repaired[1] is asked  # with its thinking
    ((answer,),) = [message["content"] for message in repaired[2:]]
    assert (answer["tool_use_id"], answer["is_error"]) == ("a", True)
    assert "Whether it took effect is unknown" in answer["content"]
    (change,) = repaired.changes
    assert (change.action, change.index, change.value) == ("inserted", 1, answer)


@pytest.mark.parametrize(
    ("outcome", "content", "error"),
    [
        (CallOutcome("done", "deployed v2"), "deployed v2", None),
        (CallOutcome("done", {"version": 2}), '{"version": 2}', None),
        (CallOutcome("done"), "No result was recorded", None),
        (CallOutcome("not-done"), "was not executed", True),
        (CallOutcome("unknown"), "may or may not have taken effect", True),
        (None, "Whether it took effect is unknown", True),
    ],
)
def test_a_result_says_what_the_session_knows(outcome: Any, content: str, error: Any) -> None:
    class Known:
        def call_outcome(self, call_id: str) -> Any:
            assert call_id == "a"
            return outcome

    answer = repair(USER, assistant(call("a")), session=Known())[2]["content"][0]
    assert content in answer["content"]
    assert answer.get("is_error") == error


def test_the_user_went_on_after_an_open_call() -> None:
    went_on = {"role": "user", "content": "And the tests?"}
    repaired = repair(USER, assistant(call("a"), call("b")), went_on, assistant(text("Yes.")))
    assert [block["type"] for block in repaired[2]["content"]] == ["tool_result"] * 2 + ["text"]
    assert repaired[2]["content"][2] == text("And the tests?")
    assert went_on == {"role": "user", "content": "And the tests?"}


def test_a_missing_parallel_result_joins_the_others() -> None:
    after = user(text("Thanks."))
    repaired = repair(USER, assistant(call("a"), call("b")), user(result("b")), after)
    assert [block["tool_use_id"] for block in repaired[2]["content"]] == ["b", "a"]
    assert repaired[3] is after


def test_a_result_further_on_is_moved() -> None:
    late = result("a", "late")
    repaired = repair(
        USER, assistant(call("a")), user(text("So?")), assistant(text("?")), user(late)
    )
    assert repaired[2]["content"] == [late, text("So?")]
    assert len(repaired) == 4
    assert [change.action for change in repaired.changes] == ["moved"]


def test_a_late_result_belongs_to_the_nearest_call_before_it() -> None:
    again = [
        assistant(call("a")),
        user(text("So?")),
        assistant(text("?")),
        user(result("a", "2nd")),
    ]
    repaired = repair(USER, assistant(call("a")), user(text("Well?")), *again)
    assert repaired[2]["content"][0]["is_error"]
    assert repaired[4]["content"][0] == result("a_2", "2nd")


def test_a_result_behind_a_text_is_moved_to_the_front() -> None:
    assert codes(USER, assistant(call("a")), user(text("x"), result("a"))) == ["misplaced-result"]
    assert codes(USER, assistant(call("a")), user(text("x")), user(result("a"))) == [
        "misplaced-result"
    ]
    repaired = repair(USER, assistant(call("a")), user(text("x"), result("a")))
    assert repaired[2]["content"] == [result("a"), text("x")]


def test_messages_of_one_role_count_as_one_turn() -> None:
    joined = [
        USER,
        assistant(call("a")),
        assistant(call("b")),
        user(result("a")),
        user(result("b")),
    ]
    assert codes(*joined) == []


def test_results_without_a_call_and_second_results_are_dropped() -> None:
    messages = [USER, assistant(call("a")), user(result("a"), result("a", "again"), result("x"))]
    assert codes(*messages) == ["duplicate-result", "result-without-call"]
    repaired = repair(*messages)
    assert repaired[2]["content"] == [result("a")]
    assert [change.value for change in repaired.changes] == [result("a", "again"), result("x")]


def test_ids_become_valid_and_unique() -> None:
    messages = [
        *(USER, assistant(call("functions.deploy:0")), user(result("functions.deploy:0"))),
        *(assistant(call("a")), user(result("a")), assistant(call("a")), user(result("a", "2nd"))),
    ]
    assert codes(*messages) == ["invalid-id", "duplicate-id"]
    repaired = repair(*messages)
    assert repaired[1]["content"][0]["id"] == "functions_deploy_0"
    assert repaired[2]["content"][0]["tool_use_id"] == "functions_deploy_0"
    assert repaired[5]["content"][0]["id"] == "a_2"
    assert repaired[6]["content"][0] == result("a_2", "2nd")


def test_the_record_of_a_call_is_not_used_for_a_later_call_with_the_same_id() -> None:
    class Known:
        def call_outcome(self, call_id: str) -> CallOutcome:
            return CallOutcome("done", "the first")

    messages = [USER, assistant(call("a")), user(result("a")), assistant(call("a"))]
    assert repair(*messages, session=Known())[4]["content"][0]["is_error"]


def test_a_conversation_begins_with_the_user() -> None:
    assert codes(assistant(text("Hello."))) == ["first-message"]
    assert repair(assistant(text("Hello.")))[0]["role"] == "user"
    # The first messages were cut off, with the call of a result.
    trimmed = repair(user(result("a")), assistant(text("Done.")), USER)
    assert [message["role"] for message in trimmed] == ["user", "assistant", "user"]
    assert [change.action for change in trimmed.changes] == ["dropped", "inserted"]


def test_empty_texts_and_messages_are_dropped() -> None:
    messages = [USER, assistant(text(" "), text("x")), {"role": "user", "content": ""}, USER]
    assert codes(*messages) == ["empty-text", "empty-content"]
    assert repair(*messages) == [USER, assistant(text("x")), USER]
    assert codes(USER, assistant()) == []  # may be empty at the end
    silent = user(result("a", [text("")]))
    assert codes(USER, assistant(call("a")), silent) == ["empty-text"]
    assert repair(USER, assistant(call("a")), silent)[2]["content"] == [result("a", [])]


def test_a_call_that_was_half_streamed_is_cut() -> None:
    half = call("b", input='{"path": "a')
    messages = [USER, assistant(thinking("s"), call("a"), half)]
    repaired = repair(*messages)
    assert repaired[1]["content"] == [thinking("s"), call("a")]
    assert [change.action for change in repaired.changes] == ["dropped", "inserted"]
    assert repair(USER, assistant(thinking("s"), half)) == [USER]


def test_an_input_that_is_json_text_becomes_an_object() -> None:
    messages = [USER, assistant(call("a", input='{"n": 1}')), user(result("a"))]
    assert codes(*messages) == ["invalid-input"]
    assert repair(*messages)[1]["content"][0]["input"] == {"n": 1}
    answered = repair(USER, assistant(call("a", input="no JSON")), user(result("a")))
    assert answered[1]["content"][0]["input"] == {"input": "no JSON"}


def test_thinking_needs_its_signature() -> None:
    redacted = {"type": "redacted_thinking", "data": ""}
    messages = [USER, assistant(thinking(""), redacted, text("Yes."))]
    assert codes(*messages) == ["unsigned-thinking"] * 2
    assert repair(*messages)[1] == assistant(text("Yes."))


def test_thinking_with_nothing_after_it_is_cut() -> None:
    assert codes(USER, assistant(text("x"), thinking("s"))) == ["lone-thinking"]
    assert codes(USER, assistant(thinking("s")), USER) == ["lone-thinking"]
    assert codes(USER, assistant(text("x"), thinking("s")), USER) == []


def test_thinking_after_a_change_is_dropped_and_reported() -> None:
    before = assistant(thinking("s1"), call("a"))
    after = assistant(thinking("s2"), text("Yes."))
    repaired = repair(USER, before, USER, after)
    assert repaired[1] is before
    assert repaired[3] == assistant(text("Yes."))
    assert [change.value for change in repaired.changes if change.action == "dropped"] == [
        thinking("s2")
    ]


def test_calls_of_server_tools_need_their_results() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    assert codes(USER, assistant(search, found, text("x"))) == []
    assert codes(USER, assistant(search)) == []  # paused: the API goes on
    assert codes(USER, assistant(search, call("a")), user(result("a"))) == []
    assert codes(USER, assistant(search), USER) == ["call-without-result"]
    assert repair(USER, assistant(search, text("x")), USER) == [USER, assistant(text("x")), USER]
    assert codes(USER, assistant(found, text("x"))) == ["result-without-call"]


def test_blocks_of_the_model_in_a_user_message_are_dropped() -> None:
    assert codes(user(text("x"), call("a"), thinking("s"))) == ["misplaced-block"] * 2


def test_a_system_message_does_not_separate_a_call_from_its_result() -> None:
    system = {"role": "system", "content": "Be brief."}
    repaired = repair(USER, assistant(call("a")), system, user(result("a")))
    assert repaired == [USER, assistant(call("a")), user(result("a")), system]


def test_a_result_of_a_toolset_names_it() -> None:
    repaired = repair(USER, assistant(call("a", toolset_name="browser")))
    assert repaired[2]["content"][0]["toolset_name"] == "browser"


def test_objects_of_the_client() -> None:
    types = pytest.importorskip("anthropic.types")
    asked = assistant(
        types.ThinkingBlock(type="thinking", thinking="hm", signature="s"),
        types.ToolUseBlock(type="tool_use", id="a.1", name="deploy", input={}),
    )
    repaired = repair(USER, asked)
    assert repaired[1]["content"][0] is asked["content"][0]
    renamed = repaired[1]["content"][1]
    assert isinstance(renamed, types.ToolUseBlock)
    assert renamed.id == repaired[2]["content"][0]["tool_use_id"] == "a_1"
