"""Snapshots that are held elsewhere: of a container, a VM, a database. Owns when one is let go.

A checkpoint holds the handle as an object. When gc has dropped the last checkpoint that needs it,
the object is gone, and the snapshot itself can be released.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from agent_checkpoint.core.codec import decode_part
from agent_checkpoint.core.encode import encode
from agent_checkpoint.errors import InvalidInputError, StateError, StateMismatchError
from agent_checkpoint.records import show
from agent_checkpoint.store.objects import RECORD
from agent_checkpoint.store.reading import fetch_objects
from agent_checkpoint.store.record_stream import RecordStream
from agent_checkpoint.store.references import ObjectRef
from agent_checkpoint.store.splitting import inline_tree
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.writing import Writer

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
            raise InvalidInputError(f"An External is named by text, not {show(name)}.")
        self.name = name
        self._take = take
        self._restore = restore
        self._release = release

    def __repr__(self) -> str:
        return f"External({self.name!r})"

    def state_dict(self) -> dict[str, Any]:
        """Take a snapshot and return its handle. Raises what `take` raises."""
        return {"name": self.name, "handle": self._take()}

    def load_state_dict(self, state: Any) -> Any:
        """Make a snapshot the present; return the handle of what was there before.

        Raises:
            StateMismatchError: it is a snapshot of something else.
            StateError: it cannot be restored.
        """
        if isinstance(state, ObjectRef):
            state = self._read(state)
        if not isinstance(state, dict) or state.get("name") != self.name:
            raise StateMismatchError(f"This is no snapshot of {self.name!r}.")
        before = self._take()
        try:
            self._restore(state["handle"])
        except Exception as error:
            raise StateError(
                f"The snapshot {show(state['handle'])} of {self.name!r} cannot be restored "
                f"({error!r})."
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
        try:
            handle = self._take()
        except Exception as error:
            raise StateError(f"No snapshot of {self.name!r} could be taken ({error!r}).") from error
        tree = inline_tree(encode({"name": self.name, "handle": handle}, self.name))
        name = writer.put(RECORD, json.dumps(tree, separators=(",", ":")).encode())
        if writer.backend is not None and self._release is not None:
            self._list(Store(writer.backend), name, handle, writer)
        return name

    def _list(self, store: Store, name: str, handle: Any, writer: Writer) -> None:
        """Note that a snapshot exists, and, once the checkpoint is durable, that it is needed."""
        writer.memory[self] = True  # gc asks those who are known to the store
        stream = self._stream(store)
        known = {record.get("object"): record for _, record in stream.read()}
        if name not in known:  # before the checkpoint: what is not listed is never let go
            parts = {"handle": encode(handle, self.name)}
            stream.append({"object": name, "ts_ns": time.time_ns()}, parts, after=None)

        def commit() -> None:
            stream.append({"needed": name}, {}, after=None)

        if not any(record.get("needed") == name for _, record in stream.read()):
            writer.on_commit(commit)

    def release_unused(self, store: Store) -> list[Any]:
        """Let go of the snapshots that no checkpoint of a store needs; return their handles.

        Raises what `release` raises, and StorageError.
        """
        if self._release is None:
            return []
        stream = self._stream(store)
        records = stream.read()
        needed = {record["needed"]: seq for seq, record in records if "needed" in record}
        listed = [(seq, record) for seq, record in records if "object" in record]
        gone = store.backend.missing_objects({str(record["object"]) for _, record in listed})
        oldest = time.time_ns() - _ABANDONED
        released = []
        for seq, record in listed:
            name = record["object"]
            # One that was just taken may be of a checkpoint that is yet to be written.
            if name in gone and (name in needed or record["ts_ns"] < oldest):
                parts = record["parts"]
                handle = decode_part(parts["handle"], "handle", reader=stream.reader(parts)).value
                self._release(handle)
                seqs = [seq, needed[name]] if name in needed else [seq]
                store.backend.remove(stream.name, seqs)
                released.append(handle)
        return released

    def _stream(self, store: Store) -> RecordStream:
        return RecordStream(store, _STREAM + self.name)

    def _read(self, ref: ObjectRef) -> Any:
        ((_, found),) = fetch_objects(ref.source, [ref.name])
        try:
            tree = json.loads(found.payload)
        except (ValueError, RecursionError):
            raise StateMismatchError(f"This is no snapshot of {self.name!r}.") from None
        return decode_part(tree, self.name).value
