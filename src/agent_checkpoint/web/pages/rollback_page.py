"""Rolling back from the page. Owns that only what was previewed is done, and is done once.

What a person was shown is kept here under a name. The confirmation names it, and is refused if the
session, its files or what was done outside are not what they were.
"""

from __future__ import annotations

import secrets
from threading import Lock
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_checkpoint.errors import ConflictError, RollbackRefusedError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.rollback_preview import Preview, preview_rollback
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.ledger.ledger import Effect
from agent_checkpoint.store.store import key_not_found
from agent_checkpoint.web.page_text import link, uncoded
from agent_checkpoint.web.site import Refused, Site, asked, wanted
from agent_checkpoint.workspace.restore.plan import PlanChangedError

POLICIES = ("refuse", "warn")
"""What the page offers; to compensate needs the tools, which are not known here."""
_MOST_KEPT = 5
"""Each holds a line for every file that would change."""


class Shown:
    """What a person was shown, and what came of confirming it."""

    def __init__(
        self, site: Site, target: Checkpoint, key: str, parts: list[str] | None, keep_unseen: bool
    ) -> None:
        head = site.store.head(key)
        if head is None:
            raise key_not_found(key, site.store)
        self.head, self.target, self.key = head, target, key
        self.parts, self.keep_unseen = parts, keep_unseen
        self.preview = self.look(site)
        self.done: RollbackReport | None = None
        self.lock = Lock()
        """Held while it is confirmed: a form may be sent twice."""

    def look(self, site: Site) -> Preview:
        """Return what a rollback would do now. Raises as `preview_rollback` does."""
        return preview_rollback(
            site.manager,
            self.key,
            to=self.target.id,
            parts=self.parts,
            keep_unseen=self.keep_unseen,
        )


def rollback_page(site: Site, request: Request) -> Response:
    """Ask what of a session shall go back, and tell what the store knows about that."""
    said = asked(request)
    target = site.find(wanted(said, "id"))
    key = said.get("key") or target.key
    seen = preview_rollback(site.manager, key, to=target.id, look=False)
    return _page(site, target, key, seen.report, step="ask")


async def look_at_rollback(site: Site, request: Request) -> Response:
    """Look at the files, too, and keep what a rollback would do. Changes nothing of it."""
    said = await site.form(request)

    def run() -> Response:
        target = site.find(wanted(said, "id"))
        shown = Shown(site, target, wanted(said, "key"), _chosen(said), "keep_unseen" in said)
        while len(site.previews) >= _MOST_KEPT:
            site.previews.pop(next(iter(site.previews)), None)
        name = secrets.token_urlsafe(12)
        site.previews[name] = shown
        return _to(name)

    return await site.in_thread(run)


def preview_page(site: Site, request: Request) -> Response:
    """Show what a rollback would do, or what it did if that was confirmed."""
    name = wanted(asked(request), "of")
    shown = _kept(site, name)
    if shown.done is not None:
        return _page(site, shown.target, shown.key, shown.done, step="done")
    return _page(
        site,
        shown.target,
        shown.key,
        shown.preview.report,
        step="confirm",
        name=name,
        no_files=shown.preview.no_files,
    )


async def rollback(site: Site, request: Request) -> Response:
    """Go back, if nothing has happened since the preview."""
    said = await site.form(request)

    def run() -> Response:
        name, policy = wanted(said, "of"), said.get("effects", "refuse")
        if policy not in POLICIES:
            raise Refused(400, "Unknown policy for external side effects.")
        shown = _kept(site, name)
        with shown.lock:
            return _to(name) if shown.done is not None else _confirmed(site, shown, name, policy)

    return await site.in_thread(run)


def _confirmed(site: Site, shown: Shown, name: str, policy: str) -> Response:
    target, key, seen = shown.target, shown.key, shown.preview.report
    if policy == "refuse" and seen.blocking:  # before the session is taken over for nothing
        return _page(site, target, key, seen, step="refused", status=409)
    try:
        _check_same(site, shown)
        session = Session(key, store=site.manager, every="manual", only_at=shown.head.id)
        try:
            # Only now is it certain that nobody else does anything outside for it, and only its
            # own safety checkpoint tells what the files are that it replaces.
            shown.done = session.rollback(
                to=target.id,
                effects=policy,
                parts=shown.parts,
                keep_unseen=shown.keep_unseen,
                only_if=seen,
            )
        finally:
            session.close()
    except ConflictError as error:
        return _page(site, target, key, seen, step="changed", status=409, why=str(error))
    except RollbackRefusedError as error:
        if not isinstance(error.report, RollbackReport):
            raise
        return _page(site, target, key, error.report, step="refused", status=409)
    return _to(name)


def _check_same(site: Site, shown: Shown) -> None:
    """Look whether a rollback would do what a person was shown, before it takes the session over.

    Raises:
        ConflictError: it would not.
    """
    head = site.store.head(shown.key)
    if head is None or head.id != shown.head.id:
        raise ConflictError(
            "The session has a newer checkpoint than the preview: nothing was done. Preview again."
        )
    before, now = shown.preview, shown.look(site)
    if _effects(before.report) != _effects(now.report):
        raise PlanChangedError("External side effects have")
    is_told = before.no_files == now.no_files
    if not is_told or before.report.files_digest != now.report.files_digest:
        raise PlanChangedError


def _effects(report: RollbackReport) -> list[list[tuple[str, str]]]:
    lists: list[list[Effect]] = [
        report.irreversible,
        report.unknown,
        report.compensable,
        report.replayable,
        report.gone,
    ]
    return [[(effect.id, effect.status) for effect in effects] for effects in lists]


def _kept(site: Site, name: str) -> Shown:
    found = site.previews.get(name)
    if not isinstance(found, Shown):
        raise Refused(404, "This preview has expired. Start again from the checkpoint.")
    return found


def _to(name: str) -> Response:
    return RedirectResponse(link("preview", of=name), 303)


def _page(
    site: Site,
    target: Checkpoint,
    key: str,
    report: RollbackReport,
    *,
    step: str,
    status: int = 200,
    **values: Any,
) -> Response:
    values = {"name": "", "no_files": None, "why": "", **values}
    return site.page(
        "rollback.html",
        status,
        target=target,
        key=key,
        head=site.store.head(key),
        report=report,
        step=step,
        parts=[part for part in target.parts if part != SESSION_PART],
        files=_file_words(report),
        **values,
    )


def _file_words(report: RollbackReport) -> list[tuple[str, list[str], int]]:
    """Return what is done to files: a word, some paths, and how many there are."""
    plan = report.files
    if plan is None:
        return []
    lists = [
        ("write", plan.write),
        ("delete", plan.delete),
        ("change mode", plan.mode),
        ("keep unchanged", [f"{path}: {why}" for path, why in plan.leave.items()]),
        ("keep a copy", [f"{path} as {where}" for path, where in plan.kept.items()]),
        ("open for writing in another process", plan.open),
        ("only in the safety checkpoint", plan.unseen),
        ("git", plan.git),
    ]
    return [(word, list(paths[:200]), len(paths)) for word, paths in lists if paths]


def _chosen(said: dict[str, str]) -> list[str] | None:
    """Return the parts that were ticked; None for all."""
    if said.get("scope") != "some":
        return None
    return [uncoded(name) for name in said.get("part", "").split("\n") if name]
