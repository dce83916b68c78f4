"""The import journal: imports in progress or interrupted. Does not depend on archives."""

from __future__ import annotations

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.errors import IntegrityError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.checkpoint_entries import append_record, now_ns, open_entry
from agent_checkpoint.store.sealed_streams import ForeignEntry, read_entries

IMPORT_STREAM = "meta/import"


class Import(NamedTuple):
    """A record of an import that is in progress or was interrupted."""

    seq: int
    key: str
    token: str
    ts_ns: int
    process: str


def begin_import(backend: Backend, key: str, token: str, process: str) -> Import:
    """Record an import: until `end_import`, readers ignore its entries. Raises StorageError."""
    ts_ns = now_ns()
    record: dict[str, JsonValue] = {"key": key, "token": token, "ts_ns": ts_ns, "process": process}
    seq = append_record(backend, IMPORT_STREAM, record)
    return Import(seq, key, token, ts_ns, process)


def end_import(backend: Backend, found: Import) -> None:
    """Remove the record of an import, so that its entries become visible. Raises StorageError."""
    backend.remove(IMPORT_STREAM, [found.seq])


def unfinished_imports(backend: Backend) -> list[Import]:
    """Return the imports that are in progress or were interrupted.

    Raises:
        IntegrityError: the record of an import is damaged.
        StorageError: the medium failed.
    """
    found = []
    for entry in read_entries(backend, IMPORT_STREAM):
        if isinstance(entry.data, ForeignEntry):
            continue  # it must not hide trusted entries; its own entries are untrusted anyway
        where = f"Import record {entry.seq}"
        record = open_entry(entry.data, where)
        texts = [record.get(name) for name in ("key", "token", "process")]
        ts_ns = record.get("ts_ns")
        if type(ts_ns) is not int or not all(isinstance(text, str) and text for text in texts):
            raise IntegrityError(f"{where} has wrong or missing members.")
        key, token, process = map(str, texts)
        found.append(Import(entry.seq, key, token, ts_ns, process))
    return found
