"""Objects in a dict, for tests of what is made of objects."""

from collections.abc import Sequence
from typing import Any

import pytest

from agent_checkpoint.core import log
from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.store import canonical_json
from agent_checkpoint.store.objects import merkle_list, reader, splitting
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder, read_list
from agent_checkpoint.store.objects.object_format import Object, make_object


class Shelf:
    """Keeps what is put, by name, and counts what is new."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.bytes = 0
        self.gets = 0

    def put(self, kind: bytes, payload: bytes, refs: Sequence[str] = ()) -> str:
        name, packed = make_object(kind, payload, refs)
        if name not in self.objects:
            self.objects[name] = Object(kind, tuple(refs), payload)
            self.bytes += len(packed.plain)
        return name

    def get(self, name: str) -> Object:
        self.gets += 1
        if name not in self.objects:
            raise IntegrityError(f"no {name}")
        return self.objects[name]

    def build(self, texts: "list[bytes]") -> str:
        builder = MerkleListBuilder()
        for text in texts:
            builder.add(text, (), self.put)
        return builder.finish(self.put)

    def read(self, root: str) -> "list[Any]":
        items: list[Any] = []
        for _, text in read_list(root, self.get):
            part = canonical_json.read_json(text)
            assert isinstance(part, list)
            items += part
        return items


def cut_small(patch: pytest.MonkeyPatch) -> None:
    """Have all limits so small that everything is cut, also in small states."""
    patch.setattr(merkle_list, "LEAF_BYTES", 64)
    patch.setattr(merkle_list, "SMALLEST_LEAF", 16)
    patch.setattr(merkle_list, "LARGEST_LEAF", 200)
    patch.setattr(merkle_list, "SEGMENT_BYTES", 12)
    patch.setattr(merkle_list, "FAN_OUT", 2)
    patch.setattr(merkle_list, "LARGEST_FAN_OUT", 3)
    patch.setattr(splitting, "IN_ENTRY", 8)
    patch.setattr(reader, "_BYTES_PER_USE", 4)  # half of the smallest object, as the real one is
    patch.setattr(log, "IN_ENTRY", 8)  # below SMALLEST_LEAF, as the real ones are
    patch.setattr(splitting, "IN_OBJECT", 10)
    patch.setattr(splitting, "LARGEST_TEXT", 24)
    patch.setattr(splitting, "PIECE", 5)
