"""The one exception tree. Owns every error that the package raises; knows nothing else.

    CheckpointError
    ├ NotFoundError (KeyError)          no such key, checkpoint, object
    │   └ MissingObjectsError           an append reuses objects that are gone: write them again
    ├ InvalidInputError (ValueError)    bad key, bad id, unsafe path
    ├ StateError                        cannot capture or load: names the path
    │   ├ StateMismatchError  ├ MigrationError  └ UntrustedDataError
    ├ ConflictError                     the head moved; retry or fork
    ├ EffectError: EffectConflictError, EffectUnknownError, RollbackRefusedError,
    │              ApprovalDeniedError
    ├ WorkspaceError: UnsafeWorkspaceError, RestoreIncompleteError
    ├ IntegrityError                    bytes do not match their name
    ├ FormatError                       written by a newer version
    └ StorageError (.retryable)         wraps the driver's error with `from`
    Suspended (BaseException)           waiting for an approval

Sorted by what a handler would do about them, not by where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable


class CheckpointError(Exception):
    """Anything that this package refuses or fails to do."""


class NotFoundError(CheckpointError, KeyError):
    """No such key, checkpoint or object."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which is unreadable for a sentence.
        return str(self.args[0]) if self.args else ""


class MissingObjectsError(NotFoundError):
    """An append reuses objects that are no longer stored; they must be written again."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = frozenset(ids)
        names = ", ".join(sorted(self.ids)[:3]) + (", …" if len(self.ids) > 3 else "")
        super().__init__(f"{len(self.ids)} object(s) are not stored: {names}. Write them again.")

    def __reduce__(self) -> tuple[type[MissingObjectsError], tuple[frozenset[str]]]:
        return type(self), (self.ids,)


class InvalidInputError(CheckpointError, ValueError):
    """A key, id, option or path that can never work."""


class StateError(CheckpointError):
    """A state cannot be captured or loaded; the message names the path of the value."""


class StateMismatchError(StateError):
    """The state belongs to another class, or its fields differ from the object's."""


class MigrationError(StateError):
    """The state cannot be brought to the version of the code."""


class UntrustedDataError(StateError):
    """A pickle without our seal, which could run code; or such an entry in a shared store."""


class ConflictError(CheckpointError):
    """The stream moved on since the caller looked; retry or fork."""


class EffectError(CheckpointError):
    """Something about an effect on the outside world."""


class EffectConflictError(EffectError):
    """The same effect key was used before with other arguments."""


class EffectUnknownError(EffectError):
    """Nobody knows whether the effect happened; a person decides."""


class RollbackRefusedError(EffectError):
    """A rollback would pass over effects that cannot be undone; `report` names them."""

    def __init__(self, message: str, report: object = None) -> None:
        super().__init__(message)
        self.report = report


class ApprovalDeniedError(EffectError):
    """Somebody refused a call; `reason` is what they said."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class WorkspaceError(CheckpointError):
    """A directory cannot be captured or restored."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class UnsafeWorkspaceError(WorkspaceError):
    """The directory or the tree is one that must not be touched."""


class RestoreIncompleteError(WorkspaceError):
    """A restore could not be finished; what is left is named."""


class IntegrityError(CheckpointError):
    """Stored bytes do not match their name or their hash."""


class FormatError(CheckpointError):
    """Written by a newer version of this package."""


class StorageError(CheckpointError):
    """The medium failed; the driver's own error is the cause.

    `no_room` tells that there is no room left for what was to be written.
    """

    def __init__(self, message: str, *, retryable: bool = False, no_room: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.no_room = no_room


UNUSABLE = (IntegrityError, FormatError, UntrustedDataError)
"""What is raised for an entry that can be listed and deleted, but not used."""


class Suspended(BaseException):
    """The work waits for an approval; no `except Exception` swallows it."""

    def __init__(self, approval_id: str, words: str = "A call") -> None:
        super().__init__(
            f"{words} waits for the approval {approval_id}: answer it with "
            f"session.approvals.approve({approval_id!r}) or deny, then open the session again."
        )
        self.approval_id = approval_id
        self.words = words

    def __reduce__(self) -> tuple[type[Suspended], tuple[str, str]]:
        return type(self), (self.approval_id, self.words)
