"""Verification: reads a whole store and reports damaged checkpoints. Read-only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from agent_checkpoint.errors import UNUSABLE
from agent_checkpoint.records import Entry
from agent_checkpoint.store.checkpoint_entries import open_entry, read_checkpoint
from agent_checkpoint.store.ledger.ledger_records import PREFIX
from agent_checkpoint.store.ledger.ledger_state import check_records
from agent_checkpoint.store.objects.reader import object_names
from agent_checkpoint.store.objects.trust import report_lost
from agent_checkpoint.store.reachability import read_or_reason, roots_of
from agent_checkpoint.store.record_stream import RECORD_LOGS
from agent_checkpoint.store.sealed_streams import read_entries
from agent_checkpoint.store.store import Store

RECORD_STREAMS = ("fx/", "meta/external/", RECORD_LOGS)
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
        self._medium = store.backend.uncached()
        self.checkpoints = 0
        self.problems: list[Problem] = []
        self._refs: dict[str, tuple[str, ...]] = {}
        self._broken: dict[str, str] = {}
        self._blamed: set[str] = set()

    def run(self) -> VerifyReport:
        with self._reported("meta/format"):
            self.store.format.read()
        keys: list[str] = []
        with self._reported("the store"):
            keys = self.store.list_keys()
        for key in keys:
            with self._reported(key):
                for entry in self.store.entries(key):
                    self._checkpoint(key, entry)
        for prefix in RECORD_STREAMS:
            for stream in list(self.store.backend.streams(prefix)):
                self._records(stream)
        self._unreachable()
        backend = self.store.backend
        report_lost(backend, backend.missing_objects(self._blamed))  # not damaged ones
        objects = len(self._refs) + len(self._broken)
        return VerifyReport(self.checkpoints, objects, tuple(self.problems))

    @contextmanager
    def _reported(self, where: str) -> Iterator[None]:
        """Report an error in the block as a problem."""
        try:
            yield
        except UNUSABLE as error:
            self._problem(where, error)

    def _checkpoint(self, key: str, entry: Entry) -> None:
        self.checkpoints += 1
        where = f"{key}@{entry.seq}"
        with self._reported(where):
            checkpoint = read_checkpoint(key, entry.seq, entry.data)
            reason = self._damage_below(object_names(checkpoint.parts.values()))
            if reason is not None and self.store.read(key, entry.seq) is not None:
                self._problem(where, reason)

    def _records(self, stream: str) -> None:
        records, before = [], len(self.problems)
        for entry in read_entries(self.store.backend, stream):
            where = f"{stream}@{entry.seq}"
            with self._reported(where):
                record = open_entry(entry.data, f"The record {where}")
                reason = self._damage_below(roots_of(record, where))
                if reason is not None:
                    self._problem(where, reason)
                records.append((entry.seq, record))
        if stream.startswith(PREFIX) and len(self.problems) == before:
            with self._reported(stream):
                check_records(stream[len(PREFIX) :], records)

    def _damage_below(self, roots: Iterable[str]) -> str | None:
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
        for name, found in read_or_reason(self._medium, new):
            if isinstance(found, str):
                self._broken[name] = found
            else:
                self._refs[name] = found.refs

    def _unreachable(self) -> None:
        """Read all objects that no entry reaches, and report the damaged ones."""
        names: set[str] = set()
        with self._reported("the store"):
            names = {info.id for info in self.store.backend.list_objects()}
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
