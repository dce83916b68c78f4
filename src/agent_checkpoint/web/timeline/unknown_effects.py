"""Checkpoints after calls of which nobody knows what became. Owns finding them, and the memory."""

from __future__ import annotations

from threading import Lock

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.store.ledger.ledger import UNDOING, UNKNOWN, Ledger
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.timeline.key_catalog import newest_in
from agent_checkpoint.web.timeline.layout import Picture

_MOST = 64


class Troubles:
    """What is not known of the sessions of one store. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, tuple[int, frozenset[str]]] = {}
        self._lock = Lock()

    def of(self, key: str, picture: Picture) -> frozenset[str]:
        """Return the ids of checkpoints of a picture that were made after such a call."""
        try:
            before = self._before(key)
        except CheckpointError:  # the page of effects tells it
            return frozenset()
        found = set()
        last: dict[str, str] = {}
        for row in picture.rows if before else ():
            if last.get(row.point.key) in before:
                found.add(row.point.id)
            last[row.point.key] = row.point.id
        return frozenset(found)

    def _before(self, key: str) -> frozenset[str]:
        """Return the ids of checkpoints that such a call came after."""
        head = self._store.head(key)
        meta = (
            read_session_record(self._store, head)
            if head is not None and SESSION_PART in head.parts
            else None
        )
        if meta is None:
            return frozenset()
        newest = newest_in(self._store, PREFIX + meta.family)
        with self._lock:
            known = self._kept.get(meta.family)
            if known is not None and known[0] == newest:
                return known[1]
        ledger = Ledger(self._store, meta.family)
        ledger.refresh()
        effects = [one for one in ledger.all_effects() if one.status in (UNKNOWN, UNDOING)]
        found = frozenset(one.at for one in effects if one.at)
        with self._lock:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[meta.family] = newest, found
        return found
