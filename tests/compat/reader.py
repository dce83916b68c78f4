"""A reader of stores and archives that knows docs/format-v1.md and the standard library, no more.

It imports nothing of the package: what it can read, a program in another language can read too.

    python tests/compat/reader.py PATH      prints every state of a store or archive as JSON

`read_snapshot` gives the files of a workspace.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sqlite3
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FORMAT = 1
LARGEST_OBJECT = 1 << 25
APPLICATION_ID = 0x41434B50

HASH_MEMBER = re.compile(rb',\s*"sha256":\s*"([0-9a-f]{64})"\s*}\s*')
OUTSIDE = {"$ref", "$list", "$map", "$text", "$blob"}
ENTRY = struct.Struct("<cHBQ")
CHUNK_LIST = struct.Struct("<Q32s")
MOST_IN_A_PART = 1024
DEFAULTS: dict[str, Any] = {
    "kind": "save",
    "label": None,
    "tags": [],
    "metrics": {},
    "parents": [],
    "import": None,
    "size": 0,
}


class Refused(Exception):
    """It is damaged, or of a newer format."""


class Object(NamedTuple):
    kind: bytes
    refs: list[str]
    ends: list[bool]
    payload: bytes


class File(NamedTuple):
    """An entry of a directory: `f` and its bytes, `d`, or `l` and its text."""

    type: bytes
    mode: int
    data: bytes = b""


class Snapshot(NamedTuple):
    """The record of a workspace, and every file in it by path."""

    record: dict[str, Any]
    files: dict[bytes, File]


class Medium(NamedTuple):
    """Streams with their entries by number, and objects in their stored form by name."""

    streams: dict[str, dict[int, bytes]]
    objects: dict[str, bytes]


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the checkpoints of a store or archive by key, oldest first, with their whole parts."""
    medium = open_medium(path)
    check_format(medium.streams.get("meta/format", {}))
    hidden = {
        open_record(entry)["token"] for entry in medium.streams.get("meta/import", {}).values()
    }
    found: dict[str, list[dict[str, Any]]] = {}
    for stream, entries in sorted(medium.streams.items()):
        kind, _, key = stream.partition("/")
        if kind != "key":
            continue
        for seq, entry in sorted(entries.items()):
            checkpoint = read_checkpoint(key, seq, entry, medium)
            if checkpoint["import"] not in hidden:
                found.setdefault(key, []).append(checkpoint)
    return found


def read_checkpoint(key: str, seq: int, entry: bytes, medium: Medium) -> dict[str, Any]:
    record = {**DEFAULTS, **open_record(entry)}
    if record["key"] != key:
        raise Refused(f"entry {seq} of {key} says that it is of {record['key']}")
    parts = {name: whole(tree, medium) for name, tree in record["parts"].items()}
    return {
        **record,
        "id": f"{key}_{record['ts_ns']}-{seq}",
        "size": record["size"] or len(entry),
        "parts": parts,
    }


# -- entries ---------------------------------------------------------------------------------------


def open_record(entry: bytes) -> dict[str, Any]:
    match = HASH_MEMBER.search(entry, max(0, len(entry) - 100))
    if match is None or match.end() != len(entry):
        raise Refused("an entry has no hash")
    if hashlib.sha256(entry[: match.start()]).hexdigest().encode() != match[1]:
        raise Refused("an entry was changed")
    record: dict[str, Any] = json.loads(entry)
    if record["agent_checkpoint"] > FORMAT:
        raise Refused("an entry is of a newer format")
    return record


def check_format(entries: dict[int, bytes]) -> None:
    if entries:
        record = open_record(entries[max(entries)])
        if record["read"] > FORMAT or record["features"]:
            raise Refused("the store is of a newer format")


# -- states ----------------------------------------------------------------------------------------


def whole(tree: Any, medium: Medium) -> Any:
    """Return a tree with everything in its place that stands outside of it; bytes as base64."""
    if isinstance(tree, list):
        return [whole(item, medium) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree)) if len(tree) == 1 else None
    if tag not in OUTSIDE:
        return {key: whole(item, medium) for key, item in tree.items()}
    if tag in ("$text", "$blob"):
        data = b"".join(get(medium, name, b"b").payload for name in tree[tag])
        return data.decode() if tag == "$text" else base64.b64encode(data).decode()
    if tag == "$ref":
        return whole(json.loads(get(medium, tree[tag], b"t").payload), medium)
    items = [item for array in arrays(tree[tag], medium) for item in json.loads(array)]
    return whole(items if tag == "$list" else dict(items), medium)


