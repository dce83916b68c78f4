"""The workspace of a session, as a part of its checkpoints. Owns how it is captured and set back.

The session's own safety checkpoint holds the present before files are replaced: one checkpoint
for all parts, instead of one more for the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_checkpoint.errors import InvalidInputError, StateMismatchError, WorkspaceError
from agent_checkpoint.records import Checkpoint, short_repr
from agent_checkpoint.store.objects.references import ObjectRef
from agent_checkpoint.store.objects.writer import Writer
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.restore.operation import SafetySnapshot
from agent_checkpoint.workspace.restore.plan import Plan
from agent_checkpoint.workspace.restore.staging import STAGING
from agent_checkpoint.workspace.tree_names import tree_in
from agent_checkpoint.workspace.workspace import Workspace


class WorkspacePart:
    """A Stateful that stands for the workspace when a session is saved or set back."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.full = False
        """Whether the next capture looks at every file."""
        self.held: SafetySnapshot | None = None
        """What holds the present while the files are set back."""
        self.keep_unseen = False

    def checkpoint_to(self, writer: Writer) -> str:
        """Capture the files. Raises as `Workspace.snapshot` does."""
        return self.workspace.checkpoint_to(writer, full=self.full)

    def state_dict(self) -> ObjectRef:
        """Return the name of a snapshot of the present. Raises as `Workspace.snapshot` does."""
        return self.workspace.state_dict()

    def load_state_dict(self, state: Any) -> Plan:
        """Set the files back. Raises as `Workspace.restore` does."""
        if not isinstance(state, ObjectRef):
            raise StateMismatchError(f"Files are a snapshot, not {type(state).__name__}.")
        if self.held is None:
            return self.workspace.restore(state)
        return self.workspace.restore_held(state, self.held, keep_unseen=self.keep_unseen)

    def changed_since(self, store: Store, checkpoint: Checkpoint | None) -> set[str]:
        """Return the paths that are not as in a checkpoint. Raises as `Workspace.diff` does."""
        tree = None if checkpoint is None else tree_in(store, checkpoint)
        if tree is None:
            return set()
        found = self.workspace.diff(tree)
        paths = {*found.added, *found.removed, *found.changed}
        return paths | {*found.renamed, *found.renamed.values()}

    def undo_load(self, plan: Plan) -> None:
        """Take that back. Raises as `Workspace.restore` does."""
        self.workspace.undo_load(plan)


def without_paths(plan: Plan, paths: Iterable[str]) -> Plan:
    """Return a plan that leaves some paths alone, with the directories that hold them."""
    left = {os.fsencode(path): path for path in paths}
    rest = Plan(
        plan.tree,
        [step for step in plan.steps if step.path not in left],
        leave={**plan.leave, **dict.fromkeys(left.values(), "no checkpoint holds it yet")},
        unseen=plan.unseen,
        git=plan.git,
        left=plan.left | left.keys(),
    )
    names = [path.split(b"/") for path in left]
    rest.keep({b"/".join(steps[:depth]) for steps in names for depth in range(1, len(steps))})
    return rest


def is_empty(place: Path) -> bool:
    """Tell whether a directory holds nothing, but for what an interrupted restore has left."""
    return place.is_dir() and all(item.name == STAGING.decode() for item in place.iterdir())


def choose_directory(
    given: str | os.PathLike[str] | None, remembered: str | None, *, rebind: bool, has_files: bool
) -> Path | None:
    """Return the directory that a session works in, made if it is missing and there are files.

    Args:
        given: what the user said.
        remembered: where the session worked before.
        rebind: whether to go on in another directory, whatever is in it.
        has_files: whether the session has files to put there.

    Raises:
        InvalidInputError: the session belongs to another directory, and there are files in this;
            or it has files, and no directory.
        WorkspaceError: there is no such directory.
    """
    if given is None and remembered is None:
        if has_files:
            raise InvalidInputError(
                "This session is a fork, and its files need a directory of their own: pass "
                "workspace=, a new directory."
            )
        return None
    place = Path(os.path.realpath(given if given is not None else str(remembered)))
    is_other = remembered is not None and place != Path(remembered)
    if is_other and place.exists() and not is_empty(place) and not rebind:
        raise InvalidInputError(
            f"This session works in {short_repr(remembered, 200)}, and "
            f"{short_repr(str(place), 200)} is not empty: its files would be taken for the "
            "session's own. Pass rebind=True if they are."
        )
    if not place.exists() and has_files:
        try:
            place.mkdir(parents=True)
        except OSError as error:
            raise WorkspaceError(f"{place} cannot be made ({error.strerror}).") from error
    return place
