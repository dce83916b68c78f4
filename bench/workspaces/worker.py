"""Our side of P1 to P5 in a process of its own: a command a line comes in, a line of JSON goes out.

    AGENT_CHECKPOINT_HOME=… python -m bench.workspaces.worker {fast|plain} DIRECTORY STORE

Times are wall nanoseconds of the work alone; nothing is written to the pipe while a clock runs.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import agent_checkpoint
from bench.figures import timed
from bench.sides import FAST_MODULES, pragmas
from bench.turns import serve

DURABILITY = "FULL"


class WorkspaceWorker:
    """One live workspace, watched."""

    def __init__(self, directory: str, store: str) -> None:
        from bench.ours import open_manager  # only here: it looks for the extra `fast`

        self.open_manager = open_manager
        self.directory = directory
        self.store = store
        self.new_workspace: Any = agent_checkpoint.Workspace  # imports it, before any clock runs
        self.workspace: Any = None
        self.tree: Any = None
        self.held = ExitStack()

    def watch_parts(self) -> dict[str, Any]:
        """From now on tell the parts of snapshots, which takes a little time."""
        from bench.workspaces.parts import Parts

        self.parts = self.held.enter_context(Parts())
        return {}

    def taken_parts(self) -> dict[str, int]:
        """The nanoseconds of the parts of the last snapshot."""
        return self.parts.take()

    def first(self) -> dict[str, Any]:
        """Open the store and the workspace, and take the first snapshot: all of it is timed."""
        gc.collect()

        def work() -> None:
            self.manager = self.open_manager(Path(self.store), DURABILITY)
            self.workspace = self.new_workspace(
                self.directory, store=self.manager.store, watch=True
            )
            self.tree = self.workspace.snapshot()

        return {
            **taken(work),
            "id": self.tree.id,
            "pragmas": pragmas(),
            "accelerators": [name for name in FAST_MODULES if sys.modules.get(name)],
        }

    def snapshot(self) -> dict[str, Any]:
        """Take another snapshot, which is what `restore` goes back to."""
        gc.collect()

        def work() -> None:
            self.tree = self.workspace.snapshot()

        return {**taken(work), "id": self.tree.id}

    def restore(self) -> dict[str, Any]:
        """Go back to the last snapshot."""
        gc.collect()
        return taken(lambda: self.workspace.restore(self.tree))

    def hold(self) -> dict[str, Any]:
        """Hold the directory until it is released."""
        gc.collect()
        held = self.workspace.hold()
        return taken(lambda: self.held.enter_context(held))

    def release(self) -> dict[str, Any]:
        """End the hold."""
        self.held.close()
        return {}

    def fork(self, driver: str, path: str, shows: str) -> dict[str, Any]:
        """Fork to the path and close the fork; `shows` is a file that must be seen there."""
        gc.collect()
        times: dict[str, dict[str, int]] = {}
        fork: Any = None

        def work() -> None:
            nonlocal fork
            fork = self.workspace.fork(path, driver=driver)

        try:
            times[driver] = taken(work)
            seen = Path(path, shows).is_file()
            times["close"] = taken(fork.close)
        except (agent_checkpoint.CheckpointError, OSError) as error:
            return {"failed": f"{type(error).__name__}: {error}"}
        if not seen:
            return {"failed": "the fork does not show its files at its path"}
        return {**times, "left_mounted": os.path.ismount(path)}

    def close(self) -> dict[str, Any]:
        """Close the workspace and the store."""
        self.workspace.close()
        self.manager.close()
        return {}


def taken(work: Callable[[], Any]) -> dict[str, int]:
    """The wall and processor nanoseconds of one call."""
    before = time.process_time_ns()
    nanoseconds = timed(work)
    return {"ns": nanoseconds, "cpu_ns": time.process_time_ns() - before}


def main() -> int:
    """Serve until the pipe is closed."""
    extra, directory, store = sys.argv[1:]
    if extra == "plain":
        for module in FAST_MODULES:
            sys.modules[module] = None  # type: ignore[assignment]
    return serve(WorkspaceWorker(directory, store))


if __name__ == "__main__":
    sys.exit(main())
