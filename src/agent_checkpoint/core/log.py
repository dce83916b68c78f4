"""Log: a list that only grows at its end, and costs what was added when it is saved.

Owns the items and what a store has of them already; knows no JSON tags.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload
from weakref import WeakSet

from agent_checkpoint.core.path_errors import as_state_error
from agent_checkpoint.core.stateful import LoadResult
from agent_checkpoint.errors import InvalidInputError, StateMismatchError
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder, StoredList
from agent_checkpoint.store.objects.splitting import IN_ENTRY, OutOfLineValue, add_item, put_list
from agent_checkpoint.store.objects.writer import Writer

if TYPE_CHECKING:
    from agent_checkpoint.core.codec.encode import ItemEncoder

T = TypeVar("T")


class Log(Sequence[T]):
    """An append-only list for conversations and tool calls; a Stateful.

    Items are copied in and are not to be changed in place. The last one may be replaced
    (`log[-1] = item`), as streaming needs, and `truncate(n)` cuts the log back.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = []
        self._begin_anew()
        self.extend(items)

    @classmethod
    def _of(cls, items: list[T]) -> Log[T]:
        """Return a log of items that are the log's own from now on."""
        log = cls()
        log._items = items
        return log

    def append(self, item: T) -> None:
        """Add a copy of an item.

        Raises:
            StateError: the item cannot be copied; the message names the path.
        """
        self._items.append(self._copied(item, len(self._items)))

    def extend(self, items: Iterable[T]) -> None:
        """Add copies of items, all of them or, if one cannot be copied, none. Raises StateError."""
        start = len(self._items)
        self._items += [self._copied(item, start + place) for place, item in enumerate(items)]

    def truncate(self, n: int) -> None:
        """Keep the first `n` items.

        Raises:
            InvalidInputError: `n` is not a number from 0 to the number of items.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= len(self._items):
            raise InvalidInputError(
                f"A log of {len(self._items)} items cannot be cut back to {short_repr(n)}."
            )
        if n < len(self._items):
            self._cut(n)
            del self._items[n:]

    def __setitem__(self, index: int, item: T) -> None:
        last = len(self._items) - 1
        if isinstance(index, slice) or not self._items or index not in (-1, last):
            raise InvalidInputError(
                f"Only the last item of a log can be replaced, not {short_repr(index)}: cut it "
                "back with truncate(n) and append."
            )
        fresh = self._copied(item, last)
        self._cut(last)
        self._items[last] = fresh

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Log):
            return self._items == other._items
        return self._items == other if isinstance(other, list) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Log({self._items!r})"

    def __reduce__(self) -> tuple[Callable[[list[T]], Log[T]], tuple[list[T]]]:
        return type(self)._of, (list(self._items),)

    # -- as a Stateful ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the items, as `{"items": […]}`. Raises StateError."""
        return {"items": [self._copied(item, place) for place, item in enumerate(self._items)]}

    def load_state_dict(self, state: Any, strict: bool = False) -> LoadResult:
        """Take over the items of a state, of another log or of a list.

        Raises:
            StateMismatchError: the state is none of these.
            StateError: an item cannot be copied.
        """
        items = state.get("items") if isinstance(state, dict) else state
        if not isinstance(items, (list, Log)):
            raise StateMismatchError(
                f"A Log loads a state with a list of items, not {type(state).__name__}."
            )
        self._become(Log(items))
        return LoadResult([], [])

    def checkpoint_to(self, writer: Writer) -> str:
        """Hand what a store does not have yet to a writer; return the name of the whole list.

        Raises:
            StateError: an item cannot be captured.
        """
        from agent_checkpoint.core.codec.encode import ItemEncoder

        refs: list[str] = []
        self.frozen(ItemEncoder({}, 0)).put(writer, refs)
        return refs[-1]

    def frozen(self, encode: ItemEncoder) -> LogItems:
        """Return the items as they are now, to be written later, at no cost."""
        items = LogItems(self, encode)
        views: WeakSet[LogItems] = vars(self).get("_views") or WeakSet()
        vars(self).setdefault("_views", views).add(items)  # in one step: from any thread
        return items

    def _become(self, other: Log[T]) -> Callable[[], None]:
        """Take over the items of a log that nobody else uses; return how to take that back."""
        before = dict(vars(self))
        self._items = other._items
        self._begin_anew()
        return lambda: vars(self).update(before)

    def _begin_anew(self) -> None:
        self._identity = _Identity()
        vars(self).pop("_views", None)  # most logs are never written: it takes more than all else
        # Where the log was cut, as (number of the cut, index): both rise, since a later cut
        # further to the front says all that the ones before it said.
        self._cuts: list[tuple[int, int]] = []
        self._generation = 0

    def _cut(self, index: int) -> None:
        self._generation += 1  # first: whoever looks at the cuts meanwhile must notice
        if vars(self).get("_views"):  # somebody is yet to write the items: leave them that list
            self._items = list(self._items)
            vars(self).pop("_views", None)
        while self._cuts and self._cuts[-1][1] >= index:
            self._cuts.pop()
        self._cuts.append((self._generation, index))

    def _unchanged_since(self, generation: int) -> int | None:
        """Return how many items at the front are as they were then; None if all are."""
        later = bisect_right(self._cuts, (generation, sys.maxsize))
        return self._cuts[later][1] if later < len(self._cuts) else None

    @staticmethod
    def _copied(item: T, place: int) -> T:
        from agent_checkpoint.core.copying import copied

        with as_state_error(f"log[{place}]", item):
            fresh: T = copied(item)
            return fresh


