"""Session: an agent whose state, files and external side effects are checkpointed together.

Owns the public methods and the forks. `session_state` holds what the parts of a session share; each
operation has its own module.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.stateful import is_stateful
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    ImmutableError,
    InvalidInputError,
    StateError,
    Suspended,
    WorkspaceError,
)
from agent_checkpoint.manager.checkpoint_parts import check_text
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.options import (
    Conflicts,
    Driver,
    Every,
    ForkEffects,
    Merge,
    OnDrift,
    Pickles,
    Prices,
    Provider,
    RollbackEffects,
    SaveAfter,
    check_option,
)
from agent_checkpoint.records import Kind, check_key, draft_from, parse_checkpoint_id, short_repr
from agent_checkpoint.session.agent_scope import AGENT, COMPLETED, SUBAGENTS, AgentScope
from agent_checkpoint.session.current_session import (
    enter,
    leave,
    register_open,
    unregister,
)
from agent_checkpoint.session.session_open import SessionOpener, manager_for
from agent_checkpoint.session.session_state import RESERVED_PARTS, SessionState
from agent_checkpoint.session.subagent import SessionAgent, state_of
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.workspace.workspace import Fork, Workspace

if TYPE_CHECKING:
    from typing_extensions import Self

    from agent_checkpoint.history_row import HistoryRow
    from agent_checkpoint.redaction import Redact
    from agent_checkpoint.session.branch.session_fork import ForkPoint
    from agent_checkpoint.session.branch.trial import Trial
    from agent_checkpoint.session.effects.approvals import Approvals
    from agent_checkpoint.session.revert.revert import RevertReport
    from agent_checkpoint.session.rollback.rollback_report import RollbackReport
    from agent_checkpoint.store.ledger.ledger_calls import Effect
    from agent_checkpoint.store.store_argument import StoreLike
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff

_DRIFT_NAMED = 5
"""How many changed files a notice names."""

_NOT_ASSIGNED = defaultdict(
    lambda: "It is what the session reports.",
    key="Open another session: Session(key).",
    manager="Open the session with store=.",
    tasks="List tasks with session.tasks([…]).",
    calls="Tools append to it; rollback() and undo() take calls back.",
    workspace="Open the session with workspace=; rebind=True binds it to another directory.",
    head="Use rollback(to=…) or adopt().",
)
"""What to do instead of assigning a read-only attribute."""


class Session(SessionAgent):
    """State, conversation, tool calls, tasks and files of an agent, saved as one checkpoint."""

    _keeps_directory: ClassVar[bool] = True

    def __init__(
        self,
        key: str,
        *,
        agent: Any = None,
        workspace: str | os.PathLike[str] | Workspace | None = None,
        store: StoreLike | None = None,
        parts: Mapping[str, Any] | None = None,
        every: Every = "tool",
        on_drift: OnDrift = "keep",
        pickles: Pickles | None = None,
        redact: Redact | None = None,
        rebind: bool = False,
        only_at: str | None = None,
        provider: Provider | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Open a new session, or resume a session from its last checkpoint.

        Args:
            key: the key of the session and of its checkpoints.
            agent: a Stateful; resuming loads its saved state.
            workspace: the working directory; by default the recorded one.
            store: a path, a store URL, a Backend or a CheckpointManager; by default the user's
                default store.
            parts: additional Statefuls, by part name.
            every: when to save: after each `tool`, after each `task`, after every n tool calls, or
                `manual` for explicit saves only.
            on_drift: what to do with files that changed since the last checkpoint: `keep` them,
                `restore` the saved ones, or `raise`.
            pickles: values that have no JSON form are saved as pickles: `allow` it, `warn` once per
                class, or `refuse` the save. Default: the policy of the CheckpointManager, or
                `warn`.
            redact: what to replace by placeholders before anything is stored: `secrets` (common
                keys and tokens), a regular expression, a function of a string, or a list of them.
                Default: as the CheckpointManager does. Files of the workspace are not redacted.
            rebind: bind the session to this directory and keep its current files. Required for a
                non-empty directory if the session is bound to another one, was imported, or has
                no valid signature (HMAC) under your secret.
            only_at: the expected head; any other head is a conflict.
            provider: the model API of the conversation: `anthropic`, `openai`, `openai-responses`
                or `gemini`. Resuming, rolling back and assigning `messages` repair the
                conversation if this API would refuse it; `notices` lists the changes.
            prices: prices per million tokens, by model: `input`, `output`, and optionally `cached`
                and `cache_written`.

        Raises:
            ConflictError: the head is not `only_at`.
            InvalidInputError: an option is invalid, or the session is bound to another workspace.
            StateError: a part cannot be loaded.
            WorkspaceError: the workspace cannot be used, or it changed and `on_drift` is `raise`.
            StorageError: the store failed.
        """
        check_key(key)
        _check_every(every)
        if provider is not None:
            check_option("provider", provider, Provider)
        if prices:
            with block_forks():
                from agent_checkpoint.session.loop.usage import check_prices

            check_prices(prices)
        extra = _checked_parts(agent, parts)
        manager, self._owns_manager = manager_for(store, pickles, redact)
        state = SessionState(
            key, manager, every, AgentScope(agent), extra, keeps_directory=self._keeps_directory
        )
        state.prices = prices or {}
        state.root.provider = provider
        super().__init__(state, state.root)
        self._tokens: list[Any] = []
        try:
            SessionOpener(state, on_drift=on_drift, rebind=rebind, only_at=only_at).run(workspace)
        except BaseException:
            self._release()
            raise
        state.is_open = True
        register_open(self._tools, is_fork=not self._keeps_directory)
        state.verify_unknown_effects()
        if state.resumed:
            self._tool_calls.after_restore()

    def __repr__(self) -> str:
        return f"<Session {self.key!r} on {self.manager.store.backend!r}>"

    def __setattr__(self, name: str, value: Any) -> None:
        own = getattr(type(self), name, None)
        if isinstance(own, property) and own.fset is None:
            raise ImmutableError(f"session.{name} cannot be assigned. {_NOT_ASSIGNED[name]}")
        super().__setattr__(name, value)

    # -- state -----------------------------------------------------------------------------------

    @property
    def key(self) -> str:
        """The key of the session and of its checkpoints."""
        return self._state.key

    @property
    def manager(self) -> CheckpointManager:
        """The manager of its store."""
        return self._state.manager

    @property
    def every(self) -> Every:
        """When the session saves itself."""
        return self._state.every

    @every.setter
    def every(self, every: Every) -> None:
        _check_every(every)
        self._state.every = every

    @property
    def resumed(self) -> bool:
        """Whether the session was resumed from a checkpoint."""
        return self._state.resumed

    @property
    def drift(self) -> WorkspaceDiff | None:
        """File changes between the last checkpoint and the open of the session, if any."""
        return self._state.drift

    @property
    def workspace(self) -> Workspace | None:
        """The working directory."""
        return self._state.workspace

    @property
    def head(self) -> str:
        """The id of the last checkpoint."""
        return self._state.writer.head_id

    @property
    def effects(self) -> list[Effect]:
        """The external side effects of this session, in order, with their outcomes."""
        ledger = self._state.ledger
        ledger.refresh()
        known = ledger.all_effects()
        return [effect for effect in known if self._state.effects.is_ours(effect)]

    @property
    def approvals(self) -> Approvals:
        """The approval requests in this session's store."""
        with block_forks():
            from agent_checkpoint.session.effects.approvals import Approvals  # slow to load

        return Approvals(self.manager)

    @property
    def notices(self) -> list[str]:
        """Messages for the agent: effects that its state does not contain, and problems."""
        with block_forks():
            from agent_checkpoint.formatting import format_count
            from agent_checkpoint.session.rollback.rollback_report import (
                compensated_notice,
                still_compensated,
                unseen_effect_notice,
            )
            from agent_checkpoint.session.steps.line import reverts_since_work

        state, ours = self._state, self.effects
        known, record = state.ledger.state.effects, state.record
        unseen = {name: known[name] for name in record.standing if name in known}
        unseen.update({effect.id: effect for effect in state.effects.unknown()})
        notices = [unseen_effect_notice(effect) for effect in unseen.values() if effect.stands]
        notices += map(compensated_notice, still_compensated(state.ledger, record.gone))
        notices += state.problems
        if state.writer.head is not None:
            reverts = reverts_since_work(self.manager.store, state.writer.head)
            notices += [f"The file changes of {words} were taken out." for words in reverts]
        if state.writer.redacted:
            notices.append(
                f"redact= replaced {format_count(state.writer.redacted, 'value')} by placeholders "
                "in the saved checkpoints. A restore brings back the placeholders."
            )
        notices += [
            f"{effect.words} succeeded after it had been recorded as failed, and may have been "
            f"executed again since. A person must check it. ({effect.note})"
            for effect in ours
            if effect.is_late and effect.stands
        ]
        if state.drift is not None:
            drift = state.drift
            names = [*drift.added, *drift.removed, *drift.changed, *drift.renamed]
            number, shown = len(names), ", ".join(map(short_repr, names[:_DRIFT_NAMED]))
            kept = (
                "were kept" if state.has_kept_drift else "were restored as the checkpoint has them"
            )
            notices.append(
                f"{number} file{'s' if number != 1 else ''} changed since the last checkpoint, by "
                f"another process or by an interrupted tool: {shown}"
                f"{', …' if number > _DRIFT_NAMED else ''}. The files {kept}."
            )
        if state.workspace is not None:
            if state.workspace.recovered is not None:
                notices.append("An interrupted restore of the files was completed.")
            notices += state.workspace.notices
        for words, names in (
            ("New tasks, not in the checkpoint", self.tasks.added),
            ("Tasks in the checkpoint that the code no longer lists", self.tasks.removed),
            ("New parts, not in the checkpoint", state.new_parts),
            ("Sub-agents that have not finished and are not open yet", self._left_subagents()),
        ):
            if names and state.resumed:
                notices.append(f"{words}: {', '.join(names)}.")
        return notices

    def _left_subagents(self) -> list[str]:
        """Return the paths of unfinished sub-agents that are not open, apart from inner ones."""
        state, head = self._state, self._state.writer.head
        if head is None or not state.resumed:
            return []
        with block_forks():
            from agent_checkpoint.session.subagent_list import list_subagents

        rows = list_subagents(self.manager.store, head)
        return [
            row.path
            for row in rows
            if row.status != COMPLETED and row.path not in state.subagents and "/" not in row.path
        ]

    # -- history ---------------------------------------------------------------------------------

    def history(self, n: int | None = None) -> list[HistoryRow]:
        """Return the newest `n` checkpoints, or all, newest first.

        Raises the same errors as `CheckpointManager.history`.
        """
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
            ConflictError: another process has opened the session since (fencing).
            StateError: a value cannot be captured; the message contains its path.
            WorkspaceError: the files cannot be read.
            StorageError: the store failed; the save is not confirmed.
        """
        self._state.check_open()
        return self._state.save(label=label, tags=tags, metrics=metrics)

    async def asave(self, **options: Any) -> str:
        """Save from asyncio: the state is captured at the call, the write is awaited."""
        self._state.check_open()
        return await self._state.asave(**options)

    # -- roll back -------------------------------------------------------------------------------

    def rollback(
        self,
        to: str | None = None,
        steps: int = 1,
        *,
        effects: RollbackEffects = "refuse",
        parts: Iterable[str] | None = None,
        keep_unseen: bool = False,
        dry_run: bool = False,
        only_if: RollbackReport | None = None,
    ) -> RollbackReport:
        """Roll back to a checkpoint. A safety checkpoint is saved first; `undo` returns to it.

        Args:
            to: an id or short form (`~2`, `@17`); by default, `steps` is used.
            steps: how many checkpoints to go back.
            effects: policy for external side effects since the target: `refuse` if one is
                irreversible or its outcome is unknown, `warn` to roll back anyway, or
                `compensate` to run the compensations (`undo=`) first.
            parts: the parts to roll back, such as `["workspace"]`; all by default.
            keep_unseen: keep files that were created or changed since the last checkpoint.
            dry_run: return the report and change nothing.
            only_if: the report of a dry run; refuse if files or effects changed since.

        Raises:
            RollbackRefusedError: the policy refuses, or a compensation failed; see its `report`.
            NotFoundError: there is no such checkpoint.
            ConflictError: tools are running, another process has opened the session, or `only_if`
                is out of date.
            StateError: the saved state cannot be loaded; nothing was changed.
        """
        with block_forks():
            from agent_checkpoint.session.rollback.rollback import Rollback  # slow to load
            from agent_checkpoint.session.rollback.rollback_target import find_target

        self._state.check_open()
        check_option("effects", effects, RollbackEffects)
        target = find_target(self._state, to, steps)
        operation = Rollback(self._state, target, parts=parts, keep_unseen=keep_unseen)
        return operation.preview() if dry_run else operation.run(effects, only_if)

    def undo(self) -> RollbackReport:
        """Undo the last rollback, restore, revert or adopt. Raises the errors of `rollback`."""
        with block_forks():
            from agent_checkpoint.session.rollback.rollback import Rollback  # slow to load
            from agent_checkpoint.session.rollback.rollback_target import undo_target

        self._state.check_open()
        return Rollback(self._state, undo_target(self.manager.store, self.key)).run("warn")

    def revert(
        self,
        step: str | Sequence[str],
        *,
        conflicts: Conflicts = "refuse",
        dry_run: bool = False,
        only_if: RevertReport | None = None,
    ) -> RevertReport:
        """Take the file changes of a step out and keep all later work; `undo` takes that back.

        State and conversation are not changed. A safety checkpoint is saved first. Changes that
        another session may have made at the same time are kept and listed.

        Args:
            step: the checkpoint that ends the step, such as `@17`; `@17..@20`, or a list, for more.
            conflicts: what to do where later work overlaps the step: `refuse`, or write conflict
                `markers` to the files.
            dry_run: return the report and change nothing.
            only_if: the report of a dry run; refuse if the files changed since.

        Raises:
            RevertConflictError: later work overlaps; nothing was changed. See its `report`.
            NotFoundError: there is no such checkpoint.
            InvalidInputError: the session has no files, or a rollback passed over the step.
            ConflictError: tools are running, another process has opened the session, or `only_if`
                is out of date.
            WorkspaceError: the files cannot be changed.
        """
        with block_forks():
            from agent_checkpoint.session.revert.revert import Revert  # rarely needed

        self._state.check_open()
        check_option("conflicts", conflicts, Conflicts)
        operation = Revert(self._state, step, conflicts)
        return operation.preview_revert() if dry_run else operation.revert(only_if)

    # -- fork ------------------------------------------------------------------------------------

    def fork(
        self,
        name: str,
        at: str | None = None,
        *,
        effects: ForkEffects = "refuse",
        agent: Callable[[], Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        driver: Driver = "auto",
    ) -> Branch:
        """Fork this session at a checkpoint, with a separate workspace.

        Args:
            name: the key of the fork.
            at: the checkpoint to fork; if not given, the current state is saved and forked.
            effects: `allow` or `refuse` irreversible tools in the fork.
            agent: creates the agent of the fork; by default, this session's agent is cloned.
            path: the directory of the fork; by default, a private one.
            driver: how files are forked; see `Workspace.fork`.

        Raises:
            ConflictError: the key already exists.
            NotFoundError: there is no such checkpoint.
            StateError: the agent cannot be copied.
            WorkspaceError: the files cannot be forked.
        """
        with block_forks():
            from agent_checkpoint.session.branch.session_fork import ForkPoint  # rarely needed

        self._state.check_open()
        label = f"fork {name}"
        point = ForkPoint(self._state, at=at, label=label, effects=effects, agent=agent)
        return create_branch(point, name, path=path, driver=driver)

    def adopt(self, branch: Session | Trial | str, *, merge: Merge | None = None) -> RollbackReport:
        """Adopt the last checkpoint of a fork as the head of this session; `undo` reverts it.

        Args:
            branch: an open fork, which is closed; a trial of `explore`; or a checkpoint id.
            merge: `files` merges the fork's file changes with those of this session since the fork;
                state, conversation and tasks of this session are not changed.

        Raises:
            ConflictError: this session changed since the fork, tools are running, or both sides
                changed the same files; the message lists them.
            InvalidInputError: `branch` is not a fork of this session.
            NotFoundError: the fork or the fork point was pruned.
        """
        with block_forks():
            from agent_checkpoint.session.branch.adopt import plan_adoption  # rarely needed
            from agent_checkpoint.session.branch.trial import Trial

        self._state.check_open()
        live = branch if isinstance(branch, Session) and state_of(branch).is_open else None
        if live is not None:
            state_of(live).check_idle("adopt it")
            live.save(label="adopted")
        if isinstance(branch, Trial) and branch.error is not None:
            raise InvalidInputError(
                f"The trial {short_repr(branch.key)} failed. To adopt its last checkpoint anyway, "
                f"call session.adopt({branch.key!r})."
            )
        head: Any = branch if isinstance(branch, str) else getattr(branch, "head", branch)
        if branch is None:  # a fork that never started has head None instead
            raise InvalidInputError("adopt takes a fork, a trial or a checkpoint id, not None.")
        report = plan_adoption(self._state, head, merge).run("warn")
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
            EffectError: the outcome is already known.
            InvalidInputError: the result cannot be encoded, or `pickles=` refuses it.
        """
        with block_forks():
            from agent_checkpoint.session.effects.outcomes import resolve_effect  # slow to load

        state = self._state
        resolve_effect(
            state.ledger,
            effect_id,
            happened=happened,
            result=result,
            note=note,
            policy=self.manager.policy,
        )
        with state.writer.lock:
            if happened and effect_id not in state.record.standing:
                state.record.standing.append(effect_id)  # the state does not contain its result yet

    # -- open and close --------------------------------------------------------------------------

    def close(self) -> None:
        """Close the workspace, the store and open forks. Only forks are saved. Idempotent."""
        state = self._state
        if state.is_open:
            with ExitStack() as stack:  # close each, even if another one fails
                stack.callback(self._release)
                for branch in list(state.branches):
                    stack.callback(branch.close)
                state.is_open = False
                unregister(self._tools)

    def _release(self) -> None:
        try:
            if self.workspace is not None:
                self.workspace.close()
        finally:
            if self._owns_manager:
                self.manager.close()

    def __enter__(self) -> Self:
        self._state.check_open()
        self._tokens.append(enter(self._tools))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self._tokens.pop())
        # A program that caught the interrupt has gone on: what it did since is saved.
        is_stopped = self._state.is_interrupted and not isinstance(error, (Exception, type(None)))
        try:
            if self._state.is_open and self.every != "manual" and not is_stopped:
                # A run that has only asked again for an approval leaves no more than its `open`.
                only_asked = isinstance(error, Suspended) and self._state.is_only_opened
                label = None if kind is None else f"stopped by {kind.__name__}"
                self._end(label, if_changed=only_asked)
        except CheckpointError:
            if error is None:
                raise
        finally:
            self.close()

    def _end(self, label: str | None = None, *, if_changed: bool = False) -> None:
        """Save the last checkpoint of a run."""
        self._state.save(kind=Kind.CLOSE, label=label, if_changed=if_changed)
        self._state.is_ended = True

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)


