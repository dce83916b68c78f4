"""Caches what timelines show: layouts, and the checkpoints after calls of unknown outcome.

Both are computed again only after a change.
"""

from __future__ import annotations

from hashlib import sha256
from threading import Lock

from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.present.fork_points import session_record_of
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.ledger.ledger_status import UNDOING, UNKNOWN
from agent_checkpoint.store.store import Store, key_not_found
from agent_checkpoint.web.timeline.history import Histories, Origin, forks_of
from agent_checkpoint.web.timeline.key_catalog import KeyCatalog, newest_in
from agent_checkpoint.web.timeline.layout import TimelineLayout, lay_out
from agent_checkpoint.web.timeline.prompt_groups import PromptGroup, group_by_prompt

MAX_FORKS = 60
_MAX_LAYOUTS, _MAX_LEDGERS = 16, 64


class KeyTimeline(NamedTuple):
    """The timeline layout of a key and its forks, with version and origin."""

    key: str
    layout: TimelineLayout
    version: str
    """Changes with every new checkpoint."""
    left_out: int
    """Forks that are not in the layout."""
    is_whole: bool
    """Whether the history was read to its beginning."""
    origin: Origin | None
    groups: list[PromptGroup]
    """The rows of a coding agent by prompt, oldest first."""

    @property
    def is_agent(self) -> bool:
        """Whether a coding agent saved the newest checkpoint of the key."""
        own = (row.checkpoint for row in reversed(self.layout.rows))
        return next((one.step is not None for one in own if one.key == self.key), False)


class LayoutCache:
    """The most recent layouts of one store. Thread-safe."""

    def __init__(self, store: Store, histories: Histories, catalog: KeyCatalog) -> None:
        self._store = store
        self._histories = histories
        self._catalog = catalog
        self._layouts: dict[tuple[str, bool], KeyTimeline] = {}
        self._lock = Lock()

    def get(self, key: str, *, only_events: bool) -> KeyTimeline:
        """Return the current timeline of a key. Raises NotFoundError, StorageError."""
        origins = self._catalog.origins()
        names, left_out = forks_of(origins, key, MAX_FORKS)
        histories = {name: self._histories.get(name) for name in (key, *names)}
        if not histories[key].checkpoints:
            raise key_not_found(key, self._store)
        version = version_of(
            {
                name: history.checkpoints[-1].seq
                for name, history in histories.items()
                if history.checkpoints
            }
        )
        version += f".{sum(len(history.checkpoints) for history in histories.values())}"
        with self._lock:
            cached = self._layouts.get((key, only_events))
        if cached is not None and cached.version == version:
            return cached
        layout = lay_out(
            key,
            {name: history.checkpoints for name, history in histories.items()},
            only_events=only_events,
        )
        groups = group_by_prompt(key, (row.checkpoint for row in layout.rows))
        timeline = KeyTimeline(
            key, layout, version, left_out, histories[key].is_whole, origins.get(key), groups
        )
        with self._lock:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[(key, only_events)] = timeline
        return timeline

    def version(self, key: str) -> str:
        """Return a version that changes with a key or its forks. Raises StorageError."""
        names, _ = forks_of(self._catalog.origins(), key, MAX_FORKS)
        seqs = {name: self._store.newest(name) for name in (key, *names)}
        return version_of({**seqs, "": self._histories.oldest(key)})


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
            if len(self._kept) >= _MAX_LEDGERS:
                self._kept.clear()
            self._kept[meta.family] = newest, preceding
        return preceding


def version_of(seqs: dict[str, int]) -> str:
    """Return a short digest of sequence numbers by name."""
    return sha256(repr(sorted(seqs.items())).encode("utf-8", "replace")).hexdigest()[:16]
