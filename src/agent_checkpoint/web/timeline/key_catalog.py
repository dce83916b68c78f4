"""What is known of every key: how far it is, when it changed, where it began. Owns reading few.

A store has no list of keys by time, and may have very many. So the newest and the first entry of
each are read once, some at a time, and after that only of those that may have changed.
"""

from __future__ import annotations

import secrets
import time
from itertools import islice
from threading import Lock
from typing import NamedTuple

from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.timeline.history import Origin, origin_of, point_of

EVERY = 1.0
"""Seconds between two looks for something new, however many pages ask."""
_LATELY = 250
"""How many of the streams that changed last are looked at each time."""
_IN_TURN = 250
"""How many of the others."""
_ANEW = 25
"""Of how many keys the first entry is read again each time: it goes when a key is pruned."""
_UNREAD = 2000
"""How many keys of which nothing is known are read at a time, if there is time."""
_SECONDS = 0.5
_CHEAP = 0.05
"""A look that takes longer is not made for each page."""
_REST, _SHORT_REST = 10, 2
"""How many times as long as a dear look took it is before the next; the short one is while there
are keys that nothing is known of."""


class Known(NamedTuple):
    """What is known of a key."""

    newest: int
    """The number of its newest entry."""
    ts_ns: int
    origin: Origin | None


class Catalog:
    """The keys of one store. Safe to use from several threads.

    Which keys there are is looked at each time; how far they are, of those that changed last, and
    of the others in turn. A change of one that was quiet for long is seen a little later.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Known] = {}
        """By key, those that changed last at the end."""
        self._unread: dict[str, None] = {}
        self._ledgers: dict[str, int] = {}
        """The newest entry by name, those that changed last at the end."""
        self._turns: dict[str, int] = {}
        self._order: list[str] | None = None
        self._name, self._changes = secrets.token_hex(4), 0
        self._looked_at, self._took = float("-inf"), 0.0
        self._lock = Lock()

    def version(self) -> str:
        """Return what changes with the store, and as more of it is known. Raises StorageError."""
        with self._lock:
            self._look(EVERY)
            return f"{self._name}.{self._changes}"

    def latest_first(self) -> list[str]:
        """Return all keys: those that are known by their last change, then the others by name.

        Raises:
            StorageError: the medium failed.
        """
        with self._lock:
            self._look(0.0)
            if self._order is None:
                known = self._known
                self._order = sorted(known, key=lambda key: (-known[key].ts_ns, key))
                self._order += sorted(self._unread)
            return self._order

    def origins(self) -> dict[str, Origin]:
        """Return where each key begins that is known. Raises StorageError, FormatError."""
        with self._lock:
            self._look(0.0)
            pairs = self._known.items()
            return {key: known.origin for key, known in pairs if known.origin is not None}

    @property
    def unread(self) -> int:
        """How many keys nothing is known of yet."""
        return len(self._unread)

    def _look(self, every: float) -> None:
        """Look at some of the store, unless that was done a moment ago."""
        began = time.monotonic()
        rest = (_SHORT_REST if self._unread else _REST) * self._took
        if began - self._looked_at < max(every, rest if self._took > _CHEAP else 0.0):
            return
        changed = self._look_at_keys()
        changed += self._look_at_ledgers()
        if changed:
            self._changes += 1
            self._order = None
        self._looked_at = time.monotonic()
        self._took = self._looked_at - began

    def _look_at_keys(self) -> int:
        names = dict.fromkeys(self._store.list_keys())
        gone = [key for key in (*self._known, *self._unread) if key not in names]
        for key in gone:
            self._known.pop(key, None)
            self._unread.pop(key, None)
        keys = list(self._known)
        due = [*self._in_turn("keys", keys[:-_LATELY], _IN_TURN), *keys[-_LATELY:]]
        moved = [key for key in due if self._store.newest(key) != self._known[key].newest]
        moved += self._in_turn("anew", keys, _ANEW)
        moved = [key for key in moved if self._take(key)]
        came = [key for key in names if key not in self._known and key not in self._unread]
        self._unread.update(dict.fromkeys(came))
        end = time.monotonic() + _SECONDS
        read = 0
        while self._unread and read < _UNREAD and time.monotonic() < end:
            self._take(self._unread.popitem()[0])  # what came last is read first
            read += 1
        return len(gone) + len(moved) + len(came) + read

    def _look_at_ledgers(self) -> int:
        names = dict.fromkeys(self._store.backend.streams(PREFIX))
        gone = [name for name in self._ledgers if name not in names]
        for name in gone:
            del self._ledgers[name]
        came = [name for name in names if name not in self._ledgers]
        ledgers = list(self._ledgers)
        moved = 0
        for name in (
            *self._in_turn("ledgers", ledgers[:-_LATELY], _IN_TURN),
            *ledgers[-_LATELY:],
        ):
            newest = newest_in(self._store, name)
            if newest != self._ledgers[name]:
                del self._ledgers[name]
                self._ledgers[name] = newest
                moved += 1
        for name in islice(came, _UNREAD):
            self._ledgers[name] = newest_in(self._store, name)
        return len(gone) + moved + len(came)

    def _in_turn(self, which: str, names: list[str], number: int) -> list[str]:
        """Return some names, each time those that follow."""
        at = self._turns.get(which, 0) % max(1, len(names))
        self._turns[which] = at + number
        return names[at : at + number]

    def _take(self, key: str) -> bool:
        """Read what is to be known of a key; tell whether that is new."""
        entry = next(self._store.entries(key, page=1), None)
        first = entry
        if entry is not None and entry.seq > 1:
            first = next(self._store.oldest_first(key, page=1), None)
        found = Known(
            self._store.newest(key) if entry is None else entry.seq,
            0 if entry is None else point_of(key, entry).ts_ns,
            None if first is None else origin_of(point_of(key, first)),
        )
        if self._known.get(key) == found:
            return False
        self._known.pop(key, None)
        self._known[key] = found
        return True


def newest_in(store: Store, stream: str) -> int:
    """Return the number of the newest entry of a stream; 0 if there is none."""
    found = store.backend.read(stream, limit=1, newest_first=True)
    return found[0].seq if found else 0
