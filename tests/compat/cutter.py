"""States cut into objects by the rules of docs/format-v1.md, with the standard library alone.

The second half of the proof: `reader.py` shows that the page is enough to read, this that it is
enough to name what the library names, and so to share objects with it. Also the files of a
workspace.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

IN_PART, IN_ITEM = 1024, 4096
PIECE = 1 << 20
CHUNKED_ABOVE = 1_000_000
WIDE_FROM, MOST_IN_A_PART = 512, 1024


class Named(NamedTuple):
    """The name of an object, and whether it is an end."""

    name: str
    is_end: bool = False


class Bytes(NamedTuple):
    data: bytes


class LogItems(NamedTuple):
    items: list[Any]


class Elsewhere(NamedTuple):
    """What `$object` stands for."""

    name: str


class Stored(NamedTuple):
    """A directory: its id, and the name of its topmost object."""

    id: bytes
    name: str


Cut = tuple[str, list[Named]]
"""A JSON text, and what its tags name."""


def cut_part(tree: Any) -> str:
    """Return the text of a part whose state is a whole tree."""
    return cut(marked(tree), IN_PART)[0]


def marked(tree: Any) -> Any:
    """Return a tree in which base64 of many bytes, and the items of logs, can be told."""
    if isinstance(tree, list):
        return [marked(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    done = {key: marked(item) for key, item in tree.items()}
    if len(tree) == 1:
        ((tag, payload),) = tree.items()
        if tag in ("$bytes", "$bytearray"):
            return {tag: large(payload)}
        if tag in ("$ndarray", "$pickle"):
            return {tag: {**done[tag], "data": large(payload["data"])}}
        if tag == "$log":
            return {tag: LogItems(done[tag])}
        if tag == "$object":
            return Elsewhere(payload)
    return done


def large(text: str) -> Any:
    data = base64.b64decode(text)
    return Bytes(data) if len(data) >= 1024 else text


def length(value: Any) -> float:
    if isinstance(value, (Bytes, LogItems, Elsewhere)):
        return float("inf")
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return 2 + sum(1 + length(item) for item in value)
    if isinstance(value, dict):
        return 2 + sum(4 + len(key) + length(item) for key, item in value.items())
    return 4


def cut(value: Any, limit: int) -> Cut:
    if length(value) <= limit:
        return text_of(value), []
    if isinstance(value, (str, Bytes)):
        tag = "$text" if isinstance(value, str) else "$blob"
        data: Any = value if isinstance(value, str) else value.data
        pieces = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
        names = [
            name_of(b"b", piece.encode() if isinstance(piece, str) else piece) for piece in pieces
        ]
        return text_of({tag: names}), [Named(name, True) for name in names]
    if isinstance(value, Elsewhere):
        return as_tag("$object", value.name)
    if isinstance(value, LogItems):
        items = [cut_item(item) for item in value.items]
        if sum(len(text.encode()) + 1 for text, _ in items) <= 1024:
            return array([text for text, _ in items]), unique(items)
        return as_tag("$list", sequence(items))
    if isinstance(value, list):
        return as_tag("$list", sequence([cut_item(item) for item in value]))
    if len(value) == 1:
        ((key, only),) = value.items()
        text, refs = cut(only, limit)
        return f"{{{text_of(key)}:{text}}}", refs
    members = [(text_of(key), *cut(item, limit)) for key, item in value.items()]
    size = 2 + sum(len(key.encode()) + len(text.encode()) + 2 for key, text, _ in members)
    if size > 16384:
        return as_tag("$map", sequence([(f"[{key},{text}]", refs) for key, text, refs in members]))
    whole = "{" + ",".join(f"{key}:{text}" for key, text, _ in members) + "}"
    refs = unique([(text, below) for _, text, below in members])
    if size <= limit:
        return whole, refs
    name = name_of(b"t", whole.encode(), refs)
    return text_of({"$ref": name}), [Named(name, not refs)]


def cut_item(item: Any) -> Cut:
    if length(item) != float("inf"):
        text = text_of(item)
        if len(text.encode()) <= IN_ITEM:
            return text, []
    return cut(item, IN_ITEM)


def sequence(items: list[Cut]) -> str:
    """Return the name of a list of items."""
    levels: list[list[Named]] = []
    size = 0
    leaf: list[Cut] = []
    for text, refs in items:
        leaf.append((text, refs))
        own = len(text.encode()) + 1
        size += own
        by_content = size >= 2048 and zlib.crc32(text.encode()) * 16384 < own * 2**32
        if by_content or size >= 49152:
            below = unique(leaf)
            name = name_of(b"l", array([text for text, _ in leaf]).encode(), below)
            add(levels, Named(name, not below))
            leaf, size = [], 0
    spine = name_of(b"s", b"", [ref for level in levels[::-1] for ref in level])
    return tail_of(leaf, spine if levels else None) if leaf else spine


def add(levels: list[list[Named]], child: Named) -> None:
    for group in levels:
        group.append(child)
        if len(group) < 2 or (int(child.name[-8:], 16) % 32 and len(group) < 256):
            return
        child = Named(name_of(b"n", b"", group))
        group.clear()
    levels.append([child])


def tail_of(items: list[Cut], spine: str | None) -> str:
    segments: list[list[Cut]] = [[]]
    for item in items:
        if sum(len(text.encode()) + 1 for text, _ in segments[-1]) >= 512:
            segments.append([])
        segments[-1].append(item)
    names: list[Named] = []
    for number, segment in enumerate(segments, 1):
        refs = []
        earlier = number - 1
        while earlier:
            refs.append(names[earlier - 1])
            earlier &= earlier - 1
        if spine is not None:
            refs.append(Named(spine))
        refs += unique(segment)
        head = varint(number) + (b"\0" if spine is None else b"\1")
        text = array([text for text, _ in segment]).encode()
        names.append(Named(name_of(b"e", head + text, refs)))
    return names[-1].name


# -- workspaces ------------------------------------------------------------------------------------


def cut_snapshot(files: Mapping[bytes, tuple[bytes, int, bytes]], **said: Any) -> tuple[str, str]:
    """Return the name of a snapshot, and the id of its tree.

    Args:
        files: type, mode and bytes by path, as `reader.read_snapshot` gives them.
        said: what else the record says: `ignore`, `gitignore`, `notes`.
    """
    root = cut_directory(files, b"")
    below = [data for kind, _, data in files.values() if kind != b"d"]
    record = {"id": root.id.hex(), "files": len(below), "bytes": sum(map(len, below)), **said}
    payload = json.dumps(record, separators=(",", ":")).encode("ascii")
    return name_of(b"r", payload, [Named(root.name)]), root.id.hex()


def cut_directory(files: Mapping[bytes, tuple[bytes, int, bytes]], path: bytes) -> Stored:
    names = sorted(
        place[len(path) :]
        for place in files
        if place.startswith(path) and b"/" not in place[len(path) :]
    )
    parts = [cut_part_of_directory(files, path, part) for part in cut_names(names)]
    if len(parts) == 1:
        return parts[0]
    identity = hashlib.sha256(b"wide\0" + b"".join(part.id for part in parts)).digest()
    return Stored(identity, name_of(b"w", b"", [Named(part.name) for part in parts]))


def cut_names(names: list[bytes]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    for name in names:
        part.append(name)
        is_cut = zlib.crc32(name) % 128 == 0 or len(part) == MOST_IN_A_PART
        if len(names) >= WIDE_FROM and is_cut:
            yield part
            part = []
    if part or not names:
        yield part


def cut_part_of_directory(
    files: Mapping[bytes, tuple[bytes, int, bytes]], path: bytes, names: list[bytes]
) -> Stored:
    payload, identity = b"", b"tree\0"
    refs: list[Named] = []
    for name in names:
        kind, mode, data = files[path + name]
        size = 0 if kind == b"d" else len(data)
        rest = struct.pack("<HBQ", mode, len(name), size) + name
        if kind == b"l":
            payload += b"l" + rest + data
            identity += b"l" + rest + data
            continue
        if kind == b"d":
            below = cut_directory(files, path + name + b"/")
            content = below.id
            refs.append(Named(below.name))
            payload += b"d" + rest + content
        else:
            content = hashlib.sha256(b"b\0" + data).digest()
            if size > CHUNKED_ABOVE:
                refs.append(Named(cut_chunks(data, content)))
                payload += b"c" + rest + content
            else:
                refs.append(Named(content.hex(), True))
                payload += b"f" + rest
        identity += kind + rest + content
    return Stored(hashlib.sha256(identity).digest(), name_of(b"d", payload, refs))


def cut_chunks(data: bytes, content: bytes) -> str:
    chunks = [data[at : at + PIECE] for at in range(0, len(data), PIECE)]
    payload = struct.pack("<Q", len(data)) + content
    return name_of(b"c", payload, [Named(name_of(b"b", chunk), True) for chunk in chunks])


# -- names -----------------------------------------------------------------------------------------


def name_of(kind: bytes, payload: bytes, refs: list[Named] = []) -> str:  # noqa: B006
    flags = bytearray((len(refs) + 7) // 8)
    for place, ref in enumerate(refs):
        flags[place // 8] |= ref.is_end << place % 8
    names = b"".join(bytes.fromhex(ref.name) for ref in refs)
    return hashlib.sha256(kind + varint(len(refs)) + flags + names + payload).hexdigest()


def varint(number: int) -> bytes:
    done = b""
    while number >= 128:
        done += bytes([number % 128 + 128])
        number //= 128
    return done + bytes([number])


def unique(items: list[Cut]) -> list[Named]:
    """Return what items name, each once, in order of first use."""
    return list(dict.fromkeys(ref for _, refs in items for ref in refs))


def as_tag(tag: str, name: str) -> Cut:
    return text_of({tag: name}), [Named(name)]


def array(texts: list[str]) -> str:
    return "[" + ",".join(texts) + "]"


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
