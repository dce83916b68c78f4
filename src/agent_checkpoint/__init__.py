"""Save, restore, roll back, fork and resume everything an AI agent works on.

Lists the public names with the module that defines each. A module is imported when one of its names
is first used, so that `import agent_checkpoint` stays fast.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # type checkers assume True; importing `typing` would take 10 ms
if TYPE_CHECKING:
    from typing import Any

    from agent_checkpoint import transcripts as transcripts
    from agent_checkpoint.backends.base import Backend as Backend
    from agent_checkpoint.backends.file import FileBackend as FileBackend
    from agent_checkpoint.backends.memory import MemoryBackend as MemoryBackend
    from agent_checkpoint.backends.wrapper import WrapperBackend as WrapperBackend
    from agent_checkpoint.backends.wrappers.counting import CountingBackend as CountingBackend
    from agent_checkpoint.backends.wrappers.object_cache import CacheBackend as CacheBackend
    from agent_checkpoint.backends.wrappers.read_only import ReadOnlyBackend as ReadOnlyBackend
    from agent_checkpoint.backends.wrappers.retry import RetryBackend as RetryBackend
    from agent_checkpoint.core.checkpointable import Checkpointable as Checkpointable
    from agent_checkpoint.core.class_names import register_alias as register_alias
    from agent_checkpoint.core.codec.type_registry import register_type as register_type
    from agent_checkpoint.core.external_snapshot import External as External
    from agent_checkpoint.core.log import Log as Log
    from agent_checkpoint.core.migrations import register_migration as register_migration
    from agent_checkpoint.core.shared import Shared as Shared
    from agent_checkpoint.core.stateful import LoadResult as LoadResult
    from agent_checkpoint.core.stateful import StateDict as StateDict
    from agent_checkpoint.core.stateful import Stateful as Stateful
    from agent_checkpoint.errors import ApprovalDeniedError as ApprovalDeniedError
    from agent_checkpoint.errors import CheckpointError as CheckpointError
    from agent_checkpoint.errors import ConflictError as ConflictError
    from agent_checkpoint.errors import EffectConflictError as EffectConflictError
    from agent_checkpoint.errors import EffectError as EffectError
    from agent_checkpoint.errors import EffectUnknownError as EffectUnknownError
    from agent_checkpoint.errors import EncryptionKeyError as EncryptionKeyError
    from agent_checkpoint.errors import FormatError as FormatError
    from agent_checkpoint.errors import ImmutableError as ImmutableError
    from agent_checkpoint.errors import IntegrityError as IntegrityError
    from agent_checkpoint.errors import InvalidInputError as InvalidInputError
    from agent_checkpoint.errors import MigrationError as MigrationError
    from agent_checkpoint.errors import NotFoundError as NotFoundError
    from agent_checkpoint.errors import RestoreIncompleteError as RestoreIncompleteError
    from agent_checkpoint.errors import RevertConflictError as RevertConflictError
    from agent_checkpoint.errors import RollbackRefusedError as RollbackRefusedError
    from agent_checkpoint.errors import StateError as StateError
    from agent_checkpoint.errors import StateMismatchError as StateMismatchError
    from agent_checkpoint.errors import StorageError as StorageError
    from agent_checkpoint.errors import Suspended as Suspended
    from agent_checkpoint.errors import UnsafeWorkspaceError as UnsafeWorkspaceError
    from agent_checkpoint.errors import UntrustedDataError as UntrustedDataError
    from agent_checkpoint.errors import WorkspaceError as WorkspaceError
    from agent_checkpoint.history_row import HistoryRow as HistoryRow
    from agent_checkpoint.manager.decorator import checkpoint as checkpoint
    from agent_checkpoint.manager.manager import CheckpointManager as CheckpointManager
    from agent_checkpoint.manager.record_log import RecordLog as RecordLog
    from agent_checkpoint.records import Checkpoint as Checkpoint
    from agent_checkpoint.session.branch.trial import Trial as Trial
    from agent_checkpoint.session.current_session import current_workspace as current_workspace
    from agent_checkpoint.session.effects.approvals import Approvals as Approvals
    from agent_checkpoint.session.effects.effect_context import ApprovalQuestion as ApprovalQuestion
    from agent_checkpoint.session.effects.effect_context import EffectContext as EffectContext
    from agent_checkpoint.session.explore.backtrack import Backtracking as Backtracking
    from agent_checkpoint.session.explore.backtrack import backtrack as backtrack
    from agent_checkpoint.session.explore.explore import explore as explore
    from agent_checkpoint.session.explore.outcome import Outcome as Outcome
    from agent_checkpoint.session.explore.outcome import Summary as Summary
    from agent_checkpoint.session.revert.revert import RevertReport as RevertReport
    from agent_checkpoint.session.revert.step_removal import RevertConflict as RevertConflict
    from agent_checkpoint.session.rollback.rollback_report import RollbackReport as RollbackReport
    from agent_checkpoint.session.session import Branch as Branch
    from agent_checkpoint.session.session import Session as Session
    from agent_checkpoint.session.session_list import SessionRow as SessionRow
    from agent_checkpoint.session.session_list import list_sessions as list_sessions
    from agent_checkpoint.session.steps.step import Step as Step
    from agent_checkpoint.session.steps.step import StepCall as StepCall
    from agent_checkpoint.session.subagent import Subagent as Subagent
    from agent_checkpoint.session.tasks import Task as Task
    from agent_checkpoint.session.tasks import Tasks as Tasks
    from agent_checkpoint.session.tools.recorded_calls import Divergence as Divergence
    from agent_checkpoint.session.tools.tool import tool as tool
    from agent_checkpoint.store.archive.store_copy import CopyReport as CopyReport
    from agent_checkpoint.store.archive.store_copy import copy as copy
    from agent_checkpoint.store.ledger.ledger_calls import ApprovalRequest as ApprovalRequest
    from agent_checkpoint.store.ledger.ledger_calls import Effect as Effect
    from agent_checkpoint.store.maintenance.gc import GcReport as GcReport
    from agent_checkpoint.store.maintenance.purge import PurgeReport as PurgeReport
    from agent_checkpoint.store.maintenance.retention import KeepBest as KeepBest
    from agent_checkpoint.store.maintenance.retention import KeepEvery as KeepEvery
    from agent_checkpoint.store.maintenance.retention import KeepLatest as KeepLatest
    from agent_checkpoint.store.maintenance.retention import KeepNewerThan as KeepNewerThan
    from agent_checkpoint.store.maintenance.retention import KeepTagged as KeepTagged
    from agent_checkpoint.store.maintenance.retention import Policy as Policy
    from agent_checkpoint.store.maintenance.verify import VerifyReport as VerifyReport
    from agent_checkpoint.trajectory.bisection import Bisection as Bisection
    from agent_checkpoint.trajectory.bisection import bisect as bisect
    from agent_checkpoint.trajectory.line_origins import BlameLine as BlameLine
    from agent_checkpoint.trajectory.line_origins import blame as blame
    from agent_checkpoint.trajectory.probes import Probe as Probe
    from agent_checkpoint.trajectory.probes import ProbeBranch as ProbeBranch
    from agent_checkpoint.trajectory.replaying import ReplayOutcome as ReplayOutcome
    from agent_checkpoint.trajectory.replaying import StateDifference as StateDifference
    from agent_checkpoint.trajectory.replaying import replay as replay
    from agent_checkpoint.workspace.restore.plan import Plan as Plan
    from agent_checkpoint.workspace.tree.snapshot import PathNote as PathNote
    from agent_checkpoint.workspace.tree.snapshot import Tree as Tree
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff as WorkspaceDiff
    from agent_checkpoint.workspace.workspace import Fork as Fork
    from agent_checkpoint.workspace.workspace import Workspace as Workspace

__version__ = "0.2.0.dev0"

_OWNERS = {
    "backends.base": ("Backend",),
    "backends.file": ("FileBackend",),
    "backends.memory": ("MemoryBackend",),
    "backends.wrapper": ("WrapperBackend",),
    "backends.wrappers.counting": ("CountingBackend",),
    "backends.wrappers.object_cache": ("CacheBackend",),
    "backends.wrappers.read_only": ("ReadOnlyBackend",),
    "backends.wrappers.retry": ("RetryBackend",),
    "core.checkpointable": ("Checkpointable",),
    "core.class_names": ("register_alias",),
    "core.codec.type_registry": ("register_type",),
    "core.external_snapshot": ("External",),
    "core.log": ("Log",),
    "core.migrations": ("register_migration",),
    "core.shared": ("Shared",),
    "core.stateful": ("LoadResult", "StateDict", "Stateful"),
    "errors": (
        "ApprovalDeniedError",
        "CheckpointError",
        "ConflictError",
        "EffectConflictError",
        "EffectError",
        "EffectUnknownError",
        "EncryptionKeyError",
        "FormatError",
        "ImmutableError",
        "IntegrityError",
        "InvalidInputError",
        "MigrationError",
        "NotFoundError",
        "RestoreIncompleteError",
        "RevertConflictError",
        "RollbackRefusedError",
        "StateError",
        "StateMismatchError",
        "StorageError",
        "Suspended",
        "UnsafeWorkspaceError",
        "UntrustedDataError",
        "WorkspaceError",
    ),
    "history_row": ("HistoryRow",),
    "manager.decorator": ("checkpoint",),
    "manager.manager": ("CheckpointManager",),
    "manager.record_log": ("RecordLog",),
    "records": ("Checkpoint",),
    "session.branch.trial": ("Trial",),
    "session.current_session": ("current_workspace",),
    "session.effects.approvals": ("Approvals",),
    "session.effects.effect_context": ("ApprovalQuestion", "EffectContext"),
    "session.explore.backtrack": ("Backtracking", "backtrack"),
    "session.explore.explore": ("explore",),
    "session.explore.outcome": ("Outcome", "Summary"),
    "session.tools.recorded_calls": ("Divergence",),
    "session.revert.revert": ("RevertReport",),
    "session.revert.step_removal": ("RevertConflict",),
    "session.rollback.rollback_report": ("RollbackReport",),
    "session.session": ("Branch", "Session"),
    "session.session_list": ("SessionRow", "list_sessions"),
    "session.steps.step": ("Step", "StepCall"),
    "session.tasks": ("Task", "Tasks"),
    "session.subagent": ("Subagent",),
    "session.tools.tool": ("tool",),
    "store.archive.store_copy": ("CopyReport", "copy"),
    "store.ledger.ledger_calls": ("ApprovalRequest", "Effect"),
    "store.maintenance.gc": ("GcReport",),
    "store.maintenance.purge": ("PurgeReport",),
    "store.maintenance.retention": (
        "KeepBest",
        "KeepEvery",
        "KeepLatest",
        "KeepNewerThan",
        "KeepTagged",
        "Policy",
    ),
    "store.maintenance.verify": ("VerifyReport",),
    "trajectory.bisection": ("Bisection", "bisect"),
    "trajectory.line_origins": ("BlameLine", "blame"),
    "trajectory.probes": ("Probe", "ProbeBranch"),
    "trajectory.replaying": ("ReplayOutcome", "StateDifference", "replay"),
    "transcripts": ("transcripts",),  # the module itself
    "workspace.restore.plan": ("Plan",),
    "workspace.tree.snapshot": ("PathNote", "Tree"),
    "workspace.tree.workspace_diff": ("WorkspaceDiff",),
    "workspace.workspace": ("Fork", "Workspace"),
}
_MODULE_OF = {name: module for module, names in _OWNERS.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if len(sys._current_frames()) > 1:  # another thread may fork meanwhile
        from agent_checkpoint.backends.os_support.os_fork import block_forks

        with block_forks():
            owner = import_module(f"{__name__}.{module}")
    else:
        owner = import_module(f"{__name__}.{module}")
    value = owner if module == name else getattr(owner, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
