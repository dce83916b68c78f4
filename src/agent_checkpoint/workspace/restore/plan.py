"""What a restore would do, and what it leaves alone. Owns that decision; touches nothing.

Whatever is deleted or overwritten is held by the safety checkpoint, just as it is now. What is
excluded, could not be read or was torn is left alone, in the present and in the tree alike.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from agent_checkpoint.errors import ConflictError
from agent_checkpoint.workspace.ignore.rules import Rules
from agent_checkpoint.workspace.restore.git_changes import GitChanges
from agent_checkpoint.workspace.restore.staging import STAGING
from agent_checkpoint.workspace.tree.compare import Change, Side, differences, is_same
from agent_checkpoint.workspace.tree.dir_state import (
    IGNORED,
    READ_AGAIN,
    SPECIAL,
    STORE,
    TORN,
    UNREADABLE,
    Folder,
    Note,
)
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, Item

_WORDS = {
    IGNORED: "it is excluded",
    SPECIAL: "it is {text}, which is never touched",
    STORE: "it is {text}",
    UNREADABLE: "it cannot be read ({text})",
    TORN: "it was changing while it was read",
}


_EXECUTABLE = 0o111
_INERT_IN_GIT = frozenset(
    b"objects refs logs HEAD ORIG_HEAD FETCH_HEAD MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD index "
    b"packed-refs description shallow COMMIT_EDITMSG MERGE_MSG MERGE_MODE SQUASH_MSG".split()
)
"""Names in a `.git` whose content git neither runs nor takes settings from."""
_GIT_OBJECT = re.compile(
    rb"/objects/([0-9a-f]{2}/[0-9a-f]{38,62}|pack/pack-[0-9a-f]{40,64}\.[a-z]+)\Z"
)


class PlanChangedError(ConflictError):
    """Something else would be done to files than what was shown before."""

    def __init__(self, what: str = "Files have") -> None:
        super().__init__(f"{what} changed since the preview: nothing was done. Look at it again.")


class Step(NamedTuple):
    """One entry to be made so; `before` is what is there now, with its stamp."""

    path: bytes
    before: Item | None
    after: Item | None
    stamp: bytes

    @property
    def keeps_content(self) -> bool:
        """Whether only the mode is to change."""
        before, after = self.before, self.after
        return (
            before is not None
            and after is not None
            and is_same(before._replace(mode=after.mode), after._replace())
        ) or (before is not None and after is not None and before.type == after.type == FOLDER)

    @property
    def makes_executable(self) -> bool:
        """Whether a file can be run afterwards that could not be, or that had other content."""
        after = self.after
        is_program = after is not None and after.type == FILE and after.mode & _EXECUTABLE
        was_program = self.before is not None and self.before.mode & _EXECUTABLE
        return bool(is_program and not (self.keeps_content and was_program))

    @property
    def removes_folder(self) -> bool:
        """Whether a directory goes, for good or to make room for something else."""
        was_folder = self.before is not None and self.before.type == FOLDER
        return was_folder and (self.after is None or self.after.type != FOLDER)


@dataclass(repr=False)
class Plan:
    """What a restore does, path by path, in words that a person can check."""

    tree: Tree
    steps: list[Step] = field(default_factory=list, repr=False)
    write: list[str] = field(default_factory=list)
    """Files, links and directories that are made or get their old content."""
    delete: list[str] = field(default_factory=list)
    mode: list[str] = field(default_factory=list)
    """What only gets its old permission bits."""
    leave: dict[str, str] = field(default_factory=dict)
    """What is left alone though the tree has it otherwise, and why."""
    unseen: list[str] = field(default_factory=list)
    """What is overwritten or deleted and no regular checkpoint holds, only the safety one."""
    kept: dict[str, str] = field(default_factory=dict)
    """Where a version is kept that was written during the restore, beside a later one."""
    open: list[str] = field(default_factory=list)
    """What was replaced or deleted while a process had it open for writing: what that process still
    writes goes to the old file, which has no name any more."""
    git: list[str] = field(default_factory=list)
    """What happens to git's own heads and branches."""
    executable: list[str] = field(default_factory=list)
    """Files that become executable, or are and get other content."""
    git_files: list[str] = field(default_factory=list)
    """What is written into a `.git` that git may run or take settings from."""
    left: set[bytes] = field(default_factory=set, repr=False)
    """What is left alone, with all that is below."""
    safety: Tree | None = None
    """The workspace as it was before, to go back to."""
    safety_id: str | None = None
    """The checkpoint that holds it."""

    def keep(self, holding: set[bytes]) -> None:
        """Keep directories that hold what is left alone, and say what is done to all others."""
        kept = {step.path for step in self.steps if step.path in holding and step.removes_folder}
        replaced = {
            step.path for step in self.steps if step.path in kept and step.after is not None
        }
        done, self.steps = self.steps, []
        for step in done:
            if replaced and not replaced.isdisjoint({step.path, *_parents(step.path)}):
                self.leave[os.fsdecode(step.path)] = "a directory in its place cannot be emptied"
            elif step.path in kept:
                self.leave[os.fsdecode(step.path)] = "it holds what is left alone"
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
        """What tells whether another plan does the same to each file, and finds it the same now."""
        told = sha256()
        for step in self.steps:
            items = [item and item._replace(ref="") for item in (step.before, step.after)]
            told.update(repr((step.path, items)).encode())
        told.update(repr(sorted(self.leave)).encode())
        return told.hexdigest()

    def __bool__(self) -> bool:
        return bool(self.steps)

    def __repr__(self) -> str:
        return f"<Plan {self._summary()}>"

    def _summary(self) -> str:
        numbers = [(self.write, "to write"), (self.delete, "to delete"), (self.mode, "modes")]
        told = [f"{len(paths):,} {words}" for paths, words in numbers if paths]
        return f"to tree {self.tree.id[:12]}: {', '.join(told) or 'nothing to do'}"

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
        lines += [f"  git: {words}" for words in self.git]
        lines += [f"  executable: {path}" for path in self.executable]
        lines += [f"  run or read by git: {path}" for path in self.git_files]
        return "\n".join(lines)


