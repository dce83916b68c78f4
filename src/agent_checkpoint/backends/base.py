"""The backend contract: objects and streams on a storage medium."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from agent_checkpoint.errors import CheckpointError, ConflictError, StorageError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.options import Compression, Durability, check_option
from agent_checkpoint.records import Entry, ObjectInfo, short_repr

FORMAT_STREAM = "meta/format"
"""The stream with the format record of a store."""
ENCRYPTED = "encrypted"
"""The feature in the format record of an encrypted store. Version 0.1 refuses such a store."""

NO_OBJECTS: Mapping[str, bytes] = MappingProxyType({})


class BackendProperties(NamedTuple):
    """What callers know of a backend besides its methods. Fixed while the backend is open."""

    readable: bool = False
    """Whether stored entries are meant for people: indented JSON that contains the whole state."""
    shared: bool = False
    """Whether other users can write the medium. Entries are then signed, unsigned ones rejected."""
    url: str | None = None
    """The URL that opens the same store in another process; None if there is none."""
    path: Path | None = None
    """The local directory of the store; None if there is none."""
    marker: Path | None = None
    """The local file or directory that exists as soon as the store does; None if unknown."""
    is_local: bool = False
    """Whether only this host can open the store, so that paths in it are paths here."""
    durability: Durability | None = None
    """`full`: saves survive a power failure; `fast`: only a process crash. None if unknown."""
    compression: Compression | None = None
    """`zlib` or `zstd`. None: the compression of an existing store, zlib for a new store."""
    can_scrub: bool = False
    """Whether the medium may retain deleted bytes, which `scrub` erases."""
    can_repack: bool = False
    """Whether `find_objects` and `replace_objects` work."""
    can_group: bool = False
    """Whether `append_all` makes several entries durable at the cost of one."""


class Append(NamedTuple):
    """The arguments of one `Backend.append`."""

    stream: str
    entry: bytes
    after: int | None = None
    objects: Mapping[str, bytes] = NO_OBJECTS
    requires: Collection[str] = ()


class ObjectScan(NamedTuple):
    """The result of `Backend.find_objects`."""

    ids: list[str]
    """The ids of objects that begin with the byte."""
    total: int
    """The number of scanned objects."""
    position: Any
    """The position from which the next scan can continue; a JSON value."""


class Changes(NamedTuple):
    """The result of `Backend.changes`."""

    streams: Iterable[str]
    """The names of streams that may have new entries."""
    objects: Iterable[ObjectInfo]
    """The objects that may be new."""
    position: Any
    """The position from which the next call can continue; None if the backend has none."""


class Backend(ABC):
    """Stores objects and streams. All methods are thread-safe.

    Objects are immutable bytes with an id of 64 lower-case hex digits, which the caller computes as
    a hash. Streams are append-only sequences of numbered entries, named `key/…`, `fx/…` or
    `meta/…`. A malformed name or id raises InvalidInputError on writes and is treated as missing
    on reads. The ten abstract methods are the contract, which
    `agent_checkpoint.testing.BackendTests` tests; the other methods have defaults. Callers rely on
    `properties`, never on the class of a backend.

    Durable order: an object is durable before any object or entry that refers to it. A backend does
    not know the references. Callers pass objects in that order, and a backend keeps it, whenever
    the process or the machine stops: it stores objects in one transaction, or each object durably
    before the next one appears. Deletions keep the reverse order in the same way.
    """

    # The defaults of `properties`; each is described there.
    readable: ClassVar[bool] = False
    shared: bool = False
    url: str | None = None
    path: Path | None = None
    durability: Durability | None = None
    compression: Compression | None = None

    @property
    def properties(self) -> BackendProperties:
        """By default the attributes above, and whether the optional methods are overridden."""
        path = None if self.path is None else Path(self.path)  # may be a str in other packages
        return BackendProperties(
            readable=self.readable,
            shared=self.shared,
            url=self.url,
            path=path,
            marker=path,
            is_local=path is not None,
            durability=self.durability,
            compression=self.compression,
            can_scrub=type(self).scrub is not Backend.scrub,
            can_repack=type(self).find_objects is not Backend.find_objects,
            can_group=type(self).append_all is not Backend.append_all,
        )

    @abstractmethod
    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Store objects durably, in the order of the mapping. An existing object is not changed.

        An interrupted call leaves all objects, none, or the first ones of the mapping.

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
        """Iterate over all objects, in any order. Objects may be deleted during the iteration.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects; ids that are not stored are ignored.

        `ids` may be a generator. It is consumed completely before the first deletion, while
        `append` and `put_objects` of all processes are blocked. The generator may call the reading
        methods of the same backend (read, streams, list_objects, get_objects, missing_objects) in
        the same thread; they return all committed data, so that gc can mark objects saved since
        its first pass. An empty store need not consume it. If it raises, nothing is deleted.

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
        """Commit: store the objects durably, then the entry; return its sequence number.

        Numbers start at 1, increase, and are never reused, even if entries are removed.

        Args:
            stream: the name of the stream; the first entry creates it.
            entry: the bytes of the entry.
            after: the expected number of the newest entry (0: the stream is empty).
            objects: new objects that the entry references, in order as for `put_objects`.
            requires: referenced objects that must exist; checked atomically with the append, so
                that gc cannot delete them in between.

        Raises:
            InvalidInputError: the stream's name or an object's id is malformed.
            ConflictError: `after` is not the number of the newest entry; nothing was appended.
            MissingObjectsError: some of `requires` are not stored; nothing was appended.
            StorageError: the medium failed; the append is not acknowledged. Set
                `outcome_unknown` if the entry may be stored, as after a lost connection; a
                retryable error without it says that nothing was appended.
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

        Streams may be changed during the iteration.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def close(self) -> None:
        """Close files and connections; closing twice does nothing."""

    def append_all(self, appends: Sequence[Append]) -> list[int | CheckpointError]:
        """Append several entries in order, each as `append` does, and return when all are durable.

        Each has its own outcome: its number, or the error that `append` would raise. One that
        fails does not keep the others from being appended. The default appends one after the other.

        Raises:
            StorageError: the medium failed; none of them is acknowledged.
        """
        outcomes: list[int | CheckpointError] = []
        for item in appends:
            try:
                outcomes.append(
                    self.append(
                        item.stream,
                        item.entry,
                        after=item.after,
                        objects=item.objects,
                        requires=item.requires,
                    )
                )
            except CheckpointError as error:
                outcomes.append(error)
        return outcomes

    def scrub(self) -> None:  # noqa: B027 - most media have nothing to erase
        """Erase deleted bytes from every file of the medium, if `properties.can_scrub`.

        May rewrite the whole store. Blocks saves, but not reads.

        Raises:
            StorageError: the medium is in use (then retryable) or failed; deleted bytes may still
                be readable.
        """

    def is_replaced(self) -> bool:
        """Return whether the open store is no longer at its path.

        If so, all other methods raise StorageError until the store is reopened.

        Raises:
            StorageError: the medium failed.
        """
        return False

    def uncached(self) -> Backend:
        """Return a backend of the same store that reads from the medium, not from a cache.

        Not to be closed. By default it is this backend.
        """
        return self

    def changes(self, position: Any = None) -> Changes:
        """Return the streams and objects written since a position; by default, all.

        They include all that was committed after the call that returned the position, and may
        include more. With a position, gc deletes in several short sweeps.

        Args:
            position: from an earlier call of the same backend; None: return everything.

        Raises:
            StorageError: the medium failed.
        """
        return Changes(self.streams(), self.list_objects(), None)

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Find the objects whose stored bytes begin with a byte, if `properties.can_repack`.

        Args:
            first: the byte.
            position: from an earlier scan; objects stored before it are skipped. An invalid
                position is treated as None: scan all objects.

        Raises:
            StorageError: the medium failed, or cannot do it.
        """
        raise StorageError(f"{self!r} cannot find objects by their first byte.")

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Replace the stored bytes of objects, each atomically, if `properties.can_repack`.

        The id is the hash of the uncompressed object, so it does not depend on the stored form.
        Deleted objects stay deleted.

        Raises:
            StorageError: the medium failed, or cannot do it; some objects may be replaced.
        """
        raise StorageError(f"{self!r} cannot replace objects.")


def check_newest(stream: str, newest: int, after: int | None) -> None:
    """Check that the newest entry of a stream is the expected one, if any. Raises ConflictError."""
    if after not in (None, newest):
        raise ConflictError(
            f"The newest entry of the stream {short_repr(stream)} is {newest}, expected {after}."
        )


def check_compression(compression: Compression | None) -> Compression | None:
    """Validate a `compression=` argument, and return it. Raises InvalidInputError."""
    if compression is not None:
        check_option("compression", compression, Compression)
    return compression
