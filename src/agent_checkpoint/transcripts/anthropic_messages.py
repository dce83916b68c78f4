"""Anthropic Messages: content blocks, results first in the next user turn, signed thinking."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agent_checkpoint.transcripts.dialect import (
    BEGINNING_MISSING,
    NOT_OF_USER,
    Answer,
    Dialect,
    decoded_arguments,
    known_role,
    listed,
)
from agent_checkpoint.transcripts.draft import Block, Draft, Fault, Message, Role
from agent_checkpoint.transcripts.fields import fields, get, rewritten

_ROLES: dict[str, Role] = {"user": "user", "assistant": "model", "system": "system"}
_CUT_OFF = (None, "max_tokens", "model_context_window_exceeded")
_EMPTY_TEXT = Fault("empty-text", "the text is empty")


class AnthropicMessages(Dialect):
    """The dialect of the Messages API."""

    joined = frozenset({"model", "user"})
    answers = "user"
    results_first = True
    id_fields = ("id", "tool_use_id")
    result_blocks = frozenset({"text", "image", "document", "search_result", "tool_reference"})

    def read(self, source: Any, index: int) -> Message:
        """Read a message. Raises InvalidInputError if it has no known role."""
        role = known_role(get(source, "role"), _ROLES, index)
        content = get(source, "content")
        path = f"messages.{index}"
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        blocks = [
            self._read_block(block, role, (index, number), f"{path}.content.{number}")
            for number, block in enumerate(listed(content, f"{path}.content"))
        ]
        return Message(source, index, path, role, blocks)

    def _read_block(self, source: Any, role: Role, at: tuple[int, int], path: str) -> Block:
        block = Block(source, at, path)
        type_ = get(source, "type")
        if type_ == "text":
            if not (get(source, "text") or "").strip():
                block.fault = _EMPTY_TEXT
        elif type_ in ("tool_use", "thinking", "redacted_thinking") and role != "model":
            block.fault = NOT_OF_USER
        elif type_ == "tool_use":
            block.kind, block.id, block.name = "call", get(source, "id"), get(source, "name")
            self._read_input(block)
        elif type_ == "tool_result":
            block.kind, block.id = "result", get(source, "tool_use_id")
            self._read_result(block)
        elif type_ in ("server_tool_use", "mcp_tool_use"):
            block.kind, block.id, block.name = "server call", get(source, "id"), get(source, "name")
            self._read_input(block)
        elif isinstance(type_, str) and type_.endswith("_tool_result"):
            block.kind, block.id = "server result", get(source, "tool_use_id")
        elif type_ in ("thinking", "redacted_thinking"):
            block.kind = "thinking"
            proof = "signature" if type_ == "thinking" else "data"
            if not get(source, proof):
                block.fault = Fault("unsigned-thinking", f"the {type_} block has no {proof}")
        return block

    @staticmethod
    def _read_input(block: Block) -> None:
        """The input is an object. A stream that was collected by hand may leave JSON text."""
        given = get(block.source, "input")
        if isinstance(given, Mapping):
            return
        try:
            value = json.loads(given) if given else {}
        except (TypeError, ValueError):
            value = None
        if isinstance(value, dict):
            block.fault = Fault("invalid-input", "the input of a call must be an object")
            block.mended = rewritten(block.source, input=value)
        else:
            block.complete = False
            block.mended = rewritten(block.source, input={"input": given})

    @staticmethod
    def _read_result(block: Block) -> None:
        content = get(block.source, "content")
        if content is None or isinstance(content, str):
            return
        full = [
            one for one in content if get(one, "type") != "text" or (get(one, "text") or "").strip()
        ]
        if len(full) < len(content):
            block.fault = _EMPTY_TEXT
            block.mended = rewritten(block.source, content=full)

    def write(self, message: Message) -> Any:
        """Return a message with the blocks it has now."""
        content = [block.source for block in message.blocks]
        if message.source is None:
            return {"role": "user", "content": content}
        return rewritten(message.source, content=content)

    def result(self, call: Block, answer: Answer) -> Any:
        """Return a tool_result block."""
        content = answer.content(self.result_blocks)
        block = {"type": "tool_result", "tool_use_id": call.id, "content": content}
        toolset = get(call.source, "toolset_name")
        return {
            **block,
            **({"toolset_name": toolset} if toolset else {}),
            **({"is_error": True} if answer.error else {}),
        }

    def arguments(self, call: Block) -> Any:
        """Return the input of a call. Raises ValueError if it is text that is not JSON."""
        return decoded_arguments(get(call.source, "input"))

    def is_cut_off(self, reply: Any) -> bool:
        """Whether a message ended at a limit, or is a snapshot of a stream: without a reason."""
        return fields(reply).get("stop_reason", "") in _CUT_OFF

    def reply(self, source: Any) -> list[Any]:
        """Return the message of a reply, without the fields that are not sent back."""
        messages = super().reply(source)
        return [
            {"role": one["role"], "content": one["content"]}
            if get(one, "type") == "message"
            else one
            for one in messages
        ]

    def valid_id(self, call_id: str | None) -> bool:
        """Whether the API accepts an id."""
        return isinstance(call_id, str) and bool(re.fullmatch(r"[a-zA-Z0-9_-]+", call_id))

    def before_pairing(self, draft: Draft) -> None:
        """Drop calls of server tools without a result, and such results without a call."""
        open_calls: dict[str | None, Block] = {}
        for block in list(draft.blocks()):
            if block.kind == "server call":
                open_calls[block.id] = block
            elif block.kind == "server result" and open_calls.pop(block.id, None) is None:
                text = f"the server tool call {block.label} of this result is missing"
                draft.problem(block, "result-without-call", text)
                draft.drop(block, f"dropped a result: {text}")
        models = [turn for turn in draft.turns(self.joined) if turn[0].role == "model"]
        tail = draft.messages[draft.messages.index(models[-1][-1]) + 1 :] if models else []
        # The API goes on with a paused last turn, also when the results of our tools were added.
        paused = all(block.kind == "result" for one in tail for block in one.blocks)
        for block in open_calls.values():
            if not (paused and block.complete and block.message in models[-1]):
                text = f"the server tool call {block.label} has no result"
                draft.problem(block, "call-without-result", text)
                draft.drop(block, f"dropped a call: {text}")

    def after_pairing(self, draft: Draft) -> None:
        """Drop empty messages, thinking in places that the API refuses, and stale signatures."""
        draft.drop_empty(keep_last=True)
        self._drop_lone_thinking(draft)
        draft.drop_empty(keep_last=True)
        note = self.note(BEGINNING_MISSING)
        draft.begin_with_user(
            Message(note, 0, "messages.0", "user", [Block(note, (0, 0), "messages.0")])
        )
        # A signature covers everything before it.
        for block in [b for b in draft.blocks() if b.kind == "thinking"]:
            if block.at > draft.first_change:
                draft.drop(block, "dropped thinking: its signature covers messages that changed")
        draft.drop_empty(keep_last=True)

    def _drop_lone_thinking(self, draft: Draft) -> None:
        """Drop thinking that nothing follows: in the last turn, or in a turn of thinking only."""
        turns = [turn for turn in draft.turns(self.joined) if turn[0].role == "model"]
        for turn in turns:
            blocks = [block for message in turn for block in message.blocks]
            rest = [block for block in blocks if block.kind != "thinking"]
            if rest and turn[-1] is not draft.messages[-1]:
                continue
            while blocks and blocks[-1].kind == "thinking":
                block = blocks.pop()
                draft.problem(block, "lone-thinking", "nothing follows this thinking block")
                draft.drop(block, "dropped thinking: nothing follows it in its turn")
