"""One step of a coding agent: the prompt, the tool call with its result, and the changed files."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.agents.agent_events import BEFORE, Call, moment_of
from agent_checkpoint.agents.session_note import TRANSCRIPT, SessionNote, read_note
from agent_checkpoint.agents.transcript_lines import CALL, PROMPT, RESULT, Item, items_in
from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import Checkpoint, Kind, parse_checkpoint_id, short_repr
from agent_checkpoint.store.lookup import read_at
from agent_checkpoint.web.diff.line_matching import DiffBudget
from agent_checkpoint.web.pages.conversation import Block
from agent_checkpoint.web.pages.diff_page import file_changes
from agent_checkpoint.web.pages.transcript_view import block_of, read_lines
from agent_checkpoint.web.rendering import Site, query_params, required
from agent_checkpoint.web.state.lazy_state import ReadLimitExceeded, StateReader
from agent_checkpoint.web.timeline.history import CheckpointSummary

_LINES = 400
"""Lines before a step in which its prompt is searched."""
_LATE_LINES = 40
"""Lines after a step in which its result is searched: agents write it after the hook has run."""


class StepCall(NamedTuple):
    """A tool call: in words, and its arguments and result if the transcript has them."""

    words: str
    blocks: list[Block]


def step_page(site: Site, request: Request) -> Response:
    """Show a step of a coding agent."""
    checkpoint = site.find(required(query_params(request), "id"))
    note = read_note(site.store, checkpoint)
    if note is None:
        name = short_repr(checkpoint.id, 120)
        raise NotFoundError(f"{name} is not a checkpoint of a coding agent.")
    place = parse_checkpoint_id(checkpoint.parents[0]) if checkpoint.parents else None
    before = None if place is None else read_at(site.store, place)
    budget = DiffBudget()
    files, number = (
        ([], 0) if before is None else file_changes(site.store, before, checkpoint, "", budget)
    )
    own = site.histories.get(checkpoint.key).checkpoints
    older, newer = _neighbours(own, checkpoint)
    later = next((one for one in own if _follows(one, checkpoint)), None)
    try:
        prompt, calls = _said(site, note, checkpoint, later)
    except ReadLimitExceeded:
        prompt, calls = None, [StepCall(call.words, []) for call in note.calls]
    started = note.started
    return site.page(
        "step.html",
        checkpoint=checkpoint,
        key=checkpoint.key,
        before=before,
        older=older,
        newer=newer,
        prompt=prompt,
        calls=calls,
        files=files,
        number=number,
        is_late=budget.timed_out,
        seconds=None if started is None else max(0.0, checkpoint.ts_ns / 1e9 - started),
    )


def _follows(summary: CheckpointSummary, checkpoint: Checkpoint) -> bool:
    is_next = summary.parents[:1] == ((checkpoint.key, checkpoint.seq),)
    return is_next and summary.kind == Kind.SAVE


def _neighbours(
    own: list[CheckpointSummary], checkpoint: Checkpoint
) -> tuple[str | None, str | None]:
    """Return the ids of the step before and after; those before calls are not steps."""
    steps = [one for one in own if one.step is not None and one.step.moment != BEFORE]
    older = [one.id for one in steps if one.seq < checkpoint.seq]
    newer = next((one.id for one in steps if one.seq > checkpoint.seq), None)
    return older[-1] if older else None, newer


def _said(
    site: Site,
    note: SessionNote,
    checkpoint: Checkpoint,
    later: CheckpointSummary | None,
) -> tuple[Block | None, list[StepCall]]:
    """Return the prompt and the calls of a step, from its transcript and that of the next one."""
    reader = StateReader(site.store.backend)
    tree = checkpoint.parts.get(TRANSCRIPT)
    following = None if later is None else site.store.read(later.key, later.seq)
    size = _size(reader, tree)
    start = max(0, size - _LINES)
    lines = read_lines(reader, tree, start, size - start) if tree is not None else []
    if following is not None and TRANSCRIPT in following.parts:
        lines += read_lines(reader, following.parts[TRANSCRIPT], size, _LATE_LINES)
    items = [
        (start + number, item)
        for number, line in enumerate(lines)
        for item in items_in(note.agent, line, note.cwd)
    ]
    calls = [] if moment_of(note.event) == BEFORE else note.calls
    found = [(call, _find(call, items, size)) for call in calls]
    ends = [number for _, place in found if place is not None for number in place[:1]]
    last = min(ends, default=size)
    prompts = [item for number, item in items if item.kind == PROMPT and number <= last]
    prompt = block_of(reader, prompts[-1]) if prompts else None
    return prompt, [
        StepCall(call.words, [] if place is None else [block_of(reader, one) for one in place[1]])
        for call, place in found
    ]


def _size(reader: StateReader, tree: Any) -> int:
    return 0 if tree is None else reader.size(reader.shape(tree))


def _find(call: Call, items: list[tuple[int, Item]], size: int) -> tuple[int, list[Item]] | None:
    """Return the line of a call, the call and its result; None if the lines do not have it.

    Some agents have other ids in their transcripts. Then the call is the first one with the same
    words, or the same tool, that had no result yet within the lines of the step: agents write it
    after the hook has run.
    """
    results = {item.call: (number, item) for number, item in items if item.kind == RESULT}
    made = [(number, item) for number, item in items if item.kind == CALL]
    named = [one for one in made if call.id is not None and one[1].call == call.id]
    waiting = [one for one in made if results.get(one[1].call, (size,))[0] >= size]
    alike = [one for one in waiting if one[1].words == call.words]
    same = [one for one in waiting if one[1].tool == call.tool]
    for number, item in (named or alike or same)[:1]:
        result = results.get(item.call)
        return number, [item] if result is None else [item, result[1]]
    return None
