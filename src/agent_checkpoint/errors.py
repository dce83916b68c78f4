"""The exception tree: every error that the package raises.

    CheckpointError
    ├ NotFoundError (KeyError)          no such key, checkpoint, object
    │   └ MissingObjectsError           an append requires objects that were deleted
    ├ InvalidInputError (ValueError)    bad key, bad id, unsafe path
    ├ StateError                        cannot capture or load; names the path
    │   ├ StateMismatchError  ├ MigrationError  └ UntrustedDataError
    ├ ConflictError                     unexpected head; retry or fork
    ├ EffectError: EffectConflictError, EffectUnknownError, RollbackRefusedError,
    │              ApprovalDeniedError
    ├ WorkspaceError: UnsafeWorkspaceError, RestoreIncompleteError
    ├ IntegrityError                    stored bytes do not match their hash
    ├ FormatError                       written by a newer version
    └ StorageError (.retryable)         wraps the driver's error with `from`
    Suspended (BaseException)           waits for an approval

Grouped by what a handler does about an error, not by the layer that raises it.
"""

from __future__ import annotations

from collections.abc import Iterable


class CheckpointError(Exception):
    """Base class of all errors of this package."""


class NotFoundError(CheckpointError, KeyError):
    """No such key, checkpoint or object."""

    def __str__(self) -> str:
        # KeyError formats its argument with repr(), which is unreadable for a sentence.
        return str(self.args[0]) if self.args else ""


class MissingObjectsError(NotFoundError):
    """An append requires objects that are no longer stored; `ids` must be written again."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = frozenset(ids)
        names = ", ".join(sorted(self.ids)[:3]) + (", …" if len(self.ids) > 3 else "")
        super().__init__(f"{len(self.ids)} object(s) are not stored: {names}. Write them again.")

    def __reduce__(self) -> tuple[type[MissingObjectsError], tuple[frozenset[str]]]:
        return type(self), (self.ids,)


class InvalidInputError(CheckpointError, ValueError):
    """A key, id, option or path is invalid."""


class StateError(CheckpointError):
    """A state cannot be captured or loaded; the message names the path of the value."""


class StateMismatchError(StateError):
    """The state belongs to another class, or its fields differ from the object's."""


class MigrationError(StateError):
    """The state cannot be migrated to the version of the code."""


class UntrustedDataError(StateError):
    """A pickle, or an entry of a shared store, without a valid seal; a pickle could run code."""


class ConflictError(CheckpointError):
    """The head of a stream is not the expected one; retry or fork."""


class EffectError(CheckpointError):
    """Base class of errors about external side effects."""


class EffectConflictError(EffectError):
    """An idempotency key was already used with different arguments."""


class EffectUnknownError(EffectError):
    """The outcome of an external side effect is unknown; a person must record it."""


class RollbackRefusedError(EffectError):
    """A rollback would skip side effects that cannot be undone; `report` lists them."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class ApprovalDeniedError(EffectError):
    """A tool call was denied; `reason` is the explanation of the approver."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class WorkspaceError(CheckpointError):
    """A directory cannot be captured or restored."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class UnsafeWorkspaceError(WorkspaceError):
    """The directory or the tree is unsafe to capture or restore."""


class RestoreIncompleteError(WorkspaceError):
    """A restore could not be finished; the message names the remaining paths."""


class IntegrityError(CheckpointError):
    """Stored stored bytes do not match their hash or their hash."""


class FormatError(CheckpointError):
    """Written by a newer version of this package."""


class StorageError(CheckpointError):
    """The storage medium failed; the error of the driver is the cause.

    `retryable`: a retry may succeed. `no_room`: the disk is full or a size limit is reached.
    """

    def __init__(self, message: str, *, retryable: bool = False, no_room: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.no_room = no_room


UNUSABLE = (IntegrityError, FormatError, UntrustedDataError)
"""Raised for an entry that can be listed and deleted, but not loaded."""


class Suspended(BaseException):
    """A tool call waits for an approval. A BaseException, so `except Exception` lets it pass."""

    def __init__(self, approval_id: str, words: str = "A call") -> None:
        super().__init__(
            f"{words} needs approval {approval_id}. Call "
            f"session.approvals.approve({approval_id!r}) or deny(), then open the session again."
        )
        self.approval_id = approval_id
        self.words = words

    def __reduce__(self) -> tuple[type[Suspended], tuple[str, str]]:
        return type(self), (self.approval_id, self.words)
