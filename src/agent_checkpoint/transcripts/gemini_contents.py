"""Gemini contents: parts, as many function responses in the next turn as there were calls."""

from __future__ import annotations

from typing import Any

from agent_checkpoint.transcripts.dialect import (
    BEGINNING_MISSING,
    NOT_OF_USER,
    PART_REMOVED,
    Answer,
    Dialect,
    decoded_arguments,
    known_role,
    listed,
)
from agent_checkpoint.transcripts.draft import Block, Draft, Fault, Message, Role
from agent_checkpoint.transcripts.fields import fields, get, rewritten

_ROLES: dict[str, Role] = {"user": "user", "function": "user", "tool": "user", "model": "model"}
# What says something about the content of a part, but is none.
_ABOUT = {"thought", "video_metadata", "videoMetadata", "media_resolution", "mediaResolution"}
_ABOUT |= {"part_metadata", "partMetadata"}


class GeminiContents(Dialect):
    """The dialect of generateContent; keys in camelCase or snake_case."""

    answers = "user"
    unique_ids = False

    def read(self, source: Any, index: int) -> Message:
        """Read a content. Raises InvalidInputError if it has no known role."""
        path = f"contents.{index}"
        role = known_role(get(source, "role") or "user", _ROLES, index)
        if isinstance(source, str) or not (hasattr(source, "parts") or "parts" in fields(source)):
            return Message(source, index, path, role, [Block(source, (index, 0), path)])
        blocks = [
            self._read_part(part, role, (index, number), f"{path}.parts.{number}")
            for number, part in enumerate(listed(get(source, "parts"), f"{path}.parts"))
        ]
        return Message(source, index, path, role, blocks)

    @staticmethod
    def _read_part(source: Any, role: Role, at: tuple[int, int], path: str) -> Block:
        block = Block(source, at, path)
        call = get(source, "function_call", "functionCall")
        response = get(source, "function_response", "functionResponse")
        if call is not None:
            block.kind, block.id, block.name = "call", get(call, "id"), get(call, "name")
            block.fault = None if role == "model" else NOT_OF_USER
            # A part with a signature is never dropped.
            signed = get(source, "thought_signature", "thoughtSignature")
            block.complete = not get(call, "will_continue", "willContinue") or bool(signed)
        elif response is not None:
            block.kind, block.id = "result", get(response, "id")
            block.name = get(response, "name")
        elif not isinstance(source, str):
            content = {name: value for name, value in fields(source).items() if name not in _ABOUT}
            if all(value is None or value == "" for value in content.values()):
                block.fault = Fault("empty-text", "the part is empty")
        return block

    def write(self, message: Message) -> Any:
        """Return a content with the parts it has now."""
        parts = [block.source for block in message.blocks]
        if message.source is None:
            return {"role": "user", "parts": parts}
        if isinstance(message.source, str):
            parts = [{"text": part} if isinstance(part, str) else part for part in parts]
            return {"role": "user", "parts": parts}
        return rewritten(message.source, parts=parts)

    def result(self, call: Block, answer: Answer) -> Any:
        """Return a part with a function response."""
        key = "error" if answer.error else "output"
        value = answer.json
        response: dict[str, Any] = (
            {"name": call.name} if call.id is None else {"id": call.id, "name": call.name}
        )
        response["response"] = value if isinstance(value, dict) else {key: value}
        if answer.note:
            response["response"] = {"note": answer.note, key: value}
        return {"function_response": response}

    def arguments(self, call: Block) -> Any:
        """Return the arguments of a function call."""
        return decoded_arguments(get(get(call.source, "function_call", "functionCall"), "args"))

    def is_cut_off(self, reply: Any) -> bool:
        """Whether a response ended at a limit."""
        candidates = get(reply, "candidates") or [None]
        return str(get(candidates[0], "finish_reason", "finishReason")) == "MAX_TOKENS"

    def reply(self, source: Any) -> list[Any]:
        """Return the content of a response, or contents."""
        messages = super().reply(source)
        return [
            candidate["content"]
            for one in messages
            for candidate in (get(one, "candidates") or [{"content": one}])[:1]
        ]

    def note(self, text: str) -> Any:
        """Return a user content."""
        return {"role": "user", "parts": [{"text": text}]}

    def before_pairing(self, draft: Draft) -> None:
        """Join neighbouring turns of the model if calls follow: a call follows a user turn."""
        for turn in draft.turns(frozenset({"model"})):
            first, *rest = turn
            if not any(block.kind == "call" for one in rest for block in one.blocks):
                continue
            text = "a turn with function calls must follow a turn of the user"
            draft.problem(first, "consecutive-model-turns", text)
            for one in rest:
                text = f"joined with the turn before, {first.path}"
                draft.change("moved", (first.index, 0), one.path, text, one.source)
                for block in list(one.blocks):
                    one.remove(block)
                    first.insert(len(first.blocks), block)
                draft.messages.remove(one)

    def after_pairing(self, draft: Draft) -> None:
        """Drop empty contents; put a user turn where one is missing now."""
        draft.drop_empty()
        draft.begin_with_user(self._user_turn(BEGINNING_MISSING, 0))
        for before, one in list(zip(draft.messages, draft.messages[1:])):
            # The user turn between them was dropped.
            if before.role == one.role == "model" and any(b.kind == "call" for b in one.blocks):
                new = self._user_turn(PART_REMOVED, one.index)
                text = "inserted a user turn in place of dropped ones"
                draft.change("inserted", (one.index, -1), one.path, text, new.source)
                draft.insert_after(before, new)

    def _user_turn(self, text: str, index: int) -> Message:
        source = self.note(text)
        path = f"contents.{index}"
        return Message(source, index, path, "user", [Block(source, (index, -1), path)])
