"""Replies of a model with tool calls, and the results in a conversation, for each provider."""

import json
from typing import Any

PROVIDERS = ["anthropic", "openai", "openai-responses", "gemini"]
USER = {
    "anthropic": {"role": "user", "content": "go"},
    "openai": {"role": "user", "content": "go"},
    "openai-responses": {"role": "user", "content": "go"},
    "gemini": {"role": "user", "parts": [{"text": "go"}]},
}


def reply(provider: str, *calls: tuple[str, str, Any]) -> Any:
    """Return a message of the model with calls: id, tool and arguments."""
    if provider == "anthropic":
        blocks = [
            {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            for call_id, name, arguments in calls
        ]
        return {"role": "assistant", "content": [{"type": "text", "text": "ok"}, *blocks]}
    if provider == "openai":
        return {
            "role": "assistant",
            "content": "ok",
            "tool_calls": [
                {"id": call_id, "type": "function", "function": _function(name, arguments)}
                for call_id, name, arguments in calls
            ],
        }
    if provider == "openai-responses":
        return [
            {"type": "function_call", "call_id": call_id, **_function(name, arguments)}
            for call_id, name, arguments in calls
        ]
    parts = [
        {"function_call": {"id": call_id, "name": name, "args": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"role": "model", "parts": [{"text": "ok"}, *parts]}


def text_reply(provider: str, text: str) -> Any:
    """Return a message of the model without calls."""
    if provider == "gemini":
        return {"role": "model", "parts": [{"text": text}]}
    if provider == "anthropic":
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return {"role": "assistant", "content": text}


def results(messages: Any) -> list[tuple[str, Any]]:
    """Return the results in a conversation: call id and content, in order."""
    found = []
    for message in messages:
        if message.get("role") == "tool":
            found.append((message["tool_call_id"], message["content"]))
        elif message.get("type") == "function_call_output":
            found.append((message["call_id"], message["output"]))
        for block in message.get("content") or ():
            if isinstance(block, dict) and block.get("type") == "tool_result":
                found.append((block["tool_use_id"], block["content"]))
        for part in message.get("parts") or ():
            response = part.get("function_response")
            if response is not None:
                answer = response["response"]
                found.append((response.get("id"), answer.get("output", answer)))
    return found


def _function(name: str, arguments: Any) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"name": name, "arguments": text}
