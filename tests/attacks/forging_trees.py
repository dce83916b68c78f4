"""Trees that no directory ever was, put straight into a store by whoever may write to it."""

import json
import os
import stat
import struct
from typing import Any

from agent_checkpoint.store.checkpoint_entries import seal_entry
from agent_checkpoint.store.objects.object_format import BLOB, TerminalRef, make_object
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.workspace.tree.tree_format import CHUNKS, DIRECTORY, WIDE, ContentHash

_HEAD = struct.Struct("<cHBQ")
ID = "00" * 32


def look(place: Any) -> "dict[str, Any]":
    """Return all that is in a directory, followed through no link."""
    found: dict[str, Any] = {}
    for above, folders, files in os.walk(place):
        for name in (*folders, *files):
            path = os.path.join(above, name)
            status = os.lstat(path)
            what: Any = None
            if stat.S_ISLNK(status.st_mode):
                what = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    what = file.read()
            found[os.path.relpath(path, place)] = (status.st_mode, what)
    return found


def entry(
    name: bytes,
    kind: bytes = b"f",
    *,
    mode: int = 0o644,
    size: int = 0,
    rest: bytes = b"",
    length: "int | None" = None,
) -> bytes:
    """Return the bytes of one entry, right or wrong; the reference is beside it."""
    return _HEAD.pack(kind, mode, len(name) if length is None else length, size) + name + rest


class Forger:
    """Puts objects and checkpoints into a store past all code that makes trees."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def put(self, kind: bytes, payload: bytes, refs: Any = ()) -> str:
        """Put an object; return its name."""
        name, packed = make_object(kind, payload, list(refs))
        self.store.backend.put_objects({name: packed.stored()})
        return name

    def blob(self, data: bytes) -> str:
        """Put a file's content; return its name, which is also its id."""
        return TerminalRef(self.put(BLOB, data))

    def file(self, name: bytes, data: bytes = b"", **how: Any) -> "tuple[bytes, list[str]]":
        """Return an entry and its reference."""
        return entry(name, size=len(data), **how), [self.blob(data)]

    def link(self, name: bytes, target: bytes, **how: Any) -> "tuple[bytes, list[str]]":
        """Return an entry, which has no reference."""
        how = {"mode": 0o777, "size": len(target), "rest": target, **how}
        return entry(name, b"l", **how), []

    def folder(
        self, name: bytes, *entries: "tuple[bytes, list[str]]", **how: Any
    ) -> "tuple[bytes, list[str]]":
        """Return the entry of a directory that has these, and its reference."""
        how = {"mode": 0o755, "rest": bytes.fromhex(ID), **how}
        return entry(name, b"d", **how), [self.directory(*entries)]

    def chunked(
        self, name: bytes, pieces: "list[bytes]", size: int, whole: "bytes | None" = None
    ) -> "tuple[bytes, list[str]]":
        """Return the entry of a file in chunks, of a size and content that it says it has."""
        content = ContentHash()
        content.add(b"".join(pieces) if whole is None else whole)
        head = struct.pack("<Q32s", size, bytes.fromhex(content.id()))
        names = [self.blob(piece) for piece in pieces]
        ref = self.put(CHUNKS, head, names)
        return entry(name, b"c", size=size, rest=bytes.fromhex(content.id())), [ref]

    def directory(self, *entries: "tuple[bytes, list[str]]") -> str:
        """Put a directory; return its name."""
        payload = b"".join(data for data, _ in entries)
        return self.put(DIRECTORY, payload, [ref for _, refs in entries for ref in refs])

    def wide(self, *parts: str) -> str:
        """Put a wide directory of parts; return its name."""
        return self.put(WIDE, b"", parts)

    def record(self, root: str, **changes: Any) -> ObjectRef:
        """Put the record of a tree; return what stands for it."""
        told = {
            "id": ID,
            "files": 1,
            "bytes": 1,
            "ignore": [],
            "gitignore": False,
            "notes": [],
            **changes,
        }
        return self.record_of(json.dumps(told).encode(), [root])

    def record_of(self, payload: bytes, refs: Any) -> ObjectRef:
        """Put a record of any bytes."""
        return ObjectRef(self.put(b"r", payload, refs), self.store.backend)

    def tree(self, *entries: "tuple[bytes, list[str]]") -> ObjectRef:
        """Put a tree whose root has these entries."""
        return self.record(self.directory(*entries))

    def checkpoint(self, key: str, tree: ObjectRef) -> None:
        """Append a checkpoint that holds a tree."""
        record = {
            "key": key,
            "ts_ns": 1_700_000_000_000_000_000,
            "kind": "save",
            "label": None,
            "tags": [],
            "metrics": {},
            "parents": [],
            "parts": {"workspace": {"$object": tree.name}},
        }
        self.store.backend.append(f"key/{key}", seal_entry(record))
