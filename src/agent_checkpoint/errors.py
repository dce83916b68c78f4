"""The exception tree: every error that the package raises.

    CheckpointError
    ├ NotFoundError (KeyError)          no such key, checkpoint, object
    │   └ MissingObjectsError           an append requires objects that were deleted
    ├ InvalidInputError (ValueError)    bad key, bad id, unsafe path
    ├ ImmutableError (TypeError, AttributeError)   an item of a log, an attribute of a session
    ├ StateError                        a value cannot be captured or loaded
    │   ├ StateMismatchError  ├ MigrationError  └ UntrustedDataError
    ├ ConflictError                     unexpected head; retry or fork
    ├ EffectError: EffectConflictError, EffectUnknownError, RollbackRefusedError,
    │              ApprovalDeniedError
    ├ RevertConflictError               overlapping edits; nothing was applied
    ├ WorkspaceError: UnsafeWorkspaceError, RestoreIncompleteError
    ├ IntegrityError                    stored data is damaged or missing
    ├ FormatError                       unsupported format; upgrade the package
    ├ EncryptionKeyError                the key is wrong or missing; nothing was written
    └ StorageError (.retryable)         wraps the driver's error with `from`
    Suspended (BaseException)           a tool call waits for approval

Grouped by what a handler does about an error, not by the layer that raises it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


class Hint(str):
    """What to do about an error, in terms of the Python API.

    `code` identifies the hint, so that another interface can show its own text with the `values`.
    """

    code: str
    values: Mapping[str, str]

    def __new__(cls, text: str, code: str = "", **values: str) -> Hint:
        """Return a hint."""
        hint = super().__new__(cls, text)
        hint.code = code
        hint.values = values
        return hint


class CheckpointError(Exception):
    """Base class of all errors of this package; `hint`, if any, says what to do."""

    hint: Hint | None = None

    def __init__(self, *args: object, hint: Hint | None = None) -> None:
        super().__init__(*args)
        self.hint = hint

    def __str__(self) -> str:
        return self.with_hint(self.hint or "")

    def with_hint(self, hint: str = "") -> str:
        """Return the message with another hint, or without one. Details follow the first line."""
        # Not super(): KeyError formats its argument with repr(), unreadable for a sentence.
        message, newline, details = Exception.__str__(self).partition("\n")
        return f"{message} {hint}{newline}{details}" if hint else f"{message}{newline}{details}"


class NotFoundError(CheckpointError, KeyError):
    """No such key, checkpoint or object."""


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


class ImmutableError(CheckpointError, TypeError, AttributeError):
    """An item read from a log, or an attribute of a session, cannot be changed."""


class StateError(CheckpointError):
    """A state cannot be captured or loaded; the message contains the path of the value."""


class StateMismatchError(StateError):
    """The state belongs to another class, or its fields differ from the object's."""


class MigrationError(StateError):
    """The state cannot be migrated to the version of the code."""


class UntrustedDataError(StateError):
    """A pickle, or an entry of a shared store, has no valid signature under the user's secret."""


class ConflictError(CheckpointError):
    """The head of a stream is not the expected one; retry or fork."""


class EffectError(CheckpointError):
    """Base class of errors about external side effects."""


class EffectConflictError(EffectError):
    """An idempotency key was already used with different arguments."""


class EffectUnknownError(EffectError):
    """The outcome of an external side effect is unknown; a person must record it."""


class RollbackRefusedError(EffectError):
    """A rollback was refused because of side effects that it cannot undo; `report` lists them."""

    def __init__(self, message: str, report: object = None, *, hint: Hint | None = None) -> None:
        super().__init__(message, hint=hint)
        self.report = report


class ApprovalDeniedError(EffectError):
    """A tool call was denied; `reason` is the explanation of the approver."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class RevertConflictError(CheckpointError):
    """Later work overlaps a step to revert; nothing was applied. `report` has the conflicts."""

    def __init__(self, message: str, report: object = None, *, hint: Hint | None = None) -> None:
        super().__init__(message, hint=hint)
        self.report = report


class WorkspaceError(CheckpointError):
    """A directory cannot be captured or restored."""

    def __init__(self, message: str, *, retryable: bool = False, hint: Hint | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable


class UnsafeWorkspaceError(WorkspaceError):
    """The directory or the tree is unsafe to capture or restore."""


class RestoreIncompleteError(WorkspaceError):
    """A restore could not be completed; the message lists the paths that failed."""


class IntegrityError(CheckpointError):
    """Stored data is damaged: it is missing, malformed, or does not match its hash."""


class FormatError(CheckpointError):
    """Stored data has a format or feature that this installation does not support."""


class EncryptionKeyError(CheckpointError):
    """The key of an encrypted store is wrong or missing, or the store is not encrypted."""


class StorageError(CheckpointError):
    """The storage medium failed; the error of the driver is the cause.

    `retryable`: a retry may succeed. `no_room`: the disk is full or a size limit is reached.
    `outcome_unknown`: an entry may have been appended; read before you try again.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        no_room: bool = False,
        outcome_unknown: bool = False,
        hint: Hint | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable
        self.no_room = no_room
        self.outcome_unknown = outcome_unknown


UNUSABLE = (IntegrityError, FormatError, UntrustedDataError)
"""The errors for an entry that can be listed and deleted, but not loaded."""


class Suspended(BaseException):
    """A tool call waits for approval. A BaseException: `except Exception` does not catch it."""

    def __init__(self, approval_id: str, words: str = "A call") -> None:
        super().__init__(
            f"{words} needs approval {approval_id}. Call "
            f"session.approvals.approve({approval_id!r}) or deny(), then open the session again."
        )
        self.approval_id = approval_id
        self.words = words

    def __reduce__(self) -> tuple[type[Suspended], tuple[str, str]]:
        return type(self), (self.approval_id, self.words)
