"""Values of channels as readable trees: LangGraph serializes, this module makes the result JSON.

LangGraph's serializer packs a value as msgpack, with objects as extension types. A tree is the same
data as dicts and lists, in which an extension is `{"ext:<code>": data}`. So strings can be read,
redacted and searched, and equal items of a list are stored once. Any other serialization, and data
that a tree cannot express, is `{"serde": [type, bytes]}`. Only the serializer makes objects.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agent_checkpoint.core.log import Log, raw_items
from agent_checkpoint.core.shared import Shared, SharedConstant

_OPTIONS = ormsgpack.OPT_NON_STR_KEYS
_GROUP = 64
"""Items that are serialized together: small enough for the cache of a processor."""
_EXT = "ext:"
_SERDE = "serde"
_SHARED = 512
"""Bytes from which an item is an object of its own, which a write and the channel share."""
_MOST_WRITTEN = 64
_LARGEST_WRITTEN = 4096

Written = dict[bytes, SharedConstant]
"""Items of recent writes by their serialized form, for the channel that they are added to."""


class ValueCodec:
    """Encodes values as trees with a serializer of LangGraph, and decodes them."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self.serde = serde
        self.is_msgpack = isinstance(serde, JsonPlusSerializer)
        """Whether serialized values can be made readable."""

    def encode(self, value: Any) -> Any:
        """Return the tree of a value. Raises what the serializer raises."""
        return self.tree(*self.serde.dumps_typed(value))

    def tree(self, kind: str, data: bytes) -> Any:
        """Return the tree of a serialized value."""
        if self.is_msgpack and kind == "null":
            return None
        if self.is_msgpack and kind == "msgpack":
            # Extensions of others need not contain msgpack, and imported data may be damaged.
            with suppress(ValueError, RecursionError):
                found, again = _unpacked_and_packed(data)
                # A dict of the user may look like an extension, and not all packs the same way.
                if not _is_serialized(found) and again == data:
                    return found
        return {_SERDE: [kind, data]}

    def encode_write(self, value: Any, written: Written) -> Any:
        """Return the tree of a write; its items are shared with the channel that they are added to.

        Raises what the serializer raises.
        """
        if type(value) is list:
            return [self._written_item(item, written) for item in value]
        return self._written_item(value, written)

    def _written_item(self, value: Any, written: Written) -> Any:
        kind, data = self.serde.dumps_typed(value)
        if not _SHARED <= len(data) <= _LARGEST_WRITTEN or kind != "msgpack":
            return self.item(kind, data)
        if len(written) >= _MOST_WRITTEN:
            written.clear()
        made = written[data] = SharedConstant(self.tree(kind, data))
        return made

    def item(self, kind: str, data: bytes, written: Written | None = None) -> Any:
        """Return the tree of a serialized item of a list; an object of its own if it is large."""
        if len(data) < _SHARED:
            return self.tree(kind, data)
        known = written.pop(data, None) if written and kind == "msgpack" else None
        return known or Shared(self.tree(kind, data))

    def serialized(self, tree: Any) -> tuple[str, bytes]:
        """Return the serialized value that a tree was made of."""
        if tree is None:
            return "null", b""
        if _is_serialized(tree):
            kind, data = tree[_SERDE]
            return kind, data
        return "msgpack", _packed(tree)

    def decode(self, tree: Any) -> Any:
        """Return the value of a tree. Raises what the serializer raises."""
        if _is_serialized(tree):
            kind, data = tree[_SERDE]
            return self.serde.loads_typed((kind, data))
        return self._revived(tree)

    def decode_channel(self, value: Any) -> Any:
        """Return the value of a channel: a log of items, or a tree. See `ListChannel`."""
        if isinstance(value, Log):
            return [self.decode(item) for item in value.to_list()]
        return self.decode(value["value"])

    def _revived(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is list:
            return [self._revived(item) for item in tree]
        if kind is dict:
            if _code(tree) is not None:
                return self.serde.loads_typed(("msgpack", _packed(tree)))
            return {key: self._revived(item) for key, item in tree.items()}
        return tree


class ListChannel:
    """The last value of a channel that is a list, as a log: a save writes the new items only.

    Lists are compared in serialized form, so that an item that was changed in place is noticed.
    """

    def __init__(self, codec: ValueCodec, written: Written) -> None:
        self._codec = codec
        self._written = written
        self._packed: list[bytes] = []
        """The serialized items, in groups."""
        self.log: Log[Any] = Log()

    def update(self, value: list[Any]) -> Log[Any]:
        """Make the log equal to a list, and return it. Raises what the serializer raises."""
        codec = self._codec
        packed = [
            self._pack(value[at : at + _GROUP], at // _GROUP) for at in range(0, len(value), _GROUP)
        ]
        same = self._same(value, packed)
        self.log.truncate(same)
        self._packed = []  # until the log has all items
        self.log.extend(
            codec.item(*codec.serde.dumps_typed(item), self._written) for item in value[same:]
        )
        self._packed = packed
        return self.log

    def _pack(self, items: list[Any], position: int) -> bytes:
        """Return the serialized items of a group; nothing if they cannot be compared so."""
        kind, packed = self._codec.serde.dumps_typed(items)
        if not self._codec.is_msgpack or kind != "msgpack":
            return b""
        # The known ones if they are equal: the new ones are freed while they are in the cache.
        known = self._packed[position : position + 1]
        return known[0] if known == [packed] else packed

    def _same(self, value: list[Any], packed: list[bytes]) -> int:
        """Return how many items at the beginning are those of the log."""
        count = len(self.log)
        for position, known in enumerate(self._packed):
            begin = position * _GROUP
            if position < len(packed) and known and _begins_with(packed[position], known):
                continue
            return begin + self._same_items(value[begin : begin + _GROUP], begin)
        return count if self._packed else self._same_items(value, 0)

    def _same_items(self, items: list[Any], begin: int) -> int:
        """Return how many items are those of the log from a position on, one by one."""
        codec, same = self._codec, 0
        for item, known in zip(items, raw_items(self.log)[begin:]):
            if _form(codec.item(*codec.serde.dumps_typed(item))) != _form(known):
                break
            same += 1
        return same


def _form(item: Any) -> bytes:
    """Return an item of a log as bytes: they differ for 1 and true, which are equal in Python."""
    return ormsgpack.packb(item.value if isinstance(item, Shared) else item, option=_OPTIONS)


def _begins_with(packed: bytes, known: bytes) -> bool:
    """Return whether a serialized list begins with the items of another one."""
    if packed == known:  # most groups: without a copy
        return True
    # Packed items are self-delimiting: an equal beginning is as many equal items.
    return packed.startswith(known[_head_size(known) :], _head_size(packed))


def _head_size(packed: bytes) -> int:
    """Return the size of the head of a serialized list, which has the number of items."""
    return {b"\xdc": 3, b"\xdd": 5}.get(packed[:1], 1)


def _unpacked_and_packed(data: bytes) -> tuple[Any, bytes]:
    """Return the tree of serialized data, and the tree serialized again."""
    if _EXT.encode() not in data:  # no dict looks like an extension
        with suppress(ValueError):  # it has extensions
            found = ormsgpack.unpackb(data, option=_OPTIONS)
            return found, ormsgpack.packb(found, option=_OPTIONS)
    found = _unpacked(data)
    return found, _packed(found)


def _unpacked(data: bytes) -> Any:
    def extension(code: int, inner: bytes) -> Any:
        return {f"{_EXT}{code}": _unpacked(inner)}

    return ormsgpack.unpackb(data, ext_hook=extension, option=_OPTIONS)


def _packed(tree: Any) -> bytes:
    return ormsgpack.packb(_with_extensions(tree), option=_OPTIONS)


def _with_extensions(tree: Any) -> Any:
    kind = type(tree)
    if kind is list:
        return [_with_extensions(item) for item in tree]
    if kind is dict:
        code = _code(tree)
        if code is not None:
            (inner,) = tree.values()
            return ormsgpack.Ext(code, _packed(inner))
        return {key: _with_extensions(item) for key, item in tree.items()}
    return tree


def _code(tree: dict[Any, Any]) -> int | None:
    """Return the code of an extension; None for another dict."""
    if len(tree) != 1:
        return None
    (key,) = tree
    if not isinstance(key, str) or not key.startswith(_EXT):
        return None
    text = key[len(_EXT) :]
    return int(text) if text.isdecimal() and text.isascii() and len(text) <= 3 else None


def _is_serialized(tree: Any) -> bool:
    return type(tree) is dict and len(tree) == 1 and _SERDE in tree
