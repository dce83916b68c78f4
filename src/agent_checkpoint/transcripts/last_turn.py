"""The model's last turn in a conversation: its tool calls, and the messages of their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.transcripts.dialect import Answer, Dialect
from agent_checkpoint.transcripts.draft import Block, Message
from agent_checkpoint.transcripts.fields import plain


class LastTurn:
    """The messages of the model at the end of a conversation, and the results after them."""

    def __init__(
        self,
        messages: Sequence[Any],
        dialect: Dialect,
        redact: Callable[[Any], Any] | None = None,
    ) -> None:
        """Read the end of a conversation.

        Args:
            messages: the conversation.
            dialect: the API.
            redact: returns plain data as it is saved; digests are of that.

        Raises:
            InvalidInputError: a message is not one of this provider.
        """
        self._dialect = dialect
        self._redact = redact
        self.messages: list[Message] = []
        self.results: list[Block] = []
        for index in reversed(range(len(messages))):
            message = dialect.read(messages[index], index)
            results = [block for block in message.blocks if block.kind == "result"]
            if results and not self.messages:
                self.results[:0] = results
            elif message.role in ("model", "call"):
                self.messages.insert(0, message)
            else:
                break

    @property
    def calls(self) -> list[Block]:
        """The tool calls of the turn."""
        return [block for one in self.messages for block in one.blocks if block.kind == "call"]

    @property
    def open_calls(self) -> list[Block]:
        """The tool calls without results."""
        results, open_calls = list(self.results), []
        for call in self.calls:
            result = next((one for one in results if one.answers(call)), None)
            if result is None:
                open_calls.append(call)
            else:
                results.remove(result)
        return open_calls

    def digest(self, *calls: Block) -> str:
        """Return a hash of calls, the same for every form of writing their arguments."""
        if self._redact is not None:
            calls = tuple(
                replace(
                    call,
                    source=self._redact(plain(call.source)),
                    mended=self._redact(plain(call.mended)),
                )
                for call in calls
            )
        return self._dialect.digest(*calls)

    def is_redacted(self, call: Block) -> bool:
        """Return whether a save would change a call."""
        source = plain(call.source)
        return self._redact is not None and self._redact(source) != source

    def calls_in(self, source: Any) -> list[Block]:
        """Return the tool calls in another message. Raises InvalidInputError."""
        return [block for block in self._dialect.read(source, 0).blocks if block.kind == "call"]

    def mark_cut_off(self) -> None:
        """Mark a call that the turn ends with as incomplete."""
        blocks = self.messages[-1].blocks if self.messages else []
        if blocks and blocks[-1].kind == "call":
            blocks[-1].complete = False

    def ends_with(self, sources: Sequence[Any]) -> bool:
        """Return whether the turn ends with these messages: the same calls and texts.

        Messages are compared by content, because the same reply can be written in several ways.

        Raises:
            InvalidInputError: a message is not one of this provider.
        """
        given = [self._dialect.read(source, index) for index, source in enumerate(sources)]
        own = self.messages[-len(given) :] if given else []
        return list(map(self._content, own)) == list(map(self._content, given))

    def result_messages(self, answers: Iterable[tuple[Block, Answer]]) -> list[Any]:
        """Return the messages to append with the results of calls, in the form of the provider.

        Raises:
            InvalidInputError: the provider has no fitting result for a call.
        """
        sources = []
        for call, answer in answers:
            source = self._dialect.result(call, answer)
            if source is None:
                raise InvalidInputError(
                    f"The call {call.label} needs a result of its own kind, such as a screenshot. "
                    "Append it to session.messages yourself."
                )
            sources.append(source)
        if self._dialect.own_messages or not sources:
            return sources
        if self.results:
            raise InvalidInputError(
                "Some results of this turn are already in the conversation, and this API wants all "
                "of them in one message. Complete it with transcripts.repair(…, session=session)."
            )
        blocks = [Block(source, (0, 0), "") for source in sources]
        return [self._dialect.write(Message(None, 0, "", self._dialect.answers, blocks))]

    def _content(self, message: Message) -> list[Any]:
        text, calls = "", []
        for block in message.blocks:
            if block.kind == "call":
                calls.append((block.id, block.name, self._arguments(block)))
            elif block.kind != "thinking":
                text += self._dialect.text(block)
        return [text, *calls]

    def _arguments(self, call: Block) -> Any:
        try:
            return self._dialect.arguments(call)
        except ValueError:
            return None
