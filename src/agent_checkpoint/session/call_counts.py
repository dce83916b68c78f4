"""Numbers of finished calls without an idempotency key, stored as an append-only log.

A row is `[place, call, last, …]`; the place is the task of an agent. All calls up to `last` have
finished; the numbers after it are of later calls that finished out of order. A row replaces earlier
rows of the same place and call, so that a checkpoint stores only changed rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from agent_checkpoint.core.codec.encode import ItemEncoder
from agent_checkpoint.core.log import Log, LogItems
from agent_checkpoint.named_tuple import NamedTuple
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
    """The used numbers of one place and call."""

    last: int = 0
    ahead: tuple[int, ...] = ()


class CallCounts:
    """The used call numbers, by place and call."""

    def __init__(self, rows: Iterable[list[Any]] = ()) -> None:
        self._used: dict[str | None, dict[str, _UsedNumbers]] = {}
        self._size = 0
        for place, name, last, *ahead in rows:
            self._set(place, name, _UsedNumbers(last, tuple(ahead)))
        self._log: Log[list[Any]] = Log(self.rows())

    def __bool__(self) -> bool:
        return self._size > 0

    def rows(self) -> Iterator[list[Any]]:
        """Iterate over the current rows."""
        for place, kinds in self._used.items():
            for name, used in kinds.items():
                yield [place, name, used.last, *used.ahead]

    def copy(self) -> CallCounts:
        """Return an independent copy."""
        return CallCounts(self.rows())

    def frozen(self) -> LogItems:
        """Return a snapshot of the rows, for the store."""
        return self._log.frozen(_ROW_ENCODER)

    def next_number(self, place: str | None, name: str, taken: Collection[int]) -> int:
        """Return the lowest number, from 1, that is neither used nor in `taken`."""
        used = self._get(place, name)
        return next(
            number
            for number in itertools.count(used.last + 1)
            if number not in used.ahead and number not in taken
        )

    def mark_used(self, place: str | None, name: str, number: int) -> None:
        """Mark a number as used: the call has finished."""
        last, ahead = self._get(place, name)
        numbers = {number, *ahead}
        while last + 1 in numbers:
            last += 1
        self._change(place, name, _UsedNumbers(last, tuple(sorted(n for n in numbers if n > last))))

    def mark_unused(self, place: str | None, name: str, number: int) -> None:
        """Make a number available to the next identical call."""
        last, ahead = self._get(place, name)
        numbers = {*ahead, *range(number, last + 1)} - {number}
        now = _UsedNumbers(min(last, number - 1), tuple(sorted(numbers)))
        if now != (last, ahead):
            self._change(place, name, now)

    def reset(self, place: str | None) -> None:
        """Restart the numbers of a place at 1: its task runs from its start."""
        for name in list(self._used.get(place, ())):
            self._change(place, name, _UsedNumbers())

    def forget(self, is_over: Callable[[str | None], bool]) -> None:
        """Remove the numbers of places that make no more calls."""
        for place in [place for place in self._used if is_over(place)]:
            self.reset(place)

    def replaced(self, by: CallCounts, where: Callable[[str | None], bool]) -> CallCounts:
        """Return these numbers, with those of some places from another object."""
        kept = [row for row in self.rows() if not where(row[0])]
        return CallCounts([*kept, *(row for row in by.rows() if where(row[0]))])

    def _get(self, place: str | None, name: str) -> _UsedNumbers:
        return self._used.get(place, {}).get(name) or _UsedNumbers()

    def _set(self, place: str | None, name: str, used: _UsedNumbers) -> None:
        kinds = self._used.setdefault(place, {})
        self._size -= len(kinds)
        kinds.pop(name, None)
        if used != _UsedNumbers():
            kinds[name] = used
        self._size += len(kinds)

    def _change(self, place: str | None, name: str, used: _UsedNumbers) -> None:
        self._set(place, name, used)
        self._log.append([place, name, used.last, *used.ahead])
        if len(self._log) > 2 * self._size + _MAX_STALE_ROWS:
            self._log = Log(self.rows())
