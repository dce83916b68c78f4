"""Gemini: as many function responses in the next turn as there were calls."""

from typing import Any, Optional

import pytest

from agent_checkpoint import transcripts
from agent_checkpoint.transcripts import CallOutcome, Repaired

USER = {"role": "user", "parts": [{"text": "Deploy it."}]}


def model(*parts: Any) -> "dict[str, Any]":
    return {"role": "model", "parts": list(parts)}


def user(*parts: Any) -> "dict[str, Any]":
    return {"role": "user", "parts": list(parts)}


def call(name: str, call_id: Optional[str] = None, **fields: Any) -> "dict[str, Any]":
    known = {"id": call_id} if call_id else {}
    return {"functionCall": {**known, "name": name, "args": {}}, **fields}


def response(name: str, value: Any = 1, call_id: Optional[str] = None) -> "dict[str, Any]":
    known = {"id": call_id} if call_id else {}
    return {"functionResponse": {**known, "name": name, "response": {"output": value}}}


def text(words: str, **fields: Any) -> "dict[str, Any]":
    return {"text": words, **fields}


def codes(*contents: Any) -> "list[str]":
    return [one.code for one in transcripts.check(contents, provider="gemini")]


def repair(*contents: Any, session: Any = None) -> Repaired:
    repaired = transcripts.repair(contents, provider="gemini", session=session)
    assert transcripts.check(repaired, provider="gemini") == []
    return repaired


def test_an_open_call_gets_an_error_as_response() -> None:
    asked = model(call("deploy", "c1", thoughtSignature="c2ln"))
    repaired = repair(USER, asked)
    assert repaired[1] is asked
    answer = repaired[2]["parts"][0]["function_response"]
    assert (answer["id"], answer["name"]) == ("c1", "deploy")
    assert "unknown" in answer["response"]["error"]


@pytest.mark.parametrize(
    ("result", "response"), [("v2", {"output": "v2"}), ({"version": 2}, {"version": 2})]
)
def test_a_recorded_result_is_the_response(result: Any, response: Any) -> None:
    class Known:
        def call_outcome(self, call_id: str) -> CallOutcome:
            return CallOutcome("done", result)

    repaired = repair(USER, model(call("deploy", "c1")), session=Known())
    assert repaired[2]["parts"][0]["function_response"]["response"] == response


def test_responses_are_matched_by_id_or_by_name_and_order() -> None:
    assert codes(USER, model(call("a"), call("a")), user(response("a"), response("a"))) == []
    assert codes(USER, model(call("a", "1")), user(response("a"))) == []
    with_ids = model(call("a", "1"), call("a", "2"))
    repaired = repair(USER, with_ids, user(response("a", call_id="2"), text("Go on.")))
    answers = [
        part.get("functionResponse") or part.get("function_response")
        for part in repaired[2]["parts"]
    ]
    assert [answer and answer["id"] for answer in answers] == ["2", "1", None]


def test_a_response_further_on_is_moved() -> None:
    late = response("a", "late")
    repaired = repair(USER, model(call("a")), USER, model(text("?")), user(late))
    assert repaired[2]["parts"] == [late, *USER["parts"]]
    assert len(repaired) == 4
    split = repair(USER, model(call("a"), call("b")), user(response("a")), user(response("b")))
    assert split[2] == user(response("a"), response("b"))


def test_responses_without_a_call_are_dropped() -> None:
    assert codes(USER, model(text("x")), user(response("a"))) == ["result-without-call"]
    repaired = repair(
        USER, model(text("x")), user(response("a")), model(call("b")), user(response("b"))
    )
    assert [content["role"] for content in repaired] == ["user", "model", "user", "model", "user"]
    assert "removed here" in repaired[2]["parts"][0]["text"]


def test_turns_of_the_model_in_pieces_are_joined() -> None:
    signed = text("", thoughtSignature="c2ln")
    contents = [USER, model(text("x"), signed), model(call("a")), user(response("a"))]
    (problem,) = transcripts.check(contents, provider="gemini")
    assert (problem.index, problem.code) == (1, "consecutive-model-turns")
    assert repair(*contents)[1] == model(text("x"), signed, call("a"))
    assert codes(USER, model(text("x")), model(text("y"))) == []


def test_a_conversation_begins_with_the_user() -> None:
    assert codes(model(text("Hello."))) == ["first-message"]
    assert repair(model(call("a")), user(response("a")))[0]["role"] == "user"


def test_empty_parts_are_dropped_unless_they_are_signed() -> None:
    contents = [USER, model(text(""), text("x"), {"thought": True}), user()]
    assert codes(*contents) == ["empty-text", "empty-text", "empty-content"]
    assert repair(*contents) == [USER, model(text("x"))]
    assert codes(USER, model(text("", thoughtSignature="c2ln"))) == []


def test_a_call_that_was_half_streamed_is_cut() -> None:
    half = {"function_call": {"name": "a", "will_continue": True}}
    assert repair(USER, model(text("x"), half)) == [USER, model(text("x"))]
    signed = {**half, "thought_signature": "c2ln"}
    assert repair(USER, model(signed))[1] == model(signed)


def test_a_call_in_a_user_turn_is_dropped() -> None:
    assert codes(user(text("x"), call("a"))) == ["misplaced-block"]


def test_plain_texts_are_user_turns() -> None:
    assert codes("Deploy it.", model(text("Done."))) == []
    repaired = repair("Deploy it.", model(call("a")), "Well?")
    assert repaired[0] == "Deploy it."
    assert repaired[2]["parts"][1] == {"text": "Well?"}


def test_contents_of_the_client_keep_their_class() -> None:
    types = pytest.importorskip("google.genai").types
    asked = types.Content.model_validate(model(call("a", thought_signature=b"sig")))
    went_on = types.Content.model_validate(user(text("Well?")))
    repaired = repair(USER, asked, went_on)
    assert repaired[1] is asked
    assert isinstance(repaired[2], types.Content)
    assert repaired[2].parts[0].function_response.name == "a"
    assert repaired[2].parts[1] is went_on.parts[0]
