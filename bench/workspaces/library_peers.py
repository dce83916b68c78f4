"""Peers that are Python libraries, each in a process of its own: ProcessFork and AgentFS.

    python -m bench.workspaces.library_peers {processfork|agentfs} DIRECTORY STORE

A command a line comes in, a line of JSON goes out, as of `worker.py`. ProcessFork stores a
directory. AgentFS is a file system within a database, into which an agent writes: its first
snapshot is to write every file, and a snapshot is a copy of the database, as its users make it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.turns import serve
from bench.workspaces.worker import taken

MODULES = {"processfork": "processfork", "agentfs": "agentfs_sdk"}
"""The peers, and the module of each."""


def missing() -> dict[str, str]:
    """Which libraries are not here, each with what to do about it."""
    return {
        name: f"{module} is not installed (make bench installs it)"
        for name, module in MODULES.items()
        if importlib.util.find_spec(module) is None
    }


class ProcessFork:
    """A store of images; each snapshot has the one before as its parent."""

    def __init__(self, directory: str, store: str) -> None:
        import processfork

        self._library: Any = processfork
        self._directory, self._path = directory, store
        self._store: Any = None
        self._last: list[str] = []

    def first(self) -> dict[str, Any]:
        """Open the store, and take the first snapshot."""
        return taken(lambda: self._snapshot(self._library.PfStore.open(self._path)))

    def snapshot(self, changed: str) -> dict[str, Any]:
        """Take another snapshot: it looks for the change by itself."""
        return taken(lambda: self._snapshot(self._store))

    def _snapshot(self, store: Any) -> None:
        self._store = store
        image = self._library.snapshot_filesystem(
            store, "bench", self._directory, {}, [], parents=self._last or None
        )
        self._last = [image]


class AgentFS:
    """A file system in a database."""

    def __init__(self, directory: str, store: str) -> None:
        import agentfs_sdk

        self._library: Any = agentfs_sdk
        self._directory, self._path = Path(directory), Path(store)
        self._loop = asyncio.new_event_loop()
        self._files: Any = None
        self._copies = 0

    def first(self) -> dict[str, Any]:
        """Open the database, write every file, and copy it."""
        return taken(lambda: self._loop.run_until_complete(self._first()))

    def snapshot(self, changed: str) -> dict[str, Any]:
        """Write the changed file, and copy the database."""
        return taken(lambda: self._loop.run_until_complete(self._write_and_copy([changed])))

    async def _first(self) -> None:
        self._path.mkdir()
        options = self._library.AgentFSOptions(path=str(self._path / "files.db"))
        self._files = (await self._library.AgentFS.open(options)).fs
        names = [
            str(Path(folder, name).relative_to(self._directory))
            for folder, _, names in os.walk(self._directory)
            for name in names
        ]
        await self._write_and_copy(names)

    async def _write_and_copy(self, names: list[str]) -> None:
        for name in names:
            await self._files.write_file(f"/{name}", (self._directory / name).read_bytes())
        # One copy is kept, and not one a snapshot: its users delete them, or the disk is full.
        for file in self._path.glob("files.db*"):
            shutil.copyfile(file, self._path / f"copy-{file.name}")


def main() -> int:
    """Serve until the pipe is closed."""
    name, directory, store = sys.argv[1:]
    peer: Any = {"processfork": ProcessFork, "agentfs": AgentFS}[name](directory, store)
    return serve(peer)


if __name__ == "__main__":
    sys.exit(main())
