"""An archive into a store, all of it or nothing.

Owns the record of imports under way; knows nothing of the archive's form.

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
from collections.abc import Iterable
from pathlib import Path

from agent_checkpoint.errors import ConflictError, IntegrityError
from agent_checkpoint.records import Checkpoint, Draft, JsonValue, show
from agent_checkpoint.store.archive import Archive, check_archive_path
from agent_checkpoint.store.entries import seal_entry
from agent_checkpoint.store.objects import Packed, make_plain, open_object
from agent_checkpoint.store.reading import MAX_STATE, Reader, whole
from agent_checkpoint.store.store import IMPORT_STREAM, Store

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
    key = archive.key
    store.format.check(writing=True)
    drop_dead(store)
    if next(store.entries(key, page=1), None) is not None:
        raise _exists(key, path)
    token = secrets.token_hex(16)
    record: dict[str, JsonValue] = {
        "key": key,
        "token": token,
        "ts_ns": time.time_ns(),
        "process": _this_process(),
    }
    entry = seal_entry(record, indent=store.backend.readable)
    _running.add(token)
    try:
        begun = store.backend.append(IMPORT_STREAM, entry)
        _import(store, archive, path, token, begun)
    finally:
        _running.discard(token)
    return key


def _import(
    store: Store, archive: Archive, path: str | os.PathLike[str], token: str, begun: int
) -> None:
    key = archive.key
    written: list[int] = []
    renamed: dict[str, str] = {}
    try:
        for found, names in archive.checkpoints():
            copy = _write(store, archive, found, names, token, renamed, written)
            written.append(copy.seq)
            renamed[found.id] = copy.id
        if store.newest(key) != written[-1]:
            raise ConflictError(f"Somebody saved to {show(key)} while it was imported.")
    except ConflictError as error:
        _take_back(store, key, token, begun)
        raise _exists(key, path) from error
    except BaseException:
        _take_back(store, key, token, begun)
        raise
    store.backend.remove(IMPORT_STREAM, [begun])


def drop_dead(store: Store) -> None:
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
            _take_back(store, found.key, found.token, found.seq)


def _this_process() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def _is_gone(process: str) -> bool:
    """Tell whether a process has ended for sure: one of another machine may always be alive."""
    host, _, rest = process.rpartition("/")[0].rpartition("/")
    started = process.rpartition("/")[2]
    if host != socket.gethostname() or not rest.isdigit():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return started != _started(int(rest))


def _started(pid: int) -> str:
    """Return when a process was started: a number may be used again. Empty where none can tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _write(
    store: Store,
    archive: Archive,
    found: Checkpoint,
    names: list[str],
    token: str,
    renamed: dict[str, str],
    written: list[int],
) -> Checkpoint:
    parts = found.parts
    if store.backend.readable:
        reader = Reader(archive, size=min(found.size, MAX_STATE))
        reader.fetch(parts.values())
        parts = {name: whole(tree, reader) for name, tree in parts.items()}
    draft = Draft(
        found.key,
        parts,
        found.kind,
        found.label,
        found.tags,
        found.metrics,
        source=found,
        token=token,
    )
    parents = tuple(renamed.get(parent, parent) for parent in found.parents)
    after = written[-1] if written else 0
    for attempt in range(_TRIES):
        adopted = {}
        if not store.backend.readable:
            adopted = _put_objects(store, archive, names if attempt == 0 else archive.names)
        try:
            return store.write(
                draft, parents=parents, after=after, ts_ns=found.ts_ns, adopted=adopted
            )
        except IntegrityError:  # gc took them away before the checkpoint named them
            if attempt == _TRIES - 1:
                raise
    raise AssertionError("unreachable: the loop returns or raises")


def _put_objects(store: Store, archive: Archive, names: Iterable[str]) -> dict[str, Packed]:
    """Store the objects that refer to nothing; return the others, to be written with the entry."""
    others: dict[str, Packed] = {}
    batch: dict[str, bytes] = {}
    size = 0
    for name, stored in archive.objects(names):
        found = open_object(name, stored)
        if found.refs:
            others[name] = make_plain(found.kind, found.payload, found.refs)
            continue
        batch[name] = stored
        size += len(stored)
        if size > _BATCH:
            store.backend.put_objects(batch)
            batch, size = {}, 0
    if batch:
        store.backend.put_objects(batch)
    return others


def _take_back(store: Store, key: str, token: str, begun: int) -> None:
    # By the token: an entry may be there although its append was interrupted.
    store.remove(key, store.imported(key, token))
    store.backend.remove(IMPORT_STREAM, [begun])


def _exists(key: str, path: str | os.PathLike[str]) -> ConflictError:
    return ConflictError(f"The key {show(key)} exists already: delete it before importing {path}.")
