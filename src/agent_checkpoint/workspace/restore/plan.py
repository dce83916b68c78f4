"""The plan of a restore: the entries to change and the entries to leave. Writes nothing.

An entry is deleted or overwritten only if the safety checkpoint holds its current state. Entries
that are excluded, unreadable or torn, now or in the target tree, are not changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.git_changes import describe_git_change
from agent_checkpoint.workspace.restore.journal import RestoreOptions
from agent_checkpoint.workspace.scan.walk import STAGING
from agent_checkpoint.workspace.tree.compare import Change, Side, differences
from agent_checkpoint.workspace.tree.dir_state import (
    IGNORED,
    SPECIAL,
    STORE,
    TORN,
    UNREADABLE,
    DirState,
    Note,
)
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, Item

_REASONS = {
    IGNORED: "it is excluded",
    SPECIAL: "it is {text}, which a restore never changes",
    STORE: "it is {text}",
    UNREADABLE: "it cannot be read ({text})",
    TORN: "it was changing while it was read",
}


_GIT_DATA_NAMES = frozenset(
    b"objects refs logs HEAD ORIG_HEAD FETCH_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD index "
    b"packed-refs description shallow COMMIT_EDITMSG MERGE_MSG MERGE_MODE SQUASH_MSG".split()
)
"""Names in a `.git` directory that git neither executes nor reads settings from."""
_GIT_OBJECT = re.compile(
    rb"/objects/([0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]{40,64}\.[a-z]+)\Z"
)


class PlanChangedError(ConflictError):
    """The plan of a restore differs from the one that was previewed."""

    def __init__(self, what: str = "Files have") -> None:
        super().__init__(f"{what} changed since the preview: nothing was done. Preview again.")


@dataclass(repr=False)
class Plan:
    """The changes of a restore, path by path, for review."""

    tree: Tree
    steps: list[Change] = field(default_factory=list, repr=False)
    write: list[str] = field(default_factory=list)
    """Files, links and directories that are created or overwritten."""
    delete: list[str] = field(default_factory=list)
    mode: list[str] = field(default_factory=list)
    """Paths whose permission bits change, but not their content."""
    leave: dict[str, str] = field(default_factory=dict)
    """Paths that differ from the tree but are not changed, with the reason."""
    unseen: list[str] = field(default_factory=list)
    """Paths to be overwritten or deleted whose content is only in the safety checkpoint."""
    kept: dict[str, str] = field(default_factory=dict)
    """Versions written by other processes during the restore: maps a path to the kept copy."""
    open: list[str] = field(default_factory=list)
    """Paths replaced or deleted while a process had them open for writing. Its later writes go to
    the old file, which is unlinked."""
    git: list[str] = field(default_factory=list)
    """Changes of HEAD and branches of git repositories."""
    executable: list[str] = field(default_factory=list)
    """Files that become executable, and executable files that get other content."""
    git_files: list[str] = field(default_factory=list)
    """Files in a `.git` directory that git may execute or read settings from."""
    left: set[bytes] = field(default_factory=set, repr=False)
    """Paths that are not changed, including everything below them."""
    safety: Tree | None = None
    """The workspace before the restore."""
    safety_id: str | None = None
    """The id of the safety checkpoint, which holds `safety`."""

    def keep(self, holding: set[bytes]) -> None:
        """Drop steps that would remove directories of kept entries; list the rest by kind."""
        kept = {step.path for step in self.steps if step.path in holding and step.removes_folder}
        replaced = {
            step.path for step in self.steps if step.path in kept and step.after is not None
        }
        steps, self.steps = self.steps, []
        for step in steps:
            if replaced and not replaced.isdisjoint({step.path, *_parents(step.path)}):
                self.leave[os.fsdecode(step.path)] = "the directory at its path cannot be emptied"
            elif step.path in kept:
                self.leave[os.fsdecode(step.path)] = "it holds entries that are left alone"
            else:
                self.steps.append(step)
        for step in self.steps:
            if step.after is None:
                paths = self.delete
            else:
                paths = self.mode if step.keeps_content else self.write
                if step.makes_executable:
                    self.executable.append(os.fsdecode(step.path))
                if step.after.type != FOLDER and is_git_setting(step.path):
                    self.git_files.append(os.fsdecode(step.path))
            paths.append(os.fsdecode(step.path))

    @property
    def digest(self) -> str:
        """A hash of all steps and of the current state of their entries, to compare plans."""
        digest = sha256()
        for step in self.steps:
            items = [item and item._replace(ref="") for item in (step.before, step.after)]
            digest.update(repr((step.path, items)).encode())
        digest.update(repr(sorted(self.leave)).encode())
        return digest.hexdigest()

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __repr__(self) -> str:
        return f"<Plan {self._summary()}>"

    def _summary(self) -> str:
        numbers = [(self.write, "to write"), (self.delete, "to delete"), (self.mode, "modes")]
        parts = [f"{len(paths):,} {words}" for paths, words in numbers if paths]
        return f"to tree {self.tree.id[:12]}: {', '.join(parts) or 'nothing to do'}"

    def __str__(self) -> str:
        lines = [f"Restore {self._summary()}"]
        for title, paths in (
            ("write", self.write),
            ("delete", self.delete),
            ("set the mode of", self.mode),
        ):
            lines += [f"  {title} {path}" for path in paths]
        lines += [f"  leave {path}: {why}" for path, why in self.leave.items()]
        lines += [f"  kept {path} as {where}" for path, where in self.kept.items()]
        lines += [f"  open for writing in another process: {path}" for path in self.open]
        lines += [f"  in no other checkpoint: {path}" for path in self.unseen]
        lines += [f"  git: {sentence}" for sentence in self.git]
        lines += [f"  executable: {path}" for path in self.executable]
        lines += [f"  run or read by git: {path}" for path in self.git_files]
        return "\n".join(lines)


class Planner:
    """Decides what one restore does with each entry that differs."""

    def __init__(
        self,
        current: Side,
        tree: Tree,
        options: RestoreOptions,
        safety: Tree | None = None,
        last_regular: Tree | None = None,
    ) -> None:
        """Prepare a plan.

        Args:
            current: the scanned workspace.
            tree: the target.
            options: the part of the target to restore.
            safety: the tree of the safety checkpoint, if that is not `current`.
            last_regular: the tree of the last checkpoint that is not a safety checkpoint, if any.
        """
        self._current = current
        self._tree = tree
        self._paths = None if options.paths is None else frozenset(options.paths)
        self._above = {above for path in self._paths or () for above in _parents(path)}
        self._exclude = Rules.of(options.exclude)
        self._unselected: list[bytes] = []
        self._keep_unseen = options.keep_unseen
        self._notes = {os.fsencode(note.path): note for note in tree.notes}
        self._rules = _TreeRules(tree)
        self._unseen = _changed_since(last_regular, current)
        self._unprotected = None if safety is None else _unprotected(safety, current, tree)

    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            IntegrityError: an object of the tree is missing or damaged, or is not a tree.
            StorageError: the medium failed.
        """
        plan = Plan(self._tree)
        left = plan.left
        holding: set[bytes] = set()
        target = Side(self._tree.root.ref, self._tree.get)
        for change in differences(self._current, target, self._selects):
            if self._is_parent_only(change):
                continue
            if change.path.rpartition(b"/")[0] in left:
                left.add(change.path)
                continue
            reason = self._reason_to_leave(change)
            if reason is None and change.path in self._unseen and change.before is not None:
                plan.unseen.append(os.fsdecode(change.path))
                reason = "only the safety checkpoint holds it" if self._keep_unseen else None
            if reason is not None:
                plan.leave[os.fsdecode(change.path)] = reason
                left.add(change.path)
                holding |= _parents(change.path)
                continue
            if _holds_uncaptured(change):
                holding |= {change.path, *_parents(change.path)}
            plan.steps.append(change)
            plan.git += describe_git_change(change, self._current, target)
        self._list_losses(plan)
        for path in self._unselected:
            holding |= _parents(path)
        plan.keep(holding)
        return plan

    def _list_losses(self, plan: Plan) -> None:
        """Add entries that cannot be captured to `leave`, even if the tree lacks them."""
        if not isinstance(self._current.place, DirState):
            return
        for path, note in self._current.place.all_notes():
            if note.is_loss and not note.is_captured and self._is_selected(path, bool(note.type)):
                plan.leave.setdefault(os.fsdecode(path), _REASONS[note.kind].format(text=note.text))

    def _selects(self, path: bytes, is_folder: bool) -> bool:
        is_selected = self._is_selected(path, is_folder)
        if not is_selected:
            self._unselected.append(path)
        return is_selected

    def _is_selected(self, path: bytes, is_folder: bool) -> bool:
        directory, _, name = path.rpartition(b"/")
        if self._exclude and self._exclude.excludes(directory, name, is_folder):
            return False
        if self._paths is None:
            return True
        return self._is_within(path) or (is_folder and path in self._above)

    def _is_within(self, path: bytes) -> bool:
        """Return whether a path is one of `paths`, or below one."""
        return self._paths is None or not self._paths.isdisjoint({path, *_parents(path)})

    def _is_parent_only(self, change: Change) -> bool:
        """Return whether a directory is only a parent of selected paths, so is not changed."""
        is_kept = change.before is not None and change.after is not None
        return is_kept and not self._is_within(change.path)

    def _reason_to_leave(self, change: Change) -> str | None:
        if change.path == STAGING:
            return "it is the staging directory of restores"
        note = change.folder.notes.get(change.name) if change.folder is not None else None
        if note is not None and (note.kind == TORN or not note.is_captured):
            return _REASONS[note.kind].format(text=note.text)
        if self._unprotected is not None and change.path in self._unprotected:
            return "it changed after the safety checkpoint"
        tree_note = self._notes.get(change.path)
        if (
            tree_note is not None
            and tree_note.kind == TORN
            and change.path not in (self._paths or ())
        ):
            return "it was changing when the checkpoint was taken"
        if change.after is not None and is_git_lock(change.path):
            return "git would treat it as the lock of a running process"
        if change.after is None:
            if tree_note is not None and Note(tree_note.kind).is_loss:
                return (
                    "it was a store when the checkpoint was taken"
                    if tree_note.kind == STORE
                    else "it could not be read when the checkpoint was taken"
                )
            if self._rules.excluded(change.path, change.before):
                return "it was excluded when the checkpoint was taken"
            if is_git_object(change.path) and change.before and change.before.type != FOLDER:
                return "git objects are never deleted"
        return None


