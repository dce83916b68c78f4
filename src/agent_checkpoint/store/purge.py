"""Taking a leaked secret out of a store. Owns finding it and leaving tombstones.

What holds the secret is removed, not rewritten: names are hashes of content. A key whose present
holds it goes on with a copy in which the secret is blotted out. Copies of the store, archives and
live agents are beyond reach.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from agent_checkpoint.backends.base import Scrubs
from agent_checkpoint.errors import ConflictError, IntegrityError, InvalidInputError
from agent_checkpoint.records import Checkpoint, Draft
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.gc import gc
from agent_checkpoint.store.importing import drop_dead
from agent_checkpoint.store.json_text import write_json
from agent_checkpoint.store.objects import Object
from agent_checkpoint.store.reachability import Seen, mark, reach, read_whole
from agent_checkpoint.store.reading import names_in, tag_of, whole
from agent_checkpoint.store.splitting import inline_tree
from agent_checkpoint.store.store import Store
from agent_checkpoint.store.tombstones import bury

BLOT = "[purged]"
SHORTEST = 6

_PIECES = re.compile(rb'"\$(?:text|blob)":\[([^\]]*)\]')
_NAME = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True)
class PurgeReport:
    """What `purge` removed, or would have: ids of checkpoints, and by what heads were replaced."""

    checkpoints: Sequence[str]
    objects: int
    replaced: dict[str, str] = field(default_factory=dict)


def purge(store: Store, secret: str | bytes, *, dry_run: bool = False) -> PurgeReport:
    """Remove every checkpoint that holds the secret, and every trace of it from the store's files.

    Args:
        store: where.
        secret: a text or bytes of at least six bytes.
        dry_run: only tell what would be removed.

    Raises:
        InvalidInputError: the secret is too short to look for, or is in the name of a key.
        ConflictError: a key is being imported.
        IntegrityError: something is damaged, so nobody can tell what is in it.
        StorageError: the medium failed, or others use it so that it cannot be scrubbed.
    """
    needles = _needles(secret)
    store.format.check(writing=not dry_run)
    _refuse_names(store, needles)
    if not dry_run:
        drop_dead(store)  # they are out of sight
    if store.imports():
        raise ConflictError("A key is being imported: purge when that is done.")
    found = _Search(store, needles)
    if dry_run:
        return PurgeReport([item.id for item in found.checkpoints], len(found.objects))
    replaced = {}
    for key, head in found.heads.items():
        fresh = _blotted(store, head, needles)
        if fresh is not None:
            replaced[key] = store.write(fresh, parents=(head.id,)).id
    if found.checkpoints:
        bury(store, [item.id for item in found.checkpoints])
    for item in found.checkpoints:
        store.remove(item.key, [item.seq])
    gc(store, ignore_clock=True)
    # Also if nothing was found: an earlier purge may have been killed before this.
    if isinstance(store.backend, Scrubs):
        store.backend.scrub()
    return PurgeReport([item.id for item in found.checkpoints], len(found.objects), replaced)


class _Search:
    """What holds the secret: objects, checkpoints, and those of them that are the head of a key."""

    def __init__(self, store: Store, needles: Sequence[bytes]) -> None:
        self.objects = _tainted(store, needles)
        self.checkpoints: list[Checkpoint] = []
        self.heads: dict[str, Checkpoint] = {}
        seen: Seen = {}
        for key in store.list_keys():
            for place, entry in enumerate(store.entries(key)):
                checkpoint = read_checkpoint(key, entry.seq, entry.data)
                roots = set(names_in(checkpoint.parts.values()))
                mark(store.backend, roots, seen)
                if _holds(_said(checkpoint), needles) or self.objects & reach(roots, seen):
                    self.checkpoints.append(checkpoint)
                    if place == 0:
                        self.heads[key] = checkpoint


def _needles(secret: str | bytes) -> list[bytes]:
    """Return the forms in which a secret may stand in the store: as it is, as JSON, as base64."""
    if not isinstance(secret, (str, bytes)):
        raise InvalidInputError(f"A secret is text or bytes, not {type(secret).__name__}.")
    plain = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    if len(plain) < SHORTEST:
        raise InvalidInputError(
            f"A secret of less than {SHORTEST} bytes would be found everywhere."
        )
    found = [plain]
    with suppress(UnicodeDecodeError):  # then no text has it
        text = plain.decode()
        found.append(write_json(text)[1:-1])
        # As it stands in a text that UTF-8 cannot carry.
        escaped = text.encode("unicode_escape")
        found += [escaped, write_json(escaped.decode())[1:-1]]
    for shift, start in ((0, 0), (1, 2), (2, 3)):
        # Three bytes are four letters: what depends on the neighbours is left out.
        coded = base64.b64encode(b"\0" * shift + plain)
        found.append(coded[start : len(coded) - (0, 3, 2)[(shift + len(plain)) % 3]])
    return list(dict.fromkeys(found))


def _holds(data: bytes, needles: Sequence[bytes]) -> bool:
    return any(needle in data for needle in needles)


def _said(checkpoint: Checkpoint) -> bytes:
    """Return all that a user put into an entry, without our own tags, names and numbers."""
    words = [checkpoint.label or "", *checkpoint.tags, *checkpoint.metrics, *checkpoint.parts]
    stack: list[Any] = list(checkpoint.parts.values())
    while stack:
        tree = stack.pop()
        if isinstance(tree, list):
            stack += tree
        elif not isinstance(tree, dict):
            words.append(str(tree))
        elif tag_of(tree) is None:
            words += (key for key in tree if not _is_tag(key))
            stack += tree.values()
    return "\n".join(words).encode()


def _refuse_names(store: Store, needles: Sequence[bytes]) -> None:
    named = [name for name in store.backend.streams() if _holds(name.encode(), needles)]
    if named:
        raise InvalidInputError(
            f"The secret is in the name of a key ({len(named)} in all), which stays, so that no "
            "number is used twice: export what is needed, and start a new store."
        )


def _tainted(store: Store, needles: Sequence[bytes]) -> set[str]:
    """Return the names of the objects that hold the secret, or a piece of it."""
    found: set[str] = set()
    neighbours: set[tuple[str, str]] = set()
    for name, item in _sound(store, [info.id for info in store.backend.list_objects()]):
        if _holds(item.payload, needles):
            found.add(name)
        neighbours |= _neighbours(item.payload)
    for key in store.list_keys():
        for entry in store.entries(key):
            neighbours |= _neighbours(entry.data)
    longest = max(map(len, needles))
    for pair in neighbours:  # a long text is cut anywhere, also within the secret
        (_, left), (_, right) = _sound(store, pair)
        if _holds(left.payload[-longest:] + right.payload[:longest], needles):
            found.update(pair)
    return found


def _neighbours(data: bytes) -> set[tuple[str, str]]:
    """Return the names of pieces that follow on each other, as a JSON text lists them."""
    pairs: set[tuple[str, str]] = set()
    for match in _PIECES.finditer(data):
        names = [name.decode() for name in _NAME.findall(match[1])]
        pairs.update(zip(names, names[1:]))
    return pairs


def _sound(store: Store, names: Sequence[str]) -> Iterator[tuple[str, Object]]:
    for name, found in read_whole(store.backend, names):
        if isinstance(found, str):
            raise IntegrityError(
                f"{found} Nobody can tell what is in it: purge what is sound first."
            )
        yield name, found


def _blotted(store: Store, head: Checkpoint, needles: Sequence[bytes]) -> Draft | None:
    """Return the head with the secret blotted out; None where it stands in more than texts."""
    reader = store.reader(head)
    reader.fetch(head.parts.values())
    text = needles[0].decode("utf-8", "replace")
    parts = {
        name: _replace(inline_tree(whole(tree, reader)), text) for name, tree in head.parts.items()
    }
    label = None if head.label is None else head.label.replace(text, BLOT)
    tags = tuple(tag.replace(text, BLOT) for tag in head.tags)
    draft = Draft(head.key, parts, "purge", label, tags, head.metrics)
    left = _said(replace(head, label=label, tags=tags, parts=parts))
    is_whole = _members(parts) == _members({n: whole(t, reader) for n, t in head.parts.items()})
    return draft if is_whole and not _holds(left, needles) else None


def _members(tree: Any) -> int:
    """Return how many members all objects in a tree have: two names must not become one."""
    if isinstance(tree, list):
        return sum(map(_members, tree))
    return sum(1 + _members(item) for item in tree.values()) if isinstance(tree, dict) else 0


def _name(key: str, text: str) -> str:
    """Return the name of a member without the secret; a tag is not the user's, and stays."""
    return key if _is_tag(key) else key.replace(text, BLOT)


def _is_tag(key: str) -> bool:
    return key.startswith("$") and not key.startswith("$$")


def _replace(tree: Any, text: str) -> Any:
    if isinstance(tree, str):
        return tree.replace(text, BLOT)
    if isinstance(tree, list):
        return [_replace(item, text) for item in tree]
    if isinstance(tree, dict):
        return {_name(key, text): _replace(item, text) for key, item in tree.items()}
    return tree
