"""An archive into a store, all of it or nothing.

Owns when an import appears and when it is taken back; knows nothing of the archive's form.

The entries of an import carry its token. As long as the stream `meta/import` names that token they
do not exist for readers; removing the name is the one step that makes all of them appear. What a
killed import leaves is out of sight, and goes with the next import, fork, purge or gc that notices
that the process is gone.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent_checkpoint.errors import ConflictError, IntegrityError
from agent_checkpoint.records import Checkpoint, Draft, JsonValue, short_repr
from agent_checkpoint.store.archive.archive_file import Archive, check_archive_path
from agent_checkpoint.store.canonical_json import indented_size
from agent_checkpoint.store.entries import MAX_READABLE, too_large
from agent_checkpoint.store.import_journal import Import, begin_import, end_import
from agent_checkpoint.store.ledger.ledger_archive import add_records, may_share
from agent_checkpoint.store.ledger.lineage import lineage_of, new_lineage, with_lineage
from agent_checkpoint.store.objects.compression import ZSTD_CODEC
from agent_checkpoint.store.objects.object_format import PlainObject, open_object, plain_object
from agent_checkpoint.store.objects.reader import Reader, object_names, resolve_tree
from agent_checkpoint.store.reachability import RefGraph, mark
from agent_checkpoint.store.store import Store

_BATCH = 1 << 25
_TRIES = 5
_FORGOTTEN_NS = 24 * 3600 * 10**9
_running: set[str] = set()  # the tokens of this process's own imports


def import_archive(store: Store, path: str | os.PathLike[str]) -> str:
    """Add the checkpoints of an archive as a new key, and return the key.

    Raises:
        ConflictError: the key exists already.
        IntegrityError: the file is damaged, or not an archive.
        FormatError: a newer version wrote it.
        StorageError: the file cannot be read, or the store cannot be written.
    """
    archive = Archive(check_archive_path(path))
    store.format.check(writing=True)
    remove_dead_imports(store)
    if next(store.entries(archive.key, page=1), None) is not None:
        raise _exists(archive)
    token = secrets.token_hex(16)
    _running.add(token)
    try:
        _Import(store, archive, token).run()
    finally:
        _running.discard(token)
    return archive.key


class _Import:
    """One archive on its way into a store."""

    def __init__(self, store: Store, archive: Archive, token: str) -> None:
        self.store = store
        self.archive = archive
        self.token = token
        self.renamed: dict[str, str] = {}
        self.lineages: dict[str, str] = {}  # names in the archive, and here
        self.last = 0

    def run(self) -> None:
        backend = self.store.backend
        record = begin_import(backend, self.archive.key, self.token, _this_process())
        try:
            self._write_all()
        except ConflictError as error:
            _take_back(self.store, record)
            if self.store.newest(self.archive.key):
                raise _exists(self.archive) from error
            raise
        except BaseException:
            _take_back(self.store, record)
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
                raise IntegrityError(f"{self.archive.path} has a ledger of another session.")
            renamed = [packed._replace(lineage=self.lineages[lineage]) for packed in records]
            add_records(self.store, renamed, self.archive)
        if self.store.newest(key) != self.last:
            raise ConflictError(f"Somebody saved to {short_repr(key)} while it was imported.")

    def _with_own_ledger(self, found: Checkpoint) -> Checkpoint:
        """Return a checkpoint whose session has no ledger that others of this store use."""
        reader = Reader(self.archive, checkpoints=[found])
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
        """Write a checkpoint, and of its objects those that the names say."""
        draft = Draft(
            found.key,
            self._parts(found),
            found.kind,
            found.label,
            found.tags,
            found.metrics,
            source=found,
            token=self.token,
        )
        parents = tuple(self.renamed.get(parent, parent) for parent in found.parents)
        for attempt in range(_TRIES):
            adopted = self._put_objects(names if attempt == 0 else self.archive.names, draft.parts)
            try:
                return self.store.write(
                    draft, parents=parents, after=self.last, ts_ns=found.ts_ns, adopted=adopted
                )
            except IntegrityError:  # gc took them away before the checkpoint named them
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable: the loop returns or raises")

    def _parts(self, found: Checkpoint) -> Mapping[str, JsonValue]:
        if not self.store.backend.readable:
            return found.parts
        reader = Reader(self.archive, checkpoints=[found], most=MAX_READABLE)
        reader.fetch(found.parts.values())
        parts = {name: resolve_tree(tree, reader) for name, tree in found.parts.items()}
        if indented_size(parts, MAX_READABLE) > MAX_READABLE:
            raise too_large(found.key)
        return parts

    def _put_objects(
        self, names: Iterable[str], parts: Mapping[str, JsonValue]
    ) -> dict[str, PlainObject]:
        """Store the objects that refer to nothing; return those to be written with the entry."""
        others: dict[str, PlainObject] = {}
        if self.store.backend.readable:  # it has all that is text in full
            seen: RefGraph = {}
            mark(self.archive, object_names(parts.values()), seen)
            names = [name for name in names if name in seen]
        batch: dict[str, bytes] = {}
        size = 0
        for name, stored in self.archive.objects(names):
            found = open_object(name, stored)
            if found.refs:
                others[name] = plain_object(found.kind, found.payload, found.refs)
                continue
            if stored[:1] == ZSTD_CODEC:  # an archive that none of ours wrote
                stored = plain_object(found.kind, found.payload).stored()
            batch[name] = stored
            size += len(stored)
            if size > _BATCH:
                self.store.backend.put_objects(batch)
                batch, size = {}, 0
        if batch:
            self.store.backend.put_objects(batch)
        return others


def remove_dead_imports(store: Store) -> None:
    """Remove what imports left whose process is gone, or that were begun more than a day ago.

    Raises:
        IntegrityError: the record of an import is damaged.
        StorageError: the medium failed.
    """
    oldest = time.time_ns() - _FORGOTTEN_NS
    for found in store.imports():
        is_ours = found.process == _this_process()
        is_dead = found.token not in _running if is_ours else _is_gone(found.process)
        if is_dead or found.ts_ns < oldest:
            _take_back(store, found)


def _this_process() -> str:
    return f"{_machine()}/{os.getpid()}/{_started(os.getpid())}"


def _machine() -> str:
    """Return what tells process numbers apart: containers of one host name have their own."""
    try:
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _is_gone(process: str) -> bool:
    """Tell whether a process has ended for sure: one of another machine may always be alive."""
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
    """Return when a process was started: a number may be used again. Empty where none can tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _take_back(store: Store, record: Import) -> None:
    # By the token: an entry may be there although its append was interrupted.
    store.remove(record.key, store.imported(record.key, record.token))
    end_import(store.backend, record)


def _exists(archive: Archive) -> ConflictError:
    return ConflictError(
        f"The key {short_repr(archive.key)} exists already: delete it before importing "
        f"{archive.path}."
    )
