"""Purges a leaked secret from a store. Owns the search, and the redaction of heads and records.

Objects and checkpoints that contain the secret are removed, not rewritten, because object ids are
hashes of the content. If the head of a key contains the secret, a redacted copy becomes the new
head. An external side effect stays recorded, so that it is not repeated: arguments, result and free
text of its record are dropped; in names only the secret itself is redacted. Backups of the store,
archives and live agents are not changed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    FormatError,
    Hint,
    IntegrityError,
    InvalidInputError,
)
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint, Draft, Kind
from agent_checkpoint.store.archive.importer import remove_dead_imports
from agent_checkpoint.store.canonical_json import write_json
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.ledger.ledger_records import (
    PREFIX,
    STREAM_MEMBERS,
    LedgerStream,
    effective_seq,
)
from agent_checkpoint.store.maintenance.gc import gc
from agent_checkpoint.store.maintenance.tombstones import record_purged
from agent_checkpoint.store.maintenance.verify import RECORD_STREAMS
from agent_checkpoint.store.objects.object_format import (
    CHUNKS,
    LostObjectError,
    Object,
    missing_objects,
)
from agent_checkpoint.store.objects.reader import fetch_objects, object_names, resolve_parts, tag_of
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.objects.splitting import inline_tree
from agent_checkpoint.store.reachability import RefGraph, mark, reachable
from agent_checkpoint.store.record_stream import RecordStream
from agent_checkpoint.store.sealed_streams import ForeignEntry
from agent_checkpoint.store.store import Store

REDACTED = "[purged]"
SHORTEST = 6
_TRIES = 5

_PIECES = re.compile(rb'"\$(?:text|blob)":\[([^\]]*)\]')
_NAME = re.compile(rb"[0-9a-f]{64}")

_FREE_TEXT = frozenset({"words", "note", "reason"})
"""Members with free text. They are dropped: a redaction could leave a part of the secret."""
_OURS = STREAM_MEMBERS | {"type", "kind"}
_RANDOM = frozenset({"identity", "also", "digest", "effect", "request", "object", "needed"})
_IS_RANDOM = re.compile(r"(approval-)?[0-9a-f]{12,64}")
"""Hashes and random ids. They contain no secret, and redacting one would break references."""


@dataclass(frozen=True)
class PurgeReport:
    """The result of `purge`, or of a dry run.

    `checkpoints`: ids of the removed checkpoints. `objects`: number of removed objects.
    `replaced`: maps each key with a redacted head to the id of that head.
    """

    checkpoints: Sequence[str]
    objects: int
    replaced: dict[str, str] = field(default_factory=dict)


def purge(store: Store, secret: str | bytes, *, dry_run: bool = False) -> PurgeReport:
    """Remove every checkpoint that contains the secret, and scrub the files of the store.

    Args:
        store: the store.
        secret: a string or bytes, at least six bytes long.
        dry_run: only report what would be removed.

    Raises:
        InvalidInputError: the secret is too short, or a key or stream name contains it.
        ConflictError: an import is in progress.
        IntegrityError: an entry or object is damaged, so its content is unknown.
        StorageError: the medium failed, or another process is reading it.
    """
    needles = _needles(secret)
    store.format.check(writing=not dry_run)
    _refuse_names(store, needles)
    if not dry_run:
        remove_dead_imports(store)  # readers do not see their entries
    if store.imports():
        raise ConflictError("An import is in progress. Run purge again after it has finished.")
    replaced: dict[str, str] = {}
    for attempt in range(_TRIES):
        found = _Search(store, needles)
        if dry_run:
            return PurgeReport([item.id for item in found.checkpoints], len(found.objects))
        try:
            _replace_heads(store, found, needles, replaced)
            break
        except (ConflictError, LostObjectError):
            # A key has a new head since the search, which may contain the secret, too.
            if attempt == _TRIES - 1:
                raise
    if found.checkpoints:
        record_purged(store, [item.id for item in found.checkpoints])
    for item in found.checkpoints:
        store.remove(item.key, [item.seq])
    _replace_records(store, found.records, needles)
    gc(store, ignore_clock=True)
    # Even if nothing was found: an earlier purge may have been killed before this step.
    if store.backend.properties.can_scrub:
        store.backend.scrub()
    return PurgeReport([item.id for item in found.checkpoints], len(found.objects), replaced)


def _replace_heads(
    store: Store, found: _Search, needles: Sequence[bytes], done: dict[str, str]
) -> None:
    """Append a redacted copy to each key whose head contains the secret."""
    for key, head in found.heads.items():
        # A workspace consists of objects: if one contains the secret, the part is omitted.
        resolved = resolve_parts(head.parts, store.reader(head))
        sound = {name: tree for name, tree in resolved.items() if not found.is_tainted(tree)}
        fresh = _redacted(store, head, sound, needles) if sound else None
        if fresh is not None:
            done[key] = store.write(fresh, parents=(head.id,), after=head.seq).id


class _Record(NamedTuple):
    """A record that contains the secret."""

    stream: RecordStream
    seq: int
    content: dict[str, Any]


def _replace_records(store: Store, tainted: list[_Record], needles: Sequence[bytes]) -> None:
    """Replace ledger records that contain the secret by redacted records; remove other records."""
    for stream, seq, record in tainted:
        if isinstance(stream, LedgerStream):
            plain = {key: value for key, value in record.items() if key not in STREAM_MEMBERS}
            plain.update(
                _mapped(_members_of(record), lambda text: text and _without(text, needles))
            )
            plain.update({key: REDACTED for key in _FREE_TEXT if plain.get(key)})
            plain["instead"] = effective_seq(seq, record)
            stream.append(plain, {}, after=None)
        store.backend.remove(stream.name, [seq])


class _Search:
    """Finds the objects, checkpoints, heads of keys and records that contain the secret."""

    def __init__(self, store: Store, needles: Sequence[bytes]) -> None:
        self.objects: set[str] = set()
        self.checkpoints: list[Checkpoint] = []
        self.heads: dict[str, Checkpoint] = {}
        self._store = store
        self._needles = needles
        self._examined: set[str] = set()
        self._joints: set[tuple[str, str]] = set()
        self._lost: set[str] = set()
        self._seen: RefGraph = {}
        self._examine(info.id for info in store.backend.list_objects())
        keys = store.list_keys()
        for key in keys:
            for entry in store.entries(key):
                self._examine_joints(entry.data)
        for key in keys:
            for position, entry in enumerate(store.entries(key)):
                # Foreign entries are searched too, but a redacted head would make them trusted.
                checkpoint = read_checkpoint(key, entry.seq, bytes(entry.data))
                if self._is_held_by(checkpoint, entry.data):
                    self.checkpoints.append(checkpoint)
                    if position == 0 and not isinstance(entry.data, ForeignEntry):
                        self.heads[key] = checkpoint
        self.records = [
            _Record(stream, seq, record)
            for stream in _record_streams(store)
            for seq, record in stream.read()
            if self._is_held_by_record(record)
        ]

    def is_tainted(self, tree: Any) -> bool:
        """Return whether a resolved part refers to an object that contains the secret."""
        return not self.objects.isdisjoint(reachable(object_names([tree]), self._seen))

    def _is_held_by_record(self, record: dict[str, Any]) -> bool:
        parts = record["parts"]
        roots = set(object_names(parts.values()))
        mark(self._store.backend, roots, self._seen)
        needed = reachable(roots, self._seen)
        self._examine(needed - self._examined)
        self._examine_joints(write_json(parts))
        texts = [text.encode() for text in _texts(_members_of(record))]
        user_text = b"\n".join([*_texts_in(parts.values()), *texts])
        return _holds(user_text, self._needles) or bool(self.objects & needed)

    def _is_held_by(self, checkpoint: Checkpoint, entry: bytes) -> bool:
        roots = set(object_names(checkpoint.parts.values()))
        try:
            mark(self._store.backend, roots, self._seen)
            needed = reachable(roots, self._seen)
            if needed - self._examined:  # saved during the search
                self._examine(needed - self._examined)
                self._examine_joints(entry)
            if needed & self._lost:
                raise missing_objects(needed & self._lost)
        except LostObjectError as error:
            if self._store.read(checkpoint.key, checkpoint.seq) is None:
                return False  # pruned and garbage collected during the search
            raise _unsearchable(error) from None
        return _holds(_user_text(checkpoint), self._needles) or bool(self.objects & needed)

    def _examine(self, names: Iterable[str]) -> None:
        """Find the objects that contain the secret or a part of it."""
        examined = list(names)
        self._examined.update(examined)
        for name, item in self._readable(examined):
            if _holds(item.payload, self._needles):
                self.objects.add(name)
            if item.kind == CHUNKS:
                self._examine_pairs(set(zip(item.refs, item.refs[1:])))
            self._examine_joints(item.payload)

    def _examine_joints(self, data: bytes) -> None:
        """Find the secret across the boundary of two consecutive chunks."""
        self._examine_pairs(_neighbours(data))

    def _examine_pairs(self, pairs: set[tuple[str, str]]) -> None:
        longest = max(map(len, self._needles))
        for pair in pairs - self._joints:
            self._joints.add(pair)
            pieces = [item.payload for _, item in self._readable(pair)]
            if len(pieces) == len(pair) and _holds(
                pieces[0][-longest:] + pieces[1][:longest], self._needles
            ):
                self.objects.update(pair)

    def _readable(self, names: Iterable[str]) -> Iterator[tuple[str, Object]]:
        """Iterate over objects; record missing ones, which may have been garbage collected."""
        for name in names:
            try:
                yield from fetch_objects(self._store.backend, [name])
            except LostObjectError:
                self._lost.add(name)
            except (IntegrityError, FormatError) as error:
                raise _unsearchable(error) from None


def _record_streams(store: Store) -> Iterator[RecordStream]:
    for prefix in RECORD_STREAMS:
        for name in store.backend.streams(prefix):
            is_ledger = prefix == PREFIX
            yield (
                LedgerStream(store, name[len(PREFIX) :]) if is_ledger else RecordStream(store, name)
            )


def _members_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the members of a record, except its parts, that may contain user data."""
    return {
        key: value
        for key, value in record.items()
        if key not in _OURS
        and not (key in _RANDOM and isinstance(value, str) and _IS_RANDOM.fullmatch(value))
    }


