"""Snapshots that are held elsewhere: of a container, a VM, a database. Owns when one is let go.

A checkpoint holds the handle as an object. When gc has dropped the last checkpoint that needs it,
the object is gone, and the snapshot itself can be released.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.path_errors import cause_text
from agent_checkpoint.core.state_codec import decode_part
from agent_checkpoint.errors import InvalidInputError, StateError, StateMismatchError
from agent_checkpoint.records import short_repr
from agent_checkpoint.store.objects.object_format import RECORD, make_object
from agent_checkpoint.store.objects.reader import fetch_objects
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.record_stream import RecordStream
from agent_checkpoint.store.store import Store

_STREAM = "meta/external/"
_ABANDONED = 86_400 * 10**9
"""After so many nanoseconds a snapshot whose checkpoint was never written is let go."""


class External:
    """A part of a checkpoint that is a snapshot held elsewhere; a Stateful."""

    def __init__(
        self,
        name: str,
        *,
        take: Callable[[], Any],
        restore: Callable[[Any], object],
        release: Callable[[Any], object] | None = None,
    ) -> None:
        """Say how snapshots are made, used and let go.

        Args:
            name: tells it from others of the same store.
            take: makes a snapshot of the present and returns its handle, which is plain data; the
                same as before if nothing has changed.
            restore: makes a snapshot the present.
            release: lets go of a snapshot that no checkpoint needs.

        Raises:
            InvalidInputError: it has no name.
        """
        if not isinstance(name, str) or not name:
            raise InvalidInputError(f"An External is named by text, not {short_repr(name)}.")
        self.name = name
        self._take = take
        self._restore = restore
        self._release = release
        self.held: tuple[Any] | None = None
        """The handle of a snapshot that a checkpoint has of the present, while that is replaced."""

    def __repr__(self) -> str:
        return f"External({self.name!r})"

    def state_dict(self) -> dict[str, Any]:
        """Take a snapshot and return its handle. Raises what `take` raises."""
        return {"name": self.name, "handle": self._take()}

    def load_state_dict(self, state: Any) -> Any:
        """Make a snapshot the present; return the handle of what was there before.

        Raises:
            StateMismatchError: it is a snapshot of something else.
            StateError: it cannot be restored; what was there before is there again, if it can be.
        """
        source = state.source if isinstance(state, ObjectRef) else None
        if isinstance(state, ObjectRef):
            state = self._read(state)
        if not isinstance(state, dict) or state.get("name") != self.name:
            raise StateMismatchError(f"This is no snapshot of {self.name!r}.")
        before = self._taken()[0] if self.held is None else self.held[0]
        if self.held is None and isinstance(source, Backend) and self._release is not None:
            self._list(Store(source), self._packed(before)[0], before)
        try:
            self._restore(state["handle"])
        except Exception as error:
            with suppress(Exception):  # the first error is the one that tells
                self._restore(before)
            raise StateError(
                f"The snapshot of {self.name!r} cannot be restored ({cause_text(error)})."
            ) from error
        return before

    def undo_load(self, before: Any) -> None:
        """Take that back. Raises what `restore` raises."""
        self._restore(before)

    def checkpoint_to(self, writer: Writer) -> str:
        """Take a snapshot and hand its handle to a writer; return the name of the object.

        Raises:
            StateError: taking it failed, or its handle cannot be saved.
        """
        (handle,) = self._taken()
        name, payload = self._packed(handle)
        writer.put(RECORD, payload)
        if writer.backend is not None and self._release is not None:
            writer.write_cache[self] = True  # gc asks those who are known to the store
            store = Store(writer.backend)
            listed = self._list(store, name, handle)
            writer.on_commit(lambda: self._keep(store, name, listed))
        return name

    def _taken(self) -> tuple[Any]:
        try:
            return (self._take(),)
        except Exception as error:
            raise StateError(
                f"No snapshot of {self.name!r} could be taken ({cause_text(error)})."
            ) from error

    def _packed(self, handle: Any) -> tuple[str, bytes]:
        """Return the name and the content of the object that a checkpoint has for a handle."""
        tree = inline_tree(encode({"name": self.name, "handle": handle}, self.name))
        payload = json.dumps(tree, separators=(",", ":")).encode()
        return make_object(RECORD, payload)[0], payload

    def _list(self, store: Store, name: str, handle: Any) -> int:
        """Note that a snapshot exists, before anything needs it: only what is listed is let go.

        Also one that is listed already: the last checkpoint that has it may be collected while the
        next is being written, and then it must not be let go.
        """
        parts = {"handle": encode(handle, self.name)}
        stream = self._stream(store)
        return stream.append({"object": name, "ts_ns": time.time_ns()}, parts, after=None)

    def _keep(self, store: Store, name: str, listed: int) -> None:
        """Note that a checkpoint has a snapshot: it is let go as soon as none has."""
        stream = self._stream(store)
        stream.append({"needed": name}, {}, after=None)
        self._forget(stream, name, before=listed)

    def _read_list(self, store: Store) -> tuple[dict[str, tuple[int, Any]], dict[str, int]]:
        """Return the newest listing of each snapshot, and where it is said to be needed."""
        listed: dict[str, tuple[int, Any]] = {}
        needed: dict[str, int] = {}
        for seq, record in self._stream(store).read():
            if "object" in record:
                listed[str(record["object"])] = (seq, record)
            elif "needed" in record:
                needed[str(record["needed"])] = seq
        return listed, needed

    def release_unused(self, store: Store) -> list[Any]:
        """Let go of the snapshots that no checkpoint of a store needs; return their handles.

        Raises what `release` raises, and StorageError.
        """
        if self._release is None:
            return []
        stream = self._stream(store)
        listed, needed = self._read_list(store)
        gone = store.backend.missing_objects(listed)
        oldest = time.time_ns() - _ABANDONED
        released = []
        for name, (seq, record) in listed.items():
            # One that was just taken may be of a checkpoint that is yet to be written.
            if name in gone and (needed.get(name, 0) > seq or record["ts_ns"] < oldest):
                parts = record["parts"]
                handle = decode_part(parts["handle"], "handle", reader=stream.reader(parts)).value
                self._release(handle)
                self._forget(stream, name)
                released.append(handle)
        return released

    def _forget(self, stream: RecordStream, name: str, before: int | None = None) -> None:
        """Remove the records of a snapshot, all or the older ones."""
        about = [
            seq
            for seq, record in stream.read()
            if name in (record.get("object"), record.get("needed"))
            and (before is None or seq < before)
        ]
        stream.store.backend.remove(stream.name, about)

    def _stream(self, store: Store) -> RecordStream:
        return RecordStream(store, _STREAM + self.name)

    def handle_in(self, ref: ObjectRef) -> Any:
        """Return the handle that a checkpoint has. Raises StateMismatchError."""
        return self._read(ref)["handle"]

    def _read(self, ref: ObjectRef) -> dict[str, Any]:
        ((_, stored),) = fetch_objects(ref.source, [ref.name])
        try:
            tree = json.loads(stored.payload)
        except (ValueError, RecursionError):
            raise StateMismatchError(f"This is no snapshot of {self.name!r}.") from None
        found: dict[str, Any] = decode_part(tree, self.name).value
        return found