class Planner:
    """Decides, for one restore, about each entry that differs."""

    def __init__(
        self,
        now: Side,
        tree: Tree,
        *,
        safety: Side | None = None,
        last_regular: Tree | None = None,
        keep_unseen: bool = False,
        paths: Iterable[bytes] | None = None,
        exclude: Rules,
    ) -> None:
        """Prepare.

        Args:
            now: the workspace as it was just seen.
            tree: what it is to become.
            safety: the tree of the safety checkpoint, if that is not `now`.
            last_regular: the tree of the last regular checkpoint, if there is one.
            keep_unseen: leave alone what that one does not hold.
            paths: what to restore; everything if None.
            exclude: what not to restore.
        """
        self._now = now
        self._tree = tree
        self._paths = None if paths is None else frozenset(paths)
        self._above = {above for path in self._paths or () for above in _parents(path)}
        self._exclude = exclude
        self._refused: list[bytes] = []
        self._keep_unseen = keep_unseen
        self._notes = {os.fsencode(note.path): note for note in tree.notes}
        self._rules = _RulesOf(tree)
        self._unseen = _changed(last_regular, now)
        self._strange = None if safety is None else _strange(safety, now, tree)

    def plan(self) -> Plan:
        """Return the plan.

        Raises:
            IntegrityError: an object of the tree is missing or damaged, or it is no tree at all.
            StorageError: the medium failed.
        """
        plan = Plan(self._tree)
        left = plan.left
        holding: set[bytes] = set()
        then = Side(self._tree.root.ref, self._tree.get)
        git = GitChanges(self._now, then)
        for change in differences(self._now, then, self._wants):
            if self._is_on_the_way(change):
                continue
            if change.path.rpartition(b"/")[0] in left:
                left.add(change.path)
                continue
            why = self._why_left(change)
            if why is None and change.path in self._unseen and change.before is not None:
                plan.unseen.append(os.fsdecode(change.path))
                why = "no checkpoint but the safety one holds it" if self._keep_unseen else None
            if why is not None:
                plan.leave[os.fsdecode(change.path)] = why
                left.add(change.path)
                holding |= _parents(change.path)
                continue
            if _holds_more(change):
                holding |= {change.path, *_parents(change.path)}
            plan.steps.append(_step(change))
            git.look(change)
        self._tell_losses(plan)
        for path in self._refused:
            holding |= _parents(path)
        plan.git = git.words
        plan.keep(holding)
        return plan

    def _tell_losses(self, plan: Plan) -> None:
        """Say what is left alone because it cannot be captured, also where the tree lacks it."""
        if not isinstance(self._now.place, Folder):
            return
        for path, note in self._now.place.all_notes():
            if note.is_loss and not note.is_captured and self._is_wanted(path, bool(note.type)):
                plan.leave.setdefault(os.fsdecode(path), _WORDS[note.kind].format(text=note.text))

    def _wants(self, path: bytes, is_folder: bool) -> bool:
        is_wanted = self._is_wanted(path, is_folder)
        if not is_wanted:
            self._refused.append(path)
        return is_wanted

    def _is_wanted(self, path: bytes, is_folder: bool) -> bool:
        directory, _, name = path.rpartition(b"/")
        if self._exclude and self._exclude.excludes(directory, name, is_folder):
            return False
        if self._paths is None:
            return True
        return self._is_within(path) or (is_folder and path in self._above)

    def _is_within(self, path: bytes) -> bool:
        """Tell whether a path was asked for, or is below one that was."""
        return self._paths is None or not self._paths.isdisjoint({path, *_parents(path)})

    def _is_on_the_way(self, change: Change) -> bool:
        """Tell whether a directory only leads to what was asked for: it stays as it is."""
        is_kept = change.before is not None and change.after is not None
        return is_kept and not self._is_within(change.path)

    def _why_left(self, change: Change) -> str | None:
        if change.path == STAGING:
            return "restores are staged there"
        here = change.folder.notes.get(change.name) if change.folder is not None else None
        if here is not None and (here.kind == TORN or not here.is_captured):
            return _WORDS[here.kind].format(text=here.text)
        if self._strange is not None and change.path in self._strange:
            return "it changed after the safety checkpoint"
        there = self._notes.get(change.path)
        if there is not None and there.kind == TORN and change.path not in (self._paths or ()):
            return "it was changing when the checkpoint was taken"
        if change.after is not None and is_git_lock(change.path):
            return "git would take it for the lock of one that is running"
        if change.after is None:
            if there is not None and Note(there.kind).is_loss:
                return (
                    "it was a store when the checkpoint was taken"
                    if there.kind == STORE
                    else "it could not be read when the checkpoint was taken"
                )
            if self._rules.excluded(change.path, change.before):
                return "it was excluded when the checkpoint was taken"
            if is_git_object(change.path) and change.before and change.before.type != FOLDER:
                return "objects of git are never deleted"
        return None