def is_git_object(path: bytes) -> bool:
    """Return whether a path is in the object directory of a git repository or submodule."""
    names = path.split(b"/")
    return b".git" in names and b"objects" in names[names.index(b".git") :]


def is_git_lock(path: bytes) -> bool:
    """Return whether a path is a lock file of git. Restoring it would block every git command."""
    *above, name = path.split(b"/")
    return b".git" in above and (name.endswith(b".lock") or name == b"gc.pid")


def is_git_setting(path: bytes) -> bool:
    """Return whether a path is in a `.git` and git may execute it or read settings from it.

    These are hooks, `config` and every name not known to be harmless; also a file `.git`, which
    refers to another repository. Case is ignored because the file system may be case-insensitive.
    """
    names = path.split(b"/")
    below = [names[index + 1 :] for index, name in enumerate(names) if name.lower() == b".git"]
    return any(not rest or rest[0] not in _GIT_DATA_NAMES for rest in below) and not (
        _GIT_OBJECT.search(path)  # for example of a submodule
    )


def is_git_index(path: bytes) -> bool:
    """Return whether a path is the index of a git repository or of a nested one."""
    *above, name = path.split(b"/")
    return b".git" in above and name == b"index"


def _parents(path: bytes) -> set[bytes]:
    """Return the paths of the parent directories."""
    names = path.split(b"/")
    return {b"/".join(names[:depth]) for depth in range(1, len(names))}


