"""One key as one file. Owns the archive's form; runs nothing that it reads.

Gzipped lines of JSON: a header, one line a checkpoint, oldest first, and a last line with the
count and the hash of all lines before it, so that a file that was cut or altered is noticed before
anything is imported.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import secrets
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from agent_checkpoint.errors import (
    ConflictError,
    FormatError,
    IntegrityError,
    InvalidInputError,
    StorageError,
)
from agent_checkpoint.records import Checkpoint, Draft, JsonValue, check_key, show
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.json_text import read_json, write_json
from agent_checkpoint.store.store import Store, unknown

ARCHIVE_FORMAT = 1
MAX_LINE = 1 << 28
"""The longest line that is read: a crafted file must not fill the memory."""

# Looked at before a line is parsed: a crafted line could take many times its size in memory.
_HEADER_BEGINS = (b'{"agent_checkpoint_archive":',)
_ROW_BEGINS = (b'{"seq":', b'{"checkpoints":')


def export_archive(store: Store, path: str | os.PathLike[str], key: str) -> int:
    """Write all checkpoints of a key into a file, and return their number.

    Raises:
        NotFoundError: there is no such key.
        IntegrityError: one of the checkpoints is damaged.
        StorageError: the file cannot be written; an older one of that name is as it was.
    """
    if next(store.entries(key, page=1), None) is None:
        raise unknown(key, store)
    target = _path(path)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                count = _write(file, store, key)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(f"Cannot write the archive {target}: {error.strerror}.") from error
    return count


def import_archive(store: Store, path: str | os.PathLike[str]) -> str:
    """Add the checkpoints of an archive as a new key, and return the key.

    The file is read twice: nothing is written before all of it is found sound.

    Raises:
        ConflictError: the key exists already.
        IntegrityError: the file is damaged, or not an archive.
        FormatError: a newer version wrote it.
        StorageError: the file cannot be read, or the store cannot be written.
    """
    source = _path(path)
    with _reading(source):
        key = ""
        for checkpoint in _checkpoints(source):
            key = checkpoint.key
    renamed: dict[str, str] = {}
    written: list[int] = []
    try:
        with _reading(source):
            for found in _checkpoints(source):
                copy = store.write(
                    Draft(key, found.parts, found.kind, found.label, found.tags, found.metrics),
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
    except BaseException:
        store.remove(key, written)
        raise
    return key


def _write(file: BinaryIO, store: Store, key: str) -> int:
    digest = hashlib.sha256()
    count = 0
    with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:

        def line(record: JsonValue) -> None:
            text = write_json(record) + b"\n"
            if len(text) > MAX_LINE:
                raise InvalidInputError(
                    f"A checkpoint of {show(key)} takes {len(text)} bytes; an archive holds up to "
                    f"{MAX_LINE} each."
                )
            digest.update(text)
            packed.write(text)

        line({"agent_checkpoint_archive": ARCHIVE_FORMAT, "key": key})
        for entry in store.oldest_first(key):
            read_checkpoint(key, entry.seq, entry.data)
            line({"seq": entry.seq, "entry": entry.data.decode()})
            count += 1
        line({"checkpoints": count, "sha256": digest.hexdigest()})
    return count


def _checkpoints(path: Path) -> Iterator[Checkpoint]:
    digest = hashlib.sha256()
    key: str | None = None
    count = 0
    last = False
    with gzip.open(path, "rb") as file:
        while text := file.readline(MAX_LINE):
            expected = _ROW_BEGINS if key is not None else _HEADER_BEGINS
            if last or not text.startswith(expected) or not text.endswith(b"\n"):
                raise IntegrityError(f"{path} is damaged or not an archive.")
            record = read_json(text)
            if not isinstance(record, dict):
                raise IntegrityError(f"{path} is damaged or not an archive.")
            if key is None:
                key = _header(record, path)
            elif "sha256" in record:
                last = record.get("checkpoints") == count
                last = last and record["sha256"] == digest.hexdigest()
                if not last:
                    raise IntegrityError(f"{path} was changed after it was written.")
            else:
                seq, data = record.get("seq"), record.get("entry")
                if not isinstance(seq, int) or not isinstance(data, str):
                    raise IntegrityError(f"{path} is damaged: a line is no checkpoint.")
                yield read_checkpoint(key, seq, data.encode("utf-8", "replace"))
                count += 1
            digest.update(text)
    if not last:
        raise IntegrityError(f"{path} is not a whole archive: its end is missing.")


def _header(record: dict[str, JsonValue], path: Path) -> str:
    version, key = record.get("agent_checkpoint_archive"), record.get("key")
    if not isinstance(version, int) or not isinstance(key, str):
        raise IntegrityError(f"{path} is not an archive of agent-checkpoint.")
    if version > ARCHIVE_FORMAT:
        raise FormatError(
            f"{path} is an archive of format {version}; this version reads up to "
            f"{ARCHIVE_FORMAT}. Install a newer agent-checkpoint."
        )
    return check_key(key)


def _path(path: str | os.PathLike[str]) -> Path:
    try:
        found = Path(path)
        os.fsencode(found)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{show(path)} is not a path.") from None
    if not found.name or "\0" in str(found):
        raise InvalidInputError(f"{show(path)} is not the name of a file.")
    return found


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise IntegrityError(f"{path} is damaged or not an archive ({error}).") from None
    except OSError as error:
        raise StorageError(f"Cannot read the archive {path}: {error.strerror}.") from error
