"""A directory and its line of checkpoints. Owns what is written to it.

A directory has a key of its own, by its path. One that a fork was put into has that of the fork.
Each checkpoint of the line carries this user's claim that the line is that of the directory.
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
"""Kinds of checkpoints that go back, in full and in part, as those of sessions."""


class Line(Workspace):
    """A workspace whose checkpoints go to a certain key."""

    def __init__(self, place: Path, store: Store, key: str, **options: Any) -> None:
        """Open the directory.

        Args:
            place: the directory.
            store: where its checkpoints go.
            key: its key.
            options: those of `Workspace`; most commands are over before it pays to watch.

        Raises as `Workspace` does.
        """
        self._line_key = key  # first: an interrupted restore is finished at once
        super().__init__(place, store, **{"watch": False, **options})

    def _key_in(self, store: Store) -> str:
        return self._line_key

    def fill(self, tree: Tree, first: str) -> Plan:
        """Put the files of the first checkpoint into a directory that is empty.

        There is nothing that would have to be saved before. Raises as `restore` does.
        """
        from agent_checkpoint.workspace.restore.operation import SafetySnapshot  # slow to load

        return self.restore_held(tree, SafetySnapshot(tree, first))

    def go_back(self, target: Checkpoint, tree: Tree, named: list[str] | None, **wish: Any) -> Plan:
        """Restore, and save what there is then: the head of a key is always its present.

        Args:
            target: a checkpoint of its key.
            tree: its files.
            named: the paths that are restored; None if all are.
            wish: what of it, as for `restore`.

        Raises as `restore` and `snapshot` do.
        """
        done = self.restore(tree, **wish)
        try:
            self._save_restored(target, named, done.safety_id)
        except CheckpointError as error:
            raise WorkspaceError(
                f"The files were restored, but no checkpoint tells so ({error}). To go back, "
                f"restore the safety checkpoint {done.safety_id}."
            ) from error
        return done

    def _save_restored(
        self, target: Checkpoint, named: list[str] | None, safety_id: str | None
    ) -> None:
        name = f"@{target.seq}"
        label = f"to {name}" if named is None else f"{format_paths(named)} from {name}"
        label = f"{RESTORED}{label}".encode("utf-8", "replace").decode()
        before = () if safety_id is None else (safety_id,)
        is_whole = named is None  # also if something is left: steps go on from there
        with self._ready():
            draft = self._take(full=True).draft(
                self.key, self.store, kind=_ROLLBACK if is_whole else _PARTIAL, label=label
            )
            parents = (target.id,) if is_whole else (*before, target.id)
            self.store.write(draft, parents=parents)
