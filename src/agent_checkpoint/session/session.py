"""Session: an agent whose state, files and external side effects are checkpointed together.

Owns the public methods. `work` holds the shared state; each operation has its own module.
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
    """State, conversation, tool calls, tasks and files of an agent, saved as one checkpoint."""

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
        """Open a new session, or resume one from its last checkpoint.

        Args:
            key: the key of the session and of its checkpoints.
            agent: a Stateful; resuming loads its saved state.
            workspace: the working directory; the recorded one if not given.
            store: a path, a store URL or a CheckpointManager; the user's default store if not
                given.
            parts: further Statefuls, by name.
            every: when to save: after each `tool`, after each `task`, after every n tool calls, or
                `manual` for explicit saves only.
            on_drift: what to do with files that changed since the last checkpoint: `keep` them,
                `restore` the saved ones, or `raise`.
            rebind: continue in another directory, with the files in it.
            only_at: the expected head; any other head is a conflict.

        Raises:
            ConflictError: the head is not `only_at`.
            InvalidInputError: an option is invalid, or the session has another workspace.
            StateError: a part cannot be loaded.
            WorkspaceError: the workspace cannot be used, or it changed and `on_drift` is `raise`.
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

    # -- history ---------------------------------------------------------------------------------

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
            ConflictError: the session was opened elsewhere since (fencing).
            StateError: a value cannot be captured; the message names its path.
            WorkspaceError: the files cannot be read.
            StorageError: the store failed; nothing was acknowledged.
        """
        self._check_open()
        return self._save(label=label, tags=tags, metrics=metrics)

    async def asave(self, **options: Any) -> str:
        """Save from asyncio: state is captured at the call, storage is awaited."""
        self._check_open()
        return await self._asave(**options)

    # -- roll back -------------------------------------------------------------------------------

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
        """Roll back to a checkpoint. A safety checkpoint is saved first; `undo` returns to it.

        Args:
            to: an id or short form (`key~2`, `key@17`); `steps` counts if not given.
            steps: how many checkpoints to go back.
            effects: policy for external side effects since the target: `refuse` if one is
                irreversible or its outcome is unknown, `warn` to roll back anyway, or
                `compensate` to run the compensations (`undo=`) first.
            parts: the parts to roll back, such as `["workspace"]`; all if not given.
            keep_unseen: keep files that were created or changed since the last checkpoint.
            dry_run: return the report and change nothing.
            only_if: the report of a dry run; refuse if files or effects changed since.

        Raises:
            RollbackRefusedError: the policy refuses, or a compensation failed; see its `report`.
            NotFoundError: there is no such checkpoint.
            ConflictError: tools are running, the session was opened elsewhere, or `only_if` is
                out of date.
            StateError: the saved state cannot be loaded; nothing was changed.
        """
        self._check_open()
        if effects not in POLICIES:
            raise InvalidInputError(f"effects is {', '.join(POLICIES)}, not {short_repr(effects)}.")
        target = find_target(self, to, steps)
        way = Rollback(self, target, parts=parts, keep_unseen=keep_unseen)
        return way.preview() if dry_run else way.run(effects, only_if)

    def undo(self) -> RollbackReport:
        """Undo the last rollback, restore or adopt. Raises as `rollback` does."""
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
        """Fork this session at a checkpoint, with a workspace of its own.

        Args:
            name: the key of the fork.
            at: the checkpoint to fork; if not given, the current state is saved and forked.
            effects: `allow` or `refuse` irreversible tools in the fork.
            agent: makes the agent of the fork; this session's is cloned if not given.
            path: the directory of the fork; a private one if not given.
            driver: how files are forked; see `Workspace.fork`.

        Raises:
            ConflictError: the key exists already.
            NotFoundError: there is no such checkpoint.
            StateError: the agent cannot be copied.
            WorkspaceError: the files cannot be forked.
        """
        with block_forks():
            from agent_checkpoint.session.branch.session_fork import (
                SessionForker,  # imports this module
            )

        self._check_open()
        label = f"fork {name}"
        forking = SessionForker(self, at=at, label=label, effects=effects, agent=agent)
        return forking.make(name, path=path, driver=driver)

    def adopt(self, branch: Session | Trial | str, *, merge: str | None = None) -> RollbackReport:
        """Adopt the last checkpoint of a fork as the head of this session; `undo` reverts it.

        Args:
            branch: an open fork, which is closed; a trial of `explore`; or a checkpoint id.
            merge: `files` merges the fork's file changes with those made here since the fork;
                state, conversation and tasks stay as they are here.

        Raises:
            ConflictError: this session changed since the fork, tools are running, or both sides
                changed the same files; the message names them.
            InvalidInputError: `branch` is no fork of this session.
            NotFoundError: the fork or the fork point was pruned.
        """
        with block_forks():
            from agent_checkpoint.session.branch.adopt import plan_adoption  # rarely needed
            from agent_checkpoint.session.explore.outcome import Trial

        self._check_open()
        live = branch if isinstance(branch, Session) and branch._is_open else None
        if live is not None:
            live._check_idle("adopt it")
            live.save(label="adopted")
        if isinstance(branch, Trial) and branch.error is not None:
            raise InvalidInputError(
                f"The trial {short_repr(branch.key)} failed. To adopt its last checkpoint anyway, "
                f"call session.adopt({branch.key!r})."
            )
        head: Any = branch if isinstance(branch, str) else getattr(branch, "head", branch)
        if branch is None:  # a fork that never started has head None instead
            raise InvalidInputError("adopt takes a fork, a trial or a checkpoint id, not None.")
        report = plan_adoption(self, head, merge).run("warn")
        if live is not None:
            live.close()
        return report

    # -- external side effects -------------------------------------------------------------------

    def resolve(
        self, effect_id: str, *, happened: bool, result: Any = None, note: str = ""
    ) -> None:
        """Record the outcome of an effect whose outcome is unknown.

        Raises:
            NotFoundError: there is no such effect.
            EffectError: the outcome is known already.
        """
        self._effects.resolve(effect_id, happened=happened, result=result, note=note)
        if happened and effect_id not in self._record.standing:
            self._record.standing.append(effect_id)  # the state does not contain its result yet

    def carry_out(self) -> list[dict[str, Any]]:
        """Make the approved calls, and return the outcome of each answered request.

        An outcome is a dict with `approval_id`, `tool`, and one of `result`, `error` or `denied`.

        Raises:
            NotFoundError: the module of a tool was not imported.
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
        except Exception as error:  # concerns this call only; the others still run
            return {"error": f"{type(error).__name__}: {error}"}

    # -- open and close --------------------------------------------------------------------------

    def close(self) -> None:
        """Close the workspace, the store and open forks. Only forks are saved. Idempotent."""
        if self._is_open:
            with ExitStack() as stack:  # close each, even if another one fails
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
        """Save the last checkpoint of a run."""
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
