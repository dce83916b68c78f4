"""The objects that this process knows to be stored. Owns how long that knowledge is valid.

If an object is stored, everything below it is stored too (durable order). So the objects of the
last checkpoint vouch for all objects that the next one shares with it, and a save asks only whether
the roots of the last one are still there. This holds for objects that this process has committed,
and until an object is found missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakValueDictionary

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.store.objects.object_format import ID_BYTES, PlainObject, SplicedRefs

_MAX_BYTES = 1 << 21
"""The size of one of two generations."""
_BYTES_PER_OBJECT = 256


class Trust:
    """The references of objects that this process has committed to a store.

    Thread-safe without a lock, which a forked process could inherit locked: every step is a single
    atomic operation in Python.
    """

    def __init__(self) -> None:
        self.epoch = 0
        """The number of times that objects were found missing."""
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}
        self._size = 0
        self._lost: set[str] = set()

    def add(self, objects: Iterable[tuple[str, PlainObject]], epoch: int) -> None:
        """Add committed objects, unless one was found missing since the epoch of their writer."""
        young = self._young  # before the epoch: `report_lost` changes them in the other order
        if epoch != self.epoch:
            return
        for name, plain in objects:
            if plain.refs:
                packed = plain.plain[plain.start - ID_BYTES * len(plain.refs) : plain.start]
                young[name] = packed
                self._size += len(packed) + _BYTES_PER_OBJECT
            if self._size > _MAX_BYTES and young is self._young:
                self._old, self._young, self._size = young, {}, 0
                young = self._young
        if epoch != self.epoch:  # meanwhile
            self._young, self._old, self._size = {}, {}, 0

    def report_stored(self, names: Iterable[str]) -> None:
        """Note that objects are stored, so that they count again if they are lost once more."""
        if self._lost:
            self._lost.difference_update(names)

    def refs(self, name: str) -> list[str]:
        """Return the references of an object; none if it is not known here."""
        names = (self._young.get(name) or self._old.get(name) or b"").hex()
        return [names[at : at + 2 * ID_BYTES] for at in range(0, len(names), 2 * ID_BYTES)]

    def report_lost(self, names: Iterable[str]) -> None:
        """End the trust in all objects, because some are missing.

        Objects that are already known to be missing end it only once: an old checkpoint may stay
        damaged, and must not slow down all saves.
        """
        lost = set(names) - self._lost
        if lost:
            self._lost |= lost
            self.epoch += 1
            self._young, self._old, self._size = {}, {}, 0


class Vouchers:
    """The objects below the roots of a checkpoint, followed only where the next one differs."""

    def __init__(self, trust: Trust, roots: Iterable[str]) -> None:
        self._trust = trust
        self._below = {root: {root} for root in roots}
        """The known objects below each root, with the root."""
        self._front: dict[str, set[str]] = {root: {root} for root in self._below}
        """Those of the lowest level."""
        self._replaced: dict[str, list[str]] = {}
        """The references to follow of objects that others were spliced from."""
        self._is_ahead = False

    def find(self, level: set[str], unknown: set[str]) -> tuple[set[str], set[str]]:
        """Return the ids of a level that are below the roots, and these roots.

        Args:
            level: references of new objects, all equally far from the entry.
            unknown: those of them that nothing else is known of.
        """
        if not self._is_ahead and unknown.difference(*self._below.values()):
            # The depth of a list changes as it grows: look one level further, once.
            self._is_ahead = True
            self.descend(level)
        found: set[str] = set()
        roots: set[str] = set()
        for root, below in self._below.items():
            shared = below & level - found
            if shared:
                found |= shared
                roots.add(root)
        return found, roots

    def find_base(self, refs: SplicedRefs) -> str | None:
        """Return the root that vouches for the old references of a spliced object, if there is one.

        Then only the replaced references of its base are followed: the others are shared.
        """
        for root, below in self._below.items():
            if refs.base in below:
                self._replaced.setdefault(refs.base, []).extend(refs.replaced)
                return root
        return None

    def descend(self, shared: set[str]) -> None:
        """Follow the references of the lowest level, except those of shared objects."""
        for root, front in self._front.items():
            refs = set[str]().union(*map(self._refs, front - shared))
            below = self._below[root]
            self._front[root] = refs - below
            below |= refs

    def _refs(self, name: str) -> list[str]:
        replaced = self._replaced.get(name)
        return self._trust.refs(name) if replaced is None else replaced


_trusts: WeakValueDictionary[str, Trust] = WeakValueDictionary()


def trust_of(backend: Backend) -> Trust:
    """Return the trust in the store of a backend; instances for the same URL share it."""
    name = _name(backend)
    return _trusts.get(name) or _trusts.setdefault(name, Trust())


def report_lost(source: object, names: Iterable[str]) -> None:
    """End the trust in a store in which objects are missing; does nothing for an archive."""
    trust = _trusts.get(_name(source)) if isinstance(source, Backend) else None
    if trust is not None:
        trust.report_lost(names)


def _name(backend: Backend) -> str:
    return backend.properties.url or f"{id(backend)}"