def is_git_object(path: bytes) -> bool:
    """Tell whether a path is in the objects of a git repository, also of a submodule's."""
    names = path.split(b"/")
    return b".git" in names and b"objects" in names[names.index(b".git") :]


def is_git_lock(path: bytes) -> bool:
    """Tell whether a path is a lock of git: to bring it back would keep every git out."""
    *above, name = path.split(b"/")
    return b".git" in above and (name.endswith(b".lock") or name == b"gc.pid")


def is_git_setting(path: bytes) -> bool:
    """Tell whether a path is in a `.git`, and git may run it or take settings from it.

    Hooks, `config`, and all that is not known to be harmless; also a file `.git`, which leads to
    another repository. Upper and lower case are one where the file system takes them so.
    """
    names = path.split(b"/")
    below = [names[place + 1 :] for place, name in enumerate(names) if name.lower() == b".git"]
    return any(not rest or rest[0] not in _INERT_IN_GIT for rest in below) and not (
        _GIT_OBJECT.search(path)  # of a submodule, say
    )


def is_git_index(path: bytes) -> bool:
    """Tell whether a path is an index of git, of a repository or of one within it."""
    *above, name = path.split(b"/")
    return b".git" in above and name == b"index"


def _parents(path: bytes) -> set[bytes]:
    """Return the paths of the directories above."""
    names = path.split(b"/")
    return {b"/".join(names[:depth]) for depth in range(1, len(names))}


def _holds_more(change: Change) -> bool:
    """Tell whether there is something in a directory that is not captured."""
    if change.folder is None or change.before is None or change.before.type != FOLDER:
        return False
    return any(not note.is_captured for note in change.folder.folders[change.name].notes.values())


def _step(change: Change) -> Step:
    stamp = READ_AGAIN
    if change.folder is not None and change.before is not None:
        stamp = change.folder.stamp_of(change.name)
    return Step(change.path, change.before, change.after, stamp)


def _changed(seen: Tree | None, now: Side) -> set[bytes]:
    """Return the paths of what the last regular checkpoint does not hold as it is now."""
    if seen is None:
        return set()
    changes = differences(Side(seen.root.ref, seen.get), now)
    return {change.path for change in changes if change.after and change.after.type != FOLDER}


def _strange(evidence: Side, now: Side, tree: Tree) -> set[bytes]:
    """Return the paths of what neither the safety checkpoint nor the target holds as it is now."""
    wanted = differences(Side(tree.root.ref, tree.get), now)
    return _not_as_now(wanted) & _not_as_now(differences(evidence, now))


def _not_as_now(changes: Iterable[Change]) -> set[bytes]:
    """Return the paths of what came or changed; of directories, only those that came."""
    return {
        path
        for path, before, after, _ in changes
        if after is not None and (after.type != FOLDER or before is None or before.type != FOLDER)
    }


class _RulesOf:
    """The rules that were in force when a tree was taken, read from the tree as needed."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._top = Rules.of(tree.ignore, gitignore=tree.gitignore)
        self._known: dict[bytes, tuple[Rules, Side]] = {}

    def excluded(self, path: bytes, item: Item | None) -> bool:
        """Tell whether a path that the tree lacks was left out of it."""
        directory, _, name = path.rpartition(b"/")
        rules, _ = self._within(directory)
        is_folder = item is not None and item.type == FOLDER
        return bool(rules) and rules.excludes(directory, name, is_folder)

    def _within(self, directory: bytes) -> tuple[Rules, Side]:
        if directory not in self._known:
            if directory:
                parent, _, name = directory.rpartition(b"/")
                rules, above = self._within(parent)
                side = above.below(next((i for i in above.items() if i.name == name), None))
            else:
                rules, side = self._top, Side(self._tree.root.ref, self._tree.get)
            texts = {
                item.name: self._tree.get([item.ref])[0].payload
                for item in (side.items() if rules.files(directory) else ())
                if item.name in rules.files(directory) and item.type == FILE and item.id == item.ref
            }
            self._known[directory] = (rules.within(directory, texts) if texts else rules, side)
        return self._known[directory]
