"""Reverts one step, with preview and confirmation. Runs only the previewed revert, and only once.

A preview is kept under a name, which the confirmation submits. The confirmation is refused if the
files changed since the preview. Only directories that this user's sessions signed are changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.agents.directory_keys import (
    directory_key,
    is_directory_key,
    trusted_directory,
)
from agent_checkpoint.agents.directory_revert import preview_revert, revert_and_save
from agent_checkpoint.agents.tracked_dir import open_tracked
from agent_checkpoint.errors import InvalidInputError, RevertConflictError
from agent_checkpoint.options import Conflicts
from agent_checkpoint.session.revert.revert import (
    RevertReport,
    StepPair,
    can_be_marked,
    step_pairs,
)
from agent_checkpoint.session.revert.text_merge import Hunk
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.session.steps.step import StepReader
from agent_checkpoint.store.store import key_not_found
from agent_checkpoint.web.diff.line_matching import DiffBudget
from agent_checkpoint.web.pages.confirmation import Pending, confirmation, keep
from agent_checkpoint.web.pages.confirmation import preview_page as _preview_page
from agent_checkpoint.web.pages.diff_page import FileChange, compare_trees
from agent_checkpoint.web.plan_rows import plan_rows
from agent_checkpoint.web.rendering import RequestError, Site, posted, query_params, required

_MAX_CONFLICTS, _MAX_LINES = 50, 200


class PendingRevert(Pending):
    """A previewed revert of a step, with its report after the confirmation."""

    page = "revert_preview"

    def __init__(self, site: Site, key: str, step: str, conflicts: Conflicts) -> None:
        super().__init__()
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
        self.saved_in = key if own or self.is_session else directory_key(site.store, self.directory)
        """The key of the checkpoint of the result, by which `undo` finds it."""
        self.pairs = step_pairs(site.store, key, step)
        with self._opened(site) as workspace:
            self.report = preview_revert(workspace, self.pairs, conflicts)

    def run(self, site: Site, form: dict[str, str], name: str) -> Response | None:
        """Revert the step, unless later work overlaps it. Raises ConflictError."""
        try:
            if self.is_session:
                session = Session(
                    self.key, store=site.manager, every="manual", only_at=self.head.id
                )
                with closing(session):
                    names = [pair.after.id for pair in self.pairs]
                    self.done = session.revert(names, conflicts=self.conflicts, only_if=self.report)
            else:
                with self._opened(site) as workspace:
                    self.done = revert_and_save(workspace, self.pairs, self.conflicts, self.report)
        except RevertConflictError as error:
            report = error.report if isinstance(error.report, RevertReport) else self.report
            return _shown(site, self, report, step="refused", status=409)
        return None

    def show(
        self, site: Site, name: str, step: str, *, status: int = 200, why: str = ""
    ) -> Response:
        """Return the page of a step."""
        report = self.report if self.done is None else self.done
        return _shown(site, self, report, step=step, status=status, name=name, why=why)

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
    return keep(site, pending)


preview_page = _preview_page(PendingRevert)
revert = confirmation(PendingRevert)


def _steps(site: Site, pairs: Sequence[StepPair]) -> list[Any]:
    reader = StepReader(site.store)
    return [reader.step(pair.before, pair.after) for pair in pairs]


def _shown(site: Site, pending: PendingRevert, report: RevertReport, **values: Any) -> Response:
    can_go_on = report.id is not None or can_be_marked(report, pending.conflicts)
    is_refused = bool(report.conflicts) and not can_go_on
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
        can_mark=all(one.hunks for one in report.conflicts),
        marked=len({one.path for one in report.conflicts if one.hunks}),
        saved_in=pending.saved_in,
        is_session=pending.is_session,
        **values,
    )


def _sides(hunk: Hunk) -> tuple[int, list[str]]:
    """Return the line and the three versions of a place: now, as the step wrote it, before it."""
    return hunk.line, ["\n".join(side[:_MAX_LINES]) for side in hunk.texts]


def _page(
    site: Site, key: str, target: str, steps: list[Any], *, status: int = 200, **values: Any
) -> Response:
    values = {"name": "", "why": "", "report": None, **values}
    return site.page("revert.html", status, key=key, target=target, steps=steps, **values)
