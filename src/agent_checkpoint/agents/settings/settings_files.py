"""The files of agents' settings. Owns opening and replacing them; knows nothing of their content.

A project comes from elsewhere: below its root no link is followed. In the home of a user a link is,
as managers of dotfiles make them, if it leads to a file of the same user.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_checkpoint.backends.disk.posix import make_directory
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.file_ownership import other_owner, other_writer
from agent_checkpoint.records import short_repr

_MOST = 4 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Neither follows a link nor waits for the other end of a pipe.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """The directory of a file of settings, open: what is in there is reached through it alone."""

    def __init__(self, fd: int, name: str, *, is_project: bool) -> None:
        """Take an open directory, and the name of the file of settings in it."""
        self.name = name
        self.backup = f"{name}.before-agent-checkpoint"
        self._fd = fd
        self._is_project = is_project

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if there is none. Raises OSError, UnicodeDecodeError."""
        try:
            fd = os.open(name, _FILE, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError("it is not a regular file")
            why = None if self._is_project else other_owner("it", found, or_root=True)
            if why is not None:
                raise OSError(f"{why}: set HOME to your own home")
            data = file.read(_MOST + 1)
        if len(data) > _MOST:
            raise OSError(f"it has more than {_MOST:,} bytes")
        return data.decode()

    def replace(self, name: str, text: str) -> None:
        """Put a text in the place of a file, at once; a new one is private. Raises OSError."""
        try:
            mode = stat.S_IMODE(os.stat(self.name, dir_fd=self._fd, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            mode = 0o600
        fresh = f".agent-checkpoint-{secrets.token_hex(8)}"
        fd = os.open(fresh, _NEW, 0o600, dir_fd=self._fd)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fchmod(fd, mode)
                os.fsync(fd)
            os.replace(fresh, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except OSError:
            with suppress(OSError):
                os.unlink(fresh, dir_fd=self._fd)
            raise

    def remove(self, name: str) -> None:
        """Remove a file. Raises OSError."""
        os.unlink(name, dir_fd=self._fd)


def read_settings(path: Path, project: Path | None) -> str | None:
    """Return the text of a file of settings; None if there is none.

    Args:
        path: the file.
        project: the directory of the project that it belongs to, if it is not the user's own.

    Raises:
        InvalidInputError: it cannot be read, or leads elsewhere.
    """
    try:
        with _folder(path, project, make=False) as folder:
            return folder.read(folder.name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{short_repr(str(path), 200)} cannot be read ({error}).") from None


@contextmanager
def settings_folder(path: Path, project: Path | None) -> Iterator[Folder]:
    """Open the directory of a file of settings for writing; it is made if it is missing.

    Args:
        path: the file.
        project: as for `read_settings`.

    Raises:
        StorageError: it cannot be written, or leads elsewhere.
    """
    try:
        with _folder(path, project, make=True) as folder:
            yield folder
    except OSError as error:
        raise StorageError(f"{short_repr(str(path), 200)} cannot be written ({error}).") from error


@contextmanager
def _folder(path: Path, project: Path | None, *, make: bool) -> Iterator[Folder]:
    if project is None:
        path = Path(os.path.realpath(path))  # a link to it stays a link
        if make:
            make_directory(path.parent)
        fd = os.open(path.parent, _DIRECTORY)
    else:
        fd = _below(project, path.relative_to(project).parent.parts, make=make)
    try:
        why = None if project is not None else other_writer(path.parent, os.fstat(fd))
        if why is not None:
            raise OSError(why)
        yield Folder(fd, path.name, is_project=project is not None)
    finally:
        os.close(fd)


def _below(project: Path, names: tuple[str, ...], *, make: bool) -> int:
    """Return a directory below that of a project, open. Raises OSError."""
    fd = os.open(project, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=fd)
            below = os.open(name, _DIRECTORY, dir_fd=fd)
        except OSError as error:
            if _is_link(name, fd):
                raise OSError(
                    f"{name} is a link; what a project links to is not followed"
                ) from error
            raise
        finally:
            os.close(fd)
        fd = below
    return fd


def _is_link(name: str, directory: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    return False
