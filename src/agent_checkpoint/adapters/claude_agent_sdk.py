"""Claude Agent SDK: transcripts in a store, and checkpoints of files with the conversation.

Needs the extra `claude-agent-sdk`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from uuid import uuid4

from agent_checkpoint.adapters import needs_extra
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import CheckpointError, ConflictError, NotFoundError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import Kind
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.subagent import state_of

with needs_extra("claude-agent-sdk"):
    import anyio
    from anyio.to_thread import run_sync
    from claude_agent_sdk import HookMatcher, fold_session_summary, project_key_for_directory

if TYPE_CHECKING:
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

    from agent_checkpoint.store.store_argument import StoreLike

_PREFIX = "claude/"
_TAG = "claude:"
"""The tag of the checkpoint at which an SDK session begins; its id follows."""
_REPLACES_STATE = frozenset(
    {Kind.ROLLBACK, Kind.RESTORE, Kind.ADOPT, Kind.FORK, Kind.PURGE, Kind.UNREADABLE}
)
_MAX_OPEN = 32
"""The number of transcripts that are kept in memory."""
_LATE = 2.0
"""How many seconds the results of a tool batch may be late in the transcript file."""


class SessionStore:
    """The transcripts of SDK sessions in a store: one key per transcript.

    Pass it as `ClaudeAgentOptions(session_store=…)`. Each append is durable when it returns.
    Concurrent writers of one transcript lose nothing; an entry with a known `uuid` is not repeated.
    """

    def __init__(self, store: StoreLike) -> None:
        """Open the transcripts of a store: a path, a store URL, a Backend or a manager.

        Raises:
            InvalidInputError: the argument is not a store.
            StorageError: the store cannot be opened.
        """
        self.manager = store if isinstance(store, CheckpointManager) else CheckpointManager(store)
        """The manager of the store."""
        self._open: OrderedDict[str, _Transcript] = OrderedDict()
        self._lock = Lock()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript. Raises StateError, StorageError."""
        if entries:
            await run_sync(self.append_entries, key, entries)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript, or None. Raises IntegrityError, StorageError."""
        return await run_sync(self.load_entries, key)

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project with their modification times. Raises StorageError."""

        def listed() -> list[SessionStoreListEntry]:
            return [
                {"session_id": unquote(rest), "mtime": mtime}
                for name, rest in self._names(project_key)
                if "/" not in rest and (mtime := self._mtime(name)) is not None
            ]

        return await run_sync(listed)

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions of a project. Raises StorageError."""

        def listed() -> list[SessionSummaryEntry]:
            found: list[SessionSummaryEntry] = []
            for name, rest in self._names(project_key):
                summary, mtime = Log[Any](), self._mtime(name)
                with suppress(NotFoundError):  # deleted meanwhile
                    if "/" not in rest and mtime is not None:
                        self.manager.load(name, {"summary": summary})
                        found.append(summary.to_list()[0])
                        found[-1]["mtime"] = mtime
            return found

        return await run_sync(listed)

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript; that of a session with those of its sub-agents.

        Raises StorageError.
        """
        name = _name(key)

        def delete() -> None:
            rest = [] if "subpath" in key else self.manager.list_keys(f"{name}/")
            for one in (*rest, name):
                with suppress(NotFoundError):
                    self.manager.delete(one)
                with self._lock:
                    self._open.pop(one, None)

        await run_sync(delete)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session: its sub-agents. Raises StorageError."""
        prefix = f"{_name(key)}/"
        found = await run_sync(self.manager.list_keys, prefix)
        return [unquote(name[len(prefix) :]) for name in found]

    # -- without asyncio -------------------------------------------------------------------------

    def append_entries(self, key: SessionKey, entries: Iterable[Any]) -> None:
        """Append entries to a transcript. Raises StateError, StorageError."""
        name, fresh = _name(key), list(entries)
        for is_last in (False, True):
            with self._lock:
                transcript = self._open.setdefault(name, _Transcript())
                self._open.move_to_end(name)
                if len(self._open) > _MAX_OPEN:
                    self._open.popitem(last=False)
            try:
                with transcript.lock:
                    transcript.head = self.manager.update(
                        name,
                        {"entries": transcript.entries, "summary": transcript.summary},
                        lambda t=transcript: t.extend(key, fresh),  # type: ignore[misc]
                        holds=transcript.head,
                    )
                return
            except CheckpointError as error:  # what is in memory is not what is stored
                with self._lock:
                    self._open.pop(name, None)
                if is_last or not isinstance(error, ConflictError):
                    raise

    def load_entries(self, key: SessionKey) -> list[Any] | None:
        """Return the entries of a transcript, or None. Raises IntegrityError, StorageError."""
        entries = Log[Any]()
        try:
            self.manager.load(_name(key), {"entries": entries})
        except NotFoundError:
            return None
        return entries.to_list()

    def _names(self, project_key: str) -> list[tuple[str, str]]:
        prefix = f"{_PREFIX}{quote(project_key, safe='')}/"
        return [(name, name[len(prefix) :]) for name in self.manager.list_keys(prefix)]

    def _mtime(self, name: str) -> int | None:
        try:
            return int((self.manager.history(name, 1)[0]["ts"] or 0) * 1000)
        except NotFoundError:
            return None


@dataclass
class _Transcript:
    """A transcript in memory, at the checkpoint `head`."""

    entries: Log[Any] = field(default_factory=Log)
    summary: Log[Any] = field(default_factory=Log)
    """One item: the summary, as the SDK folds it."""
    head: str | None = None
    lock: Lock = field(default_factory=Lock)
    _known: set[str] = field(default_factory=set)
    _last: Any = None
    """The last entry whose uuid is known: another object if the entries were loaded again."""

    def extend(self, key: SessionKey, entries: Sequence[Any]) -> None:
        """Append the entries whose uuid is new, and fold them into the summary."""
        if self._last is not (self.entries[-1] if self.entries else None):
            self._known = {entry["uuid"] for entry in self.entries if "uuid" in entry}
        fresh = []
        for entry in entries:
            if entry.get("uuid") not in self._known:
                fresh.append(entry)
                self._known.update([entry["uuid"]] if entry.get("uuid") is not None else [])
        self.entries.extend(fresh)
        self._last = self.entries[-1] if self.entries else None
        if "subpath" not in key:
            before = self.summary.to_list()[0] if self.summary else None
            self.summary.replace([fold_session_summary(before, key, fresh)])


class _SessionTranscripts(SessionStore):
    """The transcripts of a Session, whose conversation follows that of its SDK session."""

    def __init__(self, session: Session, key: SessionKey) -> None:
        super().__init__(session.manager)
        self._session = session
        self._key = key
        self._results: set[str] = set()

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript. Raises StateError, StorageError."""
        await super().append(key, entries)
        with self._lock:
            transcript = self._open.get(_name(key))
        if key == self._key and transcript is not None:
            _follow(self._session, transcript.entries)
            self._results.update(found for entry in entries for found in _results(entry))

    async def wait_for(self, calls: set[str]) -> None:
        """Wait until the transcript has the results of tool calls, or they are too late."""
        with anyio.move_on_after(_LATE):
            while not calls <= self._results:
                await anyio.sleep(0.005)


