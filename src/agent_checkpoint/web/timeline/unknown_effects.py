"""Finds and caches the checkpoints after calls whose outcome is unknown."""

from __future__ import annotations

from threading import Lock

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.present.fork_points import session_record_of
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.ledger.ledger_state import UNDOING, UNKNOWN
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.timeline.key_catalog import newest_in
from agent_checkpoint.web.timeline.layout import TimelineLayout

_MOST = 64


class UnknownEffects:
    """The side effects with unknown outcome in the sessions of one store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[str, tuple[int, frozenset[str]]] = {}
        self._lock = Lock()

    def checkpoints(self, key: str, layout: TimelineLayout) -> frozenset[str]:
        """Return the ids of checkpoints in a layout that directly follow such a call."""
        try:
            before = self._before(key)
        except CheckpointError:  # the page of side effects shows the error
            return frozenset()
        in_doubt = set()
        last: dict[str, str] = {}
        for row in layout.rows if before else ():
            if last.get(row.checkpoint.key) in before:
                in_doubt.add(row.checkpoint.id)
            last[row.checkpoint.key] = row.checkpoint.id
        return frozenset(in_doubt)

    def _before(self, key: str) -> frozenset[str]:
        """Return the ids of checkpoints that directly precede such a call."""
        meta = session_record_of(self._store, key)
        if meta is None:
            return frozenset()
        newest = newest_in(self._store, PREFIX + meta.family)
        with self._lock:
            cached = self._kept.get(meta.family)
            if cached is not None and cached[0] == newest:
                return cached[1]
        ledger = Ledger(self._store, meta.family)
        ledger.refresh()
        effects = [one for one in ledger.all_effects() if one.status in (UNKNOWN, UNDOING)]
        preceding = frozenset(one.at for one in effects if one.at)
        with self._lock:
            if len(self._kept) >= _MOST:
                self._kept.clear()
            self._kept[meta.family] = newest, preceding
        return preceding
