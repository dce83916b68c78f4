"""One step of a trajectory: its tool calls, prompt and time. Owns reading them from checkpoints.

A step is what happened between two neighbouring checkpoints of a line, whoever wrote them: a
session, the hook of a coding agent, `run`, `watch` or `save`. Nothing of the user's code runs:
values are read as JSON.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_checkpoint.core.loading import decode_part
from agent_checkpoint.errors import UNUSABLE, StateError
from agent_checkpoint.records import Checkpoint, JsonValue
from agent_checkpoint.session.agent_scope import CALLS, MESSAGES, split_part
from agent_checkpoint.session.session_record import SESSION_PART
from agent_checkpoint.store.objects.reader import resolve_tree, tag_of
from agent_checkpoint.store.store import Store

HOOK_PART, RUN_PART, TRANSCRIPT_PART = "hook", "run", "transcript"
"""Names of parts that the hook of a coding agent and `run` write."""
_BEFORE = ("event:PreToolUse", "event:BeforeTool")
_AFTER = ("event:PostToolUse", "event:PostToolUseFailure", "event:AfterTool")
_PROMPT = ("event:UserPromptSubmit", "event:BeforeAgent")
_NO_CALLS = (*_PROMPT, "event:Stop", "event:AfterAgent", "event:SessionEnd")
_PROMPT_WORDS = "prompt: "
_TEXTS = ("text", "input_text", None)


@dataclass(frozen=True)
class StepCall:
    """A tool call, or the command of `run`."""

    tool: str
    words: str
    """The call on one line."""
    arguments: Any = None
    """As JSON; None if they were not recorded."""
    id: str | None = None
    """The id of the call in the conversation."""
    agent: str = ""
    """The path of the sub-agent that made the call."""
    error: str | None = None
    effect: str | None = None
    """The id of its external side effect."""
    ts: float | None = None
    """When it began, in seconds since the epoch; None if that was not recorded."""
    seconds: float | None = None


@dataclass(frozen=True)
class Step:
    """What happened between two neighbouring checkpoints of a line."""

    key: str
    """The session, or another key."""
    before: str | None
    """The id of the checkpoint before; None for the first one."""
    checkpoint: str
    """The id of the checkpoint after."""
    ts: float
    """When it was saved, in seconds since the epoch."""
    kind: str
    label: str | None
    agent: str
    """`session`, the name of a coding agent, `run`, or empty."""
    calls: tuple[StepCall, ...] = ()
    """Empty if the files changed outside of a call, as by a person."""
    prompt: str | None = None
    """The last message of the user before the step."""
    messages: list[Any] = field(default_factory=list, compare=False)
    """What the step added to the conversation, as JSON."""

    @property
    def at(self) -> str:
        """The short form of the checkpoint, such as `@17`."""
        return f"@{self.checkpoint.rpartition('-')[2]}"

    @property
    def words(self) -> str:
        """The step on one line: its calls, or the label of its checkpoint."""
        return ", ".join(call.words for call in self.calls) or self.label or self.kind

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "at": self.at, "words": self.words}


class StepReader:
    """Reads the steps of lines; keeps what neighbouring steps share."""

    def __init__(self, store: Store, *, by_time: bool = False) -> None:
        """Prepare.

        Args:
            store: the store.
            by_time: find the calls of a session by their times in the last checkpoint of a line,
                instead of comparing two lists of calls: for many steps of one line.
        """
        self._store = store
        self._by_time = by_time
        self._inputs: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, tuple[list[float], list[StepCall]]] = {}

    def step(
        self,
        before: Checkpoint | None,
        after: Checkpoint,
        *,
        end: Checkpoint | None = None,
        prompt: str | None = None,
        with_messages: bool = True,
    ) -> Step:
        """Return the step between two checkpoints.

        Args:
            before: the checkpoint before; None for the first of a line.
            after: the checkpoint after.
            end: a later checkpoint of the line, whose transcript has the arguments of calls.
            prompt: the prompt of the step, if it is known.
            with_messages: whether to read the conversation.

        Raises:
            IntegrityError: a part is damaged.
            StorageError: the medium failed.
        """
        messages: list[Any] = []
        if with_messages:
            messages = _added(self.messages(before), self.messages(after))
            prompt = prompt or self.prompt(after)
        agent, calls = self._calls(before, after, end or after)
        return Step(
            after.key,
            None if before is None else before.id,
            after.id,
            after.ts_ns / 1e9,
            after.kind,
            after.label,
            agent,
            tuple(calls),
            prompt,
            messages,
        )

    def prompts(self, line: Sequence[Checkpoint]) -> list[str | None]:
        """Return the last prompt at each checkpoint of a line.

        Conversations mostly grow: where both ends of a stretch have the same last prompt, all of
        it has, and only a few conversations are read. Raises the same errors as `step`.
        """
        found: dict[int, tuple[int, str | None]] = {}
        last = [_prompt_in(item) for item in self.messages(line[-1])] if line else []

        def at(index: int) -> tuple[int, str | None]:
            if index not in found:
                name = MESSAGES if MESSAGES in line[index].parts else TRANSCRIPT_PART
                size = self.count(line[index], name)
                texts = last[:size]
                if size > len(last):  # the conversation was compacted since
                    texts = [_prompt_in(item) for item in self.messages(line[index])]
                said = [text for text in texts if text]
                found[index] = len(said), said[-1] if said else None
            return found[index]

        def fill(low: int, high: int) -> None:
            if at(low) == at(high):
                found.update(dict.fromkeys(range(low, high + 1), at(low)))
            elif high - low > 1:
                middle = (low + high) // 2
                fill(low, middle)
                fill(middle, high)

        if line:
            fill(0, len(line) - 1)
        latest: str | None = None
        prompts: list[str | None] = []
        for index, checkpoint in enumerate(line):
            latest = _noted_prompt(checkpoint) or latest
            prompts.append(found[index][1] or latest)
        return prompts

    def prompt(self, checkpoint: Checkpoint) -> str | None:
        """Return the last prompt at a checkpoint. Raises the same errors as `step`."""
        texts = list(filter(None, map(_prompt_in, self.messages(checkpoint))))
        return texts[-1] if texts else _noted_prompt(checkpoint)

    def messages(self, checkpoint: Checkpoint | None) -> list[Any]:
        """Return the conversation at a checkpoint as JSON. Raises the same errors as `step`."""
        if checkpoint is None:
            return []
        if MESSAGES in checkpoint.parts:
            return _items(self._resolved(checkpoint, MESSAGES))
        return [_parsed(line) for line in _items(self._resolved(checkpoint, TRANSCRIPT_PART))]

    def count(self, checkpoint: Checkpoint, name: str) -> int:
        """Return the length of a log, without reading the values in it.

        Raises the same errors as `step`.
        """
        tree: Any = checkpoint.parts.get(name)
        if isinstance(tree, dict) and len(tree) == 1 and tag_of(tree) is None:
            (tree,) = tree.values()
        tag = tag_of(tree)
        if tag is not None:
            reader = self._store.reader(checkpoint)
            reader.fetch([tree])
            tree = reader.tree(tag, tree[tag])
        return len(tree) if isinstance(tree, list) else 0

    def _resolved(self, checkpoint: Checkpoint, name: str) -> Any:
        tree = checkpoint.parts.get(name)
        if tree is None:
            return None
        reader = self._store.reader(checkpoint)
        reader.fetch([tree])
        return resolve_tree(tree, reader)

    def _calls(
        self, before: Checkpoint | None, after: Checkpoint, end: Checkpoint
    ) -> tuple[str, list[StepCall]]:
        if SESSION_PART in after.parts:
            calls = self._calls_between(before, after, end) if self._by_time else []
            return "session", calls or list(self._session_calls(before, after))
        note = hook_note(self._store, after)
        if RUN_PART in after.parts:
            return "run", self._command(after)
        if note is None:
            return "", []
        agent = str(note.get("agent") or "")
        if is_before_call(after):
            return agent, []  # the changes came before the call
        inputs = self._tool_inputs(end)
        started = _number(note.get("started"))
        return agent, [
            StepCall(tool, words, inputs.get(name), name or None, ts=started)
            for tool, words, name in noted_calls(note)
        ]

    def _calls_between(
        self, before: Checkpoint | None, after: Checkpoint, end: Checkpoint
    ) -> list[StepCall]:
        """Return the calls that ended between two checkpoints, from a later one."""
        if end.id not in self._ended:
            rows = [call for call in self._session_calls(None, end) if call.ts is not None]
            rows.sort(key=_end)
            self._ended[end.id] = [_end(call) for call in rows], rows
        ends, calls = self._ended[end.id]
        low = 0 if before is None else bisect_right(ends, before.ts_ns / 1e9)
        return calls[low : bisect_right(ends, after.ts_ns / 1e9)]

    def _session_calls(self, before: Checkpoint | None, after: Checkpoint) -> Iterator[StepCall]:
        for name in after.parts:
            agent, part = split_part(name)
            if part != CALLS or (
                before is not None and before.parts.get(name) == after.parts[name]
            ):
                continue
            old = [] if before is None else _items(self._resolved(before, name))
            for row in _added(old, _items(self._resolved(after, name))):
                if isinstance(row, dict):
                    yield _session_call(row, agent)

    def _command(self, after: Checkpoint) -> list[StepCall]:
        if (after.label or "").startswith("before "):
            return []
        found = self._resolved(after, RUN_PART)
        command = found.get("command") if isinstance(found, dict) else None
        words = " ".join(map(str, command)) if isinstance(command, list) else after.label or ""
        return [StepCall("run", words, command, seconds=found.get("seconds") if found else None)]

    def _tool_inputs(self, end: Checkpoint) -> dict[str, Any]:
        """Return the arguments of tool calls by id, from the transcript of a coding agent."""
        if end.key not in self._inputs:
            inputs: dict[str, Any] = {}
            for message in self.messages(end):
                inputs.update(_inputs_in(message))
            self._inputs[end.key] = inputs
        return self._inputs[end.key]


def hook_note(store: Store, checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the hook metadata of a checkpoint as unverified JSON; None if it has none."""
    tree: JsonValue = checkpoint.parts.get(HOOK_PART)
    if tree is None:
        return None
    try:
        reader = store.reader(checkpoint)
        reader.fetch([tree])
        found = decode_part(tree, HOOK_PART, reader=reader).value
    except (StateError, *UNUSABLE):
        return None
    return found if isinstance(found, dict) else None


