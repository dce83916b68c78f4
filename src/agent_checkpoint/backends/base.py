"""The backend contract: objects and streams on a storage medium."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from agent_checkpoint.errors import ConflictError, InvalidInputError
from agent_checkpoint.records import Entry, ObjectInfo, short_repr

NO_OBJECTS: Mapping[str, bytes] = MappingProxyType({})


class Backend(ABC):
    """Stores objects and streams. Wrappers around a backend add retries, caches and the like.

    Objects are immutable bytes under an id of 64 lower-case hex digits, chosen by the caller (their
    hash). Streams are append-only, numbered sequences of small entries, named `key/…`, `fx/…` or
    `meta/…`. Names are validated on writes; on reads a malformed name does not exist. Every method
    may be called from any thread.
    `agent_checkpoint.testing.BackendTests` is the contract in executable form.
    """

    readable: ClassVar[bool] = False
    """Whether people read the files directly: entries are then indented, with inline states."""

    shared: bool = False
    """Whether other users can write the medium: entries are then sealed, unsealed ones refused."""

    url: str | None = None
    """The URL that opens the same store in another process, if there is one."""

    compression: str | None = None
    """The compression of a new store, `zlib` or `zstd`. None: as in the store, else zlib."""

    repacks: SupportsRepack | None = None
    """Finds objects by their first byte and replaces them, if the medium supports it."""

    @abstractmethod
    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Make the objects durable. An object that exists is not changed.

        Raises:
            InvalidInputError: an id is not 64 lower-case hex digits.
            StorageError: the medium failed; some of the objects may be stored.
        """

    @abstractmethod
    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the existing objects, by id.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return the ids that are not stored.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over all objects, in any order; objects may be deleted meanwhile.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects; ids that are not stored are ignored.

        `ids` may be a generator. It is consumed completely, before any deletion, while no `append`
        or `put_objects` of any process can commit. The generator may call the reading methods of
        the same backend (read, streams, list_objects, get_objects, missing_objects) on the same
        thread; they see everything committed, so that gc can mark what was saved since its first
        pass. An empty store need not consume it. If it raises, nothing is deleted.

        Objects are deleted in one transaction or in the given order, so that callers can delete an
        object before the objects that it references.

        Raises:
            StorageError: the medium failed; the first objects may be deleted.
        """

    @abstractmethod
    def append(
        self,
        stream: str,
        entry: bytes,
        *,
        after: int | None = None,
        objects: Mapping[str, bytes] = NO_OBJECTS,
        requires: Collection[str] = (),
    ) -> int:
        """Commit: make the objects durable, then the entry; return its sequence number.

        Numbers count up from 1 and are never reused, even after entries were removed.

        Args:
            stream: the name of the stream; the first entry creates it.
            entry: the bytes of the entry.
            after: the expected number of the newest entry (0: the stream is empty).
            objects: new objects that the entry references.
            requires: referenced objects that must exist; checked atomically with the append, so
                that gc cannot delete them in between.

        Raises:
            InvalidInputError: the stream's name or an object's id is malformed.
            ConflictError: `after` is not the number of the newest entry; nothing was appended.
            MissingObjectsError: some of `requires` are not stored; nothing was appended.
            StorageError: the medium failed; the append is not acknowledged.
        """

    @abstractmethod
    def read(
        self,
        stream: str,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Entry]:
        """Return the entries with `after < seq < before`, at most `limit`, in order of number.

        With `newest_first` the order is reversed and `limit` selects the newest. An unknown stream
        is empty.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove entries permanently; unknown numbers are ignored.

        Raises:
            StorageError: the medium failed; some entries may be removed.
        """

    @abstractmethod
    def streams(self, prefix: str = "") -> Iterator[str]:
        """Iterate over the names of streams that have entries, in any order.

        Streams may be appended to and removed from meanwhile.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files and connections; closing twice does nothing."""


def check_newest(stream: str, newest: int, after: int) -> None:
    """Compare the newest entry of a stream with the expected one. Raises ConflictError."""
    if after != newest:
        raise ConflictError(
            f"The stream {short_repr(stream)} is at entry {newest}, not at {after}."
        )


def check_compression(compression: str | None) -> str | None:
    """Return a valid compression, or None for that of the store. Raises InvalidInputError."""
    if compression not in (None, "zlib", "zstd"):
        raise InvalidInputError(
            f"compression must be 'zlib' or 'zstd', not {short_repr(compression)}."
        )
    return compression


class ObjectScan(NamedTuple):
    """The result of `SupportsRepack.find_objects`."""

    ids: list[str]
    """The ids of objects that begin with the byte."""
    total: int
    """The number of scanned objects."""
    position: Any
    """Plain JSON: where the next scan may start."""


class SupportsRepack(Protocol):
    """A medium that finds objects by their first byte, and replaces their stored form.

    The id is the hash of the uncompressed object, so several stored forms have the same id.
    """

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Find the objects whose stored bytes begin with the byte.

        Args:
            first: the byte.
            position: from an earlier scan; objects stored before it are skipped. An invalid
                position is treated as None: scan all objects.

        Raises:
            StorageError: the medium failed.
        """

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Replace the stored bytes of objects, each atomically; deleted objects stay deleted.

        Raises:
            StorageError: the medium failed; some objects may be replaced.
        """


@runtime_checkable
class SupportsScrub(Protocol):
    """A backend whose medium may retain deleted bytes, and can erase them."""

    def scrub(self) -> None:
        """Erase deleted bytes from every file of the medium.

        May rewrite the whole store. Saves wait meanwhile, reads do not.

        Raises:
            StorageError: the medium is in use (then retryable) or failed; deleted bytes may still
                be readable.
        """


@runtime_checkable
class SupportsReplacementCheck(Protocol):
    """A backend at a path that detects whether its store was replaced or removed."""

    def is_replaced(self) -> bool:
        """Return whether the open store is no longer at its path: reopen it.

        Until then every method raises StorageError.

        Raises:
            StorageError: the medium failed.
        """
