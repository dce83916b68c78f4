"""The file of an agent's conversation. Owns reading it on as it grows, and replacing it.

It is lines, and what is in them is the agent's own business.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import StorageError

MOST = 256 << 20
"""The most bytes of a conversation that are saved."""
_MARK = 4096


class Transcript:
    """The lines of one file, as they were last read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: Log[str] = Log()
        self.is_ended = True
        """Whether the last line has its end."""
        self._file: tuple[int, int] | None = None
        self._at = 0
        self._whole = 0
        self._mark = b""

    @property
    def size(self) -> int:
        """How many bytes were read."""
        return self._at

    def read(self, *, again: bool = False) -> bool:
        """Read what was added; tell whether there is such a file at all.

        A last line without an end is on its way into the file, and left out, unless it is whole.

        Args:
            again: read everything, also if it seems to have grown only.

        Raises:
            StorageError: it cannot be read, or is too large.
        """
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise StorageError(f"The transcript {self.path} cannot be read ({error}).") from error
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise StorageError(f"The transcript {self.path} is no file.")
            if found.st_size > MOST:
                raise StorageError(
                    f"The transcript {self.path} has {found.st_size:,} bytes; up to {MOST:,} are "
                    "saved."
                )
            has_grown = not again and self._file == (found.st_dev, found.st_ino)
            if has_grown and found.st_size >= self._at:
                file.seek(self._at - len(self._mark))
                has_grown = file.read(len(self._mark)) == self._mark
            if not has_grown or found.st_size < self._at:
                file.seek(0)
                self._at, self._whole, self._mark = 0, 0, b""
            self._file = found.st_dev, found.st_ino
            self._take(file.read(MOST - self._at))
        return True

    def _take(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        fresh = [_text(line) for line in data[:end].split(b"\n")[:-1]]
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
        self._at += end
        self._mark = (self._mark + data[:end])[-_MARK:]
        self.is_ended = not (rest and self._is_whole(rest))
        if not self.is_ended:  # it is read once more the next time
            self.lines.append(_text(rest))

    def _is_whole(self, rest: bytes) -> bool:
        if not self.path.endswith(".jsonl"):
            return True
        try:
            return isinstance(json.loads(rest), dict)
        except ValueError:
            return False

    def note(self) -> dict[str, Any]:
        """Return what tells this state of the file from others."""
        last = self.lines[-1].encode("utf-8", "surrogateescape") if len(self.lines) else b""
        digest = hashlib.sha256(self._mark + b"\0" + last).hexdigest()[:16]
        found = {"lines": len(self.lines), "bytes": self._at, "ended": self.is_ended}
        return {"path": self.path, **found, "digest": digest}


def text_of(lines: Sequence[str], *, is_ended: bool) -> bytes:
    """Return lines as the bytes of a file."""
    text = "\n".join(lines).encode("utf-8", "surrogateescape")
    return text + b"\n" if is_ended and lines else text


class Replacement:
    """A text that is written and durable, and can take the place of a transcript at once."""

    def __init__(self, path: str, text: bytes) -> None:
        """Write it beside the transcript.

        Raises:
            StorageError: it cannot be written there.
        """
        self._path = os.path.realpath(path)
        self._fresh = ""
        try:
            has_mode = os.path.exists(self._path)
            mode = stat.S_IMODE(os.stat(self._path).st_mode) if has_mode else 0o600
            fd, self._fresh = tempfile.mkstemp(prefix=".rewind-", dir=os.path.dirname(self._path))
            with os.fdopen(fd, "wb") as file:
                file.write(text)
                file.flush()
                os.fchmod(fd, mode)
                os.fsync(fd)
        except OSError as error:
            self.discard()
            raise StorageError(f"{path} cannot be written ({error}).") from error

    def put(self) -> str | None:
        """Put it in the place of the transcript; return where the one before is kept.

        Raises:
            StorageError: it cannot be done; the transcript is as it was.
        """
        kept = None
        try:
            if os.path.exists(self._path):
                kept = _free(f"{self._path}.before-rewind")
                shutil.copy2(self._path, kept)
            os.replace(self._fresh, self._path)
        except OSError as error:
            raise StorageError(f"{self._path} cannot be replaced ({error}).") from error
        self._fresh = ""
        return kept

    def discard(self) -> None:
        """Take it away, if it was not put there. Twice is fine."""
        if self._fresh:
            with suppress(OSError):
                os.unlink(self._fresh)
            self._fresh = ""


def _free(path: str) -> str:
    number, found = 1, path
    while os.path.lexists(found):
        number += 1
        found = f"{path}-{number}"
    return found


def _text(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")
