"""Shared by all pages: the store, templates, request parameters, rendering and error pages."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RollbackRefusedError,
)
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.present.model_usage import model_words, other_metrics
from agent_checkpoint.records import Checkpoint, parse_checkpoint_id
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.store import Store
from agent_checkpoint.web import page_text
from agent_checkpoint.web.auth import MAX_BODY, Auth, secrets_equal
from agent_checkpoint.web.markdown import markdown
from agent_checkpoint.web.request_threads import stream_in_threads
from agent_checkpoint.web.timeline.history import Histories
from agent_checkpoint.web.timeline.key_catalog import KeyCatalog
from agent_checkpoint.web.timeline.layout_cache import LayoutCache, UnknownEffects

HERE = Path(__file__).parent
T = TypeVar("T")
_MAX_FIELDS = 500
_MAX_PREVIEWS = 5
"""Maximum number of previews kept. Each contains a row for every file that would change."""
_HTML = "text/html; charset=utf-8"


class RequestError(Exception):
    """A rejected request: the HTTP status, and the message for the user."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Site:
    """One store, with the caches and templates of its pages."""

    def __init__(
        self,
        manager: CheckpointManager,
        auth: Auth,
        *,
        read_only: bool = False,
        masked: bool = True,
    ) -> None:
        self.auth = auth
        self.read_only = read_only
        self.masked = masked
        """Whether pages mask secrets."""
        self._open(manager)
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
            markdown=markdown,
            encoded=page_text.encode_field,
            line=page_text.single_line,
            prose=page_text.prose,
            when=page_text.when,
            timestamp=page_text.timestamp,
            size=page_text.format_size,
            short=page_text.short,
            fork_name=page_text.fork_name,
            duration=page_text.duration,
            model_words=model_words,
            other_metrics=other_metrics,
        )
        self._templates.globals.update(link=page_text.link, count=page_text.format_count)

    def _open(self, manager: CheckpointManager) -> None:
        self.manager = manager
        self.histories = Histories(manager.store)
        self.catalog = KeyCatalog(manager.store)
        self.layouts = LayoutCache(manager.store, self.histories, self.catalog)
        self.unknown_effects = UnknownEffects(manager.store)
        self._previews: dict[str, object] = {}
        self.prompts: dict[str, str] = {}
        """Prompts that were read from transcripts, by the id of a checkpoint after each."""

    def follow_store(self) -> None:
        """Reopen the store if the store at its path was replaced or removed.

        Raises:
            StorageError: the medium failed.
        """
        backend = self.manager.store.backend
        url = backend.properties.url
        if url is not None and backend.is_replaced():
            self._open(CheckpointManager(url))
            backend.close()

    def keep_preview(self, preview: object) -> str:
        """Keep a preview until it is confirmed, or others take its place; return its name."""
        while len(self._previews) >= _MAX_PREVIEWS:
            self._previews.pop(next(iter(self._previews)), None)
        name = secrets.token_urlsafe(12)
        self._previews[name] = preview
        return name

    def kept_preview(self, name: str, kind: type[T]) -> T:
        """Return a preview by its name. Raises RequestError if there is none of that kind."""
        preview = self._previews.get(name)
        if not isinstance(preview, kind):
            raise RequestError(404, "This preview has expired. Start again from the checkpoint.")
        return preview

    async def in_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Run a change in a worker thread. It completes even if the client disconnects."""
        return await run_in_threadpool(call, *args)

    @property
    def store(self) -> Store:
        """The store of the manager."""
        return self.manager.store

    def find(self, text: str) -> Checkpoint:
        """Return a checkpoint by id, key or short form. Raises NotFoundError.

        An id takes precedence over a key of the same name.
        """
        parsed = parse_checkpoint_id(text)
        if parsed is not None:
            with suppress(NotFoundError, InvalidInputError):
                return find(self.store, text, key=parsed.key)
        return find(self.store, text)

    def page(self, template: str, /, status: int = 200, **values: Any) -> Response:
        """Render a template, a page or a fragment."""
        loaded = self._templates.get_template(template)
        text = loaded.render(
            csrf=self.auth.csrf, run=self.auth.run, read_only=self.read_only, **values
        )
        # File names may contain undecodable bytes. Filters escape them; this covers other places.
        return Response(text.encode("utf-8", "backslashreplace"), status, media_type=_HTML)

    def error_page(self, error: Exception) -> Response:
        """Return the error page for an exception."""
        status = status_of(error)
        text = str(error)
        if isinstance(error, CheckpointError) and error.hint and error.hint.code == "list_keys":
            text = error.with_hint("The first page lists all keys.")
        return self.page("error.html", status, title=_TITLES.get(status, "Error"), text=text)

    async def form(self, request: Request) -> dict[str, str]:
        """Return the fields of a form; `part` contains the selected parts, encoded, one per line.

        Raises:
            RequestError: the form is from another site, invalid or too large, or the UI is
                read-only.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise RequestError(415, "Not a form of this page.")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                raise RequestError(413, "The form is too large.")
        try:
            pairs = parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                errors="surrogateescape",
                max_num_fields=_MAX_FIELDS,
            )
        except ValueError:
            raise RequestError(400, "Not a form of this page.") from None
        fields = _decoded(pairs)
        fields["part"] = "\n".join(value for name, value in pairs if name == "part*")
        if not secrets_equal(fields.get("csrf", ""), self.auth.csrf):
            raise RequestError(
                403,
                "This form is not from this server, or the server was restarted. Reload the page.",
            )
        if self.read_only:
            raise RequestError(403, "The server is read-only: it was started with --read-only.")
        return fields


