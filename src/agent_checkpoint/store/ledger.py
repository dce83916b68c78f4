"""The ledger: what was done outside, or was to be, and who had to agree. Owns its records.

One stream for a session and all its forks, `fx/<family>`. Nothing in it is ever taken back: what
becomes of an effect or a request is said by later records. Decides nothing, and runs nothing.

    epoch       a session was opened; who holds an older epoch may begin nothing
    started     an effect is about to be made; durable before it is
    committed   it was made; failed: it was not; resolved: a person says which
    undoing     it is about to be undone; undone: it is
    asked       somebody has to agree to a call; answered, used, void: what became of that
    finished    a rollback is carried out to its end
    imported    all before it comes from elsewhere: nobody holds the session, and no answer counts

A record that held a secret is purged: one without it, which says `instead` of which it stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple

from agent_checkpoint.errors import ConflictError, IntegrityError
from agent_checkpoint.records import JsonValue, parse_checkpoint_id, show
from agent_checkpoint.store.record_stream import RecordStream
from agent_checkpoint.store.store import Store

PREFIX = "fx/"

UNKNOWN, COMMITTED, FAILED, UNDOING, UNDONE = "unknown", "committed", "failed", "undoing", "undone"
BEFORE = {COMMITTED: {UNKNOWN, FAILED}, FAILED: {UNKNOWN}, UNDOING: {COMMITTED}, UNDONE: {UNDOING}}
"""What an effect must be to become something; a record that says otherwise comes too late."""
PENDING, APPROVED, DENIED, USED, VOID = "pending", "approved", "denied", "used", "void"


@dataclass(repr=False)
class Effect:
    """Something that was done outside, or begun: as far as anybody knows."""

    id: str
    session: str
    kind: str
    tool: str
    module: str
    """Which defines the tool."""
    identity: str
    """What it is the same as: two effects of one identity must not both happen."""
    digest: str
    """Of the arguments of the call."""
    seq: int
    ts: float
    task: str | None
    at: str
    """The checkpoint that was the head when it was begun."""
    parts: dict[str, JsonValue]
    """The arguments and the result, encoded."""
    words: str
    """How to tell a person which one it is."""
    also: str | None = None
    """Another identity, if the arguments were edited by who agreed to it."""
    status: str = UNKNOWN
    note: str = ""
    described: bool = False
    """Whether the result is only a description of what it was."""
    generation: int = 0
    """How often one of this identity was undone before."""
    part: str | None = None
    """The part of the session whose method the tool is; empty if it was of no part."""
    is_late: bool = False
    """Whether it was done after all, when it had been declared not done."""

    def __repr__(self) -> str:
        return f"<Effect {self.id}: {self.words}, {self.status}>"

    @property
    def stands(self) -> bool:
        """Whether it has happened and was not undone, or may have."""
        return self.status in (UNKNOWN, COMMITTED, UNDOING)


@dataclass(repr=False)
class Request:
    """A call that somebody has to agree to."""

    id: str
    session: str
    tool: str
    module: str
    """Which defines the tool."""
    identity: str
    digest: str
    seq: int
    ts: float
    task: str | None
    at: str
    """The checkpoint that was saved with it."""
    expires: float | None
    parts: dict[str, JsonValue]
    """The arguments; those that the approver wants instead."""
    words: str
    status: str = PENDING
    by: str | None = None
    reason: str | None = None
    part: str | None = None

    def __repr__(self) -> str:
        return f"<Request {self.id}: {self.words}, {self.status}>"

    @property
    def is_expired(self) -> bool:
        """Whether it is too late to answer it, or to use the answer."""
        return self.expires is not None and time.time() > self.expires

    @property
    def is_open(self) -> bool:
        """Whether it still waits for an answer."""
        return self.status == PENDING and not self.is_expired


class Epoch(NamedTuple):
    """One opening of a session; the higher number is the later one."""

    session: str
    number: int


@dataclass
class Ledger:
    """A ledger as it is in a store, and all that follows from its records."""

    store: Store
    family: str
    seq: int = 0
    """The number of the newest record that was read."""
    epochs: dict[str, Epoch] = field(default_factory=dict)
    effects: dict[str, Effect] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stream = RecordStream(self.store, PREFIX + self.family)
        self._lock = RLock()
        self._effects_of: dict[str, dict[str, Effect]] = {}
        self._requests_of: dict[str, dict[str, Request]] = {}

    def refresh(self) -> None:
        """Read what is new. Raises IntegrityError, FormatError, StorageError."""
        with self._lock:
            records = self.stream.read(self.seq)
            if any((record.get("instead") or self.seq + 1) <= self.seq for _, record in records):
                self._read_anew()
                return
            for seq, record in sorted(records, key=lambda item: item[1].get("instead") or item[0]):
                self._take(record.get("instead") or seq, record)
                self.seq = max(self.seq, seq)

    def _read_anew(self) -> None:
        """Read all from the first record: some of those that were read have been replaced."""
        fresh = Ledger(self.store, self.family)
        fresh.refresh()
        self.effects = _kept(self.effects, fresh.effects)
        self.requests = _kept(self.requests, fresh.requests)
        self.epochs, self.finished, self.seq = fresh.epochs, fresh.finished, fresh.seq
        self._effects_of, self._requests_of = {}, {}
        for effect in self.effects.values():
            self._index(effect)
        for request in self.requests.values():
            self._requests_of.setdefault(request.identity, {})[request.id] = request

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
            StorageError: the medium failed; nothing was acknowledged.
        """
        with self._lock:
            while True:
                self.refresh()
                if fence is not None:
                    self.check(fence)
                if guard is not None:
                    guard()
                entry = {"type": what, "ts_ns": time.time_ns(), **record}
                try:
                    seq = self.stream.append(entry, parts or {}, after=self.seq)
                except ConflictError:
                    continue  # somebody else of the family was faster: look at what that was
                self.refresh()
                return seq

    def check(self, epoch: Epoch) -> None:
        """Refuse who holds an older epoch. Raises ConflictError."""
        newest = self.epochs.get(epoch.session, epoch)
        if newest.number > epoch.number:
            raise ConflictError(
                f"The session {show(epoch.session)} was opened again elsewhere: this holder of it "
                "may do nothing more. Close it; what it had saved is there."
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

    def _index(self, effect: Effect) -> None:
        for name in {effect.identity, effect.also or effect.identity}:
            self._effects_of.setdefault(name, {})[effect.id] = effect

    def held_checkpoints(self) -> Iterator[str]:
        """Iterate over the checkpoints that an open request or an unknown outcome needs."""
        yield from (item.at for item in self.all_effects() if item.status in (UNKNOWN, UNDOING))
        for request in list(self.requests.values()):
            if request.status == APPROVED or request.is_open:
                yield request.at

    def _take(self, seq: int, record: dict[str, Any]) -> None:
        try:
            take = getattr(self, "_" + str(record["type"]), None)
            if take is not None and record["type"] in _OURS:
                take(seq, record)
        except (KeyError, TypeError, ValueError) as error:
            raise IntegrityError(
                f"Record {seq} of the ledger {show(self.family)} is not one of ours ({error!r})."
            ) from None

    def _epoch(self, seq: int, record: dict[str, Any]) -> None:
        epoch = Epoch(str(record["session"]), int(record["epoch"]))
        if epoch.number >= self.epochs.get(epoch.session, epoch).number:
            self.epochs[epoch.session] = epoch

    def _started(self, seq: int, record: dict[str, Any]) -> None:
        effect = Effect(
            id=str(record["effect"]),
            session=str(record["session"]),
            kind=str(record["kind"]),
            tool=str(record["tool"]),
            module=str(record["module"]),
            identity=str(record["identity"]),
            digest=str(record["digest"]),
            seq=seq,
            ts=record["ts_ns"] / 1e9,
            task=record["task"],
            at=str(record["at"]),
            parts=dict(record["parts"]),
            words=str(record["words"]),
            also=record.get("also"),
            generation=int(record["generation"]),
            part=record.get("part"),
        )
        self._index(self.effects.setdefault(effect.id, effect))
        if record.get("request") is not None:
            self.requests[record["request"]].status = USED

    def _committed(self, seq: int, record: dict[str, Any]) -> None:
        effect = self.effects[record["effect"]]
        if effect.status not in BEFORE[COMMITTED]:
            return  # who was replaced meanwhile may say late what is known better
        effect.is_late = effect.status == FAILED
        if effect.is_late:
            effect.note = f"done, although it had been declared not done ({effect.note})"
        effect.described = bool(record.get("described"))
        effect.parts.update(record["parts"])
        effect.status = COMMITTED  # last: what is interrupted is read again

    def _failed(self, seq: int, record: dict[str, Any]) -> None:
        effect = self.effects[record["effect"]]
        if effect.status in BEFORE[FAILED]:
            effect.status, effect.note = FAILED, str(record["note"])

    def _resolved(self, seq: int, record: dict[str, Any]) -> None:
        effect = self.effects[record["effect"]]
        if effect.status not in (UNKNOWN, UNDOING):
            return
        gone = UNDONE if effect.status == UNDOING else FAILED
        effect.note = str(record["note"])
        effect.parts.update(record["parts"])
        effect.status = COMMITTED if record["happened"] else gone

    def _undoing(self, seq: int, record: dict[str, Any]) -> None:
        effect, status = self.effects[record["effect"]], record["type"]
        if effect.status in BEFORE[status]:
            effect.status = status

    _undone = _undoing

    def _asked(self, seq: int, record: dict[str, Any]) -> None:
        request = Request(
            id=str(record["request"]),
            session=str(record["session"]),
            tool=str(record["tool"]),
            module=str(record["module"]),
            identity=str(record["identity"]),
            digest=str(record["digest"]),
            seq=seq,
            ts=record["ts_ns"] / 1e9,
            task=record["task"],
            at=str(record["at"]),
            expires=record["expires"],
            parts=dict(record["parts"]),
            words=str(record["words"]),
            part=record.get("part"),
        )
        request = self.requests.setdefault(request.id, request)
        self._requests_of.setdefault(request.identity, {})[request.id] = request

    def _answered(self, seq: int, record: dict[str, Any]) -> None:
        request = self.requests[record["request"]]
        request.status = APPROVED if record["approved"] else DENIED
        request.by, request.reason = record["by"], record["reason"]
        request.parts.update(record["parts"])

    def _used(self, seq: int, record: dict[str, Any]) -> None:
        self.requests[record["request"]].status = USED

    def _void(self, seq: int, record: dict[str, Any]) -> None:
        for name in record["requests"]:
            self.requests[name].status = VOID

    def _imported(self, seq: int, record: dict[str, Any]) -> None:
        self.epochs.clear()
        for request in self.requests.values():
            if request.status != USED:
                request.status = VOID

    def _finished(self, seq: int, record: dict[str, Any]) -> None:
        self.finished.add(str(record["checkpoint"]))


_OURS = {*BEFORE, "epoch", "started", "resolved", "asked", "answered", "used", VOID}
_OURS |= {"finished", "imported"}


def _kept(known: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """Return what there is now, in the objects that there were: others hold them."""
    for name, item in fresh.items():
        vars(known.setdefault(name, item)).update(vars(item))
    return {name: known[name] for name in fresh}


def held_checkpoints(store: Store, key: str) -> set[int]:
    """Return the numbers of a key's checkpoints that a request or an unknown outcome needs.

    Raises:
        IntegrityError: a ledger is damaged, so nobody can tell.
        StorageError: the medium failed.
    """
    found: set[int] = set()
    for family in families(store):
        ledger = Ledger(store, family)
        ledger.refresh()
        for name in ledger.held_checkpoints():
            place = parse_checkpoint_id(name)
            if place is not None and place.key == key:
                found.add(place.seq)
    return found


def families(store: Store) -> list[str]:
    """Return the names of all ledgers of a store. Raises StorageError."""
    return sorted(name[len(PREFIX) :] for name in store.backend.streams(PREFIX))
