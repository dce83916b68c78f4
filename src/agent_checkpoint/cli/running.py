"""A command that is run for a person, with what it prints. Owns the process and its terminal.

What it prints goes on unchanged. On a terminal it gets one of its own, so that programs which talk
to a person do what they always do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import selectors
import shlex
import signal
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from agent_checkpoint.cli.hooks.events import Event
from agent_checkpoint.cli.hooks.note import PART, Note
from agent_checkpoint.core.encode import encode
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.records import Checkpoint, Draft, check_key, show
from agent_checkpoint.store.reading import OBJECT
from agent_checkpoint.store.references import Captured
from agent_checkpoint.store.safety import SAFETY
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.writing import Writer
from agent_checkpoint.workspace.naming import PART as FILES
from agent_checkpoint.workspace.workspace import Workspace

OUTPUT, RUN = "output", "run"
"""The names of the parts: what was printed, and what was run."""
_MOST_BEGIN, _MOST_END = 512 << 10, 64 << 10
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


class CannotStartError(CheckpointError):
    """A command could not be started."""

    def __init__(self, message: str, is_missing: bool) -> None:
        super().__init__(message)
        self.status = 127 if is_missing else 126
        """What a shell would say."""


class Output:
    """What a command prints: the beginning in pieces that are only added to, and the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin: Log[str] = Log()
        self._begun = 0
        self._end = b""
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take what was printed."""
        with self._lock:
            if self._begun < _MOST_BEGIN:
                head, data = data[: _MOST_BEGIN - self._begun], data[_MOST_BEGIN - self._begun :]
                self._begun += len(head)
                self.begin.append(head.decode("utf-8", "surrogateescape"))
            if data:
                end = self._end + data
                self._end = end[-_MOST_END:]
                self._dropped += len(end) - len(self._end)

    def dump(self) -> Any:
        """Return the part, ready to be written."""
        with self._lock:
            end = self._end.decode("utf-8", "surrogateescape")
            found = {"begin": self.begin, "dropped": self._dropped, "end": end}
            return encode(found, OUTPUT)

    @property
    def size(self) -> int:
        """How many bytes were printed."""
        return self._begun + len(self._end) + self._dropped


class Recorder:
    """Saves a directory, and what a command has printed, as checkpoints of one key."""

    def __init__(self, store: Store, workspace: Workspace, key: str, command: list[str]) -> None:
        self._store = store
        self._workspace = workspace
        self._key = check_key(key)
        self._command = command
        self.output = Output()

    def save(
        self,
        label: str,
        *,
        only_changes: bool = False,
        status: int | None = None,
        seconds: float | None = None,
        full: bool = False,
    ) -> Checkpoint | None:
        """Save what is there now; return the checkpoint, if one was due.

        Args:
            label: what it is called.
            only_changes: do nothing if no file has changed since the last checkpoint.
            status: the exit status, if there is one by now.
            seconds: how long it took.
            full: look at every file.

        Raises:
            CheckpointError: nothing was saved.
        """
        files = _Files(self._workspace, full)
        captured: Any = Captured(files, self._store.writer)
        head = self._store.head(self._key)
        is_same = head is not None and head.kind != SAFETY
        is_same = is_same and head is not None and head.parts.get(FILES) == {OBJECT: captured.name}
        if only_changes and is_same:
            files.writer.committed()
            return None
        about: dict[str, Any] = {"command": self._command, "status": status, "seconds": seconds}
        parts = {FILES: captured, OUTPUT: self.output.dump(), RUN: encode(about, RUN)}
        if self._key != self._workspace.key:  # else the key itself says where it is
            place = str(self._workspace.path)
            event = Event(RUN, RUN, self._key, place, None)
            parts[PART] = Note.of(event, place, None).dump()
        text = label if len(label) <= 100 else label[:99] + "…"
        text = text.encode("utf-8", "replace").decode()
        return self._store.write(Draft(self._key, parts, label=" ".join(text.split())))


class _Files:
    """Captures a workspace, and keeps what it was handed to."""

    writer: Writer

    def __init__(self, workspace: Workspace, full: bool) -> None:
        self._workspace = workspace
        self._full = full

    def checkpoint_to(self, writer: Writer) -> str:
        self.writer = writer
        return self._workspace.checkpoint_to(writer, full=self._full)


class Running:
    """One command, from its start to its end."""

    def __init__(self, command: list[str], place: Path, output: Output) -> None:
        self._command = command
        self._place = place
        self._output = output

    def run(self, on_start: Callable[[], object]) -> int:
        """Run it; return its exit status, as a shell tells it.

        Args:
            on_start: called when it has been started: a process with threads had better not fork.

        Raises:
            CannotStartError: there is no such command, or it cannot be run.
        """
        if os.isatty(0) and os.isatty(1):
            return self._on_terminal(on_start)
        return self._with_pipes(on_start)

    # -- without a terminal ----------------------------------------------------------------------

    def _with_pipes(self, on_start: Callable[[], object]) -> int:
        process = self._start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        on_start()
        # Ctrl-C on a terminal reaches it by itself.
        numbers = _PASSED_ON if os.isatty(0) else (*_PASSED_ON, signal.SIGINT, signal.SIGQUIT)
        ignored = (signal.SIGINT, signal.SIGQUIT) if os.isatty(0) else ()
        with _passing_on(process.pid, numbers, ignored), selectors.DefaultSelector() as selector:
            for file, target in ((process.stdout, 1), (process.stderr, 2)):
                if file is not None:
                    selector.register(file, selectors.EVENT_READ, target)
            # What it leaves running may keep the pipes: then its own end is the end.
            while selector.get_map():
                ready = selector.select(timeout=0.2)
                for found, _ in ready:
                    data = os.read(found.fd, 1 << 16)
                    if data:
                        self._pass_on(data, found.data)
                    else:
                        selector.unregister(found.fileobj)
                if not ready and process.poll() is not None:
                    break
            status = process.wait()
        for file in (process.stdout, process.stderr):
            if file is not None:
                file.close()
        return status if status >= 0 else 128 - status

    # -- on a terminal ---------------------------------------------------------------------------

    def _on_terminal(self, on_start: Callable[[], object]) -> int:
        ours, theirs = os.openpty()
        before = termios.tcgetattr(0)
        termios.tcsetattr(theirs, termios.TCSANOW, before)
        _copy_size(ours)

        def begin() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        process = self._start(stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=begin)
        os.close(theirs)
        on_start()
        resized = signal.signal(signal.SIGWINCH, lambda *_: _copy_size(ours))
        try:
            tty.setraw(0)
            with _passing_on(process.pid, (*_PASSED_ON, signal.SIGINT, signal.SIGQUIT), ()):
                self._talk(ours, process)
                status = process.wait()
        finally:
            with suppress(termios.error):  # it may be gone by now
                termios.tcsetattr(0, termios.TCSADRAIN, before)
            signal.signal(signal.SIGWINCH, resized)
            os.close(ours)
        return status if status >= 0 else 128 - status

    def _talk(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(ours, selectors.EVENT_READ)
            with suppress(PermissionError):  # a file, which is always ready
                selector.register(0, selectors.EVENT_READ)
            while True:
                ready = selector.select(timeout=0.2)
                for found, _ in ready:
                    try:
                        data = os.read(found.fd, 1 << 16)
                    except OSError as error:
                        if error.errno != errno.EIO:
                            raise
                        data = b""  # nobody has the other side any more
                    if found.fd == ours:
                        if not data:
                            return
                        self._pass_on(data, 1)
                    elif data:
                        _write(ours, data)
                    else:
                        selector.unregister(0)
                if not ready and process.poll() is not None:
                    return

    # -- both ------------------------------------------------------------------------------------

    def _start(self, **options: Any) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(self._command, cwd=self._place, **options)
        except (OSError, ValueError) as error:
            command = show(shlex.join(self._command), 120)
            why = error.strerror if isinstance(error, OSError) else error
            is_missing = isinstance(error, FileNotFoundError)
            raise CannotStartError(f"{command} cannot be run ({why}).", is_missing) from None

    def _pass_on(self, data: bytes, target: int) -> None:
        self._output.add(data)
        _write(target, data)


def _write(fd: int, data: bytes) -> None:
    with suppress(OSError):  # who reads may have had enough; the command is not to suffer by it
        while data:
            data = data[os.write(fd, data) :]


def _copy_size(terminal: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


@contextmanager
def _passing_on(
    pid: int, numbers: tuple[signal.Signals, ...], ignored: tuple[signal.Signals, ...]
) -> Iterator[None]:
    """Have signals go to a process meanwhile."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None] | int] = {}
    handlers.update(dict.fromkeys(numbers, pass_on))
    handlers.update(dict.fromkeys(ignored, signal.SIG_IGN))
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.stdout.flush()
