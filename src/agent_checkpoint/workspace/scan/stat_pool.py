"""The stat processes of one stat pass. Owns starting and killing them.

The numbers of the parts of the tree are in a pipe, from which the scan and the processes take the
next one, so that a slow process takes fewer. The scan compares what a process took and did not
report.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from agent_checkpoint.backends.os_support.own_program import start_on_further_cores
from agent_checkpoint.backends.os_support.part_numbers import next_number, part_numbers
from agent_checkpoint.workspace.scan.stat_index import IndexFile
from agent_checkpoint.workspace.scan.stat_pass import StatPass
from agent_checkpoint.workspace.scan.stat_worker import TEXT, split

_WORKER = "agent_checkpoint.workspace.scan.stat_worker"
_MOST_WORKERS = 4


def run_in_parallel(stat_pass: StatPass, root: int, index: IndexFile) -> None:
    """Compare a directory with its index, on all cores.

    Raises:
        OSError: a known directory was removed, or is no longer a directory.
    """
    parts = split(index.content.root)
    with _Processes(root, index, len(parts)) as processes:
        above = stat_pass.run(index.content.root, leave={part.path for part in parts})
        remaining = dict.fromkeys(above)  # the others were removed or replaced as a whole
        while (number := processes.next_number()) is not None:
            part = parts[number]
            if part.path in remaining:
                stat_pass.run(part.state, part.path)
                del remaining[part.path]
        for number, found in processes.found():
            path = parts[number].path
            if path in remaining:
                _add(stat_pass, found)
                del remaining[path]
    for part in parts:
        if part.path in remaining:  # a process died, or found the directory changed
            stat_pass.run(part.state, part.path)


def _add(stat_pass: StatPass, found: Any) -> None:
    names, replaced, links, learned = found
    for path, changed in names:
        stat_pass.changed.names[path.encode(TEXT)] = {name.encode(TEXT) for name in changed}
    stat_pass.changed.replaced.update(path.encode(TEXT) for path in replaced)
    for device, inode, path, name in links:
        stat_pass.links.add_entry(device, inode, path.encode(TEXT), name.encode(TEXT))
    for path, times in learned:
        stat_pass.learned[path.encode(TEXT)] = bytes.fromhex(times)


class _Processes:
    """One process per further core; none if none can be started."""

    def __init__(self, root: int, index: IndexFile, parts: int) -> None:
        self._numbers = part_numbers(parts)
        fds = [root, self._numbers]
        places = [*map(str, fds), str(index.path), index.content.digest.hex()]
        self._processes = list(
            start_on_further_cores(
                _WORKER, places, most=_MOST_WORKERS, stdin=subprocess.DEVNULL, fds=fds
            )
        )

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        """Kill the processes, which hold nothing of their own."""
        os.close(self._numbers)
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def next_number(self) -> int | None:
        return next_number(self._numbers)

    def found(self) -> list[tuple[int, Any]]:
        """Wait for the processes; return what they found in each part. Raises OSError."""
        found: list[tuple[int, Any]] = []
        for process in self._processes:
            output, _ = process.communicate()
            if process.returncode == 0:
                found += json.loads(output)
        return found
