"""The repair that all APIs share: pairs tool calls with results, and mends what is left over."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from agent_checkpoint.transcripts.dialect import Answer, Dialect
from agent_checkpoint.transcripts.draft import END, Block, Draft, Message, names_of
from agent_checkpoint.transcripts.report import CallLookup, CallOutcome

NO_RESULT = "The tool call finished. No result was recorded."
NOT_EXECUTED = (
    "The tool call was not executed: the session was interrupted before it. It had no effect."
)
UNKNOWN = (
    "The session was interrupted while this tool call was running. Its outcome is unknown: it may "
    "or may not have taken effect. Do not assume either; check before you call the tool again."
)
INTERRUPTED = (
    "The tool call was interrupted. Whether it took effect is unknown. Do not assume either; check "
    "before you call the tool again."
)


def mend(
    messages: Iterable[Any],
    dialect: Dialect,
    session: CallLookup | None,
    *,
    keep_open: bool = False,
) -> Draft:
    """Read a conversation and repair it; the draft holds the problems, changes and messages.

    `keep_open`: calls at the end that have no results yet are left as they are.

    Raises:
        InvalidInputError: a message has no role that the dialect knows.
    """
    read = [dialect.read(source, index) for index, source in enumerate(messages)]
    draft = Draft(read, dialect.write)
    for block in list(draft.blocks()):
        if block.fault is not None:
            draft.problem(block, *block.fault)
            if block.mended is None:
                draft.drop(block, f"dropped a block: {block.fault.text}")
            else:
                draft.replace(block, block.mended, f"changed a block: {block.fault.text}")
    dialect.before_pairing(draft)
    _Pairing(draft, dialect, session, keep_open).run()
    dialect.after_pairing(draft)
    return draft


@dataclass(eq=False)
class _Slot:
    """A turn with tool calls, and the turn after it if results may be there."""

    number: int
    turn: list[Message]
    calls: list[Block]
    answers: list[Message]


class _Pairing:
    """Gives every call one result, in the place where the API wants it."""

    def __init__(
        self, draft: Draft, dialect: Dialect, session: CallLookup | None, keep_open: bool
    ) -> None:
        self.draft = draft
        self.dialect = dialect
        self.session = session
        self.slots = self._find_slots()
        self.result_of: dict[Block, Block] = {}
        self.placed: set[Block] = set()
        self.keep_open = keep_open

    def run(self) -> None:
        self._match()
        lookups = self._outcomes()
        for slot in self.slots:
            self._drop_unfinished(slot, lookups)
        if self.keep_open and self.slots and self._is_at_end(self.slots[-1]):
            self.slots.pop()
        if self.dialect.unique_ids:
            self._rename_ids()
        for slot in self.slots:
            self._fill(slot, lookups)

    def _find_slots(self) -> list[_Slot]:
        turns = self.draft.turns(self.dialect.joined)
        slots = []
        for number, (turn, after) in enumerate(zip(turns, [*turns[1:], []])):
            calls = [block for one in turn for block in one.blocks if block.kind == "call"]
            if calls:
                fits = bool(after) and after[0].role == self.dialect.answers
                slots.append(_Slot(number, turn, calls, after if fits else []))
        return slots

    def _match(self) -> None:
        matched: set[Block] = set()
        for slot in self.slots:
            leading = True
            for block in [block for one in slot.answers for block in one.blocks]:
                if block.kind != "result":
                    leading = not self.dialect.results_first
                    continue
                call = next((c for c in slot.calls if self._is_open(c) and block.answers(c)), None)
                if call is not None:
                    self.result_of[call] = block
                    matched.add(block)
                    if leading:
                        self.placed.add(block)
        for block in [b for b in self.draft.blocks() if b.kind == "result" and b not in matched]:
            self._match_elsewhere(block)

    def _match_elsewhere(self, result: Block) -> None:
        """Match a result with the nearest open call before it, else after it; else drop it."""
        fitting = [(slot, c) for slot in self.slots for c in slot.calls if result.answers(c)]
        free = [(slot, c) for slot, c in fitting if self._is_open(c)]
        before = [(slot, c) for slot, c in free if c.at < result.at]
        if before:
            last = max(slot.number for slot, _ in before)
            call = next(c for slot, c in before if slot.number == last)
        elif free:
            call = free[0][1]
        elif not fitting and self.dialect.calls_elsewhere(self.draft):
            return
        else:
            code = "duplicate-result" if fitting else "result-without-call"
            why = "already has a result" if fitting else "is not in the conversation"
            text = f"the call of this result, {result.label}, {why}"
            self.draft.problem(result, code, text)
            self.draft.drop(result, f"dropped a result: {text}")
            return
        self.result_of[call] = result
        if self.dialect.anywhere and before:
            self.placed.add(result)

    def _is_open(self, call: Block) -> bool:
        return call not in self.result_of

    def _is_at_end(self, slot: _Slot) -> bool:
        """Whether no call of a turn has a result, and nothing follows the turn."""
        after = self.draft.messages[self.draft.messages.index(slot.turn[-1]) + 1 :]
        return all(map(self._is_open, slot.calls)) and all(
            one.role in ("model", "call") for one in after
        )

    def _outcomes(self) -> dict[Block, CallOutcome | None]:
        """Look up open calls.

        Of calls with the same id an outcome means the last one with its digest; without a digest it
        can only mean the first.
        """
        named: dict[str, list[Block]] = {}
        for slot in self.slots:
            for name, call in zip(names_of(slot.calls), slot.calls):
                named.setdefault(name, []).append(call)
        found: dict[Block, CallOutcome | None] = {}
        for name, calls in named.items():
            opened = list(filter(self._is_open, calls))
            found.update(dict.fromkeys(opened))
            if self.session is None or not opened:
                continue
            outcome = self.session.call_outcome(name)
            digest = "" if outcome is None else outcome.digest
            same = [call for call in calls if digest in ("", self.dialect.digest(call))]
            meant = same[-1 if digest else 0] if same else None
            if meant in found:
                found[meant] = outcome
        return found

    def _drop_unfinished(self, slot: _Slot, lookups: dict[Block, CallOutcome | None]) -> None:
        """Drop calls whose arguments end in the middle: they were never made."""
        for call in [call for call in slot.calls if not call.complete]:
            if self._is_open(call) and lookups[call] is None:
                text = f"the arguments of call {call.label} end in the middle"
                self.draft.problem(call, "incomplete-call", text)
                self.draft.drop(call, f"dropped a call that was never made: {text}")
                slot.calls.remove(call)
            elif call.mended is not None:
                text = f"the input of call {call.label} is not an object"
                self.draft.problem(call, "invalid-input", text)
                self.draft.replace(call, call.mended, f"changed a call: {text}")

    def _rename_ids(self) -> None:
        seen: set[str | None] = set()
        calls = [call for slot in self.slots for call in slot.calls]
        taken = {call.id for call in calls}
        for call in calls:
            repeated = call.id in seen
            if repeated or not self.dialect.valid_id(call.id):
                new = _fresh_id(call.id, taken)
                why = "is used by an earlier call" if repeated else "is not a valid id"
                code = "duplicate-id" if repeated else "invalid-id"
                self.draft.problem(call, code, f"the id of call {call.label} {why}")
                for block in (call, self.result_of.get(call)):
                    if block is not None:
                        text = f"changed the id {block.id!r} to {new!r}: it {why}"
                        self.draft.replace(block, self.dialect.with_id(block, new), text)
                        block.id = new
                taken.add(new)
            seen.add(call.id)

    def _fill(self, slot: _Slot, lookups: dict[Block, CallOutcome | None]) -> None:
        """Move and insert the results that are not where they must be."""
        new: list[Block] = []
        position = (slot.turn[-1].index, END)
        for call in slot.calls:
            result = self.result_of.get(call)
            if result is None:
                self.draft.problem(call, "call-without-result", f"call {call.label} has no result")
                block = self._new_result(call, lookups[call])
                if block is None:
                    continue
                text = f"inserted a result for call {call.label}: {_status(lookups[call])}"
                self.draft.change("inserted", position, call.path, text, block.source)
                new.append(block)
            elif result not in self.placed:
                text = f"the result of call {call.label} is not in its place"
                self.draft.problem(min(call, result, key=_at), "misplaced-result", text)
                text = f"moved the result of call {call.label} to its place"
                self.draft.change(
                    "moved", min(position, result.at), result.path, text, result.source
                )
                result.message.remove(result)
                new.append(result)
        if new:
            self._insert(slot, new)

    def _new_result(self, call: Block, outcome: CallOutcome | None) -> Block | None:
        answer = answer_for(outcome)
        source = self.dialect.result(call, answer)
        if source is not None:
            return Block(source, (call.at[0], END), call.path, "result", call.id, call.name)
        text = f"{answer.text} The call: {call.label}"
        note = Message(self.dialect.note(text), int(call.at[0]), call.path, "user")
        note.blocks = [Block(note.source, call.at, call.path)]
        self.draft.insert_after(call.message, note)
        self.draft.change("inserted", call.at, call.path, "inserted a note on a call", note.source)
        self.draft.drop(call, f"dropped call {call.label}: its result cannot be made up")
        return None

    def _insert(self, slot: _Slot, new: list[Block]) -> None:
        in_answers = [block for one in slot.answers for block in one.blocks]
        last = max((b for b in in_answers if b in self.placed), key=_at, default=None)
        if self.dialect.own_messages:
            after = slot.turn[-1] if last is None else last.message
            for block in reversed(new):
                message = Message(block.source, after.index, block.path, "tool", [block])
                self.draft.insert_after(after, message)
            return
        host = last.message if last else slot.answers[0] if slot.answers else None
        if host is None:
            host = Message(None, slot.turn[-1].index, slot.turn[-1].path, self.dialect.answers)
            self.draft.insert_after(slot.turn[-1], host)
        start = 0 if last is None else host.blocks.index(last) + 1
        for place, block in enumerate(new, start):
            host.insert(place, block)


def _at(block: Block) -> tuple[int, float]:
    return block.at


def answer_for(outcome: CallOutcome | None) -> Answer:
    """Return what the model is told about a call."""
    if outcome is None:
        return Answer(INTERRUPTED, error=True)
    if outcome.status == "done":
        value = NO_RESULT if outcome.result is None else outcome.result
        return Answer(value, error=outcome.is_error, note=outcome.note)
    text = NOT_EXECUTED if outcome.status == "not-done" else UNKNOWN
    return Answer(text, error=True, note=outcome.note)


def _status(outcome: CallOutcome | None) -> str:
    status = outcome.status if outcome else "unknown"
    return {"done": "its recorded result", "not-done": "not executed"}.get(
        status, "outcome unknown"
    )


def _fresh_id(old: str | None, taken: set[str | None]) -> str:
    stem = re.sub(r"[^a-zA-Z0-9_-]", "_", old or "call")
    names = chain([stem], (f"{stem}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)