def _texts(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, (list, dict)):
        for item in tree if isinstance(tree, list) else tree.values():
            yield from _texts(item)


def _needles(secret: str | bytes) -> list[bytes]:
    """Return the encodings of a secret to search for: raw bytes, JSON-escaped, base64."""
    if not isinstance(secret, (str, bytes)):
        raise InvalidInputError(
            f"The secret must be a string or bytes, not {type(secret).__name__}."
        )
    plain = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    if len(plain) < SHORTEST:
        raise InvalidInputError(
            f"The secret is too short to search for: at least {SHORTEST} bytes are required."
        )
    needles = [plain]
    with suppress(UnicodeDecodeError):  # then no text can hold it
        text = plain.decode()
        needles.append(write_json(text)[1:-1])
        # The form inside a text that is not valid UTF-8.
        escaped = text.encode("unicode_escape")
        needles += [escaped, write_json(escaped.decode())[1:-1]]
    for shift, start in ((0, 0), (1, 2), (2, 3)):
        # Three bytes are four base64 letters; letters that depend on neighbours are omitted.
        coded = base64.b64encode(b"\0" * shift + plain)
        needles.append(coded[start : len(coded) - (0, 3, 2)[(shift + len(plain)) % 3]])
    return list(dict.fromkeys(needles))


