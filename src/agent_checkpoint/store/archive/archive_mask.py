"""Masks secrets in checkpoints and ledger records for an archive. Owns which members are masked.

Names (keys, parts, metrics, ids, the session record) identify something and cannot be masked: a
secret in a name is refused. The files of a workspace are not changed, only counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import Checkpoint, JsonValue, short_repr
from agent_checkpoint.redaction import MASK
from agent_checkpoint.store.ledger.ledger_records import STREAM_MEMBERS
from agent_checkpoint.store.ledger.ledger_status import REDACTED
from agent_checkpoint.store.ledger.lineage import SESSION
from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder
from agent_checkpoint.store.objects.object_cache import ObjectCache
from agent_checkpoint.store.objects.object_format import BLOB, Object
from agent_checkpoint.store.objects.reader import (
    OBJECT,
    ObjectSource,
    Reader,
    is_tag_free,
    read_array,
    resolve_tree,
    tag_of,
)
from agent_checkpoint.store.objects.references import ReusedPart, with_references
from agent_checkpoint.store.objects.splitting import OutOfLineValue, add_item, put_list
from agent_checkpoint.store.objects.writer import Writer

MaskTree = Callable[[Any, str], "tuple[Any, int]"]
"""Masks an encoded value, whose name is for messages; also returns how many secrets it had."""

_LARGEST_FILE = 1 << 16
"""Larger files are not examined, because that would take longer than the export itself."""
_FREE_TEXT = ("words", "note", "reason", "by")
_ARGUMENT = re.compile(
    r"(?P<before>\b(?P<name>\w{1,128})=(?P<quote>['\"]))(?P<value>[^'\"]{1,256})"
)
_CUT = re.compile(r"(?<![^\s'\"(=\]])[^\s'\"(=\]]{6,}…")
"""A word that was cut: too little of a secret may be left to be recognized."""


class ArchiveMask:
    """Masks the parts of the checkpoints and records of one export; each array of a list once."""

    def __init__(self, mask: MaskTree, source: ObjectSource) -> None:
        self._mask = mask
        self._source = source
        self._cache = ObjectCache()
        self._arrays: dict[str, tuple[list[Any], int]] = {}
        """The masked items of an array, by the id of its object, and how many secrets it had;
        without the items if it had none."""

    def parts(self, parts: Mapping[str, JsonValue]) -> dict[str, tuple[Any, int]]:
        """Return each part, masked and ready to be split, with the number of its secrets.

        Raises:
            IntegrityError: an object is missing or damaged.
            StateError: a part cannot be masked.
            StorageError: the medium failed.
        """
        reader = Reader(self._source, self._cache, states=[parts])
        reader.fetch(parts.values())
        return {name: self._part(tree, name, reader) for name, tree in parts.items()}

    def _part(self, tree: JsonValue, name: str, reader: Reader) -> tuple[Any, int]:
        before: list[int] = []

        def resolved(tree: Any, is_list: bool) -> Any:
            """Resolve a tree; with `is_list`, a `$list` is one, not the members of a dict."""
            if isinstance(tree, list):
                return [resolved(item, False) for item in tree]
            if not isinstance(tree, dict):
                return tree
            tag = tag_of(tree)
            if tag == "$list" and is_list:
                items, count = self._list(tree["$list"], name, reader)
                before.append(count)
                return _ListValue(items) if count else ReusedPart(tree)
            if tag in ("$ref", "$map"):
                value = reader.tree(tag, tree[tag])
                return resolved(value, is_list) if tag == "$ref" else members(value)
            if tag is not None:
                return with_references(resolve_tree(tree, reader), self._source)
            if len(tree) == 1 and OBJECT in tree:
                return with_references(tree, self._source)
            return members(tree)

        def members(tree: dict[str, Any]) -> dict[str, Any]:
            is_tag = len(tree) == 1 and next(iter(tree))[:1] == "$"
            return {key: resolved(item, not is_tag or key == "$log") for key, item in tree.items()}

        masked, count = self._mask(resolved(tree, True), name)
        return masked, count + sum(before)

    def _list(self, root: Any, name: str, reader: Reader) -> tuple[list[Any], int]:
        """Return the masked items of a list, and how many secrets it had; no items if none."""
        texts = list(reader.array_texts(root))
        for part, text in texts:
            if part not in self._arrays:
                items, count = self._mask(self._items(text, reader), name)
                self._arrays[part] = (items if count else [], count)
        total = sum(self._arrays[part][1] for part, _ in texts)
        items = []
        for part, text in texts if total else ():
            known, count = self._arrays[part]
            items += known if count else self._items(text, reader)
        return items, total

    def _items(self, text: bytes, reader: Reader) -> list[Any]:
        items = read_array(text)
        if is_tag_free(text):
            return items
        return [with_references(resolve_tree(item, reader), self._source) for item in items]


class _ListValue(OutOfLineValue):
    """The items of a list that was masked."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def store(self, writer: Writer, refs: list[str]) -> bytes:
        """Put the list as a Merkle list."""
        builder = MerkleListBuilder()
        for item in self._items:
            add_item(item, builder, writer)
        return put_list(builder, writer, refs)

    def inline(self, writer: Writer | None = None) -> JsonValue:
        """Return the items."""
        return self._items


