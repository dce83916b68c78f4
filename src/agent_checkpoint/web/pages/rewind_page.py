"""Rewind of a coding agent with preview and confirmation. Runs only what was previewed, once.

A rewind is refused if the session, its files or its conversation have changed since the preview, or
if the agent has the session open and the user did not agree to that.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.agents.rewind.rewind import Rewind, recover_rewind, trusted_note
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.present.rewind_words import (
    LIMITS,
    others_notice,
    resume_command,
    running_agent,
    sessions_since,
)
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.web.pages.confirmation import Pending, confirmation, keep, preview_page
from agent_checkpoint.web.pages.transcript_view import messages_in
from agent_checkpoint.web.plan_rows import plan_rows
from agent_checkpoint.web.rendering import Site, posted, query_params, required
from agent_checkpoint.web.state.lazy_state import StateReader
from agent_checkpoint.workspace.restore.plan import Plan, PlanChangedError

_LINES, _MESSAGES = 60, 3
"""The end of the conversation that a preview shows."""


class RewindPreview(NamedTuple):
    """What a rewind would do."""

    directory: str
    plan: Plan | None
    """The changes of the files; None if they are not rewound."""
    conversation: str | None
    """The change of the transcript; None if it does not change."""
    warning: str | None
    """What the conversation will lack, and what the resumed model hears."""
    missing: str | None
    """The reason why the checkpoint has no conversation."""
    not_mine: dict[str, str]
    """Files that are kept because others changed them, each with the reason."""
    changes_files: bool
    changes_conversation: bool
    starts_anew: bool

    @classmethod
    def of(cls, rewind: Rewind) -> RewindPreview:
        """Return the preview of a rewind. Scans the files, and changes nothing."""
        rewind.preview()
        return cls(
            rewind.directory,
            rewind.plan,
            rewind.transcript_change,
            rewind.warning,
            rewind.transcript_missing,
            rewind.not_mine,
            rewind.changes_files,
            rewind.changes_conversation,
            rewind.starts_anew,
        )

    def is_same_conversation(self, other: RewindPreview) -> bool:
        """Whether two previews change the conversation alike."""
        fields = ("conversation", "warning", "missing", "starts_anew")
        return all(getattr(self, name) == getattr(other, name) for name in fields)


class RewindReport(NamedTuple):
    """What a rewind has done."""

    preview: RewindPreview
    safety_id: str | None
    previous_transcript: str | None


class PendingRewind(Pending):
    """A previewed rewind, with its report after the confirmation."""

    page = "rewind_preview"

    def __init__(self, site: Site, target: Checkpoint, only: str, *, keep_git: bool, mine: bool):
        super().__init__()
        self.target = target
        self.note = trusted_note(site.store, target)
        self.only, self.keep_git, self.mine = only, keep_git, mine
        self.finished = recover_rewind(site.store, target.key)
        """What was said of an interrupted rewind that is completed now."""
        self.head = _head_id(site, target.key)
        with self.open(site) as rewind:
            self.preview = RewindPreview.of(rewind)
            reader = StateReader(site.store.backend)
            lines = rewind.conversation[-_LINES:]
            self.ending = messages_in(reader, self.note.agent, lines, 0)[-_MESSAGES:]
            """The last messages that the resumed model hears."""
            self.others = [] if mine else sessions_since(site.store, rewind, target)

    def open(self, site: Site) -> Rewind:
        """Return the rewind. Raises CheckpointError."""
        return Rewind(
            site.store,
            self.target,
            self.note,
            files=self.only != "conversation",
            conversation=self.only != "files",
            exclude=(".git",) if self.keep_git else (),
            mine=self.mine,
        )

    def run(self, site: Site, form: dict[str, str], name: str) -> Response | None:
        """Rewind, unless the agent has the session open. Raises PlanChangedError."""
        running = self._running()
        if running is not None and running.is_blocking and form.get("while_running") != "yes":
            return self.show(site, name, "refused", status=409)
        if _head_id(site, self.target.key) != self.head:
            raise PlanChangedError("The session has a newer checkpoint: it has")
        with self.open(site) as opened:
            if not RewindPreview.of(opened).is_same_conversation(self.preview):
                raise PlanChangedError("The conversation has")
            opened.run(self.preview.plan, as_previewed=True)
            done = self.preview._replace(plan=opened.plan, not_mine=opened.not_mine)
            self.done = RewindReport(done, opened.safety_id, opened.previous_transcript)
        return None

    def show(
        self, site: Site, name: str, step: str, *, status: int = 200, why: str = ""
    ) -> Response:
        """Return the page of a step."""
        done: RewindReport | None = self.done
        preview = self.preview if done is None else done.preview
        return _page(
            site,
            self.target,
            step=step,
            status=status,
            why=why,
            name=name,
            note=self.note,
            preview=preview,
            files=[] if preview.plan is None else plan_rows(preview.plan, preview.not_mine),
            running=self._running() if done is None else None,
            notices=[self.finished] if self.finished else [],
            ending=self.ending,
            others=self.others,
            others_words=others_notice(self.others) if self.others else "",
            mine=self.mine,
            done=done,
            resume=resume_command(self.note, starts_anew=preview.starts_anew),
            limits=LIMITS,
        )

    def _running(self) -> Any:
        changes = self.preview.changes_conversation
        return running_agent(self.target.key, changes_conversation=changes)


def rewind_page(site: Site, request: Request) -> Response:
    """Ask what to rewind. Scans no files."""
    target = site.find(required(query_params(request), "id"))
    note = trusted_note(site.store, target)
    running = running_agent(target.key, changes_conversation=True)
    return _page(site, target, step="ask", note=note, running=running)


@posted
def create_rewind_preview(site: Site, form: dict[str, str]) -> Response:
    """Create a preview, which scans the files and rewinds nothing."""
    target = site.find(required(form, "id"))
    only = form.get("only", "")
    pending = PendingRewind(
        site,
        target,
        only if only in ("files", "conversation") else "",
        keep_git="keep_git" in form,
        mine="mine" in form,
    )
    return keep(site, pending)


rewind_preview_page = preview_page(PendingRewind)
rewind = confirmation(PendingRewind)


def _head_id(site: Site, key: str) -> str | None:
    head = site.store.head(key)
    return None if head is None else head.id


def _page(
    site: Site, target: Checkpoint, *, step: str, status: int = 200, **values: Any
) -> Response:
    values = {"why": "", **values}
    return site.page("rewind.html", status, target=target, key=target.key, step=step, **values)
