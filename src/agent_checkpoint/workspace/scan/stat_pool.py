"""Compares parts of a large tree with its index in several processes.

The scan compares what a process took and did not report.
"""

from __future__ import annotations

import json
from typing import Any

from agent_checkpoint.backends.os_support.part_processes import PartProcesses
from agent_checkpoint.workspace.scan.stat_index import IndexFile
from agent_checkpoint.workspace.scan.stat_pass import StatPass
from agent_checkpoint.workspace.scan.stat_worker import TEXT, split

_WORKER = "agent_checkpoint.workspace.scan.stat_worker"


def run_in_parallel(stat_pass: StatPass, root: int, index: IndexFile) -> None:
    """Compare a directory with its index, on all cores.

    Raises:
        OSError: a known directory was removed, or is no longer a directory.
    """
    parts = split(index.content.root)
    known = str(index.path), index.content.digest.hex()
    with PartProcesses(_WORKER, *known, fds=[root], count=len(parts)) as processes:
        above = stat_pass.run(index.content.root, leave={part.path for part in parts})
        remaining = dict.fromkeys(above)  # the others were removed or replaced as a whole
        for number in processes.numbers():
            part = parts[number]
            if part.path in remaining:
                stat_pass.run(part.state, part.path)
                del remaining[part.path]
        for status, output in processes.results():
            for number, found in json.loads(output) if status == 0 else ():
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
