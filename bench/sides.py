"""What every side of a comparison can do, and how it is told apart. Imports no side.

A side is one way of keeping a conversation: ours with a `Log` (an attribute of the agent, or a part
beside it), ours with a plain list, LangGraph.
Each runs in a process of its own (`worker.py`), so that the sides share no interpreter, no cache
and no garbage, and so that ours can be run without the extra `fast` while the peer keeps what it
needs.
"""

from __future__ import annotations

import gc
import sqlite3
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.texts import Message

SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
FAST_MODULES = ("orjson", "isal", "msgspec", "backports.zstd", "zstandard")
"""What the extra `fast` may bring; a plain side cannot import them."""


@dataclass(frozen=True)
class SideName:
    """Which side, with or without the extra `fast`, and how durable: `FULL` or `NORMAL`."""

    side: str
    fast: bool = True
    durability: str = "FULL"

    def __str__(self) -> str:
        if self.side == "langgraph":
            return "langgraph"
        return f"{self.side}-{'fast' if self.fast else 'plain'}"


class Side(ABC):
    """One store with one conversation in it."""

    def __init__(self, path: Path, durability: str) -> None:
        self.path = path
        self.durability = durability

    @abstractmethod
    def open(self) -> None:
        """Open the store, as a program does when it starts."""

    @abstractmethod
    def close(self) -> None:
        """Close the store, as a program does when it ends."""

    @abstractmethod
    def append_and_save(self, message: Message) -> None:
        """Add one message to the live conversation and save it all."""

    @abstractmethod
    def save(self) -> None:
        """Save the live conversation as it is."""

    @abstractmethod
    def load(self) -> list[Message]:
        """Load the latest checkpoint into something new; every message is a Python object."""

    @abstractmethod
    def touch(self) -> None:
        """Ask the store something small, so that it is open, and nothing of a state is read."""

    @abstractmethod
    def fork(self, name: str) -> None:
        """Make a second line of checkpoints called `name` that begins with the latest."""

    @abstractmethod
    def resume(self) -> None:
        """Make the latest checkpoint the live conversation."""

    @property
    @abstractmethod
    def messages(self) -> Any:
        """The live conversation: a list, or our `Log`."""


def pragmas() -> list[str]:
    """What SQLite says of each open connection, such as `journal_mode=wal synchronous=FULL`."""
    found = set()
    for connection in gc.get_objects():  # also those of a library that hides them
        if not isinstance(connection, sqlite3.Connection):
            continue
        try:
            journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
            synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
        except sqlite3.ProgrammingError:  # closed meanwhile
            continue
        if isinstance(journal, bytes):  # the connection's text_factory
            journal = journal.decode()
        found.add(f"journal_mode={journal} synchronous={SYNCHRONOUS[synchronous]}")
    return sorted(found)
