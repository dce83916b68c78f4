"""Going back, forking and exporting from the page. Owns that each is previewed and confirmed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from agent_checkpoint.errors import ConflictError, RollbackRefusedError
from agent_checkpoint.records import Checkpoint, check_key, show
from agent_checkpoint.session.meta import PART as SESSION
from agent_checkpoint.session.preview import preview_rollback as foresee
from agent_checkpoint.session.report import RollbackReport
from agent_checkpoint.session.session import Session
from agent_checkpoint.store.lookup import find
from agent_checkpoint.web.site import Refused, Site, asked, wanted
from agent_checkpoint.web.words import link
from agent_checkpoint.workspace.naming import tree_in

_AT_ONCE = 1 << 16
POLICIES = ("refuse", "warn")
"""What the page offers; to compensate needs the tools, which are not known here."""


def rollback_page(site: Site, request: Request) -> Response:
    """Ask what of a session shall go back, and tell what the store knows about that."""
    said = asked(request)
    target = find(site.store, wanted(said, "id"))
    key = said.get("key") or target.key
    seen = foresee(site.manager, key, to=target.id, look=False)
    return _rollback_page(site, target, key, seen.report, step="ask")


async def preview_rollback(site: Site, request: Request) -> Response:
    """Look at the files, too, and show all that a rollback would do. Changes nothing of it."""
    said = await site.form(request)

    def run() -> Response:
        target = find(site.store, wanted(said, "id"))
        key = wanted(said, "key")
        parts, keep_unseen = _chosen(said), bool(said.get("keep_unseen"))
        seen = foresee(site.manager, key, to=target.id, parts=parts, keep_unseen=keep_unseen)
        return _rollback_page(
            site,
            target,
            key,
            seen.report,
            step="confirm",
            chosen=parts,
            keep_unseen=keep_unseen,
            no_files=seen.no_files,
        )

    return await site.in_thread(run)


async def rollback(site: Site, request: Request) -> Response:
    """Go back, if nothing has happened since the preview."""
    said = await site.form(request)
    return await site.in_thread(_rollback, site, said)


def _rollback(site: Site, said: dict[str, str]) -> Response:
    target = find(site.store, wanted(said, "id"))
    key = wanted(said, "key")
    policy = said.get("effects", "refuse")
    if policy not in POLICIES:
        raise Refused(400, "That is no way to go about what was done outside.")
    head = site.store.head(key)
    if head is None or head.id != said.get("head"):
        raise ConflictError(
            "The session has gone on since the preview: nothing was done. Look at it again."
        )
    parts, keep_unseen = _chosen(said), bool(said.get("keep_unseen"))
    seen = foresee(site.manager, key, to=target.id, parts=parts, look=False).report
    if policy == "refuse" and seen.blocking:  # before the session is taken over for nothing
        return _rollback_page(site, target, key, seen, step="refused", status=409)
    session = Session(key, store=site.manager, every="manual")
    try:
        report = session.rollback(
            to=target.id, effects=policy, parts=parts, keep_unseen=keep_unseen
        )
    except RollbackRefusedError as error:
        if not isinstance(error.report, RollbackReport):
            raise
        return _rollback_page(site, target, key, error.report, step="refused", status=409)
    finally:
        session.close()
    return _rollback_page(site, target, key, report, step="done")


def _rollback_page(
    site: Site,
    target: Checkpoint,
    key: str,
    report: RollbackReport,
    *,
    step: str,
    status: int = 200,
    chosen: list[str] | None = None,
    keep_unseen: bool = False,
    no_files: str | None = None,
) -> Response:
    head = site.store.head(key)
    return site.page(
        "rollback.html",
        status,
        target=target,
        key=key,
        head=head,
        report=report,
        step=step,
        parts=[name for name in target.parts if name != SESSION],
        chosen=chosen,
        keep_unseen=keep_unseen,
        no_files=no_files,
        files=_file_words(report),
    )


def _file_words(report: RollbackReport) -> list[tuple[str, list[str], int]]:
    """Return what is done to files: a word, some paths, and how many there are."""
    plan = report.files
    if plan is None:
        return []
    lists = [
        ("write", plan.write),
        ("delete", plan.delete),
        ("set the mode of", plan.mode),
        ("leave alone", [f"{path}: {why}" for path, why in plan.leave.items()]),
        ("in no other checkpoint", plan.unseen),
        ("git", plan.git),
    ]
    return [(word, list(paths[:200]), len(paths)) for word, paths in lists if paths]


def _chosen(said: dict[str, str]) -> list[str] | None:
    """Return the parts that were ticked; None for all."""
    if said.get("scope") != "some":
        return None
    return [name for name in said.get("part", "").split("\n") if name]


def fork_page(site: Site, request: Request) -> Response:
    """Ask for the name of a fork, and tell what it would begin with."""
    said = asked(request)
    source = find(site.store, wanted(said, "id"))
    return _fork_page(site, source, said.get("name", ""))


def _fork_page(site: Site, source: Checkpoint, name: str, step: str = "ask") -> Response:
    return site.page(
        "fork.html",
        source=source,
        key=source.key,
        name=name,
        step=step,
        tree=tree_in(site.store, source),
        is_session=SESSION in source.parts,
    )


async def fork(site: Site, request: Request) -> Response:
    """Show what would be done; once that is confirmed, begin another key at a checkpoint."""
    said = await site.form(request)

    def run() -> Response:
        source = find(site.store, wanted(said, "id"))
        name = check_key(said.get("name", "").strip())
        if site.store.newest(name):
            raise ConflictError(f"The key {show(name)} exists already: choose another name.")
        if said.get("confirmed") != "yes":
            return _fork_page(site, source, name, "confirm")
        site.manager.fork(source.key, name, source.id)
        return RedirectResponse(link("/timeline", key=name), 303)

    return await site.in_thread(run)


def export_page(site: Site, request: Request) -> Response:
    """Tell what an archive of a key would hold."""
    key = wanted(asked(request), "key")
    head = find(site.store, key)
    line = site.histories.line(head.key)
    return site.page(
        "export.html", key=head.key, head=head, number=len(line.points), is_whole=line.is_whole
    )


async def export(site: Site, request: Request) -> Response:
    """Send an archive of a key."""
    said = await site.form(request)

    def run() -> Response:
        key = check_key(wanted(said, "key"))
        folder = tempfile.TemporaryDirectory(prefix="agent-checkpoint-")
        path = Path(folder.name, "archive.ckpt")
        try:
            site.manager.export_archive(path, key)
            size = path.stat().st_size
        except BaseException:
            folder.cleanup()
            raise
        headers = {
            "Content-Disposition": f'attachment; filename="{_file_name(key)}"',
            "Content-Length": str(size),
        }
        return StreamingResponse(
            _sent(path, folder), headers=headers, media_type="application/octet-stream"
        )

    return await site.in_thread(run)


def _sent(path: Path, folder: tempfile.TemporaryDirectory[str]) -> Iterator[bytes]:
    with folder, path.open("rb") as file:
        while piece := file.read(_AT_ONCE):
            yield piece


def _file_name(key: str) -> str:
    safe = "".join(
        char if char.isascii() and (char.isalnum() or char in "-_") else "-" for char in key
    )
    return f"{safe.strip('-')[:80] or 'archive'}.ckpt"
