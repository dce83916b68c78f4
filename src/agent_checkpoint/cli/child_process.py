"""A command that is run for a person, with what it prints. Owns the process and its terminal.

What it prints goes on unchanged. On a terminal it gets one of its own, so that programs which talk
to a person do what they always do.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import selectors
import shlex
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from agent_checkpoint.cli.run_recorder import Output
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.records import short_repr

_PIECE = 1 << 16
_LAST_WORDS = 0.5
"""How long the output of a command that has ended is read, if others go on to print there."""
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


class CannotStartError(CheckpointError):
    """A command could not be started."""

    def __init__(self, message: str, is_missing: bool) -> None:
        super().__init__(message)
        self.status = 127 if is_missing else 126
        """What a shell would say."""


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
                    selector.register(file.fileno(), selectors.EVENT_READ, target)
            for found in _ready(selector, process):
                data = os.read(found.fd, _PIECE)
                if data:
                    self._pass_on(data, found.data)
                else:
                    selector.unregister(found.fd)
            status = process.wait()
            for left in list(selector.get_map().values()):
                _let_go_on(left.fd, left.data)
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
                is_in_use = self._talk(ours, process)
                status = process.wait()
        finally:
            with suppress(termios.error):  # it may be gone by now
                termios.tcsetattr(0, termios.TCSADRAIN, before)
            signal.signal(signal.SIGWINCH, resized)
        if is_in_use:
            _let_go_on(ours, 1)
        os.close(ours)
        return status if status >= 0 else 128 - status

    def _talk(self, ours: int, process: subprocess.Popen[bytes]) -> bool:
        """Pass on what both sides say; tell whether something still has the other side."""
        typed = b""  # what the command has not taken yet: it may print for long before it reads
        os.set_blocking(ours, False)
        with selectors.DefaultSelector() as selector:
            selector.register(ours, selectors.EVENT_READ)
            with suppress(PermissionError):  # a file, which is always ready
                selector.register(0, selectors.EVENT_READ)
            for found in _ready(selector, process):
                if found.fd == ours:
                    data = _read_terminal(ours)
                    if data == b"":
                        return False
                    if data:
                        self._pass_on(data, 1)
                    typed = _type(ours, typed)
                elif len(typed) < _PIECE:  # who types ahead more than that waits
                    data = os.read(0, _PIECE)
                    typed = _type(ours, typed + data)
                    if not data:
                        selector.unregister(0)
                else:
                    time.sleep(0.01)
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if typed else 0)
                selector.modify(ours, wanted)
        return True

    # -- both ------------------------------------------------------------------------------------

    def _start(self, **options: Any) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(self._command, cwd=self._place, **options)
        except (OSError, ValueError) as error:
            command = short_repr(shlex.join(self._command), 120)
            why = error.strerror if isinstance(error, OSError) else error
            is_missing = isinstance(error, FileNotFoundError)
            raise CannotStartError(f"{command} cannot be run ({why}).", is_missing) from None

    def _pass_on(self, data: bytes, target: int) -> None:
        self._output.add(data)
        _write(target, data)


def _ready(
    selector: selectors.BaseSelector, process: subprocess.Popen[bytes]
) -> Iterator[selectors.SelectorKey]:
    """Iterate over what can be read, until all is closed or the process has ended.

    What it leaves running may keep its output, and go on to print: then its own end is the end.
    """
    until = None
    while selector.get_map():
        if until is None and process.poll() is not None:
            until = time.monotonic() + _LAST_WORDS
        ready = selector.select(timeout=0.2 if until is None else 0)
        if until is not None and (not ready or time.monotonic() > until):
            return
        for found, _ in ready:
            yield found


def _let_go_on(fd: int, target: int) -> None:
    """Have what is still printed go where it would have gone without us."""
    with suppress(OSError):  # there is no `cat`
        subprocess.Popen(["cat"], stdin=fd, stdout=target, start_new_session=True)  # noqa: S607 - as on PATH


def _read_terminal(ours: int) -> bytes | None:
    """Return what was printed; None if it was nothing, and no bytes if nobody is there any more."""
    try:
        return os.read(ours, _PIECE)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def _type(ours: int, data: bytes) -> bytes:
    """Hand over what was typed, as far as it is taken; return the rest."""
    try:
        return data[os.write(ours, data) :] if data else b""
    except BlockingIOError:
        return data
    except OSError:  # nobody is there any more
        return b""


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another program has made it so
            select.select([], [fd], [], 1)
        except OSError:  # who reads may have had enough; the command is not to suffer by it
            return


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
