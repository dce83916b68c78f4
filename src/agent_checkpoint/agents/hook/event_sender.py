"""Sends one event of a coding agent to the daemon. Never fails, so that it cannot block the agent.

Runs at every tool call, so it imports almost nothing; failures are written to the log.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from agent_checkpoint.agents.hook.protocol import (
    LOCATION_VARIABLES,
    MAX_EVENT_BYTES,
    SECRET,
    STILL_SAVING,
    remaining,
    socket_name,
    wait_readable,
)
from agent_checkpoint.agents.state_dir import log_failure, open_state_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

DIRECT = "AGENT_CHECKPOINT_HOOK_DIRECT"
SECONDS = "AGENT_CHECKPOINT_HOOK_SECONDS"
STORE = "AGENT_CHECKPOINT_STORE"
PROJECTS = ("CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR")
HOME = "COPILOT_HOME"
"""The directory of an agent that does not name its transcript in each event."""

_SILENT = ("claude-code", "codex", "qwen", "copilot", "opencode", "cline", "goose")
"""Agents that expect no output."""
_DEFAULT_SECONDS = 5.0
_REPLY_TIMEOUT = 1.0


def run() -> None:
    """Save the event on stdin, as the command `agent-checkpoint-hook AGENT` of plugins does."""
    main(sys.argv[1:])
    os._exit(0)  # the shutdown of Python takes longer than sending


def main(arguments: list[str]) -> int:
    """Save the event on stdin; always return 0."""
    agent = arguments[0] if arguments else ""
    store = arguments[2] if arguments[1:2] == ["--store"] and len(arguments) > 2 else ""
    try:
        deadline = monotonic() + seconds()
        event = _read(deadline)
        if event is not None:
            submit(agent, event, deadline, store)
    except BaseException as error:  # including bugs: the agent must not fail because of the hook
        log_failure(f"{agent or 'hook'}: {type(error).__name__}: {error}")
    finally:
        if agent not in _SILENT:
            _write(1, b"{}\n")  # Gemini CLI requires JSON on stdout
    return 0


def submit(agent: str, event: bytes, deadline: float, store: str = "") -> None:
    """Save an event through the daemon, or in a child process if there is no daemon."""
    store = absolute_store(store or os.environ.get(STORE, ""))  # the daemon has a different cwd
    request = build_request(agent, event, store)
    # A third-party backend or a key may need environment variables that the daemon does not get.
    is_served = sys.platform == "linux" and not os.environ.get(DIRECT) and _is_here(store)
    if not is_served or not _save_by_daemon(request, deadline):
        from agent_checkpoint.agents.hook.spawn import save_in_child

        save_in_child(request, deadline)


def seconds() -> float:
    """Return the maximum number of seconds that the agent waits for the hook."""
    try:
        found = float(os.environ.get(SECONDS) or _DEFAULT_SECONDS)
    except ValueError:
        return _DEFAULT_SECONDS
    return min(max(found, 0.05), 3600.0) if found == found else _DEFAULT_SECONDS  # NaN


def build_request(agent: str, event: bytes, store: str = "") -> bytes:
    """Return the encoded request to save an event."""
    get = os.environ.get
    project = next((found for name in PROJECTS if (found := get(name))), "")
    if agent == "goose":  # not all of its events name the directory in which it runs the hook
        project = os.getcwd()
    fields = [
        agent,
        store,
        project,
        get(SECRET, ""),
        *(get(name, "") for name in LOCATION_VARIABLES),
        *([get(HOME, "")] if get(HOME) else []),  # last: older daemons do not know it
    ]
    head = b"\0".join(os.fsencode(field.replace("\0", "")) for field in fields)
    return b"%d %d\n%b%b" % (len(head), len(event), head, event)


def _is_here(store: str) -> bool:
    """Return whether a store is a local directory of a built-in backend, without a variable."""
    is_local = "://" not in store or store.startswith(("sqlite://", "file://"))
    return is_local and "encryption_key_env=" not in store


def absolute_store(store: str) -> str:
    """Return a store path or URL that is valid in any working directory."""
    if not store or "://" in store:
        return store
    return os.path.abspath(os.path.expanduser(store))


def _save_by_daemon(request: bytes, deadline: float) -> bool:
    """Send a request to the daemon, which is started if needed; return whether it was accepted."""
    directory = open_state_dir()
    if directory is None:
        return False
    try:
        connection = _connect(directory, deadline)
        if connection is None:
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
    except OSError:  # the daemon does not respond, is stopping, or was killed
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
    import _socket  # importing `socket` would take as long as everything else

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(min(remaining(deadline), _REPLY_TIMEOUT))
    try:
        connection.connect(f"/proc/self/fd/{directory}/{socket_name()}")
    except OSError:
        connection.close()
        return None
    return connection


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
        if size <= MAX_EVENT_BYTES:  # the rest is also read: the agent may not expect a closed pipe
            pieces.append(piece)
    if size > MAX_EVENT_BYTES:
        raise ValueError(f"the event has more than {MAX_EVENT_BYTES:,} bytes")
    return b"".join(pieces)


def _write(fd: int, text: bytes) -> None:
    try:  # noqa: SIM105 - `contextlib` is slow to import
        os.write(fd, text)
    except OSError:
        pass
