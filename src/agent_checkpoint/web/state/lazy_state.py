"""Stored states, looked into step by step. Owns reading no more than is shown, within bounds.

Nothing is decoded to Python objects: no class, no registered type and no pickle of a checkpoint is
ever touched. A long text is read from its beginning, a long list where it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from agent_checkpoint.errors import IntegrityError
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

MOST_READ = 128 << 20
"""Bytes of objects that are read for one page."""
MOST_SHOWN = 1_500_000
"""Characters on one page, whatever there is to show."""
_A_STEP = 256
"""What a look at an object counts that is known already: going through many of them ends."""
_AN_ITEM = 48
"""What an item of a long list counts beside its text: small ones take memory, too."""
_DEEPEST = 200
_MOST_DIGITS = 3_500
"""Hex digits of a number: Python writes no more than 4,300 decimal ones."""

SCALAR, WORDS, LIST, MAP, CLOSED = "scalar", "text", "list", "map", "closed"


class TooLarge(Exception):
    """There is more to read than one page reads."""


class Shape(NamedTuple):
    """What a stored tree is, one level deep."""

    kind: str
    type: str
    """The word for it, such as `tuple` or `Coder`."""
    tree: Any
    """The value, or what stands for it."""


class Peek:
    """Looks into trees of one store, for one page."""

    def __init__(self, source: ObjectSource, most: int = MOST_READ) -> None:
        self._source = source
        self._left = most
        self._known: dict[str, Object] = {}
        self._lists: dict[str, list[Any]] = {}
        self.room = MOST_SHOWN
        """How many characters the page still takes."""

    def get(self, name: str) -> Object:
        """Return an object. Raises IntegrityError, TooLarge, StorageError."""
        found = self._known.get(name)
        if found is None:
            ((_, found),) = fetch_objects(self._source, [name])
            self._known[name] = found
            self._take(len(found.payload))
        self._take(_A_STEP)
        return found

    def forget(self) -> None:
        """Keep nothing of what was read; what is left to be read stays as it is."""
        self._known.clear()
        self._lists.clear()

    def charge(self, size: int) -> None:
        """Count bytes that are read elsewhere. Raises TooLarge."""
        self._take(size)

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge

    def shape(self, tree: Any) -> Shape:
        """Return what a tree is. Raises IntegrityError, TooLarge."""
        word = ""
        for _ in range(20):  # tags within tags
            if isinstance(tree, str):
                return Shape(WORDS, word or "text", tree)
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
                return Shape(WORDS, word or "text", tree)
            elif tag == "$int" and (number := large_int(tree)) is not None:
                return Shape(SCALAR, "number", number)
            elif tag in ("$blob", "$bytes", "$bytearray", "$pickle", OBJECT):
                return Shape(CLOSED, tag[1:].replace("blob", "bytes"), tree[tag])
            else:
                word = "" if tag in ("$state", "$str") else tag[1:]
                tree = tree[tag]
        return Shape(CLOSED, "value", None)

    def items(self, shape: Shape, start: int = 0, most: int | None = None) -> list[Any]:
        """Return items of a list. Raises IntegrityError, TooLarge."""
        items = self._items(shape)
        return items[start:] if most is None else items[start : start + most]

    def size(self, shape: Shape) -> int:
        """Return how many items or members there are. Raises IntegrityError, TooLarge."""
        if shape.kind == LIST:
            return len(self._items(shape))
        return len(self.members(shape)) if shape.kind == MAP else 0

    def members(self, shape: Shape) -> dict[str, Any]:
        """Return the members of a map, by the names that they had. Raises IntegrityError."""
        tree = shape.tree
        if tag_of(tree) == "$map":
            tree = as_members(self._sequence(tree["$map"]))
        return {name[1:] if name.startswith("$$") else name: item for name, item in tree.items()}

    def text(self, shape: Shape, most: int) -> tuple[str, int]:
        """Return the beginning of a text, and about how many characters all of it has."""
        if isinstance(shape.tree, str):
            return shape.tree[:most], len(shape.tree)
        names = shape.tree["$text"]
        if not isinstance(names, list):
            raise IntegrityError("Damaged state: not a list of pieces.")
        got: list[str] = []
        length = 0
        for name in names:
            if length >= most:
                break
            piece = self._piece(name)
            got.append(piece)
            length += len(piece)
        whole = length if len(got) == len(names) else len(names) * PIECE
        return "".join(got)[:most], whole

    def child(self, tree: Any, path: list[int]) -> Any:
        """Return what stands at a place below a tree. Raises IntegrityError, KeyError."""
        for step in path[:_DEEPEST]:
            tree = self.children(self.shape(tree), step, 1)[0][1]
        return tree

    def children(self, shape: Shape, start: int, most: int) -> list[tuple[str, Any]]:
        """Return what is in a list or map, from a place on. Raises IntegrityError, KeyError."""
        if shape.kind == LIST:
            items = self.items(shape, start, most)
            found = [(str(start + place), item) for place, item in enumerate(items)]
        elif shape.kind == MAP:
            found = list(islice(self.members(shape).items(), start, start + most))
        else:
            found = []
        if start and not found:
            raise KeyError(start)
        return found

    def _items(self, shape: Shape) -> list[Any]:
        tree = shape.tree
        if isinstance(tree, dict):
            return self._sequence(tree["$list"])
        return list(tree)

    def _sequence(self, name: Any) -> list[Any]:
        if not isinstance(name, str):
            raise IntegrityError("Damaged state: not the name of an object.")
        if name not in self._lists:
            found: list[Any] = []
            for _, text in read_list(name, self.get):
                items = read_array(text)
                # Few objects can stand for any number of items.
                self._take(len(text) + _AN_ITEM * len(items))
                found += items
            self._lists[name] = found
        return self._lists[name]

    def _text(self, name: Any) -> Any:
        if not isinstance(name, str) or self.get(name).kind != TEXT:
            raise IntegrityError("Damaged state: expected a text object.")
        return read_json(self.get(name).payload)

    def _piece(self, name: Any) -> str:
        if not isinstance(name, str) or self.get(name).kind != BLOB:
            raise IntegrityError("Damaged state: expected a piece of a text.")
        return self.get(name).payload.decode("utf-8", "replace")


def new_items(tree: Any, seen: set[str], peek: Peek) -> Iterator[Any]:
    """Iterate over the items of a list that stand in objects which were not seen before."""
    shape = peek.shape(tree)
    if shape.kind != LIST:
        return
    if isinstance(shape.tree, list):
        yield from shape.tree
        return
    for text in read_new_arrays(str(shape.tree["$list"]), peek.get, seen):
        yield from read_array(text)


def large_int(tree: Any) -> int | None:
    """Return a number that is stored as hex digits, unless it has too many to be written."""
    text = tree["$int"]
    try:
        return int(text, 16) if isinstance(text, str) and len(text) <= _MOST_DIGITS else None
    except ValueError:
        return None


_TYPES = {type(None): "none", bool: "bool", int: "number", float: "number"}
