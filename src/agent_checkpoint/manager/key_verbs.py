"""The verbs on keys, which need no live agent: list, fork, delete, prune, gc, verify, archives."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.core.external import External
from agent_checkpoint.errors import (
    UNUSABLE,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from agent_checkpoint.manager.async_verbs import in_thread
from agent_checkpoint.manager.background_saves import BackgroundWriter
from agent_checkpoint.records import Checkpoint, Entry, check_key, draft_from, short_repr
from agent_checkpoint.store.archive.archive_file import export_archive
from agent_checkpoint.store.archive.importer import import_archive, remove_dead_imports
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.ledger.ledger import Ledger
from agent_checkpoint.store.ledger.lineage import lineage_of
from agent_checkpoint.store.lookup import find, find_seq, retry_if_pruned
from agent_checkpoint.store.maintenance import prune, stats
from agent_checkpoint.store.maintenance.gc import GcReport, gc
from agent_checkpoint.store.maintenance.purge import PurgeReport, purge
from agent_checkpoint.store.maintenance.retention import Policy
from agent_checkpoint.store.maintenance.verify import VerifyReport, verify
from agent_checkpoint.store.objects.reader import Reader
from agent_checkpoint.store.store import Store, key_not_found

_SESSION = "session"
"""The part in which a session records the stream of its ledger."""

Self = TypeVar("Self", bound="KeyVerbs")


class KeyVerbs:
    """Verbs on keys and checkpoints that need no live agent."""

    def __init__(self, backend: Backend) -> None:
        self.store = Store(backend)
        self._background = BackgroundWriter()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store.backend!r}>"

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with the prefix, sorted.

        Raises:
            InvalidInputError: the prefix is not a string.
            StorageError: the medium failed.
        """
        if not isinstance(prefix, str):
            raise InvalidInputError(f"prefix must be a string, not {type(prefix).__name__}.")
        self._background.flush()
        return self.store.list_keys(prefix)

    def history(self, key: str, n: int | None = None) -> list[dict[str, Any]]:
        """Return the newest `n` checkpoints of a key, or all, newest first.

        One that cannot be read is listed with `kind` "unreadable" and the reason as `error`.

        Raises:
            NotFoundError: there is no such key.
        """
        if n is not None and (not isinstance(n, int) or not 0 <= n <= sys.maxsize):
            raise InvalidInputError(f"n must be a number of checkpoints, not {short_repr(n)}.")
        self._background.flush()
        key = check_key(key)
        page = 100 if n is None else max(1, min(n, 100))
        entries = list(islice(self.store.entries(key, page=page), n))
        if not entries and (n != 0 or next(self.store.entries(key, page=1), None) is None):
            raise key_not_found(key, self.store)
        return [_row(key, entry.seq, entry.data) for entry in entries]

    def fork(self, key: str, new_key: str, checkpoint_id: str | None = None) -> str:
        """Start a new key from a checkpoint of another key; return the id of its first checkpoint.

        Raises:
            NotFoundError: there is no such key or checkpoint.
            ConflictError: the new key already exists.
        """

        def begin(source: Checkpoint) -> str:
            draft = draft_from(source, check_key(new_key), "fork")
            remove_dead_imports(self.store)  # a killed import leaves hidden entries under the key
            return self.store.write(draft, parents=(source.id,), after=0).id

        try:
            return retry_if_pruned(self.store, lambda: [self._find(key, checkpoint_id)], begin)
        except ConflictError as error:
            raise ConflictError(
                f"The key {short_repr(new_key)} already exists: choose another key, or delete it "
                "first."
            ) from error

    def delete(self, key: str, checkpoint_id: str | None = None) -> None:
        """Delete one checkpoint, or a key with all its checkpoints, permanently.

        An open session of the key is fenced off: it can neither save nor run side effects.

        Raises:
            NotFoundError: there is no such key or checkpoint.
        """
        key = check_key(key)
        self._background.flush()
        if checkpoint_id is not None:
            self.store.remove(key, [find_seq(self.store, checkpoint_id, key=key)])
            return
        _delete_key(self.store, key)

    def prune(self, key: str, policy: Policy, *, dry_run: bool = False) -> list[str]:
        """Delete the checkpoints that a policy does not keep; return their ids. The head is kept.

        Args:
            key: the key to prune.
            policy: the retention policy, such as `KeepLatest(20) | KeepBest(3, "score")`.
            dry_run: delete nothing, only report.

        Raises:
            NotFoundError: there is no such key.
            InvalidInputError: `policy` is not a policy.
        """
        self._background.flush()
        return prune.prune(self.store, check_key(key), policy, dry_run=dry_run)

    def verify(self) -> VerifyReport:
        """Check every stored byte against its hash; the report names damaged checkpoints."""
        self._background.flush()
        return verify(self.store)

    def gc(self, *, dry_run: bool = False, ignore_clock: bool = False) -> GcReport:
        """Delete unreachable objects, while other processes may keep saving.

        Also releases unused snapshots of each `External` that this manager saved.

        Args:
            dry_run: delete nothing, only report.
            ignore_clock: continue although objects have timestamps in the future.

        Raises:
            IntegrityError: a checkpoint is damaged, so its objects are unknown.
            StorageError: the medium failed, or the clock is wrong.
        """
        self._background.flush()
        report = gc(self.store, dry_run=dry_run, ignore_clock=ignore_clock)
        for part in () if dry_run else self.store.known_parts():
            if isinstance(part, External):
                part.release_unused(self.store)
        return report

    def purge(self, secret: str | bytes, *, dry_run: bool = False) -> PurgeReport:
        """Purge a leaked secret: remove every checkpoint with it, and all traces in the store.

        Workspace indexes, which contain file names, are dropped and rebuilt. A key whose newest
        checkpoint contains the secret continues with a redacted copy. Archives, copies of the
        store and live agents are not changed; compressed or encrypted content is not searched.

        Args:
            secret: a string or bytes, at least six bytes long.
            dry_run: remove nothing, only report.

        Raises:
            InvalidInputError: the secret is too short, or part of a key.
            IntegrityError: something is damaged and cannot be searched.
            StorageError: the medium failed or is in use.
        """
        self._background.flush()
        report = purge(self.store, secret, dry_run=dry_run)
        if not dry_run:
            with block_forks():
                from agent_checkpoint.workspace.root_checks import drop_caches  # slow to import

            drop_caches()
        return report

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes, in total and per key.

        `logical_bytes` is the sum over all checkpoints: states as text, and workspace files.
        `stored_bytes` is the size on disk, `dedupe_ratio` the quotient of both. `unshared_bytes`
        is the size without sharing between checkpoints; `own_bytes` of a key is what no other key
        references.

        Raises:
            StorageError: the medium failed.
        """
        self._background.flush()
        return stats.stats(self.store)

    def export_archive(self, path: str | os.PathLike[str], key: str) -> int:
        """Write all checkpoints of a key into one self-contained file; return their number.

        Raises:
            NotFoundError: there is no such key.
            IntegrityError: one of the checkpoints is damaged.
            StorageError: the file cannot be written.
        """
        self._background.flush()
        return export_archive(self.store, path, check_key(key))

    def import_archive(self, path: str | os.PathLike[str]) -> str:
        """Add the checkpoints of an exported file as a new key; return the key.

        Importing runs no code: pickles need the seal of this user when they are loaded.

        Raises:
            ConflictError: the key already exists.
            IntegrityError: the file is damaged, or not an archive.
            StorageError: the file cannot be read.
        """
        self._background.flush()
        return import_archive(self.store, path)

    def close(self) -> None:
        """Finish background saves and close the store. Raises the error of a failed save."""
        try:
            self._background.close()
        finally:
            self.store.backend.close()

    def _expect(self, key: str, expected_head: str) -> Checkpoint:
        head = self.store.head(key)
        try:
            expected = find(self.store, expected_head, key=key)
        except NotFoundError as error:
            raise head_conflict(key, expected_head, head, is_known=False) from error
        if head is None or expected.id != head.id:
            raise head_conflict(key, expected_head, head)
        return head

    def _find(
        self, key: str, checkpoint_id: str | None = None, expected_head: str | None = None
    ) -> Checkpoint:
        key = check_key(key)
        self._background.flush()
        if expected_head is not None:
            head = self._expect(key, expected_head)
            if checkpoint_id is None:
                return head
        if checkpoint_id is None:
            return self.store.head(key) or find(self.store, key)
        return find(self.store, checkpoint_id, key=key)

    def _fetch(
        self,
        key: str,
        checkpoint_id: str | None = None,
        expected_head: str | None = None,
        parts: Sequence[str] | None = None,
    ) -> tuple[Checkpoint, Reader]:
        """Return a checkpoint, and a reader with the objects of its parts, or some, prefetched."""

        def read(found: Checkpoint) -> tuple[Checkpoint, Reader]:
            reader = self.store.reader(found)
            reader.fetch(
                tree for name, tree in found.parts.items() if parts is None or name in parts
            )
            return found, reader

        return retry_if_pruned(
            self.store, lambda: [self._find(key, checkpoint_id, expected_head)], read
        )

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    alist_keys = in_thread(list_keys)
    ahistory = in_thread(history)
    afork = in_thread(fork)
    adelete = in_thread(delete)
    aprune = in_thread(prune)
    averify = in_thread(verify)
    agc = in_thread(gc)
    apurge = in_thread(purge)
    astats = in_thread(stats)
    aexport_archive = in_thread(export_archive)
    aimport_archive = in_thread(import_archive)
    aclose = in_thread(close)


def head_conflict(
    key: str, expected_head: str, head: Checkpoint | None, *, is_known: bool = True
) -> ConflictError:
    """Return the error for an unexpected head.

    Args:
        key: the key.
        expected_head: the expected id.
        head: the actual head.
        is_known: whether the key has the expected checkpoint.
    """
    is_now = "nothing yet" if head is None else short_repr(head.id, 120)
    why = "another writer saved, or the store was restored from an older copy"
    if not is_known:
        why = f"the key has no such checkpoint (pass an id that save() returned), or {why}"
    return ConflictError(
        f"The head of {short_repr(key)} is {is_now}, not {short_repr(expected_head, 120)}: {why}. "
        "Load again and retry, or fork."
    )


def _row(key: str, seq: int, data: bytes) -> dict[str, Any]:
    try:
        return read_checkpoint(key, seq, data).summary()
    except UNUSABLE as error:
        return {
            "id": f"{key}@{seq}",
            "ts": None,
            "kind": "unreadable",
            "label": None,
            "tags": [],
            "metrics": {},
            "parents": [],
            "parts": [],
            "error": str(error),
        }


def _delete_key(store: Store, key: str) -> None:
    """Delete all checkpoints of a key, after fencing off its session.

    Raises:
        NotFoundError: there is no such key.
        StorageError: the medium failed.
    """
    newest: Entry | None = None
    seqs = []
    for entry in store.entries(key):
        newest = newest or entry
        seqs.append(entry.seq)
    if newest is None:
        raise key_not_found(key, store)
    with suppress(*UNUSABLE):  # a damaged checkpoint must be deletable too
        try:
            _fence_session(store, key, newest)
        except StorageError as error:
            if error.retryable:
                raise
            # On a full disk, deleting the older checkpoints makes room.
            store.remove(key, seqs[1:])
            _fence_session(store, key, newest)
    store.remove(key, seqs)


def _fence_session(store: Store, key: str, newest: Entry) -> None:
    """Append an epoch to the ledger of the key's session, as opening it again would.

    Without it an open session could still run side effects: a new session under the key has a
    ledger of its own. It is appended before the deletion, so that no session acts after it. A
    process that opens the session meanwhile, after the newest entry, gets the same epoch, and its
    checkpoint is not deleted.
    """
    checkpoint = read_checkpoint(key, newest.seq, newest.data)
    has_session = _SESSION in checkpoint.parts
    lineage = lineage_of(store.reader(checkpoint), checkpoint) if has_session else None
    if lineage is None:
        return
    ledger = Ledger(store, lineage)
    ledger.refresh()
    if ledger.seq:
        ledger.append("epoch", session=key, epoch=newest.seq + 1)