def arrays(root: str, medium: Medium) -> Iterator[bytes]:
    """Iterate over the JSON arrays that make up a sequence, in order."""
    found = get(medium, root)
    if found.kind != b"e":
        yield from leaves(root, medium)
        return
    segments: dict[int, bytes] = {}
    spine = None
    todo = [root]
    while todo:
        tail = get(medium, todo.pop(), b"e")
        number, at = varint(tail.payload, 0)
        has_spine, at = tail.payload[at] == 1, at + 1
        if number in segments:
            continue
        segments[number] = tail.payload[at:]
        earlier = earlier_tails(number)
        todo += tail.refs[: len(earlier)]
        if has_spine:
            spine = tail.refs[len(earlier)]
    if sorted(segments) != list(range(1, len(segments) + 1)):
        raise Refused(f"the end of the sequence {root} has a gap")
    if spine is not None:
        yield from leaves(spine, medium)
    for number in sorted(segments):
        yield segments[number]


def leaves(name: str, medium: Medium) -> Iterator[bytes]:
    found = get(medium, name)
    if found.kind == b"l":
        yield found.payload
    elif found.kind in (b"n", b"s"):
        for ref in found.refs:
            yield from leaves(ref, medium)
    else:
        raise Refused(f"the object {name} is no part of a sequence")


def earlier_tails(number: int) -> list[int]:
    done = []
    number -= 1
    while number:
        done.append(number)
        number &= number - 1
    return done


# -- workspaces ------------------------------------------------------------------------------------


def read_snapshot(medium: Medium, name: str) -> Snapshot:
    """Return the snapshot that `$object` names, with every id in it made again and compared."""
    found = get(medium, name, b"r")
    record: dict[str, Any] = json.loads(found.payload)
    files: dict[bytes, File] = {}
    (root,) = found.refs
    if read_directory(medium, root, b"", files) != record["id"]:
        raise Refused(f"the tree of {name} has another id")
    below = [file for file in files.values() if file.type != b"d"]
    if record["files"] != len(below) or record["bytes"] != sum(len(file.data) for file in below):
        raise Refused(f"the tree of {name} has other files than its record says")
    return Snapshot(record, files)


def read_directory(medium: Medium, name: str, path: bytes, files: dict[bytes, File]) -> str:
    """Add what is in a directory and below it; return its id."""
    found = get(medium, name)
    parts = [get(medium, ref) for ref in found.refs] if found.kind == b"w" else [found]
    ids: list[bytes] = []
    names: list[bytes] = []
    for part in parts:
        if part.kind != b"d":
            raise Refused(f"the object {name} is no directory")
        identity = b"tree\0"
        refs = iter(part.refs)
        at = count = 0
        while at < len(part.payload):
            kind, mode, length, size = ENTRY.unpack_from(part.payload, at)
            at += ENTRY.size
            own = part.payload[at : at + length]
            at += length
            rest = part.payload[at : at + (size if kind == b"l" else 0 if kind == b"f" else 32)]
            at += len(rest)
            check_entry(own, kind, mode, size)
            ref = b"" if kind == b"l" else bytes.fromhex(next(refs))
            place = path + own
            if kind == b"l":
                files[place] = File(b"l", mode, rest)
            elif kind == b"d":
                files[place] = File(b"d", mode)
                if read_directory(medium, ref.hex(), place + b"/", files) != rest.hex():
                    raise Refused(f"the directory {place!r} has another id")
            else:
                data = read_file(medium, ref.hex(), kind, size, rest)
                files[place] = File(b"f", mode, data)
            named = b"f" if kind == b"c" else kind
            identity += ENTRY.pack(named, mode, length, size) + own + (rest or ref)
            names.append(own)
            count += 1
        if at != len(part.payload) or next(refs, None) is not None or count > MOST_IN_A_PART:
            raise Refused(f"the object {name} has not the form of a directory")
        ids.append(hashlib.sha256(identity).digest())
    if names != sorted(set(names)):
        raise Refused(f"the directory {name} has names twice or out of order")
    if found.kind == b"w":
        return hashlib.sha256(b"wide\0" + b"".join(ids)).hexdigest()
    return ids[0].hex()


def check_entry(name: bytes, kind: bytes, mode: int, size: int) -> None:
    is_name = 0 < len(name) <= 255 and name not in (b".", b"..") and not set(name) & set(b"/\0")
    is_size = {b"l": 0 < size < 4096, b"d": size == 0}.get(kind, True)
    if not is_name or not is_size or mode > 0o777 or kind not in (b"f", b"c", b"d", b"l"):
        raise Refused(f"an entry {name!r} that no directory can have")


def read_file(medium: Medium, ref: str, kind: bytes, size: int, content: bytes) -> bytes:
    if kind == b"f":
        data = get(medium, ref, b"b").payload
    else:
        chunks = get(medium, ref, b"c")
        if CHUNK_LIST.unpack(chunks.payload) != (size, content):
            raise Refused(f"the list {ref} is of another file")
        data = b"".join(get(medium, name, b"b").payload for name in chunks.refs)
        if hashlib.sha256(b"b\0" + data).digest() != content:
            raise Refused(f"the chunks of {ref} make up another file")
    if len(data) != size:
        raise Refused(f"the file {ref} has another size")
    return data


# -- objects ---------------------------------------------------------------------------------------


def get(medium: Medium, name: str, kind: bytes | None = None) -> Object:
    found = open_object(name, medium.objects[name])
    if kind is not None and found.kind != kind:
        raise Refused(f"the object {name} is of the kind {found.kind!r}")
    return found


