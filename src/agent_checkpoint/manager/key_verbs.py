"""The verbs that touch no live object: looking at checkpoints, forking, deleting, looking after.

Owns the store of a manager and its background writer; knows nothing of states.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.disk.fork_safety import block_forks
from agent_checkpoint.core.external import External
from agent_checkpoint.errors import UNUSABLE, ConflictError, InvalidInputError, NotFoundError
from agent_checkpoint.manager.async_verbs import in_thread
from agent_checkpoint.manager.background_saves import BackgroundWriter
from agent_checkpoint.manager.key_deletion import delete_key
from agent_checkpoint.records import Checkpoint, check_key, draft_from, short_repr
from agent_checkpoint.store.archive.archive_file import export_archive
from agent_checkpoint.store.archive.importer import import_archive, remove_dead_imports
from agent_checkpoint.store.entries import read_checkpoint
from agent_checkpoint.store.lookup import find, find_seq, retry_if_pruned
from agent_checkpoint.store.maintenance import prune, stats
from agent_checkpoint.store.maintenance.gc import GcReport, gc
from agent_checkpoint.store.maintenance.purge import PurgeReport, purge
from agent_checkpoint.store.maintenance.retention import Policy
from agent_checkpoint.store.maintenance.verify import VerifyReport, verify
from agent_checkpoint.store.objects.reader import Reader
from agent_checkpoint.store.store import Store, key_not_found

Self = TypeVar("Self", bound="KeyVerbs")


class KeyVerbs:
    """What can be done with lines of checkpoints without an agent at hand."""

    def __init__(self, backend: Backend) -> None:
        self.store = Store(backend)
        self._background = BackgroundWriter()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store.backend!r}>"

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with the prefix, sorted.

        Raises:
            InvalidInputError: the prefix is not text.
            StorageError: the medium failed.
        """
        if not isinstance(prefix, str):
            raise InvalidInputError(f"A prefix is text, not {type(prefix).__name__}.")
        self._background.settle()
        return self.store.list_keys(prefix)

    def history(self, key: str, n: int | None = None) -> list[dict[str, Any]]:
        """Return the newest `n` checkpoints of a key, or all, newest first.

        One that cannot be read is listed with `kind` "unreadable" and the reason as `error`.

        Raises:
            NotFoundError: there is no such key.
        """
        if n is not None and (not isinstance(n, int) or not 0 <= n <= sys.maxsize):
            raise InvalidInputError(f"n counts checkpoints, not {short_repr(n)}.")
        self._background.settle()
        key = check_key(key)
        page = 100 if n is None else max(1, min(n, 100))
        entries = list(islice(self.store.entries(key, page=page), n))
        if not entries and (n != 0 or next(self.store.entries(key, page=1), None) is None):
            raise key_not_found(key, self.store)
        return [_row(key, entry.seq, entry.data) for entry in entries]

    def fork(self, key: str, new_key: str, checkpoint_id: str | None = None) -> str:
        """Begin a new key at a checkpoint of another and return the id of its first checkpoint.

        Raises:
            NotFoundError: there is no such key or checkpoint.
            ConflictError: the new key exists already.
        """

        def begin(source: Checkpoint) -> str:
            draft = draft_from(source, check_key(new_key), "fork")
            remove_dead_imports(
                self.store
            )  # what a killed import left is in the way, and out of sight
            return self.store.write(draft, parents=(source.id,), after=0).id

        try:
            return retry_if_pruned(self.store, lambda: [self._find(key, checkpoint_id)], begin)
        except ConflictError as error:
            raise ConflictError(
                f"The key {short_repr(new_key)} exists already: fork to another, or delete it "
                "first."
            ) from error

    def delete(self, key: str, checkpoint_id: str | None = None) -> None:
        """Delete one checkpoint, or the key with all of its checkpoints, for good.

        Whoever has the key open as a session can neither save nor do anything outside from then on.

        Raises:
            NotFoundError: there is no such key or checkpoint.
        """
        key = check_key(key)
        self._background.settle()
        if checkpoint_id is not None:
            self.store.remove(key, [find_seq(self.store, checkpoint_id, key=key)])
            return
        delete_key(self.store, key)

    def prune(self, key: str, policy: Policy, *, dry_run: bool = False) -> list[str]:
        """Delete what a policy does not keep and return the ids; the head is always kept.

        Args:
            key: the line of checkpoints to prune.
            policy: what to keep, such as `KeepLatest(20) | KeepBest(3, "score")`.
            dry_run: only tell what would be deleted.

        Raises:
            NotFoundError: there is no such key.
            InvalidInputError: `policy` is not a policy.
        """
        self._background.settle()
        return prune.prune(self.store, check_key(key), policy, dry_run=dry_run)

    def verify(self) -> VerifyReport:
        """Read every byte and compare it with its hash; the report names damaged checkpoints."""
        self._background.settle()
        return verify(self.store)

    def gc(self, *, dry_run: bool = False, ignore_clock: bool = False) -> GcReport:
        """Delete the objects that no checkpoint needs, while others may go on saving.

        Snapshots of an `External` that was saved by this manager are released then, too.

        Args:
            dry_run: only tell what would be deleted.
            ignore_clock: go on although objects seem to come from the future.

        Raises:
            IntegrityError: a checkpoint is damaged, so nobody can tell what it needs.
            StorageError: the medium failed, or the clock makes no sense.
        """
        self._background.settle()
        report = gc(self.store, dry_run=dry_run, ignore_clock=ignore_clock)
        for part in () if dry_run else self.store.known_parts():
            if isinstance(part, External):
                part.release_unused(self.store)
        return report

    def purge(self, secret: str | bytes, *, dry_run: bool = False) -> PurgeReport:
        """Remove every checkpoint that holds a leaked secret, and every trace of it in the store.

        The indexes of workspaces, which hold names of files, go as well: they are made anew.

        A key whose newest checkpoint holds it goes on with a copy in which the secret is blotted
        out. Archives, copies of the store and live agents are beyond reach; what is compressed or
        encrypted within a state is not found.

        Args:
            secret: a text or bytes of at least six bytes.
            dry_run: only tell what would be removed.

        Raises:
            InvalidInputError: the secret is too short, or is in the name of a key.
            IntegrityError: something is damaged, so nobody can tell what is in it.
            StorageError: the medium failed, or others use it right now.
        """
        self._background.settle()
        report = purge(self.store, secret, dry_run=dry_run)
        if not dry_run:
            with block_forks():
                from agent_checkpoint.workspace.root_checks import drop_caches  # costly to import

            drop_caches()
        return report

    def stats(self) -> dict[str, Any]:
        """Return what there is and what it takes, in all and per key.

        `logical_bytes` is what the checkpoints have, one by one: states as text, and files of
        workspaces. `stored_bytes` is what they take as they are, `dedupe_ratio` the one by the
        other. `unshared_bytes` is what it would take if each checkpoint were stored by itself, and
        `own_bytes` of a key what no other key needs.

        Raises:
            StorageError: the medium failed.
        """
        self._background.settle()
        return stats.stats(self.store)

    def export_archive(self, path: str | os.PathLike[str], key: str) -> int:
        """Write all checkpoints of a key into one self-contained file; return their number.

        Raises:
            NotFoundError: there is no such key.
            IntegrityError: one of the checkpoints is damaged.
            StorageError: the file cannot be written.
        """
        self._background.settle()
        return export_archive(self.store, path, check_key(key))

    def import_archive(self, path: str | os.PathLike[str]) -> str:
        """Add the checkpoints of an exported file as a new key; return the key.

        Nothing of an archive is run: pickles in it need this user's seal when they are loaded.

        Raises:
            ConflictError: the key exists already.
            IntegrityError: the file is damaged, or not an archive.
            StorageError: the file cannot be read.
        """
        self._background.settle()
        return import_archive(self.store, path)

    def close(self) -> None:
        """Finish background saves and let go of the store. Raises what a failed save did."""
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
        self._background.settle()
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
        """Return a checkpoint, and a reader that has read all that its parts, or some, need."""

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
    """Return the error for a head that is not the expected one.

    Args:
        key: whose head.
        expected_head: what was expected.
        head: what it is.
        is_known: whether the key has such a checkpoint.
    """
    is_now = "nothing yet" if head is None else short_repr(head.id, 120)
    why = "somebody else saved, or the store was set back"
    if not is_known:
        why = f"the key has no such checkpoint (an id is what save() returned), or {why}"
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
