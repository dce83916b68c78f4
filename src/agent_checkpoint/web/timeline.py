"""The page with the timeline of a key, and the pieces of it that are asked for on scrolling."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.meta import PART, read_meta
from agent_checkpoint.web.scenes import Scene
from agent_checkpoint.web.site import Site, as_json, asked, number, wanted
from agent_checkpoint.web.svg import BLOCK, ROW, block_rows, drawing, overview, width_of


def timeline_page(site: Site, request: Request) -> Response:
    """Show the timeline of a key, from its newest checkpoint or from a row on."""
    said = asked(request)
    scene = _scene(site, said)
    total = len(scene.picture.rows)
    top = number(said, "row", total - 1)
    block = max(0, min(top, total - 1)) // BLOCK
    blocks = (total + BLOCK - 1) // BLOCK
    return site.page(
        "timeline.html",
        **_shared(scene, said),
        **_piece(scene, block),
        blocks=blocks,
        bins=overview(scene.picture),
        is_session=_is_session(site, scene.key),
    )


def timeline_piece(site: Site, request: Request) -> Response:
    """Return some rows of the timeline, as they stand on the page."""
    said = asked(request)
    scene = _scene(site, said)
    blocks = (len(scene.picture.rows) + BLOCK - 1) // BLOCK
    block = min(number(said, "block"), blocks - 1)
    return site.page("timeline_rows.html", **_shared(scene, said), **_piece(scene, block))


def timeline_state(site: Site, request: Request) -> Response:
    """Return how much there is now, for a page that is open."""
    said = asked(request)
    scene = _scene(site, said)
    rows = scene.picture.rows
    return as_json(
        {
            "total": len(rows),
            "shape": scene.picture.shape,
            "width": width_of(scene.picture),
            "newest": rows[-1].point.id if rows else "",
        }
    )


def _scene(site: Site, said: dict[str, str]) -> Scene:
    return site.scenes.scene(wanted(said, "key"), only_events=said.get("view") == "events")


def _shared(scene: Scene, said: dict[str, str]) -> dict[str, Any]:
    return {
        "scene": scene,
        "key": scene.key,
        "total": len(scene.picture.rows),
        "view": "events" if said.get("view") == "events" else "",
        "block_size": BLOCK,
        "row_height": ROW,
        "width": width_of(scene.picture),
    }


def _piece(scene: Scene, block: int) -> dict[str, Any]:
    low, end = block_rows(len(scene.picture.rows), block)
    rows = [(number, scene.picture.rows[number]) for number in range(end - 1, low - 1, -1)]
    return {"block": block, "rows": rows, "drawing": drawing(scene.picture, low, end)}


def _is_session(site: Site, key: str) -> bool:
    try:
        head = site.store.head(key)
        return head is not None and PART in head.parts and read_meta(site.store, head) is not None
    except CheckpointError:
        return False
