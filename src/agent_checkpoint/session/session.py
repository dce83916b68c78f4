"""Session: an agent at work that can always resume, roll back and account for what it did outside.

Owns the verbs; what they share is in `work`, and each step in a file of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    Suspended,
)
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.checkpoint_writer import CLOSE
from agent_checkpoint.session.current_session import enter, leave, register_open, unregister
from agent_checkpoint.session.rollback.rollback import POLICIES, Rollback
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.rollback.rollback_target import find_target, undo_target
from agent_checkpoint.session.session_open import SessionOpener, manager_for
from agent_checkpoint.session.work import Work
from agent_checkpoint.store.ledger.ledger import APPROVED, DENIED, Request

if TYPE_CHECKING:
    from agent_checkpoint.session.branch.session_fork import Branch
    from agent_checkpoint.session.explore.outcome import Trial
    from agent_checkpoint.workspace.workspace import Workspace

Self = TypeVar("Self", bound="Session")


class Session(Work):
    """An agent at work: state, conversation, calls, tasks and files, saved as one."""

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
        only_at: str | None = None,
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
            only_at: the id of its head; if it has another one, nothing is done.

        Raises:
            ConflictError: its head is not the one of `only_at`.
            InvalidInputError: an option makes no sense, or the workspace is another.
            StateError: a part cannot be loaded.
            WorkspaceError: the workspace cannot be used, or has changed.
            StorageError: the store failed.
        """
        super().__init__(key, agent, parts, every)
        self.manager, self._owns_manager = manager_for(store)
        try:
            SessionOpener(self, on_drift=on_drift, rebind=rebind, only_at=only_at).run(workspace)
        except BaseException:
            self._release()
            raise
        self._is_open = True
        register_open(self)
        self._effects.verify_unknown()

    def __repr__(self) -> str:
        return f"<Session {self.key!r} on {self.manager.store.backend!r}>"

    # -- what there is ---------------------------------------------------------------------------

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
        return await self._asave(**options)

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
        only_if: RollbackReport | None = None,
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
            only_if: what `dry_run` told: if files or effects are others by now, nothing is done.

        Raises:
            RollbackRefusedError: something cannot be undone; `report` in it says what.
            NotFoundError: there is no such checkpoint.
            ConflictError: tools are running, the session was opened elsewhere, or it is not what
                `only_if` says.
            StateError: the state of then does not fit; all is as it was.
        """
        self._check_open()
        if effects not in POLICIES:
            raise InvalidInputError(f"effects is {', '.join(POLICIES)}, not {short_repr(effects)}.")
        target = find_target(self, to, steps)
        way = Rollback(self, target, parts=parts, keep_unseen=keep_unseen)
        return way.preview() if dry_run else way.run(effects, only_if)

    def undo(self) -> RollbackReport:
        """Take the last rollback, restore or adopt back. Raises as `rollback` does."""
        self._check_open()
        return Rollback(self, undo_target(self)).run("warn")

    # -- fork ------------------------------------------------------------------------------------

    def fork(
        self,
        name: str,
        at: str | None = None,
        *,
        effects: str = "refuse",
        agent: Callable[[], Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        driver: str = "auto",
    ) -> Branch:
        """Begin another session from one moment of this one, with files of its own.

        Args:
            name: its key.
            at: the checkpoint to begin from; the present, which is saved, if not given.
            effects: whether it may do what cannot be undone: `refuse` or `allow`.
            agent: makes its agent; this one's is cloned if not given.
            path: the directory for its files; a private one if not given.
            driver: how the files are forked; see `Workspace.fork`.

        Raises:
            ConflictError: the name is taken.
            NotFoundError: there is no such checkpoint.
            StateError: the agent cannot be copied.
            WorkspaceError: the files cannot be forked.
        """
        with block_forks():
            from agent_checkpoint.session.branch.session_fork import (
                SessionForker,  # which is built on this
            )

        self._check_open()
        label = f"fork {name}"
        forking = SessionForker(self, at=at, label=label, effects=effects, agent=agent)
        return forking.make(name, path=path, driver=driver)

    def adopt(self, branch: Session | Trial | str, *, merge: str | None = None) -> RollbackReport:
        """Make the end of a fork the present of this session; `undo` takes that back.

        Args:
            branch: the fork, which is closed; what explored it; or an id.
            merge: `files` joins the fork's edits of files with those that were made here since;
                state, conversation and tasks stay this session's.

        Raises:
            ConflictError: this session has gone on since, tools are running, or both sides have
                edited the same files; the message names them.
            InvalidInputError: it is no fork of this session.
            NotFoundError: it, or the moment of the fork, is not kept any more.
        """
        with block_forks():
            from agent_checkpoint.session.branch.adopt import plan_adoption  # needed by few
            from agent_checkpoint.session.explore.outcome import Trial

        self._check_open()
        live = branch if isinstance(branch, Session) and branch._is_open else None
        if live is not None:
            live._check_idle("adopt it")
            live.save(label="adopted")
        if isinstance(branch, Trial) and branch.error is not None:
            raise InvalidInputError(
                f"The trial {short_repr(branch.key)} failed. Its end is adopted all the same by "
                f"session.adopt({branch.key!r})."
            )
        head: Any = branch if isinstance(branch, str) else getattr(branch, "head", branch)
        if branch is None:  # and not a fork that never began
            raise InvalidInputError("A fork, a trial or an id is adopted, not None.")
        report = plan_adoption(self, head, merge).run("warn")
        if live is not None:
            live.close()
        return report

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
        if happened and effect_id not in self._record.standing:
            self._record.standing.append(effect_id)  # the agent does not know of it yet

    def carry_out(self) -> list[dict[str, Any]]:
        """Make the calls that were approved; return what came of each answered request.

        Each is a dict with `approval_id`, `tool`, and `result`, `error` or `denied`.

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
                outcomes.append({**row, **self._carry_out(request)})
            elif request.status == DENIED:
                outcomes.append({**row, "denied": request.reason or ""})
        return outcomes

    def _carry_out(self, request: Request) -> dict[str, Any]:
        try:
            with self._as_current():
                return {"result": self._tool_runner.carry_out(request)}
        except (Suspended, ConflictError, NotFoundError, StorageError):
            raise
        except Exception as error:  # of this call alone: the others are made all the same
            return {"error": f"{type(error).__name__}: {error}"}

    # -- open and close --------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the workspace and the store. Twice is fine. Saves nothing but its forks."""
        if self._is_open:
            with ExitStack() as stack:  # each of them, whatever befalls another
                stack.callback(self._release)
                for branch in list(self._branches):
                    stack.callback(branch.close)
                self._is_open = False
                unregister(self)

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
                self._end(None if kind is None else f"stopped by {kind.__name__}")
        except CheckpointError:
            if error is None:
                raise
        finally:
            self.close()

    def _end(self, label: str | None = None) -> None:
        """Save the end of a run."""
        self._save(kind=CLOSE, label=label)
        self._is_ended = True

    async def __aenter__(self: Self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)
