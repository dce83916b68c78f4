"""A wrapper that refuses every write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from agent_checkpoint.backends.base import NO_OBJECTS, BackendProperties
from agent_checkpoint.backends.wrapper import WrapperBackend
from agent_checkpoint.backends.wrappers.url_options import with_options
from agent_checkpoint.errors import Hint, StorageError


class ReadOnlyBackend(WrapperBackend):
    """Forwards reads; every write raises StorageError and writes nothing."""

    @property
    def properties(self) -> BackendProperties:
        """Those of the wrapped backend; without optional methods that write."""
        inner = self.inner.properties
        url = with_options(inner.url, read_only=1)
        return inner._replace(url=url, can_scrub=False, can_repack=False)

    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Raises StorageError."""
        self._refuse()

    def delete_objects(self, ids: Iterable[str]) -> None:
        """Raises StorageError."""
        self._refuse()

    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Raises StorageError."""
        self._refuse()

    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Raises StorageError."""
        self._refuse()

    def scrub(self) -> None:
        """Raises StorageError."""
        self._refuse()

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Raises StorageError."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        inner = self.inner.properties
        raise StorageError(
            f"The store {inner.path or inner.url or repr(self.inner)} is open read-only. Nothing "
            "was written.",
            hint=Hint("To save, restore or delete, open it without read_only."),
        )
