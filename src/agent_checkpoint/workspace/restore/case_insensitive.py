"""Case-insensitive file systems: detection, and refusal of names that collide there."""

from __future__ import annotations

import os
from collections.abc import Iterable

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.restore.plan import Step
from agent_checkpoint.workspace.scan.entry_filter import STAGING


def ignores_case(root: int) -> bool:
    """Tell whether a directory is case-insensitive, by the staging directory in it.

    Raises:
        OSError: it cannot be read.
    """
    try:
        os.stat(STAGING.upper(), dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def refuse_collisions(steps: Iterable[Step]) -> None:
    """Refuse to create two entries whose names differ by case only.

    Raises:
        WorkspaceError: there are two such names.
    """
    with block_forks():
        import unicodedata

    created: dict[str, bytes] = {}
    for step in steps:
        if step.after is not None:
            folded = unicodedata.normalize("NFC", os.fsdecode(step.path).casefold())
            other = created.setdefault(folded, step.path)
            if other != step.path:
                raise WorkspaceError(
                    f"{short_repr(os.fsdecode(other))} and {short_repr(os.fsdecode(step.path))} "
                    "differ by case only, and this file system is case-insensitive. No file was "
                    "changed. Restore one of them with paths=, or restore to another file system."
                )
