"""Numbers of finished calls without an idempotency key, stored as an append-only log.

A row is `[task, call, last, …]`: all calls up to `last` have finished; the numbers after it are of
later calls that finished out of order. A row replaces earlier rows of the same task and call, so
that a checkpoint stores only changed rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from agent_checkpoint.core.codec.encode import ItemEncoder
from agent_checkpoint.core.log import Log, LogItems
from agent_checkpoint.records import JsonValue

_MAX_STALE_ROWS = 64
"""How many replaced rows the log may hold before it is rewritten."""


class _RowEncoder(ItemEncoder):
    """Passes rows through: they are JSON, and are read without the codec."""

    def __call__(self, item: Any) -> JsonValue:
        """Return the row unchanged."""
        row: JsonValue = item
        return row


_ROW_ENCODER = _RowEncoder({}, 0)


class _UsedNumbers(NamedTuple):
    """The used numbers of one task and call."""

    last: int = 0
    ahead: tuple[int, ...] = ()


class CallCounts:
    """The used call numbers, by task and call."""

    def __init__(self, rows: Iterable[list[Any]] = ()) -> None:
        self._used: dict[str | None, dict[str, _UsedNumbers]] = {}
        self._size = 0
        for task, name, last, *ahead in rows:
            self._set(task, name, _UsedNumbers(last, tuple(ahead)))
        self._log: Log[list[Any]] = Log(self.rows())

    def __bool__(self) -> bool:
        return self._size > 0

    def rows(self) -> Iterator[list[Any]]:
        """Iterate over the current rows."""
        for task, kinds in self._used.items():
            for name, used in kinds.items():
                yield [task, name, used.last, *used.ahead]

    def copy(self) -> CallCounts:
        """Return an independent copy."""
        return CallCounts(self.rows())

    def frozen(self) -> LogItems:
        """Return a snapshot of the rows, for the store."""
        return self._log.frozen(_ROW_ENCODER)

    def next_number(self, task: str | None, name: str, taken: Collection[int]) -> int:
        """Return the lowest number, from 1, that is neither used nor in `taken`."""
        used = self._get(task, name)
        return next(
            number
            for number in itertools.count(used.last + 1)
            if number not in used.ahead and number not in taken
        )

    def mark_used(self, task: str | None, name: str, number: int) -> None:
        """Mark a number as used: the call has finished."""
        last, ahead = self._get(task, name)
        numbers = {number, *ahead}
        while last + 1 in numbers:
            last += 1
        self._change(task, name, _UsedNumbers(last, tuple(sorted(n for n in numbers if n > last))))

    def mark_unused(self, task: str | None, name: str, number: int) -> None:
        """Make a number available to the next identical call."""
        last, ahead = self._get(task, name)
        numbers = {*ahead, *range(number, last + 1)} - {number}
        now = _UsedNumbers(min(last, number - 1), tuple(sorted(numbers)))
        if now != (last, ahead):
            self._change(task, name, now)

    def reset_task(self, task: str) -> None:
        """Restart the numbers of a task at 1: it runs from its start."""
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
