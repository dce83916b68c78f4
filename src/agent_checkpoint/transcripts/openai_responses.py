"""OpenAI Responses: a flat list of items; each call has its output, reasoning goes with an item."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.records import short_repr
from agent_checkpoint.transcripts.dialect import (
    Answer,
    Dialect,
    arguments_end,
    decoded_arguments,
)
from agent_checkpoint.transcripts.draft import Block, Draft, Fault, Message, Role
from agent_checkpoint.transcripts.fields import get, plain, rewritten

# The calls that the client answers, and the types of their outputs. All other calls are made by
# the server, and their items hold the results.
_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
}

# The field with the arguments, where they are not JSON text in `arguments`.
_ARGUMENTS = {
    "custom_tool_call": "input",
    "computer_call": "action",
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}

_SUCCESS = {"type": "exit", "exit_code": 0}


class OpenAIResponses(Dialect):
    """The dialect of the Responses API."""

    joined = frozenset({"call", "tool"})
    own_messages = True
    results_first = True
    anywhere = True
    id_fields = ("call_id", "call_id")
    result_blocks = frozenset({"input_text", "input_image", "input_file"})

    def read(self, source: Any, index: int) -> Message:
        """Read an item. Raises InvalidInputError if it has neither a type nor a role."""
        path = f"input.{index}"
        type_ = get(source, "type") or ("message" if get(source, "role") else None)
        if not isinstance(type_, str) and get(source, "id") is None:
            raise InvalidInputError(
                f"Item {index} has no type and no role: {short_repr(source)}. Check provider=."
            )
        # The server runs its own tool searches.
        ours = type_ not in ("tool_search_call", "tool_search_output") or (
            get(source, "execution") == "client"
        )
        block = Block(source, (index, 0), path, name=get(source, "name"))
        if ours and type_ in _OUTPUTS:
            block.kind, block.id = "call", get(source, "call_id")
            block.name = block.name or type_.removesuffix("_call")
            if type_ == "function_call":
                is_whole = get(source, "status") not in ("in_progress", "incomplete")
                block.complete = is_whole and arguments_end(get(source, "arguments"))
            return Message(source, index, path, "call", [block])
        if ours and type_ in _OUTPUTS.values():
            # A local shell output names its call in `id`.
            own = "id" if type_ == "local_shell_call_output" else "call_id"
            block.kind, block.id, block.name = "result", get(source, own, "call_id"), None
            if type_ == "function_call_output" and get(source, "output") is None:
                block.fault = Fault("empty-content", "the result has no output")
                block.mended = rewritten(source, output="")
            return Message(source, index, path, "tool", [block])
        if type_ == "reasoning":
            block.kind = "thinking"
        elif type_ == "message":
            content = get(source, "content")
            blocks = [block] if content or content == "" else []
            role: Role = "model" if get(source, "role") == "assistant" else "user"
            return Message(source, index, path, role, blocks)
        elif type_ == "mcp_approval_response":
            return Message(source, index, path, "user", [block])
        return Message(source, index, path, "model", [block])

    def write(self, message: Message) -> Any:
        """Return the item."""
        return message.blocks[0].source

    def with_id(self, block: Block, call_id: str) -> Any:
        """Return the item with another id of the call."""
        if get(block.source, "type") == "local_shell_call_output":
            return rewritten(block.source, id=call_id)
        return super().with_id(block, call_id)

    def result(self, call: Block, answer: Answer) -> Any:
        """Return an output item; None for a computer call without a recorded screenshot."""
        type_ = get(call.source, "type")
        item: dict[str, Any] = {"type": _OUTPUTS[type_], "call_id": call.id, "output": answer.text}
        if type_ in ("function_call", "custom_tool_call"):
            item["output"] = answer.content(self.result_blocks)
        if type_ == "computer_call":
            if get(answer.value, "type") != "computer_screenshot":
                return None
            item["output"] = answer.value
        elif type_ == "local_shell_call":
            item["id"] = item.pop("call_id")
        elif type_ == "shell_call":
            # No exit code is known of a call that was interrupted.
            item["output"] = [
                {"stdout": "", "stderr": answer.text, "outcome": {"type": "timeout"}}
                if answer.error
                else {"stdout": answer.text, "stderr": "", "outcome": _SUCCESS}
            ]
        elif type_ == "apply_patch_call":
            item["status"] = "failed" if answer.error else "completed"
        elif type_ == "tool_search_call":
            del item["output"]
            item.update(
                execution="client", tools=answer.value if isinstance(answer.value, list) else []
            )
        caller = get(call.source, "caller")
        return item if caller is None else {**item, "caller": caller}

    def arguments(self, call: Block) -> Any:
        """Return the arguments of a call; those of other calls than functions by their field.

        Raises:
            ValueError: they are not JSON.
        """
        field = _ARGUMENTS.get(get(call.source, "type"))
        if field is not None:
            return {field: plain(get(call.source, field))}
        return decoded_arguments(get(call.source, "arguments"))

    def is_cut_off(self, reply: Any) -> bool:
        """Whether a response has another status than completed."""
        is_response = get(reply, "object") == "response"
        return is_response and get(reply, "status") not in (None, "completed")

    def reply(self, source: Any) -> list[Any]:
        """Return the output items of a response, or items."""
        output = get(source, "output") if get(source, "object") == "response" else None
        return [_as_sent(item) for item in super().reply(source if output is None else output)]

    def text(self, block: Block) -> str:
        """Return the text of an item."""
        content = get(block.source, "content")
        if isinstance(content, str) or content is None:
            return content or ""
        return "".join(str(get(part, "text", "refusal") or "") for part in content)

    def calls_elsewhere(self, draft: Draft) -> bool:
        """Whether a reference may stand for the call of a result."""
        return any(get(one.source, "type") == "item_reference" for one in draft.messages)

    def after_pairing(self, draft: Draft) -> None:
        """Drop empty messages, and reasoning that no item of the model follows."""
        draft.drop_empty()
        followed = False
        for message in reversed(draft.messages):
            block = message.blocks[0]
            if block.kind == "thinking" and not followed:
                text = "no item of the model follows this reasoning item"
                draft.problem(block, "stranded-reasoning", text)
                draft.drop(block, f"dropped reasoning: {text}")
            else:
                followed = message.role in ("model", "call")
        draft.drop_empty()


def _as_sent(item: Any) -> Any:
    """Return an item without what the client's helpers for streams and parsing add to it."""
    if not isinstance(item, dict):
        return item
    sent = {name: value for name, value in item.items() if name != "parsed_arguments"}
    if isinstance(sent.get("content"), list):
        sent["content"] = [
            {name: value for name, value in part.items() if name != "parsed"}
            if isinstance(part, dict)
            else part
            for part in sent["content"]
        ]
    return sent
