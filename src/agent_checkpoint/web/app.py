"""The application: which address is answered by what, and what becomes of errors.

Owns both. A page that only looks is a GET and changes nothing; what changes something is a POST.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.web.auth import App, Guard, fault
from agent_checkpoint.web.pages import (
    approval_page,
    checkpoint_page,
    diff_page,
    fork_page,
    key_list,
    live_updates,
    rollback_page,
    search_page,
    timeline_page,
)
from agent_checkpoint.web.request_threads import abandonable
from agent_checkpoint.web.site import HERE, Refused, Site

LOOKING: dict[str, Callable[[Site, Request], Response]] = {
    "/": key_list.first_page,
    "/timeline": timeline_page.timeline_page,
    "/updates": live_updates.updates,
    "/timeline/rows": timeline_page.timeline_piece,
    "/timeline/state": timeline_page.timeline_state,
    "/checkpoint": checkpoint_page.checkpoint_page,
    "/state": checkpoint_page.state_piece,
    "/file": checkpoint_page.raw_file,
    "/diff": diff_page.diff_page,
    "/effects": approval_page.effects_page,
    "/approvals": approval_page.approvals_page,
    "/request": approval_page.request_page,
    "/waiting": approval_page.waiting,
    "/rollback": rollback_page.rollback_page,
    "/preview": rollback_page.preview_page,
    "/fork": fork_page.fork_page,
    "/export": fork_page.export_page,
    "/search": search_page.search_page,
    "/search/results": search_page.search_results,
}
CHANGING: dict[str, Callable[[Site, Request], Awaitable[Response]]] = {
    "/approve": approval_page.approve,
    "/deny": approval_page.deny,
    "/resolve": approval_page.resolve,
    "/preview": rollback_page.look_at_rollback,
    "/rollback": rollback_page.rollback,
    "/fork": fork_page.fork,
    "/export": fork_page.export,
}
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(manager: CheckpointManager, guard: Guard, *, read_only: bool = False) -> App:
    """Return the application for one store, behind its guard."""
    site = Site(manager, guard, read_only=read_only)
    routes = []
    for path in LOOKING.keys() | CHANGING.keys():
        routes.append(Route(path, _answering(site, path), methods=[*_methods(path)]))
    routes += [
        Route(f"/static/{name}", _static(data, kind), methods=["GET"])
        for name, data, kind in _static_files()
    ]

    def refuse(request: Request, error: Exception) -> Response:
        return site.refusal(error)

    def unknown(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return site.refusal(Refused(status, "No such page."))

    handlers: dict[Any, Any] = {CheckpointError: refuse, Refused: refuse, HTTPException: unknown}
    return guard.middleware(Starlette(routes=routes, exception_handlers=handlers))


def _methods(path: str) -> list[str]:
    return (["GET"] if path in LOOKING else []) + (["POST"] if path in CHANGING else [])


def _answering(site: Site, path: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        site.follow_store()
        if request.method == "POST":
            return await CHANGING[path](site, request)
        return await abandonable(LOOKING[path], site, request)

    return _told(site, lambda _, request: answer(request))


def _told(
    site: Site, handler: Callable[[Site, Request], Awaitable[Response]]
) -> Callable[[Request], Awaitable[Response]]:
    """Have errors be told in a page, without what the store holds and where in the code it was."""

    async def told(request: Request) -> Response:
        try:
            return await handler(site, request)
        except (CheckpointError, Refused) as error:
            return site.refusal(error)
        except Exception as error:  # a fault of ours: who runs the server is told which
            sys.stderr.write(f"agent-checkpoint: {fault(error)}\n")
            return site.refusal(Refused(500, "Internal error. The output of the server names it."))

    return told


def _static_files() -> list[tuple[str, bytes, str]]:
    found = []
    for path in sorted((HERE / "static").iterdir()):
        if path.suffix in _KINDS:
            found.append((path.name, path.read_bytes(), _KINDS[path.suffix]))
    return found


def _static(data: bytes, kind: str) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Response(data, media_type=kind)

    return answer
