"""What a backend's author tells the conformance suite.

Owns the hooks and the fixture that calls them; tests nothing itself.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint.backends.base import Backend


class BackendHooks:
    """The four methods that a subclass of the suite gives.

    Not an ABC: pytest passes over abstract classes without a word, and a forgotten hook must not
    look like a suite that passed.
    """

    @abstractmethod
    def make(self, place: Path) -> Backend:
        """Return a fresh, empty backend; it may use `place`, an empty directory of its own."""

    @abstractmethod
    def reopen(self, backend: Backend) -> Backend:
        """Return the same data opened again; the first one is not used any more.

        A medium that ends with the process returns the backend itself.
        """

    @abstractmethod
    def raw_entry(self, backend: Backend, stream: str, seq: int) -> bytes | None:
        """Return the bytes of an entry from the medium itself, past the code under test."""

    @abstractmethod
    def raw_object(self, backend: Backend, object_id: str) -> bytes | None:
        """Return the bytes of an object from the medium itself, past the code under test."""

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        """A new backend for one test, closed after it.

        Raises:
            TypeError: a hook is missing.
        """
        check_hooks(self, "make", "reopen", "raw_entry", "raw_object")
        backend = self.make(tmp_path)
        yield backend
        backend.close()


def check_hooks(suite: object, *names: str) -> None:
    """Return if the author has given all these hooks.

    Raises:
        TypeError: some are missing; the message names them.
    """
    missing = [n for n in names if getattr(getattr(suite, n), "__isabstractmethod__", False)]
    if missing:
        raise TypeError(f"{type(suite).__name__} lacks the hooks {', '.join(missing)}.")


def object_id(data: bytes) -> str:
    """Return the id under which the suite stores these bytes."""
    return hashlib.sha256(data).hexdigest()


def named(*contents: bytes) -> dict[str, bytes]:
    """Return the contents by their ids, as `put_objects` takes them."""
    return {object_id(data): data for data in contents}
