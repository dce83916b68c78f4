"""Adapters to other libraries, one module each. Each needs the extra of its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(name: str) -> Iterator[None]:
    """Explain why an import in the block fails: a library is missing, or is too old.

    Raises:
        ImportError: instead of the one in the block, which is its cause.
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{error}. This adapter needs the extra {name!r}: "
            f"pip install -U 'agent-checkpoint[{name}]'",
            name=error.name,
        ) from error
