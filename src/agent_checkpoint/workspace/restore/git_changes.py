"""Describes how a restore changes HEAD and branches of git repositories. Writes nothing."""

from __future__ import annotations

import os

from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.workspace.tree.compare import Change, Side
from agent_checkpoint.workspace.tree.tree_format import FILE, Get, Item

_MAX_REF_BYTES, _MAX_PACKED_REFS_BYTES = 4096, 1 << 20


def describe_git_change(change: Change, before: Side, after: Side) -> list[str]:
    """Return a description if a change between two sides affects HEAD or a branch."""
    repository, is_git, ref = (b"/" + change.path).partition(b"/.git/")
    if not is_git or not (ref == b"HEAD" or ref.startswith(b"refs/heads/")):
        return []
    old = _read(change.before, before.get) or _packed(before, repository, ref)
    new = _read(change.after, after.get) or _packed(after, repository, ref)
    if old == new:
        return []
    shown = os.fsdecode(repository[1:]) or "this repository"
    name = "HEAD" if ref == b"HEAD" else f"branch {os.fsdecode(ref[11:])}"
    return [f"{name} of {shown} moves from {_short(old)} to {_short(new)}"]


def _packed(side: Side, repository: bytes, ref: bytes) -> str | None:
    """Return the value of a ref in `packed-refs`; None if it is not there."""
    item: Item | None = None
    for name in (repository[1:] + b"/.git/packed-refs").lstrip(b"/").split(b"/"):
        side = side if item is None else side.below(item)
        item = next((item for item in side.items() if item.name == name), None)
        if item is None:
            return None
    for line in (_read(item, side.get, _MAX_PACKED_REFS_BYTES) or "").splitlines():
        value, _, name_of_line = line.partition(" ")
        if name_of_line == os.fsdecode(ref):
            return value
    return None


def _read(item: Item | None, get: Get, max_bytes: int = _MAX_REF_BYTES) -> str | None:
    if item is None or item.type != FILE or item.size > max_bytes or item.id != item.ref:
        return None
    try:
        (blob,) = get([item.ref])
    except IntegrityError:  # scanned but not stored yet: the description is optional
        return None
    return os.fsdecode(blob.payload).strip()


def _short(text: str | None) -> str:
    if text is None:
        return "nothing"
    if text.startswith("ref: refs/heads/"):
        return text[len("ref: refs/heads/") :]
    return text[:12]
