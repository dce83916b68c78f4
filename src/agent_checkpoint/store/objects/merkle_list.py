"""Merkle lists: long lists stored as content-defined trees of objects. Owns the tree structure.

An item is a JSON text, which is not interpreted. Items are grouped into leaves, leaves into nodes.
The content determines where a leaf or node ends, so equal items form equal objects at any position:
an append, a trim at the front or an edit in the middle creates few new objects.

    leaf    a JSON array of items, about LEAF_BYTES bytes
    node    refers to about FAN_OUT leaves or nodes, in order
    spine   refers to all nodes and leaves that are not in a node yet, in order
    tail    the newest items after the last complete leaf, with references to earlier tails and to
            the spine. An append creates one new tail, not a new leaf

The tails after the last complete leaf are numbered from 1. Tail j refers to tail j-1, and to the
tails whose numbers result from clearing the lowest set bits of j-1 one by one. So a tail has few
references, and every earlier tail is a few steps away.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.objects.decode_budget import text_cost
from agent_checkpoint.store.objects.object_format import (
    LEAF,
    NODE,
    SPINE,
    TAIL,
    Object,
    TerminalRef,
)
from agent_checkpoint.store.objects.varint import read_varint, write_varint

LEAF_BYTES = 16384
SMALLEST_LEAF = LEAF_BYTES // 8
LARGEST_LEAF = 3 * LEAF_BYTES
SEGMENT_BYTES = 512
FAN_OUT = 32
LARGEST_FAN_OUT = 8 * FAN_OUT

Put = Callable[[bytes, bytes, Sequence[str]], str]
"""Adds an object to be written (kind, payload, references); returns its id."""


class MerkleListBuilder:
    """Builds the objects of one list, item by item. Copies are independent."""

    def __init__(self) -> None:
        self.bytes = 0
        self.outside_bytes = 0
        """Bytes of the out-of-line values of items; the caller of `add` counts them."""
        self.outside_cost = 0
        """Decode cost of those values."""
        self._leaves_cost = 0
        self._levels: list[list[str]] = []
        self._spine: str | None = None
        self._open_bytes = 0
        self._begin_leaf()

    def copy(self) -> MerkleListBuilder:
        """Return an independent builder with the same items."""
        twin = MerkleListBuilder.__new__(MerkleListBuilder)
        vars(twin).update(vars(self))
        twin._levels = [list(level) for level in self._levels]
        twin._texts, twin._refs = list(self._texts), list(self._refs)
        twin._ends, twin._tails = list(self._ends), list(self._tails)
        return twin

    @property
    def at_leaf_start(self) -> bool:
        """Whether all items so far are in complete leaves."""
        return not self._texts

    @property
    def text(self) -> bytes:
        """The items as one JSON array; valid while no leaf is complete."""
        return _array(self._texts)

    @property
    def decode_cost(self) -> int:
        """Decode cost of the list, including out-of-line values of its items."""
        tails = len(self._ends) + (self._open_bytes > 0)  # each is an array
        return self._leaves_cost + self._items_cost + tails + self.outside_cost

    @property
    def refs(self) -> list[str]:
        """The ids of the objects that `text` refers to."""
        return _flat(self._refs)

    def add(self, text: bytes, refs: Sequence[str], put: Put) -> None:
        """Add an item. `refs` are the ids of the objects that it refers to."""
        self._texts.append(text)
        self._refs.append(refs)
        size = len(text) + 1
        self.bytes += size
        self._leaf_bytes += size
        self._open_bytes += size
        self._items_cost += text_cost(text) + 1
        # Longer items are likelier to end a leaf, so that the size of leaves does not depend on
        # the size of items.
        ends = zlib.crc32(text) * LEAF_BYTES < size << 32 and self._leaf_bytes >= SMALLEST_LEAF
        if ends or self._leaf_bytes >= LARGEST_LEAF:
            self._end_leaf(put)
        elif self._open_bytes >= SEGMENT_BYTES:
            self._ends.append(len(self._texts))
            self._open_bytes = 0

    def extend(self, texts: Sequence[bytes], put: Put) -> tuple[MerkleListBuilder, int] | None:
        """Add items that have no references. Same result as `add` for each item, but faster.

        Returns:
            A copy of the builder at the last leaf boundary within `texts`, and the number of
            `texts` before that boundary; None if there is no such boundary.
        """
        crc32 = zlib.crc32
        leaf = (self.copy(), 0) if self.at_leaf_start else None
        start, whole = 0, self._leaf_bytes
        for place, text in enumerate(texts):
            size = len(text) + 1
            whole += size
            if (
                crc32(text) * LEAF_BYTES < size << 32 and whole >= SMALLEST_LEAF
            ) or whole >= LARGEST_LEAF:
                self._texts += texts[start : place + 1]
                self._refs += [()] * (place + 1 - start)
                self.bytes += whole - self._leaf_bytes
                self._end_leaf(put)
                start, whole = place + 1, 0
        if start:
            leaf = (self.copy(), start)
        for text in texts[start:]:
            self.add(text, (), put)
        return leaf

    def finish(self, put: Put) -> str:
        """Put the pending objects, and return the id of the list. More items may be added later."""
        if not self._texts:
            return self._spine_name(put)
        for number in range(len(self._tails) + 1, len(self._ends) + 1):
            self._tails.append(self._put_tail(number, self._ends[number - 1], put))
        if self._open_bytes:
            return self._put_tail(len(self._ends) + 1, len(self._texts), put)
        return self._tails[-1]

    def _begin_leaf(self) -> None:
        self._texts: list[bytes] = []
        self._refs: list[Sequence[str]] = []
        self._leaf_bytes = 0
        self._items_cost = 0  # with their commas
        self._open_bytes = 0  # of the items after the last end of a tail
        self._ends: list[int] = []
        self._tails: list[str] = []

    def _end_leaf(self, put: Put) -> None:
        refs = _flat(self._refs)
        text = _array(self._texts)
        self._leaves_cost += text_cost(text)
        leaf = put(LEAF, text, refs)
        child = leaf if refs else TerminalRef(leaf)
        self._begin_leaf()
        self._spine = None
        for group in self._levels:
            group.append(child)
            if len(group) < 2 or (int(child[-8:], 16) % FAN_OUT and len(group) < LARGEST_FAN_OUT):
                return
            child = put(NODE, b"", group)
            group.clear()
        self._levels.append([child])

    def _spine_name(self, put: Put) -> str:
        if self._spine is None:
            # The higher a level, the earlier its items.
            names = [name for level in reversed(self._levels) for name in level]
            self._spine = put(SPINE, b"", names)
        return self._spine

    def _put_tail(self, number: int, end: int, put: Put) -> str:
        start = self._ends[number - 2] if number > 1 else 0
        refs = [self._tails[earlier - 1] for earlier in _earlier(number)]
        if self._levels:
            refs.append(self._spine_name(put))
        has_spine = b"\1" if self._levels else b"\0"
        refs += _flat(self._refs[start:end])
        text = _array(self._texts[start:end])
        return put(TAIL, write_varint(number) + has_spine + text, refs)


class StoredList(NamedTuple):
    """A stored list: a builder with all items, and a builder without the items of the last leaf.

    Callers must copy a builder before they add to it.
    """

    end: MerkleListBuilder = MerkleListBuilder()
    n: int = 0
    leaf: MerkleListBuilder = MerkleListBuilder()
    leaf_n: int = 0

    def resume(self, is_same: Callable[[int], bool]) -> StoredList:
        """Return the prefix shared with another list: all items, all but the last leaf, or none.

        Args:
            is_same: returns whether the first n items of the two lists are equal.
        """
        if is_same(self.n):
            return self
        if is_same(self.leaf_n):
            return StoredList(self.leaf, self.leaf_n, self.leaf, self.leaf_n)
        return StoredList()


def read_list(root: str, get: Callable[[str], Object]) -> Iterator[tuple[str, bytes]]:
    """Iterate over the JSON arrays of a list, in order, each with the id of its object.

    Args:
        root: the id of the list, as returned by `finish`.
        get: returns an object by id.

    Raises:
        IntegrityError: the objects are not a Merkle list.
    """
    if get(root).kind != TAIL:
        yield from _below(root, get)
        return
    segments: dict[int, tuple[str, bytes]] = {}
    names = [root]
    spine: list[str] | None = None
    while names:
        name = names.pop()
        tail = get(name)
        number, has_spine, text = _read_tail(tail)
        if number in segments:
            continue
        segments[number] = (name, text)
        earlier = len(list(_earlier(number)))
        names += tail.refs[:earlier]
        own = list(tail.refs[earlier : earlier + has_spine])
        if spine is not None and spine != own:
            raise IntegrityError(f"The list {root} is malformed: its tails have different spines.")
        spine = own
    if sorted(segments) != list(range(1, len(segments) + 1)):
        raise IntegrityError(f"The list {root} is malformed: a tail is missing.")
    for name in spine or ():
        yield from _below(name, get)
    for number in range(1, len(segments) + 1):
        yield segments[number]


def read_new_arrays(root: str, get: Callable[[str], Object], seen: set[str]) -> Iterator[bytes]:
    """Iterate over the JSON arrays of a list whose objects are not in `seen`, in any order.

    Adds the objects to `seen`. Lists of successive checkpoints share almost all objects, so each
    further list costs only its new objects.

    Raises:
        IntegrityError: the objects are not a Merkle list.
    """
    stack = [root]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        found = get(name)
        if found.kind == LEAF:
            yield found.payload
        elif found.kind == TAIL:
            number, has_spine, text = _read_tail(found)
            stack += found.refs[: len(list(_earlier(number))) + has_spine]
            yield text
        elif found.kind in (NODE, SPINE):
            stack += found.refs
        else:
            raise _malformed(root)


def _below(root: str, get: Callable[[str], Object]) -> Iterator[tuple[str, bytes]]:
    stack = [root]
    while stack:
        name = stack.pop()
        found = get(name)
        if found.kind == LEAF:
            yield name, found.payload
        elif found.kind == NODE and found.refs:
            stack += reversed(found.refs)
        elif found.kind == SPINE and name == root:
            stack += reversed(found.refs)  # none, if the list is empty
        else:
            raise _malformed(root)


def _malformed(root: str) -> IntegrityError:
    return IntegrityError(
        f"The list {root} is malformed: it refers to an object of an unexpected kind."
    )


def _read_tail(tail: Object) -> tuple[int, bool, bytes]:
    if tail.kind != TAIL:
        raise IntegrityError("The tail of a list refers to an object of an unexpected kind.")
    number, at = read_varint(tail.payload, 0)
    flag = tail.payload[at : at + 1]
    has_spine = flag == b"\1"
    if flag not in (b"\0", b"\1"):
        raise IntegrityError("The tail of a list is truncated.")
    if number < 1 or len(tail.refs) < len(list(_earlier(number))) + has_spine:
        raise IntegrityError("The tail of a list lacks references.")
    return number, has_spine, tail.payload[at + 1 :]


def _earlier(number: int) -> Iterator[int]:
    number -= 1
    while number:
        yield number
        number &= number - 1


def _array(texts: Sequence[bytes]) -> bytes:
    return b",".join((b"[" + texts[0], *texts[1:])) + b"]" if texts else b"[]"


def _flat(refs: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for some in refs for name in some))
