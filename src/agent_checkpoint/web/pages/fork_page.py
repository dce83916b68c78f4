"""The pages for fork and export, with preview and confirmation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.records import check_key, short_repr
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.store import key_not_found
from agent_checkpoint.web.page_text import link
from agent_checkpoint.web.rendering import Site, download, posted, query_params, required
from agent_checkpoint.workspace.checkpoint_tree import tree_in

_AT_ONCE = 1 << 16


def fork_page(site: Site, request: Request) -> Response:
    """Ask for the name of a fork, and show its initial contents."""
    params = query_params(request)
    source = site.find(required(params, "id"))
    name = params.get("name", "").strip()
    if name:
        _check_free(site, name)
    return site.page(
        "fork.html",
        source=source,
        key=source.key,
        name=name,
        step="confirm" if name else "ask",
        tree=tree_in(site.store, source),
        is_session=SESSION_PART in source.parts,
    )


def _check_free(site: Site, name: str) -> None:
    if site.store.newest(check_key(name)):
        raise ConflictError(f"The key {short_repr(name)} already exists. Choose another name.")


@posted
def fork(site: Site, form: dict[str, str]) -> Response:
    """Fork a checkpoint under a new key."""
    source = site.find(required(form, "id"))
    name = form.get("name", "").strip()
    _check_free(site, name)
    site.manager.fork(source.key, name, source.id)
    return RedirectResponse(link("timeline", key=name), 303)


def export_page(site: Site, request: Request) -> Response:
    """Show the contents of an archive of a key."""
    key = required(query_params(request), "key")
    head = site.store.head(key)
    if head is None:
        raise key_not_found(key, site.store)
    history = site.histories.get(key)
    return site.page(
        "export.html",
        key=key,
        head=head,
        number=len(history.checkpoints),
        is_whole=history.is_whole,
        masked=site.masked,
    )


@posted
def export(site: Site, form: dict[str, str]) -> Response:
    """Send an archive of a key as a download."""
    key = check_key(required(form, "key"))
    folder = tempfile.TemporaryDirectory(prefix="agent-checkpoint-")
    path = Path(folder.name, "archive.ckpt")
    try:
        site.manager.export_archive(path, key, mask=site.masked)
        file = path.open("rb")
    except BaseException:
        folder.cleanup()
        raise
    size = path.stat().st_size
    # On POSIX an open file can be deleted, so no file is left if the client disconnects.
    with suppress(OSError):
        folder.cleanup()
    return download(_sent(file, folder), f"{key[:80]}.ckpt", size)


def _sent(file: BinaryIO, folder: tempfile.TemporaryDirectory[str]) -> Iterator[bytes]:
    with folder, file:
        while piece := file.read(_AT_ONCE):
            yield piece
