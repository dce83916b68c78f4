"""What a state weighs, and what vouches for it. Owns the bound of a load's memory; knows no tags.

Bytes tell little about memory. The list `[[],[],[]]` takes twenty times as much in Python as in
JSON; and what repeats is stored once, and packs to next to nothing, so that an archive of a few
kilobytes could stand for more than any memory holds. So a state is weighed: each character of its
JSON texts that belongs to a value of its own, `[]{}:,"`, as often as it is read. One is 48 bytes of
memory at most. A state may weigh FREE, and more only if what is stored of it, packed and counted
once, is in proportion: whoever sends much to be loaded has to send something.

Writers refuse what readers would.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.store.objects.object_format import STATE_KINDS, Object

BASE_BUDGET = 1 << 23
"""What any state may weigh, whatever it is made of: about 200 MB in memory, 400 at most."""
COST_PER_BYTE = 128
"""What one byte of content vouches for. Writers keep to half of it, since zlib has versions."""

_STRUCTURE = b'[]{}:,"'
_BATCH = 64
_MOST_KNOWN = 100_000

Fetch = Callable[[Sequence[str]], Iterable[tuple[str, Object]]]
"""Returns objects by name, without those that are not there."""
PackedSizes = dict[str, tuple[int, tuple[str, ...]]]
"""Objects that were looked at: how long they are when packed, and what they refer to."""


def text_cost(text: bytes) -> int:
    """Return what a JSON text weighs: never more than its length."""
    return len(text) - len(text.translate(None, _STRUCTURE))


def pieces_cost(pieces: Sequence[bytes], *, is_text: bool) -> int:
    """Return what bytes weigh that stay together: little, for they are one value.

    512 MiB of them are FREE. A text that is not ASCII may take four bytes for each of its own.
    """
    is_wide = is_text and not all(piece.isascii() for piece in pieces)
    return sum(map(len, pieces)) >> (4 if is_wide else 6)


class DecodeBudget:
    """Weighs what is read of some states, and stops at what is more than they may weigh."""

    def __init__(self, states: int, content_allowance: Callable[[int], int]) -> None:
        """Begin at nothing.

        Args:
            states: how many states are read.
            vouched: returns what their content vouches for, up to the weight that it is given.
        """
        self._allowed = states * BASE_BUDGET
        self._vouched = content_allowance
        self._weight = 0
        self._texts: list[bytes] = []  # not weighed yet: most states are light at first sight
        self._most = 0

    @property
    def decode_cost(self) -> int:
        """What was read so far weighs."""
        self._weight += sum(map(text_cost, self._texts))
        self._texts.clear()
        self._most = self._weight
        return self._weight

    def add_text(self, text: bytes) -> None:
        """Add a JSON text. Raises IntegrityError."""
        self._texts.append(text)
        self._most += len(text)
        self._check()

    def add_pieces(self, pieces: Sequence[bytes], *, is_text: bool) -> None:
        """Add bytes that stay together. Raises IntegrityError."""
        decode_cost = pieces_cost(pieces, is_text=is_text)
        self._weight += decode_cost
        self._most += decode_cost
        self._check()

    def _check(self) -> None:
        if self._most <= self._allowed or self.decode_cost <= self._allowed:
            return
        self._allowed = max(self._allowed, self._vouched(2 * self._weight))
        if self._weight > self._allowed:
            raise IntegrityError(
                f"The state repeats so little content so often that it weighs {self._weight:,} "
                "and more, which is more than it may have: a load would fill the memory."
            )


def content_allowance(roots: Iterable[str], enough: int, fetch: Fetch, known: PackedSizes) -> int:
    """Return what the content of objects vouches for, as far as it takes to see that it is enough.

    Args:
        roots: the names of the topmost objects.
        enough: where to stop.
        fetch: returns objects.
        known: those that were looked at before, here or in an earlier call.

    Raises:
        IntegrityError: an object is damaged.
        StorageError: the medium failed.
    """
    found = 0
    for size in _packed_sizes(roots, fetch, known):
        found += COST_PER_BYTE * size
        if found >= enough:
            break
    return found


def _packed_sizes(roots: Iterable[str], fetch: Fetch, known: PackedSizes) -> Iterator[int]:
    wanted = list(dict.fromkeys(roots))
    seen = set(wanted)
    while wanted:
        batch = wanted[-_BATCH:]
        del wanted[-_BATCH:]
        if len(known) > _MOST_KNOWN:
            known.clear()
        looked = {name: known.get(name) for name in batch}
        for name, item in fetch([name for name, found in looked.items() if found is None]):
            is_ours = item.kind in STATE_KINDS  # a load reads no others
            size = len(zlib.compress(item.payload)) if is_ours else 0
            looked[name] = known[name] = (size, item.refs if is_ours else ())
        for size, refs in filter(None, looked.values()):
            yield size
            below = [ref for ref in dict.fromkeys(refs) if ref not in seen]
            seen.update(below)
            wanted += below
