"""Decode limits: bounds the memory that loading a state may take. Knows no tags.

The size in bytes says little about memory. The list `[[],[],[]]` takes twenty times as much memory
in Python as in JSON. Repeated content is stored once and compresses to almost nothing, so an
archive of a few kilobytes could be a decompression bomb. So a load counts a decode cost: each of
the characters `[]{}:,"` in its JSON texts, as often as the text is read. One unit is at most 48
bytes of memory. A state may cost BASE_BUDGET; more is allowed only in proportion to its distinct
content, compressed and counted once. An attacker has to send as much as a victim has to load.

Writers refuse states that readers would refuse.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.store.objects.object_format import STATE_KINDS, Object

BASE_BUDGET = 1 << 23
"""Decode cost that any state may have: about 200 MB of memory, at most 400."""
COST_PER_BYTE = 128
"""Decode cost allowed per compressed byte of content. Writers use half: zlib versions differ."""

_STRUCTURE = b'[]{}:,"'
_BATCH = 64
_MAX_CACHED = 100_000

Fetch = Callable[[Sequence[str]], Iterable[tuple[str, Object]]]
"""Returns the objects that exist, by name."""
PackedSizes = dict[str, tuple[int, tuple[str, ...]]]
"""Compressed size and references of objects already measured, by name."""


def text_cost(text: bytes) -> int:
    """Return the decode cost of a JSON text; at most its length."""
    return len(text) - len(text.translate(None, _STRUCTURE))


def pieces_cost(pieces: Sequence[bytes], *, is_text: bool) -> int:
    """Return the decode cost of bytes that become one value: little.

    512 MiB fit into BASE_BUDGET. Text that is not ASCII may take four bytes of memory per byte.
    """
    is_wide = is_text and not all(piece.isascii() for piece in pieces)
    return sum(map(len, pieces)) >> (4 if is_wide else 6)


class DecodeBudget:
    """Adds up the decode cost of some states, and refuses to exceed their budget."""

    def __init__(self, states: int, allowance: Callable[[int], int]) -> None:
        """Start at cost 0.

        Args:
            states: the number of states to read.
            allowance: returns the decode cost that their content allows; may stop counting at
                the given cost.
        """
        self._allowed = states * BASE_BUDGET
        self._allowance = allowance
        self._cost = 0
        self._uncounted: list[bytes] = []  # counted lazily: most states fit by length alone
        self._upper_bound = 0

    @property
    def cost(self) -> int:
        """The decode cost so far."""
        self._cost += sum(map(text_cost, self._uncounted))
        self._uncounted.clear()
        self._upper_bound = self._cost
        return self._cost

    def add_text(self, text: bytes) -> None:
        """Add a JSON text. Raises IntegrityError if the budget is exceeded."""
        self._uncounted.append(text)
        self._upper_bound += len(text)
        self._check()

    def add_pieces(self, pieces: Sequence[bytes], *, is_text: bool) -> None:
        """Add bytes that become one value. Raises IntegrityError if the budget is exceeded."""
        cost = pieces_cost(pieces, is_text=is_text)
        self._cost += cost
        self._upper_bound += cost
        self._check()

    def _check(self) -> None:
        if self._upper_bound <= self._allowed or self.cost <= self._allowed:
            return
        self._allowed = max(self._allowed, self._allowance(2 * self._cost))
        if self._cost > self._allowed:
            raise IntegrityError(
                f"The state exceeds the decode limit: decode cost {self._cost:,} or more, with "
                "too little distinct content. It may be a decompression bomb."
            )


def content_allowance(
    roots: Iterable[str], enough: int, fetch: Fetch, measured: PackedSizes
) -> int:
    """Return the decode cost that the content of objects allows; stop counting at `enough`.

    Args:
        roots: the names of the topmost objects.
        enough: where to stop.
        fetch: returns objects.
        measured: a cache of sizes, kept between calls.

    Raises:
        IntegrityError: an object is damaged.
        StorageError: the medium failed.
    """
    allowance = 0
    for size in _packed_sizes(roots, fetch, measured):
        allowance += COST_PER_BYTE * size
        if allowance >= enough:
            break
    return allowance


def _packed_sizes(roots: Iterable[str], fetch: Fetch, measured: PackedSizes) -> Iterator[int]:
    queue = list(dict.fromkeys(roots))
    queued = set(queue)
    while queue:
        batch = queue[-_BATCH:]
        del queue[-_BATCH:]
        if len(measured) > _MAX_CACHED:
            measured.clear()
        sizes = {name: measured.get(name) for name in batch}
        for name, item in fetch([name for name, size in sizes.items() if size is None]):
            is_state = item.kind in STATE_KINDS  # a load reads no others
            size = len(zlib.compress(item.payload)) if is_state else 0
            sizes[name] = measured[name] = (size, item.refs if is_state else ())
        for size, refs in filter(None, sizes.values()):
            yield size
            children = [ref for ref in dict.fromkeys(refs) if ref not in queued]
            queued.update(children)
            queue += children
