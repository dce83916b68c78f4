"""The page that compares two checkpoints. Owns the limits on parts and files shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.agent_scope import OPEN_CALLS
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.store import Store
from agent_checkpoint.web.diff.line_matching import DiffBudget
from agent_checkpoint.web.diff.side_by_side import Sides, lines_of, side_by_side
from agent_checkpoint.web.diff.state_changes import StateChange, state_changes
from agent_checkpoint.web.pages import file_view
from agent_checkpoint.web.rendering import Site, query_params, required
from agent_checkpoint.web.state.lazy_state import StateReader
from agent_checkpoint.workspace.checkpoint_tree import PART as FILES
from agent_checkpoint.workspace.checkpoint_tree import tree_in
from agent_checkpoint.workspace.tree.compare import Side
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER
from agent_checkpoint.workspace.tree.tree_reader import TreeReader
from agent_checkpoint.workspace.tree.workspace_diff import compare

_OPEN_FILES = 20
"""Files that are compared line by line on one page."""
_MAX_FILES = 1_000
_MAX_TEXT = 512_000


class FileChange(NamedTuple):
    """A path that differs between the two checkpoints."""

    path: str
    kind: str
    words: str
    before: str
    """The old path of a renamed file."""
    sides: Sides | None
    """The compared lines; None if not compared yet."""
    note: str


def diff_page(site: Site, request: Request) -> Response:
    """Show the differences between two checkpoints of the same or of different keys."""
    params = query_params(request)
    before = site.find(required(params, "a"))
    after = site.find(required(params, "b"))
    names = dict.fromkeys([*before.parts, *after.parts])
    parts = [name for name in names if name not in (FILES, SESSION_PART, OPEN_CALLS)]
    reader = StateReader(site.store.backend)
    budget = DiffBudget()
    changes: list[StateChange] = []
    is_whole = True
    only = params.get("path", "")
    if not only:
        changes, is_whole = state_changes(reader, before.parts, after.parts, parts, budget)
    files, number = file_changes(site.store, before, after, only, budget)
    return site.page(
        "diff.html",
        before=before,
        after=after,
        key=after.key,
        changes=changes,
        is_whole=is_whole,
        files=files,
        number=number,
        path=only,
        is_late=budget.timed_out,
    )


def file_changes(
    store: Store, before: Checkpoint, after: Checkpoint, only: str, budget: DiffBudget
) -> tuple[list[FileChange], int]:
    """Return the paths that differ between two checkpoints, the first ones compared, and all.

    Args:
        store: the store.
        before: the older checkpoint.
        after: the newer checkpoint.
        only: a path; empty for all.
        budget: the time for the comparison.

    Raises IntegrityError, StorageError.
    """
    return compare_trees(tree_in(store, before), tree_in(store, after), only, budget)


def compare_trees(
    before: Tree | None, after: Tree | None, only: str, budget: DiffBudget
) -> tuple[list[FileChange], int]:
    """Return the paths that differ between two trees, as `file_changes` does."""
    trees = before, after
    known = [tree for tree in trees if tree is not None]
    if not known or trees[0] == trees[1]:
        return [], 0
    nothing = Side(None, known[0].get)
    diff = compare(*(nothing if tree is None else Side(tree.root.ref, tree.get) for tree in trees))
    budget.begin()  # the time spent on a large directory does not count for its files
    rows: list[tuple[str, str, str, str]] = []
    rows += [(path, "changed", ", ".join(what), path) for path, what in diff.changed.items()]
    rows += [(new, "renamed", f"was {old}", old) for old, new in diff.renamed.items()]
    rows += [(path, "added", "", path) for path in diff.added]
    rows += [(path, "removed", "", path) for path in diff.removed]
    rows.sort()
    if only:
        rows = [row for row in rows if row[0] == only]
    changes = []
    readers = tuple(None if tree is None else TreeReader(tree) for tree in trees)
    for index, (path, kind, words, old) in enumerate(rows[:_MAX_FILES]):
        sides, note = None, ""
        if index < _OPEN_FILES and kind != "renamed" and not budget.is_over:
            sides, note = _compared(readers, old, path, words, budget)
        changes.append(FileChange(path, kind, words, old if old != path else "", sides, note))
    return changes, len(rows)


def _compared(
    readers: Sequence[TreeReader | None],
    old: str,
    new: str,
    words: str,
    budget: DiffBudget,
) -> tuple[Sides | None, str]:
    texts: list[list[str]] = []
    notes: list[str] = []
    for reader, path in zip(readers, (old, new)):
        lines, note = _lines(reader, path.rstrip("/"))
        texts.append(lines)
        notes += [note] if note else []
    if notes:
        return None, "Not compared line by line: " + "; then ".join(notes)
    if texts[0] == texts[1]:
        return None, "" if not words else f"Only the {words} changed"
    return side_by_side(texts[0], texts[1], budget), ""


def _lines(reader: TreeReader | None, path: str) -> tuple[list[str], str]:
    """Return the lines of a file, or the reason why they are not shown."""
    try:
        item: Any = None if reader is None else reader.find(path)
    except NotFoundError:
        item = None
    if reader is None or item is None:
        return [], ""
    if item.type == FOLDER:
        return [], "a directory"
    content = file_view.content(reader.tree, item, _MAX_TEXT)
    if content.is_binary:
        return [], f"binary, {item.size:,} bytes"
    return lines_of(content.text), "" if content.is_whole else f"large, {item.size:,} bytes"
