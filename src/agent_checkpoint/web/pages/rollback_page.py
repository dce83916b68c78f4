"""Rollback with preview and confirmation. Runs only the previewed rollback, and only once.

A preview is kept under a name, which the confirmation submits. The confirmation is refused if the
session, its files or its external side effects have changed since the preview.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import ConflictError, RollbackRefusedError
from agent_checkpoint.options import RollbackEffects
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.agent_scope import OPEN_CALLS, part_groups
from agent_checkpoint.session.rollback.rollback_preview import Preview, preview_rollback
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.store import key_not_found
from agent_checkpoint.web.page_text import decode_field
from agent_checkpoint.web.pages.confirmation import Pending, confirmation, keep
from agent_checkpoint.web.pages.confirmation import preview_page as _preview_page
from agent_checkpoint.web.plan_rows import plan_rows
from agent_checkpoint.web.rendering import RequestError, Site, posted, query_params, required
from agent_checkpoint.workspace.restore.plan import PlanChangedError

POLICIES: tuple[RollbackEffects, ...] = ("refuse", "warn")
"""Policies that the page offers. `compensate` needs the code of the tools, which is not loaded."""


class PendingRollback(Pending):
    """A previewed rollback, with its report after the confirmation."""

    page = "preview"

    def __init__(
        self, site: Site, target: Checkpoint, key: str, parts: list[str] | None, keep_unseen: bool
    ) -> None:
        super().__init__()
        head = site.store.head(key)
        if head is None:
            raise key_not_found(key, site.store)
        self.head, self.target, self.key = head, target, key
        self.parts, self.keep_unseen = parts, keep_unseen
        self.preview = self.compute(site)

    def compute(self, site: Site) -> Preview:
        """Return a fresh preview. Raises the same errors as `preview_rollback`."""
        return preview_rollback(
            site.manager,
            self.key,
            to=self.target.id,
            parts=self.parts,
            keep_unseen=self.keep_unseen,
        )

    def run(self, site: Site, form: dict[str, str], name: str) -> Response | None:
        """Roll back, unless effects forbid it. Raises ConflictError."""
        chosen = form.get("effects", "refuse")
        policy = next((word for word in POLICIES if word == chosen), None)
        if policy is None:
            raise RequestError(400, "Unknown policy for external side effects.")
        report = self.preview.report
        if policy == "refuse" and report.blocking:  # refuse before the session is taken over
            return self._page(site, report, "refused", status=409)
        _check_unchanged(site, self)
        session = Session(self.key, store=site.manager, every="manual", only_at=self.head.id)
        try:
            # The session is taken over: from here on no other process adds side effects, and the
            # safety checkpoint records the files that the rollback replaces.
            self.done = session.rollback(
                to=self.target.id,
                effects=policy,
                parts=self.parts,
                keep_unseen=self.keep_unseen,
                only_if=report,
            )
        except RollbackRefusedError as error:
            if not isinstance(error.report, RollbackReport):
                raise
            return self._page(site, error.report, "refused", status=409)
        finally:
            session.close()
        return None

    def show(
        self, site: Site, name: str, step: str, *, status: int = 200, why: str = ""
    ) -> Response:
        """Return the page of a step."""
        report = self.preview.report if self.done is None else self.done
        no_files = self.preview.no_files
        return self._page(site, report, step, status=status, name=name, why=why, no_files=no_files)

    def _page(self, site: Site, report: RollbackReport, step: str, **values: Any) -> Response:
        return _page(site, self.target, self.key, report, step=step, **values)


def rollback_page(site: Site, request: Request) -> Response:
    """Ask which parts to roll back, and show the side effects since then. Scans no files."""
    params = query_params(request)
    target = site.find(required(params, "id"))
    key = params.get("key") or target.key
    preview = preview_rollback(site.manager, key, to=target.id, look=False)
    return _page(site, target, key, preview.report, step="ask")


@posted
def create_preview(site: Site, form: dict[str, str]) -> Response:
    """Create a preview, which scans the files and changes nothing."""
    target = site.find(required(form, "id"))
    pending = PendingRollback(
        site, target, required(form, "key"), _selected_parts(form), "keep_unseen" in form
    )
    return keep(site, pending)


preview_page = _preview_page(PendingRollback)
rollback = confirmation(PendingRollback)


def _check_unchanged(site: Site, pending: PendingRollback) -> None:
    """Check that the preview is still current, before the session is taken over.

    Raises:
        ConflictError: the session, its files or its side effects have changed.
    """
    head = site.store.head(pending.key)
    if head is None or head.id != pending.head.id:
        raise ConflictError(
            "The session has a newer checkpoint than the preview: nothing was done. Preview again."
        )
    before, now = pending.preview, pending.compute(site)
    if _effects(before.report) != _effects(now.report):
        raise PlanChangedError("External side effects have")
    same_files = before.no_files == now.no_files
    if not same_files or before.report.files_digest != now.report.files_digest:
        raise PlanChangedError


def _effects(report: RollbackReport) -> list[list[tuple[str, str]]]:
    lists = [report.irreversible, report.unknown, report.compensable]
    lists += [report.replayable, report.gone]
    return [[(effect.id, effect.status) for effect in effects] for effects in lists]


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
        parts=part_groups(part for part in target.parts if part not in (SESSION_PART, OPEN_CALLS)),
        files=[] if report.files is None else plan_rows(report.files),
        **values,
    )


def _selected_parts(form: dict[str, str]) -> list[str] | None:
    """Return the selected parts; None for all."""
    if form.get("scope") != "some":
        return None
    return [decode_field(name) for name in form.get("part", "").split("\n") if name]