def posted(
    handle: Callable[[Site, dict[str, str]], Response],
) -> Callable[[Site, Request], Awaitable[Response]]:
    """Return the handler of a POST request from a function of its form.

    The function runs in a worker thread, to its end even if the client disconnects.
    """

    async def answer(site: Site, request: Request) -> Response:
        return await site.in_thread(handle, site, await site.form(request))

    return answer


def query_params(request: Request) -> dict[str, str]:
    """Return the query parameters. Values may contain undecodable bytes, as file names may."""
    query = request.scope["query_string"].decode("latin-1")
    try:
        pairs = parse_qsl(query, errors="surrogateescape", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise RequestError(400, "The URL has too many parameters.") from None
    return _decoded(pairs)


def _decoded(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return parameters by name. A star after a name marks an encoded value."""
    return dict(
        (name[:-1], page_text.decode_field(value)) if name.endswith("*") else (name, value)
        for name, value in pairs
    )


def required(params: dict[str, str], name: str) -> str:
    """Return a parameter that must be present. Raises RequestError."""
    value = params.get(name, "")
    if not value:
        raise RequestError(400, f"Missing parameter `{name}`.")
    return value


def int_param(params: dict[str, str], name: str, default: int = 0, most: int = 10**12) -> int:
    """Return a parameter as a number; the default if it is missing or malformed."""
    text = params.get(name, "")
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 19 else default


def status_of(error: Exception) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, RequestError):
        return error.status
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, InvalidInputError):
        return 400
    if isinstance(error, (ConflictError, RollbackRefusedError)):
        return 409
    return 422 if isinstance(error, CheckpointError) else 500


def download(pieces: Iterator[bytes], name: str, size: int) -> Response:
    """Return a file as a download that the browser never renders."""
    headers = {
        "Content-Disposition": page_text.attachment(name),
        "Content-Length": str(size),
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    body = stream_in_threads(pieces)
    return StreamingResponse(body, headers=headers, media_type="application/octet-stream")


def as_json(value: Any) -> Response:
    """Return a JSON response."""
    body = json.dumps(value).encode()
    return Response(body, media_type="application/json")


_TITLES = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Not found",
    409: "Refused",
    422: "Cannot be read",
}
