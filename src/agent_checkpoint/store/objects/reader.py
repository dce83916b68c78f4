"""What was cut out of a state, read back. Owns fetching objects and the bounds of that.

Knows the tags of `splitting`, and nothing of what the JSON in the objects means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.records import Checkpoint, JsonValue, is_object_id
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

MAX_STATE = 1 << 30
"""The most bytes of a state, written or read: few objects can stand for any number (1 GiB)."""
_SLACK = 1 << 20
_A_STEP = 256
"""How many bytes of a state there are for each use of an object, so that going through many ends.

Half of the smallest that is cut out of a state: a sound one has half as many uses.
"""
_IN_MEMORY = 8
"""Bytes of memory for what weighs one, beside its text, as a rule."""

TAGS = frozenset({"$ref", "$list", "$map", "$text", "$blob"})
OBJECT = "$object"
"""Stands for an object that is no text: it is followed, and never put in its place."""

_BATCH = 256


class ObjectSource(Protocol):
    """Where objects are read from: a backend, or an archive."""

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return those of the objects that exist, by id."""


class Reader:
    """Gives what stands outside of the entries; every byte is checked against its name."""

    def __init__(
        self,
        source: ObjectSource,
        cache: ObjectCache | None = None,
        *,
        checkpoints: Sequence[Checkpoint],
        most: int | None = None,
    ) -> None:
        """Read from a source.

        Args:
            source: where the objects are.
            cache: what was read lately.
            checkpoints: whose states are read, each at most once. What they say of their size
                is not relied on: anybody can say anything.
            most: the most bytes that a state may have, if less than any other may.
        """
        self.source = source
        self._cache = ObjectCache() if cache is None else cache
        self._objects: dict[str, Object] = {}
        self._trees = [tree for checkpoint in checkpoints for tree in checkpoint.parts.values()]
        self._known: PackedSizes = {}
        self._scale = DecodeBudget(len(checkpoints), self._vouched)
        self._most = len(checkpoints) * (MAX_STATE if most is None else most) + _SLACK
        self._left = self._most + self._most // _A_STEP  # the brackets of arrays come on top
        self._steps = self._most // _A_STEP

    def fetch(self, trees: Iterable[JsonValue]) -> None:
        """Read all objects that stored trees need, level by level.

        Raises:
            IntegrityError: one is missing or damaged.
            FormatError: this installation cannot unpack one.
            StorageError: the medium failed.
        """
        wanted = set(object_names(trees)) - self._objects.keys()
        while wanted:
            kept = {name: self._cache.get(name) for name in wanted}
            found = {name: item for name, item in kept.items() if item is not None}
            for name, item in fetch_objects(self.source, wanted - found.keys()):
                found[name] = item
                self._cache.put_object(name, item)
            self._objects.update(found)
            refs = [item.refs for item in found.values() if item.kind in STATE_KINDS]
            wanted = set().union(*refs) - self._objects.keys()

    def text(self, name: Any) -> bytes:
        """Return the JSON text that `$ref` names. Raises IntegrityError."""
        return self._take(self._get(name, TEXT).payload)

    def arrays(self, name: Any) -> Iterator[tuple[list[Any], bool]]:
        """Iterate over the arrays that `$list` or `$map` names, and whether each is without tags.

        Raises:
            IntegrityError: the objects do not make up a list.
        """
        for part, text in read_list(_checked(name), self._get):
            self._take(text)
            items = self._cache.get_array(part)
            if items is not None:
                yield items, True
                continue
            items = read_array(text)
            is_plain = is_tag_free(text)
            if is_plain and self._cache.is_wanted_again(part):
                self._cache.put_array(part, items, len(text) + _IN_MEMORY * text_cost(text))
            yield items, is_plain

    def blob(self, names: Any, *, is_text: bool = False) -> bytes:
        """Return the bytes that `$blob` or `$text` names. Raises IntegrityError."""
        if not isinstance(names, list):
            raise IntegrityError("It is damaged: not a list of pieces.")
        pieces = [self._get(name, BLOB).payload for name in names]
        self._count(sum(map(len, pieces)))
        self._scale.add_pieces(pieces, is_text=is_text)
        return b"".join(pieces)

    def tree(self, tag: str, payload: Any) -> Any:
        """Return what a tag stands for as a tree, whose parts may be tags again.

        Raises:
            IntegrityError: the objects are not what the tag says.
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
        found = self._objects.get(_checked(name))
        if found is None:
            raise missing_objects([name])
        self._steps -= 1
        if self._steps < 0:
            raise IntegrityError(
                f"The state refers to objects more than {self._most // _A_STEP:,} times, which is "
                "more than it may have."
            )
        if kind is not None and found.kind != kind:
            raise IntegrityError(f"The object {name} is not of the kind that its use needs.")
        return found

    def _take(self, text: bytes) -> bytes:
        self._count(len(text))
        self._scale.add_text(text)
        return text

    def _vouched(self, enough: int) -> int:
        """Return what the content of all parts vouches for, also of those that nobody wants."""
        return content_allowance(object_names(self._trees), enough, self._fetched, self._known)

    def _fetched(self, names: Iterable[str]) -> Iterator[tuple[str, Object]]:
        others = [name for name in names if name not in self._objects]
        yield from ((name, self._objects[name]) for name in names if name in self._objects)
        yield from fetch_objects(self.source, others)

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise IntegrityError(
                f"The state has more than {self._most:,} bytes, which is more than it may have."
            )


def resolve_tree(tree: Any, reader: Reader | None) -> Any:
    """Return a tree in which nothing is cut out; bytes are bytes, or base64 if they were text.

    Raises:
        IntegrityError: the objects are not what the tags say, or there is no reader.
    """
    try:
        return _whole(tree, reader)
    except RecursionError:
        raise IntegrityError("It is nested too deeply to be one of ours.") from None


def _whole(tree: Any, reader: Reader | None) -> Any:
    if isinstance(tree, OutOfLineValue):
        return tree.inline()
    if isinstance(tree, list):
        return [_whole(item, reader) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = tag_of(tree)
    if tag is None:
        return {key: _whole(item, reader) for key, item in tree.items()}
    if reader is None:
        raise IntegrityError("It refers to objects of a store, and there is none.")
    found = reader.tree(tag, tree[tag])
    return found if isinstance(found, (str, bytes)) else _whole(found, reader)


def tag_of(tree: Any) -> str | None:
    """Return the tag of `splitting` that a tree is, if it is one."""
    if isinstance(tree, dict) and len(tree) == 1:
        (tag,) = tree
        if tag in TAGS:
            return str(tag)
    return None


def object_names(trees: Iterable[Any]) -> Iterator[str]:
    """Iterate over the names of objects that stored trees refer to. Raises IntegrityError."""
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
    """Iterate over objects, each checked against its name.

    Raises:
        IntegrityError: one is missing or damaged.
        FormatError: this installation cannot unpack one.
        StorageError: the medium failed.
    """
    wanted = list(names)
    for at in range(0, len(wanted), _BATCH):
        batch = wanted[at : at + _BATCH]
        found = source.get_objects(batch)
        lost = [name for name in batch if name not in found]
        if lost:
            raise missing_objects(lost)
        for name in batch:
            yield name, open_object(name, found[name])


def is_tag_free(text: bytes) -> bool:
    """Tell whether a JSON text has no tag in it for sure: its value is then what it parses to."""
    return b"$" not in text


def read_array(text: bytes) -> list[Any]:
    """Return the items of a JSON array. Raises IntegrityError."""
    items = read_json(text)
    if not isinstance(items, list):
        raise IntegrityError("A part of a list is no list.")
    return items


def as_members(items: list[Any]) -> dict[str, Any]:
    """Return the object that a sequence of its members is. Raises IntegrityError."""
    members: dict[str, Any] = {}
    for item in items:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
            raise IntegrityError("A part of an object is no member.")
        members[item[0]] = item[1]
    if len(members) != len(items):
        raise IntegrityError("An object has a member twice.")
    return members


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise IntegrityError("A text is not UTF-8.") from None


def _checked(name: Any) -> str:
    if not is_object_id(name):
        raise IntegrityError("It is damaged: not the name of an object.")
    return str(name)
