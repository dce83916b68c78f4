"""Reads the values of states that are stored as objects. Owns fetching and the decode limits.

Resolves the tags of `splitting`; does not interpret other JSON in the objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import JsonValue, is_object_id, short_repr
from agent_checkpoint.store.canonical_json import read_json
from agent_checkpoint.store.objects.decode_budget import (
    DecodeBudget,
    PackedSizes,
    content_allowance,
    text_cost,
)
from agent_checkpoint.store.objects.merkle_list import read_list
from agent_checkpoint.store.objects.object_cache import ObjectCache
from agent_checkpoint.store.objects.object_format import (
    BLOB,
    STATE_KINDS,
    TEXT,
    Object,
    missing_objects,
    open_object,
)
from agent_checkpoint.store.objects.splitting import OutOfLineValue
from agent_checkpoint.store.objects.trust import report_lost

MAX_STATE = 1 << 30
"""The largest state that is written or read (1 GiB). Shared objects could expand to any size."""
_SLACK = 1 << 20
_BYTES_PER_USE = 256
"""Minimum bytes of a state per use of an object. Limits the number of uses, so that a load ends.

It is half the size of the smallest value that is stored as an object, so a valid state has at most
half as many uses.
"""
_MEMORY_PER_COST = 8
"""Typical bytes of memory per unit of decode cost, in addition to the JSON text."""

TAGS = frozenset({"$ref", "$list", "$map", "$text", "$blob"})
OBJECT = "$object"
"""Tag of an object that is not JSON. gc, verify and export follow it; load does not resolve it."""

_BATCH = 256

Share = Callable[[list[Any]], list[Any]]
"""Makes parsed JSON items immutable, so that loads can share them."""


class ObjectSource(Protocol):
    """A source of objects: a backend or an archive."""

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return those of the given objects that exist, by id."""


