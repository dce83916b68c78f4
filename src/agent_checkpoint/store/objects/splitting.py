"""Splits states into objects: large values are stored out of line, and checkpoints share them.

Owns the split points and the five tags that replace out-of-line values. Works on encoded JSON, not
on Python objects.

    {"$ref": id}            a JSON value
    {"$list": id}           a long list, as a Merkle list
    {"$map": id}            a JSON object with many members, as a Merkle list of [key, value]
    {"$text": [id, …]}      a long string, in chunks
    {"$blob": [id, …]}      bytes, in chunks; base64 where states are stored inline

The tags cannot collide with tags of the codec or with user keys: the codec does not use them, and
it escapes a user key that begins with `$` by a second `$`.
"""

from __future__ import annotations

import binascii
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.canonical_json import write_all_json, write_json
from agent_checkpoint.store.objects.decode_budget import pieces_cost, text_cost
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder
from agent_checkpoint.store.objects.object_format import (
    BLOB,
    TEXT,
    PackedObject,
    TerminalRef,
    make_object,
)
from agent_checkpoint.store.objects.writer import Writer

IN_ENTRY = 1024
"""Maximum length of a value as JSON inside an entry; longer values are stored out of line."""
IN_OBJECT = 4096
"""Maximum length of a value as JSON inside an out-of-line list or JSON object."""
LARGEST_TEXT = 16384
"""Maximum length of a JSON object; a longer one becomes a Merkle list of its members."""
_LONGEST_TAG = 100
_SHORT = frozenset({int, bool, float, type(None)})
PIECE = 1 << 20
"""Bytes of `$blob`, or characters of `$text`, per chunk."""


def as_base64(data: bytes | bytearray) -> str:
    """Return bytes as base64. The module `base64` takes a while to load."""
    return binascii.b2a_base64(data, newline=False).decode()


class OutOfLineValue(ABC):
    """A value in a tree that stores itself out of line."""

    @abstractmethod
    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Put the objects of the value, add their root ids to `refs`; return the tag as JSON."""

    @abstractmethod
    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the value as plain JSON, for readable stores; put objects that are not JSON."""


class BlobValue(OutOfLineValue):
    """Bytes, stored as `$blob`."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Put the bytes as objects, in chunks."""
        pieces = [self.data[at : at + PIECE] for at in range(0, len(self.data), PIECE)]
        return _put_pieces("$blob", pieces, writer, refs)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the bytes as base64."""
        return as_base64(self.data)


class SharedValue(OutOfLineValue):
    """A JSON value that is an object of its own, whatever its length: equal values share it."""

    def __init__(self, tree: JsonValue) -> None:
        self.tree = tree
        self._made: tuple[str, PackedObject, int] | None = None

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Put the value as an object, unless its tag is all that is left of it."""
        made, self._made = self._made, None  # for one more use: a third one is rare
        if made is None:
            below: list[str] = []
            text = _text(self.tree, IN_OBJECT, writer, below)
            if len(text) <= _LONGEST_TAG:
                refs += below
                return text
            if below:
                return _put_text(text, len(text), writer, below, refs)
            name, plain = make_object(TEXT, text)
            made = self._made = name, PackedObject(*plain), text_cost(text)
        name, packed, decode_cost = made
        writer.adopt({name: packed})
        writer.size += packed.size - packed.start
        writer.decode_cost += decode_cost
        refs.append(TerminalRef(name))
        return write_json({"$ref": name})

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the value."""
        return self.tree


def split_parts(
    parts: Mapping[str, JsonValue], writer: Writer
) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the JSON text of each part, and the ids of the objects that the texts refer to."""
    refs: list[str] = []
    texts = {name: _text(tree, IN_ENTRY, writer, refs) for name, tree in parts.items()}
    return texts, tuple(dict.fromkeys(refs))


def inline_parts(parts: Mapping[str, JsonValue], writer: Writer) -> dict[str, JsonValue]:
    """Return parts as plain JSON; put objects that are not JSON into the writer."""
    return {name: inline_tree(tree, writer) for name, tree in parts.items()}


def inline_tree(tree: Any, writer: Writer | None = None) -> Any:
    """Return a tree as plain JSON, without out-of-line values."""
    if isinstance(tree, OutOfLineValue):
        return inline_tree(tree.inline(writer), writer)
    if isinstance(tree, bytes):
        return BlobValue(tree).inline()
    if type(tree) is list:
        return [inline_tree(item, writer) for item in tree]
    if type(tree) is dict:
        return {key: inline_tree(item, writer) for key, item in tree.items()}
    return tree


def add_item(value: JsonValue, builder: MerkleListBuilder, writer: Writer) -> None:
    """Add an item to a list. A large item is split into several objects."""
    refs: list[str] = []
    text = b""
    if not isinstance(value, OutOfLineValue):
        with suppress(TypeError):  # it contains an OutOfLineValue
            text = write_json(value)
    if not text or len(text) > IN_OBJECT:
        size, decode_cost = writer.size, writer.decode_cost
        text = _text(value, IN_OBJECT, writer, refs)
        # Counted by the builder, which keeps the sum with the item: a log puts an item only once.
        builder.outside_bytes += writer.size - size
        builder.outside_cost += writer.decode_cost - decode_cost
        writer.size, writer.decode_cost = size, decode_cost
    builder.add(text, refs, writer.put)


