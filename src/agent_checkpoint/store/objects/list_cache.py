"""What a store has of the long lists of a key. Owns going on from the last save; knows no items.

Plain lists do not say what was added since the last save. But a list that begins with the same
texts as the one at its place in the last checkpoint of the key needs no new hashes for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder, StoredList

if TYPE_CHECKING:
    from agent_checkpoint.store.objects.writer import Writer

_MOST_BYTES = 1 << 23


class _Known(NamedTuple):
    """A list that is stored, and the texts of its items."""

    texts: list[bytes]
    stored: StoredList


class ListCache:
    """The long lists of the last checkpoint of a key, in the order in which they were met."""

    def __init__(self) -> None:
        self.known: list[_Known] = []

    def begin(self) -> ListWriter:
        """Return what remembers the lists of the next checkpoint, once it is written."""
        return ListWriter(self)


class ListWriter:
    """The lists of one checkpoint on their way into a store."""

    def __init__(self, cache: ListCache) -> None:
        self._cache = cache
        self._before = cache.known
        self._now: list[_Known] = []
        self._is_asked = False

    def build(self, texts: list[bytes], writer: Writer) -> MerkleListBuilder:
        """Return a builder that has all the items, whose texts refer to nothing."""
        if not self._is_asked:
            self._is_asked = True
            writer.on_commit(self._remember)
        stored = self._resume(texts) if writer.trust_cache else StoredList()
        builder = stored.end.copy()
        found = builder.extend(texts[stored.n :], writer.put)
        leaf, leaf_n = stored.leaf, stored.leaf_n
        if found is not None:
            leaf, leaf_n = found[0], stored.n + found[1]
        self._now.append(_Known(texts, StoredList(builder, len(texts), leaf, leaf_n)))
        return builder

    def _resume(self, texts: list[bytes]) -> StoredList:
        place = len(self._now)
        if place >= len(self._before):
            return StoredList()
        before, stored = self._before[place]
        return stored.resume(lambda n: texts[:n] == before[:n])

    def _remember(self) -> None:
        size = sum(known.stored.end.bytes for known in self._now)
        self._cache.known = self._now if size <= _MOST_BYTES else []
