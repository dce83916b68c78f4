"""Blame beside a file: each line with the step that wrote it. Owns the picture of the steps."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.session.steps.step import Step
from agent_checkpoint.trajectory.line_origins import BlameLine, blame_at
from agent_checkpoint.web.masking import mask
from agent_checkpoint.web.rendering import Site, int_param, query_params, required

_PAGE = 2_000
"""Lines on a page."""
_LANES = 6
_WIDTH = 1_000.0


class Group(NamedTuple):
    """Lines that follow each other and come from one step."""

    step: Step | None
    """None if the lines are in no checkpoint."""
    is_first: bool
    lane: int
    """The colour of the step."""
    lines: list[tuple[int, str]]


class StepBar(NamedTuple):
    """One step in the picture, as wide as it has lines."""

    step: Step
    lane: int
    x: float
    width: float
    lines: int


def blame_page(site: Site, request: Request) -> Response:
    """Show a file of a checkpoint, with the step that wrote each line."""
    params = query_params(request)
    checkpoint = site.find(required(params, "id"))
    path = required(params, "path")
    lines = blame_at(site.store, checkpoint, path)
    start = min(int_param(params, "from"), max(len(lines) - 1, 0))
    bars = _bars(lines)
    lanes = {bar.step.checkpoint: bar.lane for bar in bars}
    return site.page(
        "blame.html",
        checkpoint=checkpoint,
        key=checkpoint.key,
        path=path,
        groups=_groups(lines[start : start + _PAGE], lanes),
        bars=bars,
        total=len(lines),
        start=start,
        page=_PAGE,
    )


def _bars(lines: list[BlameLine]) -> list[StepBar]:
    """Return the steps in the order of time, oldest first."""
    steps: dict[str, Step] = {}
    counts: dict[str, int] = {}
    for line in lines:
        if line.step is not None:
            name = line.step.checkpoint
            steps.setdefault(name, line.step)
            counts[name] = counts.get(name, 0) + 1
    ordered = sorted(steps.values(), key=lambda step: (step.ts, step.checkpoint))
    known = sum(counts.values())
    bars, x = [], 0.0
    for number, step in enumerate(ordered):
        width = _WIDTH * counts[step.checkpoint] / known
        bars.append(StepBar(step, number % _LANES, x, width, counts[step.checkpoint]))
        x += width
    return bars


def _groups(lines: list[BlameLine], lanes: dict[str, int]) -> list[Group]:
    texts = mask("\n".join(line.text for line in lines)).split("\n")
    # A masked secret may have been several lines: then each line is masked alone.
    if len(texts) != len(lines):
        texts = [mask(line.text) for line in lines]
    groups: list[Group] = []
    for line, text in zip(lines, texts):
        last = groups[-1] if groups else None
        if last is None or last.step is not line.step:
            lane = 0 if line.step is None else lanes[line.step.checkpoint]
            groups.append(Group(line.step, line.is_first, lane, []))
        groups[-1].lines.append((line.number, text))
    return groups
