"""A terminal that a coding agent runs on, and its keyboard."""

import os
import pty
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_SECONDS = 600  # only against hangs
_EXIT_SECONDS = 20


def wait_until(condition: "Callable[[], Any]", why: "Callable[[], str]" = str) -> None:
    """Wait until a condition holds; fail if it never does."""
    until = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < until, why()
        time.sleep(0.05)


class Terminal:
    """An agent on a terminal that a test types on."""

    def __init__(self, command: "list[str]", cwd: Path, environment: "dict[str, str]") -> None:
        self._main, other = pty.openpty()
        self.drawn = b""
        """All that the agent has drawn so far."""
        self.process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**environment, "TERM": "xterm-256color"},
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        # Read all the time: an agent whose screen is full stands still.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the agent has ended
            while True:
                self.drawn += os.read(self._main, 1 << 16)

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def wait_for(self, condition: "Callable[[], Any]") -> None:
        """Wait until a condition holds."""
        wait_until(condition, lambda: self.drawn[-4000:].decode(errors="replace"))

    def close(self) -> None:
        """Close the window: the agent is told to end; kill it if it does not.

        The process that was started may end before its child, which still runs hooks then.
        """
        until = time.monotonic() + _EXIT_SECONDS
        self._signal(signal.SIGHUP)
        while self.process.poll() is None or self._signal(0):
            if time.monotonic() > until:
                self._signal(signal.SIGKILL)
            time.sleep(0.05)
        os.close(self._main)
        self._reader.join()

    def _signal(self, number: int) -> bool:
        """Send a signal to the agent and its children; return whether there are any."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return False
        return True
