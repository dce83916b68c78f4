"""Objects in a dict, for tests of what directories are made of."""

import struct
from collections.abc import Sequence
from typing import Optional

from agent_checkpoint.store.objects.object_format import Object, make_object

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
