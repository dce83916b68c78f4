"""The hook client: sends one event of a coding agent to the daemon. Owns the client protocol.

An agent runs this file by `python -I -S` at every tool call. So it imports almost nothing of the
standard library, nothing of this package and nothing from the agent's directory. It never blocks
the agent: it always exits with 0, and failures go to a log file. A script is compiled at each
start, so rarely needed code is in `spawn`.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

FILE = os.path.abspath(__file__)
DIRECT = "AGENT_CHECKPOINT_HOOK_DIRECT"
IDLE = "AGENT_CHECKPOINT_HOOK_IDLE"
SECONDS = "AGENT_CHECKPOINT_HOOK_SECONDS"
STORE = "AGENT_CHECKPOINT_STORE"
LOCATION_VARIABLES = (
    "HOME",
    "AGENT_CHECKPOINT_HOME",
    "AGENT_CHECKPOINT_HOST",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
)
"""Variables that determine paths: the daemon serves only clients with the same values."""
SECRET = "AGENT_CHECKPOINT_SECRET"  # noqa: S105 - the name of it
PROJECTS = ("CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR")

MAX_EVENT_BYTES = 64 << 20
_MAX_LOG_BYTES = 256 << 10
_DEFAULT_SECONDS = 5.0
_REPLY_TIMEOUT = 1.0
STILL_SAVING = "Saving takes long; it continues in the background."


def main(arguments: list[str]) -> int:
    """Save the event on stdin; always return 0."""
    agent = arguments[0] if arguments else ""
    store = arguments[2] if arguments[1:2] == ["--store"] and len(arguments) > 2 else ""
    try:
        deadline = monotonic() + seconds()
        event = _read(deadline)
        if event is not None:
            submit(agent, event, deadline, store)
    except BaseException as error:  # also bugs: the agent must not fail because of the hook
        log_failure(f"{agent or 'hook'}: {type(error).__name__}: {error}")
    finally:
        if agent not in ("claude-code", "codex"):
            _write(1, b"{}\n")  # Gemini CLI requires JSON on stdout
    return 0


def submit(agent: str, event: bytes, deadline: float, store: str = "") -> None:
    """Have an event saved by the daemon, or by a child process if there is no daemon."""
    store = absolute_store(store or os.environ.get(STORE, ""))  # the daemon has another cwd
    request = build_request(agent, event, store)
    # A third-party backend may need environment variables that the daemon does not get.
    is_served = sys.platform == "linux" and not os.environ.get(DIRECT) and _is_here(store)
    if not is_served or not _save_by_daemon(request, deadline):
        find_package()
        from agent_checkpoint.agents.hook.spawn import save_in_child

        save_in_child(request, deadline)


def seconds() -> float:
    """Return how many seconds the agent may wait, for all steps together."""
    try:
        found = float(os.environ.get(SECONDS) or _DEFAULT_SECONDS)
    except ValueError:
        return _DEFAULT_SECONDS
    return min(max(found, 0.05), 3600.0) if found == found else _DEFAULT_SECONDS  # NaN


def build_request(agent: str, event: bytes, store: str = "") -> bytes:
    """Return the encoded request to save an event."""
    get = os.environ.get
    project = next((found for name in PROJECTS if (found := get(name))), "")
    fields = [
        agent,
        store,
        project,
        get(SECRET, ""),
        *(get(name, "") for name in LOCATION_VARIABLES),
    ]
    head = b"\0".join(os.fsencode(field.replace("\0", "")) for field in fields)
    return b"%d %d\n%b%b" % (len(head), len(event), head, event)


def _is_here(store: str) -> bool:
    """Tell whether a store is a local directory of a built-in backend."""
    return "://" not in store or store.startswith(("sqlite://", "file://"))


def absolute_store(store: str) -> str:
    """Return a store path or URL that is valid in any working directory."""
    if not store or "://" in store:
        return store
    return os.path.abspath(os.path.expanduser(store))


# -- the daemon ------------------------------------------------------------------------------------


def _save_by_daemon(request: bytes, deadline: float) -> bool:
    """Have the daemon save a request, started if it is not running; tell whether it did."""
    directory = open_state_dir()
    if directory is None:
        return False
    try:
        connection = _connect(directory, deadline)
        if connection is None:
            find_package()
            from agent_checkpoint.agents.hook.spawn import start_daemon

            start_daemon(deadline)
            connection = _connect(directory, deadline)
        return connection is not None and _send_request(connection, request, deadline)
    finally:
        os.close(directory)


def _send_request(connection: _socket.socket, request: bytes, deadline: float) -> bool:
    try:
        connection.settimeout(min(remaining(deadline), _REPLY_TIMEOUT))
        connection.sendall(request)
        if connection.recv(1) != b"+":
            return False
    except OSError:  # it does not respond, is stopping, or was killed
        return False
    try:
        connection.settimeout(remaining(deadline))
        return bool(connection.recv(1))
    except ConnectionError:
        return False
    except OSError:
        log_failure(STILL_SAVING)
        return True


def _connect(directory: int, deadline: float) -> _socket.socket | None:
    import _socket  # `socket` takes as long to import as everything else

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(min(remaining(deadline), _REPLY_TIMEOUT))
    try:
        connection.connect(f"/proc/self/fd/{directory}/{socket_name()}")
    except OSError:
        connection.close()
        return None
    return connection


def remaining(deadline: float) -> float:
    """Return the seconds left until a deadline; never 0, which would mean non-blocking."""
    return max(deadline - monotonic(), 0.001)


def wait_readable(fd: int, deadline: float) -> bool:
    """Wait until a descriptor is readable or closed; tell whether that was before the deadline."""
    import select

    waiting = select.poll()  # `select` is limited to descriptors below 1024
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(remaining(deadline) * 1000))


# -- paths, for client and daemon ------------------------------------------------------------------


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
    """Open the state directory, created if missing; None if other users can access it."""
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
    """Create a directory and its parents, each with mode 0700: the umask may allow others."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make(above)
    try:  # noqa: SIM105
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def socket_name() -> str:
    """Return the name of the socket: one for each installed version and host."""
    return f"{os.uname().nodename[:40]}-{install_signature()}.sock"


