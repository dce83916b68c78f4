"""The position of a stat index in a change journal: what a new process needs to scan changed paths.

It is in the update of the index, so it is never used with another one.
"""

from __future__ import annotations

import json
import os

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.changes.hard_links import HardLinks
from agent_checkpoint.workspace.changes.served import Token

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
    identity: str
    """The identity of the directory, as returned by `identity_of`.

    The journal keeps the directory open, so no other one gets its inode while tokens are valid.
    """


def encode_position(position: Position) -> bytes:
    """Return the bytes of a position; none if it has too many links."""
    links = position.links.entries()
    if len(links) > _MOST_LINKS:
        return b""
    content = {
        "epoch": position.token.epoch.hex(),
        "number": position.token.number,
        "full_scan": position.full_scan,
        "identity": position.identity,
        "links": [
            [device, inode, os.fsdecode(directory), os.fsdecode(name)]
            for device, inode, directory, name in links
        ],
    }
    return json.dumps(content).encode()


def decode_position(data: bytes) -> Position:
    """Return the position with these bytes."""
    content = json.loads(data)
    links = HardLinks()
    for device, inode, directory, name in content["links"]:
        links.add_entry(device, inode, os.fsencode(directory), os.fsencode(name))
    token = Token(bytes.fromhex(content["epoch"]), content["number"])
    return Position(token, content["full_scan"], links, content["identity"])
