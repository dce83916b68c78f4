"""What a restore does to git's heads and branches, in words. Owns those words; writes nothing."""

from __future__ import annotations

import os

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.tree.compare import Change, Side
from agent_checkpoint.workspace.tree.tree_format import FILE, Get, Item

_LONGEST, _LONGEST_PACKED = 4096, 1 << 20


class GitChanges:
    """Gathers sentences about the changes of one plan."""

    def __init__(self, before: Side, after: Side) -> None:
        self._before = before
        self._after = after
        self.words: list[str] = []

    def look(self, change: Change) -> None:
        """Add a sentence if a change moves a head or a branch."""
        place, found, inside = (b"/" + change.path).partition(b"/.git/")
        if not found or not (inside == b"HEAD" or inside.startswith(b"refs/heads/")):
            return
        old = _read(change.before, self._before.get) or _packed(self._before, place, inside)
        new = _read(change.after, self._after.get) or _packed(self._after, place, inside)
        if old == new:
            return
        repository = os.fsdecode(place[1:]) or "this repository"
        what = "HEAD" if inside == b"HEAD" else f"branch {os.fsdecode(inside[11:])}"
        self.words.append(f"{what} of {repository} goes from {_short(old)} to {_short(new)}")


def _packed(side: Side, place: bytes, reference: bytes) -> str | None:
    """Return where a branch is that has no file of its own."""
    item: Item | None = None
    for name in (place[1:] + b"/.git/packed-refs").lstrip(b"/").split(b"/"):
        side = side if item is None else side.below(item)
        item = next((item for item in side.items() if item.name == name), None)
        if item is None:
            return None
    for line in (_read(item, side.get, _LONGEST_PACKED) or "").splitlines():
        where, _, what = line.partition(" ")
        if what == os.fsdecode(reference):
            return where
    return None


def _read(item: Item | None, get: Get, longest: int = _LONGEST) -> str | None:
    if item is None or item.type != FILE or item.size > longest or item.id != item.ref:
        return None
    try:
        (found,) = get([item.ref])
    except IntegrityError:  # just seen, and not stored yet: the plan needs no such words
        return None
    return os.fsdecode(found.payload).strip()


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    if text.startswith("ref: refs/heads/"):
        return text[len("ref: refs/heads/") :]
    return text[:12]
