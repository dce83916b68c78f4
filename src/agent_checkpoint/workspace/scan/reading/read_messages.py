"""The messages between a scan and its reader processes. Owns their format; starts nothing.

    message  length of the head (4 bytes), length of the body (8), the head as JSON, the body
    request  head: directories, each with its path and its files: name, size, whether it is a link
    answer   head: results in the order of the request; ids and sizes of the objects in the body
             body: the objects in stored form

Numbers are little-endian. Names and targets are bytes, in JSON as text of the same code points.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import IO, Any

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.scan.reading.entry_reader import ReadRequest, ReadResult
from agent_checkpoint.workspace.tree.dir_state import Note
from agent_checkpoint.workspace.tree.tree_format import Item

_LENGTHS = struct.Struct("<IQ")
_TEXT = "latin-1"
READY = b"ready"
"""The body of the first message of a reader process."""


class DirectoryRequest(NamedTuple):
    """Files to read in one directory."""

    path: bytes
    requests: Sequence[ReadRequest]


def write_message(file: IO[bytes], head: Any, body: bytes = b"") -> None:
    """Write a message. Raises OSError."""
    text = json.dumps(head).encode()
    file.write(_LENGTHS.pack(len(text), len(body)) + text + body)
    file.flush()


def read_message(file: IO[bytes]) -> tuple[Any, bytes] | None:
    """Return head and body of the next message; None at the end, or if it is incomplete.

    Raises OSError.
    """
    lengths = file.read(_LENGTHS.size)
    if len(lengths) < _LENGTHS.size:
        return None
    head, body = _LENGTHS.unpack(lengths)
    data = file.read(head + body)
    return (json.loads(data[:head]), data[head:]) if len(data) == head + body else None


def encode_request(directories: Sequence[DirectoryRequest]) -> Any:
    """Return the head of a request."""
    return [
        [
            directory.path.decode(_TEXT),
            [[each.name.decode(_TEXT), each.size, each.is_link] for each in directory.requests],
        ]
        for directory in directories
    ]


def decode_request(head: Any) -> list[DirectoryRequest]:
    """Return the content of a request."""
    return [
        DirectoryRequest(
            path.encode(_TEXT),
            [ReadRequest(name.encode(_TEXT), size, is_link) for name, size, is_link in files],
        )
        for path, files in head
    ]


def encode_answer(results: Sequence[ReadResult], objects: Mapping[str, bytes]) -> tuple[Any, bytes]:
    """Return head and body of an answer."""
    rows = [
        [_encode_item(each.item), each.signature.hex(), each.note, each.is_changing]
        for each in results
    ]
    sizes = [[name, len(stored)] for name, stored in objects.items()]
    return [rows, sizes], b"".join(objects.values())


def decode_answer(
    request: Sequence[DirectoryRequest], head: Any, body: bytes
) -> tuple[list[ReadResult], dict[str, bytes]]:
    """Return the results of an answer, in the order of the request, and its objects."""
    rows, sizes = head
    names = [each.name for directory in request for each in directory.requests]
    results = [
        ReadResult(
            None if item is None else _decode_item(name, item),
            bytes.fromhex(signature),
            None if note is None else Note(*note),
            is_changing,
        )
        for name, (item, signature, note, is_changing) in zip(names, rows)
    ]
    objects: dict[str, bytes] = {}
    at = 0
    for name, size in sizes:
        objects[name] = body[at : at + size]
        at += size
    return results, objects


def _encode_item(item: Item | None) -> Any:
    """Return an entry without its name; a file is stored in one object."""
    if item is None:
        return None
    return [item.type.decode(), item.mode, item.size, item.id, item.target.decode(_TEXT)]


def _decode_item(name: bytes, row: Any) -> Item:
    kind, mode, size, content, target = row
    return Item(name, kind.encode(), mode, size, content, content, target.encode(_TEXT))