def put_list(builder: MerkleListBuilder, writer: Writer, refs: list[str]) -> bytes:
    """Put the objects of a list; return its `$list` tag as JSON."""
    return _put_sequence("$list", builder, writer, refs)


def _text(value: Any, limit: int, writer: Writer, refs: list[str]) -> bytes:
    """Return the JSON text of a value; values longer than the limit are stored out of line."""
    if _room(value, limit) >= 0:
        return write_json(value)
    if isinstance(value, str):
        pieces = [value[at : at + PIECE].encode() for at in range(0, len(value), PIECE)]
        return _put_pieces("$text", pieces, writer, refs)
    if isinstance(value, list):
        return _list(value, limit, writer, refs)
    if isinstance(value, dict):
        return _dict(value, limit, writer, refs)
    return value.store(writer, refs) if isinstance(value, OutOfLineValue) else write_json(value)


def _list(value: list[Any], limit: int, writer: Writer, refs: list[str]) -> bytes:
    if len(value) * _LONGEST_TAG <= limit and all(type(item) is SharedValue for item in value):
        return b"[" + b",".join([item.store(writer, refs) for item in value]) + b"]"
    builder = MerkleListBuilder()
    texts: list[bytes] = []
    with suppress(TypeError):  # it contains an OutOfLineValue
        texts = write_all_json(value)
    if texts and max(map(len, texts)) <= IN_OBJECT:
        builder = writer.lists.build(texts, writer)
    else:
        for item in value:
            add_item(item, builder, writer)
    return put_list(builder, writer, refs)


def _dict(value: dict[str, Any], limit: int, writer: Writer, refs: list[str]) -> bytes:
    below: list[str] = []
    if len(value) == 1:
        # A tag of the codec: its payload is split, the tag itself stays.
        ((key, only),) = value.items()
        return b"{%b:%b}" % (write_json(key), _text(only, limit, writer, refs))
    members: list[tuple[bytes, bytes, list[str]]] = []
    size = 2
    for key, item in value.items():
        names: list[str] = []
        key_text = write_json(key)
        is_short = type(item) in _SHORT or (type(item) is str and len(item) <= limit)
        text = write_json(item) if is_short else _text(item, limit, writer, names)
        members.append((key_text, text, names))
        size += len(key_text) + len(text) + 2
        below += names
    if size > LARGEST_TEXT:
        builder = MerkleListBuilder()
        for key_text, text, names in members:
            builder.add(b"[%b,%b]" % (key_text, text), names, writer.put)
        return _put_sequence("$map", builder, writer, refs)
    whole = b"{" + b",".join(b"%b:%b" % (key_text, text) for key_text, text, _ in members) + b"}"
    if size <= limit:
        refs += below
        return whole
    return _put_text(whole, size, writer, below, refs)


def _put_text(text: bytes, size: int, writer: Writer, below: list[str], refs: list[str]) -> bytes:
    """Put a JSON text as an object that refers to the objects below; return its `$ref` tag."""
    writer.size += size
    writer.decode_cost += text_cost(text)
    name = writer.put(TEXT, text, list(dict.fromkeys(below)))
    refs.append(name if below else TerminalRef(name))
    return write_json({"$ref": name})


def _put_sequence(tag: str, builder: MerkleListBuilder, writer: Writer, refs: list[str]) -> bytes:
    refs.append(builder.finish(writer.put))
    writer.size += builder.bytes + builder.outside_bytes
    writer.decode_cost += builder.decode_cost
    return write_json({tag: refs[-1]})


def _put_pieces(tag: str, pieces: list[bytes], writer: Writer, refs: list[str]) -> bytes:
    names: list[JsonValue] = []
    writer.decode_cost += pieces_cost(pieces, is_text=tag == "$text")
    for piece in pieces:
        writer.size += len(piece)
        name = writer.put(BLOB, piece)
        names.append(name)
        refs.append(TerminalRef(name))
    return write_json({tag: names})


def _room(value: Any, room: int) -> int:
    """Subtract the estimated length of a value from `room`; negative if the value does not fit."""
    kind = type(value)
    if kind is str:
        return room - len(value)
    if kind in _SHORT:
        return room - 4
    if kind is dict:
        room -= 4 * len(value) + 2
        room -= sum(map(len, value)) if room >= 0 else 0
        items = value.values()
    elif kind is list:
        room -= len(value) + 2
        items = value
    else:
        return -1 if isinstance(value, OutOfLineValue) else room - 4
    for item in items:
        # Without a call for each string and number: there are many.
        kind = type(item)
        if kind is str:
            room -= len(item)
        elif kind in _SHORT:
            room -= 4
        else:
            room = _room(item, room)
        if room < 0:
            break
    return room
