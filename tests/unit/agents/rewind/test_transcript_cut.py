"""Where a conversation is cut: the true lines of a moment, or none, never others."""

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint.agents.agent_events import TIMED, Call
from agent_checkpoint.agents.rewind.transcript_cut import Cut, Row, cut_at
from agent_checkpoint.errors import InvalidInputError
from tests.unit.agents.transcripts import Session, Turns

AGENTS = ["claude-code", "codex", "gemini", "qwen", "copilot"]


def cut(session: Session, index: int, last: Optional[int] = None, *, live: bool = True) -> Cut:
    """Cut at a checkpoint, given all others up to the last, and the transcript itself."""
    last = len(session.moments) if last is None else last

    def later() -> "Iterable[Row]":
        rows = [session.row(number) for number in range(index + 1, last)]
        return [*rows, *([Row(last, None, lambda: session.lines)] if live else [])]

    def earlier() -> "Iterable[Row]":
        return [session.row(number) for number in reversed(range(index))]

    moment = session.moments[index]
    return cut_at(index, moment.note, session.lines[: moment.seen], later, earlier)


def numbered(shape: "list[list[int]]") -> Turns:
    """Turns with the given numbers of parallel calls in each step; each call has its number."""
    numbers = iter(range(10_000))
    return [[[next(numbers) for _ in range(size)] for size in steps] for steps in shape]


def said(session: Session, index: int) -> "list[str]":
    expected = session.moments[index].expected
    assert expected is not None
    return session.lines[:expected]


SHAPES = st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3)


def check_moment(session: Session, index: int, *, live: bool = True) -> None:
    """Fail if a rewind to a checkpoint is refused, or gives other lines than those of then."""
    if session.moments[index].expected is None:
        with pytest.raises(InvalidInputError, match="between the parallel calls"):
            cut(session, index, live=live)
        return
    found = cut(session, index, live=live)
    assert found.warning is None
    noise = session.lines[len(said(session, index)) : len(found.lines)]
    assert found.lines == said(session, index) + noise
    assert not any('"message"' in line or "response_item" in line for line in noise)


@settings(deadline=None)
@given(st.sampled_from(AGENTS), SHAPES, st.lists(st.integers(0, 4), max_size=12), st.booleans())
def test_every_moment_has_its_own_conversation(
    agent: str, shape: "list[list[int]]", late: "list[int]", live: bool
) -> None:
    session = Session(agent, numbered(shape), chain(late, repeat(9)))
    prompts = [i for i, m in enumerate(session.moments) if m.note.event == "UserPromptSubmit"]
    for index in range(len(session.moments)):
        if not live and index > prompts[-1]:
            break  # the last lines may be in no checkpoint
        check_moment(session, index, live=live)


@settings(deadline=None)
@given(st.sampled_from(TIMED), SHAPES, st.lists(st.integers(0, 20), max_size=40))
def test_a_transcript_that_is_steps_behind(
    agent: str, shape: "list[list[int]]", behind: "list[int]"
) -> None:
    """The agent says what it has not written yet; the times of the lines tell when."""
    session = Session(agent, numbered(shape), repeat(9), behind)
    for index in range(len(session.moments)):
        check_moment(session, index)


@pytest.mark.parametrize("agent", TIMED)
@pytest.mark.parametrize("behind", [1, 3, 6, 99])
def test_the_same_command_again_in_a_transcript_that_is_behind(agent: str, behind: int) -> None:
    turns = [[[0], [100], [200, 300], [400]], [[500], [600]]]
    session = Session(agent, turns, repeat(9), repeat(behind))
    for index in range(len(session.moments)):
        check_moment(session, index)


@pytest.mark.parametrize("agent", TIMED)
def test_lines_of_a_transcript_that_is_behind_are_not_invented(agent: str) -> None:
    session = Session(agent, numbered([[1, 1]]), repeat(9), repeat(4))
    for index, moment in enumerate(session.moments):
        found = cut(session, index, index + 1, live=False)
        assert found.lines == session.lines[: len(found.lines)]
        assert len(found.lines) <= moment.seen
        is_over = moment.note.event in ("PostToolUse", "Stop")
        assert (found.warning is not None) == is_over


@pytest.mark.parametrize("agent", AGENTS)
def test_a_result_that_is_nowhere_is_not_invented(agent: str) -> None:
    session = Session(agent, numbered([[1]]), repeat(0))
    after = next(i for i, m in enumerate(session.moments) if m.note.event == "PostToolUse")
    found = cut(session, after, after + 1, live=False)
    assert found.lines == session.lines[: session.moments[after].seen]
    assert "hears that the call was interrupted" in str(found.warning)
    stop = len(session.moments) - 1
    found = cut(session, stop, live=False)
    assert found.lines == session.lines[: session.moments[stop].seen]
    assert "does not hear it" in str(found.warning)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_reply_at_the_end_of_a_turn_is_found_behind_late_results(agent: str) -> None:
    """An agent may write results and the last reply after the hook of the end has run."""
    session = Session(agent, numbered([[1, 2]]), repeat(9))
    stop = len(session.moments) - 1
    moment, whole = session.moments[stop], said(session, stop)
    prompt = next(i for i, line in enumerate(whole) if "prompt 0" in line)
    for seen in range(prompt + 1, len(whole)):
        live = Row(stop, None, lambda: session.lines)
        found = cut_at(stop, moment.note, whole[:seen], lambda live=live: [live], lambda: [])
        assert found.lines[: len(whole)] == whole, seen
        assert found.warning is None