def _holds(data: bytes, needles: Sequence[bytes]) -> bool:
    return any(needle in data for needle in needles)


def _without(text: str, needles: Sequence[bytes]) -> str:
    """Return a string with the secret redacted, in any of its encodings."""
    left = text.replace(needles[0].decode("utf-8", "replace"), REDACTED)
    return left if left and not _holds(left.encode(), needles) else REDACTED


def _user_text(checkpoint: Checkpoint) -> bytes:
    """Return all user content of an entry, without internal tags, object ids and numbers."""
    texts = [checkpoint.label or "", *checkpoint.tags, *checkpoint.metrics, *checkpoint.parts]
    texts += checkpoint.claim or ()
    return b"\n".join([*(text.encode() for text in texts), *_texts_in(checkpoint.parts.values())])


def _texts_in(trees: Iterable[Any]) -> Iterator[bytes]:
    """Iterate over all user content in trees, without internal tags."""
    stack: list[Any] = list(trees)
    while stack:
        tree = stack.pop()
        if isinstance(tree, list):
            stack += tree
        elif not isinstance(tree, dict):
            yield str(tree).encode()
        elif tag_of(tree) is None:
            yield from (key.encode() for key in tree if not _is_tag(key))
            stack += tree.values()


def _refuse_names(store: Store, needles: Sequence[bytes]) -> None:
    named = [name for name in store.backend.streams() if _holds(name.encode(), needles)]
    if named:
        raise InvalidInputError(
            f"The secret is part of {len(named)} key or ledger name(s). Names cannot be "
            "purged, because the last number of each stream must be kept. Export the other "
            "keys and import them into a new store. Load what you need of these and save it there "
            "under a new key: their archives and forks contain the name."
        )


