"""The page of a checkpoint: what was said, called and done. Makes no object of a state."""

from __future__ import annotations

import os
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.web.page_text import attachment
from agent_checkpoint.web.pages import file_view
from agent_checkpoint.web.pages.conversation import calls, messages, tasks
from agent_checkpoint.web.request_threads import one_by_one
from agent_checkpoint.web.site import Refused, Site, asked, number, wanted
from agent_checkpoint.web.state.lazy_state import Peek, TooLarge
from agent_checkpoint.web.state.outline import outline
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in

MESSAGES, CALLS, TASKS = "messages", "calls", "tasks"
_ORDER = (MESSAGES, CALLS, TASKS, FILES)
_MOST_PARTS = 50
_MOST_CHILDREN = 50
_MOST_PATH = 400


def checkpoint_page(site: Site, request: Request) -> Response:
    """Show a checkpoint, one of its parts open."""
    said = asked(request)
    checkpoint = site.find(wanted(said, "id"))
    names = _names(checkpoint)
    part = said.get("part") or (names[0] if names else "")
    if part and part not in checkpoint.parts:
        raise NotFoundError(f"The checkpoint has no part {short_repr(part)}.")
    try:
        values = _part(site, checkpoint, part, said) if part else {"kind": "nothing"}
    except TooLarge:
        values = {"kind": "too_large"}
    return site.page(
        "checkpoint.html",
        checkpoint=checkpoint,
        key=checkpoint.key,
        names=names,
        part=part,
        parents=checkpoint.parents[:_MOST_CHILDREN],
        children=_children(site, checkpoint),
        is_session=SESSION_PART in checkpoint.parts,
        head=_head_id(site, checkpoint.key),
        older=_beside(site, checkpoint, older=True),
        newer=_beside(site, checkpoint, older=False),
        **values,
    )


def state_piece(site: Site, request: Request) -> Response:
    """Return what is in one value of a state."""
    said = asked(request)
    checkpoint = site.find(wanted(said, "id"))
    part = wanted(said, "part")
    if part not in checkpoint.parts:
        raise NotFoundError(f"The checkpoint has no part {short_repr(part)}.")
    try:
        node = _outlined(site, checkpoint, part, said)
    except TooLarge:
        raise Refused(413, "This value is too large to show.") from None
    return site.page("state_rows.html", node=node, checkpoint=checkpoint, part=part)


def raw_file(site: Site, request: Request) -> Response:
    """Return the bytes of a file, to be saved and not to be shown by a browser."""
    said = asked(request)
    checkpoint = site.find(wanted(said, "id"))
    tree = _tree(site, checkpoint)
    item = file_view.find(tree, wanted(said, "path"))
    if item is None or item.type != FILE:
        raise NotFoundError("No such file in this checkpoint.")
    headers = {
        "Content-Disposition": attachment(os.fsdecode(item.name)),
        "Content-Length": str(item.size),
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    body = one_by_one(file_view.pieces(tree, item))
    return StreamingResponse(body, headers=headers, media_type="application/octet-stream")


def _part(site: Site, checkpoint: Checkpoint, part: str, said: dict[str, str]) -> dict[str, Any]:
    peek = Peek(site.store.backend)
    tree = checkpoint.parts[part]
    if part == FILES and tree_in(site.store, checkpoint) is not None:
        return _files(site, checkpoint, said)
    end = number(said, "end", -1)
    last = None if end < 0 else end
    if part == TASKS:
        rows = tasks(peek, tree)
        if rows:
            return {"kind": TASKS, "tasks": rows}
    if part == MESSAGES and peek.shape(tree).kind == "list":
        return {"kind": MESSAGES, "some": messages(peek, tree, last)}
    if part == CALLS and peek.shape(tree).kind == "list":
        return {"kind": CALLS, "some": calls(peek, tree, last)}
    return {"kind": "state", "node": _outlined(site, checkpoint, part, said)}


def _outlined(site: Site, checkpoint: Checkpoint, part: str, said: dict[str, str]) -> Any:
    text = said.get("at", "")
    steps = text.split(".")[1:] if text else []
    if len(text) > _MOST_PATH or not all(step.isascii() and step.isdigit() for step in steps):
        raise Refused(400, "Malformed path of a state value.")
    peek = Peek(site.store.backend)
    try:
        tree = peek.child(checkpoint.parts[part], [int(step) for step in steps])
        return outline(peek, part, tree, text, start=number(said, "from"))
    except (KeyError, IndexError):
        raise NotFoundError("No value at this path of the state.") from None


def _files(site: Site, checkpoint: Checkpoint, said: dict[str, str]) -> dict[str, Any]:
    tree = _tree(site, checkpoint)
    path = said.get("path", "")
    item = file_view.find(tree, path)
    values = {"kind": FILES, "tree": tree, "path": path, "item": item, "trail": _trail(path)}
    if item is None or item.type == FOLDER:
        start = number(said, "from")
        entries, total = file_view.rows(tree, item, path, start)
        page = {"entries": entries, "total": total, "start": start, "page": file_view.MOST_ENTRIES}
        return {**values, **page, "content": None}
    return {**values, "entries": [], "total": 0, "content": file_view.content(tree, item)}


def _tree(site: Site, checkpoint: Checkpoint) -> Tree:
    tree = tree_in(site.store, checkpoint)
    if tree is None:
        raise NotFoundError("The checkpoint has no files.")
    return tree


def _trail(path: str) -> list[tuple[str, str]]:
    names = path.split("/") if path else []
    return [(name, "/".join(names[: place + 1])) for place, name in enumerate(names)]


def _names(checkpoint: Checkpoint) -> list[str]:
    first = [name for name in _ORDER if name in checkpoint.parts]
    rest = [name for name in checkpoint.parts if name not in _ORDER and name != SESSION_PART]
    last = [SESSION_PART] if SESSION_PART in checkpoint.parts else []
    return [*first, *rest, *last][:_MOST_PARTS]


def _children(site: Site, checkpoint: Checkpoint) -> list[str]:
    """Return what comes from a checkpoint: of its own key, and forks of it."""
    place = (checkpoint.key, checkpoint.seq)
    points = site.histories.line(checkpoint.key).points
    found = [point.id for point in points if place in point.parents]
    for origin in site.catalog.origins().values():
        if origin.parent == place:
            found.append(origin.id)
    return found[:_MOST_CHILDREN]


def _head_id(site: Site, key: str) -> str:
    points = site.histories.line(key).points
    return points[-1].id if points else key


def _beside(site: Site, checkpoint: Checkpoint, *, older: bool) -> str | None:
    points = site.histories.line(checkpoint.key).points
    if older:
        found = [point.id for point in points[::-1] if point.seq < checkpoint.seq][:1]
    else:
        found = [point.id for point in points if point.seq > checkpoint.seq][:1]
    return found[0] if found else None
