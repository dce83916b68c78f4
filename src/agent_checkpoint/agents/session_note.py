"""The hook metadata of a checkpoint: agent, session, paths and tool calls. Owns that part."""

from __future__ import annotations

import json
from typing import Any

from agent_checkpoint.agents.agent_events import Call, Event
from agent_checkpoint.agents.moved_directories import SavedPlace
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.loading import decode_part
from agent_checkpoint.errors import IntegrityError, StateError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint, JsonValue, short_repr
from agent_checkpoint.seal import is_own_claim, seal_claim
from agent_checkpoint.store.directory_claims import host_of
from agent_checkpoint.store.directory_identity import identity_of
from agent_checkpoint.store.store import Store

PART = "hook"
"""The name of the part."""
TRANSCRIPT = "transcript"
"""The name of the part with the conversation."""
REWIND = "rewind"
"""The event in notes of checkpoints that a rewind writes."""
_FILE = {"path": str, "lines": int, "bytes": int, "ended": bool, "digest": str}
_REWIND = {"target": str, "files": bool, "conversation": bool, "exclude": list}


class SessionNote(NamedTuple):
    """Metadata that the hook adds to a checkpoint."""

    agent: str
    session: str
    root: str
    cwd: str
    event: str
    calls: tuple[Call, ...] = ()
    transcript: dict[str, Any] | None = None
    trouble: str | None = None
    """The reason why the conversation could not be saved; None if it was."""
    rewind: dict[str, Any] | None = None
    """The intended rewind; set in the safety checkpoint before a rewind."""
    started: float | None = None
    """When the tool call began; None if that was not reported."""
    time: str | None = None
    """When the agent made the event; None if it does not say, or its transcript has no times."""
    named: tuple[str, ...] = ()
    """Files that the arguments of the call name, relative to the root."""
    identity: str = ""
    """The identity of the root, which a rename keeps; empty if unknown."""
    identity_seal: str | None = None
    """Its HMAC. Not part of the other one, which version 0.1 verifies."""
    seal: str | None = None
    """HMAC under this user's secret, which proves that this user's hook wrote the paths."""
    host: str = ""
    """The host of the paths. Signed but not stored, so an HMAC of another host does not match."""
    is_imported: bool = False
    """Whether the checkpoint was imported.

    An imported note is not trusted, even with a valid HMAC.
    """

    @classmethod
    def from_event(
        cls,
        store: Store,
        event: Event,
        root: str,
        transcript: dict[str, Any] | None,
        **more: Any,
    ) -> SessionNote:
        """Return the note of an event."""
        names = (event.agent, event.session, root, event.cwd, event.name)
        host = host_of(store.backend)
        inside = f"{root}/"
        named = tuple(path[len(inside) :] for path in event.named if path.startswith(inside))
        note = cls(*names, event.calls, transcript, host=host, named=named, **more)
        return note._replace(time=event.time, identity=identity_of(root)).sealed()

    def sealed(self) -> SessionNote:
        """Return the note with this user's HMAC. Paths of unsigned notes are never written to."""
        return self._replace(
            identity_seal=seal_claim(self._identity_bytes()) if self.identity else None,
            seal=seal_claim(self._sealed_bytes()),
        )

    @property
    def is_ours(self) -> bool:
        """Whether this user wrote the note on this host."""
        return not self.is_imported and is_own_claim(self._sealed_bytes(), self.seal)

    def _sealed_bytes(self) -> bytes:
        path = None if self.transcript is None else self.transcript["path"]
        members: list[Any] = ["hook", self.agent, self.session, self.root, path]
        if self.rewind is not None:
            members.append(self.rewind)
        if self.host:
            members.append(self.host)
        return json.dumps(members, sort_keys=True).encode()

    @property
    def place(self) -> SavedPlace:
        """The root, with its identity if this user signed it."""
        is_own = not self.is_imported and is_own_claim(self._identity_bytes(), self.identity_seal)
        return SavedPlace(self.root, self.identity if is_own else "")

    def _identity_bytes(self) -> bytes:
        members = ["directory of hook", self.agent, self.session, self.root, self.host]
        return json.dumps([*members, self.identity]).encode()

    def dump(self) -> JsonValue:
        """Return the encoded part. Raises StateError."""
        found = {name: value for name, value in self._asdict().items() if value is not None}
        del found["host"], found["is_imported"], found["named"]
        if not self.identity:
            del found["identity"]
        if self.named:
            found["named"] = [name.encode("utf-8", "replace").decode() for name in self.named]
        return encode({**found, "calls": [list(call) for call in self.calls]}, PART)


def read_note(store: Store, checkpoint: Checkpoint) -> SessionNote | None:
    """Return the note of a checkpoint; None if the checkpoint was not written by the hook.

    Raises:
        IntegrityError: the part is damaged.
        StorageError: the medium failed.
    """
    tree = checkpoint.parts.get(PART)
    if tree is None:
        return None
    reader = store.reader(checkpoint)
    reader.fetch([tree])
    try:
        found = decode_part(tree, PART, reader=reader).value
        calls = tuple(
            Call(*map(_text, call[:2]), *map(_maybe, call[2:])) for call in found["calls"]
        )
        names = ("agent", "session", "root", "cwd", "event")
        texts = {name: _text(found[name]) for name in names}
        rewind = _record(found.get("rewind"), _REWIND)
        if rewind is not None:
            rewind["exclude"] = list(map(_text, rewind["exclude"]))
        return SessionNote(
            **texts,
            calls=calls,
            transcript=_record(found.get("transcript"), _FILE),
            trouble=_maybe(found.get("trouble")),
            rewind=rewind,
            started=_time(found.get("started")),
            time=_maybe(found.get("time")),
            named=tuple(map(_text, found.get("named") or ())),
            identity=_maybe(found.get("identity")) or "",
            identity_seal=_maybe(found.get("identity_seal")),
            seal=_maybe(found.get("seal")),
            host=host_of(store.backend),
            is_imported=checkpoint.token is not None,
        )
    except (StateError, KeyError, TypeError, ValueError) as error:
        where = short_repr(checkpoint.id, 120)
        raise IntegrityError(f"The hook metadata of the checkpoint {where} is damaged.") from error


def _record(found: Any, kinds: dict[str, type]) -> dict[str, Any] | None:
    """Return the named members of a record, after a check of their types. Raises ValueError."""
    if found is None:
        return None
    if any(type(found[name]) is not kind for name, kind in kinds.items()):
        raise ValueError("invalid record")
    return {name: found[name] for name in kinds}


def _time(value: Any) -> float | None:
    if value is not None and type(value) is not float:
        raise ValueError("not a time")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("not a non-empty string")
    return value


def _maybe(value: Any) -> str | None:
    return None if value is None else _text(value)
