"""Recorded results of `bisect` and `replay`. Owns the picture of the tested checkpoints.

Records are unverified data: wrong types are left out, and nothing in them is opened or run.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import UNUSABLE, CheckpointError, NotFoundError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.steps.line import line_of
from agent_checkpoint.session.steps.step import Step, StepReader
from agent_checkpoint.trajectory.probes import BAD, GOOD
from agent_checkpoint.trajectory.run_log import (
    BISECT,
    MOST_ITEMS,
    RecordedRun,
    as_text,
    recorded_runs,
)
from agent_checkpoint.web.diff.line_matching import DiffBudget
from agent_checkpoint.web.diff.side_by_side import Sides, lines_of, side_by_side
from agent_checkpoint.web.pages.conversation import Message, page_of
from agent_checkpoint.web.pages.diff_page import FileChange, file_changes
from agent_checkpoint.web.rendering import Site, int_param, query_params, required
from agent_checkpoint.web.state.lazy_state import ReadLimitExceeded, StateReader

_WIDTH, _MARGIN = 1_000.0, 14.0
_MOST_DOTS = 2_000
_MOST_MESSAGES = 20
_SKIPPED = "skip"
_DIVERGENCE = ("kind", "agent", "checkpoint", "words")
_DIFFERENCE = ("checkpoint", "part", "words")


class Dot(NamedTuple):
    """A checkpoint of the line in the picture."""

    id: str
    x: float
    style: str
    """`good`, `bad`, `skip`, or empty if it was not tested."""
    is_first_bad: bool


class Tested(NamedTuple):
    """A tested checkpoint."""

    id: str
    verdict: str
    runs: list[str]
    seconds: float
    output: str
    is_first_bad: bool


def runs_page(site: Site, request: Request) -> Response:
    """List the recorded results of a key, newest first."""
    key = _existing(site, required(query_params(request), "key"))
    runs = recorded_runs(site.manager, key)
    rows = [(run, _words(run), _text(run.values.get("first_bad"))) for run in runs]
    diverged = {run.number for run in runs if run.values.get("divergence") is not None}
    return site.page("runs.html", key=key, rows=rows, diverged=diverged)


def run_page(site: Site, request: Request) -> Response:
    """Show one recorded result."""
    params = query_params(request)
    key = _existing(site, required(params, "key"))
    number = int_param(params, "number")
    run = next((run for run in recorded_runs(site.manager, key) if run.number == number), None)
    if run is None:
        raise NotFoundError("There is no such result: a key keeps the last ones only.")
    shown = _bisection(site, run) if run.kind == BISECT else _replay(site, run)
    return site.page("run.html", key=key, result=run, words=_words(run), **shown)


def _bisection(site: Site, run: RecordedRun) -> dict[str, Any]:
    first_bad, last_good = _text(run.values.get("first_bad")), _text(run.values.get("last_good"))
    tested = [
        Tested(
            _text(row.get("checkpoint")),
            _verdict(row.get("verdict")),
            [_verdict(one) for one in _list(row.get("runs"))],
            float(_number(row.get("seconds"))),
            _text(row.get("output")),
            bool(first_bad) and row.get("checkpoint") == first_bad,
        )
        for row in _list(run.values.get("tested"))
        if isinstance(row, dict)
    ]
    after, before = _found(site, first_bad), _found(site, last_good)
    step: Step | None = None
    files: list[FileChange] = []
    messages: list[Message] = []
    number = 0
    if before is not None and after is not None:
        budget = DiffBudget()
        files, number = file_changes(site.store, before, after, "", budget)
        step, messages = _step(site, before, after)
    line = _line(site, _found(site, _text(run.values.get("end"))))
    order = {item.id: place for place, item in enumerate(line)}
    tested.sort(key=lambda one: order.get(one.id, -1))
    return {
        "tested": tested,
        "dots": _dots(line, tested),
        "step": step,
        "first_bad": after,
        "was_found": bool(first_bad),
        "before": before,
        "candidates": [_text(name) for name in _list(run.values.get("candidates"))],
        "certainty": _text(run.values.get("certainty")),
        "is_certain": run.values.get("is_certain") is True,
        "files": files,
        "number": number,
        "messages": messages,
    }


def _step(site: Site, before: Checkpoint, after: Checkpoint) -> tuple[Step | None, list[Message]]:
    """Return the step between two checkpoints, and what it added to the conversation."""
    try:
        step = StepReader(site.store).step(before, after)
        rows = page_of("messages", StateReader(site.store.backend), step.messages[-_MOST_MESSAGES:])
    except (ReadLimitExceeded, *UNUSABLE):
        return None, []  # `verify` reports it; the page of the checkpoint, too
    return step, rows.rows


def _line(site: Site, end: Checkpoint | None) -> list[Checkpoint]:
    try:
        return [] if end is None else line_of(site.store, end)
    except UNUSABLE:
        return []  # the tested checkpoints are shown without the line


def _dots(line: list[Checkpoint], tested: list[Tested]) -> list[Dot]:
    """Return the marks of the picture: all tested checkpoints, and as many others as fit."""
    by_id = {one.id: one for one in tested}
    every = len(line) // _MOST_DOTS + 1
    room = _WIDTH - 2 * _MARGIN
    dots = []
    for place, item in enumerate(line):
        one = by_id.get(item.id)
        if one is None and place % every:
            continue
        x = _MARGIN + room * place / max(len(line) - 1, 1)
        dots.append(Dot(item.id, x, one.verdict if one else "", bool(one and one.is_first_bad)))
    return sorted(dots, key=lambda dot: bool(dot.style))  # tested ones are drawn last, on top


def _replay(site: Site, run: RecordedRun) -> dict[str, Any]:
    found = run.values.get("divergence")
    divergence = found if isinstance(found, dict) else None
    sides: Sides | None = None
    if divergence is not None:
        texts = [lines_of(_text(divergence.get(name))) for name in ("expected", "actual")]
        sides = side_by_side(texts[0], texts[1], DiffBudget())
    rows = [row for row in _list(run.values.get("differences")) if isinstance(row, dict)]
    fork = _text(run.values.get("fork"))
    return {
        "divergence": None if divergence is None else _texts(divergence, _DIVERGENCE),
        "sides": sides,
        "matched": int(_number(run.values.get("matched"))),
        "recorded": int(_number(run.values.get("recorded"))),
        "fork": fork,
        "has_fork": _has_key(site, fork),
        "error": _text(run.values.get("error")),
        "differences": [_texts(row, _DIFFERENCE) for row in rows],
        "more": max(0, int(_number(run.values.get("all_differences"))) - len(rows)),
    }


def _words(run: RecordedRun) -> str:
    if run.kind == BISECT:
        return _text(run.values.get("test"))
    divergence = run.values.get("divergence")
    if isinstance(divergence, dict):
        return _text(divergence.get("words"))
    return "every call matched the record"


def _has_key(site: Site, key: str) -> bool:
    """Return whether a key exists: that of a replay is removed, and a record may name anything."""
    try:
        return site.store.head(key) is not None
    except CheckpointError:
        return False


def _existing(site: Site, key: str) -> str:
    if site.store.head(key) is None:
        raise NotFoundError("There is no such key.")
    return key


def _found(site: Site, name: str) -> Checkpoint | None:
    """Return a checkpoint; None if it was pruned."""
    try:
        return site.find(name) if name else None
    except CheckpointError:
        return None


def _verdict(value: Any) -> str:
    return value if value in (GOOD, BAD) else _SKIPPED


def _list(value: Any) -> list[Any]:
    return value[:MOST_ITEMS] if isinstance(value, list) else []


def _texts(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    return {name: _text(values.get(name)) for name in names}


def _text(value: Any) -> str:
    return as_text(value) if isinstance(value, str) else ""


def _number(value: Any) -> float:
    return value if type(value) in (int, float) and abs(value) < 1e15 else 0