def masked_checkpoint(checkpoint: Checkpoint, mask: ArchiveMask) -> tuple[Checkpoint, int]:
    """Return a checkpoint with masked parts, label and tags, and how many secrets it had.

    Raises:
        InvalidInputError: a name contains a secret.
        StateError: a part cannot be masked.
        IntegrityError: an object is missing or damaged.
        StorageError: the medium failed.
    """
    names = [checkpoint.key, *checkpoint.parts, *checkpoint.metrics, *checkpoint.parents]
    parts = mask.parts(checkpoint.parts)
    if _has_secret(names) or parts.get(SESSION, ("", 0))[1]:
        _refuse(f"Checkpoint {checkpoint.seq} of {short_repr(MASK.clean(checkpoint.key))}")
    count = sum(found for _, found in parts.values())
    tags = list(map(MASK.text, checkpoint.tags))
    count += sum(found for _, found in tags)
    label, found = _masked_text(checkpoint.label or "", has_secrets=count > 0)
    masked = checkpoint._replace(
        parts={name: tree for name, (tree, _) in parts.items()},
        label=label or checkpoint.label,
        tags=tuple(dict.fromkeys(t for t, _ in tags)),
    )
    return masked, count + found


def masked_record(
    record: Mapping[str, Any], mask: ArchiveMask
) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Return the members and parts of a ledger record, masked, and how many secrets it had.

    Masked arguments get another name, as redacted ones do, so that no call runs with placeholders.
    The hashes of the arguments stay, so that an effect is found again and not repeated.

    Raises:
        InvalidInputError: a name contains a secret.
        StateError: a part cannot be masked.
        IntegrityError: an object is missing or damaged.
        StorageError: the medium failed.
    """
    members = {name: value for name, value in record.items() if name not in STREAM_MEMBERS}
    if _has_secret(
        text for name, text in members.items() if isinstance(text, str) and name not in _FREE_TEXT
    ):
        _refuse("A ledger record")
    done: dict[str, Any] = {}
    count = 0
    for name, (masked, found) in mask.parts(record["parts"]).items():
        done[REDACTED if found and name == "arguments" else name] = masked
        count += found
    has_secrets = count > 0
    for name in _FREE_TEXT:
        if isinstance(members.get(name), str):
            members[name], found = _masked_text(members[name], has_secrets=has_secrets)
            count += found
    return members, done, count


def masked_log_parts(
    log: str, parts: Mapping[str, JsonValue], mask: ArchiveMask
) -> tuple[dict[str, Any], int]:
    """Return the parts of a record of a record log, masked, and how many secrets they had.

    Raises the same errors as `masked_record`.
    """
    if _has_secret([log]):
        _refuse("A record log")
    found = mask.parts(parts)
    return {name: tree for name, (tree, _) in found.items()}, sum(n for _, n in found.values())


def is_file_with_secret(found: Object) -> bool:
    """Return whether an object of a workspace is a small text that contains a secret."""
    data = found.payload
    is_text = found.kind == BLOB and len(data) <= _LARGEST_FILE and b"\0" not in data
    return is_text and MASK.data(data)[1] > 0


def _masked_text(text: str, *, has_secrets: bool) -> tuple[str, int]:
    """Mask a text that may describe a call: `push(token='…')`; with secrets, also its cut words."""
    count = 0

    def put(match: re.Match[str]) -> str:
        nonlocal count
        value, found = MASK.member(match["name"], match["value"])
        count += found
        return match["before"] + value

    text = _ARGUMENT.sub(put, text)
    text, found = MASK.text(text)
    count += found
    return (_CUT.sub("[masked]…", text), count) if has_secrets or count else (text, 0)


def _has_secret(names: Iterable[str]) -> bool:
    return any(MASK.text(name)[1] for name in names)


def _refuse(what: str) -> NoReturn:
    raise InvalidInputError(
        f"{what} has a secret in a name, and names cannot be masked. Nothing was written. Export "
        "it without masking: --no-mask, or mask=False in Python."
    )
