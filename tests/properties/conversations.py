"""Valid conversations of four model APIs, ways to break them, and the rules of the servers.

The rules are written a second time here, as a server would check them, so that they can disagree
with `transcripts.check`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any, Optional

from anthropic.types import ContentBlock, MessageParam
from google.genai import types as genai
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam
from openai.types.responses import ResponseInputItemParam, ResponseOutputItem
from pydantic import BaseModel, TypeAdapter, ValidationError

WORDS = ("read", "write", "search", "deploy")


def plain(value: Any) -> Any:
    """A message as JSON, whatever it is made of."""
    if isinstance(value, BaseModel):
        return plain(value.model_dump(exclude_unset=True))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


@cache
def adapter(kind: Any) -> TypeAdapter:
    """Building one takes up to a second."""
    return TypeAdapter(kind)


class Api:
    """What the tests need to know of an API."""

    provider: str
    # The field of a message that lists its blocks.
    field = ""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.count = 0

    def new_id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count}"

    def conversation(self) -> list[Any]:
        """A valid conversation."""
        messages = self.opening()
        for _ in range(self.rng.randint(1, 3)):
            messages.append(self.user(f"question {self.count}"))
            for _ in range(self.rng.randint(0, 3)):
                messages += self.step(self.rng.randint(1, 3))
            messages += self.reply()
        if self.rng.random() < 0.3:
            messages.append(self.user("and now?"))
        return messages

    def opening(self) -> list[Any]:
        return []

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def step(self, calls: int) -> list[Any]:
        raise NotImplementedError

    def reply(self) -> list[Any]:
        raise NotImplementedError

    def complaints(self, messages: list[Any]) -> Iterator[str]:
        raise NotImplementedError

    def validate(self, messages: list[Any]) -> None:
        """Let the client library validate the messages."""
        raise NotImplementedError

    def as_object(self, message: Any) -> Any:
        """The message as the client library would have returned it."""
        raise NotImplementedError

    # -- breaking --------------------------------------------------------------------------------

    def broken(self, messages: list[Any]) -> list[Any]:
        """The same conversation, broken once or more."""
        messages = json.loads(json.dumps(messages))
        for _ in range(self.rng.randint(1, 3)):
            if messages:
                self.rng.choice(
                    [
                        self.cut_tail,
                        self.cut_head,
                        self.go_on,
                        self.edit_messages,
                        self.edit_blocks,
                        self.edit_blocks,
                        self.stop_stream,
                    ]
                )(messages)
        return [self.maybe_object(message) for message in messages]

    def maybe_object(self, message: Any) -> Any:
        if self.rng.random() < 0.5:
            return message
        try:
            return self.as_object(message)
        except ValidationError:
            return message

    def cut_tail(self, messages: list[Any]) -> None:
        del messages[self.rng.randint(1, len(messages)) :]

    def cut_head(self, messages: list[Any]) -> None:
        del messages[: self.rng.randint(0, min(3, len(messages) - 1))]

    def go_on(self, messages: list[Any]) -> None:
        messages.insert(self.rng.randint(1, len(messages)), self.user("go on"))

    def edit_messages(self, messages: list[Any]) -> None:
        self.edit(messages, messages)

    def edit_blocks(self, messages: list[Any]) -> None:
        lists = [m[self.field] for m in messages if isinstance(m.get(self.field), list)]
        if lists:
            self.edit(self.rng.choice(lists), self.rng.choice(lists))

    def edit(self, source: list[Any], target: list[Any]) -> None:
        """Remove, move or double an item."""
        if source:
            index = self.rng.randrange(len(source))
            item = json.loads(json.dumps(source[index]))
            if self.rng.random() < 0.7:
                del source[index]
            if self.rng.random() < 0.6:
                target.insert(self.rng.randint(0, len(target)), item)

    def stop_stream(self, messages: list[Any]) -> None:
        """End the conversation in the middle of a reply."""
        raise NotImplementedError


class Anthropic(Api):
    provider = "anthropic"
    field = "content"

    def thinking(self) -> list[Any]:
        if self.rng.random() < 0.5:
            return []
        if self.rng.random() < 0.3:
            return [{"type": "redacted_thinking", "data": self.new_id("data")}]
        return [{"type": "thinking", "thinking": "hm", "signature": self.new_id("sig")}]

    def text(self) -> dict[str, Any]:
        return {"type": "text", "text": f"text {self.count}"}

    def step(self, calls: int) -> list[Any]:
        ids = [self.new_id("toolu") for _ in range(calls)]
        content = self.thinking()
        if self.rng.random() < 0.5:
            content.append(self.text())
        for call in ids:
            name = self.rng.choice(WORDS)
            content.append({"type": "tool_use", "id": call, "name": name, "input": {"n": 1}})
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": call, "content": f"result of {call}"}
            for call in self.rng.sample(ids, len(ids))
        ]
        if self.rng.random() < 0.2:
            results.append(self.text())
        answers = [{"role": "user", "content": results}]
        if self.rng.random() < 0.2:  # the API joins them
            answers = [{"role": "user", "content": [block]} for block in results]
        return [{"role": "assistant", "content": content}, *answers]

    def reply(self) -> list[Any]:
        return [{"role": "assistant", "content": [*self.thinking(), self.text()]}]

    def stop_stream(self, messages: list[Any]) -> None:
        tails = [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "thinking", "thinking": "hm", "signature": "whole"},
            {"type": "text", "text": ""},
            {"type": "text", "text": "half a sen"},
            {
                "type": "tool_use",
                "id": self.new_id("toolu"),
                "name": "read",
                "input": '{"path": "a',
            },
            {"type": "tool_use", "id": self.new_id("toolu"), "name": "read", "input": {}},
        ]
        content = self.rng.sample(tails, self.rng.randint(0, 3))
        messages.append({"role": "assistant", "content": content})

    def complaints(self, messages: list[Any]) -> Iterator[str]:
        turns: list[tuple[str, list[Any]]] = []
        for number, message in enumerate(plain(messages)):
            content = message["content"]
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            last = number == len(messages) - 1
            if not blocks and not (last and message["role"] == "assistant"):
                yield "messages must have non-empty content"
            if turns and turns[-1][0] == message["role"]:
                turns[-1][1].extend(blocks)
            else:
                turns.append((message["role"], list(blocks)))
        if turns and turns[0][0] != "user":
            yield "first message must use the user role"
        seen: set[str] = set()
        called: list[str] = []
        for number, (role, blocks) in enumerate(turns):
            kinds = [block["type"] for block in blocks]
            thinks = [kind in ("thinking", "redacted_thinking") for kind in kinds]
            if thinks and (all(thinks) or (thinks[-1] and number == len(turns) - 1)):
                yield "the final block cannot be thinking"
            for block in blocks:
                if block["type"] == "text" and not block["text"].strip():
                    yield "text content blocks must be non-empty"
                if block["type"] == "thinking" and not block["signature"]:
                    yield "signature: field required"
                if role == "user" and block["type"] in (
                    "tool_use",
                    "thinking",
                    "redacted_thinking",
                ):
                    yield "only in assistant messages"
                if block["type"] == "redacted_thinking" and not block["data"]:
                    yield "data: field required"
            if called:
                results = []
                for block in blocks if role == "user" else []:
                    if block["type"] != "tool_result":
                        break
                    results.append(block["tool_use_id"])
                if set(called) - set(results):
                    yield "tool_use ids were found without tool_result blocks immediately after"
            given = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
            if len(set(given)) < len(given):
                yield "each tool_use must have a single result"
            if set(given) - set(called):
                yield "unexpected tool_use_id found in tool_result blocks"
            called = []
            for block in blocks:
                if block["type"] == "tool_use" and role == "assistant":
                    if block["id"] in seen:
                        yield "tool_use ids must be unique"
                    if not re.fullmatch("[a-zA-Z0-9_-]+", block["id"]):
                        yield "tool_use.id: string should match pattern"
                    if not isinstance(block["input"], dict):
                        yield "tool_use.input: input should be an object"
                    seen.add(block["id"])
                    called.append(block["id"])
        if called:
            yield "tool_use ids were found without tool_result blocks at the end"

    def validate(self, messages: list[Any]) -> None:
        adapter(list[MessageParam]).validate_python(plain(messages))

    def as_object(self, message: Any) -> Any:
        if message["role"] != "assistant":
            return message
        blocks = adapter(list[ContentBlock]).validate_python(message["content"])
        return {"role": "assistant", "content": blocks}


class OpenAI(Api):
    provider = "openai"
    field = "tool_calls"

    def opening(self) -> list[Any]:
        return [{"role": "system", "content": "help"}] if self.rng.random() < 0.5 else []

    def call(self) -> dict[str, Any]:
        function = {"name": self.rng.choice(WORDS), "arguments": '{"n": 1}'}
        return {"id": self.new_id("call"), "type": "function", "function": function}

    def step(self, calls: int) -> list[Any]:
        made = [self.call() for _ in range(calls)]
        content = self.rng.choice([None, "text"])
        return [
            {"role": "assistant", "content": content, "tool_calls": made},
            *(
                {"role": "tool", "tool_call_id": call["id"], "content": f"result of {call['id']}"}
                for call in self.rng.sample(made, len(made))
            ),
        ]

    def reply(self) -> list[Any]:
        return [{"role": "assistant", "content": f"text {self.count}"}]

    def stop_stream(self, messages: list[Any]) -> None:
        calls = [self.call() for _ in range(self.rng.randint(0, 2))]
        if calls and self.rng.random() < 0.7:
            calls[-1]["function"]["arguments"] = '{"n": '
        content = self.rng.choice([None, "half a sen"])
        message = {"role": "assistant", "content": content}
        messages.append({**message, "tool_calls": calls} if self.rng.random() < 0.8 else message)

    def complaints(self, messages: list[Any]) -> Iterator[str]:
        waiting: list[str] = []
        seen: set[str] = set()
        for message in plain(messages):
            role = message["role"]
            if role == "tool":
                if message["tool_call_id"] not in waiting:
                    yield "tool message must follow a message with tool_calls"
                else:
                    waiting.remove(message["tool_call_id"])
                continue
            if waiting:
                yield "tool_calls must be followed by tool messages"
            waiting = []
            if role == "assistant":
                calls = message.get("tool_calls")
                if calls == []:
                    yield "tool_calls: [] is too short"
                if message.get("content") is None and not calls:
                    yield "content or tool_calls expected"
                for call in calls or []:
                    if call["id"] in seen:
                        yield "duplicate id"
                    seen.add(call["id"])
                    waiting.append(call["id"])
        if waiting:
            yield "tool_calls must be followed by tool messages at the end"

    def validate(self, messages: list[Any]) -> None:
        adapter(list[ChatCompletionMessageParam]).validate_python(plain(messages))

    def as_object(self, message: Any) -> Any:
        if message["role"] != "assistant":
            return message
        return ChatCompletionMessage.model_validate(message)


class Responses(Api):
    provider = "openai-responses"

    def reasoning(self) -> list[Any]:
        if self.rng.random() < 0.5:
            return []
        return [{"type": "reasoning", "id": self.new_id("rs"), "summary": []}]

    def text(self) -> dict[str, Any]:
        part = {"type": "output_text", "text": "text", "annotations": []}
        message = {"type": "message", "role": "assistant", "status": "completed"}
        return {**message, "id": self.new_id("msg"), "content": [part]}

    def call(self) -> dict[str, Any]:
        item = {"call_id": self.new_id("call"), "id": self.new_id("item")}
        kind = self.rng.randrange(6)
        if kind == 0:
            return {**item, "type": "custom_tool_call", "name": "write", "input": "x"}
        if kind == 1:
            action = {"type": "exec", "command": ["ls"], "env": {}}
            shell = {"type": "local_shell_call", "status": "completed", "action": action}
            return {**item, **shell}
        if kind == 2:
            return {**item, "type": "shell_call", "action": {"commands": ["ls"]}}
        if kind == 3:
            patch = {"type": "delete_file", "path": "a"}
            return {**item, "type": "apply_patch_call", "status": "completed", "operation": patch}
        name = self.rng.choice(WORDS)
        return {**item, "type": "function_call", "name": name, "arguments": '{"n": 1}'}

    def output(self, call: dict[str, Any]) -> dict[str, Any]:
        item = {"type": call["type"] + "_output", "call_id": call["call_id"], "output": "{}"}
        if call["type"] == "local_shell_call":
            item["id"] = item.pop("call_id")
        elif call["type"] == "apply_patch_call":
            item["status"] = "completed"
        elif call["type"] == "shell_call":
            outcome = {"type": "exit", "exit_code": 0}
            return {**item, "output": [{"stdout": "", "stderr": "", "outcome": outcome}]}
        return item

    def step(self, calls: int) -> list[Any]:
        made = [self.call() for _ in range(calls)]
        text = [self.text()] if self.rng.random() < 0.3 else []
        outputs = [self.output(call) for call in self.rng.sample(made, calls)]
        return [*self.reasoning(), *text, *made, *outputs]

    def reply(self) -> list[Any]:
        return [*self.reasoning(), self.text()]

    def stop_stream(self, messages: list[Any]) -> None:
        messages += self.reasoning()
        if self.rng.random() < 0.5:
            item = {"type": "function_call", "name": "read", "arguments": '{"n": '}
            messages.append({**item, "call_id": self.new_id("call"), "status": "in_progress"})

    def complaints(self, messages: list[Any]) -> Iterator[str]:
        items = plain(messages)
        called: list[str] = []
        answered: list[str] = []
        for number, item in enumerate(items):
            kind = item.get("type", "message")
            if kind.endswith("_call"):
                if item["call_id"] in called:
                    yield "duplicate call_id"
                called.append(item["call_id"])
            elif kind.endswith("_output"):
                call = item["id" if kind == "local_shell_call_output" else "call_id"]
                if call not in called:
                    yield "no tool call found for output"
                if call in answered:
                    yield "duplicate output"
                answered.append(call)
            elif kind == "reasoning":
                rest = [one for one in items[number:] if one.get("type") != "reasoning"]
                follows = rest[0] if rest else {}
                if not follows.get("type", "").endswith("_call") and (
                    follows.get("role") != "assistant"
                ):
                    yield "reasoning was provided without its required following item"
        if set(called) - set(answered):
            yield "no tool output found for call"

    def validate(self, messages: list[Any]) -> None:
        adapter(list[ResponseInputItemParam]).validate_python(plain(messages))

    def as_object(self, message: Any) -> Any:
        if message.get("role") == "user" or message["type"].endswith("_output"):
            return message
        return adapter(ResponseOutputItem).validate_python(message)


class Gemini(Api):
    provider = "gemini"
    field = "parts"

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self.ids = rng.random() < 0.5
        self.camel = rng.random() < 0.5

    def key(self, name: str) -> str:
        first, *rest = name.split("_")
        return first + "".join(word.title() for word in rest) if self.camel else name

    def user(self, text: str) -> Any:
        return {"role": "user", "parts": [{"text": text}]}

    def call(self, *, signed: bool) -> dict[str, Any]:
        call: dict[str, Any] = {"name": self.rng.choice(WORDS), "args": {"n": 1}}
        if self.ids:
            call["id"] = self.new_id("call")
        part = {self.key("function_call"): call}
        return {**part, self.key("thought_signature"): "c2ln"} if signed else part

    def step(self, calls: int) -> list[Any]:
        signed = self.rng.random() < 0.5
        made = [self.call(signed=signed and number == 0) for number in range(calls)]
        responses = []
        for part in made:
            call = part[self.key("function_call")]
            known = {name: call[name] for name in ("id", "name") if name in call}
            response = {**known, "response": {"output": f"result {self.count}"}}
            responses.append({self.key("function_response"): response})
        text = [{"text": "text"}] if self.rng.random() < 0.3 else []
        if self.rng.random() < 0.2:
            text.append({"text": "", self.key("thought_signature"): "c2ln"})
        return [{"role": "model", "parts": text + made}, {"role": "user", "parts": responses}]

    def reply(self) -> list[Any]:
        return [{"role": "model", "parts": [{"text": f"text {self.count}"}]}]

    def stop_stream(self, messages: list[Any]) -> None:
        tails: list[Any] = [
            {"text": ""},
            {"text": "half a sen"},
            {self.key("function_call"): {"name": "read", self.key("will_continue"): True}},
            self.call(signed=False),
        ]
        parts = self.rng.sample(tails, self.rng.randint(0, 3))
        messages.append({"role": "model", "parts": parts})

    def complaints(self, messages: list[Any]) -> Iterator[str]:
        previous: Optional[str] = None
        calls: list[Any] = []
        for content in plain(messages):
            role = content.get("role")
            parts = content.get("parts") or []
            if previous is None and role != "user":
                yield "first content should be with role user"
            if not parts:
                yield "contents.parts must not be empty"
            snake = [
                {re.sub("[A-Z]", lambda m: "_" + m[0].lower(), key): v for key, v in part.items()}
                for part in parts
            ]
            if any(not any(part.values()) for part in snake):
                yield "empty part"
            responses = [part["function_response"] for part in snake if "function_response" in part]
            if len(responses) != len(calls):
                yield "number of function response parts must equal function call parts"
            for response in responses:
                for call in calls:
                    if response.get("id") and call.get("id"):
                        fits = response["id"] == call["id"]
                    else:
                        fits = response["name"] == call["name"]
                    if fits:
                        calls.remove(call)
                        break
                else:
                    yield "function response without its call"
            calls = [part["function_call"] for part in snake if "function_call" in part]
            if calls and (role != "model" or previous != "user"):
                yield "function call turn must come after a user or function response turn"
            previous = role
        if calls:
            yield "function calls without responses at the end"

    def validate(self, messages: list[Any]) -> None:
        adapter(list[genai.Content]).validate_python(messages)

    def as_object(self, message: Any) -> Any:
        return genai.Content.model_validate(message)


APIS = [Anthropic, OpenAI, Responses, Gemini]
