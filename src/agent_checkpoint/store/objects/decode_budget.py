"""Decode limits: bound the memory that loading a state can take. Does not interpret tags.

The size in bytes does not bound memory use: the list `[[],[],[]]` takes twenty times as much memory
in Python as in JSON. Repeated content is stored once and compresses to almost nothing, so an
archive of a few kilobytes could be a decompression bomb. A load therefore counts a decode cost:
each of the characters `[]{}:,"` in its JSON texts, each time a text is read. One unit is at most 48
bytes of memory. The budget of a state is BASE_BUDGET; more is allowed only in proportion to its
distinct content, compressed and counted once. An attacker must therefore send data in proportion
to what the victim loads.

Writers reject states that readers would reject.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.store.objects.object_format import STATE_KINDS, Object

BASE_BUDGET = 1 << 23
"""Decode cost allowed for any state: about 200 MB of memory, at most 400 MB."""
COST_PER_BYTE = 128
"""Decode cost allowed per compressed byte. Writers use half of it, because zlib versions differ."""

_STRUCTURE = b'[]{}:,"'
_BATCH = 64
_MAX_CACHED = 100_000

Fetch = Callable[[Sequence[str]], Iterable[tuple[str, Object]]]
"""Returns the existing objects, each with its id."""
PackedSizes = dict[str, tuple[int, tuple[str, ...]]]
"""Compressed size and references of objects that were already measured, by object id."""


def text_cost(text: bytes) -> int:
    """Return the decode cost of a JSON text; at most its length."""
    return len(text) - len(text.translate(None, _STRUCTURE))


def pieces_cost(pieces: Sequence[bytes], *, is_text: bool) -> int:
    """Return the decode cost of chunks that become one value.

    It is low: 512 MiB fit into BASE_BUDGET. A string that is not ASCII costs more, because it can
    take four bytes of memory per byte.
    """
    is_wide = is_text and not all(piece.isascii() for piece in pieces)
    return sum(map(len, pieces)) >> (4 if is_wide else 6)


class DecodeBudget:
    """Adds up the decode cost of some states, and raises an error above their budget."""

    def __init__(self, states: int, allowance: Callable[[int], int]) -> None:
        """Create a budget.

        Args:
            states: the number of states to read.
            allowance: returns the decode cost that their content allows; it may stop counting at
                the cost passed to it.
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
        """Add chunks that become one value. Raises IntegrityError if the budget is exceeded."""
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
                f"The state exceeds the decode limit: its decode cost is {self._cost:,} or more, "
                "too high for its distinct content. It may be a decompression bomb."
            )


def content_allowance(
    roots: Iterable[str], enough: int, fetch: Fetch, measured: PackedSizes
) -> int:
    """Return the decode cost that the content of objects allows; stop counting at `enough`.

    Args:
        roots: the ids of the topmost objects.
        enough: the decode cost at which to stop.
        fetch: returns objects by id.
        measured: a cache of sizes, kept between calls.

    Raises:
        IntegrityError: an object is damaged.
        StorageError: the medium failed.
    """
    allowance = 0
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
            allowance += COST_PER_BYTE * size
            if allowance >= enough:
                return allowance
            children = [ref for ref in dict.fromkeys(refs) if ref not in queued]
            queued.update(children)
            queue += children
    return allowance
