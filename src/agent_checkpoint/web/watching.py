"""Whether something in a store is new. Owns looking at no more of it than need be, now and then."""

from __future__ import annotations

import secrets
import time
from itertools import islice
from threading import Lock

from agent_checkpoint.store.ledger_records import PREFIX
from agent_checkpoint.store.store import Store

EVERY = 1.0
"""Seconds between two looks, however many pages ask."""
_LATELY = 250
"""How many of the streams that changed last are looked at each time."""
_IN_TURN = 250
"""How many of the others."""


class Watch:
    """Notices that something in a store is new, without looking at all of it each time.

    Which streams there are is looked at each time; how far they are, of those that changed last,
    and of the others in turn. A change of one that was quiet for long is seen a little later.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._newest: dict[str, int] = {}
        """By stream, those that changed last at the end."""
        self._turn = 0
        self._name, self._changes = secrets.token_hex(4), 0
        self._looked_at: float | None = None
        self._lock = Lock()

    def version(self) -> str:
        """Return what changes with the store. Raises StorageError."""
        with self._lock:
            if self._looked_at is None or time.monotonic() - self._looked_at >= EVERY:
                self._look()
                self._looked_at = time.monotonic()
            return f"{self._name}.{self._changes}"

    def _look(self) -> None:
        names = {*self._store.backend.streams("key/"), *self._store.backend.streams(PREFIX)}
        gone, came = self._newest.keys() - names, names - self._newest.keys()
        for name in gone:
            del self._newest[name]
        moved = [name for name in self._due() if self._read(name) != self._newest[name]]
        for name in (*moved, *came):
            self._newest.pop(name, None)
            self._newest[name] = self._read(name)
        self._changes += bool(gone or came or moved)

    def _due(self) -> list[str]:
        number = len(self._newest)
        lately = list(islice(reversed(self._newest), _LATELY))
        others = max(0, number - len(lately))
        if not others:
            return lately
        self._turn %= others
        found = list(islice(self._newest, self._turn, min(others, self._turn + _IN_TURN)))
        self._turn += _IN_TURN
        return lately + found

    def _read(self, stream: str) -> int:
        return newest_in(self._store, stream)


def newest_in(store: Store, stream: str) -> int:
    """Return the number of the newest entry of a stream; 0 if there is none."""
    found = store.backend.read(stream, limit=1, newest_first=True)
    return found[0].seq if found else 0
