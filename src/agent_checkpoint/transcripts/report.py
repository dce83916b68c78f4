"""What check and repair report, and what they ask about a call. Knows no provider."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Problem:
    """Something that the API would refuse. `index` is the message, `path` the place in it."""

    index: int
    path: str
    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


@dataclass(frozen=True)
class Change:
    """A change that a repair made. `index` and `path` are places in the input.

    `value` is what was inserted, moved or dropped, or what a changed block was before.
    """

    action: Literal["inserted", "moved", "dropped", "changed"]
    index: int
    path: str
    text: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


@dataclass(frozen=True)
class CallOutcome:
    """What is known of a tool call: its status and, if it is done, its result (text or JSON).

    `is_error`: the call ended with an error, and the result is its text. `note`: a sentence that
    the model is told before the result. `digest`: a hash of the call, if it is known: of calls with
    the same id, the outcome is that of the last one with this digest.
    """

    status: Literal["done", "not-done", "unknown"]
    result: Any = None
    tool: str | None = None
    is_error: bool = False
    note: str = ""
    digest: str = ""


class CallLookup(Protocol):
    """Anything that knows the outcomes of tool calls, such as a session."""

    def call_outcome(self, call_id: str) -> CallOutcome | None:
        """Return the outcome of a call, or None if there is no record of it."""


class Repaired(list[Any]):
    """A repaired conversation: a list of messages with the changes that were made."""

    def __init__(self, messages: Iterable[Any] = (), changes: tuple[Change, ...] = ()) -> None:
        super().__init__(messages)
        self.changes = changes
