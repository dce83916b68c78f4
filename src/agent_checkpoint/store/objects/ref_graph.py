"""The order in which objects are written. Works on ids and references only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

Refs = Mapping[str, Optional[Sequence[str]]]
"""References by object id."""


def children_first(roots: Iterable[str], graph: Refs) -> Iterator[str]:
    """Iterate over the ids that are reachable from the roots, each after all its references."""
    done: set[str] = set()
    stack = [(name, False) for name in roots]
    while stack:
        name, is_open = stack.pop()
        if name in done:
            continue
        if is_open:
            done.add(name)
            yield name
        else:
            stack.append((name, True))
            stack += [(ref, False) for ref in graph.get(name) or () if ref not in done]
