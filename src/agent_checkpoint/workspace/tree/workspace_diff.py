"""The differences between two trees, as lists of paths and as a unified diff."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import CheckpointError, IntegrityError
from agent_checkpoint.formatting import format_count
from agent_checkpoint.workspace.tree.compare import Change, Side, differences
from agent_checkpoint.workspace.tree.tree_format import FILE, FOLDER, LINK, Get, Item

_LARGEST_TEXT = 1 << 20
_MOST_LINES = 20_000
"""Larger files are summarized: comparing them line by line would take minutes."""
_PROBE = 8000


@dataclass
class WorkspaceDiff:
    """The paths that differ between two trees. A directory is listed only if it is empty.

    `str(diff)` is a unified diff.
    """

    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Which aspects of each path differ: `type`, `content`, `mode`."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Files that moved with the same content: old path, new path."""
    _changes: list[Change] = field(default_factory=list, repr=False, compare=False)
    _gets: tuple[Get, Get] | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.renamed)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        with block_forks():
            from agent_checkpoint import notebook  # only in notebooks

        rows: list[tuple[str, str]] = [("added", path) for path in self.added]
        rows += [("removed", path) for path in self.removed]
        rows += [(f"changed: {', '.join(how)}", path) for path, how in self.changed.items()]
        rows += [("renamed", f"{old} → {new}") for old, new in self.renamed.items()]
        if not rows:
            return "<p>no changes</p>"
        try:
            text = self.text()
        except CheckpointError as error:  # the paths are still known
            text = str(error)
        listed = notebook.table(["", "path"], rows)
        is_open = len(rows) <= notebook.MOST
        title = format_count(len(rows), "changed path")
        unified = notebook.lines(text, is_diff=True)
        return notebook.section(title, listed, is_open=is_open) + notebook.section(
            "unified diff", unified, is_open=False
        )

    def text(self, context: int = 3) -> str:
        """Return the unified diff; binary and large files are summarized.

        Args:
            context: the number of unchanged lines to show around a change.

        Raises:
            IntegrityError: a stored file content is missing or damaged.
            StorageError: the medium failed.
        """
        return "".join(line + "\n" for line in self._lines(context))

    def only(self, wanted: Callable[[str], bool]) -> WorkspaceDiff:
        """Return the diff restricted to wanted paths; a rename is kept if either path is wanted."""
        return WorkspaceDiff(
            added=[path for path in self.added if wanted(path)],
            removed=[path for path in self.removed if wanted(path)],
            changed={path: what for path, what in self.changed.items() if wanted(path)},
            renamed={old: new for old, new in self.renamed.items() if wanted(old) or wanted(new)},
            _changes=[item for item in self._changes if wanted(os.fsdecode(item.path))],
            _gets=self._gets,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the paths as plain lists and dicts, for JSON."""
        return {
            "added": list(self.added),
            "removed": list(self.removed),
            "changed": {path: list(what) for path, what in self.changed.items()},
            "renamed": dict(self.renamed),
        }

    def _lines(self, context: int) -> Iterator[str]:
        targets = set(self.renamed.values())
        for old, new in sorted(self.renamed.items()):
            yield f"renamed {_quoted(old)} to {_quoted(new)}"
        for change in self._changes:
            path = os.fsdecode(change.path)
            if path in self.renamed or path in targets or self._gets is None:
                continue
            yield from _file_lines(change, self._gets, context)


def _file_lines(change: Change, gets: tuple[Get, Get], context: int) -> Iterator[str]:
    """Iterate over the lines of the unified diff of one path, without line ends."""
    before, after = change.before, change.after
    path = _quoted(os.fsdecode(change.path))
    old = f"a/{path}" if before is not None else "/dev/null"
    new = f"b/{path}" if after is not None else "/dev/null"
    yield f"diff {old} {new}"
    if before is not None and after is not None and before.mode != after.mode:
        yield f"old mode {before.mode:o}"
        yield f"new mode {after.mode:o}"
    if before is not None and after is not None and before.id == after.id != "":
        return
    texts = [_lines_of(item, get) for item, get in zip((before, after), gets)]
    if texts[0] is None or texts[1] is None:
        yield f"{old} and {new} differ: {_size(before)}, {_size(after)}"
        return
    with block_forks():
        from difflib import unified_diff  # slow to import, and needed only here

    for line in unified_diff(texts[0], texts[1], old, new, n=context, lineterm="\n"):
        yield from _ended(line)


def compare(before: Side, after: Side) -> WorkspaceDiff:
    """Return the differences from one tree to another.

    Raises:
        IntegrityError: an object is missing or damaged.
        StorageError: the medium failed.
    """
    all_changes = list(differences(before, after))
    nonempty = {change.path.rpartition(b"/")[0] for change in all_changes}
    changes = [change for change in all_changes if _is_listed(change, nonempty)]
    diff = WorkspaceDiff(_changes=changes, _gets=(before.get, after.get))
    removed: dict[str, list[str]] = {}
    for change in changes:
        path, old, new = os.fsdecode(change.path), change.before, change.after
        if old is not None and new is not None:
            diff.changed[path] = _aspects(old, new)
        elif old is not None and old.type == FILE and old.size:
            removed.setdefault(old.id, []).append(path)
    for change in changes:
        path, old, new = os.fsdecode(change.path), change.before, change.after
        if old is None and new is not None and new.type == FILE and removed.get(new.id):
            diff.renamed[removed[new.id].pop(0)] = path
        elif old is None and new is not None:
            diff.added.append(_shown(path, new))
    for change in changes:
        path = os.fsdecode(change.path)
        if change.after is None and change.before is not None and path not in diff.renamed:
            diff.removed.append(_shown(path, change.before))
    return diff


def _is_listed(change: Change, nonempty: set[bytes]) -> bool:
    """Return whether a path is listed. A non-empty directory that is added or removed is not."""
    sides = [item for item in (change.before, change.after) if item is not None]
    is_folder_alone = len(sides) == 1 and sides[0].type == FOLDER
    return not (is_folder_alone and change.path in nonempty)


def _aspects(before: Item, after: Item) -> tuple[str, ...]:
    if before.type != after.type:
        return ("type",)
    is_other = (before.id, before.target) != (after.id, after.target) and before.type != FOLDER
    return tuple(
        word
        for word, is_so in (("content", is_other), ("mode", before.mode != after.mode))
        if is_so
    )


def _shown(path: str, item: Item) -> str:
    return path + "/" if item.type == FOLDER else path


def _quoted(path: str) -> str:
    """Return a path escaped to printable ASCII, on one line."""
    return path if path.isprintable() and path.isascii() else ascii(path)[1:-1]


def _size(item: Item | None) -> str:
    if item is None:
        return "nothing"
    return {FOLDER: "a directory", LINK: "a link"}.get(item.type, f"{item.size:,} bytes")


def _lines_of(item: Item | None, get: Get) -> list[str] | None:
    """Return the lines of a file, with line ends; None if it is binary, large or not a file."""
    if item is None:
        return []
    if item.type == LINK:
        return [f"link to {os.fsdecode(item.target)}"]
    if item.type != FILE or item.size > _LARGEST_TEXT or item.id != item.ref:
        return None
    (blob,) = get([item.ref])
    if len(blob.payload) != item.size:
        raise IntegrityError(f"The object {item.ref} does not match its directory entry.")
    if b"\0" in blob.payload[:_PROBE]:
        return None
    lines = blob.payload.decode("utf-8", "surrogateescape").splitlines(keepends=True)
    return lines if len(lines) <= _MOST_LINES else None


def _ended(line: str) -> Iterator[str]:
    yield line.rstrip("\n")
    if not line.endswith("\n"):
        yield "\\ No newline at end of file"
