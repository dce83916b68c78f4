"""Space limits of a store: minimum free space and maximum size."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.disk.posix import (
    disk_space,
    free_bytes,
    scan_directory,
    wrap_os_errors,
)
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.records import short_repr

MIN_FREE = 16 << 20
MIN_SHARE = 50
"""By default a store leaves 16 MiB free, or a fiftieth of a small file system."""

_ADVICE = "Run prune and gc, or free some space; reading and deleting still work."
_LONGEST_RECORD = 16 << 10
_MEASURE_EVERY = 256  # writes: other processes write and delete too


def is_small_record(stream: str, entry: bytes, objects: Mapping[str, bytes]) -> bool:
    """Return whether an entry is a small record outside the key streams.

    Such as the outcome of an external side effect, a tombstone, or the epoch that fences a deleted
    session. These are not limited: outcomes would be lost, and keys could not be deleted.
    """
    return not (stream.startswith("key/") or objects or len(entry) > _LONGEST_RECORD)


class SpaceLimits:
    """Checked before each write; reads, deletions and small records are not limited."""

    def __init__(
        self,
        path: Path,
        *,
        min_free: int | None,
        max_bytes: int | None,
        reserve: Path | None = None,
    ) -> None:
        """Limit the store in the directory `path`.

        Args:
            path: the directory of the store.
            min_free: bytes of the file system to leave free; 0 for no limit, None for 16 MiB or a
                fiftieth of it, whichever is less.
            max_bytes: the maximum total size of the store; None for no limit.
            reserve: a file of the store that does not count.

        Raises:
            InvalidInputError: a limit is not a number of bytes.
        """
        if min_free is not None and (type(min_free) is not int or min_free < 0):
            raise InvalidInputError(
                f"min_free counts bytes, 0 for no limit, not {short_repr(min_free)}."
            )
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
            raise InvalidInputError(
                f"max_bytes counts bytes, None for any, not {short_repr(max_bytes)}."
            )
        self.path = path
        self.min_free = min_free
        self.max_bytes = max_bytes
        self._reserve = reserve
        # Counted without a lock, which a fork could leave locked. Lost updates are corrected when
        # the size is measured again.
        self._size = 0
        self._until_measured = 0

    def check(self, objects: Mapping[str, bytes], entry: bytes = b"") -> int:
        """Return the size of a write that is within the limits, and count it.

        Raises:
            StorageError: a limit would be exceeded, or the disk cannot be measured.
        """
        incoming = len(entry) + sum(map(len, objects.values()))
        with wrap_os_errors(f"measure {self.path}"):
            if self.min_free != 0:
                self._check_free(incoming)
            if self.max_bytes is not None:
                self._check_size(incoming, self.max_bytes)
        return incoming

    def _check_free(self, incoming: int) -> None:
        free, total = disk_space(self.path)
        least = min(MIN_FREE, total // MIN_SHARE) if self.min_free is None else self.min_free
        if free - incoming < least:
            raise StorageError(
                f"Nothing was written to {self.path}: its file system has {free:,} bytes free, "
                f"{incoming:,} are to be written, and min_free={least:,} must stay. "
                f"{_ADVICE}",
                no_room=True,
            )

    def _check_size(self, incoming: int, most: int) -> None:
        if self._until_measured <= 0 or self._size + incoming > most:
            self._size = _measure(self.path, self._reserve)
            self._until_measured = _MEASURE_EVERY
        if self._size + incoming > most:
            raise StorageError(
                f"Nothing was written to {self.path}: the store has {self._size:,} bytes, "
                f"{incoming:,} are to be written, and max_bytes={most:,}. "
                f"{free_bytes(self.path):,} bytes are free on the file system. {_ADVICE}",
                no_room=True,
            )
        self._size += incoming
        self._until_measured -= 1


def _measure(folder: Path, besides: Path | None) -> int:
    total = 0
    for item in scan_directory(folder):
        path = Path(item.path)
        if item.is_dir(follow_symlinks=False):
            total += _measure(path, besides)
        elif path != besides:
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                total += item.stat(follow_symlinks=False).st_size
    return total
