"""The journal of a change that is being applied to a directory or a transcript. Owns its format.

A journal is written when everything is staged, and removed when the change is complete. While it
exists, crash recovery rolls the change forward. It is signed with an HMAC under the user's secret:
a journal that came with the files, for example in a git clone, is ignored.

The decision is an entry in the stream of the checkpoints, with the safety checkpoint before it. A
journal without that entry is of a change that was never decided, and is discarded. The plain
`Workspace.restore` writes no entry: its journal is the decision.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from typing import Any

from agent_checkpoint.errors import UNUSABLE, StateError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import ROLLBACK_KINDS, Checkpoint, Kind, parse_checkpoint_id
from agent_checkpoint.seal import is_own_claim, seal_claim
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.safe_open import new_file, opened_file, read_all, write_all

_MAX_BYTES = 1 << 26


class RestoreOptions(NamedTuple):
    """The part of a tree that is restored."""

    paths: tuple[bytes, ...] | None = None
    """The whole tree if None."""
    exclude: tuple[str, ...] = ()
    """Patterns of paths not to restore."""
    keep_unseen: bool = False
    """Keep files that are in no regular checkpoint."""


class Decision(NamedTuple):
    """The stream entry that decides a change, to be appended once everything is staged."""

    parents: tuple[str, ...]
    """Its parents, by which crash recovery recognizes it."""
    append: Callable[[Any], Checkpoint]
    """Appends it; gets the plan."""


class Journal(NamedTuple):
    """A change that is being applied: its target, its safety checkpoint and its options."""

    root: str
    """The path of what is changed. A journal found at another place is a copy and is ignored."""
    tree: str
    """The snapshot to restore; for a transcript, the checkpoint that holds it."""
    safety: str
    """The snapshot in the safety checkpoint."""
    paths: tuple[str, ...] | None
    exclude: tuple[str, ...]
    store: str
    safety_id: str = ""
    """The safety checkpoint."""
    seen: str | None = None
    """The last regular snapshot, if entries that it does not hold are to be kept."""
    decision: tuple[str, ...] | None = None
    """The parents of the deciding entry; None if the journal itself is the decision."""

    @property
    def options(self) -> RestoreOptions:
        """The part of the tree that is restored."""
        paths = None if self.paths is None else tuple(map(os.fsencode, self.paths))
        return RestoreOptions(paths, self.exclude, keep_unseen=self.seen is not None)

    def is_decided(self, store: Store) -> bool:
        """Tell whether the deciding entry is in the store. Raises StorageError."""
        safety = parse_checkpoint_id(self.safety_id)
        if self.decision is None or safety is None:
            return self.decision is None
        is_decided = False
        for entry in store.entries(safety.key):  # newest first
            if entry.seq <= safety.seq:
                break
            try:
                checkpoint = read_checkpoint(safety.key, entry.seq, entry.data)
            except UNUSABLE:
                continue  # `verify` reports it
            if self.is_decided_by(checkpoint):
                is_decided = True
            elif checkpoint.kind == Kind.OPEN:  # it fenced off who wrote the journal
                is_decided = False
        return is_decided

    def is_decided_by(self, checkpoint: Checkpoint) -> bool:
        """Tell whether a checkpoint after the safety checkpoint is the deciding entry."""
        return checkpoint.kind in ROLLBACK_KINDS and checkpoint.parents == self.decision

    def write(self, directory: int, name: str) -> None:
        """Write the journal, durably and at once. Raises OSError."""
        record = self._asdict()
        if self.decision is None:  # version 0.1 can complete such a restore, too
            del record["decision"]
        record["seal"] = seal(_signed(record))
        with new_file(os.fsencode(f"{name}.new"), directory) as file:
            write_all(file, json.dumps(record).encode())
            os.fsync(file)
        os.rename(f"{name}.new", name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)


def read_journal(directory: int, name: str) -> tuple[Journal, bool]:
    """Return a journal, and whether its signature is this user's.

    Raises:
        OSError, EntryChanged: it cannot be read.
        ValueError, KeyError, TypeError, RecursionError: it is not a journal.
        StateError: the user's secret cannot be read now.
    """
    with opened_file(directory, os.fsencode(name)) as file:
        record = json.loads(read_all(file.fd, min(file.stat.st_size, _MAX_BYTES)))
    if not isinstance(record, dict):
        raise TypeError("a journal is a JSON object")
    signature = record.pop("seal")
    journal = Journal(
        str(record["root"]),
        str(record["tree"]),
        str(record["safety"]),
        _strings(record["paths"]),
        _strings(record["exclude"]) or (),
        str(record["store"]),
        str(record["safety_id"]),
        None if record["seen"] is None else str(record["seen"]),
        _strings(record.get("decision")),
    )
    return journal, is_own_claim(_signed(record), signature)


def seal(claim: bytes) -> str | None:
    """Sign a claim with the user's secret. Raises OSError if the secret cannot be read."""
    try:
        return seal_claim(claim)
    except StateError as error:
        raise OSError(errno.EIO, str(error)) from error


def _strings(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(map(str, value))


def _signed(record: dict[str, Any]) -> bytes:
    return json.dumps(["restore of a workspace", record]).encode()