class Branch(Session):
    """A session forked from another. Its private directory is removed when it is closed."""

    _keeps_directory = False
    _parent: SessionState | None = None
    """The parent session in this process, which closes its forks when it is closed."""

    def __repr__(self) -> str:
        return f"<Branch {self.key!r} of {self._state.record.origin!r}>"

    def close(self) -> None:
        """Save the fork if needed, and remove its files. Idempotent.

        Raises:
            WorkspaceError: a file of the fork cannot be removed.
            StorageError: the store failed; the files are kept.
        """
        if not self._state.is_open:
            return
        workspace_error: CheckpointError | None = None
        if not self._state.is_ended and not self._state.is_interrupted:
            try:
                self._end()
            except (ConflictError, StateError):  # the state cannot be saved, but the files can
                if isinstance(self.workspace, Fork):
                    self.workspace.snapshot()
            except WorkspaceError as error:
                workspace_error = error
        super().close()
        if self._parent is not None and self in self._parent.branches:
            self._parent.branches.remove(self)
        if workspace_error is not None:
            raise workspace_error

    def _release(self) -> None:
        if isinstance(self.workspace, Fork):
            self.workspace.close(save=False)
        super()._release()


def create_branch(
    point: ForkPoint,
    key: str,
    *,
    path: str | os.PathLike[str] | None = None,
    driver: Driver = "auto",
) -> Branch:
    """Fork a session to a new key, and open the fork.

    Args:
        point: the checkpoint to fork.
        key: the key of the fork.
        path: the directory for its files; by default, a private one.
        driver: how files are forked; see `Workspace.fork`.

    Raises:
        ConflictError: the key already exists.
        StateError: the agent cannot be copied.
        WorkspaceError: the files cannot be forked.
    """
    parent = point.state
    if parent.manager.store.head(check_key(key)) is not None:
        raise ConflictError(f"The key {short_repr(key)} already exists. Choose another key.")
    agent, parts = point.copy_parts()
    files = point.fork_files(path, driver)
    try:
        branch = open_branch(
            parent.manager,
            point.checkpoint.id,
            key,
            agent=agent,
            parts=parts,
            workspace=files,
            every=parent.every,
            effects=point.effects,
            provider=parent.root.provider,
            prices=parent.prices,
        )
    except BaseException:
        if files is not None:
            files.close(save=False)
        raise
    if files is not None:
        files.end = branch.close
    parent.branches.append(branch)
    branch._parent = parent
    return branch


