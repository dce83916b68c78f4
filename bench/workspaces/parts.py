"""What the parts of a snapshot take in its main thread: of the rows that miss their target.

The functions at the borders of the layers are replaced by ones that tell which of them runs. Time
is charged to the innermost one, and so is waiting in it for the disk and for other threads.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import Any
from unittest.mock import patch

from agent_checkpoint import Workspace
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.workspace.scan import scan_cache, walk
from agent_checkpoint.workspace.scan.reading.background_writer import BackgroundWriter
from agent_checkpoint.workspace.scan.reading.file_reader import FileReader
from agent_checkpoint.workspace.scan.scan_cache import ScanCache
from agent_checkpoint.workspace.scan.scanner import Scanner

REST = "the rest: locks, records, the key"
WALK = "events; list, stat and watch directories"
START = "start reader processes"
READ = "read files, or wait for them"
BUILD = "build directories"
STORE = "hand files over to be stored, and wait for it"
PACK = "choose and pack new objects"
COMMIT = "commit"
INDEX = "encode and write the stat index"
BORDERS: tuple[tuple[Any, str, str], ...] = (
    (Workspace, "snapshot", REST),
    (Scanner, "scan", WALK),
    (FileReader, "_start_processes", START),
    (FileReader, "read", READ),
    (FileReader, "wait", READ),
    (walk, "assemble", BUILD),
    (BackgroundWriter, "store", STORE),
    (BackgroundWriter, "store_packed", STORE),
    (Writer, "wait", STORE),
    (Writer, "flush", PACK),
    (SQLiteBackend, "append", COMMIT),
    (scan_cache, "encode_records", INDEX),
    (ScanCache, "_write", INDEX),
)


class Parts:
    """The time of each part, while it is entered."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()
        self._running: list[str] = []
        self._since = 0
        self._thread = threading.get_ident()
        self._patches = ExitStack()

    def __enter__(self) -> Parts:
        for owner, name, part in BORDERS:
            told = self._telling(getattr(owner, name), part)
            self._patches.enter_context(patch.object(owner, name, told))
        return self

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def take(self) -> dict[str, int]:
        """The nanoseconds of each part since the last call."""
        taken, self._taken = self._taken, Counter()
        return dict(taken)

    def _telling(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def telling(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **options)
            self._charge()
            self._running.append(part)
            try:
                return function(*args, **options)
            finally:
                self._charge()
                self._running.pop()

        return telling

    def _charge(self) -> None:
        now = time.perf_counter_ns()
        if self._running:
            self._taken[self._running[-1]] += now - self._since
        self._since = now
