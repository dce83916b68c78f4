"""The one meaning of a `store=` argument: a path, a URL, a Backend, a manager, or a Store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, Union

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.registry import open_named
from agent_checkpoint.store.store import Store

if TYPE_CHECKING:

    class HasStore(Protocol):
        """An owner of a store: a CheckpointManager."""

        store: Store

    StoreLike = Union[str, os.PathLike[str], Backend, Store, HasStore]
    """The types of a `store=` argument."""


def existing_store(store: Any) -> Store | None:
    """Return the Store that the argument is, or that a manager has; None for other arguments."""
    inner = getattr(store, "store", store)
    return inner if isinstance(inner, Store) else None


def store_for(store: StoreLike | None) -> tuple[Store, bool]:
    """Return the Store for a `store=` argument, and whether the caller has to close it.

    A path is the directory of an SQLite store; None is the default store.

    Raises:
        InvalidInputError: the argument is not a store.
        StorageError: the store cannot be opened.
    """
    found = existing_store(store)
    if found is not None:
        return found, False
    backend: Any = store  # checked by open_named
    return Store(open_named(backend)), not isinstance(store, Backend)
