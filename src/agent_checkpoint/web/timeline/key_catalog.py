"""A catalog of all keys: newest entry, time of the last change, origin. Refreshed in batches.

A store does not index its keys by time and may have very many keys. So the newest and the first
entry of each key are read once, in batches, and later only for keys that may have changed.
"""

from __future__ import annotations

import secrets
import time
from itertools import islice
from threading import Lock

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.timeline.history import Origin, origin_of, summarize

EVERY = 1.0
"""Minimum seconds between two refreshes, for any number of polling pages."""
_LATELY = 250
"""Recently changed streams checked by each refresh."""
_IN_TURN = 250
"""Other streams checked by each refresh, in turn."""
_ANEW = 25
"""Keys whose first entry is read again by each refresh, because pruning may have removed it."""
_UNREAD = 2000
"""Maximum number of unread keys that a refresh reads, within its time limit."""
_SECONDS = 0.5
_CHEAP = 0.05
"""A refresh that takes longer than this, in seconds, is not repeated for each page."""
_REST, _SHORT_REST = 10, 2
"""Pause after an expensive refresh, as a multiple of its duration. The shorter one applies while
keys are unread."""


class KeyInfo(NamedTuple):
    """The catalog entry of a key."""

    newest: int
    """The sequence number of its newest entry."""
    ts_ns: int
    origin: Origin | None
    directory: str = ""
    """The directory that its newest checkpoint claims, unverified."""


class KeyCatalog:
    """The keys of one store. Thread-safe.

    Each refresh lists all keys, and checks the recently changed ones and some others in turn. So a
    change of a key that was idle for a long time is noticed with a delay.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, KeyInfo] = {}
        """By key, most recently changed last."""
        self._unread: dict[str, None] = {}
        self._ledgers: dict[str, int] = {}
        """Newest sequence number by ledger stream, most recently changed last."""
        self._turns: dict[str, int] = {}
        self._order: list[str] | None = None
        self._name, self._changes = secrets.token_hex(4), 0
        self._refreshed_at, self._took = float("-inf"), 0.0
        self._lock = Lock()

    def version(self) -> str:
        """Return a version that changes with the catalog. Raises StorageError."""
        with self._lock:
            self._refresh(EVERY)
            return f"{self._name}.{self._changes}"

    def latest_first(self) -> list[str]:
        """Return all keys: those already read, by last change, then the unread ones, by name.

        Raises:
            StorageError: the medium failed.
        """
        with self._lock:
            self._refresh(0.0)
            if self._order is None:
                known = self._known
                self._order = sorted(known, key=lambda key: (-known[key].ts_ns, key))
                self._order += sorted(self._unread)
            return self._order

    def origins(self) -> dict[str, Origin]:
        """Return the origin of each key that was read. Raises StorageError, FormatError."""
        with self._lock:
            self._refresh(0.0)
            pairs = self._known.items()
            return {key: known.origin for key, known in pairs if known.origin is not None}

    def in_same_directory(self, key: str, most: int) -> list[str]:
        """Return other keys that claim the directory of a key, unverified, latest first."""
        with self._lock:
            directory = self._known[key].directory if key in self._known else ""
            others = [
                (info.ts_ns, name)
                for name, info in self._known.items()
                if directory and info.directory == directory and name != key
            ]
        return [name for _, name in sorted(others, reverse=True)[:most]]

    @property
    def unread(self) -> int:
        """Number of keys not read yet."""
        return len(self._unread)

    def _refresh(self, every: float) -> None:
        """Refresh a part of the catalog, at most every `every` seconds; less often if slow."""
        began = time.monotonic()
        rest = (_SHORT_REST if self._unread else _REST) * self._took
        if began - self._refreshed_at < max(every, rest if self._took > _CHEAP else 0.0):
            return
        changed = self._refresh_keys()
        changed += self._refresh_ledgers()
        if changed:
            self._changes += 1
            self._order = None
        self._refreshed_at = time.monotonic()
        self._took = self._refreshed_at - began

    def _refresh_keys(self) -> int:
        names = dict.fromkeys(self._store.list_keys())
        gone = [key for key in (*self._known, *self._unread) if key not in names]
        for key in gone:
            self._known.pop(key, None)
            self._unread.pop(key, None)
        keys = list(self._known)
        due = [*self._next_batch("keys", keys[:-_LATELY], _IN_TURN), *keys[-_LATELY:]]
        moved = [key for key in due if self._store.newest(key) != self._known[key].newest]
        moved += self._next_batch("anew", keys, _ANEW)
        moved = [key for key in moved if self._read_key(key)]
        came = [key for key in names if key not in self._known and key not in self._unread]
        self._unread.update(dict.fromkeys(came))
        end = time.monotonic() + _SECONDS
        read = 0
        while self._unread and read < _UNREAD and time.monotonic() < end:
            self._read_key(self._unread.popitem()[0])  # newest first
            read += 1
        return len(gone) + len(moved) + len(came) + read

    def _refresh_ledgers(self) -> int:
        names = dict.fromkeys(self._store.backend.streams(PREFIX))
        gone = [name for name in self._ledgers if name not in names]
        for name in gone:
            del self._ledgers[name]
        came = [name for name in names if name not in self._ledgers]
        ledgers = list(self._ledgers)
        moved = 0
        for name in (
            *self._next_batch("ledgers", ledgers[:-_LATELY], _IN_TURN),
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

    def _next_batch(self, which: str, names: list[str], number: int) -> list[str]:
        """Return the next batch of names, round robin."""
        at = self._turns.get(which, 0) % max(1, len(names))
        self._turns[which] = at + number
        return names[at : at + number]

    def _read_key(self, key: str) -> bool:
        """Read the entry of a key; return whether it changed."""
        entry = next(self._store.entries(key, page=1), None)
        first = entry
        if entry is not None and entry.seq > 1:
            first = next(self._store.entries(key, page=1, oldest_first=True), None)
        newest = None if entry is None else summarize(key, entry)
        info = KeyInfo(
            self._store.newest(key) if entry is None else entry.seq,
            0 if newest is None else newest.ts_ns,
            None if first is None else origin_of(summarize(key, first)),
            "" if newest is None else newest.directory,
        )
        if self._known.get(key) == info:
            return False
        self._known.pop(key, None)
        self._known[key] = info
        return True


def newest_in(store: Store, stream: str) -> int:
    """Return the sequence number of the newest entry of a stream; 0 if there is none."""
    entries = store.backend.read(stream, limit=1, newest_first=True)
    return entries[0].seq if entries else 0
