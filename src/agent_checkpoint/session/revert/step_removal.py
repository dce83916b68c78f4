"""Takes the changes of steps out of a tree, with a three-way merge. Owns the rules; writes nothing.

The base of the merge is the tree after a step, one side the tree before it, the other the present:
later work stays. A change that later work overlaps is a conflict. A file that a later step renamed
is followed, if its content did not change in that step.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.session.revert.text_merge import (
    Hunk,
    carry_forward,
    edits,
    merge_lines,
    split_lines,
)
from agent_checkpoint.workspace.tree.compare import Change, tree_changes
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import (
    FILE,
    FOLDER,
    ContentHash,
    Item,
    read_directory,
)
from agent_checkpoint.workspace.tree.tree_reader import find, pieces

_LARGEST_TEXT, _MOST_LINES, _PROBE = 1 << 20, 20_000, 8000


@dataclass(frozen=True)
class RevertConflict:
    """A path whose change cannot be taken out, because later work overlaps it."""

    path: str
    step: str
    """The id of the checkpoint that ends the step."""
    why: str
    hunks: tuple[Hunk, ...] = ()
    """The places in a text; empty if the file as a whole conflicts."""

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.why}"]
        for hunk in self.hunks:
            lines.append(f"  line {hunk.line}:")
            names = (("=", "now"), ("-", "the step wrote"), ("+", "before it"))
            for (sign, name), side in zip(names, hunk.texts):
                lines.append(f"    {sign} {name}")
                lines += [f"    {sign} | {line}" for line in side]
        return "\n".join(lines)


class LaterFiles(NamedTuple):
    """The files of a checkpoint after a step."""

    tree: Tree
    kept: Collection[str] | None = None
    """If the checkpoint ends a step that is taken out as well: the paths whose changes are kept."""

    def is_removed(self, path: bytes) -> bool:
        """Return whether the change of a path to these files is taken out."""
        return self.kept is not None and os.fsdecode(path) not in self.kept


@dataclass
class Removal:
    """What taking steps out changes."""

    edits: dict[bytes, Item | None] = field(default_factory=dict)
    """The new entries by path; None for a path that is removed."""
    contents: dict[str, bytes] = field(default_factory=dict)
    """New file contents by id."""
    conflicts: list[RevertConflict] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    """Files that later steps renamed: the path in the step, and the present one."""


class StepRemoval:
    """Takes steps out of one tree, the newest first."""

    def __init__(self, current: Tree, *, with_markers: bool = False) -> None:
        """Prepare.

        Args:
            current: the present files.
            with_markers: whether to write conflicting texts with conflict markers.
        """
        self._current = current
        self._with_markers = with_markers
        self._directories: dict[bytes, dict[bytes, Item]] = {}
        self.result = Removal()

    def remove(
        self,
        name: str,
        before: Tree,
        after: Tree,
        later: Sequence[LaterFiles] = (),
        kept: Collection[str] = (),
    ) -> None:
        """Take out one step.

        Args:
            name: the id of the checkpoint that ends the step.
            before: the files before the step.
            after: the files after it.
            later: the files of later checkpoints, oldest first.
            kept: paths whose changes are kept.

        Raises:
            IntegrityError: an object is missing or damaged.
            StorageError: the medium failed.
        """
        _OneStep(self, name, before, after, later, kept).run()

    def changes(self) -> list[Change]:
        """Return the changes of the present tree, as `EditedTree` takes them."""
        found = []
        for path, item in self.result.edits.items():
            old = self._original(path)
            if old is not None or item is not None:
                found.append(Change(path, old, item, None))
        return [change for change in found if not _is_equal(change.before, change.after)]

    # -- the present files, with the edits so far ------------------------------------------------

    def now(self, path: bytes) -> Item | None:
        """Return the entry at a path."""
        edits = self.result.edits
        return edits[path] if path in edits else self._original(path)

    def entries(self, path: bytes) -> list[bytes]:
        """Return the names in a directory."""
        names = {*self._listed(path)}
        prefix = path + b"/" if path else b""
        names |= {
            edited[len(prefix) :]
            for edited in self.result.edits
            if edited.startswith(prefix) and b"/" not in edited[len(prefix) :]
        }
        return sorted(name for name in names if self.now(prefix + name) is not None)

    def content(self, tree: Tree, item: Item) -> bytes | None:
        """Return the text of a file; None if it is binary or large."""
        if item.size > _LARGEST_TEXT:
            return None
        text = self.result.contents.get(item.id)
        text = b"".join(pieces(tree.get, item)) if text is None else text
        is_text = b"\0" not in text[:_PROBE] and text.count(b"\n") < _MOST_LINES
        return text if is_text else None

    def set(self, path: bytes, item: Item | None) -> None:
        """Replace an entry."""
        name = path.rpartition(b"/")[2]
        self.result.edits[path] = None if item is None else item._replace(name=name)

    def set_text(self, path: bytes, text: bytes, mode: int) -> None:
        """Replace an entry by a file."""
        digest = ContentHash()
        digest.add(text)
        name = digest.id()
        self.result.contents[name] = text
        self.set(path, Item(b"", FILE, mode, len(text), name, name))

    @property
    def tree(self) -> Tree:
        """The present files without the edits."""
        return self._current

    @property
    def with_markers(self) -> bool:
        """Whether to write conflict markers."""
        return self._with_markers

    def _original(self, path: bytes) -> Item | None:
        parent, _, name = path.rpartition(b"/")
        return self._listed(parent).get(name)

    def _listed(self, path: bytes) -> dict[bytes, Item]:
        if path not in self._directories:
            item = self._original(path) if path else None
            found: dict[bytes, Item] = {}
            if not path or (item is not None and item.type == FOLDER):
                ref = self._current.root.ref if item is None else item.ref
                found = {one.name: one for one in read_directory(ref, self._current.get)}
            self._directories[path] = found
        return self._directories[path]


class _OneStep:
    """Takes one step out."""

    def __init__(
        self,
        removal: StepRemoval,
        name: str,
        before: Tree,
        after: Tree,
        later: Sequence[LaterFiles],
        kept: Collection[str],
    ) -> None:
        self._removal = removal
        self._name = name
        self._before = before
        self._after = after
        self._later = [*later, LaterFiles(removal.tree)]
        self._kept = kept
        self._edited = set(removal.result.edits)
        """The paths out of which other steps were taken before."""

    def run(self) -> None:
        """Take out the changes: new directories, files, directories that are left empty."""
        changes = tree_changes(self._before, self._after)
        moved = exact_renames(changes)
        left = [
            change
            for change in changes
            if not self._is_kept(change, moved) and not self._is_moved(change, moved)
        ]
        folders = [change for change in left if _has_folder(change)]
        for change in folders:
            self._bring_folder(change)
        for old, new in moved.items():
            if os.fsdecode(old) not in self._kept and os.fsdecode(new) not in self._kept:
                self._move_back(old, new, changes)
        for change in left:
            if not _has_folder(change):
                self._take_out(change)
        for change in reversed(folders):
            self._drop_folder(change)

    def _is_kept(self, change: Change, moved: dict[bytes, bytes]) -> bool:
        return os.fsdecode(change.path) in self._kept and not self._is_moved(change, moved)

    def _is_moved(self, change: Change, moved: dict[bytes, bytes]) -> bool:
        return change.path in moved or change.path in moved.values()

    def _take_out(self, change: Change) -> None:
        path, old, new = change.path, change.before, change.after
        now = self._removal.now(path)
        origin = path
        if now is None and new is not None:
            target = self._follow(path)
            if target is not None:
                path, now = target, self._removal.now(target)
        if _is_equal(now, old):
            return
        if not _is_equal(now, new) or not self._is_untouched(path, origin):
            self._merge(path, origin, old, new, now)
        elif self._has_parent(path, old):
            self._removal.set(path, old)

    def _move_back(self, old: bytes, new: bytes, changes: Iterable[Change]) -> None:
        """Undo a rename that the step made."""
        items = {change.path: change for change in changes}
        source, target = items[old].before, items[new].after
        there, here = self._removal.now(new), self._removal.now(old)
        if source is None or target is None:
            return
        if there is None and _is_equal(here, source):
            return
        if there is None or here is not None:
            why = "it was removed or renamed since" if there is None else "its old name is in use"
            self._conflict(new, f"the step renamed it from {os.fsdecode(old)}, and {why}")
            return
        if not self._has_parent(old, source):
            return
        if _is_equal(there, target):
            self._removal.set(old, source)
        else:  # the rename kept the content: later work is what differs
            mode = _merged_mode(source, target, there)
            if mode is None or there.type != FILE:
                self._conflict(new, "its mode or type was changed since")
                return
            self._removal.set(old, there._replace(mode=mode))
        self._removal.set(new, None)

    def _merge(
        self, path: bytes, origin: bytes, old: Item | None, new: Item | None, now: Item | None
    ) -> None:
        """Merge a file that both the step and later work changed."""
        if now is None:
            why = "the step changed it, and it was removed since"
        elif old is None:
            why = "the step created it, and it was changed since"
        elif new is None:
            why = "the step removed it, and it was created again since"
        elif not now.type == old.type == new.type == FILE:
            why = "the step changed it, and it is another kind of entry since"
        else:
            self._merge_files(path, origin, old, new, now)
            return
        self._conflict(path, why)

    def _merge_files(self, path: bytes, origin: bytes, old: Item, new: Item, now: Item) -> None:
        mode = _merged_mode(old, new, now)
        if mode is None:
            self._conflict(path, "its mode was changed by the step and since")
            return
        if old.id == new.id or now.id == old.id:
            self._removal.set(path, now._replace(mode=mode))
            return
        if now.id == new.id and self._is_untouched(path, origin):
            self._removal.set(path, old._replace(mode=mode))
            return
        removal = self._removal
        texts = [
            removal.content(self._after, new),
            removal.content(removal.tree, now),
            removal.content(self._before, old),
        ]
        if None in texts:
            self._conflict(path, "it is binary or large, and was changed by the step and since")
            return
        base, ours, theirs = (split_lines(text) for text in texts if text is not None)
        versions, removed = self._versions(origin, path, base)
        lines = carry_forward(edits(base, theirs), versions, removed) if versions else None
        if lines is not None and not self._has_conflict(path):
            removal.set_text(path, b"".join(lines), mode)
            return
        merged = merge_lines(base, ours, theirs)
        if not merged.conflicts:  # later work overlapped, and was taken back
            merged = merge_lines(base, ours, theirs, decides=False)
        is_first = not self._has_conflict(path)
        self._conflict(path, "later work overlaps the change of the step", tuple(merged.conflicts))
        if removal.with_markers and is_first:
            at = f"@{self._name.rpartition('-')[2]}"
            names = ("now", f"after {at}", f"before {at}")
            removal.set_text(path, merged.text(names), mode)

    def _has_conflict(self, path: bytes) -> bool:
        """Return whether a later step that is taken out conflicts there."""
        return any(one.path == os.fsdecode(path) for one in self._removal.result.conflicts)

    def _is_untouched(self, path: bytes, origin: bytes) -> bool:
        """Return whether a file that is as the step wrote it was not changed meanwhile.

        Asked only where other steps were taken out: those may have made it so.
        """
        if path not in self._edited:
            return True
        before = _entry(self._after, origin)
        for at, item, files in self._since(origin):
            if not _is_equal(before, item) and not files.is_removed(at):
                return False
            before = item
        return True

    def _versions(
        self, path: bytes, end: bytes, first: list[bytes]
    ) -> tuple[list[list[bytes]], set[int]]:
        """Return the versions of a file since the step, of which the last is at the path `end`.

        Also the positions of those that steps made that are taken out as well. No versions if one
        of them is not a text, or if the file at that path is another one.
        """
        versions, removed, known = [first], set[int](), ""
        for at, item, files in self._since(path):
            text = None
            if item is not None and item.type == FILE:
                text = self._removal.content(files.tree, item)
            if item is None or text is None:
                return [], set()
            if item.id != known:
                versions.append(split_lines(text))
                removed.update([len(versions) - 1] if files.is_removed(at) else [])
            known, path = item.id, at
        return (versions, removed) if path == end else ([], set())

    # -- directories -----------------------------------------------------------------------------

    def _bring_folder(self, change: Change) -> None:
        """Create a directory that the step removed, or take back a change of its mode."""
        old, new, now = change.before, change.after, self._removal.now(change.path)
        if old is None or old.type != FOLDER:
            return
        if now is not None and now.type == FOLDER:
            mode = old.mode if new is None or new.type != FOLDER else _merged_mode(old, new, now)
            if new is None or new.type != FOLDER:
                return  # it is there again
            if mode is None:
                self._conflict(change.path, "its mode was changed by the step and since")
            elif mode != now.mode:
                self._removal.set(change.path, now._replace(mode=mode))
        elif _is_equal(now, new) and self._has_parent(change.path, old):
            self._removal.set(change.path, old)
        elif not _is_equal(now, new):
            self._conflict(change.path, "the step replaced this directory, and so did later work")

    def _drop_folder(self, change: Change) -> None:
        """Remove a directory that the step created, if nothing is left in it."""
        old, new, now = change.before, change.after, self._removal.now(change.path)
        if new is None or new.type != FOLDER or (old is not None and old.type == FOLDER):
            return
        is_empty = now is not None and now.type == FOLDER and not self._removal.entries(change.path)
        if is_empty:
            self._removal.set(change.path, old)
        elif old is not None:
            self._conflict(change.path, "the step made this directory, and later work is in it")

    def _has_parent(self, path: bytes, item: Item | None) -> bool:
        """Return whether the directory of an entry to bring back still exists."""
        parent = path.rpartition(b"/")[0]
        if item is None or not parent:
            return True
        above = self._removal.now(parent)
        if above is not None and above.type == FOLDER:
            return True
        self._conflict(path, "its directory was removed since")
        return False

    # -- renames ---------------------------------------------------------------------------------

    def _follow(self, path: bytes) -> bytes | None:
        """Return the present path of a file that later steps renamed."""
        start = path
        for at, _, _ in self._since(start):
            path = at
        if path == start or self._removal.now(path) is None:
            return None
        self._removal.result.renamed[os.fsdecode(start)] = os.fsdecode(path)
        return path

    def _since(self, path: bytes) -> Iterator[tuple[bytes, Item | None, LaterFiles]]:
        """Iterate over the path and the entry of a file in later files, through renames."""
        tree = self._after
        for files in self._later:
            if files.tree.id == tree.id:
                continue
            item = _entry(files.tree, path)
            if item is None:
                path = exact_renames(tree_changes(tree, files.tree)).get(path, path)
                item = _entry(files.tree, path)
            yield path, item, files
            tree = files.tree

    def _conflict(self, path: bytes, why: str, hunks: tuple[Hunk, ...] = ()) -> None:
        found = RevertConflict(os.fsdecode(path), self._name, why, hunks)
        self._removal.result.conflicts.append(found)


def _entry(tree: Tree, path: bytes) -> Item | None:
    try:
        return find(tree, os.fsdecode(path))
    except NotFoundError:
        return None


def exact_renames(changes: Iterable[Change]) -> dict[bytes, bytes]:
    """Return the files that moved with the same content: old path, new path.

    Contents that several files have are not followed: which one moved is unknown.
    """
    gone: dict[str, list[bytes]] = {}
    made: dict[str, list[bytes]] = {}
    for change in changes:
        for item, other, found in (
            (change.before, change.after, gone),
            (change.after, change.before, made),
        ):
            if item is not None and other is None and item.type == FILE and item.size:
                found.setdefault(item.id, []).append(change.path)
    return {
        paths[0]: made[name][0]
        for name, paths in gone.items()
        if len(paths) == 1 and len(made.get(name, ())) == 1
    }


def _has_folder(change: Change) -> bool:
    return any(item is not None and item.type == FOLDER for item in (change.before, change.after))


def _is_equal(one: Item | None, other: Item | None) -> bool:
    """Return whether two entries are equal, apart from their names and where they are stored."""
    if one is None or other is None:
        return one is other
    if one.type == other.type == FOLDER:
        return one.mode == other.mode
    return one._replace(ref="", name=b"") == other._replace(ref="", name=b"")


def _merged_mode(old: Item, new: Item, now: Item) -> int | None:
    """Return the mode without the change of the step; None if it conflicts with later work."""
    if old.mode == new.mode or now.mode == old.mode:
        return now.mode
    return old.mode if now.mode == new.mode else None
