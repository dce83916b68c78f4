"""A ledger in a store: external side effects and approval requests of a session and its forks.

There is one stream per lineage, `fx/<lineage>`. Owns reading new records, and appending with
compare-and-swap, so that a writer has always applied all earlier records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

from agent_checkpoint import telemetry
from agent_checkpoint.errors import (
    CheckpointError,
    ConflictError,
    IntegrityError,
    InvalidInputError,
)
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.checkpoint_entries import now_ns
from agent_checkpoint.store.ledger.ledger_records import (
    LedgerStream,
    effective_seq,
    wrong_members,
)
from agent_checkpoint.store.ledger.ledger_state import Epoch, LedgerState, in_order
from agent_checkpoint.store.store import Store

if TYPE_CHECKING:
    from agent_checkpoint.store.ledger.ledger_calls import Effect


class Ledger:
    """A ledger stream of a store, and the state after its records."""

    def __init__(self, store: Store, lineage: str) -> None:
        self.store = store
        self.lineage = lineage
        self.state = LedgerState(lineage)
        self.seq = 0
        """The number of the newest applied record."""
        self.stream = LedgerStream(store, lineage)
        self._lock = RLock()

    def refresh(self) -> None:
        """Read and apply new records. Raises IntegrityError, FormatError, StorageError."""
        with self._lock:
            self._apply(self.stream.read(self.seq))

    def _apply(self, records: list[tuple[int, dict[str, Any]]]) -> None:
        """Apply records with numbers above that of the newest applied one."""
        if any(effective_seq(seq, record) <= self.seq for seq, record in records):
            self._reload()
            return
        for seq, record in in_order(records):
            self.state.apply(seq, record)
            if effective_seq(seq, record) == seq:  # else earlier numbers are still to come
                self.seq = seq
        self.seq = max([self.seq, *(seq for seq, _ in records)])

    def _reload(self) -> None:
        """Read all records again, because a purge has replaced records that were applied."""
        fresh = Ledger(self.store, self.lineage)
        fresh.refresh()
        self.state.become(fresh.state)
        self.seq = fresh.seq

    def append(
        self,
        what: str,
        /,
        *,
        parts: Mapping[str, Any] | None = None,
        fence: Epoch | None = None,
        guard: Callable[[], None] | None = None,
        **record: JsonValue,
    ) -> int:
        """Append a record and apply it; return its number.

        Args:
            what: the type of the record.
            parts: encoded values of any size.
            fence: the writer's epoch; the append fails if a newer epoch exists.
            guard: called before each attempt; may raise. An attempt succeeds only if all existing
                records were applied before the call. Without a fence and a guard, nothing depends
                on them: the second attempt is appended after any, and they are applied afterwards.
            record: the other members.

        Raises:
            ConflictError: another process has opened the session since.
            IntegrityError: the ledger was truncated after it was read; nothing was acknowledged.
            InvalidInputError: a member has an invalid value.
            StorageError: the medium failed; nothing was acknowledged.
        """
        with self._lock:
            is_ordered = True
            while True:
                try:
                    if fence is not None:
                        self.check(fence)
                    if guard is not None:
                        guard()
                except CheckpointError:
                    if self._is_current():
                        raise
                    continue
                entry: dict[str, JsonValue] = {"type": what, "ts_ns": now_ns(), **record}
                wrong = wrong_members({**entry, "parts": {}})
                if wrong:  # readers would refuse it
                    raise InvalidInputError(
                        f"Invalid ledger record of type {what!r}: {_shown(entry, wrong)}."
                    )
                try:
                    # Fails if another session of the lineage has appended records: then they are
                    # applied, and everything is checked again.
                    after = self.seq if is_ordered else None
                    seq, stored = self.stream.append(entry, parts or {}, after=after)
                except ConflictError as error:
                    telemetry.count("conflict", operation="ledger")
                    if self._is_current():
                        raise self._truncated("Nothing was recorded.") from error
                    is_ordered = fence is not None or guard is not None
                    continue
                if is_ordered:
                    self.state.apply(seq, stored)
                    self.seq = seq
                else:
                    self._apply_up_to(seq)
                return seq

    def _apply_up_to(self, own: int) -> None:
        """Apply the new records, the own one among them. Raises IntegrityError."""
        records = self.stream.read(max(self.seq - 1, 0))
        known = {number for seq, record in records for number in (seq, effective_seq(seq, record))}
        if self.seq and (self.seq not in known or own <= self.seq):
            raise self._truncated("The new record follows what is left.")
        self._apply([(seq, record) for seq, record in records if seq > self.seq])

    def _truncated(self, what_happened: str) -> IntegrityError:
        return IntegrityError(
            f"The ledger {short_repr(self.lineage)} was truncated after it was read, so records of "
            f"earlier effects may be missing. {what_happened} Open the session again."
        )

    def _is_current(self) -> bool:
        """Apply new records; return whether there were none."""
        before = self.seq
        self.refresh()
        return self.seq == before

    def check(self, epoch: Epoch) -> None:
        """Check that an epoch is the newest of its session. Raises ConflictError."""
        newest = self.state.epochs.get(epoch.session, epoch)
        if newest.number > epoch.number:
            raise ConflictError(
                f"The session {short_repr(epoch.session)} was opened again elsewhere, so this "
                "instance can no longer write. Close it; its checkpoints are kept."
            )

    def effects_of(self, identity: str) -> list[Effect]:
        """Return the effects with an idempotency key (`identity`), in order of their start."""
        with self._lock:
            return list(self.state.effects_of.get(identity, {}).values())

    def effects_of_call(self, call_ref: str) -> list[Effect]:
        """Return the effects that a call of a model has started, in order."""
        with self._lock:
            return list(self.state.effects_of_call.get(call_ref, {}).values())

    def all_effects(self) -> list[Effect]:
        """Return all effects, in order of their start. Thread-safe."""
        with self._lock:
            return list(self.state.effects.values())


def _shown(entry: dict[str, JsonValue], wrong: list[str]) -> str:
    return ", ".join(f"{name} is {short_repr(entry.get(name))}" for name in wrong)
