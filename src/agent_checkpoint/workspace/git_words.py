"""What a restore does to git's heads and branches, in words. Owns those words; writes nothing."""

from __future__ import annotations

import os

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.comparing import Change
from agent_checkpoint.workspace.tree import FILE, Get, Item

_LONGEST = 4096


class GitWords:
    """Gathers sentences about the changes of one plan."""

    def __init__(self, before: Get, after: Get) -> None:
        self._before = before
        self._after = after
        self.words: list[str] = []

    def look(self, change: Change) -> None:
        """Add a sentence if a change moves a head or a branch."""
        place, found, inside = (b"/" + change.path).partition(b"/.git/")
        if not found or not (inside == b"HEAD" or inside.startswith(b"refs/heads/")):
            return
        old, new = _read(change.before, self._before), _read(change.after, self._after)
        if old is None and new is None:
            return
        repository = os.fsdecode(place[1:]) or "this repository"
        what = "HEAD" if inside == b"HEAD" else f"branch {os.fsdecode(inside[11:])}"
        self.words.append(f"{what} of {repository} goes from {_short(old)} to {_short(new)}")


def _read(item: Item | None, get: Get) -> str | None:
    if item is None or item.type != FILE or item.size > _LONGEST or item.id != item.ref:
        return None
    try:
        (found,) = get([item.ref])
    except IntegrityError:  # just seen, and not stored yet: the plan needs no such words
        return None
    return found.payload.decode(errors="replace").strip()


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    if text.startswith("ref: refs/heads/"):
        return text[len("ref: refs/heads/") :]
    return text[:12]
