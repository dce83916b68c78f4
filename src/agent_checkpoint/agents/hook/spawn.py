"""Starts the hook daemon, or a child that saves one event, and detaches them from the agent.

Detaching is needed because an agent may wait until all processes have closed its pipes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

from agent_checkpoint.agents.hook.protocol import (
    CLIENT,
    IDLE,
    LOCATION_VARIABLES,
    SECRET,
    STILL_SAVING,
    load_site_packages,
    remaining,
    wait_readable,
)
from agent_checkpoint.agents.state_dir import log_failure, open_state_dir

_STARTS_WITHIN = 5.0
_KEPT = frozenset(
    (*LOCATION_VARIABLES, SECRET, IDLE, "PATH", "TMPDIR", "TZ", "LANG", "LD_LIBRARY_PATH")
) | {
    "AGENT_CHECKPOINT_BUDGET",  # of `agents/upkeep`, which is not imported here
    "COVERAGE_PROCESS_CONFIG",  # for test coverage of child processes
}


def start_daemon(deadline: float) -> None:
    """Start the daemon; wait until it listens, exits, or the deadline passes."""
    ready, write = os.pipe()
    if os.fork() == 0:
        try:
            _detach(write)
            os.set_inheritable(write, True)
            command = [sys.executable, "-I", "-S", CLIENT, "--serve", str(write)]
            os.execve(sys.executable, command, _environment())  # noqa: S606 - our own file
        finally:
            os._exit(127)
    os.close(write)
    wait_readable(ready, min(deadline, time.monotonic() + _STARTS_WITHIN))
    os.close(ready)


def save_in_child(request: bytes, deadline: float) -> None:
    """Save an event in a child process, which continues after the deadline."""
    done, write = os.pipe()
    client = os.getpid()
    if os.fork() == 0:
        try:
            _detach(write)
            # Without a state directory no lock is possible: a timer limits the number of children.
            if open_state_dir() is None:
                signal.setitimer(signal.ITIMER_REAL, remaining(deadline))
            load_site_packages()
            from agent_checkpoint.agents.hook.event_saver import EventSaver, parse_request

            EventSaver(watch=False).save(
                parse_request(request), timeout=remaining(deadline), client=client
            )
        except BaseException as error:
            log_failure(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    os.close(write)
    if not wait_readable(done, deadline):
        log_failure(STILL_SAVING)
    os.close(done)


def _environment() -> dict[str, str]:
    """Return the environment of the daemon, without secrets of the agent."""
    return {
        name: value for name, value in os.environ.items() if name in _KEPT or name.startswith("LC_")
    }


def _detach(kept: int) -> None:
    """Detach from the agent: start a new session and close its descriptors."""
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
