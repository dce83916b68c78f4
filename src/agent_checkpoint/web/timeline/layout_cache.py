"""Pictures of timelines, made anew only when there is something new. Owns keeping them."""

from __future__ import annotations

from hashlib import sha256
from threading import Lock
from typing import NamedTuple

from agent_checkpoint.store.store import Store, key_not_found
from agent_checkpoint.web.timeline.history import Histories, Origin, forks_of
from agent_checkpoint.web.timeline.key_catalog import Catalog
from agent_checkpoint.web.timeline.layout import Picture, draw

MOST_FORKS = 60
_MOST_PICTURES = 16


class Scene(NamedTuple):
    """A picture, and what else is told of its keys."""

    key: str
    picture: Picture
    version: str
    """Another one means that there is something new."""
    left_out: int
    """Forks that are not in the picture."""
    is_whole: bool
    """Whether the key was read to its beginning."""
    origin: Origin | None


class Scenes:
    """The pictures of one store; those that were made last are kept."""

    def __init__(self, store: Store, histories: Histories, catalog: Catalog) -> None:
        self._store = store
        self._histories = histories
        self._catalog = catalog
        self._kept: dict[tuple[str, bool], Scene] = {}
        self._lock = Lock()

    def scene(self, key: str, *, only_events: bool) -> Scene:
        """Return the picture of a key as it is now. Raises NotFoundError, StorageError."""
        histories = self._histories
        origins = self._catalog.origins()
        names, left_out = forks_of(origins, key, MOST_FORKS)
        lines = {name: histories.line(name) for name in (key, *names)}
        if not lines[key].points:
            raise key_not_found(key, self._store)
        version = version_of(
            {name: line.points[-1].seq for name, line in lines.items() if line.points}
        )
        version += f".{sum(len(line.points) for line in lines.values())}"
        with self._lock:
            known = self._kept.get((key, only_events))
        if known is not None and known.version == version:
            return known
        picture = draw(
            key, {name: line.points for name, line in lines.items()}, only_events=only_events
        )
        scene = Scene(key, picture, version, left_out, lines[key].is_whole, origins.get(key))
        with self._lock:
            if len(self._kept) >= _MOST_PICTURES:
                self._kept.clear()
            self._kept[(key, only_events)] = scene
        return scene

    def newest(self, key: str) -> str:
        """Return what changes with every checkpoint of a key or its forks. Raises StorageError."""
        names, _ = forks_of(self._catalog.origins(), key, MOST_FORKS)
        seqs = {name: self._store.newest(name) for name in (key, *names)}
        return version_of({**seqs, "": self._histories.oldest(key)})


def version_of(seqs: dict[str, int]) -> str:
    """Return a short text that changes with any of the numbers."""
    return sha256(repr(sorted(seqs.items())).encode("utf-8", "replace")).hexdigest()[:16]
