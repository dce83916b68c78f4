"""File systems on which A and a are one name. Owns telling that, and which names collide there."""

from __future__ import annotations

import os
from collections.abc import Iterable

from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.restore.plan import Step
from agent_checkpoint.workspace.restore.staging import STAGING


def ignores_case(root: int) -> bool:
    """Tell whether names differ by more than case in a directory, by our own one in it.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        os.stat(STAGING.upper(), dir_fd=root, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def refuse_collisions(steps: Iterable[Step]) -> None:
    """See to it that no two things are made of which one would take the other's place.

    Raises:
        WorkspaceError: there are two such names.
    """
    with block_forks():
        import unicodedata

    made: dict[str, bytes] = {}
    for step in steps:
        if step.after is not None:
            folded = unicodedata.normalize("NFC", os.fsdecode(step.path).casefold())
            other = made.setdefault(folded, step.path)
            if other != step.path:
                raise WorkspaceError(
                    f"{short_repr(os.fsdecode(other))} and {short_repr(os.fsdecode(step.path))} "
                    "differ by case only, and are one name on this file system. Nothing was "
                    "touched: restore one of them, with paths=, or to another place."
                )
