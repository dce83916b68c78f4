"""Log: an append-only list; a save writes only the new items. Owns its JSON tag."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, overload
from weakref import WeakSet

from agent_checkpoint.core.codec.encode import ENCODERS, LOG_ITEMS, LOGS, ItemEncoder
from agent_checkpoint.core.codec.save_policy import SavePolicy
from agent_checkpoint.core.copying import (
    CONSTANTS,
    SEQUENCES,
    constant_copy,
    copied,
    immutable_copy,
)
from agent_checkpoint.core.immutable import ImmutableDict, ImmutableList
from agent_checkpoint.core.path_errors import ITEMS, PathError, as_state_error
from agent_checkpoint.core.stateful import LoadResult
from agent_checkpoint.errors import ImmutableError, InvalidInputError, StateMismatchError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder, StoredList
from agent_checkpoint.store.objects.splitting import IN_ENTRY, OutOfLineValue, add_item, put_list
from agent_checkpoint.store.objects.writer import Writer

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from agent_checkpoint.redaction import Redactor

    T = TypeVar("T", default=Any)  # `Log()` is a Log[Any]
else:
    from typing import TypeVar

    T = TypeVar("T")


class Log(Sequence[T]):
    """An append-only list for conversations and tool calls; a Stateful.

    Items are copied when they are added. Dicts and lists read from a log are immutable; `to_list()`
    returns plain copies. The last item can be replaced (`log[-1] = item`), for streaming;
    `truncate(n)` removes items at the end, `replace(items)` replaces all.
    """

    @overload
    def __init__(self) -> None: ...
    @overload
    def __init__(self, items: Iterable[T]) -> None: ...
    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = []
        self._reset()
        self.extend(items)

    @classmethod
    def _of(cls, items: list[T]) -> Log[T]:
        """Return a log that takes ownership of a list of items."""
        log = cls()
        log._items = [item if type(item) in CONSTANTS else _stored(item) for item in items]
        return log

    def append(self, item: T) -> None:
        """Append a copy of an item.

        Raises:
            StateError: the item cannot be copied; the message contains the path.
        """
        self._items.append(self._own(item, len(self._items)))

    def extend(self, items: Iterable[T]) -> None:
        """Append copies of items. Raises StateError, with no item appended."""
        start = len(self._items)
        self._items += [self._own(item, start + index) for index, item in enumerate(items)]

    def truncate(self, n: int) -> None:
        """Remove all items but the first `n`.

        Raises:
            InvalidInputError: `n` is not a number from 0 to the number of items.
        """
        if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= len(self._items):
            raise InvalidInputError(
                f"truncate() takes a number from 0 to {len(self._items)}, not {short_repr(n)}."
            )
        if n < len(self._items):
            self._cut(n)
            del self._items[n:]

    def replace(self, items: Iterable[T]) -> None:
        """Replace all items by copies of others, such as a trimmed or summarised conversation.

        The next save writes the items after those that both begin with.

        Raises:
            InvalidInputError: `items` is not a list or another iterable of items.
            StateError: an item cannot be copied; nothing was replaced.
        """
        if isinstance(items, (str, bytes, Mapping)) or not isinstance(items, Iterable):
            raise InvalidInputError(
                f"The items of a Log are replaced by a list of items, not {short_repr(items)}."
            )
        fresh, same = list(items), 0
        for old, item in zip(self._items, fresh):
            if item is not old:
                break
            same += 1
        copies = [self._own(item, same + index) for index, item in enumerate(fresh[same:])]
        self.truncate(same)
        self._items += copies

    def to_list(self) -> list[T]:
        """Return copies of the items, plain dicts and lists among them. Raises StateError."""
        return [self._copied(item, index) for index, item in enumerate(self._items)]

    def __setitem__(self, index: int, item: T) -> None:
        last = len(self._items) - 1
        if isinstance(index, slice) or not self._items or index not in (-1, last):
            raise InvalidInputError(
                f"Only the last item of a Log can be replaced, not index {short_repr(index)}. "
                "Use truncate(n) and append(), or replace(items); for the conversation of a "
                "session, session.messages = […]."
            )
        fresh = self._own(item, last)
        self._cut(last)
        self._items[last] = fresh

    def __iadd__(self, items: Iterable[T]) -> Log[T]:
        self.extend(items)
        return self

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise ImmutableError(
            "A Log is append-only. Use append(item), extend(items), truncate(n) to remove items at "
            "the end, or replace(items) for all; for the conversation of a session, "
            "session.messages = […]."
        )

    __delitem__ = __imul__ = insert = pop = remove = clear = reverse = sort = _refuse

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._read(item) for item in self._items[index]]
        return self._read(self._items[index])

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return (item if type(item) in CONSTANTS else self._read(item) for item in self._items)

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
        return {"items": self.to_list()}

    def load_state_dict(self, state: Any, strict: bool = False) -> LoadResult:
        """Replace the items by those of a state, another log or a list.

        Raises:
            StateMismatchError: the state is of another type.
            StateError: an item cannot be copied.
        """
        items = state.get("items") if isinstance(state, dict) else state
        if not isinstance(items, (list, Log)):
            raise StateMismatchError(
                f"The state of a Log must contain a list of items, not {type(state).__name__}."
            )
        replace_items(self, Log(items))
        return LoadResult([], [])

    def checkpoint_to(self, writer: Writer) -> str:
        """Write the items that the store does not have; return the object id of the whole list.

        Raises:
            StateError: an item cannot be captured.
        """
        refs: list[str] = []
        self.frozen(ItemEncoder({}, 0)).put(writer, refs)
        return refs[-1]

    def frozen(self, encode: ItemEncoder) -> LogItems:
        """Return the current items, to be written later, without copying them.

        Raises:
            PathError: the policy of the encoder does not allow a pickle of an item.
        """
        if encode.policy.pickles != "allow":
            self._check(encode)
        items = LogItems(self, encode)
        views: WeakSet[LogItems] = vars(self).get("_views") or WeakSet()
        vars(self).setdefault("_views", views).add(items)  # atomic: may be called from any thread
        return items

    def _read(self, item: T) -> T:
        """Return an item for a reader, who cannot change it."""
        if type(item) in CONSTANTS:
            return item
        with as_state_error("log item", item):
            shown: T = immutable_copy(item)
        return shown

    def _check(self, encode: ItemEncoder) -> None:
        """Check the items that were added since the last capture by the same policy."""
        now, known = self._generation, vars(self).get("_checked")
        items, start = self._items, 0
        count = len(items)
        if known is not None and known[:2] == (encode.policy, encode.types):
            same = self._unchanged_since(known.generation)
            start = known.n if same is None else min(same, known.n)
        for place in range(start, count):
            try:
                encode.check(items[place])
            except PathError as error:
                raise error.at(f"[{place}]") from error.__cause__
        self._checked = _Checked(encode.policy, encode.types, now, count)

    def _reset(self) -> None:
        vars(self).pop("_checked", None)
        self._identity = _Identity()
        vars(self).pop(
            "_views", None
        )  # created on demand: most logs are never written, and a WeakSet is large
        # Truncations as (generation, index). Both rise: a later cut at a lower index makes the
        # earlier ones irrelevant.
        self._cuts: list[tuple[int, int]] = []
        self._generation = 0

    def _cut(self, index: int) -> None:
        self._generation += 1  # first: a concurrent reader of the cuts must notice
        if vars(self).get("_views"):  # a pending write uses the list: leave it unchanged
            self._items = list(self._items)
            vars(self).pop("_views", None)
        while self._cuts and self._cuts[-1][1] >= index:
            self._cuts.pop()
        self._cuts.append((self._generation, index))

    def _unchanged_since(self, generation: int) -> int | None:
        """Return how many leading items are unchanged since `generation`; None if all are."""
        later = bisect_right(self._cuts, (generation, sys.maxsize))
        return self._cuts[later][1] if later < len(self._cuts) else None

    @staticmethod
    def _copied(item: T, index: int) -> T:
        with as_state_error(f"log[{index}]", item):
            fresh: T = copied(item)
            return fresh

    @classmethod
    def _own(cls, item: T, index: int) -> T:
        return _stored(cls._copied(item, index))


def log_of(items: list[T]) -> Log[T]:
    """Return a log of items of its own: plain copies, or constants of another log."""
    return Log._of(items)


def raw_items(log: Log[T]) -> list[T]:
    """Return the items themselves, not to be changed: reading them costs nothing."""
    return log._items


def _stored(item: T) -> T:
    """Return a copied item in the form that a log holds it.

    An item that can change, and a tuple, stays as it is: readers get copies.
    """
    shown: T = constant_copy(item)
    return shown if type(shown) in CONSTANTS else item


def replace_items(log: Log[T], other: Log[T]) -> Callable[[], None]:
    """Replace the items by those of a log that is discarded; return an undo function."""
    before = dict(vars(log))
    log._items = other._items
    log._reset()
    return lambda: vars(log).update(before)


class LogItems(OutOfLineValue):
    """The items of a log at the time of a capture, to be written to a store.

    `path` is how messages refer to the log.
    """

    path = "log"

    def __init__(self, log: Log[Any], encode: ItemEncoder) -> None:
        self._log = log
        self._encode = encode
        self._generation = log._generation
        self._identity = log._identity
        self._items = log._items
        self._count = len(log._items)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the items as JSON. Raises StateError."""
        return list(self._encoded(0, writer))

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Write the new items; a short log is stored inline. Raises StateError."""
        builder = self._build(writer)
        if builder.bytes <= IN_ENTRY:
            refs += builder.refs
            writer.size += builder.outside_bytes
            writer.decode_cost += builder.outside_cost
            return builder.text
        return put_list(builder, writer, refs)

    def put(self, writer: Writer, refs: list[str]) -> None:
        """Write the new items, even of a short log. Raises StateError."""
        put_list(self._build(writer), writer, refs)

    def _build(self, writer: Writer) -> MerkleListBuilder:
        stored = self._stored(writer)
        builder, place = stored.end.copy(), stored.n
        leaf, leaf_place = stored.leaf, stored.leaf_n
        for tree in self._encoded(place, writer):
            if builder.at_leaf_start:
                leaf, leaf_place = builder.copy(), place
            add_item(tree, builder, writer)
            place += 1
        now = StoredList(builder, place, leaf, leaf_place)
        known = _Known(self._generation, self._encode.types, self._encode.policy.redactor, now)
        # Not a function that has the writer, which has the function: its objects would wait for the
        # garbage collector.
        writer.on_commit(partial(writer.write_cache.__setitem__, self._identity, known))
        return builder

    def _stored(self, writer: Writer) -> StoredList:
        """Return the prefix of these items that the store has."""
        found: _Known | None = writer.write_cache.get(self._identity)
        if found is None or not writer.trust_cache or found.types != self._encode.types:
            return StoredList()
        if found.redactor is not self._encode.policy.redactor:
            return StoredList()
        same = self._log._unchanged_since(found.generation)
        # A log that was cut or loaded after this capture has discarded its earlier cuts.
        if self._log._identity is not self._identity or self._log._generation != self._generation:
            return StoredList()
        most = self._count if same is None else min(same, self._count)
        return found.stored.resume(lambda n: n <= most)

    def _encoded(self, start: int, writer: Writer | None) -> Iterator[JsonValue]:
        for place, item in enumerate(self._items[start : self._count], start):
            with as_state_error(f"{self.path}[{place}]", item):
                tree, count = self._encode.redacted(item)
            if writer is not None:
                writer.redacted += count
            yield tree


class _Identity:
    """The identity of the content of a log: the weak key of caches in stores."""


class _Checked(NamedTuple):
    """The number of items that a policy has checked, and the generation of the log then."""

    policy: SavePolicy
    types: Mapping[str, type]
    generation: int
    n: int


class _Known(NamedTuple):
    """The prefix of a log that a store has, and the generation of the log at that time."""

    generation: int
    types: Mapping[str, type]
    redactor: Redactor | None
    stored: StoredList


ENCODERS[ImmutableDict] = ENCODERS[dict]
ENCODERS[ImmutableList] = ENCODERS[list]
ENCODERS[Log] = lambda encoder, log, depth: {
    "$log": log.frozen(ItemEncoder(encoder.types, depth, encoder.policy))
}
LOGS.append(Log)
LOG_ITEMS.append(LogItems)
SEQUENCES[Log] = lambda _, items: log_of(items)
ITEMS[Log] = raw_items
