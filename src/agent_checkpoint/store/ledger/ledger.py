"""A ledger in a store: external side effects and approval requests of a session and its forks.

One stream per lineage, `fx/<lineage>`. Owns reading new records and appending with
compare-and-swap, so that every writer has applied all earlier records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any

from agent_checkpoint.errors import ConflictError, IntegrityError, InvalidInputError
from agent_checkpoint.records import JsonValue, short_repr
from agent_checkpoint.store.entries import now_ns
from agent_checkpoint.store.ledger.account import (
    APPROVED,
    BEFORE,
    COMMITTED,
    DENIED,
    FAILED,
    PENDING,
    UNDOING,
    UNDONE,
    UNKNOWN,
    UNREADABLE,
    USED,
    VOID,
    Effect,
    Epoch,
    LedgerState,
    Request,
    in_order,
)
from agent_checkpoint.store.ledger.ledger_records import (
    PREFIX,
    LedgerStream,
    effective_seq,
    wrong_members,
)
from agent_checkpoint.store.store import Store

__all__ = [
    "APPROVED",
    "BEFORE",
    "COMMITTED",
    "DENIED",
    "FAILED",
    "PENDING",
    "PREFIX",
    "UNDOING",
    "UNDONE",
    "UNKNOWN",
    "UNREADABLE",
    "USED",
    "VOID",
    "Effect",
    "Epoch",
    "Ledger",
    "Request",
]


class Ledger(LedgerState):
    """A ledger stream of a store, and the state of its records."""

    def __init__(self, store: Store, lineage: str) -> None:
        super().__init__(lineage)
        self.store = store
        self.seq = 0
        """Number of the newest record that was applied."""
        self.stream = LedgerStream(store, lineage)
        self._lock = RLock()

    def refresh(self) -> None:
        """Read and apply new records. Raises IntegrityError, FormatError, StorageError."""
        with self._lock:
            records = self.stream.read(self.seq)
            if any(effective_seq(seq, record) <= self.seq for seq, record in records):
                self._reload()
                return
            for seq, record in in_order(records):
                self.apply(seq, record)
                if effective_seq(seq, record) == seq:  # else earlier numbers are still to come
                    self.seq = seq
            self.seq = max([self.seq, *(seq for seq, _ in records)])

    def _reload(self) -> None:
        """Read all records again: a purge has replaced some that were applied."""
        fresh = Ledger(self.store, self.lineage)
        fresh.refresh()
        self.effects = _updated_in_place(self.effects, fresh.effects)
        self.requests = _updated_in_place(self.requests, fresh.requests)
        self.epochs, self.finished, self.seq = fresh.epochs, fresh.finished, fresh.seq
        self._effects_of, self._requests_of = {}, {}
        for effect in self.effects.values():
            self._index(effect)
        for request in self.requests.values():
            self._index_request(request)

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
            fence: the writer's epoch; refused if a newer one exists.
            guard: called before each attempt, after all existing records were applied.
            record: the other members.

        Raises:
            ConflictError: the session was opened again elsewhere.
            IntegrityError: the ledger was truncated after it was read; nothing was acknowledged.
            InvalidInputError: a member has a wrong type.
            StorageError: the medium failed; nothing was acknowledged.
        """
        with self._lock:
            while True:
                self.refresh()
                if fence is not None:
                    self.check(fence)
                if guard is not None:
                    guard()
                entry: dict[str, JsonValue] = {"type": what, "ts_ns": now_ns(), **record}
                wrong = wrong_members({**entry, "parts": {}})
                if wrong:  # readers would refuse it
                    raise InvalidInputError(f"It cannot be recorded: {_shown(entry, wrong)}.")
                try:
                    seq = self.stream.append(entry, parts or {}, after=self.seq)
                except ConflictError as error:
                    # Another session of the lineage appended first: apply its records and retry.
                    before = self.seq
                    self.refresh()
                    if self.seq == before:
                        raise IntegrityError(
                            f"The ledger {short_repr(self.lineage)} was truncated after it was "
                            "read; nothing was recorded. Open the session again. The ledger may "
                            "lack earlier effects."
                        ) from error
                    continue
                self.refresh()
                return seq

    def check(self, epoch: Epoch) -> None:
        """Refuse an epoch that is not the newest. Raises ConflictError."""
        newest = self.epochs.get(epoch.session, epoch)
        if newest.number > epoch.number:
            raise ConflictError(
                f"The session {short_repr(epoch.session)} was opened again elsewhere, so this one "
                "may no longer write. Close it; its checkpoints are kept."
            )

    def of(self, identity: str) -> list[Effect]:
        """Return the effects of an identity, in the order in which they were started."""
        with self._lock:
            return list(self._effects_of.get(identity, {}).values())

    def requests_for(self, identity: str) -> list[Request]:
        """Return the approval requests of an identity, oldest first."""
        return list(self._requests_of.get(identity, {}).values())

    def all_effects(self) -> list[Effect]:
        """Return all effects, in the order in which they were started. Safe from any thread."""
        with self._lock:
            return list(self.effects.values())


def _shown(entry: dict[str, JsonValue], wrong: list[str]) -> str:
    return ", ".join(f"{name} is {short_repr(entry.get(name))}" for name in wrong)


def _updated_in_place(known: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """Return the fresh items as updates of the known objects: callers hold references to them."""
    for name, item in fresh.items():
        vars(known.setdefault(name, item)).update(vars(item))
    return {name: known[name] for name in fresh}
