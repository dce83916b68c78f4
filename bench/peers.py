"""The peer's side: LangGraph's `SqliteSaver`, called as LangGraph itself calls it.

What it need not do here counts in its favour: the messages are plain dicts and not message objects,
`put_writes`, which LangGraph calls once more for every step of a graph, is left out, and so is the
new list that a reducer makes of every step. Its connection is the one of `from_conn_string`, which
leaves `synchronous` at SQLite's default, FULL; the peer's pragma is only touched to run NORMAL.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

from bench.sides import Side
from bench.texts import Message

THREAD = "conversation"


class LangGraph(Side):
    """A conversation in a channel called `messages`."""

    def __init__(self, path: Path, durability: str, thread: str = THREAD) -> None:
        super().__init__(path, durability)
        self._messages: list[Message] = []
        self.saver: Any = None
        self.config = _config(thread)
        self.step = 0

    def open(self) -> None:
        """Open the database as `SqliteSaver.from_conn_string` does."""
        self.path.mkdir(exist_ok=True)
        connection = sqlite3.connect(str(self.path / "checkpoints.sqlite"), check_same_thread=False)
        if self.durability != "FULL":
            connection.execute(f"PRAGMA synchronous={self.durability}")
        self.saver = SqliteSaver(connection)

    def close(self) -> None:
        """Close the connection."""
        self.saver.conn.close()

    def append_and_save(self, message: Message) -> None:
        """Append to the channel's list and put the checkpoint."""
        self._messages.append(message)
        self.save()

    def save(self) -> None:
        """Put a checkpoint of the list as it is: `saver.put`."""
        self.config = self._put(self.config, self._messages)

    def load(self) -> list[Message]:
        """Get the latest checkpoint: `saver.get_tuple`."""
        found = self.saver.get_tuple(_config(THREAD))
        assert found is not None
        messages: list[Message] = found.checkpoint["channel_values"]["messages"]
        return messages

    def touch(self) -> None:
        """Look for a thread that does not exist."""
        assert self.saver.get_tuple(_config("nobody")) is None

    def fork(self, name: str) -> None:
        """Put the latest checkpoint into another thread: the saver has no verb for it."""
        self._put(_config(name), self.load())

    def resume(self) -> None:
        """Make the latest checkpoint the live list."""
        self._messages = self.load()

    @property
    def messages(self) -> Any:
        """The live list."""
        return self._messages

    def _put(self, config: Any, messages: list[Message]) -> Any:
        self.step += 1
        checkpoint: Any = {
            "v": 4,
            "id": str(uuid6(clock_seq=self.step)),
            "ts": datetime.now(timezone.utc).isoformat(),
            "channel_values": {"messages": messages, "model": "a-model", "step": self.step},
            "channel_versions": {"messages": self.step, "model": 1, "step": self.step},
            "versions_seen": {},
            "updated_channels": ["messages", "step"],
        }
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        versions: Any = {"messages": self.step, "step": self.step}
        return self.saver.put(config, checkpoint, metadata, versions)


def _config(thread: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
