"""What all pages share: the store, the templates, what was asked. Owns rendering and refusing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.backends.base import SupportsReplacementCheck
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RollbackRefusedError,
)
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Checkpoint, parse_checkpoint_id
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.store import Store
from agent_checkpoint.web import page_text
from agent_checkpoint.web.auth import LARGEST_BODY, Guard, same
from agent_checkpoint.web.timeline.history import Histories
from agent_checkpoint.web.timeline.key_catalog import Catalog
from agent_checkpoint.web.timeline.layout_cache import Scenes
from agent_checkpoint.web.timeline.unknown_effects import Troubles

HERE = Path(__file__).parent
T = TypeVar("T")
_MOST_FIELDS = 500
_HTML = "text/html; charset=utf-8"


class Refused(Exception):
    """What this page does not do; the text is for who asked."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Site:
    """One store, and how its pages are made."""

    def __init__(
        self, manager: CheckpointManager, guard: Guard, *, read_only: bool = False
    ) -> None:
        self.guard = guard
        self.read_only = read_only
        self._show(manager)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._templates.filters.update(
            shown=page_text.shown,
            exact=page_text.exact,
            coded=page_text.coded,
            line=page_text.on_one_line,
            when=page_text.when,
            stamp=page_text.stamp,
            size=page_text.format_size,
            short=page_text.short,
            kin=page_text.kin,
            lasting=page_text.lasting,
        )
        self._templates.globals.update(link=page_text.link, count=page_text.format_count)

    def _show(self, manager: CheckpointManager) -> None:
        self.manager = manager
        self.histories = Histories(manager.store)
        self.catalog = Catalog(manager.store)
        self.scenes = Scenes(manager.store, self.histories, self.catalog)
        self.troubles = Troubles(manager.store)
        self.previews: dict[str, object] = {}
        """What people were shown before they confirm it, by name."""

    def follow_store(self) -> None:
        """Open the store anew if another one, or none, is at its path by now.

        Raises:
            StorageError: the medium failed.
        """
        backend = self.manager.store.backend
        if (
            isinstance(backend, SupportsReplacementCheck)
            and backend.url is not None
            and backend.is_replaced()
        ):
            self._show(CheckpointManager(backend.url))
            backend.close()

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Do what changes something beside the event loop; it is waited for to its end."""
        return await run_in_threadpool(call, *args)

    @property
    def store(self) -> Store:
        """Where all is read from."""
        return self.manager.store

    def find(self, text: str) -> Checkpoint:
        """Return the checkpoint of an id, else of a key or short form. Raises NotFoundError.

        An id is what it says, although there may be a key of that name.
        """
        place = parse_checkpoint_id(text)
        if place is not None:
            with suppress(NotFoundError, InvalidInputError):
                return find(self.store, text, key=place.key)
        return find(self.store, text)

    def page(self, template: str, /, status: int = 200, **values: Any) -> Response:
        """Return a page, or a piece of one, made from a template."""
        found = self._templates.get_template(template)
        text = found.render(
            csrf=self.guard.csrf, run=self.guard.run, read_only=self.read_only, **values
        )
        # A name of a file may be bytes that are no text: the filters write them out, all but here.
        return Response(text.encode("utf-8", "backslashreplace"), status, media_type=_HTML)

    def refusal(self, error: Exception) -> Response:
        """Return the page that tells why something was not done."""
        status = status_of(error)
        text = str(error).replace("list_keys() names them all.", "The first page lists them all.")
        return self.page("error.html", status, title=_TITLES.get(status, "Error"), text=text)

    async def form(self, request: Request) -> dict[str, str]:
        """Return what a form of ours says; of `part` all that were ticked, coded, one a line.

        Raises:
            Refused: it is none of ours, too large, or nothing may be changed.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Refused(415, "Not a form of this page.")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > LARGEST_BODY:
                raise Refused(413, "The form is too large.")
        try:
            pairs = parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                errors="surrogateescape",
                max_num_fields=_MOST_FIELDS,
            )
        except ValueError:
            raise Refused(400, "Not a form of this page.") from None
        said = _decoded(pairs)
        said["part"] = "\n".join(value for name, value in pairs if name == "part*")
        if not same(said.get("csrf", ""), self.guard.csrf):
            raise Refused(
                403, "This form is not from this page, or the server was restarted. Reload."
            )
        if self.read_only:
            raise Refused(403, "This page is read-only: it was started with --read-only.")
        return said


def asked(request: Request) -> dict[str, str]:
    """Return what an address asks for, also names of files that are no text."""
    query = request.scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(query, errors="surrogateescape", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Refused(400, "The address has too many parameters.") from None
    return _decoded(pairs)


def _decoded(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return what a form or an address says. What has a star after its name is coded."""
    return dict(
        (name[:-1], page_text.uncoded(value)) if name.endswith("*") else (name, value)
        for name, value in pairs
    )


def wanted(said: dict[str, str], name: str) -> str:
    """Return what an address or a form must say. Raises Refused."""
    value = said.get(name, "")
    if not value:
        raise Refused(400, f"Missing parameter `{name}`.")
    return value


def number(said: dict[str, str], name: str, default: int = 0, most: int = 10**12) -> int:
    """Return a number that an address says; the default if it says none."""
    text = said.get(name, "")
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 19 else default


def status_of(error: Exception) -> int:
    """Return the status of an answer that tells of an error."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, InvalidInputError):
        return 400
    if isinstance(error, (ConflictError, RollbackRefusedError)):
        return 409
    return 422 if isinstance(error, CheckpointError) else 500


def as_json(value: Any) -> Response:
    """Return data for a script."""
    body = json.dumps(value).encode()
    return Response(body, media_type="application/json")


Handler = Callable[[Request], Any]
_TITLES = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    409: "Refused",
    422: "Cannot be read",
}
