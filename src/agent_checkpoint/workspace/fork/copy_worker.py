"""A copy process: copies parts of a tree into a copy that another process has begun.

The task comes from stdin, the numbers of the parts from a pipe; how many of them it took, and the
signatures of what was copied, go to stdout at the end. Both sides run the same Python, so that the
messages are in marshal format.
"""

from __future__ import annotations

import gc
import marshal
import sys
from collections.abc import Sequence

from agent_checkpoint.backends.os_support.part_numbers import next_number
from agent_checkpoint.backends.sqlite_files import open_in_parent
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.workspace.fork.subtree_copy import CopyRules, SubtreeCopy
from agent_checkpoint.workspace.fork.supervised_command import end_with


def paths_of_part(paths: Sequence[bytes], number: int, count: int) -> Sequence[bytes]:
    """Return the directories of a part: neighbours are in different parts."""
    return paths[number::count]


def main() -> int:
    """Copy from the open directory `argv[1]` to `argv[2]`. Returns the exit status."""
    source, target, numbers = map(int, sys.argv[1:])
    gc.disable()  # the process is short
    task = marshal.loads(sys.stdin.buffer.read())  # noqa: S302 # of our own process
    rules, paths, count, databases, parent = task
    end_with(parent)  # nobody else would remove what is written after that
    open_in_parent(databases)
    failure: str | None = None
    taken = 0
    with SubtreeCopy(source, target, CopyRules(*rules)) as copy:
        while (number := next_number(numbers)) is not None:
            taken += 1
            if failure is not None:
                continue  # take the rest, so that nobody copies for nothing
            try:
                for path in paths_of_part(paths, number, count):
                    copy.copy(path)
                copy.finish()
            except WorkspaceError as error:
                failure = str(error)
    sys.stdout.buffer.write(marshal.dumps((failure, taken, copy.copied)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
