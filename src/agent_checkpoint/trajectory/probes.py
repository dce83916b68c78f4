"""Runs a test on the files of a checkpoint. Owns the meaning of its result."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from agent_checkpoint.backends.os_support.posix import open_private
from agent_checkpoint.errors import InvalidInputError, WorkspaceError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.trajectory.probe_directory import ProbeBase, environment
from agent_checkpoint.workspace.fork.drivers import ForkPaths
from agent_checkpoint.workspace.fork.supervised_command import supervised

GOOD, BAD, SKIP = "good", "bad", "skip"
_SKIP_STATUS, _CANNOT_RUN = 125, 126
_TAIL = 4000
_BEGIN = ': > "$0" && exec "$@"'
"""Leaves a mark before the command: the exit status of a failed mount is that of a skip."""


@dataclass(frozen=True)
class Probe:
    """The test of one checkpoint."""

    checkpoint: str
    verdict: str
    """`good`, `bad` or `skip`. A test that both passed and failed is `bad`."""
    runs: tuple[str, ...]
    """The result of each run."""
    seconds: float
    output: str = ""
    """The end of the output of the last run of a command."""

    @property
    def at(self) -> str:
        """The short form of the checkpoint, such as `@17`."""
        return f"@{self.checkpoint.rpartition('-')[2]}"

    @property
    def is_flaky(self) -> bool:
        """Whether the runs had different results on the same files."""
        return len(set(self.runs)) > 1


class ProbeFiles(NamedTuple):
    """The directory of a probe."""

    path: Path


class ProbeBranch:
    """The argument of a test function: a checkpoint, and a private copy of its files."""

    def __init__(
        self, manager: CheckpointManager, checkpoint: Checkpoint, path: Path, env: dict[str, str]
    ) -> None:
        self._manager = manager
        self.checkpoint = checkpoint
        self.workspace = ProbeFiles(path)
        self.env = env
        """An environment for commands, with a private HOME and TMPDIR."""

    @property
    def path(self) -> Path:
        """The directory with the files."""
        return self.workspace.path

    def state_dict(self) -> dict[str, Any]:
        """Return the saved state, as `CheckpointManager.state_dict`; raises the same errors."""
        return dict(self._manager.state_dict(self.checkpoint.key, self.checkpoint.id))


Test = Union[str, Sequence[str], Callable[[ProbeBranch], Union[bool, None]]]
"""A test: a command for the shell, the arguments of a command, or a function."""


class Prober:
    """Runs one test on checkpoints."""

    def __init__(
        self,
        manager: CheckpointManager,
        test: Test,
        *,
        repeats: int,
        setup: str | None,
        timeout: float | None,
        directory: Path | None,
    ) -> None:
        """Prepare.

        Args:
            manager: the manager of the store.
            test: the test.
            repeats: how many times it runs on each checkpoint.
            setup: a command for the shell that runs first.
            timeout: seconds after which a command is killed.
            directory: the original directory of the files.
        """
        self._manager = manager
        self._test = test
        self._repeats = repeats
        self._setup = setup
        self._timeout = timeout
        self._directory = directory

    def run(self, base: ProbeBase, index: int, checkpoint: Checkpoint) -> Probe:
        """Test a checkpoint.

        Raises:
            InvalidInputError: the test could not run, was killed, or returned another value.
            CheckpointError: the files cannot be read or written.
        """
        began, runs, output = time.monotonic(), list[str](), ""
        base.move_to(index)
        for _ in range(self._repeats):
            if callable(self._test):
                with base.mounted() as (paths, path):
                    verdict, output = self._run_function(checkpoint, paths, path)
            else:
                with base.probe() as paths:
                    verdict, output = self._run_command(base, checkpoint, paths)
            runs.append(verdict)
        verdict = BAD if BAD in runs else SKIP if SKIP in runs else GOOD
        seconds = time.monotonic() - began
        return Probe(checkpoint.id, verdict, tuple(runs), seconds, output)

    def _run_function(
        self, checkpoint: Checkpoint, paths: ForkPaths, path: Path
    ) -> tuple[str, str]:
        branch = ProbeBranch(self._manager, checkpoint, path, environment(paths, path))
        if self._setup is not None:
            command = supervised(["/bin/sh", "-c", self._setup])
            status, output = self._status(command, path, paths, f"{checkpoint.id} (setup)")
            if status:
                return SKIP, output
        result = self._test(branch) if callable(self._test) else None
        if result is not None and not isinstance(result, bool):
            raise InvalidInputError(
                f"A test must return True (good), False (bad) or None (skip), not "
                f"{short_repr(result)}."
            )
        return SKIP if result is None else GOOD if result else BAD, ""

    def _run_command(
        self, base: ProbeBase, checkpoint: Checkpoint, paths: ForkPaths
    ) -> tuple[str, str]:
        test: Any = self._test
        command = ["/bin/sh", "-c", test] if isinstance(test, str) else list(test)
        if self._setup is not None:
            # In the same view: the files that it makes are there for the test.
            script = f'( {self._setup}\n) || exit {_SKIP_STATUS}\nexec "$@"'
            command = ["/bin/sh", "-c", script, "setup", *command]
        mark = paths.private / "mark"
        begun = ["/bin/sh", "-c", _BEGIN, str(mark), *command]
        line, place = base.command(paths, begun, self._directory)
        status, output = self._status(line, place, paths, checkpoint.id)
        if not mark.exists():
            raise WorkspaceError(f"The files of {checkpoint.id} cannot be mounted: {output}")
        if status == _SKIP_STATUS:
            return SKIP, output
        if status < 0 or status >= _CANNOT_RUN:
            raise InvalidInputError(f"{_problem(status)} at {checkpoint.id}.\n{output}".rstrip())
        return GOOD if status == 0 else BAD, output

    def _status(
        self, command: list[str], place: Path, paths: ForkPaths, where: str
    ) -> tuple[int, str]:
        """Run a command; return its exit status and the end of its output."""
        log = paths.private / "output"
        with open(log, "wb", opener=open_private) as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=place,
                env=environment(paths, place),
                start_new_session=True,
            )
        try:
            process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            raise InvalidInputError(
                f"The test did not end within {self._timeout:g} s at {where}. Use a longer timeout."
            ) from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode, _tail(log)


def _problem(status: int) -> str:
    if status == _CANNOT_RUN:
        return "The test command cannot be executed"
    if status == _CANNOT_RUN + 1:
        return "The test command was not found"
    number = -status if status < 0 else status - 128
    return f"The test was killed by signal {number}, or exited with the status {status}"


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _TAIL, 0))
        return file.read(_TAIL).decode(errors="replace").strip()
