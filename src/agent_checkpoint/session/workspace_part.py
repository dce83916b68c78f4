"""The workspace as a part of session checkpoints. Owns its capture and restore.

The session's safety checkpoint includes the files, so a restore does not save another one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import Hint, InvalidInputError, StateMismatchError, WorkspaceError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.workspace.restore.journal import Decision
    from agent_checkpoint.workspace.restore.plan import Plan
    from agent_checkpoint.workspace.restore.transition import SafetySnapshot


class WorkspacePart:
    """A Stateful that saves and restores the workspace of a session."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.full = False
        """Whether the next capture is a full stat pass."""
        self.held: SafetySnapshot | None = None
        """The safety snapshot to use while the files are restored."""
        self.keep_unseen = False
        self.decision: Decision | None = None
        """The entry that decides the restore."""

    def checkpoint_to(self, writer: Writer) -> str:
        """Capture the files. Raises the same errors as `Workspace.snapshot`."""
        return self.workspace.checkpoint_to(writer, full=self.full)

    def state_dict(self) -> ObjectRef:
        """Take a snapshot and return its reference.

        Raises the same errors as `Workspace.snapshot`.
        """
        return self.workspace.state_dict()

    def load_state_dict(self, state: Any) -> Plan:
        """Restore the files from a snapshot. Raises the same errors as `Workspace.restore`."""
        if not isinstance(state, ObjectRef):
            raise StateMismatchError(
                f"The workspace part must be a snapshot, not {type(state).__name__}."
            )
        if self.held is None:
            return self.workspace.restore(state)
        return self.workspace.restore_held(
            state, self.held, keep_unseen=self.keep_unseen, decision=self.decision
        )

    def changed_since(self, store: Store, checkpoint: Checkpoint | None) -> set[str]:
        """Return the paths that differ from a checkpoint.

        Raises the same errors as `Workspace.diff`.
        """
        tree = None if checkpoint is None else tree_in(store, checkpoint)
        if tree is None:
            return set()
        diff = self.workspace.diff(tree)
        paths = {*diff.added, *diff.removed, *diff.changed}
        return paths | {*diff.renamed, *diff.renamed.values()}

    def undo_load(self, plan: Plan) -> None:
        """Undo a restore. Raises the same errors as `Workspace.restore`."""
        self.workspace.undo_load(plan)


def is_empty(directory: Path) -> bool:
    """Return whether a directory is empty, apart from the staging directory of a restore."""
    return directory.is_dir() and all(item.name == STAGING.decode() for item in directory.iterdir())


def choose_directory(
    given: str | os.PathLike[str] | None, recorded: str | None, *, rebind: bool, has_files: bool
) -> Path | None:
    """Return the working directory of a session; create it if there are files to restore.

    Args:
        given: the `workspace=` argument.
        recorded: the recorded directory.
        rebind: whether to accept another directory that is not empty.
        has_files: whether the checkpoint has files to restore.

    Raises:
        InvalidInputError: the session is bound to another directory and this one is not empty; or
            there are files to restore, but no directory.
        WorkspaceError: the directory cannot be created.
    """
    if given is None and recorded is None:
        if has_files:
            raise InvalidInputError(
                "This session is a fork without a directory.",
                hint=Hint(
                    "Pass workspace= with a new directory to restore its files.", "new_directory"
                ),
            )
        return None
    directory = Path(os.path.realpath(given if given is not None else str(recorded)))
    is_another = recorded is not None and directory != Path(recorded)
    if is_another and directory.exists() and not is_empty(directory) and not rebind:
        raise InvalidInputError(
            f"This session is bound to {short_repr(recorded, 200)}, and "
            f"{short_repr(str(directory), 200)} is not empty.",
            hint=Hint("Pass rebind=True to continue with the files in it.", "rebind"),
        )
    if not directory.exists() and has_files:
        try:
            directory.mkdir(parents=True)
        except OSError as error:
            raise WorkspaceError(f"Cannot create {directory} ({error.strerror}).") from error
    return directory
