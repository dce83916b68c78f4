"""Finds zstd objects in stores that do not declare zstd, and recompresses them with zlib.

The format record of a store declares whether it requires zstd. Other stores must be readable
without zstd, but version 0.1 wrote zstd objects wherever zstd was installed and did not declare
them. A process without zstd therefore scans the codec bytes of new objects before it stores
anything. The position of the last scan is recorded in the store, so that later processes do not
scan all objects again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import UNUSABLE, FormatError, StorageError
from agent_checkpoint.store.checkpoint_entries import append_record, open_entry
from agent_checkpoint.store.objects import compression
from agent_checkpoint.store.objects.object_format import in_batches, plain_object
from agent_checkpoint.store.sealed_streams import read_entries

_STREAM = "meta/codecs"
_WORTH_RECORDING = 1000


class ObjectCodecs:
    """Scans and recompresses the objects of one store that does not declare zstd."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._position: Any = None
        self._unrecorded = 0

    def check(self) -> None:
        """Check that this installation can read every object that a checkpoint may share.

        Raises:
            FormatError: an object is compressed with zstd, which is not installed.
            StorageError: the medium failed.
        """
        if compression.find_zstd() is not None or not self._backend.properties.can_repack:
            return
        found, total, position = self._backend.find_objects(compression.ZSTD_CODEC, self._known())
        if found:
            raise FormatError(
                f"Nothing was saved: {len(found):,} objects of the store are compressed with zstd, "
                "which is not installed. A checkpoint that shares them could not be loaded. "
                f"{compression.INSTALL_ZSTD}. Or run agent-checkpoint gc once where zstd is "
                "installed, to recompress them with zlib."
            )
        self._reached(position, total)

    def repack(self) -> int:
        """Recompress zstd objects with zlib, and return their number.

        If the disk is full, the remaining objects are left for the next call.

        Raises:
            StorageError: the medium failed.
        """
        if compression.load_zstd() is None or not self._backend.properties.can_repack:
            return 0
        with block_forks():
            from agent_checkpoint.store.reachability import read_or_reason

        found, total, position = self._backend.find_objects(compression.ZSTD_CODEC, self._known())
        done = 0
        plain = (
            (name, plain_object(item.kind, item.payload, item.refs).stored())
            for name, item in read_or_reason(self._backend, found)
            if not isinstance(item, str)  # damaged: verify() reports it
        )
        try:
            for batch in in_batches(plain):
                self._backend.replace_objects(batch)
                done += len(batch)
        except StorageError as error:
            if not error.no_room:
                raise
        if done == len(found):
            self._reached(position, total)
        return done

    def _known(self) -> Any:
        if self._position is None:
            for entry in read_entries(self._backend, _STREAM, limit=1, newest_first=True):
                try:
                    record = open_entry(entry.data, f"The record of {_STREAM}")
                except UNUSABLE:
                    break  # scan everything
                self._position = record.get("position")
        return self._position

    def _reached(self, position: Any, scanned: int) -> None:
        self._position = position
        self._unrecorded += scanned
        if self._unrecorded < _WORTH_RECORDING:
            return
        with suppress(StorageError):  # a full disk: the next process scans again
            seq = append_record(self._backend, _STREAM, {"position": position})
            older = self._backend.read(_STREAM, before=seq)
            self._backend.remove(_STREAM, [item.seq for item in older])
        self._unrecorded = 0
