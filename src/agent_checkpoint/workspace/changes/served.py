"""Asks the change service of a daemon for changed paths. Owns the protocol.

The service is optional and is trusted only with the list of changed paths. Whatever is in doubt,
such as an answer that is late, malformed or from another user, counts as no answer: the caller then
compares every file.

    request     magic, token (epoch and number; zeros for none), identity of the root, as returned
                by `root_identity`; then EOF
    answer      magic, token, whether the paths are known, the sizes of the changed paths and of
                the replaced directories; both, separated by NULs; then EOF
"""

from __future__ import annotations

import os
import stat
import struct
from time import monotonic

from agent_checkpoint.backends.default_paths import data_home
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.changes.file_systems import mount_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

MAGIC = b"agent-checkpoint changes 1\n"
MAX_REQUEST = 16 << 10
_MAX_ANSWER = 8 << 20
_TIMEOUT = 1.0
_TOKEN = struct.Struct("<16sQ")
_HEAD = struct.Struct("<16sQ?II")
_CREDENTIALS = struct.Struct("3i")

serving_process = 0
"""The process that hosts the service, if it is this one. It has watchers of its own."""


class Token(NamedTuple):
    """A moment in a change journal."""

    epoch: bytes
    """16 random bytes of the journal: no other journal knows the token."""
    number: int


class Answer(NamedTuple):
    """The answer of a change service."""

    token: Token
    """The moment of the answer: later changes are reported after it."""
    changed: ChangedPaths | None
    """The paths that changed since the token of the question; None if that is unknown."""


def changes_since(root: int, token: Token | None) -> Answer | None:
    """Ask which paths changed since a token; None if no service watches the directory.

    Args:
        root: the descriptor of the directory. Ask before it is scanned.
        token: an earlier token; None for a new one only.
    """
    if serving_process == os.getpid():
        return None
    try:
        directory = open_service_dir()
        if directory is None:
            return None
        try:
            data = _exchange(directory, _encode_request(root_identity(root), token))
        finally:
            os.close(directory)
    except OSError:
        return None
    return None if data is None else _decode_answer(data)


def root_identity(fd: int) -> bytes:
    """Return what identifies an open directory: device, inode, mount, mount namespace and path.

    The same path shows other files in another mount namespace, on another mount or after a chroot.

    Raises:
        OSError: it cannot be determined, as outside Linux.
    """
    found = os.fstat(fd)
    path = os.readlink(b"/proc/self/fd/%d" % fd)
    mount = mount_id(fd)
    if mount is None:
        raise OSError("the mount of the directory is unknown")
    namespace = os.stat("/proc/thread-self/ns/mnt")  # threads may have different ones
    numbers = found.st_dev, found.st_ino, int(mount), namespace.st_dev, namespace.st_ino
    return b"%d %d %d %d %d %b" % (*numbers, path)


def open_service_dir() -> int | None:
    """Open the directory of the socket; None if it is missing, or other users can access it.

    Raises OSError.
    """
    try:
        path = data_home() / "index"
    except (InvalidInputError, StorageError):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(fd)
        return None
    return fd


def socket_name() -> str:
    """Return the name of the socket: one per host and protocol, since homes may be shared."""
    return f"changes-1-{os.uname().nodename[:40]}.sock"


def peer_user(connection: _socket.socket) -> int:
    """Return the user at the other end of a Unix socket. Raises OSError."""
    with block_forks():
        import _socket

    data = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(data)[1]
    return uid


def decode_request(data: bytes) -> tuple[bytes, Token | None]:
    """Return the identity of the root and the token in a request. Raises ValueError."""
    start = len(MAGIC) + _TOKEN.size
    if data[: len(MAGIC)] != MAGIC or len(data) <= start:
        raise ValueError("malformed request")
    token = Token(*_TOKEN.unpack_from(data, len(MAGIC)))
    return data[start:], token if any(token.epoch) else None


def encode_answer(answer: Answer) -> bytes:
    """Return the bytes of an answer."""
    names, replaced = answer.changed or ChangedPaths({}, set())
    paths = [path + b"/" + name if path else name for path, each in names.items() for name in each]
    changed, dirs = b"\0".join(paths), b"\0".join(replaced)
    head = _HEAD.pack(*answer.token, answer.changed is not None, len(changed), len(dirs))
    return MAGIC + head + changed + dirs


def _encode_request(identity: bytes, token: Token | None) -> bytes:
    return MAGIC + _TOKEN.pack(*(token or (bytes(16), 0))) + identity


def _exchange(directory: int, request: bytes) -> bytes | None:
    """Send a request to the service; None if there is none of this user. Raises OSError."""
    with block_forks():
        import _socket  # `socket` is slow to load

    deadline = monotonic() + _TIMEOUT
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_TIMEOUT)
        connection.connect(f"/proc/self/fd/{directory}/{socket_name()}")
        if peer_user(connection) != os.geteuid():
            return None
        connection.sendall(request)
        connection.shutdown(_socket.SHUT_WR)
        pieces: list[bytes] = []
        size = 0
        while size <= _MAX_ANSWER:
            left = deadline - monotonic()
            if left <= 0:  # an answer that comes byte by byte is late, too
                return None
            connection.settimeout(left)
            piece = connection.recv(1 << 16)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
            size += len(piece)
        return None
    finally:
        connection.close()


def _decode_answer(data: bytes) -> Answer | None:
    """Return the answer in a message; None if it is malformed."""
    start = len(MAGIC) + _HEAD.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start:
        return None
    epoch, number, is_known, size, dirs_size = _HEAD.unpack_from(data, len(MAGIC))
    token = Token(epoch, number)
    # The stream also ends if the daemon is killed while it answers.
    if not any(epoch) or len(data) != start + size + dirs_size:
        return None
    if not is_known:
        return Answer(token, None)
    changed = _decode_paths(data[start : start + size])
    replaced = _decode_paths(data[start + size :])
    if changed is None or replaced is None or not set(replaced) <= set(changed):
        return None
    names: dict[bytes, set[bytes]] = {}
    for path in changed:
        parent, _, name = path.rpartition(b"/")
        names.setdefault(parent, set()).add(name)
    return Answer(token, ChangedPaths(names, set(replaced)))


def _decode_paths(data: bytes) -> list[bytes] | None:
    """Return the relative paths in a part of an answer; None if one of them is invalid."""
    paths = data.split(b"\0") if data else []
    for path in paths:
        if not {b"", b".", b".."}.isdisjoint(path.split(b"/")):
            return None
    return paths
