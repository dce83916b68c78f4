"""A stat process: compares parts of a directory with its index. Reads no file and writes none.

The numbers of the parts come from a pipe; what was found goes to stdout at the end. Owns how a tree
is split: the scan and its processes split alike.
"""

from __future__ import annotations

import gc
import heapq
import json
import sys
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.os_support.part_numbers import next_number
from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.scan.stat_index import read_index
from agent_checkpoint.workspace.scan.stat_pass import StatPass
from agent_checkpoint.workspace.tree.dir_state import DirState

TEXT = "latin-1"
"""Names in JSON are text of the same code points as their bytes."""
_PARTS = 64
_OTHER_INDEX = 3


class Part(NamedTuple):
    """A directory with everything below it."""

    path: bytes
    state: DirState


def split(root: DirState) -> list[Part]:
    """Split a tree into parts of similar size; equal trees have equal parts.

    The directories above the parts are in none of them.
    """
    small: list[Part] = []
    large = [(-root.files, b"", root)]
    while large and len(small) + len(large) < _PARTS:
        _, path, state = heapq.heappop(large)
        if path and not state.subdirs:
            small.append(Part(path, state))
            continue
        start = path + b"/" if path else b""
        for name, subdir in state.subdirs.items():
            heapq.heappush(large, (-subdir.files, start + name, subdir))
    return [*small, *(Part(path, state) for _, path, state in large)]


def encode_found(stat_pass: StatPass) -> Any:
    """Return what a stat pass has found, for JSON."""
    names, replaced = stat_pass.changed
    return [
        [[path.decode(TEXT), [name.decode(TEXT) for name in names[path]]] for path in names],
        [path.decode(TEXT) for path in replaced],
        [
            [device, inode, path.decode(TEXT), name.decode(TEXT)]
            for device, inode, path, name in stat_pass.links.entries()
        ],
        [[path.decode(TEXT), times.hex()] for path, times in stat_pass.learned.items()],
    ]


def main() -> int:
    """Compare parts of the open directory `argv[1]`. Returns the exit status."""
    root, numbers = int(sys.argv[1]), int(sys.argv[2])
    path, digest = Path(sys.argv[3]), sys.argv[4]
    gc.disable()  # the process is short
    index = read_index(path)
    if index is None or index.digest.hex() != digest:
        return _OTHER_INDEX
    try:
        parts = split(index.root)
    except IntegrityError:
        return _OTHER_INDEX
    found = []
    while (number := next_number(numbers)) is not None:
        stat_pass = StatPass(root, None)
        try:
            stat_pass.run(parts[number].state, parts[number].path)
        except (OSError, IntegrityError):
            continue  # it was removed or replaced, or the index is damaged: the scan finds out
        found.append([number, encode_found(stat_pass)])
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
