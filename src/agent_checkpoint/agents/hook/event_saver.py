"""Saves hook events as checkpoints. Decides when a checkpoint is due; caches data between events.

Used by the daemon, and by a child process that saves one event if there is no daemon.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from agent_checkpoint.agents.agent_events import AFTER, TURN, Event, read_event
from agent_checkpoint.agents.hook.protocol import LOCATION_VARIABLES
from agent_checkpoint.agents.hook_redaction import hook_redactor
from agent_checkpoint.agents.moved_directories import present_path
from agent_checkpoint.agents.session_lock import LOCK_TIMEOUT, hold_session_lock
from agent_checkpoint.agents.session_note import PART, TRANSCRIPT, SessionNote, read_note
from agent_checkpoint.agents.session_presence import record_event, start_of_call
from agent_checkpoint.agents.state_dir import log_failure
from agent_checkpoint.agents.store_mounts import remember_mount, unmounted
from agent_checkpoint.agents.transcript_file import Transcript, remove_stale_replacement
from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.errors import (
    UNUSABLE,
    CheckpointError,
    ConflictError,
    IntegrityError,
    InvalidInputError,
    StorageError,
)
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import ROLLBACK_KINDS, Checkpoint, Draft, Kind, check_key, short_repr
from agent_checkpoint.store.directory_claims import newest_readable
from agent_checkpoint.store.objects.reader import OBJECT
from agent_checkpoint.store.objects.references import CapturedState
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.workspace import Workspace, WorkspaceFiles

_MOST_STORES, _MOST_WORKSPACES, _MOST_TRANSCRIPTS, _MOST_LOCKS = 4, 8, 16, 256
_MOST_KEPT = 32 << 20
"""Larger transcripts are not cached in memory."""
_ATTEMPTS = 8
_SHOWN = 3
_RECENT = 8
_ROOTS = (".git", ".hg", ".jj", ".svn")


class Request(NamedTuple):
    """A request from the hook client."""

    agent: str
    store: str
    project: str
    secret: str
    locations: tuple[str, ...]
    event: bytes
    home: str = ""


def parse_request(text: bytes) -> Request:
    """Parse a request. Raises InvalidInputError."""
    try:
        line, _, rest = text.partition(b"\n")
        head, event = map(int, line.split())
        fields = [os.fsdecode(field) for field in rest[:head].split(b"\0")]
        agent, store, project, secret, *others = fields
    except ValueError:
        raise InvalidInputError("Invalid request from a hook client.") from None
    count = len(LOCATION_VARIABLES)
    locations, homes = others[:count], others[count:]  # older clients send no home of the agent
    if len(rest) != head + event or len(locations) != count or len(homes) > 1:
        raise InvalidInputError("Malformed request from a hook client, perhaps of another version.")
    return Request(agent, store, project, secret, tuple(locations), rest[head:], *homes)


class EventSaver:
    """Saves events, one at a time for each session; thread-safe."""

    def __init__(self, *, watch: bool) -> None:
        """Start with empty caches.

        Args:
            watch: whether workspaces stay open and are watched between events.
        """
        self._watch = watch
        self._lock = threading.Lock()
        self._stores: OrderedDict[str, Store] = OrderedDict()
        self._workspaces: OrderedDict[tuple[int, str], Workspace] = OrderedDict()
        self._transcripts: OrderedDict[str, Transcript] = OrderedDict()
        self._sessions: OrderedDict[str, threading.Lock] = OrderedDict()

    def save(
        self, request: Request, *, timeout: float = LOCK_TIMEOUT, client: int = 0
    ) -> str | None:
        """Save an event; return the id of the checkpoint, or None if the event needs none.

        Args:
            request: the client's request.
            timeout: seconds to wait for the session lock.
            client: the process of the client, by which the agent is found.

        Raises:
            CheckpointError: nothing was saved.
        """
        event = read_event(
            request.agent, request.event, request.home, hook_redactor(), request.project
        )
        key = check_key(event.key)
        saved, compared = None, None
        try:
            with self._session(key), hold_session_lock(key, timeout):
                now = time.time()  # before the scan: what changes meanwhile may be in it or not
                saved = self._save(event, key, self._store(request.store), request.project)
                compared = now
                return saved
        finally:
            record_event(event, saved=saved is not None, compared=compared, client=client)

    def close(self) -> None:
        """Close all workspaces and stores."""
        with self._lock:
            for workspace in self._workspaces.values():
                workspace.close()
            for store in self._stores.values():
                store.backend.close()
            self._workspaces.clear()
            self._stores.clear()
            self._transcripts.clear()

    # -- one checkpoint --------------------------------------------------------------------------

    def _save(self, event: Event, key: str, store: Store, project: str) -> str | None:
        head, before = _recovered_head(store, key)
        workspace = self._workspace(store, session_root(event, before, project))
        transcript, trouble = self._transcript(event, key)
        if trouble is not None and (before is None or before.trouble != trouble):
            log_failure(f"Files saved without the conversation: {trouble}")
        noted = None if transcript is None else transcript.note()
        started = start_of_call(event) if event.moment == AFTER else None
        note = SessionNote.from_event(
            store, event, str(workspace.path), noted, trouble=trouble, started=started
        )
        files = WorkspaceFiles(workspace, full=event.is_end)
        captured: Any = CapturedState(files, store.writer)
        parts: dict[str, Any] = {FILES: captured}
        if transcript is not None:
            parts[TRANSCRIPT] = encode(transcript.lines, TRANSCRIPT)
        parts[PART] = note.dump()
        if head is None:
            _log_excluded(workspace)
        _log_losses(workspace, store, head)
        redacted = 0 if transcript is None else transcript.redacted
        draft = Draft(key, parts, label=event.label, tags=event.tags, redacted=redacted)
        for attempt in range(_ATTEMPTS):
            is_new = _has_changes(note, {OBJECT: captured.name}, head, before)
            if not is_new and (event.moment != AFTER or _is_recorded(store, key, event)):
                files.writer.confirm()  # the head already has these contents
                return None
            after = (0 if head is None else head.seq) if attempt < _ATTEMPTS - 1 else None
            try:
                parents = () if head is None else (head.id,)
                return store.write(draft, parents=parents, after=after).id
            except ConflictError:  # another hook process has saved first, possibly the same event
                head, before = _head(store, key)
        raise AssertionError("unreachable: the last attempt expects no head")

    # -- caches ----------------------------------------------------------------------------------

    def _session(self, name: str) -> threading.Lock:
        with self._lock:
            lock = self._sessions.pop(name, None) or threading.Lock()
            self._sessions[name] = lock
            for old in [n for n, held in self._sessions.items() if not held.locked()]:
                if len(self._sessions) <= _MOST_LOCKS:
                    break
                if old != name:
                    del self._sessions[old]
            return lock

    def _store(self, name: str) -> Store:
        with self._lock:
            found = self._stores.pop(name, None)
            if found is not None and found.backend.is_replaced():
                self._forget(found)
                found = None
            found = found or _open_store(name)
            self._stores[name] = found
            if len(self._stores) > _MOST_STORES:
                self._forget(self._stores.pop(next(iter(self._stores))))
            return found

    def _forget(self, store: Store) -> None:
        for name in [name for name in self._workspaces if name[0] == id(store)]:
            self._workspaces.pop(name).close()
        store.backend.close()

    def _workspace(self, store: Store, root: str) -> Workspace:
        name = id(store), root
        with self._lock:
            found = self._workspaces.pop(name, None)
        if found is None:  # outside the lock: finishing an interrupted restore may take a long time
            found = Workspace(root, store, watch=self._watch)
            for notice in found.notices:
                log_failure(notice)
        with self._lock:
            found = self._workspaces.setdefault(name, found)
            self._workspaces.move_to_end(name)
            while len(self._workspaces) > _MOST_WORKSPACES:
                self._workspaces.pop(next(iter(self._workspaces))).close()
            return found

    def _transcript(self, event: Event, key: str) -> tuple[Transcript | None, str | None]:
        """Return the current transcript, or the reason why it cannot be read."""
        if event.transcript is None:
            return None, None
        is_redacted = hook_redactor() is not None
        key = f"{key}\0{event.transcript}\0{is_redacted}"
        with self._lock:
            found = self._transcripts.pop(key, None)
        if found is None:
            found = Transcript(event.transcript)
        remove_stale_replacement(event.transcript)
        try:
            if not found.read(full=event.moment == TURN):
                return None, None
        except StorageError as error:
            return None, str(error)
        if found.size <= _MOST_KEPT:
            with self._lock:
                self._transcripts[key] = found
                while len(self._transcripts) > _MOST_TRANSCRIPTS:
                    self._transcripts.popitem(last=False)
        return found, None


def _open_store(name: str) -> Store:
    """Open a store, which the first save creates. Raises StorageError if it is not mounted."""
    backend = open_named(name or None)
    problem = unmounted(backend)
    if problem is not None:
        backend.close()
        raise StorageError(problem)
    remember_mount(backend)
    return Store(backend)


def session_root(event: Event, before: SessionNote | None, project: str) -> str:
    """Return the root directory of a session: the repository in which it started."""
    is_known = os.path.isabs(project) and os.path.isdir(project)
    start = project if is_known else event.cwd
    if before is not None and before.is_ours:
        here = Path(os.path.realpath(start))
        root = present_path(before.place, (here, *here.parents))
        if os.path.isdir(root):
            return root
    return repository_root(start)


def repository_root(place: str) -> str:
    """Return the repository around a directory; the directory itself if there is none."""
    start = Path(os.path.realpath(place))
    home = Path(os.path.realpath(os.path.expanduser("~")))
    for directory in (start, *start.parents):
        if directory == home or directory in home.parents:
            break
        if any(os.path.lexists(directory / name) for name in _ROOTS):
            return str(directory)
    return str(start)


def _log_excluded(workspace: Workspace) -> None:
    """Log the paths that ignore rules exclude, because the rules of a project are untrusted."""
    try:
        names = workspace.left_out
    except IntegrityError as error:  # the files are saved
        log_failure(str(error))
        return
    if names:
        root = short_repr(str(workspace.path))
        some = _some(", ", [short_repr(name) for name in names])
        log_failure(f"The .checkpointignore of {root} excludes: {some}")


def _log_losses(workspace: Workspace, store: Store, head: Checkpoint | None) -> None:
    """Log files that could not be saved, unless the head has the same losses."""
    losses = workspace.losses
    if not losses:
        return
    with suppress(CheckpointError):  # a damaged head does not affect this checkpoint
        before = None if head is None else tree_in(store, head)
        if before is not None and set(losses) <= set(before.notes):
            return
    some = _some("; ", [f"{short_repr(one.path)}: {one.kind}, {one.text}" for one in losses])
    log_failure(f"Some files of {short_repr(str(workspace.path))} are not saved: {some}")


def _some(between: str, texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return between.join(texts[:_SHOWN]) + more


def _recovered_head(store: Store, key: str) -> tuple[Checkpoint | None, SessionNote | None]:
    """Return the head, after finishing a rewind that was interrupted by a crash."""
    head, before = _head(store, key)
    if head is None or head.kind not in (Kind.SAFETY, *ROLLBACK_KINDS):
        return head, before
    from agent_checkpoint.agents.rewind.rewind import finish_rewind  # slow to import, rarely needed

    message = finish_rewind(store, key)
    if message is not None:
        log_failure(message)
    return _head(store, key)


def _head(store: Store, key: str) -> tuple[Checkpoint | None, SessionNote | None]:
    try:
        head = store.head(key)
        return head, None if head is None else read_note(store, head)
    except UNUSABLE:  # `verify` reports it; the agent continues
        return newest_readable(store, key), None


def _has_changes(
    note: SessionNote, files: Any, head: Checkpoint | None, before: SessionNote | None
) -> bool:
    """Return whether files or transcript differ from the head."""
    if head is None or before is None or head.kind == Kind.SAFETY:
        return True
    return head.parts.get(FILES) != files or note.transcript != before.transcript


def _is_recorded(store: Store, key: str, event: Event) -> bool:
    """Return whether a tool call already has a checkpoint.

    Recent checkpoints are searched, not only the head: a killed process may have saved the call,
    and other processes may have saved later ones.
    """
    if not all(call.id for call in event.calls):
        return False
    tags = set(event.tags)
    try:
        return any(
            tags <= set(item.tags)
            for item in islice(store.newest_first(key, page=_RECENT), _RECENT)
        )
    except UNUSABLE:  # an older checkpoint is damaged; `verify` reports it
        return False
