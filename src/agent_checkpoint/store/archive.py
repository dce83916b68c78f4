"""One key as one file. Owns the archive's form; runs nothing that it reads.

Gzipped lines of JSON: a header, one line a checkpoint, oldest first, and a last line with the
count and the hash of all lines before it, so that a file that was cut or altered is noticed before
anything is imported.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_checkpoint.errors import ConflictError, FormatError, IntegrityError, StorageError
from agent_checkpoint.records import Checkpoint, Draft, check_key, show
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.json_text import read_json, write_json
from agent_checkpoint.store.store import Store, unknown

ARCHIVE_FORMAT = 1
MAX_LINE = 1 << 28
"""The longest line that is read: a crafted file must not fill the memory."""


def export_archive(store: Store, path: str | os.PathLike[str], key: str) -> int:
    """Write all checkpoints of a key into a file, and return their number.

    Raises:
        NotFoundError: there is no such key.
        IntegrityError: one of the checkpoints is damaged.
        StorageError: the file cannot be written; an older one of that name is as it was.
    """
    entries = list(store.entries(key))[::-1]
    if not entries:
        raise unknown(key, store)
    for entry in entries:
        read_checkpoint(key, entry.seq, entry.data)
    lines = [write_json({"agent_checkpoint_archive": ARCHIVE_FORMAT, "key": key})]
    for entry in entries:
        lines.append(write_json({"seq": entry.seq, "entry": entry.data.decode()}))
    digest = hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()
    lines.append(write_json({"checkpoints": len(entries), "sha256": digest}))
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
                    for line in lines:
                        packed.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"Cannot write the archive {target}: {error.strerror}.") from error
    return len(entries)


def import_archive(store: Store, path: str | os.PathLike[str]) -> str:
    """Add the checkpoints of an archive as a new key, and return the key.

    Raises:
        ConflictError: the key exists already.
        IntegrityError: the file is damaged, or not an archive.
        FormatError: a newer version wrote it.
        StorageError: the file cannot be read, or the store cannot be written.
    """
    key, checkpoints = _read(Path(path))
    renamed: dict[str, str] = {}
    written: list[int] = []
    try:
        for found in checkpoints:
            draft = Draft(
                key, found.parts, found.kind, found.label, tuple(found.tags), found.metrics
            )
            copy = store.write(
                draft,
                parents=tuple(renamed.get(parent, parent) for parent in found.parents),
                after=written[-1] if written else 0,
                ts_ns=found.ts_ns,
            )
            written.append(copy.seq)
            renamed[found.id] = copy.id
    except ConflictError as error:
        store.remove(key, written)
        raise ConflictError(
            f"The key {show(key)} exists already: delete it before importing {path}."
        ) from error
    return key


def _read(path: Path) -> tuple[str, list[Checkpoint]]:
    try:
        with gzip.open(path, "rb") as file:
            lines = list(_lines(file))
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise IntegrityError(f"{path} is damaged or not an archive ({error}).") from None
    except OSError as error:
        raise StorageError(f"Cannot read the archive {path}: {error.strerror}.") from error
    records: list[Any] = [read_json(line) for line in lines]
    if len(records) < 2 or not all(isinstance(record, dict) for record in records):
        raise IntegrityError(f"{path} is not an archive.")
    header, *rows, last = records
    version = header.get("agent_checkpoint_archive")
    if not isinstance(version, int) or version > ARCHIVE_FORMAT:
        raise FormatError(
            f"{path} is an archive of format {show(version)}; this version reads up to "
            f"{ARCHIVE_FORMAT}. Install a newer agent-checkpoint."
        )
    digest = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    if last.get("checkpoints") != len(rows) or last.get("sha256") != digest:
        raise IntegrityError(f"{path} was cut or changed after it was written.")
    try:
        key = check_key(header["key"])
        return key, [read_checkpoint(key, int(row["seq"]), row["entry"].encode()) for row in rows]
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is not an archive ({error!r}).") from None


def _lines(file: gzip.GzipFile) -> Iterator[bytes]:
    while True:
        line = file.readline(MAX_LINE)
        if not line:
            return
        if not line.endswith(b"\n"):
            raise EOFError("a line is cut or too long")
        yield line
