"""What a store has of the long lists of a key. Owns going on from the last save; knows no items.

Plain lists do not say what was added since the last save. But a list that begins with the same
texts as the one at its place in the last checkpoint of the key needs no new hashes for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from agent_checkpoint.store.sequences import SequenceBuilder

if TYPE_CHECKING:
    from agent_checkpoint.store.writing import Writer

_MOST_BYTES = 1 << 23


class _Known(NamedTuple):
    """A list that is stored: its texts, and builders that have all, or all but its last leaf."""

    texts: list[bytes]
    end: SequenceBuilder
    leaf: SequenceBuilder
    leaf_n: int


class ListMemory:
    """The long lists of the last checkpoint of a key, in the order in which they were met."""

    def __init__(self) -> None:
        self.known: list[_Known] = []

    def begin(self) -> ListSaver:
        """Return what remembers the lists of the next checkpoint, once it is written."""
        return ListSaver(self)


class ListSaver:
    """The lists of one checkpoint on their way into a store."""

    def __init__(self, memory: ListMemory) -> None:
        self._memory = memory
        self._before = memory.known
        self._now: list[_Known] = []
        self._is_asked = False

    def build(self, texts: list[bytes], writer: Writer) -> SequenceBuilder:
        """Return a builder that has all the items, whose texts refer to nothing."""
        if not self._is_asked:
            self._is_asked = True
            writer.on_commit(self._remember)
        place = len(self._now)
        known = self._before[place] if place < len(self._before) else None
        if (
            known is None
            or not writer.trust_memory
            or texts[: known.leaf_n] != known.texts[: known.leaf_n]
        ):
            known = _Known([], SequenceBuilder(), SequenceBuilder(), 0)
        if texts[: len(known.texts)] == known.texts:
            builder, start = known.end.copy(), len(known.texts)
        else:
            builder, start = known.leaf.copy(), known.leaf_n
        found = builder.extend(texts[start:], writer.put)
        leaf, n = (known.leaf, known.leaf_n) if found is None else (found[0], start + found[1])
        self._now.append(_Known(texts, builder, leaf, n))
        return builder

    def _remember(self) -> None:
        size = sum(known.end.bytes for known in self._now)
        self._memory.known = self._now if size <= _MOST_BYTES else []
