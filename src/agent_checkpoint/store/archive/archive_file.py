"""Archives: files with the checkpoints of one key. Owns the file format, export and reading.

    magic line, then frames: kind (1 byte), length (varint), content
    h   JSON: the key
    o   an object: its id (32 bytes) and its stored form, compressed with zlib or uncompressed
    c   a checkpoint: its number (varint) and its entry, after all objects that it references
    l   a record of the ledger of the key's session, after all objects that it references
    r   a record of a record log of the key, after all objects that it references
    z   SHA-256 of all bytes before this frame; the last frame

The whole file is verified before anything is imported. Reading an archive never runs code from it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agent_checkpoint.backends.os_support.posix import (
    open_private,
    sync_directory,
    wrap_os_errors,
)
from agent_checkpoint.errors import FormatError, IntegrityError, InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint, Entry, check_key, short_repr
from agent_checkpoint.store.archive.archive_mask import (
    ArchiveMask,
    MaskTree,
    is_file_with_secret,
    masked_checkpoint,
    masked_log_parts,
    masked_record,
)
from agent_checkpoint.store.archive.record_copy import LogRecord, read_log_frame, read_logs
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.checkpoint_entries import read_checkpoint, seal_entry, write_checkpoint
from agent_checkpoint.store.ledger.ledger_archive import (
    LedgerRecord,
    needed_objects,
    read_frame,
    read_ledger,
    record_of,
)
from agent_checkpoint.store.ledger.lineage import lineage_of
from agent_checkpoint.store.objects.object_format import (
    ID_BYTES,
    MAX_OBJECT,
    LostObjectError,
    PlainObject,
    children_first,
    open_object,
    plain_object,
)
from agent_checkpoint.store.objects.reader import fetch_objects, object_names
from agent_checkpoint.store.objects.references import with_references
from agent_checkpoint.store.objects.splitting import split_parts
from agent_checkpoint.store.objects.varint import read_varint, write_varint
from agent_checkpoint.store.objects.writer import WriteCache, Writer
from agent_checkpoint.store.reachability import RefGraph, mark
from agent_checkpoint.store.store import Store, key_not_found

MAGIC = b"agent-checkpoint archive "
ARCHIVE_FORMAT = 1

HEADER, OBJECT, CHECKPOINT, LEDGER, RECORD, END = b"h", b"o", b"c", b"l", b"r", b"z"

_TRIES = 5
_MAX_FRAME = MAX_OBJECT + 4096
"""Maximum length of a frame, so that a crafted file cannot exhaust memory."""


class Frame(NamedTuple):
    """A frame of an archive. `start` is the offset of its content in the file."""

    kind: bytes
    start: int
    content: bytes


@dataclass
class ExportReport:
    """The result of an export: what it wrote, and what it masked."""

    checkpoints: int = 0
    masked: int = 0
    """How many secrets were masked; one in several checkpoints counts in each."""
    masked_checkpoints: int = 0
    masked_records: int = 0
    """How many records of the ledger and of record logs had secrets."""
    files_with_secrets: int = 0
    """How many contents of files have secrets, which are not masked; 0 if nothing is."""


def export_archive(
    store: Store, path: str | os.PathLike[str], key: str, mask: MaskTree | None = None
) -> ExportReport:
    """Write all checkpoints of a key to a file; with `mask`, without the secrets that it finds.

    Raises:
        NotFoundError: there is no such key.
        InvalidInputError: a name contains a secret.
        StateError: a part cannot be masked.
        IntegrityError: a checkpoint is damaged.
        StorageError: the file cannot be written; an existing file at `path` is not changed.
    """
    if next(store.entries(key, page=1), None) is None:
        raise key_not_found(key, store)
    target = check_archive_path(path)
    fresh = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    with wrap_os_errors(f"write the archive {target}"):
        try:
            with open(fresh, "xb", opener=open_private) as file:
                report = _Export(store, key, file, mask).run()
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(target)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        sync_directory(target.parent)
    return report


class _Export:
    """Writes one archive."""

    def __init__(self, store: Store, key: str, file: BinaryIO, mask: MaskTree | None) -> None:
        self.store = store
        self.key = key
        self.file = file
        self.mask = None if mask is None else ArchiveMask(mask, store.backend)
        self.report = ExportReport()
        self.digest = hashlib.sha256()
        self.done: dict[str, int] = {}  # offset of each written object, by name
        self.lineages: list[str] = []

    def run(self) -> ExportReport:
        self._write(MAGIC + b"%d\n" % ARCHIVE_FORMAT)
        self._frame(HEADER, write_json({"key": self.key}))
        last = 0
        for _ in range(_TRIES):
            gone = 0
            for entry in self.store.entries(self.key, oldest_first=True):
                if entry.seq > last:
                    last = entry.seq
                    is_written = self._checkpoint(entry)
                    self.report.checkpoints += is_written
                    gone += not is_written
            if not gone:
                break  # else read on: new checkpoints may have been saved meanwhile
        if not self.report.checkpoints:
            raise key_not_found(self.key, self.store)
        for lineage in self.lineages:
            for record in read_ledger(self.store, lineage):
                record = self._masked_record(record)
                self._objects(needed_objects(record))
                self._frame(LEDGER, record.frame())
        for item in read_logs(self.store, self.key):
            item = self._masked_log_record(item)
            self._objects(item.needed_objects())
            self._frame(RECORD, item.frame())
        self._frame(END, self.digest.digest())
        return self.report

    def _checkpoint(self, entry: Entry) -> bool:
        """Write a checkpoint and its objects; if it was pruned, write nothing and return False."""
        start, digest = self.file.tell(), self.digest.copy()
        try:
            checkpoint = read_checkpoint(self.key, entry.seq, entry.data)
            masked, count = checkpoint, 0
            if self.mask is not None:
                masked, count = masked_checkpoint(checkpoint, self.mask)
            if count:
                data = self._split(masked)
            elif self.store.backend.properties.readable:
                # One by one: the name of a part may look like a tag.
                parts = {
                    name: with_references(tree, self.store.backend)
                    for name, tree in checkpoint.parts.items()
                }
                data = self._split(checkpoint._replace(parts=parts))
            else:
                data = entry.data
                self._objects(object_names(checkpoint.parts.values()))
            self._frame(CHECKPOINT, write_varint(entry.seq) + data)
            lineage = lineage_of(self.store.reader(checkpoint), checkpoint)
            if lineage is not None and lineage not in self.lineages:
                self.lineages.append(lineage)
        except RecursionError:
            raise IntegrityError(
                f"The state of checkpoint {entry.seq} of {short_repr(self.key)} exceeds the "
                "nesting limit."
            ) from None
        except LostObjectError:
            if self.store.read(self.key, entry.seq) is not None:
                raise
            self.file.seek(start)
            self.file.truncate()
            self.digest = digest
            self.done = {name: at for name, at in self.done.items() if at < start}
            return False
        self.report.masked += count
        self.report.masked_checkpoints += count > 0
        return True

    def _masked_record(self, item: LedgerRecord) -> LedgerRecord:
        """Return a ledger record without secrets; write its objects."""
        if self.mask is None:
            return item
        members, parts, count = masked_record(record_of(item), self.mask)
        if not count:
            return item
        return item._replace(entry=self._masked_entry(members, parts, count))

    def _masked_log_record(self, item: LogRecord) -> LogRecord:
        """Return a record of a record log without secrets; write its objects."""
        if self.mask is None:
            return item
        parts, count = masked_log_parts(item.log, item.parts(), self.mask)
        return item._replace(entry=self._masked_entry({}, parts, count)) if count else item

    def _masked_entry(self, members: dict[str, Any], parts: dict[str, Any], count: int) -> bytes:
        texts, _ = self._put(parts)
        trees = {name: read_json(text) for name, text in texts.items()}
        self.report.masked += count
        self.report.masked_records += 1
        return seal_entry({**members, "parts": trees})

    def _split(self, checkpoint: Checkpoint) -> bytes:
        """Split the parts of a checkpoint, write their objects, and return its entry."""
        texts, size = self._put(checkpoint.parts)
        if not self.store.backend.properties.readable:
            size = checkpoint.size  # it has lists that were not split again
        return write_checkpoint(
            checkpoint.draft(),
            ts_ns=checkpoint.ts_ns,
            parents=checkpoint.parents,
            parts=texts,
            size=size,
        )

    def _put(self, parts: Mapping[str, Any]) -> tuple[dict[str, bytes], int]:
        """Split parts and write their objects; return their texts, and the size of the state."""
        writer = Writer(WriteCache())
        texts, roots = split_parts(parts, writer)
        writer.check_decode_cost(roots)
        pending = list(writer.pending())
        # The objects of other kinds that they refer to, such as snapshots of a workspace.
        self._objects(ref for _, plain in pending for ref in plain.refs if not writer.holds(ref))
        for name, plain in pending:
            self._object(name, plain)
        self._objects(object_names(map(read_json, texts.values())))
        return texts, writer.size + sum(map(len, texts.values()))

    def _objects(self, names: Iterable[str]) -> None:
        """Write the objects that the archive does not have yet, children first."""
        roots = list(names)
        seen: RefGraph = dict.fromkeys(self.done, ())
        mark(self.store.backend, roots, seen)
        order = [name for name in children_first(roots, seen) if name not in self.done]
        for name, found in fetch_objects(self.store.backend, order):
            if self.mask is not None:
                self.report.files_with_secrets += is_file_with_secret(found)
            self._object(name, plain_object(found.kind, found.payload, found.refs))

    def _object(self, name: str, plain: PlainObject) -> None:
        if name not in self.done:
            self.done[name] = self.file.tell()
            self._frame(OBJECT, bytes.fromhex(name) + plain.stored())

    def _frame(self, kind: bytes, content: bytes) -> None:
        if len(content) > _MAX_FRAME:
            raise InvalidInputError(
                f"A checkpoint of {short_repr(self.key)} has an entry of {len(content)} bytes; "
                f"the limit of an archive is {_MAX_FRAME}."
            )
        self._write(kind + write_varint(len(content)))
        self._write(content)

    def _write(self, data: bytes) -> None:
        self.digest.update(data)
        self.file.write(data)


class Archive:
    """An archive that was read and verified completely."""

    def __init__(self, path: Path) -> None:
        """Read and verify the whole file.

        Raises:
            IntegrityError: the file is damaged, or is not an archive.
            FormatError: the archive has a newer format.
            StorageError: the file cannot be read.
        """
        self.path = path
        self._places: dict[str, tuple[int, int]] = {}
        self.key = ""
        with self._open() as file:
            self._read(file)

    def checkpoints(self) -> Iterator[tuple[Checkpoint, list[str]]]:
        """Iterate over the checkpoints, oldest first, each with the ids of its new objects."""
        names: list[str] = []
        with self._open() as file:
            for frame in _frames(file, self.path):
                if frame.kind == OBJECT:
                    names.append(frame.content[:ID_BYTES].hex())
                elif frame.kind == CHECKPOINT:
                    yield self._checkpoint(frame), names
                    names = []

    def ledgers(self) -> dict[str, list[LedgerRecord]]:
        """Return the records of each ledger, in order."""
        found: dict[str, list[LedgerRecord]] = {}
        with self._open() as file:
            for frame in _frames(file, self.path):
                if frame.kind == LEDGER:
                    packed = read_frame(frame.content)
                    found.setdefault(packed.lineage, []).append(packed)
        return found

    def records(self) -> list[LogRecord]:
        """Return the records of all record logs, each log in order."""
        with self._open() as file:
            frames = _frames(file, self.path)
            return [read_log_frame(self.key, one.content) for one in frames if one.kind == RECORD]

    @property
    def names(self) -> Iterable[str]:
        """The ids of all objects, children first."""
        return self._places

    def get_objects(self, ids: Iterable[str]) -> dict[str, bytes]:
        """Return the existing objects in stored form, by id, as a backend does."""
        return dict(self.objects(name for name in ids if name in self._places))

    def objects(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Iterate over objects of the archive in stored form, each with its id."""
        with self._open() as file:
            for name in names:
                start, size = self._places[name]
                file.seek(start)
                yield name, file.read(size)

    @contextmanager
    def _open(self) -> Iterator[BinaryIO]:
        with wrap_os_errors(f"read the archive {self.path}"), self.path.open("rb") as file:
            yield file

    def _read(self, file: BinaryIO) -> None:
        digest = hashlib.sha256()
        last = False
        count = 0
        for frame in _frames(file, self.path, digest):
            if last or (frame.kind == HEADER) == bool(self.key):
                raise self._damaged()
            if frame.kind == HEADER:
                self.key = self._header(frame.content)
            elif frame.kind == OBJECT:
                self._object(frame)
            elif frame.kind == CHECKPOINT:
                count += 1
                self._check_present(object_names(self._checkpoint(frame).parts.values()))
            elif frame.kind == LEDGER:
                self._check_present(needed_objects(read_frame(frame.content)))
            elif frame.kind == RECORD:
                self._check_present(read_log_frame(self.key, frame.content).needed_objects())
            else:
                last = frame.kind == END
        if not last or not count:
            raise IntegrityError(f"The archive {self.path} is truncated.")

    def _header(self, content: bytes) -> str:
        record = read_json(content)
        if not isinstance(record, dict):
            raise self._damaged()
        try:
            return check_key(record.get("key"))
        except InvalidInputError:
            raise self._damaged() from None

    def _object(self, frame: Frame) -> None:
        name, stored = frame.content[:ID_BYTES].hex(), frame.content[ID_BYTES:]
        self._check_present(open_object(name, stored).refs)
        self._places[name] = (frame.start + ID_BYTES, len(stored))

    def _check_present(self, names: Iterable[str]) -> None:
        if not self._places.keys() >= set(names):
            raise self._damaged()

    def _checkpoint(self, frame: Frame) -> Checkpoint:
        seq, start = _varint(frame.content, 0, self.path)
        return read_checkpoint(self.key, seq, frame.content[start:])

    def _damaged(self) -> IntegrityError:
        return IntegrityError(f"{self.path} is damaged, or is not an archive.")


