"""`External`: snapshots of other systems, such as a container, a VM or a database.

A checkpoint stores the handle of a snapshot as an object. When gc has deleted that object, no
checkpoint references the snapshot, and it is released.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.core.loading import decode_part
from agent_checkpoint.core.path_errors import cause_text
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
"""Nanoseconds after which a snapshot whose checkpoint was never written is released."""


class External:
    """A part whose state is a snapshot in another system; a Stateful."""

    def __init__(
        self,
        name: str,
        *,
        take: Callable[[], Any],
        restore: Callable[[Any], object],
        release: Callable[[Any], object] | None = None,
    ) -> None:
        """Define how snapshots are taken, restored and released.

        Args:
            name: unique among the Externals of a store.
            take: takes a snapshot and returns its handle, a value that can be saved, such as a
                string; the same handle as before if nothing has changed.
            restore: restores the system from the snapshot with a given handle.
            release: deletes a snapshot that no checkpoint references.

        Raises:
            InvalidInputError: the name is empty or not a string.
        """
        if not isinstance(name, str) or not name:
            raise InvalidInputError(
                f"The name of an External must be a non-empty string, not {short_repr(name)}."
            )
        self.name = name
        self._take = take
        self._restore = restore
        self._release = release
        self.held: tuple[Any] | None = None
        """During a rollback: the handle of the current state, already saved in a checkpoint."""

    def __repr__(self) -> str:
        return f"External({self.name!r})"

    def state_dict(self) -> dict[str, Any]:
        """Take a snapshot and return its handle. Raises what `take` raises."""
        return {"name": self.name, "handle": self._take()}

    def load_state_dict(self, state: Any) -> Any:
        """Restore a snapshot; return the handle of the previous state.

        Raises:
            StateMismatchError: the snapshot belongs to another External.
            StateError: the restore failed; the previous state is restored if possible.
        """
        source = state.source if isinstance(state, ObjectRef) else None
        if isinstance(state, ObjectRef):
            state = self._read(state)
        if not isinstance(state, dict) or state.get("name") != self.name:
            raise StateMismatchError(f"The state is not a snapshot of {self.name!r}.")
        before = self._taken()[0] if self.held is None else self.held[0]
        if self.held is None and isinstance(source, Backend) and self._release is not None:
            self._list(Store(source), self._packed(before)[0], before)
        try:
            self._restore(state["handle"])
        except Exception as error:
            with suppress(Exception):  # report the first error
                self._restore(before)
            raise StateError(
                f"Restoring the snapshot of {self.name!r} failed ({cause_text(error)})."
            ) from error
        return before

    def undo_load(self, before: Any) -> None:
        """Restore the state that a load returned. Raises what the `restore` callback raises."""
        self._restore(before)

    def checkpoint_to(self, writer: Writer) -> str:
        """Take a snapshot and write its handle; return the id of the object.

        Raises:
            StateError: the snapshot failed, or its handle cannot be saved.
        """
        (handle,) = self._taken()
        name, payload = self._packed(handle)
        writer.put(RECORD, payload)
        if writer.backend is not None and self._release is not None:
            # gc releases the snapshots of the Externals in the write cache.
            writer.write_cache[self] = True
            store = Store(writer.backend)
            listed = self._list(store, name, handle)
            writer.on_commit(lambda: self._keep(store, name, listed))
        return name

    def _taken(self) -> tuple[Any]:
        try:
            return (self._take(),)
        except Exception as error:
            raise StateError(
                f"Taking a snapshot of {self.name!r} failed ({cause_text(error)})."
            ) from error

    def _packed(self, handle: Any) -> tuple[str, bytes]:
        """Return the id and the content of the object of a handle."""
        tree = inline_tree(encode({"name": self.name, "handle": handle}, self.name))
        payload = json.dumps(tree, separators=(",", ":")).encode()
        return make_object(RECORD, payload)[0], payload

    def _list(self, store: Store, name: str, handle: Any) -> int:
        """Record that a snapshot exists, before a checkpoint references it.

        Only recorded snapshots are released. A snapshot that is already recorded is recorded again:
        its last checkpoint may be deleted while the next one is being written, and the snapshot
        must not be released then.
        """
        parts = {"handle": encode(handle, self.name)}
        stream = self._stream(store)
        return stream.append({"object": name, "ts_ns": time.time_ns()}, parts, after=None)[0]

    def _keep(self, store: Store, name: str, listed: int) -> None:
        """Record that a checkpoint references a snapshot. Without references it is released."""
        stream = self._stream(store)
        stream.append({"needed": name}, {}, after=None)
        self._forget(stream, name, before=listed)

    def _read_list(self, store: Store) -> tuple[dict[str, tuple[int, Any]], dict[str, int]]:
        """Return the newest record of each snapshot, and the number of its last `needed` record."""
        listed: dict[str, tuple[int, Any]] = {}
        needed: dict[str, int] = {}
        for seq, record in self._stream(store).read():
            if "object" in record:
                listed[str(record["object"])] = (seq, record)
            elif "needed" in record:
                needed[str(record["needed"])] = seq
        return listed, needed

    def release_unused(self, store: Store) -> list[Any]:
        """Release the snapshots that no checkpoint of a store references; return their handles.

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
            # The checkpoint of a new snapshot may not be written yet.
            if name in gone and (needed.get(name, 0) > seq or record["ts_ns"] < oldest):
                parts = record["parts"]
                handle = decode_part(parts["handle"], "handle", reader=stream.reader(parts)).value
                self._release(handle)
                self._forget(stream, name)
                released.append(handle)
        return released

    def _forget(self, stream: RecordStream, name: str, before: int | None = None) -> None:
        """Remove all records of a snapshot, or those before a number."""
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
        """Return the handle that a checkpoint contains. Raises StateMismatchError."""
        return self._read(ref)["handle"]

    def _read(self, ref: ObjectRef) -> dict[str, Any]:
        ((_, stored),) = fetch_objects(ref.source, [ref.name])
        try:
            tree = json.loads(stored.payload)
        except (ValueError, RecursionError):
            raise StateMismatchError(f"The state is not a snapshot of {self.name!r}.") from None
        state: dict[str, Any] = decode_part(tree, self.name).value
        return state
