"""Session: an agent at work that can always resume, roll back and account for what it did outside.

Owns the verbs and what they share; each step is in a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from agent_checkpoint.core.log import Log
from agent_checkpoint.core.stateful import is_stateful
from agent_checkpoint.errors import CheckpointError, InvalidInputError
from agent_checkpoint.manager.aio import wait_for
from agent_checkpoint.manager.subjects import check_text
from agent_checkpoint.records import check_key, show
from agent_checkpoint.session.approvals import Approvals
from agent_checkpoint.session.calls import Calls
from agent_checkpoint.session.current import closed, enter, leave, opened
from agent_checkpoint.session.effects import Effects
from agent_checkpoint.session.files import PART as FILES
from agent_checkpoint.session.files import Files
from agent_checkpoint.session.meta import PART, Meta
from agent_checkpoint.session.opening import Opening, manager_of
from agent_checkpoint.session.report import RollbackReport, standing_notice
from agent_checkpoint.session.rollback import POLICIES, Rollback, find_target, last_move
from agent_checkpoint.session.saving import IN_FLIGHT, Saving
from agent_checkpoint.session.tasks import Tasks
from agent_checkpoint.store.ledger import APPROVED, DENIED, Effect, Epoch, Ledger
from agent_checkpoint.store.lookup import find

if TYPE_CHECKING:
    from agent_checkpoint.workspace.diff import WorkspaceDiff
    from agent_checkpoint.workspace.workspace import Workspace

AGENT, MESSAGES, CALLS, TASKS = "agent", "messages", "calls", "tasks"
_OWN = frozenset({AGENT, MESSAGES, CALLS, TASKS, FILES, PART})

Self = TypeVar("Self", bound="Session")


class Session:
    """An agent at work: state, conversation, calls, tasks and files, saved as one."""

    _meta: Meta
    _saving: Saving
    _ledger: Ledger
    _epoch: Epoch
    _files: Files | None

    def __init__(
        self,
        key: str,
        *,
        agent: Any = None,
        workspace: str | os.PathLike[str] | Workspace | None = None,
        store: Any = None,
        parts: Mapping[str, Any] | None = None,
        every: str | int = "tool",
        on_drift: str = "keep",
        rebind: bool = False,
    ) -> None:
        """Open a session, or resume it where it stopped.

        Args:
            key: names it, and its line of checkpoints.
            agent: a Stateful; it gets the state that it had.
            workspace: the directory it works in; the one it had if not given.
            store: a path, a store URL or a CheckpointManager; the user's own store if not given.
            parts: further Statefuls, by name.
            every: when to save: after each `tool`, after each `task`, after every n tools, or only
                when it is said: `manual`.
            on_drift: what to do if files have changed since: `keep` them, `restore` or `raise`.
            rebind: go on in another directory, with the files that are there.

        Raises:
            InvalidInputError: an option makes no sense, or the workspace is another.
            StateError: a part cannot be loaded.
            WorkspaceError: the workspace cannot be used, or has changed.
            StorageError: the store failed.
        """
        self.key = check_key(key)
        self.every = _checked_every(every)
        self.agent = agent
        self.messages: Log[Any] = Log()
        """The conversation."""
        self.calls: Log[Any] = Log()
        """Every call of a tool, with its arguments and its result or error."""
        self.tasks = Tasks(self)
        self.resumed = False
        """Whether it goes on from a checkpoint."""
        self.drift: WorkspaceDiff | None = None
        """How the files had changed since the last checkpoint, if they had."""
        self._parts = _checked_parts(agent, parts)
        self._files = None
        self._new_parts: list[str] = []
        self._idle_parts: list[str] = []
        self._tokens: list[Any] = []
        self._is_open = False
        self.manager, self._owns_manager = manager_of(store)
        try:
            Opening(self, on_drift=on_drift, rebind=rebind).run(workspace)
        except BaseException:
            self._let_go()
            raise
        self._effects = Effects(self._ledger, self._meta, self._epoch)
        self._calls = Calls(self)
        self._is_open = True
        opened(self)
        self._effects.find_out()

    def __repr__(self) -> str:
        return f"<Session {self.key!r} on {self.manager.store.backend!r}>"

    # -- what there is ---------------------------------------------------------------------------

    @property
    def workspace(self) -> Workspace | None:
        """The directory it works in."""
        return None if self._files is None else self._files.workspace

    @property
    def head(self) -> str:
        """The id of the last checkpoint."""
        return self._saving.head_id

    @property
    def effects(self) -> list[Effect]:
        """What this session did outside, in order, with what became of it."""
        self._ledger.refresh()
        return [item for item in self._ledger.effects.values() if self._effects.is_ours(item)]

    @property
    def approvals(self) -> Approvals:
        """The requests for approval in this session's store."""
        return Approvals(self.manager.store)

    @property
    def notices(self) -> list[str]:
        """What the agent has to be told, in words: what stands outside, and what is not known."""
        self._ledger.refresh()
        effects = self._ledger.effects
        told = {name: effects[name] for name in self._meta.standing if name in effects}
        told.update({effect.id: effect for effect in self._effects.unknown()})
        found = [standing_notice(effect) for effect in told.values() if effect.stands]
        if self.drift is not None:
            number = len(self.drift.added) + len(self.drift.removed) + len(self.drift.changed)
            found.append(f"{number} files were changed by others since the last checkpoint.")
        if self._files is not None and self._files.workspace.recovered is not None:
            found.append("A restore of the files that was interrupted has been finished.")
        for words, names in (
            ("Tasks that are new", self.tasks.added),
            ("Tasks of the checkpoint that the code does not name", self.tasks.removed),
            ("Parts that the checkpoint did not have", self._new_parts),
        ):
            if names and self.resumed:
                found.append(f"{words}: {', '.join(names)}.")
        return found

    def history(self, n: int | None = None) -> list[dict[str, Any]]:
        """Return the newest `n` checkpoints, or all, newest first. Raises as the manager does."""
        return self.manager.history(self.key, n)

    # -- save ------------------------------------------------------------------------------------

    def save(
        self,
        *,
        label: str | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> str:
        """Save all parts as one checkpoint, and return its id.

        Raises:
            ConflictError: the session was opened elsewhere since.
            StateError: a value cannot be captured; the message names its path.
            WorkspaceError: the files cannot be read.
            StorageError: the store failed; nothing was acknowledged.
        """
        self._check_open()
        return self._save(label=label, tags=tags, metrics=metrics)

    async def asave(self, **options: Any) -> str:
        """Do as `save` does, for asyncio: the state is taken at the call, the rest awaited."""
        self._check_open()
        with self._saving.lock:
            future = self._saving.submit(self._draft(**options))
        return await wait_for(future)

    # -- go back ---------------------------------------------------------------------------------

    def rollback(
        self,
        to: str | None = None,
        steps: int = 1,
        *,
        effects: str = "refuse",
        parts: Iterable[str] | None = None,
        keep_unseen: bool = False,
        dry_run: bool = False,
    ) -> RollbackReport:
        """Go back to a checkpoint; the present is saved first, and `undo` returns to it.

        Args:
            to: an id or short form (`key~2`, `key@17`); `steps` counts if not given.
            steps: how many checkpoints to go back.
            effects: what to do about things done outside since then that cannot be undone:
                `refuse`, `warn` to go back all the same, or `compensate` to undo what can be.
            parts: what goes back, such as `["workspace"]`; everything if not given.
            keep_unseen: leave files alone that came or changed since the last checkpoint.
            dry_run: only tell what would be done.

        Raises:
            RollbackRefusedError: something cannot be undone; `report` in it says what.
            NotFoundError: there is no such checkpoint.
            ConflictError: tools are running, or the session was opened elsewhere.
            StateError: the state of then does not fit; all is as it was.
        """
        self._check_open()
        if effects not in POLICIES:
            raise InvalidInputError(f"effects is {', '.join(POLICIES)}, not {show(effects)}.")
        target = find_target(self, to, steps)
        way = Rollback(self, target, parts=parts, keep_unseen=keep_unseen)
        return way.preview() if dry_run else way.run(effects)

    def undo(self) -> RollbackReport:
        """Take the last rollback, restore or adopt back. Raises as `rollback` does."""
        self._check_open()
        return Rollback(self, last_move(self)).run("warn")

    # -- the outside -----------------------------------------------------------------------------

    def resolve(
        self, effect_id: str, *, happened: bool, result: Any = None, note: str = ""
    ) -> None:
        """Say what a person found out about an effect of which nobody knew.

        Raises:
            NotFoundError: there is no such effect.
            EffectError: it is known what became of it.
        """
        self._effects.resolve(effect_id, happened=happened, result=result, note=note)

    def carry_out(self) -> list[dict[str, Any]]:
        """Make the calls that were approved; return what came of each answered request.

        Raises:
            NotFoundError: a tool was not imported here.
            CheckpointError: a call may not be made.
        """
        self._check_open()
        self._ledger.refresh()
        outcomes = []
        for request in list(self._ledger.requests.values()):
            if request.session != self.key or request.is_expired:
                continue
            row: dict[str, Any] = {"approval_id": request.id, "tool": request.tool}
            if request.status == APPROVED:
                with self._as_current():
                    outcomes.append({**row, "result": self._calls.carry_out(request)})
            elif request.status == DENIED:
                outcomes.append({**row, "denied": request.reason or ""})
        return outcomes

    # -- open and close --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the workspace and the store. Twice is fine. Saves nothing."""
        if self._is_open:
            self._is_open = False
            closed(self)
            self._let_go()

    def __enter__(self: Self) -> Self:
        self._check_open()
        self._tokens.append(enter(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self._tokens.pop())
        try:
            if self._is_open and self.every != "manual":
                self._save(label=None if kind is None else f"stopped by {kind.__name__}")
        except CheckpointError:
            if error is None:
                raise
        finally:
            self.close()

    async def __aenter__(self: Self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def _let_go(self) -> None:
        try:
            if self._files is not None:
                self._files.workspace.close()
        finally:
            if self._owns_manager:
                self.manager.close()

    # -- for the steps ---------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise InvalidInputError(f"The session {show(self.key)} is closed: open it again.")

    def _live_parts(self) -> dict[str, Any]:
        """Return the live objects that are saved, by the names of their parts."""
        parts: dict[str, Any] = {} if self.agent is None else {AGENT: self.agent}
        parts.update({MESSAGES: self.messages, CALLS: self.calls, TASKS: self.tasks})
        parts.update(self._parts)
        if self._files is not None:
            parts[FILES] = self._files
        return parts

    def _draft(self, *, kind: str = "save", **options: Any) -> Any:
        self._meta.in_flight = self._calls.in_flight if self._is_open else []
        self._meta.ledger = max(self._meta.ledger, self._ledger.seq)
        if self._meta.in_flight and kind == "save":
            kind = IN_FLIGHT
        return self._saving.draft(self._live_parts(), kind=kind, **options)

    def _save(self, **options: Any) -> str:
        with self._saving.lock:
            return self._saving.write(self._draft(**options)).id

    def _save_for_task(self, label: str, *, full: bool = False) -> str:
        if self.every == "manual":
            return self.head
        with self._looking_at_all_files(full):
            return self._save(label=label)

    def _is_due(self, nested: bool) -> bool:
        if nested or self.every in ("task", "manual"):
            return False
        return self.every == "tool" or self._calls.finished % int(self.every) == 0

    def _save_after_call(self, *, nested: bool) -> None:
        if self._is_due(nested):
            self._save()

    async def _asave_after_call(self, *, nested: bool) -> None:
        if self._is_due(nested):
            await self.asave()

    @contextmanager
    def _looking_at_all_files(self, full: bool = True) -> Iterator[None]:
        """Have every file looked at: some changes raise no event."""
        if self._files is None:
            yield
            return
        self._files.full = full
        try:
            yield
        finally:
            self._files.full = False

    @contextmanager
    def _as_current(self) -> Iterator[None]:
        token = enter(self)
        try:
            yield
        finally:
            leave(token)

    def _take_meta(self, meta: Meta) -> None:
        self._meta = self._saving.meta = self._effects.meta = meta

    def _restart(self, task: str, began: str | None) -> None:
        """Go back to the start of a task that is run again; answers to requests stay."""
        if began is not None:
            target = find(self.manager.store, began)
        else:  # the checkpoint at its start is the last that the session itself has saved
            passing = ("open", "drift", "safety", IN_FLIGHT)
            entries = self.manager.store.newest_first(self.key)
            target = next(item for item in entries if item.kind not in passing)
        Rollback(self, target, label=f"task {task} again", voids=False).run("warn")


def _checked_every(every: str | int) -> str | int:
    is_number = isinstance(every, int) and not isinstance(every, bool) and every >= 1
    if every not in ("tool", "task", "manual") and not is_number:
        raise InvalidInputError(
            f"every is 'tool', 'task', 'manual' or a number of tools, not {show(every)}."
        )
    return every


def _checked_parts(agent: Any, parts: Mapping[str, Any] | None) -> dict[str, Any]:
    found = dict(parts or {})
    for name, part in {AGENT: agent, **found}.items():
        check_text(name, "A part's name")
        if name in found and name in _OWN:
            raise InvalidInputError(f"A session has a part {name!r} of its own: name it otherwise.")
        if part is not None and not is_stateful(part):
            raise InvalidInputError(
                f"{name} has no state_dict() and load_state_dict(). Derive its class from "
                "Checkpointable."
            )
    return found
