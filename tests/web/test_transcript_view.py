"""Transcripts of coding agents on the page: a conversation, with calls and their results."""

import json
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.web.pages.transcript_view import arguments_of, messages_in, text_of
from agent_checkpoint.web.state.lazy_state import StateReader
from agent_checkpoint.web.state.outline import MAX_TEXT
from tests.unit.agents.transcripts import Session
from tests.web.agent_store import KEY, AgentWork
from tests.web.hostile_store import ALL, SCRIPT
from tests.web.test_hostile import is_inert
from tests.web.test_pages import plain
from tests.web.visitor import Visitor, opened


@pytest.fixture
def visitor(agent_visitor: Visitor) -> Visitor:
    return agent_visitor


def rows(agent: str, lines: "list[str]") -> "list[tuple[str, list[tuple[str, str]]]]":
    with CheckpointManager() as manager:
        reader = StateReader(manager.store.backend)
        found = messages_in(reader, agent, lines, 0)
    return [(one.role, [(block.kind, block.text) for block in one.blocks]) for one in found]


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini", "qwen"])
def test_the_conversation_of_each_agent(agent: str) -> None:
    lines = Session(agent, [[[1], [2, 3]]], repeat(9)).lines
    found = rows(agent, lines)
    assert found[0] == ("user", [("text", "prompt 0")])
    assert {role for role, _ in found[1:]} == {"assistant"}
    blocks = [block for _, blocks in found[1:] for block in blocks]
    kinds = [kind for kind, _ in blocks]
    # Gemini CLI writes a reply with calls twice, first without them, and repeats results.
    assert [text for kind, text in blocks if kind == "text"] == ["I call."] * 2 + ["the end"]
    assert (kinds.count("call"), kinds.count("result")) == (3, 3)
    assert all(kinds[at + 1] == "result" for at, kind in enumerate(kinds) if kind == "call")


def test_arguments_results_thoughts_and_compactions() -> None:
    call = {"type": "tool_use", "id": "c", "name": "Write", "input": {"path": "a", "text": "b\nc"}}
    think = {"type": "thinking", "thinking": "hm"}
    records: list[Any] = [
        {"type": "user", "message": {"content": "do it"}},
        {"type": "assistant", "message": {"id": "m", "content": [think, call]}},
        {"type": "user", "isMeta": True, "message": {"content": "not said by anyone"}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "c"}]}},
        {"type": "system", "subtype": "compact_boundary"},
        "not JSON",
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "x"}]}},
    ]
    lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
    found = rows("claude-code", lines)
    assert found[0] == ("user", [("text", "do it")])
    assert found[1] == (
        "assistant",
        [("thought", "hm"), ("call", "path: a\ntext: \n    b\n    c"), ("result", "")],
    )
    assert found[2][0] == "system"
    assert found[3] == ("tool", [("result", "")])


def test_texts_in_any_form() -> None:
    assert text_of([{"text": "a"}, {"type": "text", "text": "b"}, "c"]) == "a\nb\nc"
    assert text_of([{"functionResponse": {"response": {"output": "out"}}}]) == "out"
    assert text_of({"error": "no"}) == "no"
    assert json.loads(text_of({"x": 1})) == {"x": 1}
    assert arguments_of('{"command": ["ls", "-l"]}').startswith("command: [")
    assert arguments_of("*** Begin Patch") == "*** Begin Patch"


def test_the_page_shows_a_conversation(visitor: Visitor) -> None:
    html = visitor.text("/checkpoint", id=KEY)
    text = plain(html)
    assert "Totals like 19.990000000000002 look odd" in text
    assert "calls Edit" in text
    assert "old_string: sum(item.price for item in items)" in text
    assert "The file has been updated." in text
    assert "<strong>rounded</strong>" in html
    assert "<h4>What changed</h4>" in html
    assert "<pre><code>return round(" in html
    assert "the decimal module" in text
    assert 'href="https' not in html
    folded = html.partition("<details>")[2].partition("</details>")[0]
    assert "test_prices.py::test_59 PASSED" in folded  # a long result
    raw = plain(visitor.text("/checkpoint", id=KEY, part="transcript", view="raw"))
    assert "tool_use_id" in raw
    assert is_inert(html)


def test_a_long_transcript_is_shown_in_pages(tmp_path: Path) -> None:
    work = AgentWork(tmp_path / "store", tmp_path / "project")
    for number in range(300):
        work.line("user" if number % 2 else "assistant", [{"type": "text", "text": f"n {number}."}])
    work.stop()
    work.close()
    with opened(tmp_path / "store") as manager:
        visitor = Visitor(manager)
        text = plain(visitor.text("/checkpoint", id=KEY))
        assert "lines 180 to 299 of 300" in text
        assert "n 299." in text
        assert "n 179." not in text
        text = plain(visitor.text("/checkpoint", id=KEY, part="transcript", end=180))
        assert "n 179." in text
        assert "Later" in text


def test_hostile_transcripts_are_inert_and_masked(tmp_path: Path) -> None:
    work = AgentWork(tmp_path / "store", tmp_path / "project")
    secret = "sk-ant-api03-" + "A1b2" * 20
    deep: Any = "x"
    for _ in range(400):
        deep = [deep]
    for text in (*ALL, secret, f"```\n{SCRIPT}\n```", f"[{SCRIPT}](https://x/{SCRIPT})"):
        work.prompt(text)
        work.say(text)
        work.call(text, {text: text, "deep": deep}, {}, text)
        work.line("assistant", [{"type": "thinking", "thinking": text}])
        work.line(text, [{"type": text, "text": text}])
    for line in ("{", "[]", "null", '{"type":"user"}', '{"type":"user","message":{"content":[1]}}'):
        with work.transcript.open("a") as file:
            file.write(line + "\n")
    work.stop()
    work.close()
    with opened(tmp_path / "store") as manager:
        visitor = Visitor(manager)
        html = visitor.text("/checkpoint", id=KEY)
        assert is_inert(html)
        assert "&lt;script&gt;window.owned=1" in html
        assert "A1b2A1b2" not in html
        assert "A1b2A1b2" in Visitor(manager, masked=False).text("/checkpoint", id=KEY)


def test_a_secret_is_masked_before_a_text_is_cut() -> None:
    text = "x" * (MAX_TEXT - 16) + " sk-ant-api03-" + "A1b2" * 20
    record = {"type": "user", "message": {"content": text}}
    ((_, ((_, shown),)),) = rows("claude-code", [json.dumps(record)])
    assert len(shown) <= MAX_TEXT
    assert "sk-ant" not in shown
