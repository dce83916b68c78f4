"""Imports an archive into a store atomically. Does not depend on the file format of archives.

The checkpoints of an import contain its token. Readers ignore them while the stream `meta/import`
lists that token; removing it makes all checkpoints visible in one step. Checkpoints of an
interrupted import stay hidden; the next import, fork, purge or gc that finds its process dead
removes them.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from agent_checkpoint.errors import ConflictError, Hint, IntegrityError
from agent_checkpoint.records import Checkpoint, JsonValue, short_repr
from agent_checkpoint.store.archive.archive_file import Archive, check_archive_path
from agent_checkpoint.store.archive.record_copy import add_logs, check_no_records, remove_logs
from agent_checkpoint.store.canonical_json import indented_size
from agent_checkpoint.store.checkpoint_entries import MAX_READABLE, too_large
from agent_checkpoint.store.import_journal import Import, begin_import, end_import
from agent_checkpoint.store.ledger.ledger_archive import add_records, may_share
from agent_checkpoint.store.ledger.lineage import lineage_of, new_lineage, with_lineage
from agent_checkpoint.store.objects.compression import ZSTD_CODEC
from agent_checkpoint.store.objects.object_format import (
    PlainObject,
    in_batches,
    open_object,
    plain_object,
)
from agent_checkpoint.store.objects.reader import (
    ObjectSource,
    Reader,
    object_names,
    resolve_parts,
)
from agent_checkpoint.store.reachability import RefGraph, mark
from agent_checkpoint.store.store import Store

_TRIES = 5
_TIMEOUT_NS = 24 * 3600 * 10**9
_running: set[str] = set()  # the tokens of this process's own imports


def import_archive(store: Store, path: str | os.PathLike[str]) -> str:
    """Add the checkpoints of an archive as a new key, and return the key.

    Raises:
        ConflictError: the key already exists, or has records.
        IntegrityError: the file is damaged, or is not an archive.
        FormatError: the archive has a newer format.
        StorageError: the file cannot be read, or the store cannot be written.
    """
    archive = Archive(check_archive_path(path))
    store.format.check(writing=True)
    remove_dead_imports(store)
    if next(store.entries(archive.key, page=1), None) is not None:
        raise _exists(archive)
    check_no_records(store, archive.key)
    token = secrets.token_hex(16)
    _running.add(token)
    try:
        _Import(store, archive, token).run()
    finally:
        _running.discard(token)
    return archive.key


class _Import:
    """One import in progress."""

    def __init__(self, store: Store, archive: Archive, token: str) -> None:
        self.store = store
        self.archive = archive
        self.token = token
        self.renamed: dict[str, str] = {}  # ids in the archive, and here
        self.lineages: dict[str, str] = {}  # names in the archive, and here
        self.last = 0

    def run(self) -> None:
        backend = self.store.backend
        record = begin_import(backend, self.archive.key, self.token, _this_process())
        try:
            self._write_all()
        except ConflictError as error:
            _roll_back(self.store, record)
            if self.store.newest(self.archive.key):
                raise _exists(self.archive) from error
            raise
        except BaseException:
            _roll_back(self.store, record)
            raise
        end_import(backend, record)

    def _write_all(self) -> None:
        key = self.archive.key
        for found, names in self.archive.checkpoints():
            copy = self._write(self._with_own_ledger(found), names)
            self.renamed[found.id] = copy.id
            self.last = copy.seq
        for lineage, records in self.archive.ledgers().items():
            if lineage not in self.lineages:
                raise IntegrityError(
                    f"The archive {self.archive.path} is damaged: it contains the ledger "
                    f"{short_repr(lineage)}, which no checkpoint in it refers to."
                )
            renamed = [record._replace(lineage=self.lineages[lineage]) for record in records]
            add_records(self.store, renamed, self.archive)
        add_logs(self.store, key, self.archive.records(), self.archive, self.token)
        if self.store.newest(key) != self.last:
            raise ConflictError(f"Another process saved to {short_repr(key)} during the import.")

    def _with_own_ledger(self, found: Checkpoint) -> Checkpoint:
        """Return the checkpoint, with a new lineage if another session here uses the old one."""
        reader = Reader(self.archive, states=[found.parts])
        lineage = lineage_of(reader, found)
        if lineage is None:
            return found
        if lineage not in self.lineages:
            key = self.archive.key
            is_shared = may_share(self.store, lineage, key)
            self.lineages[lineage] = lineage if is_shared else new_lineage(key)
        own = self.lineages[lineage]
        return found if own == lineage else with_lineage(reader, found, own)

    def _write(self, found: Checkpoint, names: Iterable[str]) -> Checkpoint:
        """Write a checkpoint and the objects with these ids."""
        draft = found.draft()._replace(parts=self._parts(found), source=found, token=self.token)
        parents = tuple(self.renamed.get(parent, parent) for parent in found.parents)
        for attempt in range(_TRIES):
            adopted = self._put_objects(names if attempt == 0 else self.archive.names, draft.parts)
            try:
                return self.store.write(
                    draft, parents=parents, after=self.last, ts_ns=found.ts_ns, adopted=adopted
                )
            except IntegrityError:  # gc swept objects before the checkpoint referred to them
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable: the loop returns or raises")

    def _parts(self, found: Checkpoint) -> Mapping[str, JsonValue]:
        is_readable = self.store.backend.properties.readable
        return parts_inline(found, self.archive) if is_readable else found.parts

    def _put_objects(
        self, names: Iterable[str], parts: Mapping[str, JsonValue]
    ) -> dict[str, PlainObject]:
        """Store the objects without references; return the others, to be written with the entry."""
        others: dict[str, PlainObject] = {}
        if self.store.backend.properties.readable:  # text is stored inline there
            seen: RefGraph = {}
            mark(self.archive, object_names(parts.values()), seen)
            names = [name for name in names if name in seen]

        def without_references() -> Iterator[tuple[str, bytes]]:
            for name, stored in self.archive.objects(names):
                found = open_object(name, stored)
                if found.refs:
                    others[name] = plain_object(found.kind, found.payload, found.refs)
                elif stored[:1] == ZSTD_CODEC:  # agent-checkpoint writes no such archive
                    yield name, plain_object(found.kind, found.payload).stored()
                else:
                    yield name, stored

        for batch in in_batches(without_references()):
            self.store.backend.put_objects(batch)
        return others


def parts_inline(found: Checkpoint, source: ObjectSource) -> dict[str, JsonValue]:
    """Return the parts of a checkpoint with their state inline, for a readable store.

    Raises:
        IntegrityError: an object is missing or damaged.
        InvalidInputError: the state is too large for a readable entry.
        StorageError: the medium failed.
    """
    reader = Reader(source, states=[found.parts], most=MAX_READABLE)
    parts = resolve_parts(found.parts, reader)
    if indented_size(parts, MAX_READABLE) > MAX_READABLE:
        raise too_large(found.key)
    return parts


@contextmanager
def hidden_entries(store: Store, key: str) -> Iterator[str]:
    """Yield a token for entries that readers ignore; the caller removes them before the end.

    After an error the token stays in the journal, and `remove_dead_imports` removes the entries.

    Raises:
        StorageError: the medium failed.
    """
    token = secrets.token_hex(16)
    _running.add(token)
    try:
        record = begin_import(store.backend, key, token, _this_process())
        yield token
        end_import(store.backend, record)
    finally:
        _running.discard(token)


def remove_dead_imports(store: Store) -> None:
    """Roll back imports whose process is dead, or that started more than a day ago.

    Raises:
        IntegrityError: the record of an import is damaged.
        StorageError: the medium failed.
    """
    oldest = time.time_ns() - _TIMEOUT_NS
    for item in store.imports():
        is_ours = item.process == _this_process()
        is_dead = item.token not in _running if is_ours else _is_dead(item.process)
        if is_dead or item.ts_ns < oldest:
            _roll_back(store, item)


def _this_process() -> str:
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def _machine() -> str:
    """Return host name and PID namespace. Containers may share a host name, but not PIDs."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _is_dead(process: str) -> bool:
    """Return whether a process has certainly exited; False for processes of other machines."""
    try:
        host, pid, started = process.rsplit("/", 2)
        if host != _machine():
            return False
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):  # another user's, or crafted
        return False
    return started != _started(int(pid))


def _started(pid: int) -> str:
    """Return the start time of a process, because PIDs are reused; empty if unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _roll_back(store: Store, record: Import) -> None:
    # By the token: an entry may exist although its append was interrupted.
    store.remove(record.key, store.imported(record.key, record.token))
    remove_logs(store, record.key, record.token)
    end_import(store.backend, record)


def _exists(archive: Archive) -> ConflictError:
    return ConflictError(
        f"The key {short_repr(archive.key)} already exists.",
        hint=Hint(f"Delete it before importing {archive.path}.", "exists", path=str(archive.path)),
    )
