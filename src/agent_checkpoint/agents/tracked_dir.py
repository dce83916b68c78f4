"""Directories saved under a given key. Owns the checkpoints that `save` and `restore` write.

The key is derived from the path. A directory created from a fork uses the key of the fork. Each
checkpoint contains a claim, a signed record that binds the key to the directory.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_checkpoint.agents.directory_keys import RESTORED
from agent_checkpoint.errors import CheckpointError, RestoreIncompleteError
from agent_checkpoint.formatting import format_paths
from agent_checkpoint.records import Checkpoint, Draft, Kind
from agent_checkpoint.store.directory_claims import make_claim
from agent_checkpoint.store.maintenance.safety_checkpoints import prune_safety_checkpoints
from agent_checkpoint.store.objects.references import CapturedState
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import relative_path
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.workspace.restore.plan import Plan
    from agent_checkpoint.workspace.restore.transition import SafetySnapshot


def open_tracked(directory: Path, store: Store, key: str, **options: Any) -> Workspace:
    """Open a directory as a workspace whose checkpoints go to a given key.

    Args:
        directory: the directory to capture.
        store: where its checkpoints are saved.
        key: the key of its checkpoints.
        options: options of `Workspace`; `watch` is off by default, since most commands are short.

    Raises the same errors as `Workspace`.
    """
    workspace = Workspace(directory, store, **{"watch": False, **options})
    workspace.key = key
    return workspace


def restore_and_save(
    workspace: Workspace,
    target: Checkpoint,
    tree: Tree,
    selected: list[str] | None,
    *,
    only_if: Plan | None = None,
    **options: Any,
) -> Plan:
    """Restore, with a checkpoint of the result: the head of a key always matches the directory.

    Args:
        workspace: the directory, opened with its key.
        target: a checkpoint of the key, or of a session in the directory.
        tree: the files of the target.
        selected: the paths to restore; None for all.
        only_if: as for `restore`.
        options: `exclude` and `keep_unseen` of `restore`, and `progress` of `restore_held`.

    Raises the same errors as `restore`.
    """
    from agent_checkpoint.workspace.restore.journal import Decision  # slow to load

    store, transition = workspace.store, workspace.transition
    with transition.locked():
        safety = transition.save(store)
        # The whole tree counts as the target also if some paths were kept: later steps count from
        # there.
        is_whole = selected is None and target.key == workspace.key
        parents = (target.id,) if is_whole else (safety.checkpoint_id, target.id)
        append = partial(_append_result, workspace, target, selected, safety, parents)
        paths = None if selected is None else [relative_path(workspace.path, p) for p in selected]
        try:
            plan = workspace.restore_held(
                tree,
                safety,
                paths=paths,
                only_if=only_if,
                decision=Decision(parents, append),
                **options,
            )
        except RestoreIncompleteError:
            with suppress(CheckpointError):  # the head still matches the directory
                transition.save(store, Kind.RESTORE, f"{RESTORED}incompletely to @{target.seq}")
            raise
        prune_safety_checkpoints(store, workspace.key)  # last: the target may be one
        return plan


def _append_result(
    workspace: Workspace,
    target: Checkpoint,
    selected: list[str] | None,
    safety: SafetySnapshot,
    parents: tuple[str, ...],
    plan: Plan,
) -> Checkpoint:
    from agent_checkpoint.workspace.tree.tree_edit import EditedTree  # slow to load

    store, key = workspace.store, workspace.key
    name = f"@{target.seq}" if target.key == key else f"{target.key}@{target.seq}"
    label = f"to {name}" if selected is None else f"{format_paths(selected)} from {name}"
    files: Any = CapturedState(EditedTree(safety.tree, plan.steps, plan.tree), store.writer)
    draft = Draft(
        key,
        {FILES: files},
        kind=Kind.ROLLBACK if len(parents) == 1 else Kind.RESTORE,
        label=f"{RESTORED}{label}".encode("utf-8", "replace").decode(),
        claim=make_claim(store.backend, key, workspace.path),
    )
    return store.write(draft, parents=parents)
