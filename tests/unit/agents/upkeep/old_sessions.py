"""Sessions of coding agents that were saved days ago."""

import os
import time
from pathlib import Path
from typing import Optional

from agent_checkpoint.agents.agent_events import Call, Event
from agent_checkpoint.agents.session_note import PART, SessionNote
from agent_checkpoint.records import Checkpoint, Draft
from agent_checkpoint.store.store import Store

DAY = 86400.0


def save_event(
    store: Store, event: Event, age: float, *, data: Optional[bytes] = None, root: str = "/w"
) -> Checkpoint:
    """Save an event as the hook does, as if it had happened some seconds ago."""
    note = SessionNote.from_event(store, event, root, None)
    text = (os.urandom(5000) if data is None else data).hex()
    draft = Draft(event.key, {"data": text, PART: note.dump()}, label=event.label, tags=event.tags)
    return store.write(draft, ts_ns=int((time.time() - age) * 1e9))


def save_session(
    store: Store, session: str, age: float, *, turns: int = 3, calls: int = 4, root: str = "/w"
) -> dict[str, list[int]]:
    """Save a session that ended some seconds ago; return the numbers of its checkpoints by kind."""
    found: dict[str, list[int]] = {"prompt": [], "call": [], "end": []}
    length = float(turns * (calls + 2))

    def save(kind: str, name: str, **more: object) -> None:
        nonlocal length
        length -= 1
        event = Event("claude-code", name, session, root, None, **more)  # type: ignore[arg-type]
        found[kind].append(save_event(store, event, age + length, root=root).seq)

    for turn in range(turns):
        save("prompt", "UserPromptSubmit", prompt=f"do {turn}")
        for call in range(calls):
            save("call", "PostToolUse", calls=(Call("Bash", f"Bash {call}", f"c{turn}.{call}"),))
        save("end", "Stop")
    return found


def seqs(store: Store, key: str) -> list[int]:
    """Return the numbers of the checkpoints of a key."""
    return sorted(entry.seq for entry in store.entries(key))


def store_in(path: Path) -> Store:
    """Open an SQLite store."""
    from agent_checkpoint.backends.sqlite import SQLiteBackend

    return Store(SQLiteBackend(path, durability="fast"))