def open_object(name: str, stored: bytes) -> Object:
    plain = unpack(stored)
    if hashlib.sha256(plain).hexdigest() != name:
        raise Refused(f"the object {name} was changed")
    count, at = varint(plain, 1)
    start = at + (count + 7) // 8
    end = start + 32 * count
    ends = [bool(plain[at + place // 8] >> place % 8 & 1) for place in range(count)]
    refs = [plain[place : place + 32].hex() for place in range(start, end, 32)]
    return Object(plain[:1], refs, ends, plain[end:])


def unpack(stored: bytes) -> bytes:
    codec = stored[:1]
    if codec == b"r":
        return stored[1:]
    size, at = varint(stored, 1)
    if size > LARGEST_OBJECT:
        raise Refused("an object is too large")
    if codec == b"z":
        plain = zlib.decompressobj().decompress(stored[at:], size + 1)
    elif codec == b"s":
        from compression import zstd  # type: ignore[import-not-found] # in Python 3.14

        plain = zstd.decompress(stored[at:])
    else:
        raise Refused(f"unknown codec {codec!r}")
    if len(plain) != size:
        raise Refused("an object does not unpack to its size")
    return plain


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


# -- media -----------------------------------------------------------------------------------------


def open_medium(path: Path) -> Medium:
    if path.is_file():
        return open_archive(path.read_bytes())
    if (path / "store.db").is_file():
        return open_sqlite(path)
    return open_files(path)


def open_sqlite(path: Path) -> Medium:
    head = (path / "store.db").read_bytes()[:100]
    if struct.unpack(">I", head[68:72]) != (APPLICATION_ID,):
        raise Refused("not a store")
    if struct.unpack(">I", head[60:64])[0] > 1:
        raise Refused("the database has a newer schema")
    # Immutable: nothing is written, not even a -shm file. Beside a -wal this would read too little.
    db = sqlite3.connect(f"{(path / 'store.db').resolve().as_uri()}?immutable=1", uri=True)
    streams: dict[str, dict[int, bytes]] = {}
    objects: dict[str, bytes] = {}
    try:
        for number, name in db.execute("SELECT id, name FROM streams"):
            found = {}
            rows = db.execute("SELECT seq, mark, data FROM entries WHERE stream = ?", (number,))
            for seq, mark, data in rows:
                if zlib.crc32(name + b"/%d/" % seq + data) != mark:
                    raise Refused(f"entry {seq} of {name!r} is not in its place")
                found[seq] = data
            if found:
                streams[name.decode()] = found
        for name, data in db.execute("SELECT id, data FROM objects"):
            loose = path / "objects" / name.hex()[:2] / name.hex()
            objects[name.hex()] = loose.read_bytes() if data is None else data
    finally:
        db.close()
    return Medium(streams, objects)


def open_files(path: Path) -> Medium:
    streams: dict[str, dict[int, bytes]] = {}
    for folder in path.iterdir():
        if not folder.is_dir() or folder.name in ("objects", ".tmp"):
            continue
        entries = {
            int(file.stem): file.read_bytes()
            for file in folder.iterdir()
            if re.fullmatch(r"[1-9][0-9]*\.json", file.name)
        }
        if entries:
            streams[stream_of(folder)] = entries
    objects = {file.name: file.read_bytes() for file in path.glob("objects/??/*")}
    return Medium(streams, objects)


def stream_of(folder: Path) -> str:
    if "~" in folder.name:
        return (folder / "name").read_bytes().decode()
    escaped = folder.name[1:] if folder.name.startswith(".") else "key/" + folder.name
    raw = re.sub(
        rb"%([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), escaped.encode("ascii")
    )
    return raw.decode()


def open_archive(data: bytes) -> Medium:
    magic, line_end, _ = data.partition(b"\n")
    name, _, version = magic.rpartition(b" ")
    if name != b"agent-checkpoint archive" or not line_end:
        raise Refused("not an archive")
    if int(version) > FORMAT:
        raise Refused("an archive of a newer format")
    key = ""
    entries: dict[int, bytes] = {}
    objects: dict[str, bytes] = {}
    at = len(magic) + 1
    kind = b""
    while at < len(data):
        start, kind = at, data[at : at + 1]
        length, at = varint(data, at + 1)
        content = data[at : at + length]
        at += length
        if kind == b"h":
            key = json.loads(content)["key"]
        elif kind == b"o":
            objects[content[:32].hex()] = content[32:]
        elif kind == b"c":
            seq, place = varint(content, 0)
            entries[seq] = content[place:]
        elif kind == b"z" and content != hashlib.sha256(data[:start]).digest():
            raise Refused("the archive was changed")
    if kind != b"z":
        raise Refused("the archive has no end")
    return Medium({f"key/{key}": entries}, objects)


if __name__ == "__main__":
    json.dump(read(Path(sys.argv[1])), sys.stdout, ensure_ascii=False, indent=1)
