"""The timeline of a coding agent by prompt: each prompt with the calls that followed it."""

from __future__ import annotations

from typing import NamedTuple

from starlette.responses import Response

from agent_checkpoint.agents.session_note import TRANSCRIPT
from agent_checkpoint.agents.transcript_lines import PROMPT, items_in
from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Kind
from agent_checkpoint.web.page_text import single_line
from agent_checkpoint.web.pages.transcript_view import agent_of, read_lines, text_of
from agent_checkpoint.web.rendering import Site, int_param
from agent_checkpoint.web.state.lazy_state import ReadLimitExceeded, StateReader
from agent_checkpoint.web.timeline.layout import Row
from agent_checkpoint.web.timeline.layout_cache import KeyTimeline
from agent_checkpoint.web.timeline.prompt_groups import PromptGroup

PROMPTS = "prompts"
"""The name of the view."""
MAX_NEIGHBOURS = 10
"""Other keys of the same directory that are named."""
PAGE = 30
"""Prompts on a page."""
_MAX_ROWS = 100
_MAX_PROMPT = 400
_LINES = 60
"""Lines of a transcript in which a prompt is searched that has no checkpoint."""
_WORDS = "prompt: "
_MAX_KEPT = 10_000


class Group(NamedTuple):
    """A prompt and its steps."""

    prompt: str
    """Empty if it is not known."""
    start: Row
    rows: list[tuple[int, Row]]
    """The newest of its rows, oldest first, without the prompt, each with its number."""
    left_out: int
    """Older rows."""
    calls: int
    seconds: float
    has_prompt: bool


def prompts_page(site: Site, timeline: KeyTimeline, params: dict[str, str]) -> Response:
    """Show the newest prompts first, and the steps of each in their order."""
    groups = timeline.groups[::-1]
    start = min(int_param(params, "from"), max(0, len(groups) - 1))
    shown = [_group(site, timeline, group) for group in groups[start : start + PAGE]]
    return site.page(
        "prompts_rows.html" if params.get("piece") else "prompts.html",
        key=timeline.key,
        timeline=timeline,
        groups=shown,
        total=len(groups),
        start=start,
        page=PAGE,
        view=PROMPTS,
        is_session=False,
        neighbours=site.catalog.in_same_directory(timeline.key, MAX_NEIGHBOURS),
    )


def _group(site: Site, timeline: KeyTimeline, group: PromptGroup) -> Group:
    rows = timeline.layout.rows
    first, last = rows[group.rows[0]], rows[group.rows[-1]]
    numbers = group.rows[1:] if group.has_prompt else group.rows
    label = first.checkpoint.label
    prompt = label[len(_WORDS) :] if group.has_prompt and label.startswith(_WORDS) else ""
    return Group(
        prompt or _prompt_of(site, rows[numbers[0]] if numbers else first),
        first,
        [(number, rows[number]) for number in numbers[-_MAX_ROWS:]],
        max(0, len(numbers) - _MAX_ROWS),
        sum(1 for number in numbers if _is_call(rows[number])),
        max(0.0, (last.checkpoint.ts_ns - first.checkpoint.ts_ns) / 1e9),
        group.has_prompt,
    )


def _is_call(row: Row) -> bool:
    """Return whether a row is of a call: not of a rewind, or of the end of a batch of calls."""
    step = row.checkpoint.step
    if row.checkpoint.kind != Kind.SAVE or step is None:
        return False
    return bool(step.calls) and "event:PostToolBatch" not in step.tags


def _prompt_of(site: Site, row: Row) -> str:
    """Return the last prompt in the transcript of a checkpoint; empty if there is none."""
    found = site.prompts.get(row.checkpoint.id)
    if found is None:
        found = single_line(_read_prompt(site, row), _MAX_PROMPT)
        if len(site.prompts) >= _MAX_KEPT:
            site.prompts.clear()
        site.prompts[row.checkpoint.id] = found
    return found


def _read_prompt(site: Site, row: Row) -> str:
    try:
        checkpoint = site.store.read(row.checkpoint.key, row.checkpoint.seq)
        agent = None if checkpoint is None else agent_of(site.store, checkpoint)
        if checkpoint is None or agent is None or TRANSCRIPT not in checkpoint.parts:
            return ""
        reader = StateReader(site.store.backend)
        tree = checkpoint.parts[TRANSCRIPT]
        size = reader.size(reader.shape(tree))
        start = max(0, size - _LINES)
        for line in reversed(read_lines(reader, tree, start, size - start)):
            said = [item for item in items_in(agent, line) if item.kind == PROMPT]
            if said:
                return text_of(said[-1].content)
    except (ReadLimitExceeded, *UNUSABLE):
        pass  # the page of the checkpoint reports it
    return ""
