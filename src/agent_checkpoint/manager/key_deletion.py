"""Deletes a key. Owns the order of the steps: its session is fenced off first."""

from __future__ import annotations

from contextlib import suppress

from agent_checkpoint.errors import UNUSABLE, StorageError
from agent_checkpoint.records import Entry
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.lineage import lineage_of
from agent_checkpoint.store.record_stream import LogStream, record_logs
from agent_checkpoint.store.store import Store, key_not_found

_SESSION = "session"
"""The part in which a session records the name of its ledger."""


def delete_key(store: Store, key: str) -> None:
    """Fence off the session of a key, then delete all its checkpoints and record logs.

    Raises:
        NotFoundError: there is no such key.
        StorageError: the medium failed.
    """
    newest: Entry | None = None
    seqs = []
    for entry in store.entries(key):
        newest = newest or entry
        seqs.append(entry.seq)
    if newest is None:
        raise key_not_found(key, store)
    with suppress(*UNUSABLE):  # a damaged checkpoint must be deletable too
        try:
            _fence_session(store, key, newest)
        except StorageError as error:
            if error.retryable:
                raise
            # On a full disk, deleting the older checkpoints makes room.
            store.remove(key, seqs[1:])
            _fence_session(store, key, newest)
    store.remove(key, seqs)
    for owner, name in list(record_logs(store, key)):
        if owner == key:
            LogStream(store, owner, name).clear()


def _fence_session(store: Store, key: str, newest: Entry) -> None:
    """Append an epoch to the ledger of the key's session, as opening it again would.

    Otherwise an open session could still run side effects: a new session under the key has
    another ledger. The epoch is appended before the deletion, so that the session cannot act after
    it. A process that opens the session in between gets the same epoch, and its checkpoint is not
    deleted.
    """
    checkpoint = read_checkpoint(key, newest.seq, newest.data)
    has_session = _SESSION in checkpoint.parts
    lineage = lineage_of(store.reader(checkpoint), checkpoint) if has_session else None
    if lineage is None:
        return
    ledger = Ledger(store, lineage)
    ledger.refresh()
    if ledger.seq:
        ledger.append("epoch", session=key, epoch=newest.seq + 1)
