"""Group commit: threads that append at the same time share a commit. Owns who commits for whom.

A durable commit takes the lock between processes and waits for the disk. While one thread does so,
others queue up, and the next one commits the entries of all of them. Used if the `append_all` of a
backend costs as much as one append.
"""

from __future__ import annotations

import os
from collections import deque
from threading import Event, RLock

from agent_checkpoint.backends.base import Append, Backend
from agent_checkpoint.errors import CheckpointError, StorageError


class CommitQueue:
    """Appends entries to one backend, from any thread. Empty after a fork."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._can_group = backend.properties.can_group
        self._reset()

    def append(self, item: Append, *, wait: float = 0) -> int:
        """Append an entry durably, perhaps together with those of others; return its number.

        Args:
            item: the entry.
            wait: seconds to wait for another thread that commits, and takes the entry along.

        Raises:
            CheckpointError: the errors of `Backend.append`.
        """
        if not self._can_group:
            return self._append(item)
        if self._pid != os.getpid():
            self._reset()  # threads of the parent hold the lock, or append their entries there
        mine = _Waiting(item, Event() if wait else None)
        try:
            self._waiting.append(mine)
            if mine.ended is not None:
                mine.ended.wait(wait)
            if mine.outcome is None:
                with self._turn:
                    if mine.outcome is None:
                        self._commit(mine)
        except BaseException:
            mine.is_withdrawn = True
            raise
        if isinstance(mine.outcome, CheckpointError):
            raise mine.outcome
        if mine.outcome is None:
            raise AssertionError("unreachable: a commit has an outcome or raises")
        return mine.outcome

    def _reset(self) -> None:
        self._turn = RLock()  # a signal handler may save during a commit
        self._waiting: deque[_Waiting] = deque()
        self._pid = os.getpid()  # last: an interrupt may come before

    def _append(self, item: Append) -> int:
        return self._backend.append(
            item.stream,
            item.entry,
            after=item.after,
            objects=item.objects,
            requires=item.requires,
        )

    def _commit(self, mine: _Waiting) -> None:
        """Append the entries of all that wait, and set their outcomes."""
        others = []
        while self._waiting:
            one = self._waiting.popleft()
            if one is not mine and not one.is_withdrawn:
                others.append(one)
        if not others:
            mine.outcome = self._append(mine.item)
            return
        group = [*others, mine]
        try:
            outcomes = self._backend.append_all([one.item for one in group])
            for one, outcome in zip(group, outcomes):
                one.outcome = outcome
        except BaseException as error:
            for one in others:
                one.outcome = one.outcome or _failed(error)
            raise
        finally:
            for one in others:
                if one.ended is not None:
                    one.ended.set()


class _Waiting:
    """An entry that one thread wants to append, and what became of it."""

    def __init__(self, item: Append, ended: Event | None) -> None:
        self.item = item
        self.ended = ended
        self.outcome: int | CheckpointError | None = None
        self.is_withdrawn = False


def _failed(error: BaseException) -> StorageError:
    """Return the error of a commit for the other threads that took part in it."""
    if not isinstance(error, StorageError):
        failed = StorageError(
            "The commit was interrupted in another thread; the save is not confirmed.",
            outcome_unknown=True,
        )
    else:
        failed = StorageError(
            error.with_hint(),
            retryable=error.retryable,
            no_room=error.no_room,
            outcome_unknown=error.outcome_unknown,
            hint=error.hint,
        )
    failed.__cause__ = error
    return failed
