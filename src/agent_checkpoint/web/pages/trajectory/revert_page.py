"""Reverts one step, with preview and confirmation. Runs only the previewed revert, and only once.

A preview is kept under a name, which the confirmation submits. The confirmation is refused if the
files changed since the preview. Only directories that this user's sessions signed are changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from threading import Lock
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from agent_checkpoint.agents.directory_keys import is_directory_key, trusted_directory
from agent_checkpoint.agents.directory_revert import preview_revert, revert_and_save
from agent_checkpoint.agents.tracked_dir import open_tracked
from agent_checkpoint.errors import ConflictError, InvalidInputError, RevertConflictError
from agent_checkpoint.options import Conflicts
from agent_checkpoint.session.revert.revert import RevertReport, StepPair, step_pairs
from agent_checkpoint.session.revert.text_merge import Hunk
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.session.steps.step import StepReader
from agent_checkpoint.store.store import key_not_found
from agent_checkpoint.web.diff.line_matching import DiffBudget
from agent_checkpoint.web.page_text import link
from agent_checkpoint.web.pages.diff_page import FileChange, compare_trees
from agent_checkpoint.web.plan_rows import plan_rows
from agent_checkpoint.web.rendering import RequestError, Site, posted, query_params, required
from agent_checkpoint.workspace.directory_key import own_key

_MAX_CONFLICTS, _MAX_LINES = 50, 200


class PendingRevert:
    """A previewed revert of a step, with its report after the confirmation."""

    def __init__(self, site: Site, key: str, step: str, conflicts: Conflicts) -> None:
        head = site.store.head(key)
        if head is None:
            raise key_not_found(key, site.store)
        directory = trusted_directory(site.store, head)
        if directory is None or not directory.is_dir():
            raise InvalidInputError(
                "The directory of this key is not known, or not signed by this user. Run "
                "`agent-checkpoint revert` in it."
            )
        self.key, self.step, self.conflicts, self.head = key, step, conflicts, head
        self.directory = directory
        self.is_session = SESSION_PART in head.parts
        own = is_directory_key(site.store, head, self.directory)
        self.saved_in = key if own or self.is_session else own_key(site.store, self.directory)
        """The key of the checkpoint of the result, by which `undo` finds it."""
        self.pairs = step_pairs(site.store, key, step)
        with self._opened(site) as workspace:
            self.report = preview_revert(workspace, self.pairs, conflicts)
        self.done: RevertReport | None = None
        self.lock = Lock()
        """Held while the confirmation runs, because a form may be submitted twice."""

    def confirm(self, site: Site) -> None:
        """Revert the step. Raises the same errors as `Session.revert` and `revert_and_save`."""
        if not self.is_session:
            with self._opened(site) as workspace:
                self.done = revert_and_save(workspace, self.pairs, self.conflicts, self.report)
            return
        session = Session(self.key, store=site.manager, every="manual", only_at=self.head.id)
        with closing(session):
            names = [pair.after.id for pair in self.pairs]
            self.done = session.revert(names, conflicts=self.conflicts, only_if=self.report)

    def _opened(self, site: Site) -> Any:
        workspace = open_tracked(self.directory, site.store, self.saved_in)
        workspace.saved_in = (self.key,)
        return workspace


def revert_page(site: Site, request: Request) -> Response:
    """Show the step, and ask what to do with conflicts. Scans no files."""
    params = query_params(request)
    target = site.find(required(params, "id"))
    key = params.get("key") or target.key
    pairs = step_pairs(site.store, key, target.id)
    return _page(site, key, target.id, _steps(site, pairs), step="ask")


@posted
def create_preview(site: Site, form: dict[str, str]) -> Response:
    """Create a preview, which scans the files and changes nothing."""
    chosen = form.get("conflicts", "refuse")
    conflicts: Any = chosen if chosen in get_args(Conflicts) else None
    if conflicts is None:
        raise RequestError(400, "Unknown option for conflicts.")
    target = site.find(required(form, "id"))
    pending = PendingRevert(site, required(form, "key"), target.id, conflicts)
    return _redirect(site.keep_preview(pending))


def preview_page(site: Site, request: Request) -> Response:
    """Show a preview, or the report after the confirmation."""
    name = required(query_params(request), "of")
    pending = site.kept_preview(name, PendingRevert)
    if pending.done is not None:
        return _shown(site, pending, pending.done, step="done")
    return _shown(site, pending, pending.report, step="confirm", name=name)


@posted
def revert(site: Site, form: dict[str, str]) -> Response:
    """Revert the step if nothing has changed since the preview."""
    name = required(form, "of")
    pending = site.kept_preview(name, PendingRevert)
    with pending.lock:
        if pending.done is not None:
            return _redirect(name)
        try:
            pending.confirm(site)
        except ConflictError as error:
            return _shown(site, pending, pending.report, step="changed", status=409, why=str(error))
        except RevertConflictError as error:
            report = error.report if isinstance(error.report, RevertReport) else pending.report
            return _shown(site, pending, report, step="refused", status=409)
    return _redirect(name)


def _steps(site: Site, pairs: Sequence[StepPair]) -> list[Any]:
    reader = StepReader(site.store)
    return [reader.step(pair.before, pair.after) for pair in pairs]


def _redirect(name: str) -> Response:
    return RedirectResponse(link("revert_preview", of=name), 303)


def _shown(site: Site, pending: PendingRevert, report: RevertReport, **values: Any) -> Response:
    is_refused = bool(report.conflicts) and pending.conflicts == "refuse" and report.id is None
    shown = report.conflicts[:_MAX_CONFLICTS]
    changes: list[FileChange] = []
    number = 0
    if report.trees is not None and not is_refused:
        changes, number = compare_trees(*report.trees, "", DiffBudget())
    return _page(
        site,
        pending.key,
        pending.step,
        report.steps,
        report=report,
        conflicts=[(one, [_sides(hunk) for hunk in one.hunks]) for one in shown],
        changes=changes,
        number=number,
        rows=[] if report.files is None else plan_rows(report.files),
        is_refused=is_refused,
        with_markers=pending.conflicts == "markers",
        saved_in=pending.saved_in,
        is_session=pending.is_session,
        **values,
    )


def _sides(hunk: Hunk) -> tuple[int, list[str]]:
    """Return the line and the three versions of a place: now, as the step wrote it, before it."""
    sides = (hunk.ours, hunk.base, hunk.theirs)
    return hunk.line, [b"\n".join(side[:_MAX_LINES]).decode(errors="replace") for side in sides]


def _page(
    site: Site, key: str, target: str, steps: list[Any], *, status: int = 200, **values: Any
) -> Response:
    values = {"name": "", "why": "", "report": None, **values}
    return site.page("revert.html", status, key=key, target=target, steps=steps, **values)
