"""ATIF, the Agent Trajectory Interchange Format: exports and imports conversations of sessions.

Knows the messages of the model APIs, and those that the adapters of this package save. Needs no
other package.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent_checkpoint import __version__
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import ConflictError, InvalidInputError
from agent_checkpoint.manager.manager import CheckpointManager
from agent_checkpoint.records import check_key, short_repr
from agent_checkpoint.redaction import mask_json
from agent_checkpoint.session.agent_scope import MESSAGES, MODEL_CALLS, split_part

VERSION = "ATIF-v1.8"
"""The version of exported trajectories. Earlier ones can be imported, too."""

_SOURCES = {"assistant": "agent", "model": "agent", "system": "system", "developer": "system"}
_TEXTS = ("text", "input_text", "output_text", "refusal", "summary_text", "reasoning_text")
_TOTALS = {
    "input": "total_prompt_tokens",
    "output": "total_completion_tokens",
    "cached": "total_cached_tokens",
}
_METRICS = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cached_tokens": "cached_tokens",
    "cost_usd": "cost",
}


def export_trajectory(
    manager: CheckpointManager,
    key: str,
    checkpoint_id: str | None = None,
    *,
    agent_name: str = "agent",
    agent_version: str = "unknown",
    mask: bool = False,
) -> dict[str, Any]:
    """Return the conversation of a session as an ATIF trajectory, with those of its sub-agents.

    Args:
        manager: the manager of the store.
        key: the key of the session.
        checkpoint_id: a checkpoint of it; by default the latest.
        agent_name: the name of the agent system.
        agent_version: its version.
        mask: replace common secrets by placeholders.

    Raises:
        NotFoundError: there is no such key or checkpoint.
        InvalidInputError: the checkpoint has no conversation.
        StateError: its state cannot be decoded.
    """
    state, agent = manager.state_dict(key, checkpoint_id), {"name": agent_name}
    agent["version"] = agent_version
    parts = state if isinstance(state, Mapping) else {}
    found: dict[str, dict[str, Any]] = {}
    for name in parts:
        path, last = split_part(name)
        if last == MESSAGES:
            steps = list(_steps(_items(parts[name])))
            calls = _items(parts.get(name[: -len(MESSAGES)] + MODEL_CALLS, []))
            if steps:
                found[path] = {"schema_version": VERSION, "session_id": key, "agent": dict(agent)}
                found[path].update(steps=steps, **_totals(calls, len(steps)))
                models = [row["model"] for row in calls if row.get("model")]
                models += [step["model_name"] for step in steps if "model_name" in step]
                if models:
                    found[path]["agent"]["model_name"] = models[0]
    if "" not in found:
        raise InvalidInputError(f"The checkpoint of {short_repr(key)} has no conversation.")
    trajectory = found.pop("")
    trajectory["extra"] = {"producer": f"agent-checkpoint {__version__}"}
    if found:
        inner = [{**one, "trajectory_id": path} for path, one in sorted(found.items())]
        trajectory["subagent_trajectories"] = inner
    return dict(mask_json(trajectory)) if mask else trajectory


def import_trajectory(
    manager: CheckpointManager, trajectory: Any, *, key: str | None = None
) -> str:
    """Import an ATIF trajectory as a new session, one checkpoint per step; return its key.

    Its messages have the format of OpenAI's Chat Completions. Images and audio become their names.

    Args:
        manager: the manager of the store.
        trajectory: the trajectory, as a dict or as JSON.
        key: the key; by default the session id of the trajectory.

    Raises:
        InvalidInputError: it is not an ATIF trajectory; the message has the path of the error.
        ConflictError: the key exists.
        StorageError: the store failed.
    """
    try:
        data = json.loads(trajectory) if isinstance(trajectory, (str, bytes)) else trajectory
    except ValueError as error:
        raise InvalidInputError(f"The trajectory is not JSON: {error}.") from error
    name = check_key(key or _get(data, "session_id", str, "trajectory"))
    turns = [list(_messages(step, f"steps[{n}]")) for n, step in enumerate(_checked_steps(data))]
    if manager.list_keys(name)[:1] == [name]:
        raise ConflictError(f"The key {short_repr(name)} already exists. Pass key= with another.")
    messages, head = Log[Any](), None
    for step, added in zip(data["steps"], turns):
        head = manager.update(
            name,
            {MESSAGES: messages},
            lambda added=added: messages.extend(added),  # type: ignore[misc]
            holds=head,
            label=f"step {step['step_id']}: {step['source']}",
            metrics=_step_metrics(step),
        )
    return name


# -- export ----------------------------------------------------------------------------------------


def _steps(messages: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the steps of a conversation; results are observations of the step with their call."""
    steps: list[dict[str, Any]] = []
    by_call: dict[str, dict[str, Any]] = {}
    for message in messages:
        for event in _events(_unwrapped(message)):
            found = event.pop("result", None)
            owner = None if found is None else by_call.get(str(found.get("source_call_id")))
            if found is not None and owner is None:  # without a call
                found.pop("source_call_id", None)
                owner = {"source": "system", "message": ""}
                steps.append(owner)
            if found is not None and owner is not None:
                owner.setdefault("observation", {"results": []})["results"].append(found)
                continue
            is_item = event.pop("is_item", False)
            last = steps[-1] if steps else {}
            if is_item and last.get("source") == "agent" and "observation" not in last:
                last["message"] = "\n".join(filter(None, (last["message"], event["message"])))
                last.setdefault("tool_calls", []).extend(event.get("tool_calls", []))
                thought = (last.get("reasoning_content"), event.get("reasoning_content"))
                last["reasoning_content"] = "\n".join(filter(None, thought))
            else:
                steps.append(event)
            by_call.update(
                {call["tool_call_id"]: steps[-1] for call in event.get("tool_calls", [])}
            )
    for number, step in enumerate(steps, 1):
        yield {"step_id": number, **{k: v for k, v in step.items() if v or k == "message"}}


