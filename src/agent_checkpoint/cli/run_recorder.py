"""Saves checkpoints of a directory and of a command's output. Decides when a checkpoint is due."""

from __future__ import annotations

import threading
from typing import Any

from agent_checkpoint.agents.agent_events import Event
from agent_checkpoint.agents.session_note import PART, SessionNote
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.log import Log
from agent_checkpoint.records import Checkpoint, Draft, Kind, check_key
from agent_checkpoint.store.directory_claims import make_claim
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.objects.references import CapturedState
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.workspace import Workspace, WorkspaceFiles

OUTPUT, RUN = "output", "run"
"""Names of the parts: captured output, and the command with its status."""
_MOST_BEGIN, _MOST_END = 512 << 10, 64 << 10


class CapturedOutput:
    """The output of a command: the beginning as an append-only log, and the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin: Log[str] = Log()
        self._begun = 0
        self._end = b""
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Append output. Bytes between the beginning and the end are dropped and counted."""
        with self._lock:
            if self._begun < _MOST_BEGIN:
                head, data = data[: _MOST_BEGIN - self._begun], data[_MOST_BEGIN - self._begun :]
                self._begun += len(head)
                self.begin.append(head.decode("utf-8", "surrogateescape"))
            if data:
                end = self._end + data
                self._end = end[-_MOST_END:]
                self._dropped += len(end) - len(self._end)

    def dump(self) -> Any:
        """Return the encoded part."""
        with self._lock:
            end = self._end.decode("utf-8", "surrogateescape")
            found = {"begin": self.begin, "dropped": self._dropped, "end": end}
            return encode(found, OUTPUT)

    @property
    def size(self) -> int:
        """The total number of bytes printed."""
        return self._begun + len(self._end) + self._dropped


class RunRecorder:
    """Saves a directory and the output of a command as checkpoints of one key."""

    def __init__(
        self, store: Store, workspace: Workspace, key: str, directory_key: str, command: list[str]
    ) -> None:
        """Prepare the recorder.

        Args:
            store: the store.
            workspace: the directory.
            key: the key of the checkpoints.
            directory_key: the directory's own key.
            command: the command.
        """
        self._store = store
        self._workspace = workspace
        self._key = check_key(key)
        self._is_directory_key = key == directory_key
        self._command = command
        self.output = CapturedOutput()

    def save(
        self,
        label: str,
        *,
        only_changes: bool = False,
        status: int | None = None,
        seconds: float | None = None,
        full: bool = False,
    ) -> Checkpoint | None:
        """Save a checkpoint; return it, or None if none was due.

        Args:
            label: the label.
            only_changes: save nothing if no file has changed since the last checkpoint.
            status: the exit status, if the command has exited.
            seconds: the run time.
            full: stat every file, instead of relying on change notifications.

        Raises:
            CheckpointError: nothing was saved.
        """
        files = WorkspaceFiles(self._workspace, full=full)
        captured: Any = CapturedState(files, self._store.writer)
        head = self._store.head(self._key)
        last = None if head is None or head.kind == Kind.SAFETY else head.parts.get(FILES)
        if only_changes and last == {OBJECT: captured.name}:
            files.writer.confirm()
            return None
        about: dict[str, Any] = {"command": self._command, "status": status, "seconds": seconds}
        parts = {FILES: captured, OUTPUT: self.output.dump(), RUN: encode(about, RUN)}
        place = self._workspace.path
        claim = (
            make_claim(self._store.backend, self._key, place) if self._is_directory_key else None
        )
        if not self._is_directory_key:
            event = Event(RUN, RUN, self._key, str(place), None)
            parts[PART] = SessionNote.from_event(self._store, event, str(place), None).dump()
        text = label if len(label) <= 100 else label[:99] + "…"
        text = text.encode("utf-8", "replace").decode()
        draft = Draft(self._key, parts, label=" ".join(text.split()), claim=claim)
        return self._store.write(draft)