class _TranscriptFile:
    """The transcript that the CLI writes: JSON lines, up to some milliseconds late."""

    def __init__(self, path: Path) -> None:
        self.entries: list[Any] = []
        self._path = path
        self._offset = 0
        self._results: set[str] = set()

    async def wait_for(self, calls: set[str]) -> None:
        """Read the file until it has the results of tool calls, or they are too late."""
        with anyio.move_on_after(_LATE):
            await run_sync(self._read)
            while not calls <= self._results:
                await anyio.sleep(0.005)
                await run_sync(self._read)

    def _read(self) -> None:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            end = data.rfind(b"\n") + 1
            self._offset += end
            for line in data[:end].splitlines():
                self.entries.append(json.loads(line))
                self._results.update(_results(self.entries[-1]))


def checkpoint_hooks(session: Session) -> dict[Any, list[HookMatcher]]:
    """Return hooks that save a checkpoint after each tool batch: the files and the transcript.

    Pass them as `ClaudeAgentOptions(hooks=…)`; `session_options` has them already. The model
    continues after the save. If it fails, the agent is stopped, with the reason.
    """
    files: dict[str, _TranscriptFile] = {}

    async def read_file(event: Any, calls: set[str]) -> None:
        path = event["transcript_path"]
        file = files.setdefault(path, _TranscriptFile(Path(path)))
        await file.wait_for(calls)
        _follow(session, file.entries)

    return _hooks(session, read_file)


