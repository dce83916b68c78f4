"""The tool calls of a model whose results are not in the conversation yet; a part of a session.

Owns the identity of such a call, its `ref`: the rows of `session.calls` and the ledger records of
the call have it. The ids of a model are names only: some servers repeat them or send none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_checkpoint.errors import StateMismatchError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import ExactText

_REF = r"[0-9a-f]{12}"


class OpenCall(NamedTuple):
    """A call in the model's last turn."""

    ref: str
    """Unique in the session and its forks."""
    id: str
    """The id in the model's message; `#N` if the Nth call has none, or that of an earlier one."""
    digest: str
    """A hash of id, tool and arguments: a call that was edited is another call."""


class Before(NamedTuple):
    """How a version without refs knew the calls of a message: by what came after a position."""

    calls: int
    """The number of rows before."""
    ledger: int
    """The last ledger record before."""
    digest: str
    """A hash of all calls."""


class OpenCalls:
    """The open calls of one agent; a Stateful."""

    def __init__(
        self,
        calls: Sequence[OpenCall] = (),
        at: int = 0,
        before: Before | None = None,
        redacted: Sequence[str] = (),
    ) -> None:
        self.calls = calls
        self.at = at
        """The index of the message with the first of them."""
        self.before = before
        """Set for calls that a version without refs had begun; their refs are their ids."""
        self.redacted = redacted
        """The refs of calls that `redact=` changes when they are saved."""

    def __bool__(self) -> bool:
        return bool(self.calls)

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, OpenCalls) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def with_calls(self, calls: Sequence[OpenCall]) -> OpenCalls:
        """Return the same with other calls."""
        return OpenCalls(calls, self.at, self.before, self.redacted)

    def become(self, other: OpenCalls) -> None:
        """Take over all fields of other open calls."""
        vars(self).update(vars(other))

    def find(self, call_id: str) -> OpenCall | None:
        """Return the call with an id."""
        return next((call for call in self.calls if call.id == call_id), None)

    def ref_of(self, row: Mapping[str, Any], number: int = -1) -> str | None:
        """Return the ref of the call that a row, with this number, belongs to."""
        ref = row.get("call_ref")
        if type(ref) is int:
            ref = f"{ref:012x}"
        if ref is None and self.before is not None and number >= self.before.calls:
            ref = row.get("call_id")
        return ref if isinstance(ref, str) else None

    def renewed(
        self, ids: Sequence[str], digests: Sequence[str], redacted: Sequence[bool], at: int
    ) -> OpenCalls:
        """Return the open calls of a turn: those with the same digest keep their refs.

        `redacted` says of each call whether a save changes it now.
        """
        left, calls = list(self.calls), []
        for call_id, digest in zip(ids, digests):
            known = next((call for call in left if call.digest == digest), None)
            if known is not None:
                left.remove(known)
            ref = os.urandom(6).hex() if known is None else known.ref
            calls.append(OpenCall(ref, call_id, digest))
        pairs = zip(calls, redacted)
        changed = [one.ref for one, is_now in pairs if is_now or one.ref in self.redacted]
        return OpenCalls(calls, at, self.before, changed)

    def state_dict(self) -> dict[str, Any]:
        """Return the fields; empty without calls."""
        if not self.calls:
            return {}
        # An id is redacted as it is in the conversation.
        calls = [[ExactText(ref), name, ExactText(digest)] for ref, name, digest in self.calls]
        state: dict[str, Any] = {"calls": calls, "at": self.at}
        if self.before is not None:
            state["before"] = [*self.before[:2], ExactText(self.before.digest)]
        return (
            {**state, "redacted": list(map(ExactText, self.redacted))} if self.redacted else state
        )

    def load_state_dict(self, state: Any) -> None:
        """Load the fields: anyone who can write a checkpoint can write them.

        Raises:
            StateMismatchError: the state is not that of open calls.
        """
        try:
            rows, at, before = state.get("calls", []), state.get("at", 0), state.get("before")
            calls = [OpenCall(*_checked(row, str, str, str)) for row in rows]
            _checked([at], int)
            known = None if before is None else Before(*_checked(before, int, int, str))
            redacted = state.get("redacted", [])
            _checked(redacted, *[str] * len(redacted))
        except (AttributeError, TypeError, ValueError):
            raise StateMismatchError("The state is not that of open tool calls.") from None
        self.become(OpenCalls(calls, at, known, redacted))


def row_ref(ref: str) -> str | int:
    """Return a ref as a row has it: a number, because `redact=` may match a string."""
    return int(ref, 16) if re.fullmatch(_REF, ref) else ref


def _checked(row: Any, *types: type) -> list[Any]:
    """Return a row of values of these types. Raises ValueError."""
    if not isinstance(row, list) or len(row) != len(types):
        raise ValueError("not such a row")
    if not all(type(value) in (wanted, ExactText) for value, wanted in zip(row, types)):
        raise ValueError("not such a row")
    if any(type(value) is int and not 0 <= value < 2**63 for value in row):
        raise ValueError("not a count")
    return row
