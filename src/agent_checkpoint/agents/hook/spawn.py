"""Processes that go on without the agent: the one that stays, and a child that saves one event.

Owns how they get apart from it: the agent may wait until nobody has its pipes open.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from agent_checkpoint.agents.hook.client import (
    FILE,
    GOES_ON,
    IDLE,
    PLACES,
    SECRET,
    is_ready,
    left,
    open_state,
    tell_failure,
)

_STARTS_WITHIN = 5.0
_KEPT = frozenset((*PLACES, SECRET, IDLE, "PATH", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH")) | {
    "COVERAGE_PROCESS_CONFIG"
}  # by which tests measure child processes


def start_server(until: float) -> None:
    """Start the process that stays; wait until it listens or is gone, or it is time."""
    ready, write = os.pipe()
    if os.fork() == 0:
        try:
            _leave(write)
            os.set_inheritable(write, True)
            command = [sys.executable, "-I", "-S", FILE, "--serve", str(write)]
            os.execve(sys.executable, command, _environment())  # noqa: S606 - our own file
        finally:
            os._exit(127)
    os.close(write)
    is_ready(ready, min(until, time.monotonic() + _STARTS_WITHIN))
    os.close(ready)


def save_in_child(request: bytes, until: float) -> None:
    """Have a child save an event, which goes on when the agent has waited long enough."""
    done, write = os.pipe()
    if os.fork() == 0:
        try:
            _leave(write)
            if open_state() is None:  # no place for a lock: nothing else keeps them from piling up
                signal.setitimer(signal.ITIMER_REAL, left(until))
            from agent_checkpoint.agents.hook.event_saver import Keeper, parse_request

            Keeper(watch=False).save(parse_request(request), patience=left(until))
        except BaseException as error:
            tell_failure(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.close(write)
    if not is_ready(done, until):
        tell_failure(GOES_ON)
    os.close(done)


def _environment() -> dict[str, str]:
    """Return what the daemon has to know; it outlives the agent, whose secrets are not its own."""
    return {
        name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")
    }


def _leave(kept: int) -> None:
    """Be a process apart, with nothing open that was the agent's: no pipe and no lock."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    try:
        others = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        others = list(range(4096))
    for fd in others:
        if fd > 2 and fd != kept:
            with suppress(OSError):
                os.close(fd)
