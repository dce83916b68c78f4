"""The page of a checkpoint: conversation, tasks, state, files. Does not decode Python objects."""

from __future__ import annotations

import os
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.agents.session_note import TRANSCRIPT
from agent_checkpoint.errors import UNUSABLE, NotFoundError
from agent_checkpoint.records import Checkpoint, parse_checkpoint_id, same_json, short_repr
from agent_checkpoint.session.agent_scope import split_part
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.session.subagent_list import list_subagents
from agent_checkpoint.web.pages import file_view
from agent_checkpoint.web.pages.conversation import CALLS, MESSAGES, TASKS, page_of, tasks
from agent_checkpoint.web.pages.transcript_view import agent_of, transcript_page
from agent_checkpoint.web.rendering import (
    RequestError,
    Site,
    download,
    int_param,
    query_params,
    required,
)
from agent_checkpoint.web.state.lazy_state import LIST, ReadLimitExceeded, StateReader
from agent_checkpoint.web.state.outline import outline
from agent_checkpoint.web.timeline.agent_steps import agent_step
from agent_checkpoint.web.timeline.history import CheckpointSummary
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER
from agent_checkpoint.workspace.tree.tree_reader import find, pieces

_ORDER = (TRANSCRIPT, MESSAGES, CALLS, TASKS, FILES)
_MAX_PARTS = 50
_MAX_CHILDREN = 50
_MAX_PATH = 400


def checkpoint_page(site: Site, request: Request) -> Response:
    """Show a checkpoint with one of its parts."""
    params = query_params(request)
    checkpoint = site.find(required(params, "id"))
    names = _names(checkpoint)
    part = params.get("part") or _subagent_part(site, checkpoint) or (names[0] if names else "")
    try:
        values = _part(site, checkpoint, part, params) if part else {"kind": "nothing"}
    except ReadLimitExceeded:
        values = {"kind": "too_large"}
    noted = agent_step(checkpoint.parts)
    summaries = site.histories.get(checkpoint.key).checkpoints
    older = [summary.id for summary in summaries if summary.seq < checkpoint.seq]
    newer = [summary.id for summary in summaries if summary.seq > checkpoint.seq]
    return site.page(
        "checkpoint.html",
        checkpoint=checkpoint,
        key=checkpoint.key,
        names=names,
        subagents=list_subagents(site.store, checkpoint)[:_MAX_PARTS],
        part=part,
        tags=[tag for tag in checkpoint.tags if noted is None or tag not in noted.tags],
        parents=checkpoint.parents[:_MAX_CHILDREN],
        children=_children(site, checkpoint, summaries),
        is_session=SESSION_PART in checkpoint.parts,
        is_agent=HOOK in checkpoint.parts,
        has_files=FILES in checkpoint.parts,
        head=summaries[-1].id if summaries else checkpoint.key,
        older=older[-1] if older else None,
        newer=newer[0] if newer else None,
        **values,
    )


def _subagent_part(site: Site, checkpoint: Checkpoint) -> str | None:
    """Return the conversation or calls that a checkpoint of a sub-agent added to; else None.

    The session's own agent comes first: None also if its conversation or calls changed.
    """
    parent = parse_checkpoint_id(checkpoint.parents[0]) if checkpoint.parents else None
    if parent is None or not any(split_part(name)[0] for name in checkpoint.parts):
        return None
    try:
        before = site.store.read(parent.key, parent.seq)
    except UNUSABLE:
        return None  # `verify` reports it
    old = {} if before is None else before.parts
    changed = [
        name
        for kind in (MESSAGES, CALLS)
        for name, tree in checkpoint.parts.items()
        if split_part(name)[1] == kind and not same_json(tree, old.get(name))
    ]
    is_own = any(not split_part(name)[0] for name in changed)
    if is_own or before is None or not changed:
        return None
    # A sub-agent of a sub-agent reports to it: the innermost one acted.
    return max(changed, key=lambda name: split_part(name)[0].count("/"))


