"""What a conversation takes at least in format 1: its rows, written straight to SQLite (P6).

One transaction a message, into a database of the same schema and page size: the entry of the
checkpoint, and the objects that the list has more than before. These are a tail with the message,
about every sixteen messages a leaf with all of them, and nodes and spines that refer to leaves: so
each message is stored twice. The format fixes the objects, since they are named by their hash, and
leaves the compression free: each takes the smallest form that zlib makes. There is nothing beside:
no reserve, no format record and no lock file.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_checkpoint.backends.sqlite_connections import PAGE_BYTES, SCHEMA
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder
from agent_checkpoint.store.objects.object_format import make_object
from agent_checkpoint.store.objects.varint import write_varint
from bench.texts import Message

KEY = b"conversation"


def least_bytes(messages: Sequence[Message], path: Path) -> dict[str, int]:
    """Write a conversation to this file; its bytes, and those of entries and objects alone."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute(f"PRAGMA page_size={PAGE_BYTES}")
    for statement in SCHEMA:
        db.execute(statement)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=OFF")  # changes the time, and not the bytes
    db.execute("INSERT INTO streams (name, last) VALUES (?, 0)", (KEY,))
    builder = MerkleListBuilder()
    parent, alone = "", 0
    added: dict[str, bytes] = {}

    def put(kind: bytes, payload: bytes, refs: Sequence[str]) -> str:
        name, item = make_object(kind, payload, refs)
        added[name] = _smallest(item.plain)
        return name

    for step, message in enumerate(messages, 1):
        added.clear()
        builder.add(_json(message), (), put)
        now = time.time_ns()
        state = {
            "messages": {"$log": {"$list": builder.finish(put)}},
            "model": "a-model",
            "step": step,
            "__version__": "1.0",
            "__class__": "Agent",
        }
        entry = _entry(
            {
                "agent_checkpoint": 1,
                "key": KEY.decode(),
                "ts_ns": now,
                "parents": [parent] if parent else [],
                "size": builder.bytes,
                "parts": {"agent": {"$state": state}},
            }
        )
        parent = f"{KEY.decode()}_{now}-{step}"
        db.execute("BEGIN")
        for name, stored in added.items():
            row = (bytes.fromhex(name), len(stored), time.time(), stored)
            db.execute("INSERT INTO objects (id, size, ts, data) VALUES (?, ?, ?, ?)", row)
        mark = zlib.crc32(entry, zlib.crc32(b"/%d/" % step, zlib.crc32(KEY)))
        db.execute("INSERT INTO entries VALUES (1, ?, ?, ?)", (step, mark, entry))
        db.execute("UPDATE streams SET last = ?", (step,))
        db.execute("COMMIT")
        alone += len(entry)
    (objects,) = db.execute("SELECT sum(size) FROM objects").fetchone()
    db.close()
    return {"file": path.stat().st_size, "alone": alone + objects}


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _entry(record: dict[str, Any]) -> bytes:
    text = _json(record)[:-1]
    return text + b',"sha256":"%b"}' % hashlib.sha256(text).hexdigest().encode()


def _smallest(plain: bytes) -> bytes:
    forms = [b"r" + plain]
    for level, strategy in ((1, 0), (6, 0), (9, 0), (9, zlib.Z_HUFFMAN_ONLY)):
        packer = zlib.compressobj(level, memLevel=9, strategy=strategy)
        packed = packer.compress(plain) + packer.flush()
        forms.append(b"z" + write_varint(len(plain)) + packed)
    return min(forms, key=len)
