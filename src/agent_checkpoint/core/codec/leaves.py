"""Finds the codec of a scalar: by the type of a value, or by its tag."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.codec.scalars import LEAVES, NUMBERS, Leaf, decode_text

_LIBRARY_MODULES = frozenset({"datetime", "decimal", "fractions", "uuid", "zoneinfo"})
_LIBRARY_TAGS = (
    "$datetime", "$time", "$date", "$timedelta", "$timezone", "$zoneinfo",
    "$decimal", "$fraction", "$uuid",
)  # fmt: skip


def leaf_of(cls: type) -> Leaf | None:
    """Return the codec of a scalar type; None for any other type."""
    return LEAVES.get(cls) or library_leaf(cls)


def library_leaf(cls: type) -> Leaf | None:
    """Return the codec of a scalar type of a library module; None for any other type."""
    return _library()[0].get(cls) if cls.__module__ in _LIBRARY_MODULES else None


@cache
def _library() -> tuple[Mapping[type, Leaf], Mapping[str, Leaf]]:
    """Return the scalars of library modules by type and by tag."""
    with block_forks():
        from agent_checkpoint.core.codec.library_scalars import LIBRARY_LEAVES  # slow to load

    return LIBRARY_LEAVES, {leaf.tag: leaf for leaf in LIBRARY_LEAVES.values()}


def _decode_library(tag: str, data: Any) -> Any:
    return _library()[1][tag].decode(data)


DECODERS: dict[str, Callable[[Any], Any]] = {
    **NUMBERS,
    "$str": decode_text,
    **{leaf.tag: leaf.decode for leaf in LEAVES.values()},
    **{tag: partial(_decode_library, tag) for tag in _LIBRARY_TAGS},
}
"""The decoder of each scalar, by its tag."""
