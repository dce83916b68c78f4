"""A ledger in a store: what was done outside, or was to be, and who had to agree.

One stream for a session and all its forks, `fx/<family>`. Owns reading it on and adding to it, so
that each who adds something has seen all before it. What the records mean is not its matter.
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
    """A ledger as it is in a store, and all that follows from its records."""

    def __init__(self, store: Store, lineage: str) -> None:
        super().__init__(lineage)
        self.store = store
        self.seq = 0
        """The number of the newest record that was read."""
        self.stream = LedgerStream(store, lineage)
        self._lock = RLock()

    def refresh(self) -> None:
        """Read what is new. Raises IntegrityError, FormatError, StorageError."""
        with self._lock:
            records = self.stream.read(self.seq)
            if any(effective_seq(seq, record) <= self.seq for seq, record in records):
                self._read_anew()
                return
            for seq, record in in_order(records):
                self.apply(seq, record)
                if effective_seq(seq, record) == seq:  # else others before it are yet to come
                    self.seq = seq
            self.seq = max([self.seq, *(seq for seq, _ in records)])

    def _read_anew(self) -> None:
        """Read all from the first record: some of those that were read have been replaced."""
        fresh = Ledger(self.store, self.lineage)
        fresh.refresh()
        self.effects = _kept(self.effects, fresh.effects)
        self.requests = _kept(self.requests, fresh.requests)
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
        """Add a record and take it in; return its number.

        Args:
            what: the type of the record.
            parts: encoded values of any size.
            fence: the epoch of who wants it; refused if the session was opened again since.
            guard: called each time before it is tried, with all that is there taken in.
            record: the rest.

        Raises:
            ConflictError: the session was opened elsewhere since.
            IntegrityError: the ledger was set back since it was read; nothing was acknowledged.
            InvalidInputError: a value is not of the kind that such a record has.
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
                if wrong:  # it could not be read again
                    raise InvalidInputError(f"It cannot be recorded: {_told(entry, wrong)}.")
                try:
                    seq = self.stream.append(entry, parts or {}, after=self.seq)
                except ConflictError as error:
                    # Somebody else of the family was faster: look at what that was.
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
        """Refuse who holds an older epoch. Raises ConflictError."""
        newest = self.epochs.get(epoch.session, epoch)
        if newest.number > epoch.number:
            raise ConflictError(
                f"The session {short_repr(epoch.session)} was opened again elsewhere: this holder "
                "of it may do nothing more. Close it; what it had saved is there."
            )

    def of(self, identity: str) -> list[Effect]:
        """Return the effects of an identity, in the order in which they were begun."""
        with self._lock:
            return list(self._effects_of.get(identity, {}).values())

    def requests_for(self, identity: str) -> list[Request]:
        """Return the requests for calls of an identity, in the order in which they were made."""
        return list(self._requests_of.get(identity, {}).values())

    def all_effects(self) -> list[Effect]:
        """Return all effects, in the order in which they were begun; other threads may add some."""
        with self._lock:
            return list(self.effects.values())


def _told(entry: dict[str, JsonValue], wrong: list[str]) -> str:
    return ", ".join(f"{name} is {short_repr(entry.get(name))}" for name in wrong)


def _kept(known: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """Return what there is now, in the objects that there were: others hold them."""
    for name, item in fresh.items():
        vars(known.setdefault(name, item)).update(vars(item))
    return {name: known[name] for name in fresh}
