"""How much a snapshot reads. Owns the limit and the telling of progress."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from agent_checkpoint.errors import WorkspaceError

Progress = Callable[[int, int], None]
"""Told, as a snapshot goes on, how many files and bytes it has read so far."""

_TELL_FILES, _TELL_BYTES = 256, 4 << 20
"""After so much more it is told again."""


class Meter:
    """Counts what one snapshot reads."""

    def __init__(self, limit: int | None, progress: Progress | None) -> None:
        """Set a limit.

        Args:
            limit: how many bytes one snapshot may read; any number if it is None.
            progress: called now and then.
        """
        self._limit = limit
        self._progress = progress
        self.begin()

    def begin(self, *, is_limited: bool = True) -> None:
        """Count from nothing; not against the limit what a restore has just written."""
        self.files = self.bytes = 0
        self._told = (0, 0)
        self._most = self._limit if is_limited else None
        self._by_top: Counter[bytes] = Counter()

    def read(self, directory: bytes, files: int, size: int) -> None:
        """Count files of a directory that are about to be read.

        Raises:
            WorkspaceError: there are more bytes than the limit allows.
        """
        self.files += files
        self.bytes += size
        self._by_top[directory.partition(b"/")[0]] += size
        told_files, told_bytes = self._told
        if self.files - told_files >= _TELL_FILES or self.bytes - told_bytes >= _TELL_BYTES:
            self.tell()
        if self._most is not None and self.bytes > self._most:
            self.tell()
            largest = ", ".join(
                f"{os.fsdecode(top) or 'files at the top'} ({_shown(size)})"
                for top, size in self._by_top.most_common(3)
            )
            raise WorkspaceError(
                f"There are more than {_shown(self._most)} of new files to capture; most so far in "
                f"{largest}. Leave out what can be made again, by ignore= or a line in "
                ".checkpointignore, or set another limit=."
            )

    def tell(self) -> None:
        """Tell how far it is, if that was not told."""
        if self._progress is not None and self._told != (self.files, self.bytes):
            self._told = self.files, self.bytes
            self._progress(self.files, self.bytes)


def _shown(size: int) -> str:
    return f"{size:,} bytes" if size < 1 << 20 else f"{size >> 20:,} MiB"
