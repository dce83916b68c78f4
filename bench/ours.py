"""Our sides: a conversation in a `Log`, and one in a plain list of a `Checkpointable`."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_checkpoint import Checkpointable, CheckpointManager
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.store.objects.compression import unpack
from agent_checkpoint.store.objects.object_format import MAX_OBJECT, open_object
from agent_checkpoint.store.reachability import RefGraph, mark, roots_of
from bench.load_floor import straight_load
from bench.sides import Side
from bench.texts import Message

KEY = "conversation"
DURABILITY = {"FULL": "full", "NORMAL": "fast"}


def open_manager(path: Path, durability: str) -> CheckpointManager:
    """A manager of an SQLite store that is as durable as SQLite's word for it says."""
    return CheckpointManager(SQLiteBackend(path, durability=DURABILITY[durability]))


class Agent(Checkpointable):
    """An agent that is in the middle of a conversation."""

    def __init__(self, messages: Any) -> None:
        self.messages = messages
        self.model = "a-model"
        self.step = 0


class Ours(Side):
    """A conversation in a plain list of an agent that is saved with `manager.save`."""

    def __init__(self, path: Path, durability: str) -> None:
        super().__init__(path, durability)
        self.live = self.new()

    def new(self) -> Any:
        """What is saved and loaded, with an empty conversation."""
        return Agent([])

    def agent_of(self, subject: Any) -> Any:
        """The agent in what is saved and loaded."""
        return subject

    def messages_of(self, subject: Any) -> Any:
        """The conversation in what is saved and loaded."""
        return subject.messages

    def open(self) -> None:
        """Open the store: `CheckpointManager`."""
        self.manager = open_manager(self.path, self.durability)

    def close(self) -> None:
        """Close the store: `manager.close`."""
        self.manager.close()

    def append_and_save(self, message: Message) -> None:
        """Append to the messages and save."""
        self.messages.append(message)
        self.agent_of(self.live).step += 1
        self.manager.save(KEY, self.live)

    def save(self) -> None:
        """Save again: `manager.save`."""
        self.manager.save(KEY, self.live)

    def load(self) -> list[Message]:
        """Load into something new: `manager.load`."""
        subject = self.new()
        self.manager.load(KEY, subject)
        return list(self.messages_of(subject))

    def floor(self) -> Callable[[], list[Message]]:
        """What is left of a verified load without the library, ready to run, in any order.

        It reads the objects of the latest checkpoint with one connection, decompresses, hashes and
        parses them. Which objects these are, and where their JSON begins, is found beforehand.
        """
        backend = self.manager.store.backend
        head = self.manager.store.head(KEY)
        assert head is not None
        reached: RefGraph = {}
        mark(backend, roots_of({"parts": head.parts}, KEY), reached)
        sizes = {}  # of the JSON, at the end of an object
        for name, stored in backend.get_objects(reached).items():
            _, *text = open_object(name, stored).payload.partition(b"[{")
            sizes[bytes.fromhex(name)] = len(b"".join(text))
        db = sqlite3.connect(self.path / "store.db")
        query = f"SELECT id, data FROM objects WHERE id IN ({','.join('?' * len(sizes))})"
        db.execute(query, [b""] * len(sizes)).fetchall()  # opens the file, and compiles
        loads = _json_parser()

        def work() -> list[Message]:
            messages: list[Message] = []
            for name, stored in db.execute(query, list(sizes)):
                plain = unpack(stored, MAX_OBJECT)
                assert hashlib.sha256(plain).digest() == name
                if sizes[name]:
                    messages += loads(plain[-sizes[name] :])
            return messages

        return work

    def straight(self) -> Callable[[], list[Message]]:
        """A verified load without the library, ready to run."""
        return straight_load(self.path, KEY, immutable=not isinstance(self.messages, list))

    def touch(self) -> None:
        """Look at the newest entry, which holds names of objects and not the messages."""
        self.manager.history(KEY, n=1)

    def fork(self, name: str) -> None:
        """Fork the key: `manager.fork`."""
        self.manager.fork(KEY, name)

    def resume(self) -> None:
        """Load into something new, which becomes the live one."""
        self.live = self.new()
        self.manager.load(KEY, self.live)

    @property
    def messages(self) -> Any:
        """The live conversation."""
        return self.messages_of(self.live)


def _json_parser() -> Callable[[bytes], Any]:
    try:
        import orjson
    except ImportError:  # a plain side
        return json.loads
    return orjson.loads


class OursWithLog(Ours):
    """The same with a `Log`, which encodes only what is new, as the agent's attribute."""

    def new(self) -> Any:
        """An agent with an empty `Log`."""
        from agent_checkpoint import Log

        return Agent(Log())


class OursWithPart(Ours):
    """The same with a `Log` that is a part of its own, beside the agent."""

    def new(self) -> Any:
        """Two parts: the agent, and an empty `Log`."""
        from agent_checkpoint import Log

        return {"agent": Agent(None), "messages": Log()}

    def agent_of(self, subject: Any) -> Any:
        """The part that is the agent."""
        return subject["agent"]

    def messages_of(self, subject: Any) -> Any:
        """The part that is the conversation."""
        return subject["messages"]
