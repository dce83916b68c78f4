"""Copies keys from store to store: checkpoints, ledgers, records, forks, objects. Owns `copy`.

Checkpoints are appended one by one, oldest first, after the ledger that they rely on. So the target
always has a prefix of the source, and an interrupted copy continues after its newest checkpoint.
Copies obey the rules of imports: they carry a token for good, no claim, and own nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import (
    UNUSABLE,
    ConflictError,
    Hint,
    IntegrityError,
    InvalidInputError,
    MissingObjectsError,
)
from agent_checkpoint.records import (
    Checkpoint,
    CheckpointId,
    Entry,
    JsonValue,
    check_key,
    parse_checkpoint_id,
    short_repr,
)
from agent_checkpoint.store.archive.importer import hidden_entries, parts_inline
from agent_checkpoint.store.archive.object_sender import ObjectSender
from agent_checkpoint.store.archive.record_copy import copy_records
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.ledger.ledger_copy import copy_ledger, has_own_records
from agent_checkpoint.store.ledger.lineage import fork_point_of, lineage_of
from agent_checkpoint.store.objects.object_format import (
    LostObjectError,
    PlainObject,
)
from agent_checkpoint.store.objects.reader import object_names
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.record_stream import record_logs
from agent_checkpoint.store.store import Store, key_not_found
from agent_checkpoint.store.store_argument import store_for

if TYPE_CHECKING:
    from agent_checkpoint.store.store_argument import StoreLike

_TRIES = 5
_PAGE = 100
_MOST_GAPS = 100_000
"""Maximum numbers of removed checkpoints per key and copy: each costs an append, and a crafted
source must not fill the target."""
_TOKEN = re.compile(r"copy-([0-9]+)-([0-9]+)-[0-9a-f]{32}")


@dataclass(frozen=True)
class CopyReport:
    """The result of `copy`: what was copied, or would be on a dry run."""

    keys: tuple[str, ...]
    """The keys with new checkpoints."""
    checkpoints: int
    records: int
    """Records of ledgers and record logs."""
    objects: int
    bytes: int
    """The size of checkpoints, records and objects, as stored in the source."""
    skipped: tuple[str, ...]
    """The keys without new checkpoints."""


def copy(
    source: StoreLike,
    target: StoreLike,
    keys: Iterable[str] | None = None,
    *,
    dry_run: bool = False,
) -> CopyReport:
    """Copy keys to another store, with their forks, ledgers, record logs and objects.

    A second copy adds what is new. Checkpoints keep their ids. Every entry and object is verified.
    Like an import, a copy is not bound to a directory, a session or an agent of yours.

    Args:
        source: the store to read: a path, a URL, a Backend or a manager.
        target: the store to write; likewise.
        keys: the keys, and with them their forks, and the checkpoints that they were forked from;
            all keys by default.
        dry_run: only check and count; nothing is written.

    Raises:
        NotFoundError: the source has no such key.
        ConflictError: a key or a ledger has checkpoints or records in the target that are not
            copies from the source.
        IntegrityError: an entry or object of the source is damaged.
        UntrustedDataError: the source is shared, and an entry has no valid signature.
        InvalidInputError: both stores are the same, or a key cannot be copied.
        StorageError: a medium failed; run the copy again.
    """
    with ExitStack() as stack:
        stores = []
        for given in (source, target):
            store, is_ours = store_for(given)
            stores.append(store)
            if is_ours:
                stack.callback(store.backend.close)
        named = [keys] if isinstance(keys, str) else keys
        return _Copy(stores[0], stores[1], dry_run).run(named)


class _Line:
    """A key that is copied, and how far it is."""

    def __init__(self, key: str, last: int, done: int, shift: int) -> None:
        self.key = key
        self.last = last
        """The newest checkpoint of the source to copy."""
        self.done = done
        """The newest checkpoint of the source that was copied."""
        self.shift = shift
        """The number of a checkpoint in the target minus that in the source."""
        self.newest = 0
        """The newest number in the target."""
        self.gaps = 0


class _Copy:
    """One run of `copy`."""

    def __init__(self, source: Store, target: Store, dry_run: bool) -> None:
        ours, theirs = source.backend.properties, target.backend.properties
        is_same = source.backend is target.backend or any(
            one is not None and one == other
            for one, other in ((ours.url, theirs.url), (ours.path, theirs.path))
        )
        if is_same:
            raise InvalidInputError("The source and the target are the same store.")
        self.source = source
        self.target = target
        self.dry_run = dry_run
        self.objects = ObjectSender(source.backend, target, dry_run)
        self.lineages: set[str] = set()
        self.shifts: dict[str, int] = {}
        self.checkpoints = self.records = self.bytes = 0

    def run(self, keys: Iterable[str] | None) -> CopyReport:
        lines: list[_Line] = []
        skipped: list[str] = []
        lineages: dict[str, bool] = {}
        for key, limit in self._selection(keys).items():
            head = self._newest(key, limit)
            if head is None:
                continue  # deleted meanwhile
            line = self._plan(key, head)
            if line is None:
                skipped.append(key)
            else:
                lines.append(line)
            lineage = lineage_of(self.source.reader(head), head)
            if lineage is not None:
                lineages[lineage] = lineages.get(lineage, False) or line is not None
        # The ledgers are read after the heads, so they have all records that these rely on.
        for lineage, is_needed in lineages.items():
            self._copy_ledger(lineage, is_needed, dry_run=True)
        if not self.dry_run and (lines or lineages):
            self.target.format.check(writing=True)
        for lineage, is_needed in lineages.items():
            self._ledger(lineage, is_needed)
        logs: dict[str, list[str]] = {}
        for key, name in record_logs(self.source):  # one listing, not one for each key
            logs.setdefault(key, []).append(name)
        for key in sorted(logs.keys() & {*skipped, *(line.key for line in lines)}):
            if not self._is_live(key):
                count, size = copy_records(
                    self.source, self.target, key, logs[key], dry_run=self.dry_run
                )
                self.records += count
                self.bytes += size
        for line in sorted(lines, key=self._begin):  # a fork after the key that it was forked from
            self._line(line)
        return CopyReport(
            keys=tuple(line.key for line in lines),
            checkpoints=self.checkpoints,
            records=self.records,
            objects=self.objects.count,
            bytes=self.bytes + self.objects.bytes,
            skipped=tuple(skipped),
        )

    # -- what to copy ----------------------------------------------------------------------------

    def _selection(self, keys: Iterable[str] | None) -> dict[str, int | None]:
        """Return the keys to copy, each with the last number to copy; None for all."""
        existing = self.source.list_keys()
        if keys is None:
            return dict.fromkeys(existing)
        chosen: dict[str, int | None] = dict.fromkeys(map(check_key, keys))
        for key in chosen:
            if key not in existing:
                raise key_not_found(key, self.source)
        points = {key: self._fork_point(key) for key in existing}
        forks: dict[str, list[str]] = {}
        for key, point in points.items():
            if point is not None:
                forks.setdefault(point.key, []).append(key)
        new = list(chosen)
        while new:
            new = [fork for key in new for fork in forks.get(key, ()) if fork not in chosen]
            chosen.update(dict.fromkeys(new))
        for key in list(chosen):
            point = points[key]
            while point is not None and point.key in points:
                limit = chosen.get(point.key, 0)
                if limit is None or limit >= point.seq:
                    break
                chosen[point.key] = point.seq
                point = points[point.key]
        return chosen

    def _fork_point(self, key: str) -> CheckpointId | None:
        with suppress(*UNUSABLE):  # copying the key reports it
            first = self._oldest(key)
            return None if first is None else fork_point_of(self.source, first)
        return None

    def _oldest(self, key: str, after: int = 0) -> Checkpoint | None:
        entries = self.source.entries(key, page=1, oldest_first=True, after=after)
        return _checkpoint(key, next(entries, None))

    def _newest(self, key: str, limit: int | None) -> Checkpoint | None:
        before = None if limit is None else limit + 1
        return _checkpoint(key, next(self.source.entries(key, page=1, before=before), None))

    def _begin(self, line: _Line) -> int:
        first = self._oldest(line.key)
        return 0 if first is None else first.ts_ns

    def _plan(self, key: str, head: Checkpoint) -> _Line | None:
        """Return what is new in a key up to `head`; None if nothing is.

        Raises:
            ConflictError: the target has checkpoints of the key that are not copies.
        """
        ours = _checkpoint(key, next(self.target.entries(key, page=1), None))
        if ours is None:
            return _Line(key, head.seq, 0, 0)
        done = _origin(ours)
        if done is None:  # saved there, perhaps after a copy
            at_number = self.target.read(key, head.seq)
            is_same = at_number is not None and _summary(at_number) == _summary(head)
            if is_same or any(_origin(item) == head.seq for item in self.target.readable(key)):
                return None
            raise self._diverged(head)
        shift = self.shifts[key] = ours.seq - done
        theirs = head if head.seq <= done else self._newest(key, done)
        if theirs is not None:
            copied = self.target.read(key, theirs.seq + shift)
            is_its_copy = copied is not None and _origin(copied) == theirs.seq
            if copied is not None and is_its_copy and _summary(copied) != _summary(theirs):
                raise self._diverged(head)
        else:
            first = self._oldest(key, after=done)
            if first is not None and not first.parents:
                raise ConflictError(
                    f"The key {short_repr(key)} was deleted in the source and created again.",
                    hint=_DELETE,
                )
        return _Line(key, head.seq, done, shift) if head.seq > done else None

    def _diverged(self, head: Checkpoint) -> ConflictError:
        """Return the error for a key with other checkpoints in the target; names the first."""
        key, lineage = head.key, lineage_of(self.source.reader(head), head)
        is_bound = lineage is not None and has_own_records(self.target, lineage)
        hint = _NEW_STORE if is_bound else _DELETE
        theirs = {item.seq: _summary(item) for item in self.source.readable(key)}
        for entry in self.target.entries(key, oldest_first=True):
            with suppress(*UNUSABLE):
                ours = read_checkpoint(key, entry.seq, entry.data)
                origin = _origin(ours)
                their = theirs.get(ours.seq if origin is None else origin)
                if (their or origin is None) and their != _summary(ours):
                    return ConflictError(
                        f"The key {short_repr(key)} has diverged: the checkpoint "
                        f"{short_repr(ours.id, 120)} of the target is not in the source. Nothing "
                        "was copied.",
                        hint=hint,
                    )
        return ConflictError(
            f"The key {short_repr(key)} was saved in the target, not copied there, so a copy does "
            "not extend it. Nothing was copied.",
            hint=hint,
        )

    # -- copying ---------------------------------------------------------------------------------

    def _ledger(self, lineage: str, is_needed: bool) -> None:
        self.lineages.add(lineage)
        for attempt in range(_TRIES):
            try:
                count, size = self._copy_ledger(lineage, is_needed, dry_run=self.dry_run)
            except ConflictError:  # another copy of it may be running
                if attempt == _TRIES - 1:
                    raise
            else:
                self.records += count
                self.bytes += size
                return

    def _copy_ledger(self, lineage: str, is_needed: bool, *, dry_run: bool) -> tuple[int, int]:
        return copy_ledger(
            self.source,
            self.target,
            lineage,
            is_live=self._is_live,
            is_needed=is_needed,
            dry_run=dry_run,
        )

    def _is_live(self, key: str) -> bool:
        ours = _checkpoint(key, next(self.target.entries(key, page=1), None))
        return ours is not None and _origin(ours) is None

    def _line(self, planned: _Line) -> None:
        failed, before = 0, -1
        while True:
            # Before the plan, so that an append since the plan is a conflict.
            newest = self.target.newest(planned.key)
            head = self._newest(planned.key, planned.last)
            line = None if head is None else self._plan(planned.key, head)
            if line is None:
                return
            line.newest = newest
            # If it grows, another copy of the key is running, and one of them comes to an end.
            failed, before = (0, newest) if newest > before else (failed + 1, before)
            try:
                self._pages(line)
                return
            except ConflictError as error:
                if failed == _TRIES:
                    raise ConflictError(
                        f"The key {short_repr(planned.key)} was not copied completely. {error} "
                        "Run the copy again."
                    ) from error

    def _pages(self, line: _Line) -> None:
        entries = self.source.entries(
            line.key, after=line.done, before=line.last + 1, page=_PAGE, oldest_first=True
        )
        while page := list(islice(entries, _PAGE)):
            found = [read_checkpoint(line.key, entry.seq, entry.data) for entry in page]
            if not self.target.backend.properties.readable:
                with suppress(LostObjectError):  # of a checkpoint that was pruned meanwhile
                    trees = [tree for one in found for tree in one.parts.values()]
                    self.objects.send(object_names(trees))
            for entry, checkpoint in zip(page, found):
                _check_parents(checkpoint)
                if self._checkpoint(line, checkpoint):
                    self.checkpoints += 1
                    self.bytes += len(entry.data)

    def _checkpoint(self, line: _Line, found: Checkpoint) -> bool:
        """Copy a checkpoint and its objects; return False if it was pruned meanwhile."""
        for attempt in range(_TRIES):
            try:
                lineage = lineage_of(self.source.reader(found), found)
                if lineage is not None and lineage not in self.lineages:
                    self._ledger(lineage, is_needed=True)
                parts, roots = self._parts(found)
                inner = self.objects.send(roots)
            except LostObjectError:
                if self.source.read(found.key, found.seq) is not None:
                    raise
                return False
            try:
                if not self.dry_run:
                    self._append(line, found, parts, inner)
            except (LostObjectError, MissingObjectsError):
                # gc of the target swept objects before the checkpoint referred to them.
                self.objects.forget()
                if attempt == _TRIES - 1:
                    raise
            else:
                self.objects.committed(inner)
                line.done = found.seq
                return True
        raise AssertionError("unreachable: the loop returns or raises")

    def _parts(self, found: Checkpoint) -> tuple[Mapping[str, Any], list[str]]:
        """Return the parts in the form of the target, and the ids of the objects to send."""
        parts: Mapping[str, Any] = found.parts
        from_readable = self.source.backend.properties.readable
        to_readable = self.target.backend.properties.readable
        if to_readable and not from_readable:
            parts = parts_inline(found, self.source.backend)
        roots = list(object_names(parts.values()))
        if from_readable and not to_readable:
            # One by one: the name of a part may look like a tag.
            backend = self.target.backend
            parts = {name: with_references(tree, backend) for name, tree in parts.items()}
        return parts, roots

    def _append(
        self,
        line: _Line,
        found: Checkpoint,
        parts: Mapping[str, JsonValue],
        inner: Mapping[str, PlainObject],
    ) -> None:
        from_readable = self.source.backend.properties.readable
        is_split = from_readable and not self.target.backend.properties.readable
        draft = found.draft()._replace(
            parts=parts,
            source=None if is_split else found,
            token=f"copy-{found.ts_ns}-{found.seq}-{secrets.token_hex(16)}",
        )
        parents = tuple(map(self._renamed, found.parents))
        with ExitStack() as stack:
            self._use_up(line, found.seq + line.shift - 1, stack)
            written = self.target.write(
                draft, parents=parents, after=line.newest, ts_ns=found.ts_ns, adopted=inner
            )
        line.newest = written.seq
        line.shift = self.shifts[line.key] = written.seq - found.seq

    def _use_up(self, line: _Line, until: int, stack: ExitStack) -> None:
        """Use up the numbers of removed checkpoints, so that the next one keeps its number.

        The entries for that are hidden, and removed when `stack` is closed without an error.
        """
        gap = until - line.newest
        if gap <= 0:
            return
        line.gaps += gap
        if line.gaps > _MOST_GAPS:
            raise InvalidInputError(
                f"More than {_MOST_GAPS:,} checkpoints of {short_repr(line.key)} were removed, so "
                "the copy cannot keep the numbers of the others. Export the key to an archive and "
                "import it: the import counts from 1."
            )
        used: list[int] = []
        token = stack.enter_context(hidden_entries(self.target, line.key))

        def remove(kind: object, *_: object) -> None:
            if kind is None:  # else leave them for the next copy; gc removes them, too
                self.target.remove(line.key, used)

        stack.push(remove)
        while line.newest < until:
            line.newest = self.target.append_hidden(line.key, token, after=line.newest)
            used.append(line.newest)

    def _renamed(self, parent: str) -> str:
        """Return the id of a copied checkpoint in the target.

        It differs if numbers of the key were in use there, by checkpoints that were deleted.
        """
        parsed = parse_checkpoint_id(parent)
        shift = 0 if parsed is None else self._shift(parsed.key)
        if parsed is None or shift <= 0:
            return parent
        first, last = parsed.seq, parsed.seq + shift
        for entry in self.target.entries(parsed.key, after=first - 1, before=last + 1):
            with suppress(*UNUSABLE):
                ours = read_checkpoint(parsed.key, entry.seq, entry.data)
                if ours.ts_ns == parsed.ts_ns and _origin(ours) == parsed.seq:
                    return ours.id
        return parent

    def _shift(self, key: str) -> int:
        if key not in self.shifts:
            self.shifts[key] = 0
            with suppress(InvalidInputError, *UNUSABLE):  # a crafted id may have any key
                ours = _checkpoint(key, next(self.target.entries(key, page=1), None))
                done = None if ours is None else _origin(ours)
                if ours is not None and done is not None:
                    self.shifts[key] = ours.seq - done
        return self.shifts[key]


_DELETE = Hint("Name other keys to copy, or delete this key in the target and copy it again.")
_NEW_STORE = Hint(
    "Name other keys to copy, or copy the session to a new store and resume it there."
)


def _checkpoint(key: str, entry: Entry | None) -> Checkpoint | None:
    return None if entry is None else read_checkpoint(key, entry.seq, entry.data)


def _origin(checkpoint: Checkpoint) -> int | None:
    """Return the number of a copied checkpoint in the source; None if it is not a copy itself.

    A session that is opened on a copy repeats the token, with another time.
    """
    match = _TOKEN.fullmatch(checkpoint.token or "")
    is_copy = match is not None and int(match[1]) == checkpoint.ts_ns
    return int(match[2]) if match is not None and is_copy else None


def _summary(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """Return what a checkpoint and its copy have in common, and others do not."""
    return (
        checkpoint.ts_ns,
        checkpoint.kind,
        checkpoint.label,
        checkpoint.tags,
        dict(checkpoint.metrics),
    )


def _check_parents(checkpoint: Checkpoint) -> None:
    for parent in map(parse_checkpoint_id, checkpoint.parents):
        if parent is not None and parent.key == checkpoint.key and parent.seq >= checkpoint.seq:
            raise IntegrityError(
                f"The checkpoint {short_repr(checkpoint.id, 120)} is damaged: its parent "
                f"{short_repr(str(parent), 120)} is not older."
            )
