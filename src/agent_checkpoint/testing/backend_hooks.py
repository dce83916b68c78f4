"""The hooks that a backend author implements for the conformance suite.

Owns the hooks and the fixture that calls them. Contains no tests.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_checkpoint.backends.base import Backend


class BackendHooks:
    """The four methods that a subclass of the suite must implement.

    Not an ABC: pytest silently skips abstract classes, so a missing hook would look like a suite
    that passed.
    """

    @abstractmethod
    def make(self, place: Path) -> Backend:
        """Return a new, empty backend. It may use `place`, an empty directory for this test."""

    @abstractmethod
    def reopen(self, backend: Backend) -> Backend:
        """Open the data of a backend again; return the new backend. The old one is discarded.

        Called twice, it returns two instances that are used at the same time. If the data is lost
        at the end of the process, return the backend itself.
        """

    @abstractmethod
    def raw_entry(self, backend: Backend, stream: str, seq: int) -> bytes | None:
        """Read the bytes of an entry directly from the medium, bypassing the backend under test.

        Return None if the entry does not exist.
        """

    @abstractmethod
    def raw_object(self, backend: Backend, object_id: str) -> bytes | None:
        """Read the bytes of an object directly from the medium, bypassing the backend under test.

        Return None if the object does not exist.
        """

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        """Fixture: a new backend, closed after the test.

        Raises:
            TypeError: a hook is missing.
        """
        check_hooks(self, "make", "reopen", "raw_entry", "raw_object")
        backend = self.make(tmp_path)
        yield backend
        backend.close()


def check_hooks(suite: object, *names: str) -> None:
    """Check that a suite implements all the given hooks.

    Raises:
        TypeError: hooks are missing; the message lists them.
    """
    missing = [n for n in names if getattr(getattr(suite, n), "__isabstractmethod__", False)]
    if missing:
        raise TypeError(
            f"{type(suite).__name__} does not implement the hooks {', '.join(missing)}."
        )


def object_id(data: bytes) -> str:
    """Return the id under which the suite stores these bytes."""
    return hashlib.sha256(data).hexdigest()


def named(*contents: bytes) -> dict[str, bytes]:
    """Return a mapping from object ids to contents, as `put_objects` expects it."""
    return {object_id(data): data for data in contents}
