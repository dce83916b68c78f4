"""The timeline page of a key, the blocks of rows that it loads on scrolling, and its version.

A visible page polls the version once a second and reloads its content when it has changed. No
connection is kept open: browsers allow few per host, and users have many tabs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.present.fork_points import session_record_of
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.web.page_text import format_count
from agent_checkpoint.web.pages.prompts_page import MAX_NEIGHBOURS, PROMPTS, prompts_page
from agent_checkpoint.web.rendering import Site, as_json, int_param, query_params, required
from agent_checkpoint.web.timeline.key_catalog import newest_in
from agent_checkpoint.web.timeline.layout import Row
from agent_checkpoint.web.timeline.layout_cache import KeyTimeline, version_of
from agent_checkpoint.web.timeline.svg import BLOCK, ROW, block_rows, drawing, overview, width_of


def timeline_page(site: Site, request: Request) -> Response:
    """Show the timeline of a key, from its newest checkpoint or from a given row."""
    params = query_params(request)
    view = _view(site, params)
    if params.get("view") == PROMPTS or ("view" not in params and view.timeline.is_agent):
        return prompts_page(site, view.timeline, params)
    total = len(view.rows)
    top = int_param(params, "row", total - 1)
    block = max(0, min(top, total - 1)) // BLOCK
    head = next(row for row in range(total - 1, -1, -1) if view.is_own_head(row))
    return site.page(
        "timeline.html",
        **view.values,
        **view.piece(block),
        blocks=view.blocks,
        bins=overview(view.timeline.layout, view.in_doubt),
        is_session=_is_session(site, view.timeline.key),
        head=head,
        unread=site.catalog.unread,
        neighbours=site.catalog.in_same_directory(view.timeline.key, MAX_NEIGHBOURS),
    )


def timeline_piece(site: Site, request: Request) -> Response:
    """Return one block of rows, as an HTML fragment."""
    params = query_params(request)
    view = _view(site, params)
    block = min(int_param(params, "block"), view.blocks - 1)
    return site.page("timeline_rows.html", **view.values, **view.piece(block))


def timeline_state(site: Site, request: Request) -> Response:
    """Return the size and shape of the timeline, for an open page."""
    view = _view(site, query_params(request))
    return as_json(
        {name: view.values[name] for name in ("total", "shape", "tail", "width", "number")}
    )


def updates(site: Site, request: Request) -> Response:
    """Return a version that changes with one key, or with any key of the store."""
    key = query_params(request).get("key", "")
    try:
        version = _version(site, key) if key else site.catalog.version()
    except CheckpointError:
        version = "unreadable"
    return as_json({"version": version})


class _View(NamedTuple):
    """A timeline with the view options of one page."""

    timeline: KeyTimeline
    only_events: bool
    in_doubt: frozenset[str]

    @property
    def rows(self) -> list[Row]:
        return self.timeline.layout.rows

    @property
    def blocks(self) -> int:
        return (len(self.rows) + BLOCK - 1) // BLOCK

    def is_own_head(self, row: int) -> bool:
        return self.rows[row].is_head and self.rows[row].checkpoint.key == self.timeline.key

    @property
    def values(self) -> dict[str, Any]:
        return {
            "timeline": self.timeline,
            "key": self.timeline.key,
            "total": len(self.rows),
            "number": self._number(),
            "view": "events" if self.only_events else "all" if self.timeline.is_agent else "",
            "tail": self.rows[-1].checkpoint.id,
            "shape": version_of({self.timeline.layout.shape: 0, **dict.fromkeys(self.in_doubt, 1)}),
            "block_size": BLOCK,
            "row_height": ROW,
            "width": width_of(self.timeline.layout),
        }

    def _number(self) -> str:
        """Return the checkpoint count as text, with the checkpoints of forks counted separately."""
        others: Counter[str] = Counter()
        for row in self.rows:
            others[row.checkpoint.key] += 1 if row.before is None else 2
        own = others.pop(self.timeline.key, 0)
        words = format_count(own, "checkpoint")
        if others:
            words += f", plus {sum(others.values()):,} in {format_count(len(others), 'fork')}"
        return words

    def piece(self, block: int) -> dict[str, Any]:
        """Return the rows of a block, newest first, and their drawing."""
        low, end = block_rows(len(self.rows), block)
        rows = [(number, self.rows[number]) for number in range(end - 1, low - 1, -1)]
        drawn = drawing(self.timeline.layout, low, end, self.in_doubt)
        return {"block": block, "rows": rows, "drawing": drawn, "in_doubt": self.in_doubt}


def _view(site: Site, params: dict[str, str]) -> _View:
    only_events = params.get("view") == "events"
    timeline = site.layouts.get(required(params, "key"), only_events=only_events)
    return _View(
        timeline, only_events, site.unknown_effects.checkpoints(timeline.key, timeline.layout)
    )


def _is_session(site: Site, key: str) -> bool:
    try:
        return session_record_of(site.store, key) is not None
    except CheckpointError:
        return False


def _version(site: Site, key: str) -> str:
    meta = session_record_of(site.store, key)
    ledger = 0 if meta is None else newest_in(site.store, PREFIX + meta.family)
    return f"{site.layouts.version(key)}.{ledger}"
