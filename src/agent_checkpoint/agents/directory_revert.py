"""Reverts steps of a directory: of coding agents, `run`, `watch` and `save`. Owns the result.

The result is a checkpoint of the directory's own key, as that of a restore, so that `undo` takes it
back.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from agent_checkpoint.agents.directory_keys import RESTORED
from agent_checkpoint.options import Conflicts
from agent_checkpoint.records import Checkpoint, Draft, Kind
from agent_checkpoint.session.revert.revert import (
    RevertReport,
    StepPair,
    merge_without,
    parents_of_revert,
    present_tree,
    refuse_conflicts,
)
from agent_checkpoint.store.directory_claims import make_claim
from agent_checkpoint.store.maintenance.safety_checkpoints import prune_safety_checkpoints
from agent_checkpoint.store.objects.references import CapturedState
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.restore.journal import Decision
from agent_checkpoint.workspace.workspace import Workspace


def preview_revert(
    workspace: Workspace, pairs: Sequence[StepPair], conflicts: Conflicts
) -> RevertReport:
    """Return the report of a revert, and change nothing.

    Args:
        workspace: the directory.
        pairs: the steps, oldest first.
        conflicts: `refuse`, or `markers`.

    Raises:
        WorkspaceError: the directory cannot be read.
        CheckpointError: a step cannot be read.
    """
    current = present_tree(workspace, workspace.store)
    report, tree, paths = merge_without(
        workspace.store,
        pairs,
        current,
        os.path.realpath(workspace.path),
        with_markers=conflicts == "markers",
    )
    names = [os.fsdecode(path) for path in paths]
    report.files = workspace.restore(tree.tree, paths=names, dry_run=True)
    return report


def revert_and_save(
    workspace: Workspace,
    pairs: Sequence[StepPair],
    conflicts: Conflicts,
    only_if: RevertReport | None = None,
) -> RevertReport:
    """Revert steps, with a checkpoint of the result.

    Args:
        workspace: the directory, opened with its key.
        pairs: the steps, oldest first.
        conflicts: `refuse`, or `markers`.
        only_if: the report of a preview; refuse if the files changed since.

    Raises:
        RevertConflictError: later work overlaps the steps; nothing was changed.
        PlanChangedError: the files changed since `only_if`; nothing was changed.
        WorkspaceError: the files cannot be changed.
        CheckpointError: a step cannot be read.
    """
    store, transition = workspace.store, workspace.transition
    refuse_conflicts(preview_revert(workspace, pairs, conflicts), conflicts)
    with transition.locked():
        safety = transition.save(store)
        report, tree, paths = merge_without(
            store,
            pairs,
            safety.tree,
            os.path.realpath(workspace.path),
            with_markers=conflicts == "markers",
        )
        refuse_conflicts(report, conflicts)
        parents = parents_of_revert(safety.checkpoint_id, pairs)

        def append(_: Any) -> Checkpoint:
            captured: Any = CapturedState(tree, store.writer)
            label = f"{RESTORED}without {pairs[-1].after.key} {report.words}"
            draft = Draft(
                workspace.key,
                {FILES: captured},
                kind=Kind.RESTORE,
                label=label[:200].encode("utf-8", "replace").decode(),
                claim=make_claim(store.backend, workspace.key, workspace.path),
            )
            saved = store.write(draft, parents=parents)
            report.id = saved.id
            return saved

        report.files = workspace.restore_held(
            tree.tree,
            safety,
            paths=paths,
            only_if=None if only_if is None else only_if.files,
            decision=Decision(parents, append),
        )
        report.safety_id = safety.checkpoint_id
        prune_safety_checkpoints(store, workspace.key)
        return report
