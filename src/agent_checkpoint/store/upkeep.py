"""Looking after a store: verify, gc, stats, prune.

Owns no format; changes nothing but by removing what nothing needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_checkpoint.errors import FormatError, IntegrityError, InvalidInputError
from agent_checkpoint.records import Checkpoint, is_object_id, show
from agent_checkpoint.store.entries import open_entry, read_checkpoint
from agent_checkpoint.store.retention import Policy
from agent_checkpoint.store.store import Store, unknown


@dataclass(frozen=True)
class Problem:
    """One checkpoint that does not read back, and why."""

    checkpoint: str
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` looked at and what it found."""

    checkpoints: int
    problems: Sequence[Problem]

    @property
    def ok(self) -> bool:
        """Whether everything reads back."""
        return not self.problems


def verify(store: Store) -> VerifyReport:
    """Read every byte of every checkpoint and compare it with its hash.

    Raises:
        StorageError: the medium failed.
    """
    count = 0
    problems: list[Problem] = []
    try:
        store.read_format()
    except (IntegrityError, FormatError) as error:
        problems.append(Problem("meta/format", str(error)))
    for key in store.list_keys():
        for entry in store.entries(key):
            count += 1
            try:
                read_checkpoint(key, entry.seq, entry.data)
            except (IntegrityError, FormatError) as error:
                problems.append(Problem(f"{key}@{entry.seq}", str(error)))
    return VerifyReport(count, tuple(problems))


@dataclass(frozen=True)
class GcReport:
    """What `gc` deleted."""

    objects: int
    bytes: int


def gc(store: Store) -> GcReport:
    """Delete the objects that no entry of any stream names.

    Raises:
        IntegrityError: an entry is damaged, so nobody can tell what it names.
        StorageError: the medium failed.
    """
    named: set[str] = set()
    for stream in store.backend.streams():
        for entry in store.backend.read(stream):
            where = f"Entry {entry.seq} of {show(stream)}"
            objects = open_entry(entry.data, where).get("objects", [])
            if not isinstance(objects, list) or not all(map(is_object_id, objects)):
                raise IntegrityError(f"{where} does not say which objects it needs.")
            named.update(objects)
    doomed = [info for info in store.backend.list_objects() if info.id not in named]
    store.backend.delete_objects([info.id for info in doomed])
    return GcReport(len(doomed), sum(info.size for info in doomed))


def stats(store: Store) -> dict[str, Any]:
    """Return how many checkpoints there are and how many bytes they take, in all and per key.

    Raises:
        StorageError: the medium failed.
    """
    keys: dict[str, dict[str, int]] = {}
    for key in store.list_keys():
        sizes = [len(entry.data) for entry in store.entries(key)]
        keys[key] = {"checkpoints": len(sizes), "bytes": sum(sizes)}
    objects = [info.size for info in store.backend.list_objects()]
    return {
        "checkpoints": sum(row["checkpoints"] for row in keys.values()),
        "stored_bytes": sum(row["bytes"] for row in keys.values()) + sum(objects),
        "objects": len(objects),
        "keys": keys,
    }


def prune(store: Store, key: str, policy: Policy, *, dry_run: bool = False) -> list[str]:
    """Remove the checkpoints of a key that the policy does not keep; the head is always kept.

    Entries that cannot be read are left for a person to look at.

    Returns:
        The ids of those removed, newest first; with `dry_run` nothing is removed.

    Raises:
        NotFoundError: there is no such key.
        InvalidInputError: `policy` is not a policy.
        StorageError: the medium failed.
    """
    if not isinstance(policy, Policy):
        raise InvalidInputError(f"prune takes a policy such as KeepLatest(20), not {show(policy)}.")
    readable: list[Checkpoint] = []
    entries = 0
    for entry in store.entries(key):
        entries += 1
        try:
            readable.append(read_checkpoint(key, entry.seq, entry.data))
        except (IntegrityError, FormatError):
            continue
    if not entries:
        raise unknown(key, store)
    kept = policy.keep(readable) | {checkpoint.seq for checkpoint in readable[:1]}
    doomed = [checkpoint for checkpoint in readable if checkpoint.seq not in kept]
    if not dry_run:
        store.remove(key, [checkpoint.seq for checkpoint in doomed])
    return [checkpoint.id for checkpoint in doomed]