def _hooks(
    session: Session, read_transcript: Callable[[Any, set[str]], Awaitable[None]]
) -> dict[Any, list[HookMatcher]]:
    async def after_tool_batch(event: Any, tool_use_id: str | None, context: Any) -> dict[str, Any]:
        calls = event.get("tool_calls") or []
        try:
            if not event.get("agent_id"):  # a sub-agent has its own transcript
                await read_transcript(event, {call["tool_use_id"] for call in calls})
            await session.asave(label=", ".join(call["tool_name"] for call in calls)[:200] or None)
        except CheckpointError as error:
            return {"continue_": False, "stopReason": f"The checkpoint was not saved. {error}"}
        return {}

    return {"PostToolBatch": [HookMatcher(hooks=[after_tool_batch])]}  # type: ignore[list-item]


def session_options(session: Session) -> dict[str, Any]:
    """Return the options of `ClaudeAgentOptions` that run an agent in a session.

    The agent works in the workspace of the session. A new session begins a conversation; one that
    was resumed, rolled back or forked continues the conversation of its files. Call it again after
    a rollback.

    Raises:
        InvalidInputError: the session is closed.
        StorageError: the store failed.
    """
    cwd = None if session.workspace is None else str(session.workspace.path)
    store, project = SessionStore(session.manager), project_key_for_directory(cwd)
    bound = _bound_id(session)
    stored = None if bound is None else store.load_entries(_key(project, bound))
    if bound is None or stored is None:
        bound = _begin(session, store, project)
        stored = session.messages.to_list()
    else:
        _follow(session, stored)
    transcripts = _SessionTranscripts(session, _key(project, bound))
    return {
        **({} if cwd is None else {"cwd": cwd}),
        "resume" if stored else "session_id": bound,
        "session_store": transcripts,
        "session_store_flush": "eager",
        "hooks": _hooks(session, lambda event, calls: transcripts.wait_for(calls)),
    }


def _bound_id(session: Session) -> str | None:
    """Return the id of the SDK session that continues at the head; None if there is none."""
    was_restored = session.drift is not None and not state_of(session).has_kept_drift
    for row in session.history():
        if row["kind"] in _REPLACES_STATE or (was_restored and row["kind"] == Kind.OPEN):
            return None
        for tag in row["tags"]:
            if tag.startswith(_TAG):
                return tag[len(_TAG) :]
    return None


def _begin(session: Session, store: SessionStore, project: str) -> str:
    """Begin an SDK session with the conversation of the head; return its id.

    The old one is kept as it is: it can still be resumed by its id.
    """
    entries, new = session.messages.to_list(), str(uuid4())
    if entries:
        store.append_entries(_key(project, new), [{**e, "sessionId": new} for e in entries])
    session.save(label="SDK session begins", tags=[f"{_TAG}{new}"])
    return new


def _follow(session: Session, entries: Sequence[Any]) -> None:
    """Append to the conversation what a longer transcript of it has."""
    messages, count = session.messages, len(session.messages)
    if count and len(entries) >= count:
        same = entries[count - 1].get("uuid") == messages[-1].get("uuid")
    else:
        same = not count
    if same and len(entries) > count:
        messages.extend(entries[count:])
    elif not same and len(entries) > count:
        messages.replace(entries)


def _results(entry: Any) -> list[str]:
    """Return the ids of the tool calls whose results an entry has."""
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    return [b["tool_use_id"] for b in blocks if isinstance(b, dict) and "tool_use_id" in b]


def _key(project: str, session_id: str) -> SessionKey:
    return {"project_key": project, "session_id": session_id}


def _name(key: SessionKey | SessionListSubkeysKey) -> str:
    parts = [key["project_key"], key["session_id"], key.get("subpath")]
    return _PREFIX + "/".join(quote(str(part), safe="") for part in parts if part is not None)
