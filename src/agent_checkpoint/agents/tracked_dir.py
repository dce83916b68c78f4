"""A directory with its own key. Owns the checkpoints that `save` and `restore` write.

The key is derived from the path; a directory that a fork was written to has the key of the fork.
Each checkpoint carries this user's claim that the key is that of the directory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_checkpoint.agents.directory_keys import RESTORED
from agent_checkpoint.errors import CheckpointError, WorkspaceError
from agent_checkpoint.formatting import format_paths
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.plan import Plan
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace

_ROLLBACK, _PARTIAL = "rollback", "restore"
"""Checkpoint kinds of complete and partial restores, the same as those of sessions."""


class TrackedDir(Workspace):
    """A workspace whose checkpoints go to a given key."""

    def __init__(self, directory: Path, store: Store, key: str, **options: Any) -> None:
        """Open the directory.

        Args:
            directory: the directory.
            store: the store.
            key: the key of the directory.
            options: those of `Workspace`; by default it is not watched, since most commands are
                short.

        Raises as `Workspace` does.
        """
        self._directory_key = key  # set first: opening finishes an interrupted restore
        super().__init__(directory, store, **{"watch": False, **options})

    def _key_in(self, store: Store) -> str:
        return self._directory_key

    def fill(self, tree: Tree, first: str) -> Plan:
        """Write the files of the first checkpoint to an empty directory.

        Needs no safety checkpoint. Raises as `restore` does.
        """
        from agent_checkpoint.workspace.restore.operation import SafetySnapshot  # slow to load

        return self.restore_held(tree, SafetySnapshot(tree, first))

    def restore_and_save(
        self, target: Checkpoint, tree: Tree, selected: list[str] | None, **options: Any
    ) -> Plan:
        """Restore, then save the result: the head of a key always matches the directory.

        Args:
            target: a checkpoint of the key.
            tree: the files of the target.
            selected: the paths to restore, for the label; None for all.
            options: those of `restore`, with the same paths.

        Raises as `restore` and `snapshot` do.
        """
        done = self.restore(tree, **options)
        try:
            self._save_restored(target, selected, done.safety_id)
        except CheckpointError as error:
            raise WorkspaceError(
                f"The files were restored, but saving the result failed ({error}). To undo, "
                f"restore the safety checkpoint {done.safety_id}."
            ) from error
        return done

    def _save_restored(
        self, target: Checkpoint, selected: list[str] | None, safety_id: str | None
    ) -> None:
        name = f"@{target.seq}"
        label = f"to {name}" if selected is None else f"{format_paths(selected)} from {name}"
        label = f"{RESTORED}{label}".encode("utf-8", "replace").decode()
        before = () if safety_id is None else (safety_id,)
        is_whole = selected is None  # also if some paths were kept: later steps count from there
        with self._ready():
            draft = self._capture(full=True).draft(
                self.key, self.store, kind=_ROLLBACK if is_whole else _PARTIAL, label=label
            )
            parents = (target.id,) if is_whole else (*before, target.id)
            self.store.write(draft, parents=parents)
