"""The ASGI application. Owns the routes and the mapping of errors to pages.

GET requests change nothing; every change is a POST request.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.web.auth import App, Auth, describe_fault
from agent_checkpoint.web.masking import masks
from agent_checkpoint.web.pages import (
    approval_page,
    checkpoint_page,
    diff_page,
    fork_page,
    key_list,
    restore_page,
    rewind_page,
    rollback_page,
    search_page,
    step_page,
    timeline_page,
)
from agent_checkpoint.web.pages.trajectory import blame_page, revert_page, runs_page
from agent_checkpoint.web.rendering import HERE, RequestError, Site
from agent_checkpoint.web.request_threads import run_in_daemon_thread

GET_ROUTES: dict[str, Callable[[Site, Request], Response]] = {
    "/": key_list.first_page,
    "/timeline": timeline_page.timeline_page,
    "/updates": timeline_page.updates,
    "/timeline/rows": timeline_page.timeline_piece,
    "/timeline/state": timeline_page.timeline_state,
    "/checkpoint": checkpoint_page.checkpoint_page,
    "/step": step_page.step_page,
    "/state": checkpoint_page.state_piece,
    "/file": checkpoint_page.raw_file,
    "/diff": diff_page.diff_page,
    "/effects": approval_page.effects_page,
    "/approvals": approval_page.approvals_page,
    "/request": approval_page.request_page,
    "/waiting": approval_page.waiting,
    "/rollback": rollback_page.rollback_page,
    "/preview": rollback_page.preview_page,
    "/rewind": rewind_page.rewind_page,
    "/rewind_preview": rewind_page.rewind_preview_page,
    "/restore": restore_page.restore_page,
    "/restore_preview": restore_page.restore_preview_page,
    "/blame": blame_page.blame_page,
    "/revert": revert_page.revert_page,
    "/revert_preview": revert_page.preview_page,
    "/runs": runs_page.runs_page,
    "/run": runs_page.run_page,
    "/fork": fork_page.fork_page,
    "/export": fork_page.export_page,
    "/search": search_page.search_page,
    "/search/results": search_page.search_results,
}
POST_ROUTES: dict[str, Callable[[Site, Request], Awaitable[Response]]] = {
    "/approve": approval_page.approve,
    "/deny": approval_page.deny,
    "/revoke": approval_page.revoke,
    "/resolve": approval_page.resolve,
    "/preview": rollback_page.create_preview,
    "/rollback": rollback_page.rollback,
    "/rewind_preview": rewind_page.create_rewind_preview,
    "/rewind": rewind_page.rewind,
    "/restore_preview": restore_page.create_restore_preview,
    "/restore": restore_page.restore,
    "/revert": revert_page.revert,
    "/revert_preview": revert_page.create_preview,
    "/fork": fork_page.fork,
    "/export": fork_page.export,
}
_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(
    manager: CheckpointManager, auth: Auth, *, read_only: bool = False, masked: bool = True
) -> App:
    """Return the application for one store, with authentication in front."""
    site = Site(manager, auth, read_only=read_only, masked=masked)
    routes = [_route(site, path) for path in GET_ROUTES.keys() | POST_ROUTES.keys()]
    routes += [
        _static(path) for path in sorted((HERE / "static").iterdir()) if path.suffix in _KINDS
    ]

    def unknown(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return site.error_page(RequestError(status, "No such page."))

    return auth.middleware(Starlette(routes=routes, exception_handlers={HTTPException: unknown}))


def _route(site: Site, path: str) -> Route:
    """Return the route of a page. Errors become a page without stored values or a traceback."""

    async def answer(request: Request) -> Response:
        masks.set(site.masked)  # of this request: each has a context of its own
        try:
            site.follow_store()
            if request.method == "POST":
                return await POST_ROUTES[path](site, request)
            return await run_in_daemon_thread(GET_ROUTES[path], site, request)
        except (CheckpointError, RequestError) as error:
            return site.error_page(error)
        except Exception as error:  # a bug: reported on stderr, where the operator sees it
            sys.stderr.write(f"agent-checkpoint: {describe_fault(error)}\n")
            return site.error_page(
                RequestError(500, "Internal error. See the output of the server.")
            )

    methods = (["GET"] if path in GET_ROUTES else []) + (["POST"] if path in POST_ROUTES else [])
    return Route(path, answer, methods=methods)


def _static(path: Path) -> Route:
    data, kind = path.read_bytes(), _KINDS[path.suffix]

    def answer(request: Request) -> Response:
        return Response(data, media_type=kind)

    return Route(f"/static/{path.name}", answer, methods=["GET"])
