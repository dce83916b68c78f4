"""OpenAI Chat Completions: calls in assistant messages, each answered by a tool message."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.transcripts.dialect import (
    Answer,
    Dialect,
    arguments_end,
    decoded_arguments,
    known_role,
    listed,
)
from agent_checkpoint.transcripts.draft import Block, Draft, Fault, Message, Role
from agent_checkpoint.transcripts.fields import fields, get, rewritten

_ROLES: dict[str, Role] = {
    "assistant": "model",
    "tool": "tool",
    "user": "user",
    "system": "system",
    "developer": "system",
    "function": "system",  # answers `function_call`, which has no ids
}
_CUT_OFF = (None, "length", "content_filter")
# What an assistant message may have instead of content.
_CONTENT = ("refusal", "audio", "function_call")


class OpenAIChat(Dialect):
    """The dialect of the Chat Completions API."""

    joined = frozenset({"tool"})
    own_messages = True
    results_first = True
    id_fields = ("id", "tool_call_id")
    result_blocks = frozenset({"text"})

    def read(self, source: Any, index: int) -> Message:
        """Read a message. Raises InvalidInputError if it has no known role."""
        role = known_role(get(source, "role"), _ROLES, index)
        path = f"messages.{index}"
        content = get(source, "content")
        blocks = []
        if role == "tool":
            block = Block(source, (index, 0), path, "result", get(source, "tool_call_id"))
            if content is None:
                block.fault = Fault("empty-content", "the result has no content")
                block.mended = rewritten(source, content="")
            blocks = [block]
        elif (
            content or content == "" or get(source, *_CONTENT) or get(source, "role") == "function"
        ):
            blocks = [Block(source, (index, 0), path)]
        if role == "model":
            for number, call in enumerate(listed(get(source, "tool_calls"), f"{path}.tool_calls")):
                blocks.append(
                    self._read_call(call, (index, number + 1), f"{path}.tool_calls.{number}")
                )
        return Message(source, index, path, role, blocks)

    @staticmethod
    def _read_call(source: Any, at: tuple[int, int], path: str) -> Block:
        function = get(source, "function")
        return Block(
            source,
            at,
            path,
            "call",
            get(source, "id"),
            get(function or get(source, "custom"), "name"),
            arguments_end(get(function, "arguments")),
        )

    def write(self, message: Message) -> Any:
        """Return a message with the calls it has now."""
        if message.role == "tool":
            return message.blocks[0].source
        calls = [block.source for block in message.blocks if block.kind == "call"]
        if calls:
            return rewritten(message.source, tool_calls=calls)
        return rewritten(message.source, "tool_calls")

    def result(self, call: Block, answer: Answer) -> Any:
        """Return a tool message."""
        content = answer.content(self.result_blocks)
        return {"role": "tool", "tool_call_id": call.id, "content": content}

    def arguments(self, call: Block) -> Any:
        """Return the arguments of a call. Raises ValueError if they are not JSON."""
        custom = get(call.source, "custom")
        if custom is not None:
            return {"input": get(custom, "input")}
        return decoded_arguments(get(get(call.source, "function"), "arguments"))

    def is_cut_off(self, reply: Any) -> bool:
        """Whether a completion ended at a limit, or is a snapshot of a stream: without a reason."""
        choices = get(reply, "choices") or [{}]
        return fields(choices[0]).get("finish_reason", "") in _CUT_OFF

    def reply(self, source: Any) -> list[Any]:
        """Return the message of a completion, or messages."""
        messages = super().reply(source)
        return [
            _as_sent(choice["message"])
            for one in messages
            for choice in (get(one, "choices") or [{"message": one}])[:1]
        ]

    def text(self, block: Block) -> str:
        """Return the content of a message."""
        content = get(block.source, "content", "refusal")
        if isinstance(content, str) or content is None:
            return content or ""
        return "".join(str(get(part, "text", "refusal") or "") for part in content)

    def before_pairing(self, draft: Draft) -> None:
        """Remove empty lists of calls, which the API refuses."""
        for message in draft.messages:
            calls = fields(message.source).get("tool_calls")
            if message.role == "model" and calls is not None and not calls:
                text = "the list of tool calls is empty"
                draft.problem(message, "empty-tool-calls", text)
                at = (message.index, 0)
                draft.change("changed", at, message.path, f"removed tool_calls: {text}", calls)
                message.changed = True


def _as_sent(message: Any) -> Any:
    """Return a message without what the client's helpers for streams and parsing add to it."""
    if get(message, "role") != "assistant":
        return message
    empty = [name for name in ("audio", "function_call") if get(message, name) is None]
    sent = {name: value for name, value in message.items() if name not in ("parsed", *empty)}
    if isinstance(sent.get("tool_calls"), list):
        sent["tool_calls"] = [
            _call_as_sent(call) if isinstance(call, dict) else call for call in sent["tool_calls"]
        ]
    return sent


def _call_as_sent(call: dict[str, Any]) -> dict[str, Any]:
    sent = {name: value for name, value in call.items() if name != "index"}
    if isinstance(sent.get("function"), dict):
        sent["function"] = {
            name: value for name, value in sent["function"].items() if name != "parsed_arguments"
        }
    return sent
