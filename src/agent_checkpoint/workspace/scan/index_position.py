"""The position of a stat index in a change journal: what a new process needs to scan changed paths.

It is in a file beside the index and names it by its hash, so it is never used with another one.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.changes.hard_links import HardLinks
from agent_checkpoint.workspace.changes.served import Token
from agent_checkpoint.workspace.scan.stat_index import read_private, replace_private

_MOST_LINKS = 1000
"""With more hard links no position is written: each of them is compared at every scan."""


class Position(NamedTuple):
    """A moment in a change journal. The scan of the index began after it."""

    token: Token
    full_scan: float
    """When every file was compared: in seconds of the monotonic clock, which all processes share.

    Tokens end with the daemon, so with the system, too.
    """
    links: HardLinks


def write_position(index: Path, digest: bytes, position: Position) -> None:
    """Write the position of an index.

    Args:
        index: the path of the index.
        digest: the hash of the index.
        position: the position.

    Raises OSError.
    """
    links = position.links.entries()
    if len(links) > _MOST_LINKS:
        return
    content = {
        "index": digest.hex(),
        "epoch": position.token.epoch.hex(),
        "number": position.token.number,
        "full_scan": position.full_scan,
        "links": [
            [device, inode, os.fsdecode(directory), os.fsdecode(name)]
            for device, inode, directory, name in links
        ],
    }
    data = json.dumps(content).encode()
    replace_private(position_path(index), hashlib.sha256(data).digest(), data)


def read_position(index: Path, digest: bytes) -> Position | None:
    """Return the position of an index; None if there is none of an index with this hash."""
    data = read_private(position_path(index))
    size = hashlib.sha256().digest_size
    if data is None or hashlib.sha256(data[size:]).digest() != data[:size]:
        return None
    content = json.loads(data[size:])
    if content["index"] != digest.hex():
        return None
    links = HardLinks()
    for device, inode, directory, name in content["links"]:
        links.add_entry(device, inode, os.fsencode(directory), os.fsencode(name))
    token = Token(bytes.fromhex(content["epoch"]), content["number"])
    return Position(token, content["full_scan"], links)


def position_path(index: Path) -> Path:
    """Return the path of the position of an index."""
    return index.with_name(f"{index.name}.position")
