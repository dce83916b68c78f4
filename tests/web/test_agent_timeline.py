"""The timeline of a coding agent: calls in one row, groups by prompt, steps, search."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint.records import Draft
from agent_checkpoint.web.pages.prompts_page import _is_call
from agent_checkpoint.web.timeline.agent_steps import agent_step
from agent_checkpoint.web.timeline.history import CheckpointSummary
from agent_checkpoint.web.timeline.layout import TimelineLayout, lay_out
from agent_checkpoint.web.timeline.prompt_groups import group_by_prompt
from tests.web.agent_store import KEY, OTHER, AgentWork
from tests.web.hostile_store import ALL
from tests.web.test_hostile import crawl
from tests.web.test_pages import plain
from tests.web.visitor import Visitor, opened

PRE, POST, ASKED, ENDED = "PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop"


@pytest.fixture
def visitor(agent_visitor: Visitor) -> Visitor:
    return agent_visitor


def line(
    *events: "tuple[str, str]", key: str = "a", kind: str = "save"
) -> "list[CheckpointSummary]":
    """Return the checkpoints of some events, each with the id of its call."""
    found = []
    for seq, (event, call) in enumerate(events, 1):
        note: dict[str, Any] = {"event": event, "calls": [["Bash", call, call]] if call else []}
        which = event if event in ("rollback", "safety") else kind
        parents = ((key, seq - 1),) if seq > 1 else ()
        one = CheckpointSummary(
            key, seq, seq, which, call, parents, (), f"{key}_{seq}-{seq}", False
        )
        found.append(one._replace(step=agent_step({"hook": note})))
    return found


def rows(layout: TimelineLayout) -> "list[tuple[int, int | None]]":
    return [(row.checkpoint.seq, row.before and row.before.seq) for row in layout.rows]


def test_the_two_checkpoints_of_a_call_are_one_row() -> None:
    work = line((ASKED, ""), (PRE, "1"), (POST, "1"), (PRE, "2"), (POST, "2"), (ENDED, ""))
    layout = lay_out("a", {"a": work})
    assert rows(layout) == [(1, None), (3, 2), (5, 4), (6, None)]
    assert [(one.low, one.high) for one in layout.segments[0]] == [(0, 1), (1, 2), (2, 3)]
    assert layout.rows[1].seconds is not None


def test_parallel_calls_are_one_row_each() -> None:
    work = line((PRE, "1"), (PRE, "2"), (POST, "2"), (POST, "1"))
    assert rows(lay_out("a", {"a": work})) == [(3, 2), (4, 1)]


def test_a_call_without_an_end_or_across_a_rewind_keeps_its_row() -> None:
    work = line((PRE, "1"), ("safety", ""), ("rollback", ""), (POST, "1"), (PRE, "2"))
    assert rows(lay_out("a", {"a": work})) == [
        (1, None),
        (2, None),
        (3, None),
        (4, None),
        (5, None),
    ]


def test_an_edge_to_a_folded_checkpoint_ends_at_its_row() -> None:
    work = line((ASKED, ""), (PRE, "1"), (POST, "1"), (ENDED, ""))
    back = work[-1]._replace(seq=5, ts_ns=5, kind="rollback", parents=(("a", 2),), id="a_5-5")
    fork = CheckpointSummary("b", 1, 6, "fork", "", (("a", 2),), (), "b_6-1", False)
    layout = lay_out("a", {"a": [*work, back], "b": [fork]})
    assert {(edge.kind, edge.low) for edge in layout.edges} == {("back", 1), ("fork", 1)}


def test_a_page_is_told_that_its_last_row_has_changed() -> None:
    """The end of a call takes the row of its beginning; later rows move only after a gap."""
    begun = lay_out("a", {"a": line((ASKED, ""), (PRE, "1"))})
    ended = lay_out("a", {"a": line((ASKED, ""), (PRE, "1"), (POST, "1"))})
    assert (len(begun.rows), begun.shape) == (len(ended.rows), ended.shape)
    assert begun.rows[-1].checkpoint.id != ended.rows[-1].checkpoint.id
    two = lay_out("a", {"a": line((ASKED, ""), (PRE, "1"), (PRE, "2"))})
    gap = lay_out("a", {"a": line((ASKED, ""), (PRE, "1"), (PRE, "2"), (POST, "1"))})
    assert two.shape != gap.shape


def test_groups_begin_at_prompts_and_after_turns() -> None:
    work = line((ASKED, ""), (POST, "1"), (ENDED, ""), (POST, "2"), (ENDED, ""), ("SessionEnd", ""))
    work += line((ASKED, ""), (POST, "3"))
    found = group_by_prompt("a", work)
    assert [group.rows for group in found] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert [group.has_prompt for group in found] == [True, False, True]


@pytest.mark.parametrize(
    "note",
    [
        None,
        1,
        [],
        {},
        {"event": 1},
        {"event": "Stop", "calls": {"a": 1}},
        {"event": "x", "calls": [1]},
    ],
)
def test_a_note_in_another_form_is_no_fault(note: Any) -> None:
    step = agent_step({"hook": note})
    assert step is None or step.calls == ()


def test_prompts_with_their_steps(visitor: Visitor) -> None:
    html = visitor.text("/timeline", key=KEY)
    text = plain(html)
    assert "Now write a changelog entry. 1 call" in text  # read from the transcript
    assert "Totals like 19.990000000000002 look odd. Please round them. 4 calls" in text
    assert "before Edit" not in text
    assert "event:" not in text
    assert "Also in this directory:" in text
    assert OTHER in text
    assert html.index("changelog entry") < html.index("Totals like")
    assert html.index("Edit shop/prices.py") < html.index("Write tests/test_prices.py")
    piece = visitor.text("/timeline", key=KEY, view="prompts", piece=1)
    assert "<html" not in piece
    assert "changelog entry" in piece


def test_a_batch_and_a_rewind_are_no_calls() -> None:
    events = [(ASKED, ""), (POST, "1"), (POST, "2"), ("PostToolBatch", "2"), ("PreToolUse", "3")]
    found = lay_out("a", {"a": [*line(*events), *line((POST, "4"), kind="rollback")]}).rows
    assert [_is_call(row) for row in found] == [False, True, True, False, True, False]


def test_all_rows(visitor: Visitor) -> None:
    text = plain(visitor.text("/timeline", key=KEY, view="all"))
    assert "13 checkpoints." in text
    assert "@5 Edit shop/prices.py" in text
    assert "@4" not in text
    assert "toolu_" not in text
    events = plain(visitor.text("/timeline", key=KEY, view="events"))
    assert "prompt: Totals like" in events
    assert "Edit shop/prices.py" not in events
    state = json.loads(visitor.text("/timeline/state", key=KEY, view="all"))
    assert state["tail"].endswith("-13")


def test_a_step(visitor: Visitor) -> None:
    html = visitor.text("/step", id=f"{KEY}@5")
    text = plain(html)
    assert "Prompt Totals like 19.990000000000002 look odd. Please round them." in text
    assert "old_string: sum(item.price for item in items)" in text
    assert "result The file has been updated." in text  # from the next checkpoint
    assert "1 change since @4" in text
    assert "shop/prices.py changed" in text
    assert "<ins>" in html
    assert "calls Bash" not in text
    newer = html.partition('id="newer"')[2].partition('href="')[2].partition('"')[0]
    assert newer.endswith("-7")
    assert "No files changed." in plain(visitor.text("/step", id=f"{KEY}@3"))
    assert "There is no checkpoint before" in plain(visitor.text("/step", id=f"{KEY}@1"))


def test_a_step_of_something_else_is_not_found(visitor: Visitor, tmp_path: Path) -> None:
    with opened(tmp_path / "store") as manager:
        manager.save("key", {"a": 1})
        assert Visitor(manager).get("/step", id="key").status_code == 404


def test_an_agent_with_other_ids_in_its_transcript(tmp_path: Path) -> None:
    """Then the call is the one of the same words that had no result when the hook ran."""
    work = AgentWork(tmp_path / "store", tmp_path / "project")
    work.prompt("Twice, please.")
    given = {"command": "make"}
    for number in (1, 2):
        block = {"type": "tool_use", "id": f"own_{number}", "name": "Bash", "input": given}
        work.line("assistant", [block])
        fields = {"tool_name": "Bash", "tool_input": given, "tool_use_id": f"hook_{number}"}
        (work.place / f"{number}.txt").write_text("x")
        work.event("PostToolUse", **fields)
        content = f"made the {number}. time"
        work.line(
            "user", [{"type": "tool_result", "tool_use_id": f"own_{number}", "content": content}]
        )
    work.stop()
    work.close()
    with opened(tmp_path / "store") as manager:
        visitor = Visitor(manager)
        assert "made the 1. time" in plain(visitor.text("/step", id=f"{KEY}@2"))
        text = plain(visitor.text("/step", id=f"{KEY}@3"))
        assert "made the 2. time" in text
        assert "made the 1. time" not in text


def test_search_finds_what_was_said_and_marks_it(visitor: Visitor) -> None:
    found = [
        json.loads(row)
        for row in visitor.text("/search/results", key=KEY, q="ROUND").split("\n")
        if row
    ]
    rows = [row for row in found if "link" in row]
    assert {row["kind"] for row in rows} == {"transcript", "file"}
    assert {"prompt", "reply", "Edit", "shop/prices.py:5"} <= {row["where"] for row in rows}
    for row in rows:
        assert {piece.lower() for piece in row["text"][1::2]} == {"round"}
    assert len({json.dumps(row) for row in rows}) == len(rows)


@pytest.mark.slow
def test_every_page_of_a_hostile_agent_is_inert(tmp_path: Path) -> None:
    hostile = "claude-code/" + ALL[0] + ALL[1]
    work = AgentWork(tmp_path / "store", tmp_path / "project", "claude-code/x")
    work.session, work.key = hostile.partition("/")[2], hostile
    for text in ALL:
        work.prompt(text)
        work.say(text)
        work.call(text, {text: text, "file_path": text}, {"a<b>.txt": text}, text)
    work.stop()
    work.close()
    with opened(tmp_path / "store") as manager:
        visitor = Visitor(manager)
        seen = crawl(visitor, ["/"], most=120)
        assert {"/timeline", "/step", "/rewind", "/restore", "/checkpoint"} <= {
            place.partition("?")[0] for place in seen
        }
        for page in ("rewind", "restore"):
            answer = visitor.post(f"/{page}_preview", {"id": f"{hostile}@1"})
            assert answer.status_code == 303, plain(answer.text)
            crawl(visitor, ["/" + answer.headers["location"]], most=1)


@pytest.mark.slow
def test_a_very_long_session_stays_fast(tmp_path: Path) -> None:
    """Asking again costs a fraction of reading the history for the first time."""
    events = [
        (ASKED, ""),
        *[pair for n in range(24) for pair in ((PRE, n), (POST, n))],
        (ENDED, ""),
    ]
    with opened(tmp_path / "store") as manager:
        number = 20_000
        for index in range(number):
            event, call = events[index % len(events)]
            note = {
                "agent": "claude-code",
                "session": "s",
                "root": "/p",
                "cwd": "/p",
                "event": event,
            }
            use = f"toolu_{index // len(events)}_{call}"
            calls = [["Bash", f"Bash {call}", use]] if call != "" else []
            draft = Draft(
                "claude-code/s", {"hook": {**note, "calls": calls}}, label=f"{event} {call}"
            )
            manager.store.write(draft, parents=None, ts_ns=index * 10**9)
        visitor = Visitor(manager)

        def seconds(**asked: Any) -> float:
            started = time.process_time()
            visitor.text("/timeline", key="claude-code/s", **asked)
            return time.process_time() - started

        first = seconds()
        for view in ("prompts", "all"):
            seconds(view=view)
            assert min(seconds(view=view) for _ in range(3)) < first / 5
        text = plain(visitor.text("/timeline", key="claude-code/s", view="all"))
        assert f"{number:,} checkpoints." in text
