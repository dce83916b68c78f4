"""OpenAI Responses: every call item has its output, reasoning has its item."""

from typing import Any

import pytest

from agent_checkpoint import transcripts
from agent_checkpoint.transcripts import CallOutcome, Repaired

USER = {"role": "user", "content": "Deploy it."}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
REPLY = {"role": "assistant", "content": "Done."}


def call(call_id: str, kind: str = "function_call", **fields: Any) -> "dict[str, Any]":
    if kind == "function_call":
        fields = {"name": "deploy", "arguments": "{}", **fields}
    return {"type": kind, "call_id": call_id, **fields}


def output(call_id: str, text: Any = "done") -> "dict[str, Any]":
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def codes(*items: Any) -> "list[str]":
    return [one.code for one in transcripts.check(items, provider="openai-responses")]


def repair(*items: Any, outcome: Any = None) -> Repaired:
    class Known:
        def call_outcome(self, call_id: str) -> Any:
            return outcome

    repaired = transcripts.repair(items, provider="openai-responses", session=Known())
    assert transcripts.check(repaired, provider="openai-responses") == []
    return repaired


def test_missing_outputs_follow_the_calls() -> None:
    items = [USER, REASONING, call("a"), call("b"), output("a"), USER]
    assert codes(*items) == ["call-without-result"]
    repaired = repair(*items)
    assert repaired[:5] == items[:5]
    assert (repaired[5]["call_id"], repaired[6]) == ("b", USER)


def test_an_output_may_come_later_but_not_earlier() -> None:
    assert codes(USER, call("a"), USER, output("a")) == []
    assert codes(USER, output("a"), call("a"), USER) == ["misplaced-result"]
    assert repair(USER, output("a"), call("a"), USER) == [USER, call("a"), output("a"), USER]


def test_outputs_without_a_call_and_second_ones_are_dropped() -> None:
    items = [USER, output("x"), call("a"), output("a"), output("a")]
    assert codes(*items) == ["result-without-call", "duplicate-result"]
    assert repair(*items) == [USER, call("a"), output("a")]
    # The call may be the item that is referred to.
    assert codes(USER, {"type": "item_reference", "id": "fc_1"}, output("x")) == []


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (call("a", "custom_tool_call", name="x", input="y"), {"output": "ok"}),
        (call("a", "local_shell_call", id="i"), {"id": "a", "output": "ok"}),
        (call("a", "apply_patch_call"), {"status": "completed", "output": "ok"}),
        (
            call("a", "shell_call"),
            {
                "output": [
                    {"stdout": "ok", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
                ]
            },
        ),
        (call("a", caller={"type": "direct"}), {"caller": {"type": "direct"}}),
    ],
)
def test_each_kind_of_call_has_its_kind_of_output(item: Any, expected: Any) -> None:
    answer = repair(USER, item, outcome=CallOutcome("done", "ok"))[2]
    assert answer["type"] == f"{item['type']}_output"
    assert {key: answer[key] for key in expected} == expected


def test_a_shell_call_and_a_patch_say_that_they_failed() -> None:
    shell, patch = repair(USER, call("a", "shell_call"), call("b", "apply_patch_call"))[3:]
    assert "unknown" in shell["output"][0]["stderr"]
    assert shell["output"][0]["outcome"] == {"type": "timeout"}  # no exit code is made up
    assert patch["status"] == "failed"


def test_a_computer_call_needs_a_screenshot() -> None:
    click = call("a", "computer_call", id="c", pending_safety_checks=[], status="completed")
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,"}
    assert repair(USER, click, outcome=CallOutcome("done", shot))[2]["output"] == shot
    without = repair(USER, REASONING, click)
    assert [item.get("role") for item in without] == ["user", "user"]
    assert "unknown" in without[1]["content"]
    assert click in [change.value for change in without.changes if change.action == "dropped"]


def test_a_tool_search_is_ours_only_if_the_client_runs_it() -> None:
    search = {"type": "tool_search_call", "call_id": "a", "arguments": {}}
    assert codes(USER, {**search, "execution": "server"}) == []
    answer = repair(USER, {**search, "execution": "client"})[2]
    assert (answer["type"], answer["tools"]) == ("tool_search_output", [])


def test_calls_of_the_server_need_no_output() -> None:
    assert codes(USER, {"type": "web_search_call", "id": "w", "status": "completed"}, REPLY) == []


def test_reasoning_without_its_item_is_cut() -> None:
    assert codes(USER, REASONING) == ["stranded-reasoning"]
    assert codes(USER, REASONING, USER) == ["stranded-reasoning"]
    assert codes(USER, REASONING, REASONING, REPLY) == []
    assert repair(USER, REASONING, USER) == [USER, USER]
    half = call("a", arguments='{"pa', status="in_progress")
    assert repair(USER, REASONING, half) == [USER]


def test_ids_become_unique_also_in_a_local_shell_output() -> None:
    shell = call("a", "local_shell_call", id="i")
    done = {"type": "local_shell_call_output", "id": "a", "output": "{}"}
    repaired = repair(USER, call("a"), output("a"), shell, done)
    assert repaired[3]["call_id"] == repaired[4]["id"] == "a_2"


def test_messages_and_outputs_without_content_are_mended() -> None:
    assert codes(USER, {**REPLY, "content": []}, USER) == ["empty-content"]
    assert codes(USER, call("a"), output("a", None)) == ["empty-content"]
    assert repair(USER, call("a"), output("a", None))[2] == output("a", "")


def test_items_of_the_client() -> None:
    types = pytest.importorskip("openai.types.responses")
    item = types.ResponseFunctionToolCall.model_validate({**call("a"), "async": True})
    assert repair(USER, item)[1] is item
    renamed = repair(USER, item, output("a"), item)[3]
    assert isinstance(renamed, types.ResponseFunctionToolCall)
    assert (renamed.call_id, renamed.async_) == ("a_2", True)
