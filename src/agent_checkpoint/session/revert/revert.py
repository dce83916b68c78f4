"""Reverts steps of a session: takes their file changes out, keeps the rest. Owns the order.

report     merge the present files without the steps; nothing is written
refuse     if later work overlaps, unless conflict markers are wanted
safety     save a safety checkpoint of all parts
stage      write the new file contents and the journal to the directory
commit     append the checkpoint of the result
restore    change the files; after a crash, the next open completes this step
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import InvalidInputError, RevertConflictError
from agent_checkpoint.formatting import format_count
from agent_checkpoint.options import Conflicts
from agent_checkpoint.records import Checkpoint, Draft, Kind, short_repr
from agent_checkpoint.session.revert.step_removal import (
    LaterFiles,
    RevertConflict,
    StepRemoval,
)
from agent_checkpoint.session.rollback.rollback import Rollback
from agent_checkpoint.session.rollback.rollback_report import RollbackReport
from agent_checkpoint.session.session_record import SESSION_PART, read_session_record
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.steps.line import REVERTED, is_revert, line_of, original
from agent_checkpoint.session.steps.ownership import (
    OtherCall,
    call_span,
    former_directories,
    other_calls,
    why_not_own,
)
from agent_checkpoint.session.steps.step import Step, StepReader
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.ledger_calls import Effect
from agent_checkpoint.store.lookup import find
from agent_checkpoint.store.objects.references import CapturedState, ReusedPart
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.restore.journal import Decision
from agent_checkpoint.workspace.restore.transition import SafetySnapshot
from agent_checkpoint.workspace.tree.compare import tree_changes
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.unsaved_tree import UnsavedTree, scanned_tree
from agent_checkpoint.workspace.workspace import Workspace

if TYPE_CHECKING:
    from agent_checkpoint.workspace.restore.plan import Plan

_MAX_NAMED = 20
_MAX_PARENTS = 200
"""Of more steps, the oldest are not recorded: a second revert of one of them finds no change."""


@dataclass(repr=False)
class RevertReport:
    """The changes of a revert, its conflicts, and what it does not take back."""

    steps: list[Step]
    """The steps, oldest first."""
    files: Plan | None = None
    """The plan for the files."""
    conflicts: list[RevertConflict] = field(default_factory=list)
    """Changes that later work overlaps; these are not taken out."""
    ambiguous: dict[str, str] = field(default_factory=dict)
    """Paths whose changes may be another session's, with the reason. They are kept."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Files that were renamed since: the path in the step, and the present one."""
    effects: RollbackReport | None = None
    """The external side effects of the steps, which a revert of files does not take back."""
    trees: tuple[Tree, Tree] | None = None
    """The present files and the merged ones, to compare them."""
    id: str | None = None
    """The checkpoint of the result; None if nothing was changed."""
    safety_id: str | None = None
    """The safety checkpoint saved before."""

    def __repr__(self) -> str:
        return f"<RevertReport of {self.words}: {'done' if self.id else 'not done'}>"

    @property
    def words(self) -> str:
        """The steps in words, such as `@17` or `@17..@20`."""
        names = [step.at for step in self.steps]
        return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"

    def __str__(self) -> str:
        verb = "reverted" if self.id else "would revert"
        lines = [f"The session {verb} {self.words}: {', '.join(s.words for s in self.steps)[:200]}"]
        lines += [f"  conflict in {conflict}" for conflict in self.conflicts]
        lines += [f"  keep {path}: {why}" for path, why in self.ambiguous.items()]
        lines += [f"  {old} is {new} now" for old, new in self.renamed.items()]
        lines += [] if self.files is None else [str(self.files)]
        if self.effects is not None and self.effects.effects:
            lines += ["External side effects of the steps, which stay:"]
            lines += [f"  {effect.words}" for effect in self.effects.effects]
        return "\n".join(lines)


@dataclass(frozen=True)
class StepPair:
    """The checkpoints before and after a step, and the later ones of its line."""

    before: Checkpoint
    after: Checkpoint
    later: tuple[Checkpoint, ...]


