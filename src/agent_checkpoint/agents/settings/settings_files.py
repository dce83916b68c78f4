"""Opens and replaces the settings files of coding agents safely. Does not interpret them.

Projects are untrusted, so symbolic links inside a project are not followed. In the home directory,
where dotfile managers create links, a link is followed if its target belongs to the same user.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_checkpoint.backends.os_support.posix import make_directory
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.file_trust import other_owner, other_writer
from agent_checkpoint.records import short_repr

_MOST = 4 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Does not follow links, and does not block on a pipe.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class SettingsDir:
    """The open directory of a settings file; files are accessed relative to its descriptor."""

    def __init__(self, fd: int, name: str, *, is_project: bool) -> None:
        """Use an open directory, and the name of the settings file in it."""
        self.name = name
        self.backup = f"{name}.before-agent-checkpoint"
        self._fd = fd
        self._is_project = is_project

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if missing. Raises OSError, UnicodeDecodeError."""
        try:
            fd = os.open(name, _FILE, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise OSError("not a regular file")
            why = None if self._is_project else other_owner("it", found, or_root=True)
            if why is not None:
                raise OSError(f"{why}: set HOME to your home directory")
            data = file.read(_MOST + 1)
        if len(data) > _MOST:
            raise OSError(f"larger than {_MOST:,} bytes")
        return data.decode()

    def replace(self, name: str, text: str) -> None:
        """Replace a file atomically; a new file gets mode 0600. Raises OSError."""
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
    """Return the text of a settings file; None if missing.

    Args:
        path: the file.
        project: the project directory of the file; None for the user's file.

    Raises:
        InvalidInputError: the file cannot be read, or is a link that is not followed.
    """
    try:
        with _folder(path, project, make=False) as folder:
            return folder.read(folder.name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"Cannot read {short_repr(str(path), 200)} ({error}).") from None


@contextmanager
def open_settings_dir(path: Path, project: Path | None) -> Iterator[SettingsDir]:
    """Open the directory of a settings file for writing; create it if missing.

    Args:
        path: the file.
        project: as for `read_settings`.

    Raises:
        StorageError: the directory cannot be written, or is a link that is not followed.
    """
    try:
        with _folder(path, project, make=True) as folder:
            yield folder
    except OSError as error:
        raise StorageError(f"Cannot write {short_repr(str(path), 200)} ({error}).") from error


@contextmanager
def _folder(path: Path, project: Path | None, *, make: bool) -> Iterator[SettingsDir]:
    if project is None:
        path = Path(os.path.realpath(path))  # replaces the target, not the link
        if make:
            make_directory(path.parent)
        fd = os.open(path.parent, _DIRECTORY)
    else:
        fd = _below(project, path.relative_to(project).parent.parts, make=make)
    try:
        why = None if project is not None else other_writer(path.parent, os.fstat(fd))
        if why is not None:
            raise OSError(why)
        yield SettingsDir(fd, path.name, is_project=project is not None)
    finally:
        os.close(fd)


def _below(project: Path, names: tuple[str, ...], *, make: bool) -> int:
    """Open a directory inside a project without following links. Raises OSError."""
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
                    f"{name} is a symbolic link; links in a project are not followed"
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