@pytest.mark.parametrize("agent", AGENTS)
def test_lines_of_another_conversation_are_not_taken(agent: str) -> None:
    session = Session(agent, numbered([[1, 1]]), repeat(0))
    after = next(i for i, m in enumerate(session.moments) if m.note.event == "PostToolUse")
    session.lines[0] += " "
    saved = Session(agent, numbered([[1, 1]]), repeat(0)).lines[: session.moments[after].seen]
    rows = [Row(99, None, lambda: session.lines)]
    found = cut_at(after, session.moments[after].note, saved, lambda: rows, lambda: [])
    assert found.lines == saved
    assert found.warning is not None


def test_a_call_is_not_taken_for_another_one() -> None:
    """By position, but its tool and arguments must be those of the transcript."""
    session = Session("gemini", numbered([[1, 1]]), repeat(0))
    after = next(i for i, m in enumerate(session.moments) if m.note.event == "PostToolUse")
    moment = session.moments[after]
    note = moment.note._replace(calls=(Call("Bash", "Bash something else"),))
    session.moments[after] = moment._replace(note=note)
    assert cut(session, after).warning is not None


def test_calls_of_code_mode_have_ids_that_the_transcript_does_not_have() -> None:
    """One call of the model runs a program that makes several: only the last has a result."""
    session = Session("codex", numbered([[1], [1]]), repeat(0))
    rows: list[Any] = []
    for index, moment in enumerate(session.moments):
        number = moment.note.calls[0].id if moment.note.calls else None
        if moment.note.event == "PostToolUse" and number == "call_0":
            for part in (1, 2):
                calls = (Call("Bash", "Bash make", f"exec-{part}"),)
                rows.append(moment._replace(note=moment.note._replace(calls=calls)))
        elif moment.note.event != "PreToolUse":
            rows.append(session.moments[index])
    session.moments = rows
    inner = [i for i, m in enumerate(rows) if m.note.calls and m.note.calls[0].id == "exec-1"]
    with pytest.raises(InvalidInputError, match="between the parallel calls"):
        cut(session, inner[0])
    assert cut(session, inner[0] + 1).lines == said(session, inner[0] + 1)


def test_calls_of_a_subagent_are_inside_of_the_call_that_started_it() -> None:
    session = Session("claude-code", numbered([[1]]), repeat(0))
    place = next(i for i, m in enumerate(session.moments) if m.note.event == "PostToolUse")
    moment = session.moments[place]
    calls = (Call("Read", "Read x", "toolu_of_the_subagent"),)
    session.moments.insert(place, moment._replace(note=moment.note._replace(calls=calls)))
    with pytest.raises(InvalidInputError, match=f"Use @{place - 1} .before. or @{place + 1} "):
        cut(session, place)
    assert cut(session, place + 1).lines == said(session, place + 1)


def test_a_compaction_in_the_middle_of_a_turn() -> None:
    session = Session("claude-code", numbered([[1]]), repeat(0))
    after = next(i for i, m in enumerate(session.moments) if m.note.event == "PostToolUse")
    moment = session.moments[after]
    note = moment.note._replace(event="PreCompact", calls=())
    session.moments.insert(after + 1, moment._replace(note=note))
    end = said(session, after)
    boundary = '{"type": "system", "subtype": "compact_boundary"}'
    session.lines = [*end, boundary, *session.lines[len(end) :]]
    assert cut(session, after + 1).lines == end
    assert cut(session, after).lines == end


@pytest.mark.parametrize("event", ["rewind", "SomethingNew", "UserPromptSubmit"])
def test_other_checkpoints_are_as_they_were_saved(event: str) -> None:
    session = Session("claude-code", numbered([[1]]), repeat(0))
    moment = session.moments[2]
    session.moments[2] = moment._replace(note=moment.note._replace(event=event, calls=()))
    assert cut(session, 2) == Cut(session.lines[: moment.seen])


@pytest.mark.parametrize("line", ["", "[]", "null", "{", '{"type": "user"}', '{"type": "x"}', "3"])
def test_lines_that_are_not_understood_say_nothing(line: str) -> None:
    for agent in AGENTS:
        session = Session(agent, numbered([[1]]), repeat(0))
        session.lines = [line] * len(session.lines)
        for index, moment in enumerate(session.moments):
            assert cut(session, index).lines == session.lines[: moment.seen]