def _holds_uncaptured(change: Change) -> bool:
    """Return whether a directory to be removed contains entries that are not captured."""
    if change.folder is None or change.before is None or change.before.type != FOLDER:
        return False
    return any(not note.is_captured for note in change.folder.subdirs[change.name].notes.values())


def _changed_since(last_regular: Tree | None, current: Side) -> set[bytes]:
    """Return the files and links created or changed since a checkpoint; none without one."""
    if last_regular is None:
        return set()
    changes = differences(Side(last_regular.root.ref, last_regular.get), current)
    return {change.path for change in changes if change.after and change.after.type != FOLDER}


def _unprotected(safety: Tree, current: Side, tree: Tree) -> set[bytes]:
    """Return the paths whose current state neither the safety checkpoint nor the target holds."""
    by_tree = (differences(Side(each.root.ref, each.get), current) for each in (tree, safety))
    return set.intersection(*map(_new_or_changed, by_tree))


def _new_or_changed(changes: Iterable[Change]) -> set[bytes]:
    """Return the paths of new or changed entries; of directories, only the new ones."""
    return {
        path
        for path, before, after, _ in changes
        if after is not None and (after.type != FOLDER or before is None or before.type != FOLDER)
    }


class _TreeRules:
    """The ignore rules that applied when a tree was captured, read from the tree on demand."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._top = Rules.of(tree.ignore, gitignore=tree.gitignore)
        self._by_directory: dict[bytes, tuple[Rules, Side]] = {}

    def excluded(self, path: bytes, item: Item | None) -> bool:
        """Return whether a path that is not in the tree was excluded by its rules."""
        directory, _, name = path.rpartition(b"/")
        rules, _ = self._within(directory)
        is_folder = item is not None and item.type == FOLDER
        return bool(rules) and rules.excludes(directory, name, is_folder)

    def _within(self, directory: bytes) -> tuple[Rules, Side]:
        if directory not in self._by_directory:
            if directory:
                parent, _, name = directory.rpartition(b"/")
                rules, above = self._within(parent)
                side = above.below(next((i for i in above.items() if i.name == name), None))
            else:
                rules, side = self._top, Side(self._tree.root.ref, self._tree.get)
            texts = {
                item.name: next(iter(self._tree.get([item.ref]))).payload
                for item in (side.items() if rules.files(directory) else ())
                if item.name in rules.files(directory) and item.type == FILE and item.id == item.ref
            }
            self._by_directory[directory] = (
                rules.within(directory, texts) if texts else rules,
                side,
            )
        return self._by_directory[directory]
