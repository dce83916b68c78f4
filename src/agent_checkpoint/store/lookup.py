"""Resolves a string to a checkpoint: an id, a key, `key~2` or `key@17`.

Where the key is known, `~2` and `@17` are enough. Owns the short forms and the walk through the
history of a key. Read-only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from agent_checkpoint.errors import UNUSABLE, Hint, InvalidInputError, NotFoundError
from agent_checkpoint.records import (
    MAX_KEY_BYTES,
    SAME_CONTENT,
    Checkpoint,
    CheckpointId,
    Kind,
    parse_checkpoint_id,
    short_repr,
)
from agent_checkpoint.store.maintenance.tombstones import purged_at
from agent_checkpoint.store.objects.object_format import LostObjectError
from agent_checkpoint.store.store import Store, key_not_found

T = TypeVar("T")


_TRIES = 5
_SHORT = re.compile(r"(?P<key>.+)(?P<sign>[~@])(?P<number>[0-9]{1,18})", re.DOTALL)
_BARE = re.compile(r"(?:@?(~)|@)([0-9]{1,18})")


def retry_if_pruned(
    store: Store, look: Callable[[], Sequence[Checkpoint]], use: Callable[..., T]
) -> T:
    """Call `look`, pass its checkpoints to `use`, and return the result of `use`.

    If a checkpoint was pruned and garbage collected in between, `look` and `use` are called again.

    Raises:
        IntegrityError: an object is missing although the checkpoint that references it exists.
    """
    for attempt in range(_TRIES):
        checkpoints = look()
        try:
            return use(*checkpoints)
        except LostObjectError:
            still_exist = all(store.read(item.key, item.seq) is not None for item in checkpoints)
            if still_exist or attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable: the loop returns or raises")


def short_form(text: str) -> str | None:
    """Return `~2` or `@17` if the text is such a short form without a key; None otherwise.

    `@~2` is equivalent to `~2`, which some shells expand to a directory.
    """
    found = _BARE.fullmatch(text)
    return None if found is None else f"{found[1] or '@'}{found[2]}"


def find(store: Store, text: str, *, key: str | None = None, base: str | None = None) -> Checkpoint:
    """Return the checkpoint for an id, a key or a short form.

    An existing key takes precedence over a short form, unless the key was imported: an archive
    can contain any key, and must not shadow `job@3`.

    Args:
        store: the store.
        text: the id, key or short form.
        key: the key that the checkpoint must belong to.
        base: the key of a short form without one, such as `@3`; by default, `key`.

    Raises:
        NotFoundError: there is no such checkpoint, or it belongs to another key.
        InvalidInputError: `text` is not a non-empty string, or is ambiguous because of an
            imported key.
    """
    if not isinstance(text, str) or not text:
        raise InvalidInputError(
            f"A checkpoint id must be a non-empty string, not {short_repr(text)}."
        )
    base = key if base is None else base
    owner, checkpoint = _find(store, text, key, base)
    if checkpoint is None:
        raise _not_found(store, _completed(text, base))
    if key is not None and owner != key:
        raise NotFoundError(
            f"The checkpoint {short_repr(text)} belongs to the key {short_repr(owner)}, not to "
            f"{short_repr(key)}."
        )
    return checkpoint


def find_seq(store: Store, text: str, *, key: str) -> int:
    """Return the number of a checkpoint of the key, even if the checkpoint is unreadable.

    Raises the same errors as `find`.
    """
    try:
        checkpoint = find(store, text, key=key)
        if checkpoint.key != key:  # a walk may continue in the key that this one was forked from
            raise NotFoundError(
                f"The checkpoint {short_repr(text)} is {checkpoint.id}, of the key "
                f"{short_repr(checkpoint.key)}: use that key."
            )
        return checkpoint.seq
    except UNUSABLE:
        if text == key:
            return next(store.entries(key, page=1)).seq
        text = _completed(text, key)
        parsed = parse_checkpoint_id(text)
        short = _SHORT.fullmatch(text)
        if parsed is not None and parsed.key == key:
            return parsed.seq
        if short is not None and short["key"] == key and short["sign"] == "@":
            return int(short["number"])
        raise


def walk(store: Store, key: str) -> Iterator[Checkpoint]:
    """Iterate over the history of a key's head, newest first.

    A rollback or fork counts as its target, and the walk continues from there, possibly in another
    key. If the target was pruned, the walk continues at the position in its id. Safety checkpoints
    and files that changed outside of calls are skipped.
    """
    before: int | None = None
    seen: set[CheckpointId] = set()
    while True:
        target = None
        for checkpoint in store.newest_first(key, before=before):
            if checkpoint.kind in (Kind.SAFETY, Kind.OUTSIDE):
                continue
            yield checkpoint
            target = _target(checkpoint)
            if target is not None:
                break
        # The target may itself count as another; a crafted store may have cycles.
        while target is not None and target not in seen:
            seen.add(target)
            key, before = target.key, target.seq
            at_target = read_at(store, target)
            target = None if at_target is None else _target(at_target)
            if target is None:
                break
        else:
            return


def _target(checkpoint: Checkpoint) -> CheckpointId | None:
    if checkpoint.kind not in SAME_CONTENT or not checkpoint.parents:
        return None
    return parse_checkpoint_id(checkpoint.parents[0])


def _completed(text: str, base: str | None) -> str:
    """Return a short form with its key; other texts unchanged."""
    short = None if base is None else short_form(text)
    return text if short is None else f"{base}{short}"


def _find(
    store: Store, text: str, key: str | None, base: str | None
) -> tuple[str, Checkpoint | None]:
    """Return the key that `text` refers to, and the checkpoint if it exists."""
    parsed = parse_checkpoint_id(text)
    if parsed is not None and parsed.key == key:
        return parsed.key, read_at(store, parsed)
    head = store.head(text) if _may_be_key(text) else None
    if head is None:
        return _find_in(store, _completed(text, base))
    if head.token is not None and key != text:
        owner, other = _find_in(store, _completed(text, base))
        is_own = other is not None and other.token is None
        if owner == key or (is_own and parsed is not None):  # a full id is unambiguous
            return owner, other
        if other is not None and is_own:
            raise InvalidInputError(
                f"{short_repr(text)} is ambiguous: an imported or copied key, or the "
                f"checkpoint {other.id}. Use that id, or {head.id} for the imported key."
            )
    return text, head


def _find_in(store: Store, text: str) -> tuple[str, Checkpoint | None]:
    """Resolve an id or a short form, ignoring a key with the same name as `text`."""
    parsed = parse_checkpoint_id(text)
    if parsed is not None and _may_be_key(parsed.key):
        return parsed.key, read_at(store, parsed)
    short = _SHORT.fullmatch(text)
    if short is None or not _may_be_key(short["key"]):
        return text, None
    number = int(short["number"])
    if short["sign"] == "@":
        return short["key"], store.read(short["key"], number)
    return short["key"], next(islice(walk(store, short["key"]), number, None), None)


def _not_found(store: Store, text: str) -> NotFoundError:
    when = purged_at(store, text)
    if when is not None:
        day = time.strftime("%Y-%m-%d", time.gmtime(when))
        return NotFoundError(f"The checkpoint {short_repr(text)} was purged on {day}.")
    parsed = parse_checkpoint_id(text) or _SHORT.fullmatch(text)
    key = ""
    if parsed is not None:
        key = parsed.key if isinstance(parsed, CheckpointId) else parsed["key"]
    if _may_be_key(key) and next(store.entries(key, page=1), None) is not None:
        return NotFoundError(
            f"The key {short_repr(key)} has no checkpoint {short_repr(text)}.",
            hint=Hint(f"history({short_repr(key)}) lists its checkpoints.", "history", key=key),
        )
    return key_not_found(text, store)


def read_at(store: Store, wanted: CheckpointId) -> Checkpoint | None:
    """Return the checkpoint with a parsed id; None if it was removed, or the key is invalid.

    Raises the same errors as `Store.read`.
    """
    checkpoint = store.read(wanted.key, wanted.seq) if _may_be_key(wanted.key) else None
    is_same = checkpoint is not None and checkpoint.ts_ns == wanted.ts_ns
    return checkpoint if is_same else None


def _may_be_key(text: str) -> bool:
    try:
        return 0 < len(text.encode()) <= MAX_KEY_BYTES
    except UnicodeEncodeError:
        return False
