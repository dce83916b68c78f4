"""Previews that are confirmed: an operation runs only as previewed, and only once.

A preview is kept under a name, which the confirmation submits. Owns these steps; the pages own what
an operation does, and how it is shown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from threading import Lock
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.web.page_text import link
from agent_checkpoint.web.rendering import Site, posted, query_params, required


class Pending(ABC):
    """A previewed operation, with its report after the confirmation."""

    page: ClassVar[str]
    """The name of the page that shows it."""

    def __init__(self) -> None:
        self.done: Any = None
        """The report, once the operation has run."""
        self.lock = Lock()
        """Held while the confirmation runs, because a form may be submitted twice."""

    @abstractmethod
    def run(self, site: Site, form: dict[str, str], name: str) -> Response | None:
        """Run the operation, and set `done`; or return the page that says why not.

        Raises:
            ConflictError: something has changed since the preview.
        """

    @abstractmethod
    def show(
        self, site: Site, name: str, step: str, *, status: int = 200, why: str = ""
    ) -> Response:
        """Return the page of a step: `confirm`, `done`, `changed` or `refused`."""


def keep(site: Site, pending: Pending) -> Response:
    """Keep a preview, and lead to its page."""
    return _redirect(pending, site.keep_preview(pending))


def preview_page(kind: type[Pending]) -> Callable[[Site, Request], Response]:
    """Return the handler that shows previews of a kind, or reports after the confirmation."""

    def show(site: Site, request: Request) -> Response:
        name = required(query_params(request), "of")
        pending = site.kept_preview(name, kind)
        return pending.show(site, name, "confirm" if pending.done is None else "done")

    return show


def confirmation(kind: type[Pending]) -> Callable[[Site, Request], Awaitable[Response]]:
    """Return the handler that runs an operation if nothing has changed since its preview."""

    def confirm(site: Site, form: dict[str, str]) -> Response:
        name = required(form, "of")
        pending = site.kept_preview(name, kind)
        with pending.lock:
            refusal = None
            if pending.done is None:
                try:
                    refusal = pending.run(site, form, name)
                except ConflictError as error:
                    refusal = pending.show(site, name, "changed", status=409, why=str(error))
            return _redirect(pending, name) if refusal is None else refusal

    return posted(confirm)


def _redirect(pending: Pending, name: str) -> Response:
    return RedirectResponse(link(pending.page, of=name), 303)
