"""Space limits of a store: minimum free space and maximum size."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.posix import (
    disk_space,
    free_bytes,
    scan_directory,
    wrap_os_errors,
)
from agent_checkpoint.errors import Hint, InvalidInputError, StorageError
from agent_checkpoint.records import short_repr

MIN_FREE = 16 << 20
MIN_SHARE = 50
"""By default a store leaves 16 MiB or 2 % of the file system free, whichever is less."""

_ADVICE = Hint("Run prune and gc, or free some space; reading and deleting still work.", "space")
_LONGEST_RECORD = 16 << 10
_MEASURE_EVERY = 256  # writes: other processes write and delete too


def is_small_record(stream: str, entry: bytes, objects: Mapping[str, bytes]) -> bool:
    """Return whether an entry is a small record outside the key streams.

    Examples are the outcome of an external side effect, a tombstone, and the epoch that fences a
    deleted session. These are not limited: otherwise outcomes would be lost, and keys could not be
    deleted.
    """
    return not (stream.startswith("key/") or objects or len(entry) > _LONGEST_RECORD)


class SpaceLimits:
    """Limits that are checked before each write, except for deletions and small records."""

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
            min_free: bytes to leave free on the file system; 0 for no limit, None for 16 MiB or
                2 % of the file system, whichever is less.
            max_bytes: the maximum total size of the store; None for no limit.
            reserve: a file of the store that is not counted.

        Raises:
            InvalidInputError: a limit is not a number of bytes.
        """
        if min_free is not None and (type(min_free) is not int or min_free < 0):
            raise InvalidInputError(
                "min_free must be a number of bytes, or 0 for no limit, not "
                f"{short_repr(min_free)}."
            )
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
            raise InvalidInputError(
                "max_bytes must be a positive number of bytes, or None for no limit, not "
                f"{short_repr(max_bytes)}."
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
        """Check that a write is within the limits, count it, and return its size.

        Raises:
            StorageError: a limit would be exceeded, or the disk usage cannot be determined.
        """
        incoming = len(entry) + sum(map(len, objects.values()))
        with wrap_os_errors("measure", self.path):
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
                f"Write refused: the file system of {self.path} has {free:,} bytes free, and "
                f"{incoming:,} more would leave less than min_free={least:,}.",
                no_room=True,
                hint=_ADVICE,
            )

    def _check_size(self, incoming: int, most: int) -> None:
        if self._until_measured <= 0 or self._size + incoming > most:
            self._size = directory_size(self.path, besides=self._reserve)
            self._until_measured = _MEASURE_EVERY
        if self._size + incoming > most:
            raise StorageError(
                f"Write refused: {self.path} has {self._size:,} bytes, and {incoming:,} more would "
                f"exceed max_bytes={most:,}. The file system has {free_bytes(self.path):,} bytes "
                "free.",
                no_room=True,
                hint=_ADVICE,
            )
        self._size += incoming
        self._until_measured -= 1


def directory_size(folder: Path, *, besides: Path | None = None) -> int:
    """Return the size of all files below a directory, except one. Raises OSError."""
    total = 0
    for item in scan_directory(folder):
        path = Path(item.path)
        if item.is_dir(follow_symlinks=False):
            total += directory_size(path, besides=besides)
        elif path != besides:
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                total += item.stat(follow_symlinks=False).st_size
    return total