def open_branch(
    manager: CheckpointManager,
    point: str,
    key: str,
    *,
    effects: ForkEffects,
    restart: bool = False,
    **options: Any,
) -> Branch:
    """Fork a checkpoint to a new key, and open it as a session with the given options.

    With `restart`, an earlier fork of the checkpoint under this key is fenced off, and continues
    from the checkpoint again; the results of its external side effects are replayed.

    Raises:
        ConflictError: the key already exists.
        CheckpointError: the fork cannot be opened; if its key is new, it is deleted again.
    """
    parsed = parse_checkpoint_id(point)
    if parsed is None:
        raise InvalidInputError(f"{short_repr(point)} is not a checkpoint id.")
    is_new = True
    try:
        manager.fork(parsed.key, key, point)
    except ConflictError:
        head, source = manager.store.head(key), manager.store.read(parsed.key, parsed.seq)
        first = next(manager.store.entries(key, page=1, oldest_first=True), None)
        begun = None if first is None else read_checkpoint(key, *first)
        if not (restart and begun and source and head and begun.parents == (point,)):
            raise
        draft = draft_from(source, key, Kind.FORK)
        manager.store.write(draft, parents=(point,), after=head.seq)
        is_new = False
    try:
        branch = Branch(key, store=manager, rebind=True, **options)
    except CheckpointError:
        if is_new:
            manager.delete(key)
        raise
    state_of(branch).record.irreversible = effects == "allow"
    return branch


def _check_every(every: Every) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        check_option("every", every, SaveAfter, "a number of tool calls")


def _checked_parts(agent: Any, parts: Mapping[str, Any] | None) -> dict[str, Any]:
    checked = dict(parts or {})
    for name, part in {AGENT: agent, **checked}.items():
        check_text(name, "A part name")
        if name in checked and (name in RESERVED_PARTS or name.startswith(SUBAGENTS)):
            raise InvalidInputError(f"The part name {name!r} is reserved. Use another name.")
        if isinstance(part, type):
            raise InvalidInputError(f"{name} is the class {part.__name__}: pass an instance.")
        if part is not None and not is_stateful(part):
            raise InvalidInputError(
                f"{name} has no state_dict() and load_state_dict(). Derive its class from "
                "Checkpointable."
            )
    return checked
