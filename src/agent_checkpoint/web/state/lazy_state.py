"""Stored states, read lazily and within a byte budget.

Values are shown from the stored JSON: no class, registered type or pickle is loaded.
Only the beginning of a long string and the displayed items of a long list are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.canonical_json import read_json
from agent_checkpoint.store.objects.merkle_list import read_list, read_new_arrays
from agent_checkpoint.store.objects.object_format import BLOB, TEXT, Object
from agent_checkpoint.store.objects.reader import (
    OBJECT,
    ObjectSource,
    as_members,
    fetch_objects,
    read_array,
    tag_of,
)
from agent_checkpoint.store.objects.splitting import PIECE
from agent_checkpoint.web.masking import mask

MAX_READ = 128 << 20
"""Bytes of objects read for one page."""
MAX_SHOWN = 1_500_000
"""Characters of values on one page."""
_ACCESS_COST = 256
"""Cost of a cached object, so that a walk over many cached objects is limited as well."""
_ITEM_COST = 48
"""Cost of an item of a long list in addition to its text, because small items also take memory."""
_MAX_DEPTH = 200
_MAX_DIGITS = 3_500
"""Maximum hex digits of a number: Python converts at most 4,300 decimal digits."""

SCALAR, STRING, LIST, MAP, OPAQUE = "scalar", "text", "list", "map", "closed"


_MASK_MARGIN = 10_000
"""Longer than any secret."""


class ReadLimitExceeded(Exception):
    """A page would read more than its byte budget."""


class Shape(NamedTuple):
    """A stored value, one level deep."""

    kind: str
    type: str
    """The type name, such as `tuple` or `Coder`."""
    tree: Any
    """The value, or its tagged form."""


class StateReader:
    """Reads stored values of one store for one page, within a byte budget."""

    def __init__(self, source: ObjectSource, most: int = MAX_READ) -> None:
        self._source = source
        self._bytes_left = most
        self._objects: dict[str, Object] = {}
        self._lists: dict[str, list[Any]] = {}
        self.chars_left = MAX_SHOWN
        """Characters that the page may still show."""

    def get(self, name: str) -> Object:
        """Return an object. Raises IntegrityError, ReadLimitExceeded, StorageError."""
        stored = self._objects.get(name)
        if stored is None:
            ((_, stored),) = fetch_objects(self._source, [name])
            self._objects[name] = stored
            self.charge(len(stored.payload))
        self.charge(_ACCESS_COST)
        return stored

    def clear_cache(self) -> None:
        """Drop cached objects. The byte budget does not change."""
        self._objects.clear()
        self._lists.clear()

    def charge(self, size: int) -> None:
        """Charge bytes that are read to the budget. Raises ReadLimitExceeded."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise ReadLimitExceeded

    def shape(self, tree: Any) -> Shape:
        """Return the kind and type of a value. Raises IntegrityError, ReadLimitExceeded."""
        word = ""
        for _ in range(20):  # nested tags
            if isinstance(tree, str):
                return Shape(STRING, word or "text", tree)
            if isinstance(tree, list):
                return Shape(LIST, word or "list", tree)
            if not isinstance(tree, dict):
                return Shape(SCALAR, word or _TYPES.get(type(tree), "value"), tree)
            tag = next(iter(tree)) if len(tree) == 1 else ""
            if not tag.startswith("$") or tag.startswith("$$"):
                name = tree.get("__class__")
                return Shape(MAP, word or (name if isinstance(name, str) else "dict"), tree)
            if tag_of(tree) == "$ref":
                tree = self._text(tree["$ref"])
            elif tag == "$map":
                return Shape(MAP, word or "dict", tree)
            elif tag == "$list":
                return Shape(LIST, word or "list", tree)
            elif tag == "$text":
                return Shape(STRING, word or "text", tree)
            elif tag == "$int" and (number := large_int(tree)) is not None:
                return Shape(SCALAR, "number", number)
            elif tag in ("$blob", "$bytes", "$bytearray", "$pickle", OBJECT):
                return Shape(OPAQUE, tag[1:].replace("blob", "bytes"), tree[tag])
            else:
                word = "" if tag in ("$state", "$str") else tag[1:]
                tree = tree[tag]
        return Shape(OPAQUE, "value", None)

    def items(self, shape: Shape, start: int = 0, most: int | None = None) -> list[Any]:
        """Return items of a list. Raises IntegrityError, ReadLimitExceeded."""
        items = self._items(shape)
        return items[start:] if most is None else items[start : start + most]

    def size(self, shape: Shape) -> int:
        """Return the number of items or members. Raises IntegrityError, ReadLimitExceeded."""
        if shape.kind == LIST:
            return len(self._items(shape))
        return len(self.members(shape)) if shape.kind == MAP else 0

    def members(self, shape: Shape) -> dict[str, Any]:
        """Return the members of a map by their original names. Raises IntegrityError."""
        tree = shape.tree
        if tag_of(tree) == "$map":
            tree = as_members(self._sequence(tree["$map"]))
        return {name[1:] if name.startswith("$$") else name: item for name, item in tree.items()}

    def text(self, shape: Shape, most: int) -> tuple[str, int]:
        """Return the beginning of a string, secrets masked, and its approximate total length."""
        text, whole = self.unmasked_text(shape, most)
        return masked_start(text, most), whole

    def unmasked_text(self, shape: Shape, most: int) -> tuple[str, int]:
        """Return at least the beginning of a string, and its approximate total length."""
        if isinstance(shape.tree, str):
            return shape.tree, len(shape.tree)
        names = shape.tree["$text"]
        if not isinstance(names, list):
            raise IntegrityError("Damaged state: expected a list of chunk ids.")
        got: list[str] = []
        length = 0
        for name in names:
            if length >= most:
                break
            piece = self._piece(name)
            got.append(piece)
            length += len(piece)
        whole = length if len(got) == len(names) else len(names) * PIECE
        return "".join(got), whole

    def child(self, tree: Any, path: list[int]) -> Any:
        """Return the value at a path of child indexes. Raises IntegrityError, KeyError."""
        for step in path[:_MAX_DEPTH]:
            tree = self.children(self.shape(tree), step, 1)[0][1]
        return tree

    def children(self, shape: Shape, start: int, most: int) -> list[tuple[str, Any]]:
        """Return children of a list or map, from an index on. Raises IntegrityError, KeyError."""
        if shape.kind == LIST:
            items = self.items(shape, start, most)
            children = [(str(start + index), item) for index, item in enumerate(items)]
        elif shape.kind == MAP:
            children = list(islice(self.members(shape).items(), start, start + most))
        else:
            children = []
        if start and not children:
            raise KeyError(start)
        return children

    def _items(self, shape: Shape) -> list[Any]:
        tree = shape.tree
        if isinstance(tree, dict):
            return self._sequence(tree["$list"])
        return list(tree)

    def _sequence(self, name: Any) -> list[Any]:
        if not isinstance(name, str):
            raise IntegrityError("Damaged state: invalid object id.")
        if name not in self._lists:
            found: list[Any] = []
            for _, text in read_list(name, self.get):
                items = read_array(text)
                # Few objects can expand to any number of items.
                self.charge(len(text) + _ITEM_COST * len(items))
                found += items
            self._lists[name] = found
        return self._lists[name]

    def _text(self, name: Any) -> Any:
        if not isinstance(name, str) or self.get(name).kind != TEXT:
            raise IntegrityError("Damaged state: expected a text object.")
        return read_json(self.get(name).payload)

    def _piece(self, name: Any) -> str:
        if not isinstance(name, str) or self.get(name).kind != BLOB:
            raise IntegrityError("Damaged state: expected a chunk of a string.")
        return self.get(name).payload.decode("utf-8", "replace")


def new_items(tree: Any, seen: set[str], reader: StateReader) -> Iterator[Any]:
    """Iterate over list items in objects that were not visited before."""
    shape = reader.shape(tree)
    if shape.kind != LIST:
        return
    if isinstance(shape.tree, list):
        yield from shape.tree
        return
    for text in read_new_arrays(str(shape.tree["$list"]), reader.get, seen):
        yield from read_array(text)


def masked_start(text: str, most: int) -> str:
    """Return the beginning of a text, masked before it is cut: a cut secret is not recognized."""
    return mask(text[: most + _MASK_MARGIN])[:most]


def large_int(tree: Any) -> int | None:
    """Return a number stored as hex digits; None if it has too many to convert."""
    text = tree["$int"]
    try:
        return int(text, 16) if isinstance(text, str) and len(text) <= _MAX_DIGITS else None
    except ValueError:
        return None


_TYPES = {type(None): "none", bool: "bool", int: "number", float: "number"}
