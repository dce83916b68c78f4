"""The transcript file of a coding agent. Owns reading it incrementally and replacing it.

A transcript is a text file; the contents of its lines are not interpreted. If the user wants that,
they are read without secrets.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from itertools import count, islice
from typing import Any

from agent_checkpoint.agents.hook_redaction import hook_redactor, redact_line, redacted_lines
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import short_repr

MAX_BYTES = 256 << 20
"""The maximum size of a transcript that is saved."""
_MARK_BYTES = 4096


class Transcript:
    """The lines of a transcript file as of the last read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: Log[str] = Log()
        self.is_ended = True
        """Whether the last line ends with a newline."""
        self._file: tuple[int, int] | None = None
        self.size = 0
        """The number of bytes read so far."""
        self._whole = 0
        self._mark = b""
        self._redactor = hook_redactor()

    @classmethod
    def from_text(cls, path: str, text: bytes) -> Transcript:
        """Return the transcript that a file with these contents is."""
        found = cls(path)
        found._take(text)
        return found

    def read(self, *, full: bool = False) -> bool:
        """Read appended lines; return whether the file exists.

        A last line without a newline is assumed to be incomplete and is skipped, unless it is
        complete JSON.

        Args:
            full: read the whole file, even if it seems to have only grown.

        Raises:
            StorageError: the file cannot be read, or is too large.
        """
        name = short_repr(self.path, 200)
        try:
            return self._read(name, full=full)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            why = error.strerror or error
            raise StorageError(f"Cannot read the transcript {name} ({why}).") from error
        except UnicodeError:  # a lone surrogate
            raise StorageError(f"The transcript path {name} is not a valid file name.") from None

    def _read(self, name: str, *, full: bool) -> bool:
        with open(self.path, "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise StorageError(f"The transcript {name} is not a regular file.")
            if found.st_size > MAX_BYTES:
                raise StorageError(
                    f"The transcript {name} has {found.st_size:,} bytes; limit: {MAX_BYTES:,}."
                )
            has_grown = not full and self._file == (found.st_dev, found.st_ino)
            if has_grown and found.st_size >= self.size:
                file.seek(self.size - len(self._mark))
                has_grown = file.read(len(self._mark)) == self._mark
            if not has_grown or found.st_size < self.size:
                file.seek(0)
                self.size, self._whole, self._mark = 0, 0, b""
            self._file = found.st_dev, found.st_ino
            self._take(file.read(MAX_BYTES - self.size))
        return True

    def _take(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        fresh = [self._text(line) for line in data[:end].split(b"\n")[:-1]]
        known = islice(self.lines, self._whole, None)
        same = 0
        for old, new in zip(known, fresh):
            if old != new:
                break
            same += 1
        self._whole += same
        if len(self.lines) > self._whole:
            self.lines.truncate(self._whole)
        self.lines.extend(fresh[same:])
        self._whole = len(self.lines)
        self.size += end
        self._mark = (self._mark + data[:end])[-_MARK_BYTES:]
        self.is_ended = not (rest and self._is_whole(rest))
        if not self.is_ended:  # the next read starts at this line full
            self.lines.append(self._text(rest))

    def _text(self, line: bytes) -> str:
        text = line.decode("utf-8", "surrogateescape")
        return text if self._redactor is None else redact_line(text, self._redactor)

    @property
    def redacted(self) -> int:
        """How many lines have placeholders; 0 if secrets are not redacted."""
        return 0 if self._redactor is None else len(redacted_lines(self.lines))

    def _is_whole(self, rest: bytes) -> bool:
        if not self.path.endswith(".jsonl"):
            return True
        try:
            return isinstance(json.loads(rest), dict)
        except ValueError:
            return False

    def note(self) -> dict[str, Any]:
        """Return the record that identifies this state of the file."""
        last = self.lines[-1].encode("utf-8", "surrogateescape") if len(self.lines) else b""
        # A hash of secrets could be guessed.
        mark = self._mark if self._redactor is None else b""
        digest = hashlib.sha256(mark + b"\0" + last).hexdigest()[:16]
        found = {"lines": len(self.lines), "bytes": self.size, "ended": self.is_ended}
        return {"path": self.path, **found, "digest": digest}


def join_lines(lines: Sequence[str], *, is_ended: bool) -> bytes:
    """Return the file contents of lines."""
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return text + b"\n" if is_ended and lines else text


def replaceable_path(path: str) -> str:
    """Return the real path of a transcript that may be replaced. The file need not exist.

    Raises:
        StorageError: the path is a link, which could lead to any file, or not a regular file.
    """
    folder, name = os.path.split(path)
    try:
        real = os.path.join(os.path.realpath(folder), name)
        if stat.S_ISREG(os.lstat(real).st_mode):
            return real
    except FileNotFoundError:
        return real
    except (OSError, ValueError) as error:
        raise StorageError(
            f"Cannot use the transcript {short_repr(path, 200)} ({error})."
        ) from error
    raise StorageError(
        f"The transcript {short_repr(real, 200)} is a link or not a regular file, so it is not "
        "replaced. Use `--only files` to rewind only the files."
    )


def remove_stale_replacement(path: str) -> None:
    """Remove the temporary file of a rewind that was killed."""
    with suppress(OSError, ValueError):
        folder, name = os.path.split(path)
        os.unlink(_temporary_path(os.path.join(os.path.realpath(folder), name)))


class Replacement:
    """A new transcript, written and synced next to the old one, to be renamed over it."""

    def __init__(self, path: str, text: bytes) -> None:
        """Write the temporary file. Its name is fixed, so only one exists at a time.

        Raises:
            StorageError: the file cannot be written.
        """
        self._path = replaceable_path(path)
        self._fresh = _temporary_path(self._path)
        try:
            with suppress(FileNotFoundError):
                os.unlink(self._fresh)
            has_mode = os.path.exists(self._path)
            mode = stat.S_IMODE(os.stat(self._path).st_mode) if has_mode else 0o600
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(self._fresh, flags, 0o600), "wb") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
        except OSError as error:
            self.discard()
            raise StorageError(f"Cannot write {short_repr(path, 200)} ({error}).") from error

    def put(self) -> str | None:
        """Replace the transcript atomically; return the path of the previous one.

        The previous file keeps its inode, so a process that has it open continues to append to it.

        Raises:
            StorageError: the file cannot be replaced; the transcript is unchanged.
        """
        kept = None
        try:
            replaceable_path(self._path)
            kept = _keep_previous(self._path)
            os.replace(self._fresh, self._path)
            folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            if kept is not None:
                _restore_previous(kept, self._path)
            where = short_repr(self._path, 200)
            raise StorageError(f"Cannot replace {where} ({error}).") from error
        return kept

    def discard(self) -> None:
        """Remove the temporary file, if it was not used. Idempotent."""
        with suppress(OSError):
            os.unlink(self._fresh)


def retire(path: str) -> str | None:
    """Rename a transcript, so that its agent finds none; return the new path.

    Raises:
        StorageError: the file cannot be renamed.
    """
    try:
        path = replaceable_path(path)
        kept = _keep_previous(path)
        with suppress(FileNotFoundError):  # renamed: a file system without hard links
            os.unlink(path)
        return kept
    except OSError as error:
        raise StorageError(f"Cannot rename {short_repr(path, 200)} ({error}).") from error


def _temporary_path(path: str) -> str:
    """Return the path of the temporary file. It is fixed, so that crash recovery finds it."""
    folder, name = os.path.split(path)
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    return os.path.join(folder, f".rewind-{digest}")


def _keep_previous(path: str) -> str | None:
    """Link a file to an unused name; return that name, or None if the file does not exist."""
    for number in count(1):
        found = f"{path}.before-rewind" + (f"-{number}" if number > 1 else "")
        try:
            os.link(path, found)
            return found
        except FileExistsError:
            continue
        except FileNotFoundError:
            break
        except OSError:  # a file system without hard links
            if not os.path.lexists(found):
                os.rename(path, found)
                return found
    return None


def _restore_previous(kept: str, path: str) -> None:
    with suppress(OSError):
        if not os.path.lexists(path):
            os.rename(kept, path)
        elif os.path.samefile(kept, path):
            os.unlink(kept)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # does not block on a pipe