def noted_calls(note: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return the tool, words and id of the calls in hook metadata; an id may be empty."""
    rows = (note or {}).get("calls")
    rows = rows if isinstance(rows, (list, tuple)) else ()
    rows = [row for row in rows if isinstance(row, (list, tuple)) and len(row) > 1]
    return [
        (str(row[0]), str(row[1]), str(row[2]) if len(row) > 2 and row[2] else "") for row in rows
    ]


def is_before_call(checkpoint: Checkpoint) -> bool:
    """Return whether the hook saved a checkpoint before a tool call."""
    return any(tag in _BEFORE for tag in checkpoint.tags)


def is_after_call(checkpoint: Checkpoint) -> bool:
    """Return whether the hook saved a checkpoint after a tool call."""
    return any(tag in _AFTER for tag in checkpoint.tags)


def is_between_turns(checkpoint: Checkpoint) -> bool:
    """Return whether the hook saved a checkpoint when no tool call of the agent ran."""
    return any(tag in _NO_CALLS for tag in checkpoint.tags)


def _session_call(row: dict[str, Any], agent: str) -> StepCall:
    arguments = row.get("arguments")
    given = arguments.items() if isinstance(arguments, dict) else ()
    shown = ", ".join(f"{name}={_short(value)}" for name, value in given)
    words = f"{row.get('tool')}({shown})"
    error = row.get("error")
    return StepCall(
        str(row.get("tool")),
        f"{agent}: {words}" if agent else words,
        arguments,
        _text(row.get("call_id")),
        agent,
        None if error is None else str(error),
        _text(row.get("effect")),
        _number(row.get("ts")),
        _number(row.get("seconds")),
    )


def _end(call: StepCall) -> float:
    return (call.ts or 0.0) + (call.seconds or 0.0)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None


def _items(resolved: Any) -> list[Any]:
    """Return the items of a log or list."""
    if isinstance(resolved, dict) and len(resolved) == 1:
        resolved = next(iter(resolved.values()))
    return resolved if isinstance(resolved, list) else []


def _added(old: list[Any], new: list[Any]) -> list[Any]:
    """Return the new items of a list that mostly grows."""
    same = 0
    if len(old) <= len(new) and new[: len(old)] == old:
        return new[len(old) :]
    for one, other in zip(old, new):
        if one != other:
            break
        same += 1
    return new[same:]


def _parsed(line: Any) -> Any:
    try:
        return json.loads(line)
    except (TypeError, ValueError, RecursionError):
        return line


def _noted_prompt(checkpoint: Checkpoint) -> str | None:
    label = checkpoint.label or ""
    is_prompt = any(tag in _PROMPT for tag in checkpoint.tags)
    return label[len(_PROMPT_WORDS) :] if is_prompt and label.startswith(_PROMPT_WORDS) else None


def _prompt_in(item: Any) -> str | None:
    """Return the text of the user in a message, or in a line of a transcript of an agent."""
    message = _inner(item)
    if message.get("role", message.get("type")) != "user" or _is_internal(item):
        return None
    return _user_text(message.get("content", message.get("parts"))) or None


def _is_internal(line: dict[str, Any]) -> bool:
    """Return whether Claude Code wrote a message that the user did not: context, or a sub-agent."""
    is_of_user = not isinstance(line.get("message"), dict) or line.get("type") in (None, "user")
    return not is_of_user or bool(line.get("isMeta") or line.get("isSidechain"))


def _inner(item: Any) -> dict[str, Any]:
    """Return the message in a line of a transcript: `message` (Claude Code), `payload` (Codex)."""
    if not isinstance(item, dict):
        return {}
    for name in ("message", "payload"):
        if isinstance(item.get(name), dict):
            return dict(item[name])
    return item


def _user_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "\n".join(
        block["text"]
        for block in blocks
        if isinstance(block, dict)
        and block.get("type") in _TEXTS
        and isinstance(block.get("text"), str)
    )


def _inputs_in(item: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over the ids and arguments of the tool calls in a message."""
    message = _inner(item)
    content = message.get("content")
    calls = message.get("toolCalls")
    blocks = [*(content if isinstance(content, list) else ()), message]
    for block in [*blocks, *(calls if isinstance(calls, list) else ())]:
        if not isinstance(block, dict):
            continue
        name = block.get("call_id") or block.get("id")
        given = next((block[one] for one in ("input", "arguments", "args") if one in block), None)
        if isinstance(name, str) and given is not None:
            yield name, _parsed(given) if isinstance(given, str) else given
