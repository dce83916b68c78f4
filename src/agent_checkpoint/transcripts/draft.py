"""A conversation under repair: its messages and blocks, and the record of problems and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.transcripts.report import Change, Problem

Role = Literal["model", "call", "tool", "user", "system"]
Kind = Literal["call", "result", "thinking", "server call", "server result", "other"]
# A message of the input and a block in it.
Position = tuple[int, float]
END = float("inf")  # behind the last block of a message


class Fault(NamedTuple):
    """Why the API refuses a block or a message, wherever it is."""

    code: str
    text: str


@dataclass(eq=False)
class Block:
    """A block of a message: a text, a tool call, a tool result and so on."""

    source: Any
    at: Position
    path: str
    kind: Kind = "other"
    id: str | None = None
    name: str | None = None
    complete: bool = True  # False: the arguments of this call end in the middle
    fault: Fault | None = None
    mended: Any = None  # replaces the source if there is a fault; None: the block is dropped
    message: Message = field(init=False, repr=False)

    @property
    def label(self) -> str:
        """The call as messages name it."""
        return f"{self.id or 'without id'} ({self.name})" if self.name else str(self.id)

    def answers(self, call: Block) -> bool:
        """Whether this result belongs to a call: by id, or by name if one of them has no id."""
        if self.id and call.id:
            return self.id == call.id
        return self.name is not None and self.name == call.name


def names_of(calls: Iterable[Block]) -> list[str]:
    """Return a name for each call of a turn: its id, or `#N` without one of its own."""
    names: list[str] = []
    for number, call in enumerate(calls):
        is_usable = isinstance(call.id, str) and call.id[:1] not in ("", "#")
        names.append(str(call.id) if is_usable and call.id not in names else f"#{number}")
    return names


@dataclass(eq=False)
class Message:
    """A message or item. `source` is what was given; `changed`: it must be written again."""

    source: Any
    index: int
    path: str
    role: Role
    blocks: list[Block] = field(default_factory=list)
    changed: bool = False

    def __post_init__(self) -> None:
        for block in self.blocks:
            block.message = self

    def insert(self, at: int, block: Block) -> None:
        """Insert a block."""
        block.message = self
        self.blocks.insert(at, block)
        self.changed = True

    def remove(self, block: Block) -> None:
        """Remove a block."""
        self.blocks.remove(block)
        self.changed = True


class Draft:
    """The messages, and what was found and done. `write` turns a changed message into a source."""

    def __init__(self, messages: Iterable[Message], write: Callable[[Message], Any]) -> None:
        self.messages = list(messages)
        self.problems: list[Problem] = []
        self.changes: list[Change] = []
        self.first_change: Position = (len(self.messages), 0)
        self._write = write

    def result(self) -> list[Any]:
        """Return the messages, as they were given where they did not change."""
        return [self._write(one) if one.changed else one.source for one in self.messages]

    def blocks(self) -> Iterator[Block]:
        """Yield all blocks, in order."""
        for message in self.messages:
            yield from message.blocks

    def turns(self, joined: frozenset[Role]) -> list[list[Message]]:
        """Return the messages by turn: neighbours of one role in `joined` are one turn."""
        runs = groupby(self.messages, key=lambda one: one.role)
        grouped = [(role, list(run)) for role, run in runs]
        return [
            turn
            for role, run in grouped
            for turn in ([run] if role in joined else [[one] for one in run])
        ]

    def problem(self, where: Block | Message, code: str, text: str) -> None:
        """Record a problem."""
        index = where.index if isinstance(where, Message) else int(where.at[0])
        self.problems.append(Problem(index, where.path, code, text))

    def change(
        self,
        action: Literal["inserted", "moved", "dropped", "changed"],
        at: Position,
        path: str,
        text: str,
        value: Any,
    ) -> None:
        """Record a change."""
        self.changes.append(Change(action, int(at[0]), path, text, value))
        self.first_change = min(self.first_change, at)

    def drop(self, block: Block, text: str) -> None:
        """Remove a block and record it."""
        block.message.remove(block)
        self.change("dropped", block.at, block.path, text, block.source)

    def replace(self, block: Block, source: Any, text: str) -> None:
        """Replace the source of a block and record it."""
        self.change("changed", block.at, block.path, text, block.source)
        block.source = source
        block.message.changed = True

    def insert_after(self, message: Message, new: Message) -> None:
        """Insert a message; the caller records it."""
        self.messages.insert(self.messages.index(message) + 1, new)

    def drop_empty(self, *, keep_last: bool = False) -> None:
        """Remove messages without content; `keep_last`: not an empty last message of the model."""
        for message in list(self.messages):
            if message.blocks:
                continue
            if not message.changed:
                if keep_last and message is self.messages[-1] and message.role == "model":
                    continue
                self.problem(message, "empty-content", "the message has no content")
                text = "dropped a message without content"
                self.change("dropped", (message.index, 0), message.path, text, message.source)
            self.messages.remove(message)

    def begin_with_user(self, new: Message) -> None:
        """Insert a message of the user if the conversation begins with another role."""
        first = self.messages[0] if self.messages else new
        if first.role == "user":
            return
        if first.index == 0:  # otherwise it only became the first: a problem that is reported
            self.problem(first, "first-message", "the first message must be from the user")
        text = "inserted a user message: the conversation must begin with one"
        self.change("inserted", (0, -1), first.path, text, new.source)
        self.messages.insert(0, new)
