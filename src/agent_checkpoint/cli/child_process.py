"""Runs a command and captures its output. Owns the child process and its pseudo-terminal.

The output is passed through unchanged. On a terminal the child gets a pseudo-terminal, so that
interactive programs behave as usual.
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

from agent_checkpoint.cli.run_recorder import CapturedOutput
from agent_checkpoint.errors import CheckpointError
from agent_checkpoint.records import short_repr

_CHUNK = 1 << 16
_DRAIN_SECONDS = 0.5
"""Seconds to keep reading after the child has exited while its descendants still write."""
_FORWARDED_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


class CannotStartError(CheckpointError):
    """A command could not be started."""

    def __init__(self, message: str, is_missing: bool) -> None:
        super().__init__(message)
        self.status = 127 if is_missing else 126
        """The exit status that a shell would return."""


class ChildProcess:
    """One command, from start to exit."""

    def __init__(self, command: list[str], directory: Path, output: CapturedOutput) -> None:
        self._command = command
        self._directory = directory
        self._output = output

    def run(self, on_start: Callable[[], object]) -> int:
        """Run the command; return its exit status as a shell does (128 + signal number).

        Args:
            on_start: called after the start. It may start threads; starting them earlier would be
                unsafe, because the process forks.

        Raises:
            CannotStartError: the command does not exist or is not executable.
        """
        if os.isatty(0) and os.isatty(1):
            return self._on_terminal(on_start)
        return self._with_pipes(on_start)

    # -- without a terminal ----------------------------------------------------------------------

    def _with_pipes(self, on_start: Callable[[], object]) -> int:
        process = self._start(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        on_start()
        # On a terminal the kernel also sends Ctrl-C to the child.
        numbers = (
            _FORWARDED_SIGNALS
            if os.isatty(0)
            else (*_FORWARDED_SIGNALS, signal.SIGINT, signal.SIGQUIT)
        )
        ignored = (signal.SIGINT, signal.SIGQUIT) if os.isatty(0) else ()
        with (
            _forwarding_signals(process.pid, numbers, ignored),
            selectors.DefaultSelector() as selector,
        ):
            for file, target in ((process.stdout, 1), (process.stderr, 2)):
                if file is not None:
                    selector.register(file.fileno(), selectors.EVENT_READ, target)
            for found in _readable(selector, process):
                data = os.read(found.fd, _CHUNK)
                if data:
                    self._forward(data, found.data)
                else:
                    selector.unregister(found.fd)
            status = process.wait()
            for left in list(selector.get_map().values()):
                _forward_in_background(left.fd, left.data)
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
            with _forwarding_signals(
                process.pid, (*_FORWARDED_SIGNALS, signal.SIGINT, signal.SIGQUIT), ()
            ):
                is_in_use = self._relay(ours, process)
                status = process.wait()
        finally:
            with suppress(termios.error):  # the terminal may be closed
                termios.tcsetattr(0, termios.TCSADRAIN, before)
            signal.signal(signal.SIGWINCH, resized)
        if is_in_use:
            _forward_in_background(ours, 1)
        os.close(ours)
        return status if status >= 0 else 128 - status

    def _relay(self, ours: int, process: subprocess.Popen[bytes]) -> bool:
        """Relay input and output; return whether a process still has the terminal open."""
        typed = b""  # input the child has not read yet
        os.set_blocking(ours, False)
        with selectors.DefaultSelector() as selector:
            selector.register(ours, selectors.EVENT_READ)
            with suppress(PermissionError):  # epoll does not support regular files
                selector.register(0, selectors.EVENT_READ)
            for found in _readable(selector, process):
                if found.fd == ours:
                    data = _read_terminal(ours)
                    if data == b"":
                        return False
                    if data:
                        self._forward(data, 1)
                    typed = _write_input(ours, typed)
                elif len(typed) < _CHUNK:  # limits the input buffered ahead of the child
                    data = os.read(0, _CHUNK)
                    typed = _write_input(ours, typed + data)
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
            return subprocess.Popen(self._command, cwd=self._directory, **options)
        except (OSError, ValueError) as error:
            command = short_repr(shlex.join(self._command), 120)
            why = error.strerror if isinstance(error, OSError) else error
            is_missing = isinstance(error, FileNotFoundError)
            raise CannotStartError(f"Cannot run {command}: {why}.", is_missing) from None

    def _forward(self, data: bytes, target: int) -> None:
        self._output.add(data)
        _write(target, data)


def _readable(
    selector: selectors.BaseSelector, process: subprocess.Popen[bytes]
) -> Iterator[selectors.SelectorKey]:
    """Iterate over readable descriptors until all are closed or the process has exited.

    Background children may keep the output open, so the exit of the process ends the iteration.
    """
    until = None
    while selector.get_map():
        if until is None and process.poll() is not None:
            until = time.monotonic() + _DRAIN_SECONDS
        ready = selector.select(timeout=0.2 if until is None else 0)
        if until is not None and (not ready or time.monotonic() > until):
            return
        for found, _ in ready:
            yield found


def _forward_in_background(fd: int, target: int) -> None:
    """Start a background `cat` that forwards output after this process exits."""
    with suppress(OSError):  # `cat` is missing
        subprocess.Popen(["cat"], stdin=fd, stdout=target, start_new_session=True)  # noqa: S607 - as on PATH


def _read_terminal(ours: int) -> bytes | None:
    """Return the available output; None if there is none yet, empty bytes at the end."""
    try:
        return os.read(ours, _CHUNK)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""


def _write_input(ours: int, data: bytes) -> bytes:
    """Write input to the terminal of the child; return the bytes that were not written."""
    try:
        return data[os.write(ours, data) :] if data else b""
    except BlockingIOError:
        return data
    except OSError:  # the child has closed its terminal
        return b""


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process has set O_NONBLOCK
            select.select([], [fd], [], 1)
        except OSError:  # the reader has closed the pipe; the command continues
            return


def _copy_size(terminal: int) -> None:
    with suppress(OSError):
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


@contextmanager
def _forwarding_signals(
    pid: int, numbers: tuple[signal.Signals, ...], ignored: tuple[signal.Signals, ...]
) -> Iterator[None]:
    """Forward signals to a process for the duration of the block."""

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
