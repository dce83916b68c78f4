"""The copy processes of one large tree. Owns who copies what.

Each part is a directory with everything below it, or several.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterator, Sequence

from agent_checkpoint.backends.os_support.part_processes import PartProcesses
from agent_checkpoint.backends.sqlite_files import open_databases
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.fork.copy_worker import paths_of_part
from agent_checkpoint.workspace.fork.subtree_copy import CopyRules

_WORKER = "agent_checkpoint.workspace.fork.copy_worker"
_PARTS = 1_000
"""The number of parts at most: more directories share parts."""


class CopyPool:
    """The directories that processes copy together with this one."""

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
        parts = list(paths), self._count
        task = marshal.dumps((tuple(rules), *parts, open_databases(), os.getpid()))
        self._processes = PartProcesses(_WORKER, fds=[source, target], count=self._count, task=task)

    def __enter__(self) -> CopyPool:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill the processes that have not ended."""
        self._processes.__exit__(*error)

    def paths(self) -> Iterator[bytes]:
        """Yield the directories that this process has to copy."""
        for number in self._processes.numbers():
            yield from paths_of_part(self._paths, number, self._count)

    def copied(self) -> dict[bytes, tuple[bytes, bytes]]:
        """Wait for the other processes; return the signatures of what they have copied.

        Raises:
            WorkspaceError: a process could not copy an entry, or has died with a part.
        """
        copied: dict[bytes, tuple[bytes, bytes]] = {}
        done, ended = self._processes.taken, 0
        for status, answer in self._processes.results():
            if status != 0:
                ended = status
                continue
            failure, taken, signatures = marshal.loads(answer)  # noqa: S302 # of our own process
            if failure is not None:
                raise WorkspaceError(failure)
            done += taken
            copied.update(signatures)
        if done < self._count:
            raise WorkspaceError(
                f"A process that copied files ended unexpectedly (status {ended}), so the copy is "
                "incomplete. Retry; if it was killed for its memory, free some."
            )
        return copied