def state_piece(site: Site, request: Request) -> Response:
    """Return the children of one value of a state, as an HTML fragment."""
    params = query_params(request)
    checkpoint = site.find(required(params, "id"))
    part = _check_part(checkpoint, required(params, "part"))
    try:
        node = _outlined(site, checkpoint, part, params)
    except ReadLimitExceeded:
        raise RequestError(413, "This value is too large to show.") from None
    return site.page("state_rows.html", node=node, checkpoint=checkpoint, part=part)


def raw_file(site: Site, request: Request) -> Response:
    """Return the bytes of a file as a download that the browser never renders."""
    params = query_params(request)
    checkpoint = site.find(required(params, "id"))
    tree = _tree(site, checkpoint)
    item = find(tree, required(params, "path"))
    if item is None or item.type != FILE:
        raise NotFoundError("No such file in this checkpoint.")
    return download(pieces(tree.get, item), os.fsdecode(item.name), item.size)


def _part(site: Site, checkpoint: Checkpoint, part: str, params: dict[str, str]) -> dict[str, Any]:
    reader = StateReader(site.store.backend)
    tree = checkpoint.parts[_check_part(checkpoint, part)]
    if part == FILES and tree_in(site.store, checkpoint) is not None:
        return _files(site, checkpoint, params)
    end = int_param(params, "end", -1)
    last = None if end < 0 else end
    kind = split_part(part)[1]
    if kind == TASKS:
        rows = tasks(reader, tree)
        if rows:
            return {"kind": TASKS, "tasks": rows}
    if kind in (MESSAGES, CALLS) and reader.shape(tree).kind == LIST:
        return {"kind": kind, "page": page_of(kind, reader, tree, last), "raw": False}
    agent = agent_of(site.store, checkpoint) if part == TRANSCRIPT else None
    if agent is not None and params.get("view") != "raw":
        page = transcript_page(reader, agent, tree, last)
        return {"kind": MESSAGES, "page": page, "raw": True}
    return {"kind": "state", "node": _outlined(site, checkpoint, part, params)}


def _check_part(checkpoint: Checkpoint, part: str) -> str:
    if part not in checkpoint.parts:
        raise NotFoundError(f"The checkpoint has no part {short_repr(part)}.")
    return part


def _outlined(site: Site, checkpoint: Checkpoint, part: str, params: dict[str, str]) -> Any:
    text = params.get("at", "")
    steps = text.split(".")[1:] if text else []
    if len(text) > _MAX_PATH or not all(step.isascii() and step.isdigit() for step in steps):
        raise RequestError(400, "Malformed path of a state value.")
    reader = StateReader(site.store.backend)
    try:
        tree = reader.child(checkpoint.parts[part], [int(step) for step in steps])
        return outline(reader, part, tree, text, start=int_param(params, "from"))
    except (KeyError, IndexError):
        raise NotFoundError("The state has no value at this path.") from None


def _files(site: Site, checkpoint: Checkpoint, params: dict[str, str]) -> dict[str, Any]:
    tree = _tree(site, checkpoint)
    path = params.get("path", "")
    item = find(tree, path)
    values = {"kind": FILES, "tree": tree, "path": path, "item": item, "trail": _trail(path)}
    if item is None or item.type == FOLDER:
        start = int_param(params, "from")
        entries, total = file_view.rows(tree, item, path, start)
        page = {"entries": entries, "total": total, "start": start, "page": file_view.MAX_ENTRIES}
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
    own = [name for name in checkpoint.parts if not split_part(name)[0]]
    rest = [name for name in own if name not in _ORDER and name != SESSION_PART]
    last = [SESSION_PART] if SESSION_PART in checkpoint.parts else []
    return [*first, *rest, *last][:_MAX_PARTS]


def _children(site: Site, checkpoint: Checkpoint, summaries: list[CheckpointSummary]) -> list[str]:
    """Return the ids of the children of a checkpoint: in its own key, and forks."""
    own = (checkpoint.key, checkpoint.seq)
    children = [summary.id for summary in summaries if own in summary.parents]
    origins = site.catalog.origins().values()
    children += [origin.id for origin in origins if origin.parent == own]
    return children[:_MAX_CHILDREN]