class LogItems(OutOfLineValue):
    """The items of a log at one moment, on their way into a store."""

    def __init__(self, log: Log[Any], encode: ItemEncoder) -> None:
        self._log = log
        self._encode = encode
        self._generation = log._generation
        self._identity = log._identity
        self._items = log._items
        self._count = len(log._items)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the items as JSON. Raises StateError."""
        return list(self._encoded(0))

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Put what is new; a short log stands in the text itself. Raises StateError."""
        builder = self._build(writer)
        if builder.bytes <= IN_ENTRY:
            refs += builder.refs
            writer.size += builder.outside_bytes
            writer.decode_cost += builder.outside_cost
            return builder.text
        return put_list(builder, writer, refs)

    def put(self, writer: Writer, refs: list[str]) -> None:
        """Put what is new, however short the log is. Raises StateError."""
        put_list(self._build(writer), writer, refs)

    def _build(self, writer: Writer) -> MerkleListBuilder:
        stored = self._stored(writer)
        builder, place = stored.end.copy(), stored.n
        leaf, leaf_place = stored.leaf, stored.leaf_n
        for tree in self._encoded(place):
            if builder.at_leaf_start:
                leaf, leaf_place = builder.copy(), place
            add_item(tree, builder, writer)
            place += 1
        now = StoredList(builder, place, leaf, leaf_place)
        known = _Known(self._generation, self._encode.types, now)
        writer.on_commit(lambda: writer.write_cache.__setitem__(self._identity, known))
        return builder

    def _stored(self, writer: Writer) -> StoredList:
        """Return what the store has of these items."""
        found: _Known | None = writer.write_cache.get(self._identity)
        if found is None or not writer.trust_cache or found.types != self._encode.types:
            return StoredList()
        same = self._log._unchanged_since(found.generation)
        # A log that was cut or loaded after this moment no longer tells what was cut before it.
        if self._log._identity is not self._identity or self._log._generation != self._generation:
            return StoredList()
        most = self._count if same is None else min(same, self._count)
        return found.stored.resume(lambda n: n <= most)

    def _encoded(self, start: int) -> Iterator[JsonValue]:
        for place, item in enumerate(self._items[start : self._count], start):
            with as_state_error(f"log[{place}]", item):
                tree = self._encode(item)
            yield tree


class _Identity:
    """Stands for a log's content in the memory of stores, which forget it when it is gone."""


class _Known(NamedTuple):
    """What one store has of a log, as it was then."""

    generation: int
    types: Mapping[str, type]
    stored: StoredList