class Reader:
    """Reads the objects of some checkpoints; verifies the hash of every object."""

    def __init__(
        self,
        source: ObjectSource,
        cache: ObjectCache | None = None,
        *,
        states: Sequence[Mapping[str, JsonValue]],
        most: int | None = None,
    ) -> None:
        """Create a reader.

        Args:
            source: where objects are read from.
            cache: a cache of objects.
            states: the parts of each checkpoint or record that is read, each at most once.
            most: the maximum size of a state, if less than MAX_STATE.
        """
        self.source = source
        self._cache = ObjectCache() if cache is None else cache
        self._objects: dict[str, Object] = {}
        self._trees = [tree for parts in states for tree in parts.values()]
        self._measured: PackedSizes = {}
        self._budget = DecodeBudget(len(states), self._allowance)
        self._max_bytes = len(states) * (MAX_STATE if most is None else most) + _SLACK
        self._max_uses = self._max_bytes // _BYTES_PER_USE
        self._bytes_left = self._max_bytes + self._max_uses  # brackets of arrays come on top
        self._uses_left = self._max_uses

    def fetch(self, trees: Iterable[JsonValue]) -> None:
        """Read all objects that stored trees refer to, directly or indirectly.

        Raises:
            IntegrityError: an object is missing or damaged.
            FormatError: an object is compressed with zstd, which is not installed.
            StorageError: the medium failed.
        """
        names = set(object_names(trees)) - self._objects.keys()
        while names:
            cached = {name: self._cache.get(name) for name in names}
            objects = {name: item for name, item in cached.items() if item is not None}
            for name, item in fetch_objects(self.source, names - objects.keys()):
                objects[name] = item
                self._cache.put_object(name, item)
            self._objects.update(objects)
            refs = [item.refs for item in objects.values() if item.kind in STATE_KINDS]
            names = set().union(*refs) - self._objects.keys()

    def text(self, name: Any) -> bytes:
        """Return the JSON text that `$ref` refers to. Raises IntegrityError."""
        return self._counted(self._get(name, TEXT).payload)

    def arrays(self, name: Any, share: Share | None = None) -> Iterator[tuple[list[Any], bool]]:
        """Iterate over the arrays of a `$list` or `$map`, each with whether it is free of tags.

        Args:
            name: the id of the list.
            share: applied to arrays without tags, whose items are then shared with later loads.

        Raises:
            IntegrityError: the objects are not a Merkle list.
        """
        for part, text in self.array_texts(name):
            items = self._cache.get_array(part, is_shared=share is not None)
            if items is not None:
                yield items, True
                continue
            items = read_array(text)
            is_plain = is_tag_free(text)
            if is_plain and share is not None:
                items = share(items)
            if is_plain and self._cache.is_wanted_again(part):
                size = len(text) + _MEMORY_PER_COST * text_cost(text)
                self._cache.put_array(part, items, size, is_shared=share is not None)
            yield items, is_plain

    def array_texts(self, name: Any) -> Iterator[tuple[str, bytes]]:
        """Iterate over the arrays of a `$list` or `$map` as JSON, each with the id of its object.

        Raises:
            IntegrityError: the objects are not a Merkle list.
        """
        for part, text in read_list(_checked(name), self._get):
            yield part, self._counted(text)

    def blob(self, names: Any, *, is_text: bool = False) -> bytes:
        """Return the bytes that `$blob` or `$text` refers to. Raises IntegrityError."""
        if not isinstance(names, list):
            raise IntegrityError("Invalid $text or $blob tag: expected a list of object ids.")
        pieces = [self._get(name, BLOB).payload for name in names]
        self._count(sum(map(len, pieces)))
        self._budget.add_pieces(pieces, is_text=is_text)
        return b"".join(pieces)

    def tree(self, tag: str, payload: Any) -> Any:
        """Return the value of a tag. Tags inside the value are not resolved.

        Raises:
            IntegrityError: the objects are not of the kind that the tag requires.
        """
        if tag == "$ref":
            return read_json(self.text(payload))
        if tag == "$text":
            return _decoded(self.blob(payload, is_text=True))
        if tag == "$blob":
            return self.blob(payload)
        items = [item for array, _ in self.arrays(payload) for item in array]
        return items if tag == "$list" else as_members(items)

    def _get(self, name: Any, kind: bytes | None = None) -> Object:
        item = self._objects.get(name) if isinstance(name, str) else None
        if item is None:
            raise missing_objects([_checked(name)])
        self._uses_left -= 1
        if self._uses_left < 0:
            raise IntegrityError(
                f"The state exceeds the decode limit of {self._max_uses:,} object references."
            )
        if kind is not None and item.kind != kind:
            raise IntegrityError(
                f"The object {name} has the kind {item.kind!r}, but its tag requires {kind!r}."
            )
        return item

    def _counted(self, text: bytes) -> bytes:
        self._count(len(text))
        self._budget.add_text(text)
        return text

    def _allowance(self, enough: int) -> int:
        """Return the decode cost that the content of all parts allows, loaded or not."""
        return content_allowance(object_names(self._trees), enough, self._fetched, self._measured)

    def _fetched(self, names: Iterable[str]) -> Iterator[tuple[str, Object]]:
        others = [name for name in names if name not in self._objects]
        yield from ((name, self._objects[name]) for name in names if name in self._objects)
        yield from fetch_objects(self.source, others)

    def _count(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise IntegrityError(
                f"The state exceeds the decode limit of {self._max_bytes:,} bytes."
            )


def resolve_parts(parts: Mapping[str, JsonValue], reader: Reader) -> dict[str, Any]:
    """Fetch the objects of all parts, and return the parts as `resolve_tree` does.

    Raises:
        IntegrityError: an object is missing or damaged, or of a kind that its tag does not allow.
        StorageError: the medium failed.
    """
    reader.fetch(parts.values())
    return {name: resolve_tree(tree, reader) for name, tree in parts.items()}


def resolve_tree(tree: Any, reader: Reader | None) -> Any:
    """Return a tree with every tag replaced by its value.

    The value of `$blob` is bytes; bytes that are stored inline stay base64.

    Raises:
        IntegrityError: an object does not have the kind that its tag requires, or the tree has
            tags and `reader` is None.
    """
    try:
        return _resolve(tree, reader)
    except RecursionError:
        raise IntegrityError("The state exceeds the nesting limit.") from None


def _resolve(tree: Any, reader: Reader | None) -> Any:
    if isinstance(tree, OutOfLineValue):
        return tree.inline()
    if isinstance(tree, list):
        return [_resolve(item, reader) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = tag_of(tree)
    if tag is None:
        return {key: _resolve(item, reader) for key, item in tree.items()}
    if reader is None:
        raise IntegrityError(
            "The state contains references to stored objects, but no store was passed."
        )
    value = reader.tree(tag, tree[tag])
    return value if isinstance(value, (str, bytes)) else _resolve(value, reader)


def tag_of(tree: Any) -> str | None:
    """Return the tag if a tree is one of the tags of `splitting`, otherwise None."""
    if isinstance(tree, dict) and len(tree) == 1:
        (tag,) = tree
        if tag in TAGS:
            return str(tag)
    return None


def object_names(trees: Iterable[Any]) -> Iterator[str]:
    """Iterate over the ids of objects that stored trees refer to. Raises IntegrityError."""
    stack = list(trees)
    while stack:
        tree = stack.pop()
        if isinstance(tree, list):
            stack += tree
        elif isinstance(tree, dict):
            tag = OBJECT if len(tree) == 1 and OBJECT in tree else tag_of(tree)
            if tag is None:
                stack += tree.values()
            else:
                names = tree[tag]
                yield from map(_checked, names if isinstance(names, list) else [names])


def fetch_objects(source: ObjectSource, names: Iterable[str]) -> Iterator[tuple[str, Object]]:
    """Iterate over objects; verify the hash of each.

    Raises:
        IntegrityError: an object is missing or damaged.
        FormatError: an object is compressed with zstd, which is not installed.
        StorageError: the medium failed.
    """
    ordered = list(names)
    for at in range(0, len(ordered), _BATCH):
        batch = ordered[at : at + _BATCH]
        stored = source.get_objects(batch)
        lost = [name for name in batch if name not in stored]
        if lost:
            report_lost(source, lost)
            raise missing_objects(lost)
        for name in batch:
            yield name, open_object(name, stored[name])


def is_tag_free(text: bytes) -> bool:
    """Return whether a JSON text certainly has no tag, so that its value needs no resolving."""
    return b"$" not in text


def read_array(text: bytes) -> list[Any]:
    """Return the items of a JSON array. Raises IntegrityError."""
    items = read_json(text)
    if not isinstance(items, list):
        raise IntegrityError("The payload of a list object is not a JSON array.")
    return items


def as_members(items: list[Any]) -> dict[str, Any]:
    """Return the JSON object with these [key, value] members. Raises IntegrityError."""
    members: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
            raise IntegrityError("A member of a map is not a [key, value] pair.")
        members[item[0]] = item[1]
    if len(members) != len(items):
        raise IntegrityError("A map has a duplicate key.")
    return members


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise IntegrityError("The content of a $text tag is not valid UTF-8.") from None


def _checked(name: Any) -> str:
    if not is_object_id(name):
        raise IntegrityError(f"Invalid object id {short_repr(name)}.")
    return str(name)
