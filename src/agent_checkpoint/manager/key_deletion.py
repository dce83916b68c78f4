"""Deleting a whole key. Owns that whoever still holds its session begins nothing more outside."""

from __future__ import annotations

from contextlib import suppress

from agent_checkpoint.errors import UNUSABLE, StorageError
from agent_checkpoint.records import Entry
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.lineage import lineage_of
from agent_checkpoint.store.store import Store, key_not_found

_SESSION = "session"
"""The part in which a session notes where its ledger is."""


def delete_key(store: Store, key: str) -> None:
    """Remove all checkpoints of a key, for good.

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
    with suppress(*UNUSABLE):  # what is damaged must be deletable, too
        try:
            _end_session(store, key, newest)
        except StorageError as error:
            if error.retryable:
                raise
            # On a full disk the older ones make room.
            store.remove(key, seqs[1:])
            _end_session(store, key, newest)
    store.remove(key, seqs)


def _end_session(store: Store, key: str, newest: Entry) -> None:
    """Add an epoch to the ledger of the key's session, as if it was opened again.

    A session that is begun anew under the key has a ledger of its own: nothing in that would stop
    who holds this one. First, so that nobody acts for a session that is gone. Whoever opens it
    right now, after the newest entry, has this epoch: that opening is not deleted.
    """
    checkpoint = read_checkpoint(key, newest.seq, newest.data)
    has_session = _SESSION in checkpoint.parts
    family = lineage_of(store.reader(checkpoint), checkpoint) if has_session else None
    if family is None:
        return
    ledger = Ledger(store, family)
    ledger.refresh()
    if ledger.seq:
        ledger.append("epoch", session=key, epoch=newest.seq + 1)
