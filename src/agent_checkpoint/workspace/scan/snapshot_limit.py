"""The limit on the bytes that one snapshot reads, and its progress reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import Hint, WorkspaceError

Progress = Callable[[int, int], None]
"""Called during a snapshot with the numbers of files and bytes read so far."""

_REPORT_FILES, _REPORT_BYTES = 256, 4 << 20
"""Progress is reported after this many more files or bytes."""


class SnapshotLimit:
    """Counts the bytes that a snapshot reads and enforces the limit."""

    def __init__(self, limit: int | None, progress: Progress | None) -> None:
        """Set a limit.

        Args:
            limit: the number of bytes that one snapshot may read; None for no limit.
            progress: called with the numbers of files and bytes read so far.
        """
        self._limit = limit
        self._progress = progress
        self.begin()

    def begin(self, *, is_limited: bool = True) -> None:
        """Reset the counts for a snapshot.

        Not limited after a restore, which has just written the files.
        """
        self.files = self.bytes = 0
        self._reported = (0, 0)
        self._max_bytes = self._limit if is_limited else None
        self._bytes_by_top: Counter[bytes] = Counter()

    def count(self, directory: bytes, files: int, size: int) -> None:
        """Count files of a directory that are about to be read.

        Raises:
            WorkspaceError: the limit is exceeded.
        """
        self.files += files
        self.bytes += size
        self._bytes_by_top[directory.partition(b"/")[0]] += size
        reported_files, reported_bytes = self._reported
        if (
            self.files - reported_files >= _REPORT_FILES
            or self.bytes - reported_bytes >= _REPORT_BYTES
        ):
            self.report()
        if self._max_bytes is not None and self.bytes > self._max_bytes:
            self.report()
            with block_forks():
                from agent_checkpoint.formatting import format_size

            largest = ", ".join(
                f"{os.fsdecode(top) or 'files in the root'} ({format_size(size)})"
                for top, size in self._bytes_by_top.most_common(3)
            )
            raise WorkspaceError(
                f"Snapshot limit exceeded: more than {format_size(self._max_bytes)} of new "
                f"files. Largest so far: {largest}.",
                hint=Hint(
                    "Exclude generated files with ignore= or .checkpointignore, or raise limit=.",
                    "limit",
                ),
            )

    def report(self) -> None:
        """Report the progress, unless it is unchanged since the last report."""
        if self._progress is not None and self._reported != (self.files, self.bytes):
            self._reported = self.files, self.bytes
            self._progress(self.files, self.bytes)
