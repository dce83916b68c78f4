"""What an API says about its conversations: the interface of the dialects."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.transcripts.draft import Block, Draft, Fault, Message, Role
from agent_checkpoint.transcripts.fields import get, json_value, plain, rewritten

PART_REMOVED = "(A part of this conversation was removed here.)"
NOT_OF_USER = Fault("misplaced-block", "only the model makes calls and thinks")
BEGINNING_MISSING = "(The beginning of this conversation is missing.)"


class Answer(NamedTuple):
    """The content of an inserted result: the recorded value or a sentence; `error`: no result.

    `note` is a sentence to tell before the value.
    """

    value: Any
    error: bool
    note: str = ""

    @property
    def text(self) -> str:
        """The note and the value as text."""
        is_text = isinstance(self.value, str)
        text = self.value if is_text else json.dumps(self.json, ensure_ascii=False)
        return f"{self.note}\n\n{text}" if self.note else str(text)

    @property
    def json(self) -> Any:
        """The value as JSON: what JSON does not have becomes text."""
        return json_value(self.value, str)

    def content(self, types: frozenset[str]) -> Any:
        """The value as it is if it is a list of blocks of these types, else as text."""
        is_list = isinstance(self.value, list) and bool(self.value)
        if is_list and all(
            isinstance(one, Mapping) and one.get("type") in types for one in self.value
        ):
            text_type = next(type_ for type_ in types if type_.endswith("text"))
            return [*([{"type": text_type, "text": self.note}] if self.note else []), *self.value]
        return self.text


class Dialect(ABC):
    """Reads messages of one API, writes changed ones, and knows where results must be."""

    # Roles whose neighbouring messages count as one turn.
    joined: ClassVar[frozenset[Role]] = frozenset()
    # The role of the turn that holds the results of the turn before.
    answers: ClassVar[Role] = "tool"
    # Each result is a message, not a block of one.
    own_messages: ClassVar[bool] = False
    # Results come before anything else in their turn.
    results_first: ClassVar[bool] = False
    # A result may come anywhere after its call.
    anywhere: ClassVar[bool] = False
    # Calls are known by unique ids; otherwise by id where there is one, else by name and order.
    unique_ids: ClassVar[bool] = True
    # The fields that hold the id in a call and in a result.
    id_fields: ClassVar[tuple[str, str]] = ("id", "id")
    # The types of the content blocks that a result may have instead of text.
    result_blocks: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def read(self, source: Any, index: int) -> Message:
        """Read a message. Raises InvalidInputError if it has no known role."""

    @abstractmethod
    def write(self, message: Message) -> Any:
        """Return a message with the blocks it has now."""

    @abstractmethod
    def result(self, call: Block, answer: Answer) -> Any:
        """Return a result block or message for a call; None if the API has no fitting one."""

    @abstractmethod
    def arguments(self, call: Block) -> Any:
        """Return the arguments of a call. Raises ValueError if they cannot be decoded."""

    def digest(self, *calls: Block) -> str:
        """Return a hash of calls, the same for every form of writing their arguments."""
        contents = [[call.id, call.name, self._arguments(call)] for call in calls]
        text = json.dumps(json_value(contents, str), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _arguments(self, call: Block) -> Any:
        mended = call if call.mended is None else replace(call, source=call.mended)
        try:
            return self.arguments(mended)
        except ValueError:
            return plain(call.source)

    @abstractmethod
    def is_cut_off(self, reply: Any) -> bool:
        """Whether a reply of the API, as plain data, may end before its last block is complete."""

    def reply(self, source: Any) -> list[Any]:
        """Return the messages of a reply of the API, or a message or several, as plain data."""
        messages = plain(source)
        return messages if isinstance(messages, list) else [messages]

    def text(self, block: Block) -> str:
        """Return the text of a block that is neither a call nor a result."""
        return str(get(block.source, "text") or "")

    def valid_id(self, call_id: str | None) -> bool:
        """Whether the API accepts an id."""
        return bool(call_id)

    def with_id(self, block: Block, call_id: str) -> Any:
        """Return the source of a call or a result with another id."""
        field = self.id_fields[0 if block.kind == "call" else 1]
        return rewritten(block.source, **{field: call_id})

    def note(self, text: str) -> Any:
        """Return a user message."""
        return {"role": "user", "content": text}

    def calls_elsewhere(self, draft: Draft) -> bool:
        """Whether results may answer calls that are not in the list."""
        return False

    def before_pairing(self, draft: Draft) -> None:  # noqa: B027
        """Repair what must be right before results can be placed."""

    def after_pairing(self, draft: Draft) -> None:
        """Repair the rest; messages may have become empty."""
        draft.drop_empty()


def known_role(role: Any, roles: dict[str, Role], index: int) -> Role:
    """Return the role of a message in our terms.

    Raises:
        InvalidInputError: the API has no such role.
    """
    if not isinstance(role, str) or role not in roles:
        raise InvalidInputError(
            f"Message {index} is not a message of this provider: its role is {short_repr(role)}. "
            "Check provider=."
        )
    return roles[role]


def listed(value: Any, path: str) -> Sequence[Any]:
    """Return a list in a message; None is an empty one.

    Raises:
        InvalidInputError: the value is something else.
    """
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return value
    if value is None:
        return ()
    raise InvalidInputError(f"{path} must be a list, not {short_repr(value)}. Correct the message.")


def arguments_end(text: Any) -> bool:
    """Whether arguments in JSON are whole; a stream that stops leaves them open.

    No arguments at all are whole: that is how some models call a tool that takes none.
    """
    if not isinstance(text, str) or not text.strip():
        return True
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def decoded_arguments(text: Any) -> Any:
    """Return arguments from JSON text; no text means no arguments.

    Raises:
        ValueError: the text is not JSON.
    """
    if isinstance(text, str):
        return json.loads(text) if text.strip() else {}
    return {} if text is None else plain(text)
