"""The backend contract: objects and streams on a medium. Owns the interface; knows no medium."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from agent_checkpoint.errors import ConflictError, InvalidInputError
from agent_checkpoint.records import Entry, ObjectInfo, short_repr

NO_OBJECTS: Mapping[str, bytes] = MappingProxyType({})


class Backend(ABC):
    """Where objects and streams live. Ten methods, no more; wrappers add what cuts across.

    Objects are immutable bytes under 64 lower-case hex digits that the caller chose (their hash).
    Streams are append-only, numbered sequences of small entries, named `key/…`, `fx/…` or `meta/…`
    and any text after that. Names are checked where something is written; elsewhere a malformed
    one is simply not there. Every method may be called from any thread.
    `agent_checkpoint.testing.BackendTests` is the contract in executable form.
    """

    readable: ClassVar[bool] = False
    """Whether people read the medium itself: entries are then indented, with the state inline."""

    shared: bool = False
    """Whether others may write the medium: entries are then sealed, and unsealed ones refused."""

    url: str | None = None
    """What opens the same store in another process, if anything does; a backend may set it."""

    compression: str | None = None
    """How a new store packs its objects, `zlib` or `zstd`. None: as the store says; zlib if new."""

    repacks: SupportsRepack | None = None
    """What finds objects by their first byte and replaces them, if the medium can."""

    @abstractmethod
    def put_objects(self, objects: Mapping[str, bytes]) -> None:
        """Make the objects durable. One that is there already is left as it is.

        Raises:
            InvalidInputError: an id is not 64 lower-case hex digits.
            StorageError: the medium failed; some of the objects may be stored.
        """

    @abstractmethod
    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return those of the objects that exist, by id.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def missing_objects(self, ids: Iterable[str]) -> set[str]:
        """Return those of the ids that are not stored.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def list_objects(self) -> Iterator[ObjectInfo]:
        """Iterate over all objects, in any order; they may be deleted meanwhile.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def delete_objects(self, ids: Iterable[str]) -> None:
        """Delete the objects; ids that are not stored are ignored.

        `ids` may be a generator. It is consumed, to its end and before anything is deleted, while
        no `append` or `put_objects` of any process can commit. From inside it the same thread may
        call the methods that read (read, streams, list_objects, get_objects, missing_objects) on
        the same backend; they see all that is committed. So gc can look again at what is newer.
        Where nothing was ever stored it may not be consumed at all. If it raises, nothing is
        deleted.

        The objects go in one transaction or in the given order, so that an object which names
        others can be made to go before them.

        Raises:
            StorageError: the medium failed; the first of the objects may be gone.
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
        """Commit: make the objects durable, then the entry, and return its number.

        Numbers count up from 1, and none is used twice, also when entries were removed.

        Args:
            stream: the stream's name; it comes into being with its first entry.
            entry: the bytes of the entry.
            after: the number that the newest present entry must have (0: none is present).
            objects: new objects that the entry names.
            requires: objects that the entry names and that must be there already; checked
                atomically with the append, so that gc cannot take them away in between.

        Raises:
            InvalidInputError: the stream's name or an object's id is malformed.
            ConflictError: `after` is not the number of the newest entry; nothing was appended.
            MissingObjectsError: some of `requires` are not stored; nothing was appended.
            StorageError: the medium failed; nothing was acknowledged.
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

        With `newest_first` the order is turned round and `limit` takes the newest. An unknown
        stream is an empty one.

        Raises:
            StorageError: the medium failed.
        """

    @abstractmethod
    def remove(self, stream: str, seqs: Iterable[int]) -> None:
        """Remove entries for good; numbers that are not there are ignored.

        Raises:
            StorageError: the medium failed; some of the entries may be gone.
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
        """Let go of files and connections; closing twice does nothing."""


def check_newest(stream: str, newest: int, after: int) -> None:
    """Make sure that a stream is where whoever appends believes it is. Raises ConflictError."""
    if after != newest:
        raise ConflictError(
            f"The stream {short_repr(stream)} is at entry {newest}, not at {after}."
        )


def check_compression(compression: str | None) -> str | None:
    """Return a compression of a store, or None for whatever it has. Raises InvalidInputError."""
    if compression not in (None, "zlib", "zstd"):
        raise InvalidInputError(f"compression is 'zlib' or 'zstd', not {short_repr(compression)}.")
    return compression


class ObjectScan(NamedTuple):
    """What `Repacks.find_objects` found."""

    found: list[str]
    """The objects that begin with the byte."""
    total: int
    """How many objects were looked at."""
    position: Any
    """Plain JSON: where the next look may begin."""


class SupportsRepack(Protocol):
    """A medium that tells the first bytes of objects fast, and stores objects in another packing.

    A name is the hash of the plain form of an object, so several packings have the same name.
    """

    def find_objects(self, first: bytes, position: Any = None) -> ObjectScan:
        """Find the objects whose stored bytes begin with the byte.

        Args:
            first: the byte.
            position: what an earlier look returned; objects that were stored before that are not
                looked at. What makes no sense is taken for None: look at all of them.

        Raises:
            StorageError: the medium failed.
        """

    def replace_objects(self, objects: Mapping[str, bytes]) -> None:
        """Replace the stored bytes of objects, each in one step; those that are gone stay so.

        Raises:
            StorageError: the medium failed; some of them may be replaced.
        """


@runtime_checkable
class SupportsScrub(Protocol):
    """A backend whose medium may still hold the bytes of what was deleted, and can lose them."""

    def scrub(self) -> None:
        """Make bytes that were deleted unreadable in every file of the medium.

        It may rewrite all that is stored. Saving waits for it, reading goes on.

        Raises:
            StorageError: others use the medium right now (then it is retryable), or it failed;
                deleted bytes may still be readable.
        """


@runtime_checkable
class SupportsReplacementCheck(Protocol):
    """A backend at a path, where another store may be by now, or none."""

    def is_replaced(self) -> bool:
        """Tell whether the store that was used is not at the path any more: open it anew.

        Until then every method raises StorageError.

        Raises:
            StorageError: the medium failed.
        """
