"""Case-insensitive file systems: detection, and the check for colliding names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import Hint, WorkspaceError
from agent_checkpoint.records import short_repr
from agent_checkpoint.workspace.safe_open import exists
from agent_checkpoint.workspace.scan.entry_filter import STAGING
from agent_checkpoint.workspace.tree.compare import Change


def ignores_case(root: int) -> bool:
    """Return whether a directory is case-insensitive, tested with the staging directory in it.

    Raises:
        OSError: it cannot be read.
    """
    return exists(STAGING.upper(), root)


def refuse_collisions(steps: Iterable[Change]) -> None:
    """Raise an error if two entries to be created differ only in case.

    Raises:
        WorkspaceError: there are two such entries.
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
                    "differ only in case, and this file system is case-insensitive. No file was "
                    "changed.",
                    hint=Hint(
                        "Restore one of them with paths=, or restore to another file system.",
                        "paths",
                    ),
                )
