"""The last event of each session, and the process of its agent. Owns their records.

The records are hints for `hook status` and `rewind`; a lost one is no loss.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from agent_checkpoint.agents.agent_events import BEFORE, PROGRAMS, TURN, Call, Event
from agent_checkpoint.agents.state_dir import open_state_dir
from agent_checkpoint.named_tuple import NamedTuple

_SUFFIX = ".session.json"
_MAX_BYTES = 1 << 16
_MAX_ANCESTORS = 8
_MAX_OPEN = 100
_MAX_AGE = 90 * 86400
_BACKGROUND = b"app-server"
"""An argument of the background process of Codex, which closes a session a minute later."""
_UNKNOWN = 0.0
"""The beginning of a call whose changes cannot be told from earlier ones."""


class Presence(NamedTuple):
    """What is known of a session."""

    agent: str
    session: str
    event: str
    """The name of its last event."""
    ts: float
    """The time of that event."""
    saved: float | None = None
    """The time of the last checkpoint."""
    pid: int = 0
    """The process of the agent; 0 if unknown."""
    start: int = 0
    """The start time of that process, which tells it from a later one with the same number."""
    open: dict[str, float] = {}  # noqa: RUF012 - never changed
    """When each tool call began that has not ended."""

    @property
    def is_running(self) -> bool:
        """Whether the agent still has the session open."""
        if self.event == "SessionEnd" or not self.pid or _start_of(self.pid) != self.start:
            return False
        return not self.is_background or _has_open(self.pid, self.session)

    @property
    def is_background(self) -> bool:
        """Whether the process serves many sessions, and stays when the user exits the agent."""
        return _BACKGROUND in _command_line(self.pid)


def record_event(event: Event, *, saved: bool, compared: float | None, client: int) -> None:
    """Record that an event was received.

    Args:
        event: the event.
        saved: whether a checkpoint was saved.
        compared: when the files were compared with the last checkpoint; None if that failed.
        client: the process that sent it; an ancestor of it is the agent.
    """
    directory = open_state_dir()
    if directory is None:
        return
    try:
        name = _name(event.key)
        before = _read(directory, name)
        now = time.time()
        pid, start = (before.pid, before.start) if before is not None else (0, 0)
        if not pid or _start_of(pid) != start:
            pid, start = _agent_process(event.agent, client)
        last = now if saved else None if before is None else before.saved
        began = _UNKNOWN if compared is None else compared
        calls = _open_calls({} if before is None else before.open, event, began)
        found = Presence(event.agent, event.session, event.name, now, last, pid, start, calls)
        data = json.dumps(found._asdict()).encode()
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=directory)
        try:
            # In place: after a rename or truncation ext4 waits for the disk, and the agent for us.
            os.write(fd, data.ljust(os.fstat(fd).st_size))
        finally:
            os.close(fd)
    except OSError:
        pass  # a full disk, for example; the save itself reports that
    finally:
        os.close(directory)


def presence_of(key: str) -> Presence | None:
    """Return what is known of a session; None if nothing is."""
    directory = open_state_dir()
    if directory is None:
        return None
    try:
        return _read(directory, _name(key))
    finally:
        os.close(directory)


def start_of_call(event: Event) -> float | None:
    """Return when the tool call of an event began; None if that was not reported."""
    before = presence_of(event.key)
    found = [before.open.get(_call_name(call)) for call in event.calls] if before else []
    return min((start for start in found if start is not None), default=None) or None


def _open_calls(before: dict[str, float], event: Event, began: float) -> dict[str, float]:
    if event.moment == TURN:
        return {}
    names = [_call_name(call) for call in event.calls]
    if event.moment == BEFORE:
        return dict([*before.items(), *((name, began) for name in names)][-_MAX_OPEN:])
    return {name: start for name, start in before.items() if name not in names}


def _call_name(call: Call) -> str:
    return call.id or call.words


def all_presences() -> Iterator[Presence]:
    """Iterate over all sessions that are known; forget those that are very old."""
    directory = open_state_dir()
    if directory is None:
        return
    try:
        for name in sorted(os.listdir(directory)):
            if not name.endswith(_SUFFIX):
                continue
            found = _read(directory, name)
            if found is not None and time.time() - found.ts < _MAX_AGE:
                yield found
            else:
                with suppress(OSError):
                    os.unlink(name, dir_fd=directory)
    finally:
        os.close(directory)


def _name(key: str) -> str:
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}{_SUFFIX}"


def _read(directory: int, name: str) -> Presence | None:
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
        try:
            record: dict[str, Any] = json.loads(os.read(fd, _MAX_BYTES))
        finally:
            os.close(fd)
        return Presence(**{field: record[field] for field in Presence._fields})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _agent_process(agent: str, client: int) -> tuple[int, int]:
    """Return the number and start time of the nearest ancestor that is the agent; zeros if none."""
    pid = client
    for _ in range(_MAX_ANCESTORS):
        found = _stat_of(pid)
        if found is None or pid <= 1:
            break
        name, parent, start = found
        if _is_program(agent, name, pid):
            return pid, start
        pid = parent
    return 0, 0


def _is_program(agent: str, name: str, pid: int) -> bool:
    words = _command_line(pid)[:2]  # a script has its interpreter before it
    names = [name, *(os.path.basename(os.fsdecode(word)) for word in words)]
    return any(os.path.splitext(found)[0] == PROGRAMS.get(agent) for found in names)


def _command_line(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(4096).split(b"\0")
    except OSError:
        return []


def _has_open(pid: int, session: str) -> bool:
    """Return whether a process has a file open that is named after a session; True if unknown."""
    files = f"/proc/{pid}/fd"
    try:
        names = os.listdir(files)
    except OSError:
        return True
    for name in names:
        with suppress(OSError):  # closed meanwhile
            if session in os.path.basename(os.readlink(f"{files}/{name}")):
                return True
    return False


def _start_of(pid: int) -> int | None:
    found = _stat_of(pid)
    return None if found is None else found[2]


def _stat_of(pid: int) -> tuple[str, int, int] | None:
    """Return the name, the parent and the start time of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode("utf-8", "replace")
        before, _, after = text.rpartition(")")
        fields = after.split()
        if fields[0] == "Z":
            return None
        return before.partition("(")[2], int(fields[1]), int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
