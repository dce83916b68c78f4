"""The checkpoints of a session before and after one of them, without those of other rewinds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from agent_checkpoint.agents.rewind.transcript_cut import Row
from agent_checkpoint.agents.session_note import REWIND, TRANSCRIPT, SessionNote, read_note
from agent_checkpoint.agents.transcript_file import Transcript
from agent_checkpoint.core.loading import decode_part
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import UNUSABLE, IntegrityError, StorageError
from agent_checkpoint.records import (
    ROLLBACK_KINDS,
    Checkpoint,
    Kind,
    parse_checkpoint_id,
    short_repr,
)
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.store import Store


class LineOfWork:
    """The line of work of one checkpoint: what led to it, and what the agent did next."""

    def __init__(self, store: Store, target: Checkpoint) -> None:
        """Start at a checkpoint; nothing is read yet."""
        self._store = store
        self._target = target
        self.is_current = True
        """Whether the session was not rewound since, known once all checkpoints were read."""

    def later(self) -> Iterator[Row]:
        """Iterate over what came next, oldest first; at last the transcript as it is now.

        Only checkpoints with this user's HMAC are returned, and the transcript only if the session
        was not rewound since.
        """
        path = None
        for checkpoint, note in self.checkpoints():
            path = note.transcript["path"] if note.transcript else path
            yield Row(checkpoint.seq, note, partial(self.lines_in, checkpoint))
        if path is None:
            own = read_note(self._store, self._target)
            path = own.transcript["path"] if own is not None and own.transcript else None
        if self.is_current and path is not None:
            yield Row(self._target.seq, None, partial(_present_lines, path))

    def checkpoints(self) -> Iterator[tuple[Checkpoint, SessionNote]]:
        """Iterate over the checkpoints that came next, oldest first, each with its note."""
        line, self.is_current = {self._target.id}, True
        for entry in self._store.entries(
            self._target.key, after=self._target.seq, oldest_first=True
        ):
            found = self._read(entry.seq, entry.data)
            self.is_current = found is not None and (
                self._is_undo(*found)
                or (
                    found[0].kind not in ROLLBACK_KINDS
                    and not line.isdisjoint(found[0].parents[:1])
                )
            )
            if found is not None and self.is_current:
                line.add(found[0].id)
                yield found

    def _is_undo(self, checkpoint: Checkpoint, note: SessionNote) -> bool:
        """Return whether a rewind went back to something that came after the target."""
        parent = parse_checkpoint_id(checkpoint.parents[0]) if checkpoint.parents else None
        is_rewind = checkpoint.kind == Kind.ROLLBACK and note.event == REWIND
        return is_rewind and parent is not None and parent.seq > self._target.seq

    def earlier(self) -> Iterator[Row]:
        """Iterate over what led to the checkpoint, newest first."""
        checkpoint = self._target
        while checkpoint.parents:
            parent = parse_checkpoint_id(checkpoint.parents[0])
            try:
                found = None if parent is None else self._store.read(parent.key, parent.seq)
                note = None if found is None else read_note(self._store, found)
            except UNUSABLE:
                return  # `verify` reports it
            if found is None or note is None or found.id != checkpoint.parents[0]:
                return
            checkpoint = found
            yield Row(found.seq, note, partial(self.lines_in, found))

    def transcript_path(self) -> str | None:
        """Return the path of the transcript that the session has now; None if it has none."""
        for checkpoint in self._store.readable(self._target.key):
            try:
                note = read_note(self._store, checkpoint)
            except UNUSABLE:
                continue  # `verify` reports it
            if note is not None and note.is_ours and note.transcript is not None:
                return str(note.transcript["path"])
        return None

    def lines_in(self, checkpoint: Checkpoint) -> list[str] | None:
        """Return the transcript of a checkpoint; None if it has none. Raises CheckpointError."""
        return lines_in(self._store, checkpoint)

    def _read(self, seq: int, data: bytes) -> tuple[Checkpoint, SessionNote] | None:
        try:
            checkpoint = read_checkpoint(self._target.key, seq, data)
            note = read_note(self._store, checkpoint)
        except UNUSABLE:
            return None  # `verify` reports it
        return (checkpoint, note) if note is not None and note.is_ours else None


def lines_in(store: Store, checkpoint: Checkpoint) -> list[str] | None:
    """Return the transcript of a checkpoint; None if it has none.

    Raises:
        IntegrityError: it is damaged.
        StorageError: the medium failed.
    """
    tree = checkpoint.parts.get(TRANSCRIPT)
    if tree is None:
        return None
    reader = store.reader(checkpoint)
    reader.fetch([tree])
    found = decode_part(tree, TRANSCRIPT, reader=reader).value
    if not isinstance(found, Log) or not all(isinstance(line, str) for line in found):
        raise IntegrityError(f"{short_repr(checkpoint.id, 120)} has a damaged transcript.")
    return list(found)


def _present_lines(path: str) -> list[str] | None:
    present = Transcript(path)
    try:
        return list(present.lines) if present.read(full=True) else None
    except StorageError:
        return None
