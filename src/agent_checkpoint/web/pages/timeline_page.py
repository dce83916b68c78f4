"""The page with the timeline of a key, and the pieces of it that are asked for on scrolling."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.web.page_text import format_count
from agent_checkpoint.web.site import Site, as_json, asked, number, wanted
from agent_checkpoint.web.timeline.layout import Row
from agent_checkpoint.web.timeline.layout_cache import Scene, version_of
from agent_checkpoint.web.timeline.svg import BLOCK, ROW, block_rows, drawing, overview, width_of


def timeline_page(site: Site, request: Request) -> Response:
    """Show the timeline of a key, from its newest checkpoint or from a row on."""
    said = asked(request)
    view = _view(site, said)
    total = len(view.rows)
    top = number(said, "row", total - 1)
    block = max(0, min(top, total - 1)) // BLOCK
    head = next(row for row in range(total - 1, -1, -1) if view.is_own_head(row))
    return site.page(
        "timeline.html",
        **view.values,
        **view.piece(block),
        blocks=view.blocks,
        bins=overview(view.scene.picture, view.troubled),
        is_session=_is_session(site, view.scene.key),
        head=head,
        unread=site.catalog.unread,
    )


def timeline_piece(site: Site, request: Request) -> Response:
    """Return some rows of the timeline, as they stand on the page."""
    said = asked(request)
    view = _view(site, said)
    block = min(number(said, "block"), view.blocks - 1)
    return site.page("timeline_rows.html", **view.values, **view.piece(block))


def timeline_state(site: Site, request: Request) -> Response:
    """Return how much there is now, for a page that is open."""
    view = _view(site, asked(request))
    return as_json({name: view.values[name] for name in ("total", "shape", "width", "number")})


class _View(NamedTuple):
    """The timeline as one page shows it."""

    scene: Scene
    only_events: bool
    troubled: frozenset[str]

    @property
    def rows(self) -> list[Row]:
        return self.scene.picture.rows

    @property
    def blocks(self) -> int:
        return (len(self.rows) + BLOCK - 1) // BLOCK

    def is_own_head(self, row: int) -> bool:
        return self.rows[row].is_head and self.rows[row].point.key == self.scene.key

    @property
    def values(self) -> dict[str, Any]:
        return {
            "scene": self.scene,
            "key": self.scene.key,
            "total": len(self.rows),
            "number": self._number(),
            "view": "events" if self.only_events else "",
            "shape": version_of({self.scene.picture.shape: 0, **dict.fromkeys(self.troubled, 1)}),
            "block_size": BLOCK,
            "row_height": ROW,
            "width": width_of(self.scene.picture),
        }

    def _number(self) -> str:
        """Return how many checkpoints there are, in words: those of forks are not of the key."""
        others = Counter(row.point.key for row in self.rows)
        own = others.pop(self.scene.key, 0)
        words = format_count(own, "checkpoint")
        if others:
            words += f", plus {sum(others.values()):,} in {format_count(len(others), 'fork')}"
        return words

    def piece(self, block: int) -> dict[str, Any]:
        """Return some rows, the newest first, and what is drawn beside them."""
        low, end = block_rows(len(self.rows), block)
        rows = [(number, self.rows[number]) for number in range(end - 1, low - 1, -1)]
        drawn = drawing(self.scene.picture, low, end, self.troubled)
        return {"block": block, "rows": rows, "drawing": drawn, "troubled": self.troubled}


def _view(site: Site, said: dict[str, str]) -> _View:
    only_events = said.get("view") == "events"
    scene = site.scenes.scene(wanted(said, "key"), only_events=only_events)
    return _View(scene, only_events, site.troubles.of(scene.key, scene.picture))


def _is_session(site: Site, key: str) -> bool:
    try:
        head = site.store.head(key)
        return (
            head is not None
            and SESSION_PART in head.parts
            and read_session_record(site.store, head) is not None
        )
    except CheckpointError:
        return False
