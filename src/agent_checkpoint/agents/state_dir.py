"""The state directory of the user: sockets, locks, rewind journals and the log of failures.

The hook client imports this module at every tool call, so it imports `os` only.
"""

from __future__ import annotations

import os

LOG_TIME = "%Y-%m-%d %H:%M:%S"
"""The local time at the beginning of a line of the log."""
_MAX_LOG_BYTES = 256 << 10


def state_directory() -> str | None:
    """Return the directory of sockets, locks and the log; None if it cannot be determined."""
    given = os.environ.get("AGENT_CHECKPOINT_HOME")
    if given:
        return f"{given}/hook" if os.path.isabs(given) else None
    state = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")
    if not os.path.isabs(state):
        state = f"{home}/.local/state"
    return f"{state}/agent-checkpoint" if os.path.isabs(state) else None


def open_state_dir() -> int | None:
    """Open the state directory, creating it if missing; None if other users can access it."""
    path = state_directory()
    if path is None:
        return None
    try:
        if not os.path.isdir(path):
            _make(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        found = os.fstat(fd)
    except OSError:
        return None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(fd)
        return None
    return fd


def _make(path: str) -> None:
    """Create a directory and its parents with mode 0700, whatever the umask."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make(above)
    try:  # noqa: SIM105
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def log_file() -> str | None:
    """Return the path of the log of failures."""
    path = state_directory()
    return None if path is None else f"{path}/hook.log"


def log_failure(text: str) -> None:
    """Append a line to the log, which is rotated when it is large."""
    import time

    when = time.strftime(LOG_TIME)
    line = f"{when} {text[:2000]}".replace("\n", " ") + "\n"
    try:
        directory = open_state_dir()
        if directory is None:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            # Opening a pipe would block until it has a reader.
            fd = os.open("hook.log", flags | os.O_NONBLOCK, 0o600, dir_fd=directory)
            try:
                found = os.fstat(fd)
                if found.st_mode & 0o170000 != 0o100000:
                    return
                if found.st_size > _MAX_LOG_BYTES:
                    os.rename("hook.log", "hook.log.1", src_dir_fd=directory, dst_dir_fd=directory)
                os.write(fd, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(fd)
        finally:
            os.close(directory)
    except OSError:
        pass  # for example a full disk; the failure cannot be reported elsewhere
