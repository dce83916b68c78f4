"""The copy processes of one large tree. Owns starting and killing them, and who copies what.

Each part is a directory with everything below it. Their numbers are in a pipe, from which this
process and the others take the next one, so that a slow process takes fewer.
"""

from __future__ import annotations

import marshal
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress

from agent_checkpoint.backends.os_support.own_program import start_on_further_cores
from agent_checkpoint.backends.os_support.part_numbers import next_number, part_numbers
from agent_checkpoint.backends.sqlite_files import open_databases
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.fork.copy_worker import paths_of_part
from agent_checkpoint.workspace.fork.subtree_copy import CopyRules

_WORKER = "agent_checkpoint.workspace.fork.copy_worker"
_MOST_WORKERS = 4
_PARTS = 1_000
"""The number of parts at most: more directories share parts."""


class CopyPool:
    """One process per further core; none if none can be started."""

    def __init__(self, source: int, target: int, rules: CopyRules, paths: Sequence[bytes]) -> None:
        """Start the processes.

        Args:
            source: the descriptor of the directory that is copied.
            target: the descriptor of the copy.
            rules: the rules of the copy.
            paths: the directories to copy, which exist in the target.
        """
        self._paths = paths
        self._count = min(len(paths), _PARTS)
        self._numbers = part_numbers(self._count)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start(source, target, rules)
        except BaseException:
            self.__exit__()
            raise

    def _start(self, source: int, target: int, rules: CopyRules) -> None:
        parts = list(self._paths), self._count
        task = marshal.dumps((tuple(rules), *parts, open_databases(), os.getpid()))
        fds = [source, target, self._numbers]
        for process in start_on_further_cores(
            _WORKER, list(map(str, fds)), most=_MOST_WORKERS, stdin=subprocess.PIPE, fds=fds
        ):
            self._processes.append(process)
            if process.stdin is not None:
                with suppress(BrokenPipeError):  # it has died, which `copied` tells
                    process.stdin.write(task)
                with suppress(BrokenPipeError):
                    process.stdin.close()

    def __enter__(self) -> CopyPool:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill the processes that have not ended."""
        os.close(self._numbers)
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def paths(self) -> Iterator[bytes]:
        """Yield the directories that this process has to copy."""
        while (number := next_number(self._numbers)) is not None:
            yield from paths_of_part(self._paths, number, self._count)

    def copied(self) -> dict[bytes, tuple[bytes, bytes]]:
        """Wait for the other processes; return the signatures of what they have copied.

        Raises:
            WorkspaceError: a process could not copy an entry, or has died.
        """
        copied: dict[bytes, tuple[bytes, bytes]] = {}
        for process in self._processes:
            if process.stdout is None:
                raise AssertionError("unreachable: it is a pipe")
            answer = process.stdout.read()
            if process.wait() != 0:
                raise WorkspaceError(
                    "A process that copied files ended unexpectedly (status "
                    f"{process.returncode}), so the copy is incomplete. Retry; if it was killed "
                    "for its memory, free some."
                )
            failure, signatures = marshal.loads(answer)  # noqa: S302 # of our own process
            if failure is not None:
                raise WorkspaceError(failure)
            copied.update(signatures)
        return copied
