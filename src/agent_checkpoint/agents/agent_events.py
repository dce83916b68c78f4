"""Hook events of coding agents. Owns parsing them into one type, and their labels.

The formats are those documented by Claude Code 2.1.145 (hooks reference), Codex 0.129
(`codex-rs/hooks/schema`), Gemini CLI 0.26 (`docs/hooks/reference.md`), Qwen Code 0.24 and Copilot
CLI 1.0 (events with the names of Claude Code), goose 1.52 (its fields have other names), or newer.
opencode 1.18 and Cline 3.0 have plug-ins; ours send events in the format of Claude Code. Unknown
fields are ignored; required fields are checked.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.redaction import Redactor

CLAUDE, CODEX, GEMINI, QWEN = "claude-code", "codex", "gemini", "qwen"
COPILOT, OPENCODE, CLINE, GOOSE = "copilot", "opencode", "cline", "goose"
AGENTS = (CLAUDE, CODEX, GEMINI, QWEN, COPILOT, OPENCODE, CLINE, GOOSE)

BEFORE, AFTER, BATCH, TURN = "before", "after", "batch", "turn"
"""Phases: before a tool call, after a tool call, after a batch of calls, or between turns."""

PROGRAMS = {
    CLAUDE: "claude",
    CODEX: "codex",
    GEMINI: "gemini",
    QWEN: "qwen",
    COPILOT: "copilot",
    OPENCODE: "opencode",
    CLINE: "cline",
    GOOSE: "goose",
}
"""The name of each agent's program."""
NEEDS_MESSAGES = (CLAUDE, GEMINI)
"""Agents that do not resume a session in which nothing was said."""
FINDS_BY_PATH = (GEMINI, QWEN)
"""Agents that resume a session only in a directory with the path in which it began."""
TIMED = (QWEN, COPILOT)
"""Agents whose events and transcript lines have the time at which they were made, by one clock."""
WITHOUT_TRANSCRIPT = {
    OPENCODE: "opencode keeps conversations in a database. A resumed model hears all of it, also "
    "the later calls; /undo in opencode changes it.",
    CLINE: "cline keeps conversations in files of its background process. A resumed model hears "
    "all of it, also the later calls.",
    GOOSE: "goose keeps conversations in a database. A resumed model hears all of it, also the "
    "later calls.",
}
"""Agents whose conversation is not rewound, and why."""

_MOMENTS = {
    "PreToolUse": BEFORE,
    "BeforeTool": BEFORE,
    "PostToolUse": AFTER,
    "PostToolUseFailure": AFTER,
    "AfterTool": AFTER,
    "PostToolBatch": BATCH,
}
_FIELDS_OF_GOOSE = {
    "event": "hook_event_name",
    "working_dir": "cwd",
    "tool_call_id": "tool_use_id",
    "message": "prompt",
}
_OF_GEMINI = frozenset(
    {"BeforeTool", "AfterTool", "BeforeAgent", "AfterAgent", "PreCompress", "BeforeModel"}
)
_WORDS = {
    "UserPromptSubmit": "prompt",
    "BeforeAgent": "prompt",
    "Stop": "end of turn",
    "AfterAgent": "end of turn",
    "SubagentStop": "end of a subagent",
    "SessionStart": "session begins",
    "SessionEnd": "session ends",
    "PreCompact": "before the conversation is compacted",
    "PreCompress": "before a request",  # Gemini CLI sends it before each, compacted or not
}
_TELLING = (
    "command",
    "commands",
    "file_path",
    "filePath",  # of opencode
    "absolute_path",
    "path",
    "notebook_path",
    "pattern",
    "query",
    "url",
    "description",
    "prompt",
)
_LONGEST = 100
_MOST_CALLS = 50
_MOST_NAMED = 200
_MAX_SEARCHED = 20_000
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_WORD = re.compile(r"[^\s'\"`;|&<>()=,]+")


class Call(NamedTuple):
    """One tool call."""

    tool: str
    words: str
    id: str | None = None


