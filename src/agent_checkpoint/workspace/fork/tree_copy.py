"""Copies directory trees, with reflinks where possible, and large ones in several processes.

Does not depend on forks.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from agent_checkpoint.workspace.fork.copy_pool import CopyPool
from agent_checkpoint.workspace.fork.subtree_copy import CopyRules, SubtreeCopy, Visit, copy_failed
from agent_checkpoint.workspace.safe_open import DIRECTORY, open_root
from agent_checkpoint.workspace.tree.dir_state import SIGNATURE, Copied

PARALLEL_FROM = 2_000
"""Copies of trees with more directories and files than this start processes."""
_PARTS = 64
"""The number of subtrees, at least, that the processes share out among themselves."""

_TICK_SECONDS = 0.03
"""How long to wait for a later timestamp: more than a tick of any kernel."""


def copy_tree(source: Path, target: Path, *, leave_out: Collection[bytes] = ()) -> Copied:
    """Copy a directory to a new path; see `subtree_copy` for what is kept.

    Files are reflinked where the file system supports it. Special files, stores in use, and files
    that are removed during the copy, are skipped.

    Args:
        source: the directory; links in it are not followed.
        target: the new directory. If it is inside the source, it is not copied.
        leave_out: the paths of entries to skip, relative to the source.

    Returns:
        The signatures of what was copied. Every later change of a copy changes its signature.

    Raises:
        WorkspaceError: an entry cannot be read or written. The partial copy is not removed.
    """
    with ExitStack() as opened:
        place = source
        try:
            here = open_root(source)
            opened.callback(os.close, here)
            place = target
            os.mkdir(target, 0o700)
            there = os.open(target, DIRECTORY)
            opened.callback(os.close, there)
            rules = CopyRules(str(source), frozenset(leave_out), _granted_bits(there))
            return _distinct(_copy(here, there, rules), there)
        except OSError as error:
            raise copy_failed(place, b"", error) from error


def _copy(source: int, target: int, rules: CopyRules) -> Copied:
    with SubtreeCopy(source, target, rules) as copy:
        remaining = copy.copy(b"", PARALLEL_FROM)
        above = [each for each in remaining if isinstance(each, Visit)]
        parts = deque([each for each in remaining if isinstance(each, bytes)])
        while parts and len(parts) < _PARTS:  # from above, so that they are of similar size
            visit = copy.visit(parts.popleft())
            if visit is not None:
                above.append(visit)
                parts += visit.subdirs
        if parts:
            with CopyPool(source, target, rules, list(parts)) as pool:
                for path in pool.paths():
                    copy.copy(path)
                copy.copied.update(pool.copied())
        copy.finish()
        for visit in reversed(above):
            copy.leave(visit)
        return copy.copied


def _distinct(copied: Copied, root: int) -> Copied:
    """Return the signatures of the copies that have an earlier ctime than any later change."""
    changed = {path: SIGNATURE.unpack(copy)[2] for path, (_, copy) in copied.items()}
    last = max(changed.values(), default=0)
    now = _next_change(root)
    until = time.monotonic() + _TICK_SECONDS
    while now <= last and time.monotonic() < until:
        time.sleep(0.001)
        now = _next_change(root)
    if now > last:
        return copied
    return {path: pair for path, pair in copied.items() if changed[path] < now}


def _next_change(root: int) -> int:
    """Return the ctime that a change has now."""
    found = os.fstat(root)
    os.utime(root, ns=(found.st_atime_ns, found.st_mtime_ns))
    return os.fstat(root).st_ctime_ns


def _granted_bits(directory: int) -> int:
    """Return the permission bits that umask and default ACLs grant to a new file."""
    os.mkdir("granted", 0o777, dir_fd=directory)
    try:
        return os.stat("granted", dir_fd=directory).st_mode & 0o777
    finally:
        os.rmdir("granted", dir_fd=directory)
