"""One upkeep of a store: removes old checkpoints and garbage if the store is over its budget.

Every step may be interrupted or killed: a checkpoint is removed whole, and gc removes only what no
checkpoint needs.
"""

from __future__ import annotations

import time
from contextlib import suppress

from agent_checkpoint.agents.agent_events import AGENTS
from agent_checkpoint.agents.rewind.rewind_journal import read_entry
from agent_checkpoint.agents.session_lock import hold_session_lock
from agent_checkpoint.agents.session_note import read_note
from agent_checkpoint.agents.session_presence import presence_of
from agent_checkpoint.agents.upkeep.automatic_retention import (
    AutomaticRetention,
    KeepThese,
    is_automatic,
)
from agent_checkpoint.agents.upkeep.disk_budget import (
    LastUpkeep,
    budget_of,
    is_kept,
    read_last,
    store_size,
    write_last,
)
from agent_checkpoint.errors import UNUSABLE, CheckpointError, ConflictError
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.directory_claims import newest_readable, why_not_owned
from agent_checkpoint.store.maintenance.gc import gc
from agent_checkpoint.store.maintenance.prune import prune
from agent_checkpoint.store.store import Store

_RECENT = 86400.0
"""A session is live for this many seconds after its last event."""
_COLLECT_EVERY = 86400.0
"""Seconds between collections if retention removes nothing."""
_MAX_SHRINKS = 100


def keep_to_budget(store: Store) -> LastUpkeep | None:
    """Do the upkeep of a store if it is over its budget; return the result, None if it is not.

    Raises:
        CheckpointError: the budget or the size cannot be read.
    """
    backend = store.backend
    if not is_kept(backend):
        return None
    budget, before = budget_of(backend), store_size(backend)
    if budget is None or before <= budget:
        return None
    last = read_last(backend)
    collected = 0.0 if last is None else last.gc_ts
    removed, error = 0, None
    try:
        removed = remove_old_checkpoints(store)
        # The times of collections are those of this machine, and may be in the future.
        if removed or not 0 <= time.time() - collected < _COLLECT_EVERY:
            gc(store)
            collected = time.time()
            _shrink(store, budget)
    except CheckpointError as failure:
        error = str(failure)
    freed = max(before - store_size(backend), 0)
    result = LastUpkeep(time.time(), removed, freed, collected, error)
    with suppress(OSError):  # only a hint
        write_last(backend, result)
    return result


def remove_old_checkpoints(store: Store) -> int:
    """Remove the checkpoints that automatic retention does not keep; return how many.

    Kept in any case: all of live sessions and of sessions with an unfinished rewind; what another
    key, a rollback or a fork refers to; what `prune` always keeps.

    Raises:
        IntegrityError: a ledger is damaged.
        StorageError: the medium failed.
    """
    keys = store.list_keys()
    newest, needed = _references(store, keys)
    # Not later than the newest checkpoint: a store that was not used for long keeps what it has.
    policy = AutomaticRetention(min(time.time(), newest)) | KeepThese(needed)
    removed = 0
    for key in keys:
        with suppress(*UNUSABLE):  # `verify` reports it
            head = newest_readable(store, key)
            if head is None or not _is_thinned(store, head):
                continue
            try:
                with hold_session_lock(key, timeout=0.0):
                    if not is_live(store, key):
                        removed += len(prune(store, key, policy))
            except ConflictError:  # a process saves or rewinds it: it is live
                continue
    return removed


def is_live(store: Store, key: str) -> bool:
    """Return whether a session may still be in use: nothing of it is removed.

    Its agent runs, its last event or checkpoint is recent, or a rewind of it is unfinished. The
    key of a directory is not a session.
    """
    head = newest_readable(store, key)
    if head is None or not _is_agent(key):
        return False
    seen = presence_of(key)
    times = [head.ts_ns / 1e9, *([] if seen is None else [seen.ts])]
    if any(time.time() - ts < _RECENT for ts in times):
        return True
    return (seen is not None and seen.is_running) or read_entry(store, key) is not None


def _is_agent(key: str) -> bool:
    return key.partition("/")[0] in AGENTS


def _is_thinned(store: Store, head: Checkpoint) -> bool:
    """Return whether automatic retention applies to a key: one of this user's hook or `watch`."""
    if not _is_agent(head.key):  # a directory; keys that programs save under have no claim
        return head.claim is not None and why_not_owned(store, head) is None
    note = read_note(store, head)
    return note is not None and note.is_ours


def _references(store: Store, keys: list[str]) -> tuple[float, set[str]]:
    """Return the time of the newest checkpoint, and the ids that other checkpoints refer to.

    The references of ordinary automatic checkpoints to their predecessors do not count.
    """
    newest, needed = 0.0, set()
    for key in keys:
        own = f"{key}_"
        for item in store.readable(key):
            newest = max(newest, item.ts_ns / 1e9)
            is_ordinary = is_automatic(item)
            needed |= {
                parent for parent in item.parents if not is_ordinary or not parent.startswith(own)
            }
    return newest, needed


def _shrink(store: Store, budget: int) -> None:
    """Return free space to the file system; each call takes at most a few seconds."""
    size = store_size(store.backend)
    for _ in range(_MAX_SHRINKS):
        if size <= budget:
            return
        store.backend.delete_objects([])
        before, size = size, store_size(store.backend)
        if size >= before:
            return