def install_signature() -> str:
    """Return a signature of the installed version: the stat signature of this file."""
    found = os.stat(FILE)
    return f"{found.st_dev:x}-{found.st_ino:x}-{found.st_mtime_ns:x}"


def log_file() -> str | None:
    """Return the path of the log of failures."""
    path = state_directory()
    return None if path is None else f"{path}/hook.log"


def log_failure(text: str) -> None:
    """Append a line to the log; a long log is rotated."""
    import time

    when = time.strftime("%Y-%m-%d %H:%M:%S")
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
        pass  # such as a full disk: there is nowhere else to report it


def find_package() -> None:
    """Make this package and its dependencies importable if Python runs with -S."""
    if not sys.flags.no_site or "site" in sys.modules:
        return
    # Before site-packages, which may have another version of this package.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(FILE)))))
    import site

    site.main()


def _read(deadline: float) -> bytes | None:
    """Read stdin; None if it is a terminal."""
    if os.isatty(0):
        return None
    pieces: list[bytes] = []
    size = 0
    while True:
        if not wait_readable(0, deadline):
            raise TimeoutError(f"timeout reading the event from stdin after {size:,} bytes")
        piece = os.read(0, 1 << 20)
        if not piece:
            break
        size += len(piece)
        if size <= MAX_EVENT_BYTES:  # the rest is read, too: the agent may not expect a closed pipe
            pieces.append(piece)
    if size > MAX_EVENT_BYTES:
        raise ValueError(f"the event has more than {MAX_EVENT_BYTES:,} bytes")
    return b"".join(pieces)


def _write(fd: int, text: bytes) -> None:
    try:  # noqa: SIM105 - `contextlib` is slow to import
        os.write(fd, text)
    except OSError:
        pass


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        find_package()
        from agent_checkpoint.agents.hook.daemon import serve

        serve(int(sys.argv[2]))
    else:
        main(sys.argv[1:])
    # The shutdown of Python takes longer than all of the above.
    os._exit(0)
