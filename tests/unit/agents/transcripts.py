"""Transcripts as coding agents write them: their lines, and the checkpoints that the hook saves.

A session is a list of turns, a turn a list of steps, a step the numbers of its tool calls. Results
are written late, after the hook of their call has run, as the real agents do. Calls whose numbers
differ by hundreds run the same command.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

from agent_checkpoint.agents.agent_events import TIMED, Call
from agent_checkpoint.agents.rewind.transcript_cut import Row
from agent_checkpoint.agents.session_note import SessionNote

Turns = list[list[list[int]]]
CWD = "/project"


class Moment(NamedTuple):
    """A checkpoint, and the number of lines of the conversation at its moment."""

    note: SessionNote
    seen: int
    """The lines in its transcript."""
    expected: Optional[int]
    """The lines that are true at its moment; None if no conversation can continue there."""


class Session:
    """One session: all lines that its agent wrote, and the checkpoints of the hook."""

    def __init__(
        self, agent: str, turns: Turns, late: "Iterator[int]", behind: "Iterable[int]" = ()
    ) -> None:
        """Write a session.

        Args:
            agent: the name of the agent.
            turns: the turns.
            late: how many lines of a reply are written before the hooks of its calls run.
            behind: how many of the lines that were said are not written yet, for each checkpoint.
        """
        self.agent = agent
        self.lines: list[str] = []
        self.moments: list[Moment] = []
        self._late = late
        self._behind = iter(behind)
        self._numbers = iter(range(10_000))
        self._write(*_HEADS[agent])
        for number, turn in enumerate(turns):
            self._turn(number, turn)

    def row(self, index: int) -> Row:
        moment = self.moments[index]
        return Row(index, moment.note, lambda: self.lines[: moment.seen])

    def _turn(self, number: int, turn: "list[list[int]]") -> None:
        self._save("UserPromptSubmit", (), len(self.lines), said=len(self.lines))
        self._write({"prompt": f"prompt {number}"})
        for calls in turn:
            self._step(calls)
        start = len(self.lines)
        self._write(*_reply(self.agent, next(self._numbers), "the end", ()))
        # The line of the last reply is written before or after the hook.
        end, seen = len(self.lines), start + self._delay(len(self.lines) - start)
        self._save("Stop", (), end, seen, said=end)
        self._write(*_NOISE[self.agent])

    def _step(self, calls: "list[int]") -> None:
        start = len(self.lines)
        self._write(*_reply(self.agent, next(self._numbers), "I call.", calls))
        visible = len(self.lines)
        if self.agent == "gemini":  # the calls are written with their results
            visible = start + 1
        for place, call in enumerate(calls):
            expected = start if place == 0 else None
            seen = start + self._delay(visible - start)
            self._save("PreToolUse", (call,), expected, seen, said=visible)
        written = visible
        if self.agent != "gemini":
            for call in calls:
                self._write({"result": call})
        end = len(self.lines) - (self.agent == "gemini")  # without the line that repeats them
        for place, call in enumerate(calls):
            is_last = place == len(calls) - 1
            self._save("PostToolUse", (call,), end if is_last else None, written, said=written)
            if self.agent != "gemini" and not is_last:  # at most the results so far
                written += self._delay(visible + place + 1 - written)
        if self.agent == "qwen":  # an event before each request
            self._save("UserPromptSubmit", (), end, said=end)
        self._write(*_NOISE[self.agent])

    def _delay(self, most: int) -> int:
        return min(next(self._late), most)

    def _write(self, *records: "dict[str, Any]") -> None:
        for record in records:
            made = record["raw"] if "raw" in record else _RECORDS[self.agent](record)
            timed = {"timestamp": _time(2 * len(self.lines) + 1)} if self.agent in TIMED else {}
            self.lines.append(json.dumps({**made, **timed}))

    def _save(
        self,
        event: str,
        calls: "tuple[int, ...]",
        expected: Optional[int],
        seen: Optional[int] = None,
        *,
        said: int,
    ) -> None:
        seen = len(self.lines) if seen is None else seen
        seen = max(0, min(seen, said - next(self._behind, 0)))
        seen = max([seen, *(moment.seen for moment in self.moments[-1:])])
        made = tuple(
            Call(
                "Bash",
                f"Bash {_command(call)}",
                _id(self.agent, call),
            )
            for call in calls
        )
        transcript = {"path": "/t", "lines": seen, "bytes": 0, "ended": True, "digest": ""}
        time = _time(2 * said) if self.agent in TIMED else None
        note = SessionNote(self.agent, "s", CWD, CWD, event, made, transcript, time=time)
        self.moments.append(Moment(note, seen, expected))


def _time(tick: int) -> str:
    return f"2026-11-18T00:{tick // 60:02}:{tick % 60:02}.000Z"


def _command(call: int) -> str:
    return f"make {call % 100}"


def _id(agent: str, call: int) -> Optional[str]:
    if agent == "qwen":
        return f"another_{call}"  # the transcript has its own ids
    return None if agent in ("gemini", "copilot") else f"call_{call}"


_NOISE: "dict[str, list[dict[str, Any]]]" = {
    "claude-code": [{"raw": {"type": "attachment", "attachment": {"type": "date"}}}],
    "codex": [{"raw": {"type": "event_msg", "payload": {"type": "token_count"}}}],
    "gemini": [{"raw": {"$set": {"lastUpdated": "now"}}}],
    "qwen": [{"raw": {"type": "system", "subtype": "ui_telemetry"}}],
    "copilot": [{"raw": {"type": "hook.end", "data": {"hookType": "postToolUse"}}}],
}
_HEADS: "dict[str, list[dict[str, Any]]]" = {
    "claude-code": [{"raw": {"type": "queue-operation", "operation": "enqueue"}}],
    "codex": [{"raw": {"type": "session_meta", "payload": {"id": "s"}}}],
    "gemini": [{"raw": {"sessionId": "s", "projectHash": "h", "kind": "main"}}],
    "qwen": [],
    "copilot": [{"raw": {"type": "session.start", "data": {"sessionId": "s"}}}],
}


def _reply(agent: str, number: int, text: str, calls: Any) -> "list[dict[str, Any]]":
    if agent in ("qwen", "copilot"):
        return [{"message": f"m{number}", "text": text, "calls": list(calls)}]
    if agent != "gemini":
        parts: list[dict[str, Any]] = [{"text": text}, *({"call": call} for call in calls)]
        return [{"message": f"m{number}", **part} for part in parts]
    first = {"message": f"m{number}", "text": text}
    if not calls:
        return [first]
    answers = {"answers": list(calls)}
    return [first, {**first, "calls": list(calls)}, answers]


def _claude(record: "dict[str, Any]") -> "dict[str, Any]":
    if "prompt" in record:
        return {"type": "user", "message": {"role": "user", "content": record["prompt"]}}
    if "result" in record:
        block = {"type": "tool_result", "tool_use_id": f"call_{record['result']}"}
        return {"type": "user", "message": {"role": "user", "content": [block]}}
    block = {"type": "text", "text": record.get("text", "")}
    if "call" in record:
        name = _command(record["call"])
        block = {"type": "tool_use", "id": f"call_{record['call']}", "name": "Bash"}
        block["input"] = {"command": name}  # type: ignore[assignment]
    message = {"id": record["message"], "role": "assistant", "content": [block]}
    return {"type": "assistant", "message": message}


def _codex(record: "dict[str, Any]") -> "dict[str, Any]":
    if "result" in record:
        payload: dict[str, Any] = {"type": "function_call_output"}
        payload.update(call_id=f"call_{record['result']}", output="made")
    elif "call" in record:
        payload = {"type": "function_call", "call_id": f"call_{record['call']}", "name": "Bash"}
    else:
        role = "user" if "prompt" in record else "assistant"
        text = record.get("prompt") or record["text"]
        payload = {"type": "message", "role": role, "content": [{"text": text}]}
    return {"type": "response_item", "payload": payload}


def _gemini(record: "dict[str, Any]") -> "dict[str, Any]":
    if "prompt" in record:
        return {"id": "p", "type": "user", "content": [{"text": record["prompt"]}]}
    if "answers" in record:
        parts = [{"functionResponse": {"id": f"call_{call}"}} for call in record["answers"]]
        return {"id": "a", "type": "user", "content": parts}
    found = {"id": record["message"], "type": "gemini", "content": record["text"]}
    if "calls" in record:
        found["toolCalls"] = [
            {
                "id": f"call_{call}",
                "name": "Bash",
                "args": {"command": _command(call)},
                "result": [1],
            }
            for call in record["calls"]
        ]
    return found


def _qwen(record: "dict[str, Any]") -> "dict[str, Any]":
    if "prompt" in record:
        return {"type": "user", "message": {"parts": [{"text": record["prompt"]}]}}
    if "result" in record:
        parts: list[Any] = [{"functionResponse": {"id": f"call_{record['result']}"}}]
        return {"type": "tool_result", "message": {"parts": parts}}
    parts = [{"text": record["text"]}]
    for call in record["calls"]:
        made = {"id": f"call_{call}", "name": "Bash", "args": {"command": _command(call)}}
        parts.append({"functionCall": made})
    return {"type": "assistant", "uuid": record["message"], "message": {"parts": parts}}


def _copilot(record: "dict[str, Any]") -> "dict[str, Any]":
    if "prompt" in record:
        return {"type": "user.message", "data": {"content": record["prompt"]}}
    if "result" in record:
        return {"type": "tool.execution_complete", "data": {"toolCallId": f"c{record['result']}"}}
    calls = [
        {"toolCallId": f"c{call}", "name": "bash", "arguments": {"command": _command(call)}}
        for call in record["calls"]
    ]
    data = {"messageId": record["message"], "content": record["text"], "toolRequests": calls}
    return {"type": "assistant.message", "data": data}


_RECORDS = {
    "qwen": _qwen,
    "claude-code": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "copilot": _copilot,
}