def _unwrapped(message: Any) -> dict[str, Any]:
    """Return the message in an entry of a coding agent, or of a turn that is not over."""
    item = message if isinstance(message, dict) else {"role": "user", "content": message}
    for name in ("item", "message"):
        if isinstance(item.get(name), dict):
            time = item.get("timestamp")
            return {**item[name], **({"timestamp": time} if isinstance(time, str) else {})}
    return item


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the results of a message, then what it says and calls, as a step without a number."""
    role, kind = message.get("role"), message.get("type")
    if message.get("kind") in ("request", "response"):  # Pydantic AI
        yield from _pydantic_events(message)
    elif role == "tool":
        yield {"result": _result(message.get("tool_call_id"), message.get("content"))}
    elif isinstance(role, str):
        content = message.get("content", message.get("parts"))
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for event in _block_events(_SOURCES.get(role, "user"), blocks, message):
            yield {**event, "is_item": kind == "message"} if "source" in event else event
    elif kind in ("function_call", "custom_tool_call"):
        call = _call(message.get("call_id"), message.get("name"), message.get("arguments"))
        yield {"source": "agent", "message": "", "tool_calls": [call], "is_item": True}
    elif kind in ("function_call_output", "custom_tool_call_output"):
        yield {"result": _result(message.get("call_id"), message.get("output"))}
    elif kind == "reasoning":
        said = _text(message.get("summary") or message.get("content") or [])
        yield {"source": "agent", "message": "", "reasoning_content": said, "is_item": True}


def _block_events(source: str, blocks: list[Any], message: dict[str, Any]) -> Iterator[Any]:
    said: list[str] = []
    thought: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(block, dict):
            said.append(str(block))
        elif kind == "tool_result":
            yield {"result": _result(block.get("tool_use_id"), block.get("content"))}
        elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            calls.append(_call(block.get("id"), block.get("name"), block.get("input")))
        elif kind in ("thinking", "reasoning"):
            thought.append(str(block.get("thinking") or block.get("text") or ""))
        elif "functionResponse" in block or "function_response" in block:
            found = block.get("functionResponse") or block.get("function_response") or {}
            yield {"result": _result(found.get("id") or found.get("name"), found.get("response"))}
        elif "functionCall" in block or "function_call" in block:
            found = block.get("functionCall") or block.get("function_call") or {}
            name = found.get("name")
            calls.append(_call(found.get("id") or name, name, found.get("args")))
        else:
            said.append(_text([block]))
    for call in message.get("tool_calls") or []:
        inner = call.get("function") or call.get("custom") or {}
        calls.append(_call(call.get("id"), inner.get("name"), inner.get("arguments")))
    text = "\n".join(filter(None, said))
    thought += [str(message["reasoning_content"])] if message.get("reasoning_content") else []
    if source == "agent" or text:
        event: dict[str, Any] = {"source": source, "message": text}
        if isinstance(message.get("timestamp"), str):
            event["timestamp"] = message["timestamp"]
        if source == "agent":
            event.update(reasoning_content="\n".join(thought), tool_calls=calls)
            event.update({"model_name": message["model"]} if message.get("model") else {})
        yield event


def _pydantic_events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    step: dict[str, Any] = {"source": "agent", "message": "", "tool_calls": []}
    for part in message.get("parts") or []:
        kind, content = part.get("part_kind"), part.get("content")
        if kind in ("tool-return", "retry-prompt") and part.get("tool_call_id"):
            yield {"result": _result(part["tool_call_id"], content)}
        elif kind == "tool-call":
            call = _call(part.get("tool_call_id"), part.get("tool_name"), part.get("args"))
            step["tool_calls"].append(call)
        elif kind == "thinking":
            step["reasoning_content"] = _text(content)
        elif kind == "text":
            step["message"] += _text(content)
        elif content:
            source = "system" if kind == "system-prompt" else "user"
            yield {"source": source, "message": _text(content)}
    if message["kind"] == "response":
        yield {
            **step,
            **({"model_name": message["model_name"]} if message.get("model_name") else {}),
        }


def _call(call_id: Any, name: Any, given: Any) -> dict[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            given = {"input": given}
    arguments = (
        dict(given) if isinstance(given, dict) else {} if given is None else {"input": given}
    )
    return {"tool_call_id": str(call_id), "function_name": str(name), "arguments": arguments}


def _result(call_id: Any, content: Any) -> dict[str, Any]:
    return {"source_call_id": str(call_id), "content": _text(content)}


def _text(content: Any) -> str:
    """Return the text of a content; other data as JSON, other blocks by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, dict) and content.get("type") in _TEXTS:
        return str(next((content[n] for n in ("text", "refusal") if n in content), ""))
    if isinstance(content, dict) and "type" in content:
        source = content.get("source")
        path = source.get("path") if isinstance(source, dict) else None
        return f"[{content['type']}{'' if path is None else f': {path}'}]"
    if isinstance(content, dict) and set(content) == {"text"}:
        return str(content["text"])
    if isinstance(content, list) and all(isinstance(one, (str, dict)) for one in content):
        return "\n".join(map(_text, content))
    return json.dumps(content, ensure_ascii=False, default=str)


