"""From what people type to a checkpoint: ids, keys, `key~2`, `key@17`.

Owns the short forms and the walk back through history; writes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from agent_checkpoint.errors import UNUSABLE, InvalidInputError, NotFoundError
from agent_checkpoint.records import (
    MAX_KEY_BYTES,
    Checkpoint,
    CheckpointId,
    parse_checkpoint_id,
    short_repr,
)
from agent_checkpoint.store.maintenance.tombstones import purged_at
from agent_checkpoint.store.objects.object_format import LostObjectError
from agent_checkpoint.store.store import Store, key_not_found

T = TypeVar("T")

SAME_CONTENT = frozenset({"rollback", "fork", "open"})
"""Kinds of checkpoints that repeat their first parent, and count as it when walking back."""

_TRIES = 5
_SHORT = re.compile(r"(?P<key>.+)(?P<sign>[~@])(?P<number>[0-9]{1,18})", re.DOTALL)


def retry_if_pruned(
    store: Store, look: Callable[[], Sequence[Checkpoint]], use: Callable[..., T]
) -> T:
    """Return what `use` returns for the checkpoints that `look` finds.

    One that is pruned and collected while it is used is no damage: then it is looked again for what
    there is now.

    Raises:
        IntegrityError: an object is missing that a checkpoint needs which is there.
    """
    for attempt in range(_TRIES):
        found = look()
        try:
            return use(*found)
        except LostObjectError:
            are_there = all(store.read(item.key, item.seq) is not None for item in found)
            if are_there or attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable: the loop returns or raises")


def find(store: Store, text: str, *, key: str | None = None) -> Checkpoint:
    """Return the checkpoint that an id, a key or a short form names.

    An existing key wins over a short form, unless it was imported: an archive can have any key, and
    must not hide what a person means by `job@3`.

    Args:
        store: where to look.
        text: what the user typed.
        key: the key that the checkpoint must belong to.

    Raises:
        NotFoundError: there is no such checkpoint, or it belongs to another key.
        InvalidInputError: the text is not an id, or may mean an imported key or a checkpoint.
    """
    if not isinstance(text, str) or not text:
        raise InvalidInputError(f"A checkpoint id is non-empty text, not {short_repr(text)}.")
    owner, found = _find(store, text, key)
    if found is None:
        raise _missing(store, text)
    if key is not None and owner != key:
        raise NotFoundError(
            f"The checkpoint {short_repr(text)} belongs to the key {short_repr(owner)}, not to "
            f"{short_repr(key)}."
        )
    return found


def find_seq(store: Store, text: str, *, key: str) -> int:
    """Return the number of a checkpoint of the key, also of one that cannot be read.

    Raises:
        NotFoundError: there is no such checkpoint, or it belongs to another key.
        InvalidInputError: the text is not an id.
    """
    try:
        found = find(store, text, key=key)
        if found.key != key:  # a walk back may lead to where the key was forked from
            raise NotFoundError(
                f"The checkpoint {short_repr(text)} is {found.id}, of the key "
                f"{short_repr(found.key)}: name that key."
            )
        return found.seq
    except UNUSABLE:
        if text == key:
            return next(store.entries(key, page=1)).seq
        place = parse_checkpoint_id(text)
        short = _SHORT.fullmatch(text)
        if place is not None and place.key == key:
            return place.seq
        if short is not None and short["key"] == key and short["sign"] == "@":
            return int(short["number"])
        raise


def walk(store: Store, key: str) -> Iterator[Checkpoint]:
    """Iterate over the past of a key's present, newest first.

    A rollback or fork counts as its target and the walk goes on from there, if need be in
    another key; safety checkpoints are stepped over. A pruned target breaks nothing: its id still
    says where it stood.
    """
    before: int | None = None
    seen: set[CheckpointId] = set()
    while True:
        target = None
        for checkpoint in store.newest_first(key, before=before):
            if checkpoint.kind == "safety":
                continue
            yield checkpoint
            target = _target(checkpoint)
            if target is not None:
                break
        # The target may itself stand for another; a crafted store may go in circles.
        while target is not None and target not in seen:
            seen.add(target)
            key, before = target.key, target.seq
            found = _at(store, target) if _may_be_key(target.key) else None
            target = None if found is None else _target(found)
            if target is None:
                break
        else:
            return


def _target(checkpoint: Checkpoint) -> CheckpointId | None:
    if checkpoint.kind not in SAME_CONTENT or not checkpoint.parents:
        return None
    return parse_checkpoint_id(checkpoint.parents[0])


def _find(store: Store, text: str, key: str | None) -> tuple[str, Checkpoint | None]:
    """Return the key that the text names, and the checkpoint if there is one."""
    place = parse_checkpoint_id(text)
    if place is not None and place.key == key:
        return place.key, _at(store, place)
    head = store.head(text) if _may_be_key(text) else None
    if head is None:
        return _find_in(store, text)
    if head.token is not None and key != text:
        owner, other = _find_in(store, text)
        is_own = other is not None and other.token is None
        if owner == key or (is_own and place is not None):  # an id says it all
            return owner, other
        if other is not None and is_own:
            raise InvalidInputError(
                f"{short_repr(text)} is a key that was imported from an archive, and would be "
                f"{other.id}, too: name that id, or {head.id}."
            )
    return text, head


def _find_in(store: Store, text: str) -> tuple[str, Checkpoint | None]:
    """Return what an id or a short form names, whatever keys there are."""
    place = parse_checkpoint_id(text)
    if place is not None and _may_be_key(place.key):
        return place.key, _at(store, place)
    short = _SHORT.fullmatch(text)
    if short is None or not _may_be_key(short["key"]):
        return text, None
    number = int(short["number"])
    if short["sign"] == "@":
        return short["key"], store.read(short["key"], number)
    return short["key"], next(islice(walk(store, short["key"]), number, None), None)


def _missing(store: Store, text: str) -> NotFoundError:
    when = purged_at(store, text)
    if when is not None:
        day = time.strftime("%Y-%m-%d", time.gmtime(when))
        return NotFoundError(f"The checkpoint {short_repr(text)} was purged on {day}.")
    place = parse_checkpoint_id(text) or _SHORT.fullmatch(text)
    key = "" if place is None else place.key if isinstance(place, CheckpointId) else place["key"]
    if _may_be_key(key) and next(store.entries(key, page=1), None) is not None:
        return NotFoundError(
            f"The key {short_repr(key)} has no checkpoint {short_repr(text)}; "
            f"history({short_repr(key)}) lists those it has."
        )
    return key_not_found(text, store)


def _at(store: Store, place: CheckpointId) -> Checkpoint | None:
    found = store.read(place.key, place.seq)
    return found if found is not None and found.ts_ns == place.ts_ns else None


def _may_be_key(text: str) -> bool:
    try:
        return 0 < len(text.encode()) <= MAX_KEY_BYTES
    except UnicodeEncodeError:
        return False
