"""What the hook client and the daemon agree on: the socket, the requests, the environment.

The client imports this module at every tool call, so it imports almost nothing.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

CLIENT = f"{os.path.dirname(os.path.abspath(__file__))}/client.py"
"""The program that agents run at every event, and that runs the daemon."""
IDLE = "AGENT_CHECKPOINT_HOOK_IDLE"
LOCATION_VARIABLES = (
    "HOME",
    "AGENT_CHECKPOINT_HOME",
    "AGENT_CHECKPOINT_HOST",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
)
"""Variables that determine paths: the daemon serves only clients with the same values."""
SECRET = "AGENT_CHECKPOINT_SECRET"  # noqa: S105 - the name of a variable

MAX_EVENT_BYTES = 64 << 20
STILL_SAVING = "The save is slow and continues in the background."


def socket_name() -> str:
    """Return the name of the socket, which is specific to the installed version and the host."""
    return f"{os.uname().nodename[:40]}-{install_signature()}.sock"


def install_signature() -> str:
    """Return a signature of the installed version: the stat signature of the client."""
    found = os.stat(CLIENT)
    return f"{found.st_dev:x}-{found.st_ino:x}-{found.st_mtime_ns:x}"


def remaining(deadline: float) -> float:
    """Return the seconds until a deadline; never 0, which would mean non-blocking."""
    return max(deadline - monotonic(), 0.001)


def wait_readable(fd: int, deadline: float) -> bool:
    """Wait until a descriptor is readable or closed; return False at the deadline."""
    import select

    waiting = select.poll()  # `select` is limited to descriptors below 1024
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(remaining(deadline) * 1000))


def load_site_packages() -> None:
    """Make the dependencies of this package importable if Python runs with -S."""
    if sys.flags.no_site and "site" not in sys.modules:
        import site

        site.main()
