"""Processes that share out the parts of some work with this one. Knows nothing of the work.

The numbers of the parts are in a pipe, from which whoever has time takes the next one, so that a
slow process takes fewer.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress

from agent_checkpoint.backends.os_support.own_program import start_on_further_cores
from agent_checkpoint.backends.os_support.part_numbers import next_number, part_numbers

_MOST = 4


class PartProcesses:
    """One process per further core; none if none can be started."""

    def __init__(
        self, module: str, *arguments: str, fds: Sequence[int], count: int, task: bytes = b""
    ) -> None:
        """Start the processes.

        Args:
            module: the module of their program. Its arguments are the descriptors, then that of the
                numbers, then `arguments`.
            fds: descriptors that they inherit.
            count: the number of parts.
            task: what they read from stdin.
        """
        self.taken = 0
        """The number of parts that this process has taken."""
        self._count = count
        self._numbers = part_numbers(count)
        self._processes: list[subprocess.Popen[bytes]] = []
        inherited = [*fds, self._numbers]
        places = [*map(str, inherited), *arguments]
        try:
            for process in start_on_further_cores(module, places, most=_MOST, fds=inherited):
                self._processes.append(process)
                if process.stdin is not None:
                    with suppress(BrokenPipeError):  # it has died, which its status tells
                        process.stdin.write(task)
                    with suppress(BrokenPipeError):
                        process.stdin.close()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> PartProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill the processes that have not ended."""
        os.close(self._numbers)
        for process in self._processes:  # all, before an interrupt can end the waiting
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the parts that this process has to do."""
        while (number := next_number(self._numbers)) is not None:
            self.taken += 1
            yield number

    def results(self) -> Iterator[tuple[int, bytes]]:
        """Wait for the processes; yield the status and the output of each.

        Yields nothing if this process has taken all parts: a process that does not get going, such
        as another program that `sys.executable` names, need not be waited for.
        """
        for process in self._processes if self.taken < self._count else ():
            output = b"" if process.stdout is None else process.stdout.read()
            yield process.wait(), output
