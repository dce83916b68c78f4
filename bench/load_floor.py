"""A verified load of a conversation in straight-line Python: a floor of P8.

It does what the format and the guarantees ask for, and calls no layer of the library between: it
reads the newest entry and checks its hash; finds the objects of the list step by step, since only
an object names the next ones; decompresses each up to its declared size, and checks its hash; puts
leaves and tails in order; refuses lone surrogates; and makes the items of a `Log` immutable. It has
no cache, no limits of what a state may cost, no pool of connections and no checks of the files, and
takes the tags of states and values for what they are.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_checkpoint.core.immutable import immutable_json
from agent_checkpoint.store.canonical_json import read_json
from agent_checkpoint.store.objects.compression import unpack
from agent_checkpoint.store.objects.object_format import ID_BYTES, MAX_OBJECT
from agent_checkpoint.store.objects.reader import object_names
from agent_checkpoint.store.objects.varint import read_varint
from bench.texts import Message

_ENTRY = (
    "SELECT data FROM entries WHERE stream = (SELECT id FROM streams WHERE name = ?) "
    "ORDER BY seq DESC LIMIT 1"
)
_OBJECTS = "SELECT id, data FROM objects WHERE id IN ({})"


def straight_load(store: Path, key: str, *, immutable: bool) -> Callable[[], list[Message]]:
    """The load of the newest checkpoint of a key, ready to run."""
    db = sqlite3.connect(store / "store.db")
    db.execute("SELECT count(*) FROM streams").fetchone()  # opens the file

    def work() -> list[Message]:
        (entry,) = db.execute(_ENTRY, (f"key/{key}".encode(),)).fetchone()
        head, _, mark = entry.rpartition(b',"sha256":"')
        assert hashlib.sha256(head).hexdigest().encode() == mark[:64]
        (root,) = map(bytes.fromhex, object_names(json.loads(entry)["parts"].values()))
        messages: list[Message] = []
        for text in _arrays(root, _objects(db, root)):
            items: Any = read_json(text)
            messages += immutable_json(items) if immutable else items
        return messages

    return work


Objects = dict[bytes, tuple[bytes, list[bytes], bytes]]
"""Kind, references and payload, by id."""


def _objects(db: sqlite3.Connection, root: bytes) -> Objects:
    found: Objects = {}
    names = {root}
    while names:
        below: set[bytes] = set()
        marks = ",".join("?" * len(names))
        for name, stored in db.execute(_OBJECTS.format(marks), list(names)):
            plain = unpack(stored, MAX_OBJECT)
            assert hashlib.sha256(plain).digest() == name
            count, at = read_varint(plain, 1)
            start = at + (count + 7) // 8
            end = start + count * ID_BYTES
            refs = [plain[at : at + ID_BYTES] for at in range(start, end, ID_BYTES)]
            found[name] = (plain[:1], refs, plain[end:])
            below.update(refs)
        assert names <= found.keys()
        names = below - found.keys()
    return found


def _arrays(root: bytes, objects: Objects) -> list[bytes]:
    """The JSON arrays of the list, in order; see `merkle_list.py`."""
    tails: dict[int, bytes] = {}
    spines: list[bytes] = []
    names = [root]
    while names:
        name = names.pop()
        kind, refs, payload = objects[name]
        if kind != b"e":  # without a tail the root is a spine
            spines = [name]
            break
        number, at = read_varint(payload, 0)
        earlier = bin(number - 1).count("1")
        names += refs[:earlier] if number not in tails else []
        spines = refs[earlier : earlier + payload[at]]
        tails[number] = payload[at + 1 :]
    arrays: list[bytes] = []
    stack = spines
    while stack:
        kind, refs, payload = objects[stack.pop()]
        stack += reversed(refs)
        if kind == b"l":
            arrays.append(payload)
    return arrays + [tails[number] for number in sorted(tails)]
