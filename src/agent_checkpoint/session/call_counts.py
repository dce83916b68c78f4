"""How often calls without a key were made. Owns the numbers, and a form that grows by what is new.

Stored are rows `[task, call, number, …]`: up to that number all calls of the kind have come to
their end; the numbers after it are of calls that did so before one that was begun earlier. A later
row of the same task and call holds instead of an earlier one, so a checkpoint costs the change.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from agent_checkpoint.core.codec.encode import ItemEncoder
from agent_checkpoint.core.log import Log, LogItems
from agent_checkpoint.records import JsonValue

_MAX_STALE_ROWS = 64
"""Rows beside those that hold, for which it is not worth to begin anew."""


class _RowEncoder(ItemEncoder):
    """Rows are JSON already, and are read without the codec."""

    def __call__(self, item: Any) -> JsonValue:
        """Return the row."""
        row: JsonValue = item
        return row


_ROW_ENCODER = _RowEncoder({}, 0)


class _UsedNumbers(NamedTuple):
    """Which numbers of a kind are used up."""

    last: int = 0
    ahead: tuple[int, ...] = ()


class CallCounts:
    """The numbers that are used up, by task and name of the call."""

    def __init__(self, rows: Iterable[list[Any]] = ()) -> None:
        self._used: dict[str | None, dict[str, _UsedNumbers]] = {}
        self._size = 0
        for task, name, last, *ahead in rows:
            self._set(task, name, _UsedNumbers(last, tuple(ahead)))
        self._log: Log[list[Any]] = Log(self.rows())

    def __bool__(self) -> bool:
        return self._size > 0

    def rows(self) -> Iterator[list[Any]]:
        """Iterate over the rows that hold."""
        for task, kinds in self._used.items():
            for name, used in kinds.items():
                yield [task, name, used.last, *used.ahead]

    def copy(self) -> CallCounts:
        """Return the same numbers, to go on from on their own."""
        return CallCounts(self.rows())

    def frozen(self) -> LogItems:
        """Return the rows as they are now, on their way into a store."""
        return self._log.frozen(_ROW_ENCODER)

    def next_number(self, task: str | None, name: str, taken: Collection[int]) -> int:
        """Return the lowest number of a call among its like, from 1, that is not used up."""
        used = self._get(task, name)
        return next(
            number
            for number in itertools.count(used.last + 1)
            if number not in used.ahead and number not in taken
        )

    def mark_used(self, task: str | None, name: str, number: int) -> None:
        """Use a number up: the call has come to its end."""
        last, ahead = self._get(task, name)
        numbers = {number, *ahead}
        while last + 1 in numbers:
            last += 1
        self._change(task, name, _UsedNumbers(last, tuple(sorted(n for n in numbers if n > last))))

    def mark_unused(self, task: str | None, name: str, number: int) -> None:
        """Have the next call of the kind get a number again."""
        last, ahead = self._get(task, name)
        numbers = {*ahead, *range(number, last + 1)} - {number}
        now = _UsedNumbers(min(last, number - 1), tuple(sorted(numbers)))
        if now != (last, ahead):
            self._change(task, name, now)

    def reset_task(self, task: str) -> None:
        """Count the calls of a task from 1 again: it is run from its top."""
        for name in list(self._used.get(task, ())):
            self._change(task, name, _UsedNumbers())

    def _get(self, task: str | None, name: str) -> _UsedNumbers:
        return self._used.get(task, {}).get(name) or _UsedNumbers()

    def _set(self, task: str | None, name: str, used: _UsedNumbers) -> None:
        kinds = self._used.setdefault(task, {})
        self._size -= len(kinds)
        kinds.pop(name, None)
        if used != _UsedNumbers():
            kinds[name] = used
        self._size += len(kinds)

    def _change(self, task: str | None, name: str, used: _UsedNumbers) -> None:
        self._set(task, name, used)
        self._log.append([task, name, used.last, *used.ahead])
        if len(self._log) > 2 * self._size + _MAX_STALE_ROWS:
            self._log = Log(self.rows())
