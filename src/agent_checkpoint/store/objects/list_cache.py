"""Caches the long lists of a key's last checkpoint, so that a save hashes only new items.

A plain list does not record what was appended since the last save. But items at its start that
equal those of the list at the same position in the last checkpoint are not hashed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder, StoredList

if TYPE_CHECKING:
    from agent_checkpoint.store.objects.writer import Writer

_MAX_BYTES = 1 << 23


class CachedList(NamedTuple):
    """A stored list, and the JSON texts of its items."""

    texts: list[bytes]
    stored: StoredList


class ListWriter:
    """Builds the long lists of one checkpoint, resuming from those of the last one.

    A commit replaces the cached lists, which are in the order in which they were written.
    """

    def __init__(self, cache: list[CachedList]) -> None:
        self._cache = cache
        self._previous = list(cache)
        self._written: list[CachedList] = []
        self._is_registered = False

    def build(self, texts: list[bytes], writer: Writer) -> MerkleListBuilder:
        """Return a builder with all items. The items must not refer to objects."""
        if not self._is_registered:
            self._is_registered = True
            writer.on_commit(self._update_cache)
        stored = self._resume(texts) if writer.trust_cache else StoredList()
        builder = stored.end.copy()
        last_leaf = builder.extend(texts[stored.n :], writer.put)
        leaf, leaf_n = stored.leaf, stored.leaf_n
        if last_leaf is not None:
            leaf, leaf_n = last_leaf[0], stored.n + last_leaf[1]
        self._written.append(CachedList(texts, StoredList(builder, len(texts), leaf, leaf_n)))
        return builder

    def _resume(self, texts: list[bytes]) -> StoredList:
        position = len(self._written)
        if position >= len(self._previous):
            return StoredList()
        previous, stored = self._previous[position]
        return stored.resume(lambda n: texts[:n] == previous[:n])

    def _update_cache(self) -> None:
        size = sum(cached.stored.end.bytes for cached in self._written)
        self._cache[:] = self._written if size <= _MAX_BYTES else []
