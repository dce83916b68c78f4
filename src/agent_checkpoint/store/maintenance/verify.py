"""Verification: reads a whole store and reports damaged checkpoints. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent_checkpoint.errors import UNUSABLE, IntegrityError
from agent_checkpoint.records import Entry
from agent_checkpoint.store.checkpoint_entries import open_entry, read_checkpoint
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.ledger.ledger_state import check_records
from agent_checkpoint.store.objects.reader import object_names
from agent_checkpoint.store.objects.trust import report_lost
from agent_checkpoint.store.reachability import read_or_reason, roots_of
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

RECORD_STREAMS = ("fx/", "meta/external/")
"""Prefixes of the streams, other than `key/`, whose records may refer to objects."""


@dataclass(frozen=True)
class Problem:
    """A damaged checkpoint, and the reason.

    If the damage is not in a checkpoint, `checkpoint` is a key, a stream, a record, an object or
    the store.
    """

    checkpoint: str
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`: the number of checkpoints and objects read, and the problems."""

    checkpoints: int
    objects: int
    problems: Sequence[Problem]

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.problems


def verify(store: Store) -> VerifyReport:
    """Read every entry and object of a store, and verify its hash and structure.

    Raises:
        StorageError: the medium failed.
    """
    return _Verifier(store).run()


class _Verifier:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.checkpoints = 0
        self.problems: list[Problem] = []
        self._refs: dict[str, tuple[str, ...]] = {}
        self._broken: dict[str, str] = {}
        self._blamed: set[str] = set()

    def run(self) -> VerifyReport:
        self._format()
        for key in self._keys():
            for entry in self._entries(key):
                self._checkpoint(key, entry)
        for stream in self._streams():
            self._records(stream)
        self._unreachable()
        backend = self.store.backend
        report_lost(backend, backend.missing_objects(self._blamed))  # not damaged ones
        objects = len(self._refs) + len(self._broken)
        return VerifyReport(self.checkpoints, objects, tuple(self.problems))

    def _format(self) -> None:
        try:
            self.store.format.read()
        except UNUSABLE as error:
            self._problem("meta/format", error)

    def _keys(self) -> list[str]:
        try:
            return self.store.list_keys()
        except IntegrityError as error:
            self._problem("the store", error)
            return []

    def _entries(self, key: str) -> Iterator[Entry]:
        try:
            yield from self.store.entries(key)
        except UNUSABLE as error:
            self._problem(key, error)

    def _checkpoint(self, key: str, entry: Entry) -> None:
        self.checkpoints += 1
        try:
            checkpoint = read_checkpoint(key, entry.seq, entry.data)
            roots = list(object_names(checkpoint.parts.values()))
        except UNUSABLE as error:
            self._problem(f"{key}@{entry.seq}", error)
            return
        reason = self._damage_below(roots)
        if reason is not None and self.store.read(key, entry.seq) is not None:
            self.problems.append(Problem(f"{key}@{entry.seq}", reason))

    def _streams(self) -> list[str]:
        """Return the record streams, other than keys."""
        return [name for prefix in RECORD_STREAMS for name in self.store.backend.streams(prefix)]

    def _records(self, stream: str) -> None:
        records, before = [], len(self.problems)
        for entry in read_entries(self.store.backend, stream):
            where = f"{stream}@{entry.seq}"
            try:
                record = open_entry(entry.data, f"The record {where}")
                reason = self._damage_below(list(roots_of(record, where)))
            except UNUSABLE as error:
                self._problem(where, error)
                continue
            if reason is not None:
                self.problems.append(Problem(where, reason))
            records.append((entry.seq, record))
        if stream.startswith(PREFIX) and len(self.problems) == before:
            try:
                check_records(stream[len(PREFIX) :], records)
            except IntegrityError as error:
                self._problem(stream, error)

    def _damage_below(self, roots: list[str]) -> str | None:
        """Return the error of a damaged object reachable from the roots; None if there is none."""
        reached: set[str] = set()
        level = set(roots)
        while level:
            reached |= level
            self._read(level)
            level = {ref for name in level for ref in self._refs.get(name, ())} - reached
        broken = sorted(reached & self._broken.keys())
        self._blamed.update(broken)
        return self._broken[broken[0]] if broken else None

    def _read(self, names: set[str]) -> None:
        new = [name for name in names if name not in self._refs and name not in self._broken]
        for name, found in read_or_reason(self.store.backend, new):
            if isinstance(found, str):
                self._broken[name] = found
            else:
                self._refs[name] = found.refs

    def _unreachable(self) -> None:
        """Read all objects that no entry reaches, and report the damaged ones."""
        try:
            names = {info.id for info in self.store.backend.list_objects()}
        except IntegrityError as error:
            self._problem("the store", error)
            return
        self._read(names)
        for name in sorted(self._broken.keys() & names - self._blamed):
            self._problem(f"object {name}", self._broken[name])
        for name in sorted(names & self._refs.keys()):
            lost = [ref for ref in self._refs[name] if ref not in names and ref not in self._blamed]
            if lost:
                self._problem(
                    f"object {name}",
                    f"The object refers to the object {lost[0]}, which is missing.",
                )

    def _problem(self, where: str, reason: object) -> None:
        self.problems.append(Problem(where, str(reason)))
