"""Make the golden stores of the present format, with what they must read back as.

    .venv/bin/python -m tests.compat.make_golden

wrote tests/compat/v1, whose files stay as they are for ever. For a new format, change the directory
first. Times and random numbers are fixed, so the same program makes the same content.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.backends import sqlite
from agent_checkpoint.records import Checkpoint, Draft
from agent_checkpoint.store.archive import importer
from agent_checkpoint.store.objects import compression
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.scan.reading import chunking
from tests.compat import subjects

HERE = Path(__file__).resolve().parent / "v1"
BEGIN_NS = 1_700_000_000_000_000_000
FORK = "fork of chat"
WORKSPACE = "workspace"
LONGEST_SHOWN = 250
LARGEST_BYTES = 350_000


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    os.environ["AGENT_CHECKPOINT_SECRET"] = subjects.SECRET_OF_PICKLES
    with TemporaryDirectory() as place:
        os.environ["AGENT_CHECKPOINT_HOME"] = f"{place}/home"
        expected = make(Path(place))
    for folder in HERE.iterdir():
        tidy(folder)
    text = json.dumps(expected, ensure_ascii=False, indent=1)
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")
    size = sum(file.stat().st_size for file in HERE.rglob("*") if file.is_file())
    print(f"{size} bytes in {HERE}")
    if size > LARGEST_BYTES:
        sys.exit(f"too much: keep it below {LARGEST_BYTES}")


def make(place: Path) -> dict[str, Any]:
    """Make all stores and archives; return what is in them. Directories are made in `place`."""
    expected: dict[str, Any] = {}
    with fixed(), recorded() as parts:
        archive = HERE / "imported.ckpt"
        with CheckpointManager() as manager:
            subjects.elsewhere(manager)
            manager.export_archive(archive, "imported")
            expected["imported.ckpt"] = rows(manager, parts)
        for backend in ("sqlite", "file"):
            with CheckpointManager(backend=backend, path=HERE / backend) as manager:
                big = backend == "sqlite"
                count, saves = (300, 20) if big else (12, 4)
                subjects.fill(manager, messages=count, saves=saves, big=big)
                (place / backend).mkdir()
                subjects.workspaces(manager, place / backend)
                manager.import_archive(archive)
                manager.gc(ignore_clock=True)  # files have the time of today
                assert manager.verify().ok
                expected[backend] = rows(manager, parts)
                for key in (FORK, WORKSPACE) if big else ():
                    name = f"{key.split()[0]}.ckpt"
                    manager.export_archive(HERE / name, key)
                    expected[name] = {key: expected[backend][key]}
        with_zstd(expected, parts)
    return expected


def with_zstd(expected: dict[str, Any], parts: dict[str, Any]) -> None:
    """Make a small store whose objects are packed with zstd, as version 0.1 did."""
    if REAL_ZSTD is None:
        sys.exit("there is no zstd here: install backports.zstd first")
    manager = CheckpointManager(backend="sqlite", path=HERE / "sqlite-zstd")
    packing = patch.object(Store, "_compression", lambda self: "zstd")
    with patch.object(compression, "find_zstd", REAL_ZSTD), packing, manager:
        manager.save("packed", {"text": "zstd " * 2000, "step": 1})
        expected["sqlite-zstd"] = rows(manager, parts)


def tidy(folder: Path) -> None:
    """Leave one database file, without what only a running store has."""
    database = folder / "store.db"
    if database.is_file():
        db = sqlite3.connect(database)
        db.execute("PRAGMA journal_mode=DELETE")
        if folder.name == "sqlite-zstd":
            db.execute("PRAGMA page_size=1024")  # for nothing but to keep it small
        db.execute("VACUUM")
        db.execute("PRAGMA journal_mode=WAL")
        db.close()
        assert not database.with_name("store.db-wal").exists()
    if folder.is_dir():
        for name in (".reserve", ".lock", ".gate"):
            (folder / name).unlink(missing_ok=True)
        for empty in [folder / ".tmp", *folder.glob("objects/*"), folder / "objects"]:
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()


def rows(manager: CheckpointManager, parts: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what a reader must find, by key, oldest first; short states in full."""
    found: dict[str, list[dict[str, Any]]] = {}
    for key in manager.list_keys():
        found[key] = []
        for row in reversed(manager.history(key)):
            text = json_text(parts[row["id"]])
            row["sha256"] = hashlib.sha256(text.encode()).hexdigest()
            if len(text) <= LONGEST_SHOWN:
                row["state"] = parts[row["id"]]
            found[key].append(row)
    return found


def json_text(tree: Any) -> str:
    return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


@contextmanager
def recorded() -> Iterator[dict[str, Any]]:
    """Note the whole parts of every checkpoint as they were before they were cut into objects."""
    parts: dict[str, Any] = {}
    write = Store.write

    def noting(self: Store, draft: Draft, **options: Any) -> Checkpoint:
        trees = {name: inline_tree(tree) for name, tree in draft.parts.items()}
        whole = trees if draft.source is None else parts[draft.source.id]
        done = write(self, draft, **options)
        parts[done.id] = json.loads(json_text(whole))
        return done

    with patch.object(Store, "write", noting):
        yield parts


@contextmanager
def fixed() -> Iterator[None]:
    """Let time go on by a second a look, names be the same, and nothing optional be there."""
    clock = iter(range(BEGIN_NS, BEGIN_NS + 10**15, 10**9))
    noise = random.Random(2)
    with (
        patch.object(time, "time_ns", lambda: next(clock)),
        patch.object(time, "time", lambda: next(clock) / 1e9),
        patch.object(importer, "_this_process", lambda: "elsewhere/2/2"),
        patch.object(secrets, "token_hex", lambda size: noise.randbytes(size).hex()),
        patch.object(os, "urandom", noise.randbytes),
        patch.object(compression, "find_zstd", lambda: None),
        patch.object(sqlite, "LOOSE_FROM", subjects.LOOSE_BYTES),
        patch.object(chunking, "is_installed", lambda: False),
        patch.object(Workspace, "key", "workspace:/golden"),
    ):
        yield


REAL_ZSTD = compression.find_zstd

if __name__ == "__main__":
    main()
