"""One event of a coding agent, handed to the process that saves it. Owns that hand-over.

An agent starts it at every tool call, as a file, by `python -I -S`. So it loads next to nothing of
the standard library, nothing of this package and nothing from where the agent works. It never
stops the agent: it always ends well, and what went wrong is in a file. As a file it is compiled at
each start: what is seldom needed is in `spawn`.
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
PLACES = (
    "HOME",
    "AGENT_CHECKPOINT_HOME",
    "AGENT_CHECKPOINT_HOST",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
)
"""What says where everything is: whoever saves for this process must have the same."""
SECRET = "AGENT_CHECKPOINT_SECRET"  # noqa: S105 - the name of it
PROJECTS = ("CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR")

MOST_EVENT = 64 << 20
_MOST_LOG = 256 << 10
_PATIENCE = 5.0
_ANSWERS_WITHIN = 1.0
GOES_ON = "It takes long to save, and goes on while the agent works."


def main(arguments: list[str]) -> int:
    """Take the event from the standard input; return 0, whatever happens."""
    agent = arguments[0] if arguments else ""
    store = arguments[2] if arguments[1:2] == ["--store"] and len(arguments) > 2 else ""
    try:
        until = monotonic() + seconds()
        event = _read(until)
        if event is not None:
            hand_over(agent, event, until, store)
    except BaseException as error:  # also what a bug raises: the agent must not suffer from it
        tell_failure(f"{agent or 'hook'}: {type(error).__name__}: {error}")
    finally:
        if agent not in ("claude-code", "codex"):
            _write(1, b"{}\n")  # Gemini CLI wants JSON, and nothing but JSON
    return 0


def hand_over(agent: str, event: bytes, until: float, store: str = "") -> None:
    """Have an event saved: by the process that watches the directory, or else by a child."""
    store = whole_name(store or os.environ.get(STORE, ""))  # the other process is elsewhere
    request = request_of(agent, event, store)
    # A backend of another package may need more of the environment than a daemon gets.
    is_served = sys.platform == "linux" and not os.environ.get(DIRECT) and _is_here(store)
    if not is_served or not _by_another(request, until):
        find_package()
        from agent_checkpoint.agents.hook.spawn import save_in_child

        save_in_child(request, until)


def seconds() -> float:
    """Return how long the agent may be kept waiting, for all steps together."""
    try:
        found = float(os.environ.get(SECONDS) or _PATIENCE)
    except ValueError:
        return _PATIENCE
    return min(max(found, 0.05), 3600.0) if found == found else _PATIENCE  # not a number


def request_of(agent: str, event: bytes, store: str = "") -> bytes:
    """Return all that must be known to save an event, as bytes."""
    get = os.environ.get
    project = next((found for name in PROJECTS if (found := get(name))), "")
    fields = [agent, store, project, get(SECRET, ""), *(get(name, "") for name in PLACES)]
    head = b"\0".join(os.fsencode(field.replace("\0", "")) for field in fields)
    return b"%d %d\n%b%b" % (len(head), len(event), head, event)


def _is_here(store: str) -> bool:
    """Tell whether a store is of a backend of this package: a directory on this machine."""
    return "://" not in store or store.startswith(("sqlite://", "file://"))


def whole_name(store: str) -> str:
    """Return the name of a store as it is understood from any directory."""
    if not store or "://" in store:
        return store
    return os.path.abspath(os.path.expanduser(store))


# -- the other process -----------------------------------------------------------------------------


def _by_another(request: bytes, until: float) -> bool:
    """Have another process save it, which is started if there is none; tell whether it did."""
    directory = open_state()
    if directory is None:
        return False
    try:
        connection = _connect(directory, until)
        if connection is None:
            find_package()
            from agent_checkpoint.agents.hook.spawn import start_server

            start_server(until)
            connection = _connect(directory, until)
        return connection is not None and _ask(connection, request, until)
    finally:
        os.close(directory)


def _ask(connection: _socket.socket, request: bytes, until: float) -> bool:
    try:
        connection.settimeout(min(left(until), _ANSWERS_WITHIN))
        connection.sendall(request)
        if connection.recv(1) != b"+":
            return False
    except OSError:  # it does not answer, is ending, or is killed
        return False
    try:
        connection.settimeout(left(until))
        return bool(connection.recv(1))
    except ConnectionError:
        return False
    except OSError:
        tell_failure(GOES_ON)
        return True


def _connect(directory: int, until: float) -> _socket.socket | None:
    import _socket  # `socket` takes as long to load as all the rest

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(min(left(until), _ANSWERS_WITHIN))
    try:
        connection.connect(f"/proc/self/fd/{directory}/{socket_name()}")
    except OSError:
        connection.close()
        return None
    return connection


def left(until: float) -> float:
    """Return how long may still be waited; never nothing, which would mean not to wait at all."""
    return max(until - monotonic(), 0.001)


def is_ready(fd: int, until: float) -> bool:
    """Wait until something can be read, or its end; tell whether that was in time."""
    import select

    waiting = select.poll()  # `select` itself knows no number above 1023
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(left(until) * 1000))


# -- names and places, for both processes ----------------------------------------------------------


def state_directory() -> str | None:
    """Return where sockets and the record of failures are; None if there is no place."""
    given = os.environ.get("AGENT_CHECKPOINT_HOME")
    if given:
        return f"{given}/hook" if os.path.isabs(given) else None
    state = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")
    if not os.path.isabs(state):
        state = f"{home}/.local/state"
    return f"{state}/agent-checkpoint" if os.path.isabs(state) else None


def open_state() -> int | None:
    """Return the directory, open and made if need be; None if it is not this user's alone."""
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
    """Make a directory, and those above: one by one, since the umask may let others in."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make(above)
    try:  # noqa: SIM105
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass


def socket_name() -> str:
    """Return the name of the socket: another one for each installed version, and each host."""
    return f"{os.uname().nodename[:40]}-{stamp()}.sock"


def stamp() -> str:
    """Return what differs as soon as another version is installed."""
    found = os.stat(FILE)
    return f"{found.st_dev:x}-{found.st_ino:x}-{found.st_mtime_ns:x}"


def log_file() -> str | None:
    """Return where failures are written down."""
    path = state_directory()
    return None if path is None else f"{path}/hook.log"


def tell_failure(text: str) -> None:
    """Write down what went wrong, in a line; what was written long ago is dropped."""
    import time

    when = time.strftime("%Y-%m-%d %H:%M:%S")
    line = f"{when} {text[:2000]}".replace("\n", " ") + "\n"
    try:
        directory = open_state()
        if directory is None:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            # Who opens a pipe waits until somebody reads.
            fd = os.open("hook.log", flags | os.O_NONBLOCK, 0o600, dir_fd=directory)
            try:
                found = os.fstat(fd)
                if found.st_mode & 0o170000 != 0o100000:
                    return
                if found.st_size > _MOST_LOG:
                    os.rename("hook.log", "hook.log.1", src_dir_fd=directory, dst_dir_fd=directory)
                os.write(fd, line.encode("utf-8", "backslashreplace"))
            finally:
                os.close(fd)
        finally:
            os.close(directory)
    except OSError:
        pass  # a full disk, perhaps: there is nobody else to tell


def find_package() -> None:
    """Make this package importable, with what is installed beside it, if Python is bare."""
    if not sys.flags.no_site or "site" in sys.modules:
        return
    # Before what is installed: another version of this package may be there, too.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(FILE)))))
    import site

    site.main()


def _read(until: float) -> bytes | None:
    """Return the standard input; None if a person sits there."""
    if os.isatty(0):
        return None
    pieces: list[bytes] = []
    size = 0
    while True:
        if not is_ready(0, until):
            raise TimeoutError(f"the event has not ended after {size:,} bytes")
        piece = os.read(0, 1 << 20)
        if not piece:
            break
        size += len(piece)
        if size <= MOST_EVENT:  # the rest is read as well: the agent may not expect a closed pipe
            pieces.append(piece)
    if size > MOST_EVENT:
        raise ValueError(f"an event has more than {MOST_EVENT:,} bytes")
    return b"".join(pieces)


def _write(fd: int, text: bytes) -> None:
    try:  # noqa: SIM105 - `contextlib` takes its time to load
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
    # What Python does at its end takes longer than what is above.
    os._exit(0)