def _neighbours(data: bytes) -> set[tuple[str, str]]:
    """Return the pairs of consecutive chunk ids in the `$text` and `$blob` tags of a JSON text."""
    pairs: set[tuple[str, str]] = set()
    for match in _PIECES.finditer(data):
        names = [name.decode() for name in _NAME.findall(match[1])]
        pairs.update(zip(names, names[1:]))
    return pairs


def _unsearchable(error: CheckpointError) -> IntegrityError:
    return IntegrityError(
        f"{error.with_hint()} Its content cannot be searched.",
        hint=Hint(
            "Repair or delete the affected checkpoints first; verify() lists them.", "unsearchable"
        ),
    )


def _redacted(
    store: Store, head: Checkpoint, before: dict[str, Any], needles: Sequence[bytes]
) -> Draft | None:
    """Return a redacted copy of some resolved parts of a head, as a draft.

    None if the secret also occurs outside of strings.
    """
    text = needles[0].decode("utf-8", "replace")

    def redact(value: str) -> str:
        return value.replace(text, REDACTED)

    def rename(key: str) -> str:
        return key if _is_tag(key) else redact(key)

    parts = {name: _mapped(inline_tree(tree), redact, rename) for name, tree in before.items()}
    label = None if head.label is None else redact(head.label)
    tags = tuple(map(redact, head.tags))
    kept = with_references(parts, store.backend)
    draft = head.draft()._replace(
        parts=kept, kind=Kind.PURGE, label=label, tags=tags, token=head.token, claim=head.claim
    )
    left = _user_text(head._replace(label=label, tags=tags, parts=parts))
    is_whole = _members(parts) == _members(before)
    return draft if is_whole and not _holds(left, needles) else None


def _members(tree: Any) -> int:
    """Return the number of members in a tree, to detect a redaction that merged two names."""
    if isinstance(tree, list):
        return sum(map(_members, tree))
    return sum(1 + _members(item) for item in tree.values()) if isinstance(tree, dict) else 0


def _is_tag(key: str) -> bool:
    return key.startswith("$") and not key.startswith("$$")


def _mapped(
    tree: Any, change: Callable[[str], str], rename: Callable[[str], str] = lambda key: key
) -> Any:
    """Return a tree with every string changed, and every member renamed."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, list):
        return [_mapped(item, change, rename) for item in tree]
    if isinstance(tree, dict):
        return {rename(key): _mapped(item, change, rename) for key, item in tree.items()}
    return tree
