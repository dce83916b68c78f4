"""A wrapper that keeps copies of objects in a local directory."""

from __future__ import annotations

import hashlib
import os
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from agent_checkpoint.backends.base import Backend, BackendProperties
from agent_checkpoint.backends.os_support.posix import wrap_os_errors
from agent_checkpoint.backends.wrapper import WrapperBackend
from agent_checkpoint.backends.wrappers.cache_directory import CacheDirectory
from agent_checkpoint.backends.wrappers.url_options import split_options, with_options
from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import is_object_id

T = TypeVar("T")

MAX_BYTES = 1 << 30
"""The default limit of a cache."""


class CacheBackend(WrapperBackend):
    """Reads objects from a local directory, and from the wrapped backend if they are not there.

    The cache holds the bytes that the wrapped backend holds. It is filled by reads, and never says
    that an object exists: `missing_objects` and `requires` ask the wrapped backend. Deletions and
    `scrub` of any process that uses the directory reach it; those of other machines do not.
    """

    def __init__(
        self, inner: Backend, directory: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES
    ) -> None:
        """Wrap a backend.

        Args:
            inner: the backend.
            directory: the directory of the cache, which the first read creates. Several stores
                can share it.
            max_bytes: the size of all files in it; the least recently used ones are removed.

        Raises:
            InvalidInputError: the directory belongs to another user, or contains other files, or
                `max_bytes` is not a positive number.
            StorageError: the file system failed.
        """
        super().__init__(inner)
        self._directory = CacheDirectory(directory, max_bytes)
        url = inner.properties.url
        # Stores may have different bytes of the same object, such as ciphertext of other keys.
        store = uuid.uuid4().hex if url is None else split_options(url)[0]
        self._store = hashlib.sha256(store.encode()).hexdigest()[:16]
        self._is_full = False

    @property
    def properties(self) -> BackendProperties:
        """Those of the wrapped backend, with the cache in the URL. `scrub` empties the cache."""
        inner, cache = self.inner.properties, self._directory
        url = with_options(inner.url, cache=cache.path, cache_bytes=cache.max_bytes)
        return inner._replace(url=url, can_scrub=True)

    def uncached(self) -> Backend:
        """Return the wrapped backend."""
        return self.inner.uncached()

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return objects from the cache, and the others from the wrapped backend."""
        found: dict[str, bytes] = {}
        missing: list[str] = []
        for name in ids:
            data = self._directory.get(self._file(name)) if is_object_id(name) else None
            if data is None:
                missing.append(name)
            else:
                found[name] = data
        if not missing:
            return found
        # Before the read: an object that is deleted after it must not be added.
        generation = self._attempt(self._directory.open)
        fetched = self.inner.get_objects(missing)
        if generation is not None:
            contents = {self._file(name): data for name, data in fetched.items()}
            self._attempt(lambda: self._directory.add(contents, generation))
        return {**found, **fetched}

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete objects from the cache and from the wrapped backend. Raises StorageError."""
        doomed: list[str] = []

        def collected() -> Iterator[str]:
            for name in ids:
                doomed.append(name)
                yield name
            self._forget(doomed)  # all are known, and none is deleted yet

        if isinstance(ids, Collection):
            with self._changing(ids):
                self.inner.delete_objects(ids)
            return
        try:
            self.inner.delete_objects(collected())
        finally:
            self._forget(doomed)

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Replace objects in the wrapped backend; the cache fetches them again."""
        with self._changing(objects):
            self.inner.replace_objects(objects)

    def scrub(self) -> None:
        """Scrub the wrapped backend, and empty the cache, also of other stores."""
        with wrap_os_errors(f"empty the cache {self._directory.path}"):
            self._directory.clear()
        self.inner.scrub()

    # -- internals -------------------------------------------------------------------------------

    def _file(self, object_id: str) -> str:
        return f"{object_id}-{self._store}"

    def _attempt(self, action: Callable[[], T]) -> T | None:
        """Return the result of an action that writes. If it fails, warn and add nothing more."""
        if self._is_full:
            return None
        try:
            return action()
        except FileNotFoundError:  # the directory was removed; the next read creates it
            return None
        except (OSError, StorageError) as error:
            self._is_full = True
            warnings.warn(
                f"The cache {self._directory.path} cannot be written. New objects are not cached: "
                f"{error}",
                stacklevel=3,
            )
            return None

    @contextmanager
    def _changing(self, ids: Collection[str]) -> Iterator[None]:
        """Remove objects from the cache before and after a change of the wrapped backend.

        Before, because the process may be killed. After, because others may have read them.
        """
        self._forget(ids)
        try:
            yield
        finally:
            self._forget(ids)

    def _forget(self, ids: Iterable[str]) -> None:
        with wrap_os_errors(f"remove objects from the cache {self._directory.path}"):
            self._directory.remove(self._file(name) for name in ids if is_object_id(name))
