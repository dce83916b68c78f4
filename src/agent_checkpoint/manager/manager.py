"""CheckpointManager: the operations on the checkpoints of one store."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from agent_checkpoint import telemetry
from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.backends.registry import encryption, open_store
from agent_checkpoint.core.codec.save_policy import SavePolicy
from agent_checkpoint.errors import (
    UNUSABLE,
    ConflictError,
    InvalidInputError,
    StorageError,
    Suspended,
)
from agent_checkpoint.manager.async_verbs import await_future, in_thread
from agent_checkpoint.manager.background_saves import BackgroundWriter
from agent_checkpoint.manager.checkpoint_parts import (
    capture,
    check_name,
    make_draft,
    parts_of,
    restore,
    restore_parts,
    states_of,
)
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.options import (
    BackendName,
    Compression,
    Durability,
    Pickles,
    StateFormat,
    check_option,
)
from agent_checkpoint.records import (
    Changes,
    Checkpoint,
    CheckpointRow,
    Draft,
    History,
    Kind,
    check_key,
    draft_from,
    parse_checkpoint_id,
    short_repr,
)
from agent_checkpoint.store.checkpoint_entries import read_checkpoint
from agent_checkpoint.store.objects.reader import Reader
from agent_checkpoint.store.store import Store, key_not_found
from agent_checkpoint.store.store_argument import existing_store

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Self, Unpack

    from agent_checkpoint.backends.wrappers.encryption_keys import EncryptionKey
    from agent_checkpoint.history_row import HistoryRow
    from agent_checkpoint.manager.checkpoint_diff import Comparison
    from agent_checkpoint.manager.keyword_options import DiffOptions, LoadOptions, SaveOptions
    from agent_checkpoint.manager.record_log import RecordLog
    from agent_checkpoint.redaction import Redact, Redactor
    from agent_checkpoint.store.maintenance.gc import GcReport
    from agent_checkpoint.store.maintenance.purge import PurgeReport
    from agent_checkpoint.store.maintenance.retention import Policy
    from agent_checkpoint.store.maintenance.verify import VerifyReport
    from agent_checkpoint.store.store_argument import StoreLike

_MAX_UPDATES = 100
"""How often an update is repeated after a conflict; each one means that another writer saved."""


class _Position(NamedTuple):
    """Where a checkpoint is to be appended."""

    expected_head: str | None = None
    parents: tuple[str, ...] | None = None


class CheckpointManager:
    """Saves, loads, compares and forks checkpoints in one store, from any thread."""

    def __init__(
        self,
        store: StoreLike | None = None,
        *,
        backend: BackendName | str | Backend | None = None,
        path: str | os.PathLike[str] | None = None,
        fmt: StateFormat = "json",
        pickles: Pickles = "warn",
        redact: Redact | None = None,
        durability: Durability | None = None,
        min_free: int | None = None,
        max_bytes: int | None = None,
        compression: Compression | None = None,
        shared: bool | None = None,
        encryption_key: EncryptionKey | None = None,
    ) -> None:
        """Open a store; without arguments, one in memory.

        Args:
            store: a path (SQLite), a store URL such as `file:///var/checkpoints`, a Backend, or
                another manager, whose store is shared and not closed.
            backend: `memory`, `file`, `sqlite`, or a Backend, instead of `store`.
            path: the directory of a file or SQLite store. With `backend="sqlite"` it defaults to
                the user's default store.
            fmt: the encoding of states: `json` (human-readable), or `pickle` (signed with an HMAC
                under your secret).
            pickles: values that have no JSON form are saved as pickles: `allow` it, `warn` once per
                class, or `refuse` the save. `fmt="pickle"` implies `allow`.
            redact: what to replace by placeholders before anything is stored: `secrets` (common
                keys and tokens), a regular expression, a function of a string, or a list of them.
                A restore brings back the placeholders.
            durability: `full`, or `fast` (SQLite only), which may lose the most recent saves on a
                power failure.
            min_free: refuse a save that would leave fewer than this many bytes free on the file
                system; 0 for no limit.
            max_bytes: refuse a save that would make the store larger than this many bytes.
            compression: for a new store, `zlib` (always available) or `zstd` (faster and smaller;
                required by every process that opens the store).
            shared: accept a directory that other users own or can write to. Entries are signed
                with an HMAC under your secret; entries without a valid signature are not loaded.
            encryption_key: encrypt all that is stored, names too: 32 random bytes, a passphrase, a
                Path of a file with one of these, or a function that returns one. During a rotation
                a list: the new key, then the old one. The key is checked at the first use of the
                store. Without it the data is lost.

        Raises:
            InvalidInputError: the arguments select no backend, or conflict.
        """
        check_option("fmt", fmt, StateFormat)
        self.fmt = fmt
        """The encoding of states: `json` or `pickle`."""
        self.policy = save_policy(fmt, pickles, _redactor(redact))
        """What a save does with values that would be pickled, and with secrets."""
        options: dict[str, Any] = {
            "durability": durability,
            "min_free": min_free,
            "max_bytes": max_bytes,
            "compression": compression,
            "shared": shared,
            "encryption_key": encryption_key,
        }
        found = existing_store(store)
        self._owns_store = found is None
        if found is not None and any(
            item is not None for item in (backend, path, *options.values())
        ):
            raise InvalidInputError("A manager cannot be combined with options of a store.")
        named: Any = store  # checked by open_store
        self.store = found or Store(open_store(named, backend, path, **options))
        self.background = BackgroundWriter()
        """Writes checkpoints on a background thread, in order."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.store.backend!r}>"

    # -- save and load ---------------------------------------------------------------------------

    def save(
        self,
        key: str,
        agent: Any,
        *,
        label: str | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        parents: Sequence[str] | None = None,
        expected_head: str | None = None,
    ) -> str:
        """Save an agent, a dict of named parts or a plain dict; return the id of the checkpoint.

        Args:
            key: the key to append to; the first save creates it.
            agent: a Stateful, a dict of Statefuls by part name, or a dict that is itself a state.
            label: a human-readable name.
            tags: strings to find the checkpoint by.
            metrics: numbers to rank the checkpoint by.
            parents: the ids of the checkpoints that this one continues; by default, the head.
            expected_head: the id that must be the head of the key; empty if the key must be new.

        Raises:
            InvalidInputError: the key or the agent cannot be saved, or a parent is not an id.
            StateError: a value cannot be captured; the message contains its path.
            ConflictError: the head is not `expected_head`.
            StorageError: the medium failed; the save is not confirmed.
        """
        draft, position = self._draft(
            key,
            agent,
            label=label,
            tags=tags,
            metrics=metrics,
            parents=parents,
            expected_head=expected_head,
        )
        self.background.flush()
        return self._write_id(draft, position)

    def update(
        self,
        key: str,
        agent: Any,
        change: Callable[[], object],
        *,
        holds: str | None = None,
        label: str | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
    ) -> str:
        """Load the head of a key into an agent, call `change`, and save; return the new id.

        If another writer saves meanwhile, the agent is loaded and changed again: concurrent
        updates of one key lose nothing.

        Args:
            key: the key; if it is new, the agent is changed as it is.
            agent: what is loaded and saved, as in `load` and `save`.
            change: changes the agent. What it raises is raised, and nothing is saved.
            holds: the id of the checkpoint that the agent holds: if it is the head, it is not
                loaded again.
            label: as for `save`.
            tags: as for `save`.
            metrics: as for `save`.

        Raises:
            ConflictError: the key of `holds` was deleted, or other writers save all the time.
            StateError: a value cannot be captured or loaded.
            StorageError: the medium failed; the save is not confirmed.
        """
        key = check_key(key)
        is_changed = False
        for attempt in range(_MAX_UPDATES):
            self.background.flush()
            head = self.store.head(key)
            if head is None and (is_changed or holds is not None):
                with block_forks():
                    from agent_checkpoint.manager.expected_head import head_conflict

                raise head_conflict(key, holds or key, None)
            if head is not None and (is_changed or head.id != holds):
                head, reader = self._fetch(key)
                self._restore(head, reader, agent)
            change()
            is_changed = True
            draft, _ = self._draft(key, agent, label=label, tags=tags, metrics=metrics)
            parents, after = ((), 0) if head is None else ((head.id,), head.seq)
            try:
                return self.store.write(draft, parents=parents, after=after).id
            except ConflictError:
                if attempt == _MAX_UPDATES - 1:
                    raise
        raise AssertionError("unreachable: the last conflict was raised")

    def save_in_background(
        self, key: str, agent: Any, **options: Unpack[SaveOptions]
    ) -> Future[str]:
        """Capture the state now, write it on a background thread, and return a future of the id.

        Saves are written in order. A failure is also raised by the next method call or by `close`.
        Takes the same arguments and raises the same errors as `save`.
        """
        draft, position = self._draft(key, agent, **options)
        return self.background.submit(partial(self._write_id, draft, position))

    def asave(
        self, key: str, agent: Any, **options: Unpack[SaveOptions]
    ) -> Coroutine[Any, Any, str]:
        """Save from asyncio: the state is captured at the call, the write is awaited.

        Takes the same arguments and raises the same errors as `save`.
        """
        draft, position = self._draft(key, agent, **options)
        write = partial(self._write_id, draft, position)
        return await_future(self.background.submit(write, awaited=True))

    def load(
        self,
        key: str,
        agent: Any,
        checkpoint_id: str | None = None,
        *,
        strict: bool = False,
        expected_head: str | None = None,
        trust_pickle: bool = False,
    ) -> Any:
        """Load a checkpoint into an agent, named parts or a plain dict, atomically.

        Args:
            key: the key; its latest checkpoint is loaded unless an id is given.
            agent: the target, of the same shape as the saved one.
            checkpoint_id: an id or short form (`~2`, `@17`) of a checkpoint of the key.
            strict: refuse a state that lacks fields or has unexpected ones.
            expected_head: the id that must be the head of the key; detects a store restored from
                an older copy.
            trust_pickle: load pickles without verifying their signature. Only for checkpoints whose
                origin you trust: a pickle can run any code.

        Returns:
            The missing and unexpected keys, or the result of the agent's own `load_state_dict`;
            by part if several were passed.

        Raises:
            NotFoundError: there is no such key or checkpoint.
            ConflictError: the head is not `expected_head`.
            StateError: the state cannot be loaded; the agent is unchanged.
            IntegrityError: the checkpoint is damaged.
        """
        found = self._fetch(key, checkpoint_id, expected_head, list(parts_of(agent)))
        return self._restore(*found, agent, strict=strict, trust_pickle=trust_pickle)

    async def aload(
        self,
        key: str,
        agent: Any,
        checkpoint_id: str | None = None,
        *,
        expected_head: str | None = None,
        **options: Unpack[LoadOptions],
    ) -> Any:
        """Load from asyncio: reading runs in a thread, assignments on the event loop."""
        found = await self._afetch(key, checkpoint_id, expected_head, list(parts_of(agent)))
        return self._restore(*found, agent, **options)

    def state_dict(
        self, key: str, checkpoint_id: str | None = None, *, trust_pickle: bool = False
    ) -> Any:
        """Return a saved state as a dict; several parts are returned by part name.

        Raises the same errors as `load`.
        """
        found, reader = self._fetch(key, checkpoint_id)
        return states_of(found.parts, trust_pickle=trust_pickle, reader=reader)

    @contextmanager
    def rollback_context(self, key: str, agent: Any, *, label: str | None = None) -> Iterator[str]:
        """Save a checkpoint, and restore it if the block raises; the exception propagates.

        `as` binds the id of the checkpoint. Raises the same errors as `save` and `load`.
        """
        with block_forks():
            from agent_checkpoint.core.live_objects import LiveObjects  # slow to load

        draft, _ = self._draft(key, agent, label=label)
        targets = parts_of(agent)
        live_objects = LiveObjects(targets.values())
        self.background.flush()
        saved = self._write(draft, _Position())
        try:
            yield saved.id
        except Suspended:  # the work resumes later from the current state
            raise
        except BaseException:
            restore_parts(draft.parts, targets, live_objects=live_objects)
            self._record_rollback(saved)
            raise

    # -- keys ------------------------------------------------------------------------------------

    def list_keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with the prefix, sorted.

        Raises:
            InvalidInputError: the prefix is not a string.
            StorageError: the medium failed.
        """
        if not isinstance(prefix, str):
            raise InvalidInputError(f"prefix must be a string, not {type(prefix).__name__}.")
        self.background.flush()
        return self.store.list_keys(prefix)

    def history(
        self,
        key: str,
        n: int | None = None,
        *,
        before: str | None = None,
        tag: str | None = None,
    ) -> list[HistoryRow]:
        """Return the newest `n` checkpoints of a key, or all, newest first.

        A checkpoint that cannot be read has `kind` "unreadable" and the reason as `error`.

        Args:
            key: the key.
            n: how many to return at most.
            before: an id, also of a deleted checkpoint, or a short form; only those before it.
            tag: only checkpoints with this tag.

        Raises:
            NotFoundError: there is no such key, or no checkpoint `before`.
        """
        if n is not None and (not isinstance(n, int) or not 0 <= n <= sys.maxsize):
            raise InvalidInputError(f"n must be a number of checkpoints, not {short_repr(n)}.")
        self.background.flush()
        key = check_key(key)
        page = 100 if n is None or tag is not None else max(1, min(n, 100))
        end = None if before is None else self._end(key, before)
        entries = self.store.entries(key, before=end, page=page)
        rows = (_row(key, entry.seq, entry.data) for entry in entries)
        if tag is not None:
            rows = (row for row in rows if tag in row["tags"])
        found = History(islice(rows, n))
        if not found and end is None and next(self.store.entries(key, page=1), None) is None:
            raise key_not_found(key, self.store)
        return found

    def records(self, key: str, name: str) -> RecordLog:
        """Return a log of small records of a key, beside its checkpoints.

        Deleting the key deletes it; pruning, forks and rollbacks do not affect it.

        Args:
            key: the key; it need not exist yet.
            name: the name of the log; a key may have many.

        Raises:
            InvalidInputError: the key or the name is not a non-empty string of at most 1 KiB.
        """
        check_name(key, "The key", self.policy.redactor)
        return _record_log()(self.store, check_key(key), check_key(name), self.policy)

    def list_records(self, prefix: str = "") -> list[tuple[str, str]]:
        """Return the record logs of the keys that begin with the prefix: key and name, sorted.

        Raises:
            StorageError: the medium failed.
        """
        with block_forks():
            from agent_checkpoint.store.record_stream import record_logs  # slow to load

        return sorted(record_logs(self.store, prefix))

    def fork(self, key: str, new_key: str, checkpoint_id: str | None = None) -> str:
        """Start a new key from a checkpoint of another key; return the id of its first checkpoint.

        Raises:
            NotFoundError: there is no such key or checkpoint.
            ConflictError: the new key already exists.
        """
        with block_forks():
            from agent_checkpoint.store.archive.importer import remove_dead_imports  # slow to load

        def begin(source: Checkpoint) -> str:
            draft = draft_from(source, check_key(new_key), Kind.FORK)
            check_name(new_key, "The key", self.policy.redactor)
            remove_dead_imports(self.store)  # a killed import leaves hidden entries under the key
            return self.store.write(draft, parents=(source.id,), after=0).id

        with block_forks():
            from agent_checkpoint.store.lookup import retry_if_pruned

        try:
            return retry_if_pruned(self.store, lambda: [self._find(key, checkpoint_id)], begin)
        except ConflictError as error:
            raise ConflictError(
                f"The key {short_repr(new_key)} already exists. Choose another key, or delete it "
                "first."
            ) from error

    def delete(self, key: str, checkpoint_id: str | None = None) -> None:
        """Delete one checkpoint, or a key with all its checkpoints, permanently.

        An open session of the key is fenced off: it can neither save nor run side effects.

        Raises:
            NotFoundError: there is no such key or checkpoint.
        """
        key = check_key(key)
        self.background.flush()
        if checkpoint_id is not None:
            self.store.remove(key, [self._seq_of(key, checkpoint_id)])
            return
        with block_forks():
            from agent_checkpoint.manager.key_deletion import delete_key  # slow to load

        delete_key(self.store, key)

    def prune(self, key: str, policy: Policy, *, dry_run: bool = False) -> list[str]:
        """Delete the checkpoints that a policy does not keep, except the head; return their ids.

        Args:
            key: the key to prune.
            policy: the retention policy, such as `KeepLatest(20) | KeepBest(3, "score")`.
            dry_run: delete nothing, only report.

        Raises:
            NotFoundError: there is no such key.
            InvalidInputError: `policy` is not a policy.
        """
        with block_forks():
            from agent_checkpoint.store.maintenance.prune import prune  # slow to load

        self.background.flush()
        return prune(self.store, check_key(key), policy, dry_run=dry_run)

    def verify(self) -> VerifyReport:
        """Check all stored data against its hashes; the report lists damaged checkpoints.

        If there are any, workspace indexes are deleted: the next save of a workspace in a new
        process reads every file, and stores missing objects again.
        """
        with block_forks():
            from agent_checkpoint.store.maintenance.verify import verify  # slow to load

        self.background.flush()
        report = verify(self.store)
        if not report.ok:
            with suppress(StorageError):  # the report matters more
                _drop_caches()
        return report

    def gc(self, *, dry_run: bool = False, ignore_clock: bool = False) -> GcReport:
        """Delete unreachable objects, while other processes may keep saving.

        Also releases unused snapshots of each `External` that this manager saved.

        Args:
            dry_run: delete nothing, only report.
            ignore_clock: continue although objects have timestamps in the future.

        Raises:
            IntegrityError: a checkpoint is damaged, so its objects are unknown.
            StorageError: the medium failed, or objects have timestamps in the future.
        """
        with block_forks():
            from agent_checkpoint.core.external_snapshot import External
            from agent_checkpoint.store.maintenance.gc import gc  # slow to load

        self.background.flush()
        report = gc(self.store, dry_run=dry_run, ignore_clock=ignore_clock)
        for part in () if dry_run else self.store.known_parts():
            if isinstance(part, External):
                part.release_unused(self.store)
        return report

    def rotate_key(self, new: EncryptionKey | None = None) -> None:
        """Make a new encryption key the only one that opens the store; the data stays as it is.

        Other processes may keep saving. If the call is interrupted, repeat it.

        Args:
            new: the new key; by default the first one of the list `encryption_key`.

        Raises:
            EncryptionKeyError: none of the keys opens the store, or it is not encrypted.
            StorageError: the medium failed, or the store is open read-only.
        """
        encryption().find_encrypted(self.store.backend).rotate_key(new)

    def purge(self, secret: str | bytes, *, dry_run: bool = False) -> PurgeReport:
        """Remove a leaked secret: delete all checkpoints that contain it, and all its traces.

        Workspace indexes, which contain file names, are deleted and rebuilt later. If the newest
        checkpoint of a key contains the secret, a redacted copy becomes its head. Archives, copies
        of the store and live agents are not changed; compressed or encrypted content is not
        searched.

        Args:
            secret: a string or bytes, at least six bytes long.
            dry_run: remove nothing, only report.

        Raises:
            InvalidInputError: the secret is too short, or part of a key.
            IntegrityError: a stored value is damaged and cannot be searched.
            StorageError: the medium failed or is in use.
        """
        with block_forks():
            from agent_checkpoint.store.maintenance.purge import purge  # slow to load

        self.background.flush()
        report = purge(self.store, secret, dry_run=dry_run)
        if not dry_run:
            _drop_caches()
        return report

    def stats(self) -> dict[str, Any]:
        """Return counts and sizes, in total and per key.

        `logical_bytes` is the sum over all checkpoints: states as JSON text, and workspace files.
        `stored_bytes` is the size on disk, `dedupe_ratio` the quotient of both. `unshared_bytes`
        is the size without sharing between checkpoints; `own_bytes` of a key is the size of the
        objects that no other key references.

        Raises:
            StorageError: the medium failed.
        """
        with block_forks():
            from agent_checkpoint.store.maintenance.stats import stats  # slow to load

        self.background.flush()
        return stats(self.store)

    def export_archive(self, path: str | os.PathLike[str], key: str, *, mask: bool = False) -> int:
        """Write all checkpoints of a key into one self-contained file; return their number.

        Args:
            path: the file.
            key: the key.
            mask: replace common secrets by placeholders, except in the files of a workspace. By
                default the archive is exact.

        Raises:
            NotFoundError: there is no such key.
            InvalidInputError: with `mask`, a name contains a secret.
            StateError: with `mask`, a pickle or an array contains a secret.
            IntegrityError: a checkpoint is damaged.
            StorageError: the file cannot be written.
        """
        with block_forks():
            from agent_checkpoint.core.codec.redacted_tree import mask_tree
            from agent_checkpoint.store.archive.archive_file import export_archive  # slow to load

        self.background.flush()
        masks = mask_tree if mask else None
        return export_archive(self.store, path, check_key(key), masks).checkpoints

    def import_archive(self, path: str | os.PathLike[str]) -> str:
        """Add the checkpoints of an archive as a new key; return the key.

        Importing runs no code. A pickle is loaded only with a valid signature under your secret.

        Raises:
            ConflictError: the key already exists.
            IntegrityError: the file is damaged, or not an archive.
            StorageError: the file cannot be read.
        """
        with block_forks():
            from agent_checkpoint.store.archive.importer import import_archive  # slow to load

        self.background.flush()
        return import_archive(self.store, path)

    # -- diff ------------------------------------------------------------------------------------

    def diff(
        self,
        key: str,
        *,
        agent: Any = None,
        checkpoint_id_a: str | None = None,
        checkpoint_id_b: str | None = None,
        deep: bool = False,
        trust_pickle: bool = False,
    ) -> Changes:
        """Return the changes from a checkpoint to a live agent, or between two checkpoints.

        Args:
            key: an omitted id defaults to the latest checkpoint of this key.
            agent: the live agent to compare with.
            checkpoint_id_a: the old checkpoint.
            checkpoint_id_b: the new checkpoint, of any key.
            deep: report paths inside values (`memory[2].role`) instead of whole fields.
            trust_pickle: as for `load`.

        Raises:
            InvalidInputError: neither an agent nor an id is given, or both agent and a second id.
            NotFoundError: there is no such key or checkpoint.
            StateError: a state cannot be decoded or captured.
        """
        with block_forks():
            from agent_checkpoint.manager.checkpoint_diff import Comparison  # slow to load

        comparison = Comparison(
            self.store.writer,
            agent=agent,
            checkpoint_id_a=checkpoint_id_a,
            checkpoint_id_b=checkpoint_id_b,
            deep=deep,
            trust_pickle=trust_pickle,
        )
        return self._diff(key, comparison)

    def adiff(self, key: str, **options: Unpack[DiffOptions]) -> Coroutine[Any, Any, Changes]:
        """Coroutine version of `diff`. The agent is captured by the call, not when awaited."""
        with block_forks():
            from agent_checkpoint.manager.checkpoint_diff import Comparison  # slow to load

        return self._adiff(key, Comparison(self.store.writer, **options))

    def close(self) -> None:
        """Finish background saves and close the store. Raises the error of a failed save."""
        try:
            self.background.close()
        finally:
            if self._owns_store:
                self.store.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    # -- internals -------------------------------------------------------------------------------

    def _draft(
        self, key: str, agent: Any, **options: Unpack[SaveOptions]
    ) -> tuple[Draft, _Position]:
        key = check_key(key)  # before the expensive capture
        position = _Position(options.get("expected_head"), _parent_ids(options.get("parents")))
        draft = make_draft(
            key,
            capture(agent, self.fmt, self.store.writer, self.policy),
            label=options.get("label"),
            tags=options.get("tags", ()),
            metrics=options.get("metrics"),
            policy=self.policy,
        )
        return draft, position

    def _write_id(self, draft: Draft, position: _Position) -> str:
        return self._write(draft, position).id

    def _write(self, draft: Draft, position: _Position) -> Checkpoint:
        expected_head, parents = position
        if expected_head is None:
            return self.store.write(draft, parents=parents)
        head_id, after = expected_head, 0
        if expected_head:
            known = self.store.written_seq(draft.key, expected_head)
            if known is None:
                with block_forks():
                    from agent_checkpoint.manager.expected_head import expect_head

                head = expect_head(self.store, draft.key, expected_head)
                head_id, known = head.id, head.seq
            after = known
        if parents is None:
            parents = (head_id,) if head_id else ()
        try:
            return self.store.write(draft, parents=parents, after=after)
        except ConflictError as error:
            with block_forks():
                from agent_checkpoint.manager.expected_head import head_conflict

            raise head_conflict(draft.key, expected_head, self.store.head(draft.key)) from error

    def _diff(self, key: str, comparison: Comparison) -> Changes:
        key = check_key(key)
        self.background.flush()
        return comparison.run(self.store, key)

    def _restore(
        self, checkpoint: Checkpoint, reader: Reader, agent: Any, **options: Unpack[LoadOptions]
    ) -> Any:
        where = f"The checkpoint {checkpoint.id}"
        return restore(checkpoint.parts, agent, reader=reader, where=where, **options)

    def _record_rollback(self, target: Checkpoint) -> None:
        # The exception of the block must propagate: a failure here is raised by the next save.
        with self.background.defer_failure():
            self.background.wait()
            head = self.store.head(target.key)
            if head is None or head.id != target.id:
                # The block saved other checkpoints. The head of a key must be its current state.
                draft = draft_from(target, target.key, Kind.ROLLBACK)
                self.store.write(draft, parents=(target.id,))

    def _end(self, key: str, before: str) -> int:
        parsed = parse_checkpoint_id(before)
        if parsed is not None and parsed.key == key:  # it may be deleted while pages are read
            return parsed.seq
        return self._seq_of(key, before)

    def _seq_of(self, key: str, checkpoint_id: str) -> int:
        with block_forks():
            from agent_checkpoint.store.lookup import find_seq  # a first save does not need it

        return find_seq(self.store, checkpoint_id, key=key)

    def _find(
        self, key: str, checkpoint_id: str | None = None, expected_head: str | None = None
    ) -> Checkpoint:
        key = check_key(key)
        self.background.flush()
        with block_forks():
            from agent_checkpoint.manager.expected_head import expect_head
            from agent_checkpoint.store.lookup import find

        if expected_head is not None:
            head = expect_head(self.store, key, expected_head)
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

        with block_forks():
            from agent_checkpoint.store.lookup import retry_if_pruned

        with telemetry.operation("load", key=key) as outcome:
            found, reader = retry_if_pruned(
                self.store, lambda: [self._find(key, checkpoint_id, expected_head)], read
            )
            outcome.update(checkpoint=found.id)
        return found, reader

    aupdate = in_thread(update)
    _adiff = in_thread(_diff)
    _afetch = in_thread(_fetch)
    astate_dict = in_thread(state_dict)
    alist_keys = in_thread(list_keys)
    alist_records = in_thread(list_records)
    ahistory = in_thread(history)
    afork = in_thread(fork)
    adelete = in_thread(delete)
    aprune = in_thread(prune)
    averify = in_thread(verify)
    agc = in_thread(gc)
    apurge = in_thread(purge)
    arotate_key = in_thread(rotate_key)
    astats = in_thread(stats)
    aexport_archive = in_thread(export_archive)
    aimport_archive = in_thread(import_archive)
    aclose = in_thread(close)


def save_policy(fmt: StateFormat, pickles: Pickles, redactor: Redactor | None) -> SavePolicy:
    """Return the policy for `pickles=` and `redact=`. Raises InvalidInputError."""
    check_option("pickles", pickles, Pickles)
    if fmt == "pickle" and pickles == "refuse":
        raise InvalidInputError(
            'fmt="pickle" saves every state as a pickle, and pickles="refuse" refuses them. Use '
            'fmt="json".'
        )
    if fmt == "pickle" and redactor is not None:
        raise InvalidInputError(
            'fmt="pickle" saves every state as a pickle, which redact= cannot redact. Use '
            'fmt="json".'
        )
    return SavePolicy("allow" if fmt == "pickle" else pickles, redactor)


def with_policy(
    manager: CheckpointManager, pickles: Pickles | None, redact: Redact | None
) -> CheckpointManager:
    """Return a manager of the same store and background writer, with another policy.

    None stands for the policy of the manager.

    Raises:
        InvalidInputError: the policy is invalid, or contradicts the format of the manager.
    """
    if pickles is None and redact is None:
        return manager
    with block_forks():
        from copy import copy

    other, policy = copy(manager), manager.policy
    redactor = policy.redactor if redact is None else _redactor(redact)
    other.policy = save_policy(manager.fmt, pickles or policy.pickles, redactor)
    return other


def _redactor(redact: Redact | None) -> Redactor | None:
    """Return the redactor for a `redact=` option, or None for none. Raises InvalidInputError."""
    if redact is None:
        return None
    with block_forks():
        from agent_checkpoint.redaction import redactor_of  # slow to load

    return redactor_of(redact)


@cache
def _record_log() -> type[RecordLog]:
    with block_forks():
        from agent_checkpoint.manager.record_log import RecordLog  # slow to load

    return RecordLog


def _parent_ids(parents: Sequence[str] | None) -> tuple[str, ...] | None:
    if parents is None:
        return None
    if not isinstance(parents, (list, tuple)) or not all(
        isinstance(item, str) and parse_checkpoint_id(item) for item in parents
    ):
        raise InvalidInputError(
            f"parents must be a list of checkpoint ids, not {short_repr(parents)}."
        )
    return tuple(parents)


def _row(key: str, seq: int, data: bytes) -> HistoryRow:
    try:
        return read_checkpoint(key, seq, data).summary()
    except UNUSABLE as error:
        row = CheckpointRow(
            id=f"{key}@{seq}",
            ts=None,
            kind=Kind.UNREADABLE,
            label=None,
            tags=[],
            metrics={},
            parents=[],
            parts=[],
            error=str(error),
        )
        return cast("HistoryRow", row)


def _drop_caches() -> None:
    with block_forks():
        from agent_checkpoint.workspace.root_checks import drop_caches  # slow to import

    drop_caches()