def step_pairs(store: Store, key: str, wanted: str | Sequence[str]) -> list[StepPair]:
    """Return the steps that a text names, such as `@17` or `@17..@20`, or several, oldest first.

    Raises:
        NotFoundError: there is no such checkpoint.
        InvalidInputError: a checkpoint is not in the history of the key, has no files, or was
            reverted already.
    """
    texts: list[Any] = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InvalidInputError(f"A step must be a checkpoint id, not {short_repr(wanted)}.")
    line = _line_with_files(store, key)
    chosen: set[int] = set()
    for text in texts:
        first, is_range, last = text.partition("..")
        start = _place(store, key, line, first)
        end = _place(store, key, line, last) if is_range else start
        if not 0 < start <= end:
            why = "has no step before it" if start == 0 else f"comes after {last}"
            raise InvalidInputError(f"{first} {why}: there is nothing to revert.")
        chosen.update(range(start, end + 1))
    pairs = [_pair(line, index) for index in sorted(chosen)]
    for pair in pairs:
        revert = _revert_of(pair.after, pair.later)
        if revert is not None:
            raise InvalidInputError(
                f"@{pair.after.seq} was already reverted by @{revert.seq}. To apply it again, "
                f"revert @{revert.seq}."
            )
    return pairs


def _revert_of(step: Checkpoint, later: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the revert that took a step out, unless it was reverted itself."""
    for item in later:
        if is_revert(item) and step.id in item.parents[1:] and _revert_of(item, later) is None:
            return item
    return None


def parents_of_revert(safety: str, pairs: Sequence[StepPair]) -> tuple[str, ...]:
    """Return the parents of a revert: its safety checkpoint and the steps, the last one last."""
    return (safety, *(pair.after.id for pair in pairs[-_MAX_PARENTS:]))


def own_pairs(store: Store, key: str) -> list[StepPair]:
    """Return the steps that a session or coding agent made itself, oldest first.

    Changes of files outside of its calls and runs are not its own. Raises as `line_of`.
    """
    line, reader = _line_with_files(store, key), StepReader(store)
    found = []
    for index in range(1, len(line)):
        after = line[index]
        if after.key != key or after.kind not in (Kind.SAVE, Kind.CLOSE, Kind.IN_FLIGHT):
            continue
        step = reader.step(line[index - 1], after, with_messages=False)
        if step.calls or step.agent == "session":
            found.append(_pair(line, index))
    return found


def _line_with_files(store: Store, key: str) -> list[Checkpoint]:
    head = store.head(key)
    line = [] if head is None else line_of(store, head)
    return [item for item in line if FILES in item.parts]


def _pair(line: list[Checkpoint], index: int) -> StepPair:
    return StepPair(line[index - 1], line[index], tuple(line[index + 1 :]))


def _place(store: Store, key: str, line: list[Checkpoint], name: str) -> int:
    """Return the position of a checkpoint in a line."""
    wanted = original(store, find(store, name, base=key))
    found = [index for index, item in enumerate(line) if item.id == wanted.id]
    if not found:
        raise InvalidInputError(
            f"{wanted.id} is not in the history of {short_repr(key)}: a rollback passed over it, "
            "it has no files, or it belongs to another key."
        )
    return found[0]


def merge_without(
    store: Store,
    pairs: Sequence[StepPair],
    current: Tree,
    directory: str | None,
    *,
    with_markers: bool,
) -> tuple[RevertReport, UnsavedTree, list[bytes]]:
    """Merge the present files without some steps, the newest first.

    Args:
        store: the store.
        pairs: the steps, oldest first.
        current: the present files.
        directory: the directory, whose other sessions make changes ambiguous.
        with_markers: whether to write conflicting texts with conflict markers.

    Returns the report, the new tree, and the paths that change.

    Raises:
        IntegrityError: an object is missing or damaged.
        StorageError: the medium failed.
    """
    reader, removal = StepReader(store), StepRemoval(current, with_markers=with_markers)
    end = pairs[-1].later[-1] if pairs[-1].later else pairs[-1].after
    report = RevertReport([reader.step(pair.before, pair.after, end=end) for pair in pairs])
    report.effects = _effects(store, pairs, report.steps)
    others: list[OtherCall] = []
    if directory is not None:
        keys, until = {pair.after.key for pair in pairs}, pairs[-1].after.ts_ns
        directories = {directory, *former_directories(store, (pair.after for pair in pairs))}
        others = other_calls(store, directories, keys, pairs[0].before.ts_ns, until)
    removed: dict[str, dict[str, str]] = {}
    for group in reversed(list(_neighbours(pairs))):
        first, last = group[0].before, group[-1].after
        kept = _ambiguous(store, group, others)
        report.ambiguous.update(kept)
        later = [
            LaterFiles(tree, removed.get(item.id))
            for item in group[-1].later
            if (tree := tree_in(store, item)) is not None
        ]
        removed.update({pair.after.id: kept for pair in group})
        removal.remove(last.id, files_of(store, first), files_of(store, last), later, kept)
    report.conflicts, report.renamed = removal.result.conflicts, removal.result.renamed
    changes = removal.changes()
    merged = UnsavedTree(current, changes, removal.result.contents.values())
    report.trees = current, merged.tree
    return report, merged, [change.path for change in changes]


def _neighbours(pairs: Sequence[StepPair]) -> Iterator[list[StepPair]]:
    """Iterate over groups of steps that follow each other: they may overlap, and are one change."""
    group: list[StepPair] = []
    for pair in pairs:
        if group and group[-1].after.id != pair.before.id:
            yield group
            group = []
        group.append(pair)
    if group:
        yield group


def _ambiguous(
    store: Store, group: Sequence[StepPair], others: Iterable[OtherCall]
) -> dict[str, str]:
    """Return the paths of a group whose changes may be another session's, with the reason."""
    span = group[0].before.ts_ns, group[-1].after.ts_ns
    calls = [call for call in others if call.overlaps(*span)]
    found: dict[str, str] = {}
    for pair in group:
        call = call_span(store, pair.before, pair.after)
        trees = files_of(store, pair.before), files_of(store, pair.after)
        for path in (os.fsdecode(change.path) for change in tree_changes(*trees)):
            why = why_not_own(path, call, calls)
            if why is not None:
                found.setdefault(path, why)
    return found


def _effects(
    store: Store, pairs: Sequence[StepPair], steps: Sequence[Step]
) -> RollbackReport | None:
    """Return the external side effects of steps, classified as for a rollback."""
    record = read_session_record(store, pairs[-1].after)
    if record is None:
        return None
    ledger = Ledger(store, record.family)
    ledger.refresh()
    report = RollbackReport(pairs[0].before.id, [FILES])
    report.classify(standing_effects(ledger, steps), record.is_own)
    return report


def standing_effects(ledger: Ledger, steps: Sequence[Step]) -> list[Effect]:
    """Return the effects that calls of steps made, and that were not compensated."""
    known = ledger.state.effects
    names = [call.effect or "" for step in steps for call in step.calls]
    return [known[name] for name in names if name in known and known[name].stands]


def files_of(store: Store, checkpoint: Checkpoint) -> Tree:
    """Return the files of a checkpoint. Raises InvalidInputError if it has none."""
    tree = tree_in(store, checkpoint)
    if tree is None:
        raise InvalidInputError(f"The checkpoint {short_repr(checkpoint.id, 120)} has no files.")
    return tree


def present_tree(workspace: Workspace, store: Store) -> Tree:
    """Return the tree of the present files, without a checkpoint.

    Raises the same errors as `Workspace.snapshot`.
    """
    options = workspace.options
    state = workspace.fork_origin.scan()
    return scanned_tree(state, store.backend, options["ignore"], options["gitignore"])


def refuse_conflicts(report: RevertReport, conflicts: Conflicts) -> None:
    """Raise RevertConflictError if there are conflicts that nobody asked to mark.

    Also if nothing else would change, and no conflict can be marked.
    """
    if not report.conflicts or can_be_marked(report, conflicts):
        return
    paths = [short_repr(item.path, 120) for item in report.conflicts[:_MAX_NAMED]]
    raise RevertConflictError(
        f"Nothing was reverted: later work overlaps {report.words} in "
        f"{format_count(len(report.conflicts), 'path')} ({', '.join(paths)}). {_way_out(report)}",
        report,
    )


def can_be_marked(report: RevertReport, conflicts: Conflicts) -> bool:
    """Return whether a revert with conflicts may go on: it writes markers, or other files."""
    is_changed = report.trees is not None and report.trees[0].id != report.trees[1].id
    return conflicts == "markers" and is_changed


def _way_out(report: RevertReport) -> str:
    if all(conflict.hunks for conflict in report.conflicts):
        return 'Revert later steps first, or pass conflicts="markers" to write conflict markers.'
    return "Revert later steps first. Conflict markers cannot show files that conflict as a whole."


class Revert(Rollback):
    """One revert of steps of a session; takes the same steps as a rollback of the files."""

    def __init__(
        self, state: SessionState, wanted: str | Sequence[str], conflicts: Conflicts
    ) -> None:
        """Find the steps; change nothing.

        Raises:
            InvalidInputError: the session has no files; or the same errors as `step_pairs`.
            CheckpointError: the steps cannot be read.
        """
        if state.files is None:
            raise InvalidInputError(f"The session {short_repr(state.key)} has no files.")
        self._workspace = state.files.workspace
        self._conflicts = conflicts
        self._pairs = step_pairs(state.manager.store, state.key, wanted)
        reader = StepReader(state.manager.store)
        self._steps = [reader.step(pair.before, pair.after) for pair in self._pairs]
        self._shown: RevertReport | None = None
        super().__init__(state, self._pairs[0].before, parts=[FILES])
        self.reverted = RevertReport(self._steps)

    def _effects_since(self) -> Iterator[Effect]:
        """Iterate over the remaining effects of the steps."""
        yield from standing_effects(self._state.ledger, self._steps)

    def preview_revert(self) -> RevertReport:
        """Return the report of what would change. Raises the same errors as `revert`."""
        tree, paths = self._merged(present_tree(self._workspace, self._store))
        names = [os.fsdecode(path) for path in paths]
        plan = self._workspace.restore(tree.tree, paths=names, dry_run=True)
        files, head = self._state.files, self._state.writer.head
        # Files unchanged since the head are saved in it.
        changed = set[str]() if files is None else files.changed_since(self._store, head)
        plan.unseen = [path for path in plan.unseen if path in changed]
        self.reverted.files = plan
        return self.reverted

    def revert(self, only_if: RevertReport | None = None) -> RevertReport:
        """Revert the steps.

        Raises:
            RevertConflictError: later work overlaps the steps; nothing was changed.
            ConflictError: tools are running, another process has opened the session, or the files
                changed since `only_if`.
            CheckpointError: the files cannot be changed; they are as before.
        """
        refuse_conflicts(self.preview_revert(), self._conflicts)  # before a safety checkpoint
        self._shown = only_if
        self.run("warn")
        report = self.reverted
        report.id, report.safety_id = self.report.id, self.report.safety_id
        return report

    def _apply(self, safety: Checkpoint) -> None:
        state, shown = self._state, self._shown
        current = files_of(self._store, safety)
        tree, paths = self._merged(current)
        refuse_conflicts(self.reverted, self._conflicts)
        record = state.record.replaced(drift=[])
        parents = parents_of_revert(safety.id, self._pairs)

        def append(_: Plan | None) -> Checkpoint:
            """Append the session's parts, with the merged files."""
            parts: dict[str, Any] = {name: ReusedPart(part) for name, part in safety.parts.items()}
            parts[FILES] = CapturedState(tree, self._store.writer)
            parts[SESSION_PART] = record.dump()
            label = f"{REVERTED}{self.reverted.words}: {_words(self.reverted)}"
            draft = Draft(state.key, parts, kind=Kind.RESTORE, label=label[:200])
            return state.writer.write(draft, parents)

        try:
            self.reverted.files = self.report.files = self._workspace.restore_held(
                tree.tree,
                SafetySnapshot(current, safety.id, self._last_regular_tree(safety)),
                paths=paths,
                only_if=None if shown is None else shown.files,
                decision=Decision(parents, append),
            )
        except BaseException as error:
            self._abort(safety, error)
            raise
        self._complete(record)

    def _merged(self, current: Tree) -> tuple[UnsavedTree, list[bytes]]:
        self.reverted, tree, paths = merge_without(
            self._store,
            self._pairs,
            current,
            os.path.realpath(self._workspace.path),
            with_markers=self._conflicts == "markers",
        )
        return tree, paths


def _words(report: RevertReport) -> str:
    return ", ".join(step.words for step in report.steps)[:150]