def _totals(calls: Iterable[Any], steps: int) -> dict[str, Any]:
    """Return the tokens and the cost of the model calls of a session."""
    totals: dict[str, Any] = {"total_steps": steps}
    for row in calls:
        for name, total in _TOTALS.items():
            count = (row.get("tokens") or {}).get(name)
            if count is not None:
                totals[total] = totals.get(total, 0) + count
        if row.get("cost") is not None:
            totals["total_cost_usd"] = totals.get("total_cost_usd", 0) + row["cost"]
    return {"final_metrics": totals}


def _items(state: Any) -> list[Any]:
    if isinstance(state, Log):
        return state.to_list()
    return list(state["items"] if isinstance(state, Mapping) else state)


# -- import ----------------------------------------------------------------------------------------


def _checked_steps(data: Any) -> list[Any]:
    version = _get(data, "schema_version", str, "trajectory")
    if not version.startswith("ATIF-v1."):
        raise InvalidInputError(f"{short_repr(version)} is not a version of ATIF that is known.")
    steps: list[Any] = _get(data, "steps", list, "trajectory")
    for number, step in enumerate(steps):
        if _get(step, "step_id", int, f"steps[{number}]") != number + 1:
            raise InvalidInputError(f"steps[{number}].step_id must be {number + 1}.")
        if _get(step, "source", str, f"steps[{number}]") not in ("system", "user", "agent"):
            raise InvalidInputError(f"steps[{number}].source must be system, user or agent.")
    if not steps:
        raise InvalidInputError("The trajectory has no steps.")
    return steps


def _messages(step: Any, path: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of a step in the format of Chat Completions."""
    role = "assistant" if step["source"] == "agent" else step["source"]
    calls = [
        {
            "id": _get(call, "tool_call_id", str, f"{path}.tool_calls[{n}]"),
            "type": "function",
            "function": {
                "name": _get(call, "function_name", str, f"{path}.tool_calls[{n}]"),
                "arguments": json.dumps(_get(call, "arguments", dict, f"{path}.tool_calls[{n}]")),
            },
        }
        for n, call in enumerate(step.get("tool_calls") or [])
    ]
    said = _text(_get(step, "message", (str, list), path))
    if said or role == "assistant":
        message: dict[str, Any] = {"role": role, "content": said}
        thought = step.get("reasoning_content")
        message.update({"reasoning_content": str(thought)} if thought else {})
        yield {**message, **({"tool_calls": calls} if calls else {})}
    known = {call["id"] for call in calls}
    for result in (step.get("observation") or {}).get("results") or []:
        call_id, content = result.get("source_call_id"), _text(result.get("content"))
        if call_id is None:
            yield {"role": "user" if role == "assistant" else role, "content": content}
        elif call_id in known:
            yield {"role": "tool", "tool_call_id": call_id, "content": content}
        else:
            raise InvalidInputError(
                f"{path}: the observation of {short_repr(call_id)} has no call."
            )


def _step_metrics(step: Any) -> dict[str, float]:
    found = step.get("metrics") or {}
    return {
        ours: found[theirs]
        for theirs, ours in _METRICS.items()
        if isinstance(found.get(theirs), (int, float))
    }


def _get(data: Any, name: str, kind: Any, path: str) -> Any:
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise InvalidInputError(f"{path}.{name} is missing or not of its type.")
    return value
