"""The page of what differs between two checkpoints. Owns which parts and files are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.web.diff.line_matching import Effort
from agent_checkpoint.web.diff.side_by_side import Sides, lines_of, side_by_side
from agent_checkpoint.web.diff.state_changes import StateChange, state_changes
from agent_checkpoint.web.pages import file_view
from agent_checkpoint.web.site import Site, asked, wanted
from agent_checkpoint.web.state.lazy_state import Peek
from agent_checkpoint.workspace.tree.compare import Side
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FOLDER
from agent_checkpoint.workspace.tree.workspace_diff import compare
from agent_checkpoint.workspace.tree_names import PART as FILES
from agent_checkpoint.workspace.tree_names import tree_in

_OPEN_FILES = 20
"""How many files are compared line by line at once."""
_MOST_FILES = 1_000
_MOST_TEXT = 512_000


class FileChange(NamedTuple):
    """A path that is not the same in both."""

    path: str
    kind: str
    words: str
    before: str
    """Where it was, if elsewhere."""
    sides: Sides | None
    """The lines; None if they were not compared yet."""
    note: str


def diff_page(site: Site, request: Request) -> Response:
    """Show what differs between two checkpoints, also of two keys."""
    said = asked(request)
    before = site.find(wanted(said, "a"))
    after = site.find(wanted(said, "b"))
    names = dict.fromkeys([*before.parts, *after.parts])
    parts = [name for name in names if name not in (FILES, SESSION_PART)]
    peek = Peek(site.store.backend)
    effort = Effort()
    changes: list[StateChange] = []
    is_whole = True
    only = said.get("path", "")
    if not only:
        changes, is_whole = state_changes(peek, before.parts, after.parts, parts, effort)
    file_changes, number = _file_changes(site, before, after, only, effort)
    return site.page(
        "diff.html",
        before=before,
        after=after,
        key=after.key,
        changes=changes,
        is_whole=is_whole,
        files=file_changes,
        number=number,
        path=only,
        is_late=effort.was_late,
    )


def _file_changes(
    site: Site, before: Checkpoint, after: Checkpoint, only: str, effort: Effort
) -> tuple[list[FileChange], int]:
    trees = tree_in(site.store, before), tree_in(site.store, after)
    if (trees[0] is None and trees[1] is None) or trees[0] == trees[1]:
        return [], 0
    diff = compare(*(_side(tree, trees) for tree in trees))
    effort.begin()  # a large directory takes its time, which is no reason to compare no file
    rows: list[tuple[str, str, str, str]] = []
    rows += [(path, "changed", ", ".join(what), path) for path, what in diff.changed.items()]
    rows += [(new, "renamed", f"was {old}", old) for old, new in diff.renamed.items()]
    rows += [(path, "added", "", path) for path in diff.added]
    rows += [(path, "removed", "", path) for path in diff.removed]
    rows.sort()
    if only:
        rows = [row for row in rows if row[0] == only]
    found = []
    looks = tuple(None if tree is None else file_view.TreeReader(tree) for tree in trees)
    for place, (path, kind, words, old) in enumerate(rows[:_MOST_FILES]):
        sides, note = None, ""
        if place < _OPEN_FILES and kind != "renamed" and not effort.is_over:
            sides, note = _compared(looks, old, path, words, effort)
        found.append(FileChange(path, kind, words, old if old != path else "", sides, note))
    return found, len(rows)


def _side(tree: Tree | None, trees: tuple[Tree | None, Tree | None]) -> Side:
    if tree is not None:
        return Side(tree.root.ref, tree.get)
    other = trees[0] or trees[1]
    if other is None:
        raise AssertionError("unreachable: one of them is there")
    return Side(None, other.get)


def _compared(
    looks: Sequence[file_view.TreeReader | None], old: str, new: str, words: str, effort: Effort
) -> tuple[Sides | None, str]:
    texts: list[list[str]] = []
    notes: list[str] = []
    for look, path in zip(looks, (old, new)):
        lines, note = _lines(look, path.rstrip("/"))
        texts.append(lines)
        notes += [note] if note else []
    if notes:
        return None, "Not compared line by line: " + "; then ".join(notes)
    if texts[0] == texts[1]:
        return None, "" if not words else f"Only the {words} changed"
    return side_by_side(texts[0], texts[1], effort), ""


def _lines(look: file_view.TreeReader | None, path: str) -> tuple[list[str], str]:
    """Return the lines of a file, or why there are none to be shown."""
    try:
        item: Any = None if look is None else look.find(path)
    except NotFoundError:
        item = None
    if look is None or item is None:
        return [], ""
    if item.type == FOLDER:
        return [], "a directory"
    found = file_view.content(look.tree, item, _MOST_TEXT)
    if found.is_binary:
        return [], f"binary, {item.size:,} bytes"
    return lines_of(found.text), "" if found.is_whole else f"large, {item.size:,} bytes"
