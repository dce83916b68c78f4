"""A reader process of a scan: reads, hashes and compresses files. Writes no file and no store.

Requests come from stdin, answers go to stdout; the process ends with its input.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from agent_checkpoint.options import Compression
from agent_checkpoint.store.objects import compression as codecs
from agent_checkpoint.store.objects.object_format import PlainObject
from agent_checkpoint.workspace.safe_open import EntryChanged
from agent_checkpoint.workspace.scan.reading.entry_reader import DirectoryRequest, EntryReader
from agent_checkpoint.workspace.scan.reading.read_messages import (
    READY,
    decode_request,
    encode_answer,
    read_message,
    write_message,
)

_NO_ZSTD = 3


def main() -> int:
    """Serve requests for files below the open directory `argv[1]`. Returns the exit status."""
    root = int(sys.argv[1])
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    compression: Compression = "zstd" if read_message(requests) == "zstd" else "zlib"
    if compression == "zstd" and codecs.load_zstd() is None:
        return _NO_ZSTD  # it would pack other bytes
    gc.disable()  # it makes no cycles, and ends with the scan
    write_message(answers, READY)
    while (message := read_message(requests)) is not None:
        write_message(answers, _answer(root, decode_request(message), compression))
    return 0


def _answer(root: int, request: Sequence[DirectoryRequest], compression: Compression) -> object:
    objects: dict[str, bytes] = {}

    def add(name: str, packed: PlainObject) -> None:
        if name not in objects:
            objects[name] = packed.stored(compression)

    def put(kind: bytes, payload: bytes, refs: Sequence[str]) -> str:
        raise EntryChanged  # it has become large: the scan reads it again

    return encode_answer(EntryReader(add, put).read_below(root, request), objects)


if __name__ == "__main__":
    sys.exit(main())
