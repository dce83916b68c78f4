"""CheckpointManager: the verbs on live agents. Verbs on keys alone are in `key_verbs`."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

from agent_checkpoint.backends.base import Backend
from agent_checkpoint.backends.registry import open_store
from agent_checkpoint.core.live_objects import LiveObjects
from agent_checkpoint.core.state_codec import check_format
from agent_checkpoint.core.state_diff import Changes
from agent_checkpoint.errors import ConflictError, Suspended
from agent_checkpoint.manager.async_verbs import await_future, in_thread
from agent_checkpoint.manager.checkpoint_diff import Comparison, DiffOptions
from agent_checkpoint.manager.key_verbs import KeyVerbs, head_conflict
from agent_checkpoint.manager.parts import (
    capture,
    make_draft,
    parts_of,
    restore,
    restore_parts,
    states_of,
)
from agent_checkpoint.records import Checkpoint, Draft, check_key, draft_from
from agent_checkpoint.store.objects.reader import Reader

if TYPE_CHECKING:
    from concurrent.futures import Future

    from typing_extensions import Unpack


class SaveOptions(TypedDict, total=False):
    """Options of a save."""

    label: str | None
    tags: Iterable[str]
    metrics: Mapping[str, float] | None
    expected_head: str | None


class LoadOptions(TypedDict, total=False):
    """Options of a load."""

    strict: bool
    trust_pickle: bool


class CheckpointManager(KeyVerbs):
    """Saves, loads, compares and forks checkpoints in one store, from any thread."""

    def __init__(
        self,
        store: str | Backend | None = None,
        *,
        backend: str | Backend | None = None,
        path: str | os.PathLike[str] | None = None,
        fmt: str = "json",
        durability: str | None = None,
        min_free: int | None = None,
        max_bytes: int | None = None,
        compression: str | None = None,
        shared: bool | None = None,
    ) -> None:
        """Open a store; without arguments, one in memory.

        Args:
            store: a store URL, such as `file:///var/checkpoints`, or a Backend.
            backend: `memory`, `file`, `sqlite`, or a Backend, instead of `store`.
            path: the directory of a file or SQLite store; the default store if SQLite gets none.
            fmt: the format of states: `json`, readable, or `pickle`, sealed.
            durability: `full`, or `fast`: a power failure may lose the last saves (SQLite).
            min_free: refuse to save when the file system has fewer bytes free; 0 for no limit.
            max_bytes: refuse to save when all files of the store would have more bytes than this.
            compression: of a new store: `zlib`, which every installation reads, or `zstd`, which
                is faster and smaller, and must be installed wherever the store is opened.
            shared: accept a directory that other users own or can write. Entries are sealed under
                your secret, and entries without that seal are not loaded.

        Raises:
            InvalidInputError: the arguments name no backend or contradict each other.
        """
        self.fmt = check_format(fmt)
        """The format of states."""
        super().__init__(
            open_store(
                store,
                backend,
                path,
                durability=durability,
                min_free=min_free,
                max_bytes=max_bytes,
                compression=compression,
                shared=shared,
            )
        )

    # -- save and load ---------------------------------------------------------------------------

    def save(
        self,
        key: str,
        agent: Any,
        *,
        label: str | None = None,
        tags: Iterable[str] = (),
        metrics: Mapping[str, float] | None = None,
        expected_head: str | None = None,
    ) -> str:
        """Save an agent, a dict of named parts or a plain dict, and return the checkpoint's id.

        Args:
            key: the key to append to; the first save creates it.
            agent: a Stateful, a dict of Statefuls by part name, or a dict that is itself a state.
            label: a name for people.
            tags: words to find the checkpoint by.
            metrics: numbers to rank the checkpoint by.
            expected_head: the id that must be the head of the key, else ConflictError.

        Raises:
            InvalidInputError: the key or the agent cannot be saved.
            StateError: a value cannot be captured; the message names its path.
            ConflictError: the head is not `expected_head`.
            StorageError: the medium failed; nothing was acknowledged.
        """
        draft, _ = self._draft(key, agent, label=label, tags=tags, metrics=metrics)
        self._background.flush()
        return self._write_id(draft, expected_head)

    def save_in_background(
        self, key: str, agent: Any, **options: Unpack[SaveOptions]
    ) -> Future[str]:
        """Take the state now, write it behind the caller, in order, and return the id's future.

        A failure also raises at the next save or at close. Takes and raises what `save` does.
        """
        draft, expected_head = self._draft(key, agent, **options)
        return self._background.submit(partial(self._write_id, draft, expected_head))

    def asave(
        self, key: str, agent: Any, **options: Unpack[SaveOptions]
    ) -> Coroutine[Any, Any, str]:
        """Do as `save` does, for asyncio: the state is taken at the call, the rest awaited.

        Takes and raises what `save` does.
        """
        draft, expected_head = self._draft(key, agent, **options)
        write = partial(self._write_id, draft, expected_head)
        return await_future(self._background.submit(write, awaited=True))

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
        """Load a checkpoint into an agent, named parts or a plain dict, all or nothing.

        Args:
            key: the key; its latest checkpoint is loaded unless an id is given.
            agent: the target, of the same shape as the saved one.
            checkpoint_id: an id or short form (`key~2`, `key@17`) of a checkpoint of the key.
            strict: refuse a state that lacks fields or has unexpected ones.
            expected_head: the id that must be the head of the key; detects a store restored from
                an older copy.
            trust_pickle: load pickles without verifying their seal. Only for checkpoints whose
                origin you trust: a pickle can run any code.

        Returns:
            The missing and unexpected keys, or the result of the agent's own `load_state_dict`;
            by part if several were passed.

        Raises:
            NotFoundError: there is no such key or checkpoint.
            ConflictError: the head is not `expected_head`.
            StateError: the state does not fit; the agent is unchanged.
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
        """Run `load` for asyncio: only reading is moved off the event loop."""
        found = await self._afetch(key, checkpoint_id, expected_head, list(parts_of(agent)))
        return self._restore(*found, agent, **options)

    def state_dict(
        self, key: str, checkpoint_id: str | None = None, *, trust_pickle: bool = False
    ) -> Any:
        """Return a saved state as data; several parts are returned as a dict by name.

        Raises as `load` does.
        """
        found, reader = self._fetch(key, checkpoint_id)
        return states_of(found.parts, trust_pickle=trust_pickle, reader=reader)

    @contextmanager
    def rollback_context(self, key: str, agent: Any, *, label: str | None = None) -> Iterator[str]:
        """Save, and restore that checkpoint if the block raises; the exception propagates.

        The context value is the id of the checkpoint. Raises as `save` and `load` do.
        """
        draft, _ = self._draft(key, agent, label=label)
        targets = parts_of(agent)
        live_objects = LiveObjects(targets.values())
        self._background.flush()
        saved = self._write(draft, None)
        try:
            yield saved.id
        except Suspended:  # the work resumes later from the current state
            raise
        except BaseException:
            restore_parts(draft.parts, targets, live_objects=live_objects)
            self._record_rollback(saved)
            raise

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
            key: its latest checkpoint is used for an id that is not given.
            agent: the live agent to compare with.
            checkpoint_id_a: the old checkpoint.
            checkpoint_id_b: the new checkpoint, of any key.
            deep: name paths inside values (`memory[2].role`) instead of whole fields.
            trust_pickle: as for `load`.

        Raises:
            InvalidInputError: neither an agent nor an id is given, or both agent and a second id.
            NotFoundError: there is no such key or checkpoint.
            StateError: a state cannot be decoded or captured.
        """
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
        """Run `diff` for asyncio: the state of the agent is captured at the call."""
        return self._adiff(key, Comparison(self.store.writer, **options))

    # -- internals -------------------------------------------------------------------------------

    def _draft(
        self, key: str, agent: Any, **options: Unpack[SaveOptions]
    ) -> tuple[Draft, str | None]:
        key = check_key(key)  # before the expensive capture
        draft = make_draft(
            key,
            capture(agent, self.fmt, self.store.writer),
            label=options.get("label"),
            tags=options.get("tags", ()),
            metrics=options.get("metrics"),
        )
        return draft, options.get("expected_head")

    def _write_id(self, draft: Draft, expected_head: str | None) -> str:
        return self._write(draft, expected_head).id

    def _write(self, draft: Draft, expected_head: str | None) -> Checkpoint:
        if expected_head is None:
            return self.store.write(draft)
        head = self._expect(draft.key, expected_head)
        try:
            return self.store.write(draft, parents=(head.id,), after=head.seq)
        except ConflictError as error:
            raise head_conflict(draft.key, expected_head, self.store.head(draft.key)) from error

    def _diff(self, key: str, comparison: Comparison) -> Changes:
        key = check_key(key)
        self._background.flush()
        return comparison.run(self.store, key)

    def _restore(
        self, checkpoint: Checkpoint, reader: Reader, agent: Any, **options: Unpack[LoadOptions]
    ) -> Any:
        where = f"The checkpoint {checkpoint.id}"
        return restore(checkpoint.parts, agent, reader=reader, where=where, **options)

    def _record_rollback(self, target: Checkpoint) -> None:
        # The exception of the block must propagate: a failure here is raised by the next save.
        with self._background.defer_failure():
            self._background.wait()
            head = self.store.head(target.key)
            if head is None or head.id != target.id:
                # Something was saved since: the head of a key must be its current state.
                draft = draft_from(target, target.key, "rollback")
                self.store.write(draft, parents=(target.id,))

    _adiff = in_thread(_diff)
    _afetch = in_thread(KeyVerbs._fetch)
    astate_dict = in_thread(state_dict)