def _frames(file: BinaryIO, path: Path, digest: Any = None) -> Iterator[Frame]:
    """Iterate over the frames of a file. With `digest`, verify the SHA-256 in the last frame."""
    line = file.readline(len(MAGIC) + 20)
    version = line[len(MAGIC) : -1]
    if not line.startswith(MAGIC) or not line.endswith(b"\n") or not version.isdigit():
        raise IntegrityError(f"{path} is not an agent-checkpoint archive.")
    if int(version) > ARCHIVE_FORMAT:
        raise FormatError(
            f"The archive {path} has format {int(version)}; this version supports formats up to "
            f"{ARCHIVE_FORMAT}. Install a newer agent-checkpoint."
        )
    before = line
    while kind := file.read(1):
        size = kind
        while len(size) < 10 and (size == kind or size[-1] >= 0x80):
            size += file.read(1) or b"\0"
        length, _ = _varint(size, 1, path)
        if length > _MAX_FRAME:
            raise IntegrityError(
                f"{path} is damaged: a frame of {length} bytes exceeds the limit {_MAX_FRAME}."
            )
        start = file.tell()
        content = file.read(length)
        if len(content) < length:
            raise IntegrityError(f"The archive {path} is truncated.")
        if digest is not None:
            digest.update(before)
            if kind == END and content != digest.digest():
                raise IntegrityError(
                    f"The archive {path} is corrupt: SHA-256 mismatch. Copy or export it again."
                )
            before = size + content
        yield Frame(kind, start, content)


def _varint(data: bytes, start: int, path: Path) -> tuple[int, int]:
    try:
        return read_varint(data, start)
    except IntegrityError as error:
        raise IntegrityError(f"The archive {path} is damaged. {error}") from None


def check_archive_path(path: str | os.PathLike[str]) -> Path:
    """Validate the path of an archive, and return it. Raises InvalidInputError."""
    try:
        found = Path(path)
        os.fsencode(found)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{short_repr(path)} is not a valid path.") from None
    if not found.name or "\0" in str(found):
        raise InvalidInputError(f"{short_repr(path)} is not a valid file name.")
    return found