class Event(NamedTuple):
    """One hook event."""

    agent: str
    name: str
    session: str
    cwd: str
    transcript: str | None
    calls: tuple[Call, ...] = ()
    prompt: str | None = None
    named: tuple[str, ...] = ()
    """Absolute paths that the arguments of its calls name."""
    time: str | None = None
    """When the agent made it, of agents whose transcripts have such times: ISO 8601, UTC."""

    @property
    def moment(self) -> str:
        """The phase of the event: before or after a tool call, after a batch, or a turn."""
        return moment_of(self.name)

    @property
    def key(self) -> str:
        """The key under which the session's checkpoints are saved."""
        return f"{self.agent}/{self.session}"

    @property
    def is_end(self) -> bool:
        """Whether a turn or the session has ended."""
        return is_end(self.name)

    @property
    def label(self) -> str:
        """The label of the checkpoint."""
        if self.calls:
            words = ", ".join(call.words for call in self.calls)
            return _short(f"before {words}" if self.moment == BEFORE else words)
        words = _WORDS.get(self.name, self.name)
        if self.agent == QWEN and self.name == "UserPromptSubmit" and not self.prompt:
            words = "before a request"  # sent before each
        return _short(f"{words}: {self.prompt}" if self.prompt else words)

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the checkpoint: event, tools and tool call ids."""
        found = [f"event:{self.name}"]
        for call in self.calls:
            found += [f"tool:{call.tool}", *([call.id] if call.id else [])]
        return tuple(dict.fromkeys(found))


def moment_of(name: str) -> str:
    """Return the phase of an event, by its name."""
    return _MOMENTS.get(name, TURN)


def is_end(name: str) -> bool:
    """Return whether an event is the end of a turn or of the session."""
    return name in ("Stop", "AfterAgent", "SessionEnd")


def is_prompt(name: str) -> bool:
    """Return whether an event is a prompt of the user."""
    return name in ("UserPromptSubmit", "BeforeAgent")


def read_event(
    agent: str,
    text: bytes,
    home: str = "",
    redactor: Redactor | None = None,
    project: str = "",
) -> Event:
    """Parse an event.

    Args:
        agent: the name of the agent; an unknown name is replaced by detection from the event.
        text: the JSON that the agent sent.
        home: the directory of the agent's own files, if a variable has moved it.
        redactor: removes secrets from the prompt and the arguments of calls, if given.
        project: the directory of the project, for events of goose that do not name it.

    Raises:
        InvalidInputError: `text` is not a valid event.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"The hook event is not JSON ({error}).") from None
    if not isinstance(data, dict):
        raise InvalidInputError(f"The hook event must be a JSON object, not {type(data).__name__}.")
    if agent == GOOSE:
        named = {_FIELDS_OF_GOOSE.get(field, field): value for field, value in data.items()}
        data = {"cwd": project, **named}
    if redactor is not None:
        said = ("tool_input", "tool_calls", "prompt")
        data.update((field, redactor.json(data[field])) for field in said if field in data)
    name = _text(data, "hook_event_name")
    transcript = data.get("transcript_path")
    cwd = _text(data, "cwd")
    if not os.path.isabs(cwd) or "\0" in cwd:
        raise InvalidInputError(
            f"The cwd of the hook event must be an absolute path, not {short_repr(cwd)}."
        )
    prompt = data.get("prompt")
    agent = agent if agent in AGENTS else _agent_of(name, data)
    session = _clean(_text(data, "session_id"))
    if transcript is None and agent == COPILOT and os.sep not in session:  # named only at the end
        home = home or os.path.expanduser("~/.copilot")
        transcript = os.path.join(home, "session-state", session, "events.jsonl")
    return Event(
        agent,
        _clean(name),
        session,
        cwd,
        transcript if _is_path(transcript) else None,
        tuple(_calls(data)),
        _clean(prompt) if isinstance(prompt, str) and prompt else None,
        tuple(_named(data, cwd)),
        time_in(data) if agent in TIMED else None,
    )


def _agent_of(name: str, data: dict[str, Any]) -> str:
    if name in _OF_GEMINI or ("timestamp" in data and "tool_use_id" not in data):
        return GEMINI
    return CODEX if "turn_id" in data else CLAUDE


def _calls(data: dict[str, Any]) -> list[Call]:
    rows = data.get("tool_calls")
    rows = rows if isinstance(rows, list) else [data]
    return [
        Call(
            _clean(row["tool_name"])[:_LONGEST],
            call_words(_clean(row["tool_name"]), row.get("tool_input"), str(data["cwd"])),
            _clean(row["tool_use_id"])[:200] if isinstance(row.get("tool_use_id"), str) else None,
        )
        for row in rows[:_MOST_CALLS]
        if isinstance(row, dict) and isinstance(row.get("tool_name"), str) and row["tool_name"]
    ]


def _named(data: dict[str, Any], cwd: str) -> list[str]:
    """Return the paths that arguments name: whole values, words of commands, headers of patches."""
    found: dict[str, None] = {}
    waiting = [data.get("tool_input"), data.get("tool_calls")]
    while waiting and len(found) < _MOST_NAMED:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and "\0" not in value:
            for word in [value[:4096], *_WORD.findall(value[:_MAX_SEARCHED])]:
                if "/" in word or "." in word or os.path.lexists(os.path.join(cwd, word)):
                    found[os.path.normpath(os.path.join(cwd, word))] = None
    return list(found)[:_MOST_NAMED]


def time_in(data: dict[str, Any]) -> str | None:
    """Return the time of an event or of a line of a transcript; None if it has none.

    Times have one form, in which the later one is the greater text.
    """
    found = data.get("timestamp")
    return found if isinstance(found, str) and _TIME.fullmatch(found) else None


def call_words(tool: str, given: Any, cwd: str) -> str:
    """Return a tool call as one line: the tool and its most informative argument."""
    found: Any = given
    if isinstance(given, dict):
        named = [given[name] for name in _TELLING if isinstance(given.get(name), (str, list))]
        found = named[0] if named else given
    if isinstance(found, list) and all(isinstance(item, str) for item in found):
        found = " ".join(found)
    if isinstance(found, str) and found.startswith(f"{cwd}/"):
        found = found[len(cwd) + 1 :]
    if found in (None, {}, ""):
        return tool
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    return _short(f"{tool} {_clean(text)}")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _text(data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value or len(value.encode("utf-8", "replace")) > 4096:
        raise InvalidInputError(f"The hook event has a missing or invalid {name}.")
    return value


def _clean(text: str) -> str:
    return text[:2000].encode("utf-8", "replace").decode()


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and os.path.isabs(value) and "\0" not in value
