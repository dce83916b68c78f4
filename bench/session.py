"""A session that saves one new message, beside a long conversation and many watched files.

The scale is one bare commit of a small row, in the same mode and directory: what is above it is
ours.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from agent_checkpoint import CheckpointManager, Session
from bench.figures import summary_ms, timed
from bench.rows import Row

MESSAGES = 10_000
FILES = 50_000
QUICK_FILES = 5_000
SAVES = 300
DURABILITIES = {"FULL": "full", "NORMAL": "fast"}
TARGET_MS = 2.0


def measure(directory: Path, *, quick: bool) -> dict[str, Any]:
    """Save one message after another; the times of the saves, by durability."""
    files = QUICK_FILES if quick else FILES
    workspace = directory / "workspace"
    _make(workspace, files)
    found: dict[str, Any] = {"files": files, "messages": MESSAGES}
    for name, durability in DURABILITIES.items():
        found[name] = _saves(directory / name, workspace, durability)
    return found


def rows(figures: dict[str, Any]) -> list[Row]:
    """The promise of the session, and the same without the disk's part in it."""
    return [
        Row.of_times(
            "session",
            f"session: 1 message more, {figures['files']:,} files watched, p50",
            figures[name]["save"],
            figures[name]["commit"],
            "p50",
            peer_name="bare SQLite commit",
            target=TARGET_MS if name == "FULL" else None,
            absolute=True,
            durability=f"{name} / {name}",
        )
        for name in DURABILITIES
    ]


def _saves(place: Path, workspace: Path, durability: str) -> dict[str, Any]:
    manager = CheckpointManager(backend="sqlite", path=place, durability=durability)
    session = Session("bench", workspace=workspace, store=manager)
    session.messages.extend(_message(number) for number in range(MESSAGES))
    session.save()
    commit = _committer(place, durability)
    saves, commits = [], []
    for number in range(SAVES):
        session.messages.append(_message(MESSAGES + number))
        saves.append(timed(session.save))
        commits.append(timed(commit))
    session.close()
    manager.close()
    return {"save": summary_ms(saves), "commit": summary_ms(commits)}


def _committer(place: Path, durability: str) -> Any:
    connection = sqlite3.connect(place / "scale.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'FULL' if durability == 'full' else 'NORMAL'}")
    connection.execute("CREATE TABLE row (data BLOB)")
    return lambda: connection.execute("INSERT INTO row VALUES (?)", (b"x" * 600,))


def _message(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"message {number} " + "and some more words " * 8}


def _make(workspace: Path, files: int) -> None:
    for folder in range(files // 100):
        place = workspace / f"part{folder // 20:03d}" / f"folder{folder:04d}"
        place.mkdir(parents=True)
        for number in range(100):
            (place / f"file{number:02d}.txt").write_text(f"{folder} {number}\n" * 9)
