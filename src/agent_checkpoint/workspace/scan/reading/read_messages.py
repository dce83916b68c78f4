"""The messages between a scan and its reader processes. Owns their format; starts nothing.

    message  its length (8 bytes, little-endian), its content in Python's marshal format
    request  directories, each with its path and its files: name, size, whether it is a link
    answer   results in the order of the request; objects in stored form by id

Both sides run the same Python. marshal takes bytes as they are and keeps one copy of an id that
occurs in several places, so an answer costs a fraction of its JSON.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from typing import IO, Any

from agent_checkpoint.workspace.scan.reading.entry_reader import (
    DirectoryRequest,
    ReadRequest,
    ReadResult,
)
from agent_checkpoint.workspace.tree.dir_state import Note
from agent_checkpoint.workspace.tree.tree_format import Item

_LENGTH_BYTES = 8
READY = "ready"
"""The first message of a reader process."""


def write_message(file: IO[bytes], content: Any) -> None:
    """Write a message. Raises OSError."""
    data = marshal.dumps(content)
    file.write(len(data).to_bytes(_LENGTH_BYTES, "little"))
    file.write(data)
    file.flush()


def read_message(file: IO[bytes]) -> Any:
    """Return the content of the next message; None at the end, or if it is incomplete.

    Raises OSError.
    """
    length = file.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        return None
    size = int.from_bytes(length, "little")
    data = file.read(size)
    return marshal.loads(data) if len(data) == size else None  # noqa: S302 # of our own process


def encode_request(directories: Sequence[DirectoryRequest]) -> Any:
    """Return the content of a request."""
    return [(path, list(map(tuple, requests))) for path, requests in directories]


def decode_request(content: Any) -> list[DirectoryRequest]:
    """Return the directories of a request."""
    return [
        DirectoryRequest(path, [ReadRequest(*file) for file in files]) for path, files in content
    ]


def encode_answer(results: Sequence[ReadResult], objects: Mapping[str, bytes]) -> Any:
    """Return the content of an answer."""
    rows = [
        (item and tuple(item), signature, note and tuple(note), is_changing)
        for item, signature, note, is_changing in results
    ]
    return rows, objects


def decode_answer(content: Any) -> tuple[list[ReadResult], dict[str, bytes]]:
    """Return the results of an answer, in the order of the request, and its objects."""
    rows, objects = content
    results = [
        ReadResult(item and Item(*item), signature, note and Note(*note), is_changing)
        for item, signature, note, is_changing in rows
    ]
    return results, objects
