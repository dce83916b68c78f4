"""The process that does the upkeep of stores, beside the hook daemon or `watch`.

A process of its own, at a low priority: nobody waits for it, and it can be killed at any time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from agent_checkpoint.agents.hook.protocol import CLIENT
from agent_checkpoint.agents.state_dir import log_failure, open_state_dir

_NICENESS = 10


class UpkeepProcess:
    """Runs the upkeep of the stores that were written to, one after the other; thread-safe."""

    def __init__(self, **environment: str) -> None:
        """Start nothing yet.

        Args:
            environment: additional variables of the process.
        """
        self._environment = environment
        self._lock = threading.Lock()
        self._due: dict[str, None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._store = ""

    def saved(self, store: str) -> None:
        """Note that a checkpoint was written to a store."""
        with self._lock:
            self._due[store] = None

    def start(self) -> None:
        """Start the upkeep of the next store that is due, unless one is running."""
        with self._lock:
            if not self._due or self._is_running():
                return
            self._store = next(iter(self._due))
            del self._due[self._store]
            command = [sys.executable, "-I", "-S", CLIENT, "--upkeep", self._store]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, **self._environment},
                )
            except OSError as error:
                log_failure(f"Cannot start the upkeep of the store: {error}")

    def interrupt(self) -> None:
        """Kill the process, which may hold the lock of the store; the upkeep is due again."""
        with self._lock:
            if self._is_running() and self._process is not None:
                self._process.kill()
                self._due[self._store] = None

    @property
    def is_pending(self) -> bool:
        """Whether an upkeep is running or due."""
        with self._lock:
            return bool(self._due) or self._is_running()

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


def main(name: str) -> None:
    """Do the upkeep of a store; failures are logged.

    Args:
        name: the path or URL of the store; empty for the default store.
    """
    from agent_checkpoint.agents.session_lock import try_lock
    from agent_checkpoint.agents.upkeep.disk_budget import lock_name
    from agent_checkpoint.agents.upkeep.upkeep import keep_to_budget
    from agent_checkpoint.backends.registry import open_named
    from agent_checkpoint.store.store import Store

    os.nice(_NICENESS)
    directory: Any = open_state_dir()
    if directory is None:
        return
    try:
        backend = open_named(name or None)
        if try_lock(directory, lock_name(backend)) is None:
            return  # another process is at it; the lock is held until this one exits
        result = keep_to_budget(Store(backend))
        if result is not None and result.error is not None:
            log_failure(f"Automatic retention failed: {result.error}")
    except Exception as error:
        log_failure(f"Automatic retention failed: {type(error).__name__}: {error}")
    finally:
        with suppress(OSError):
            os.close(directory)
