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
    from agent_checkpoint.core.checkpointable import Checkpointable as Checkpointable
    from agent_checkpoint.core.class_names import register_alias as register_alias
    from agent_checkpoint.core.codec.type_registry import register_type as register_type
    from agent_checkpoint.core.external_snapshot import External as External
    from agent_checkpoint.core.log import Log as Log
    from agent_checkpoint.core.migrations import register_migration as register_migration
    from agent_checkpoint.core.stateful import Stateful as Stateful
    from agent_checkpoint.errors import ApprovalDeniedError as ApprovalDeniedError
    from agent_checkpoint.errors import CheckpointError as CheckpointError
    from agent_checkpoint.errors import ConflictError as ConflictError
    from agent_checkpoint.errors import EffectConflictError as EffectConflictError
    from agent_checkpoint.errors import EffectError as EffectError
    from agent_checkpoint.errors import EffectUnknownError as EffectUnknownError
    from agent_checkpoint.errors import FormatError as FormatError
    from agent_checkpoint.errors import ImmutableError as ImmutableError
    from agent_checkpoint.errors import IntegrityError as IntegrityError
    from agent_checkpoint.errors import InvalidInputError as InvalidInputError
    from agent_checkpoint.errors import MigrationError as MigrationError
    from agent_checkpoint.errors import NotFoundError as NotFoundError
    from agent_checkpoint.errors import RestoreIncompleteError as RestoreIncompleteError
    from agent_checkpoint.errors import RollbackRefusedError as RollbackRefusedError
    from agent_checkpoint.errors import StateError as StateError
    from agent_checkpoint.errors import StateMismatchError as StateMismatchError
    from agent_checkpoint.errors import StorageError as StorageError
    from agent_checkpoint.errors import Suspended as Suspended
    from agent_checkpoint.errors import UnsafeWorkspaceError as UnsafeWorkspaceError
    from agent_checkpoint.errors import UntrustedDataError as UntrustedDataError
    from agent_checkpoint.errors import WorkspaceError as WorkspaceError
    from agent_checkpoint.manager.decorator import checkpoint as checkpoint
    from agent_checkpoint.manager.manager import CheckpointManager as CheckpointManager
    from agent_checkpoint.session.effects.approvals import Approvals as Approvals
    from agent_checkpoint.session.explore.backtrack import backtrack as backtrack
    from agent_checkpoint.session.explore.explore import explore as explore
    from agent_checkpoint.session.session import Session as Session
    from agent_checkpoint.session.session_list import list_sessions as list_sessions
    from agent_checkpoint.session.tools.tool import tool as tool
    from agent_checkpoint.store.maintenance.retention import KeepBest as KeepBest
    from agent_checkpoint.store.maintenance.retention import KeepEvery as KeepEvery
    from agent_checkpoint.store.maintenance.retention import KeepLatest as KeepLatest
    from agent_checkpoint.store.maintenance.retention import KeepNewerThan as KeepNewerThan
    from agent_checkpoint.store.maintenance.retention import KeepTagged as KeepTagged
    from agent_checkpoint.workspace.workspace import Workspace as Workspace

__version__ = "0.2.0.dev0"

_OWNERS = {
    "backends.base": ("Backend",),
    "backends.file": ("FileBackend",),
    "backends.memory": ("MemoryBackend",),
    "backends.wrapper": ("WrapperBackend",),
    "core.checkpointable": ("Checkpointable",),
    "core.external_snapshot": ("External",),
    "core.log": ("Log",),
    "core.migrations": ("register_migration",),
    "core.class_names": ("register_alias",),
    "core.stateful": ("Stateful",),
    "core.codec.type_registry": ("register_type",),
    "errors": (
        "ApprovalDeniedError",
        "CheckpointError",
        "ConflictError",
        "EffectConflictError",
        "EffectError",
        "EffectUnknownError",
        "FormatError",
        "ImmutableError",
        "IntegrityError",
        "InvalidInputError",
        "MigrationError",
        "NotFoundError",
        "RestoreIncompleteError",
        "RollbackRefusedError",
        "StateError",
        "StateMismatchError",
        "StorageError",
        "Suspended",
        "UnsafeWorkspaceError",
        "UntrustedDataError",
        "WorkspaceError",
    ),
    "manager.decorator": ("checkpoint",),
    "manager.manager": ("CheckpointManager",),
    "session.effects.approvals": ("Approvals",),
    "session.session_list": ("list_sessions",),
    "session.session": ("Session",),
    "session.tools.tool": ("tool",),
    "session.explore.backtrack": ("backtrack",),
    "session.explore.explore": ("explore",),
    "store.maintenance.retention": (
        "KeepBest",
        "KeepEvery",
        "KeepLatest",
        "KeepNewerThan",
        "KeepTagged",
    ),
    "transcripts": ("transcripts",),  # the module itself
    "workspace.workspace": ("Workspace",),
}
_MODULE_OF = {name: module for module, names in _OWNERS.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if "threading" in sys.modules:  # otherwise no other thread can fork meanwhile
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
