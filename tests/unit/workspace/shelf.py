"""Objects in a dict, and forged ones in a store, for tests of what is made of objects."""

import json
import struct
from collections.abc import Sequence
from typing import Any, Optional

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.store.objects import Object, make_object
from agent_checkpoint.store.references import ObjectRef
from agent_checkpoint.workspace.snapshots import RECORD

HEAD = struct.Struct("<cHBQ")


class Shelf:
    """Keeps what is put, by name; counts the bytes that are new."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.bytes = 0

    def put(self, kind: bytes, payload: bytes, refs: Sequence[str]) -> str:
        name, packed = make_object(kind, payload, refs)
        if name not in self.objects:
            self.objects[name] = Object(kind, tuple(refs), payload)
            self.bytes += len(packed.plain)
        return name

    def get(self, names: Sequence[str]) -> "list[Object]":
        return [self.objects[name] for name in names]


class Forger:
    """Puts whatever it is told into a store, as one who can write to it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def put(self, kind: bytes, payload: bytes = b"", refs: Sequence[str] = ()) -> str:
        name, packed = make_object(kind, payload, refs)
        self.backend.put_objects({name: packed.stored()})
        return name

    def blob(self, content: bytes = b"evil") -> str:
        return self.put(b"b", content)

    def snapshot(self, root: str, **fields: Any) -> ObjectRef:
        """Put the record of a tree."""
        record = {"id": "0" * 64, "files": 1, "bytes": 1, "ignore": [], "gitignore": False}
        payload = json.dumps({**record, "notes": [], **fields}).encode()
        return ObjectRef(self.put(RECORD, payload, [root]), self.backend)


def entry(
    name: bytes,
    kind: bytes = b"f",
    *,
    mode: int = 0o644,
    size: int = 4,
    rest: bytes = b"",
    length: Optional[int] = None,
) -> bytes:
    """Return an entry of a directory, sound or not, as the format's page has it."""
    return HEAD.pack(kind, mode, len(name) if length is None else length, size) + name + rest
