"""What the command and the page say of a rewind of a coding agent, before and after it."""

from __future__ import annotations

from pathlib import Path

from agent_checkpoint.agents.agent_events import PROGRAMS
from agent_checkpoint.agents.directory_keys import keys_of_directory
from agent_checkpoint.agents.rewind.rewind import Rewind
from agent_checkpoint.agents.session_note import SessionNote
from agent_checkpoint.agents.session_presence import presence_of
from agent_checkpoint.formatting import format_count, one_line, shell_quote
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import Checkpoint
from agent_checkpoint.store.store import Store

LIMITS = (
    "Effects outside of the directory are not undone. A running agent keeps its conversation in "
    "memory: exit it, then resume the session."
)
"""What a rewind does not do."""
_RESUME = {
    "claude-code": "claude --resume {}",
    "codex": "codex resume {}",
    "gemini": "gemini --resume {}",
    "qwen": "qwen --resume {}",
    "copilot": "copilot --resume={}",
    "opencode": "opencode --session {}",
    "cline": "cline --id {}",
    "goose": "goose session --resume --session-id {}",
}
_START = {
    "claude-code": "claude --session-id {}",
    "gemini": "gemini",
    "qwen": "qwen",
}
"""The commands that start a session without a conversation."""
_MOST_NAMED = 5


class RunningAgent(NamedTuple):
    """An agent that has the session open."""

    who: str
    """Its program and process."""
    words: str
    """What a rewind would do to it."""
    is_blocking: bool
    """Whether a rewind needs a consent: the agent would get another conversation."""
    how_to_end: str
    """What the user does to end it."""


def running_agent(key: str, *, changes_conversation: bool) -> RunningAgent | None:
    """Return the agent that has a session open; None if none has."""
    found = presence_of(key)
    if found is None or not found.is_running:
        return None
    who = f"{PROGRAMS[found.agent]} (process {found.pid}) has this session open"
    end = "Exit it"
    if found.is_background:
        who = (
            f"The background process of {PROGRAMS[found.agent]} (process {found.pid}) has this "
            "session open, until about a minute after you exit"
        )
        end = "Exit, and retry in a minute"
    if not changes_conversation:
        return RunningAgent(who, f"{who}. It does not know that files change.", False, end)
    words = (
        f"{who}. It keeps its conversation in memory and would append to the rewound transcript, "
        "whose later lines then lose their past."
    )
    return RunningAgent(who, words, True, end)


def sessions_since(store: Store, rewind: Rewind, target: Checkpoint) -> list[str]:
    """Return the other keys of the directory that were saved after the target, latest first.

    Raises:
        CheckpointError: the store cannot be read.
    """
    names = []
    for key in keys_of_directory(store, Path(rewind.directory)):
        head = store.head(key)
        if key != target.key and head is not None and head.ts_ns > target.ts_ns:
            names.append(key)
    return names


def others_notice(names: list[str]) -> str:
    """Return the notice that a rewind reverts the changes of other sessions, too."""
    return (
        f"Since then {format_count(len(names), 'other session')} worked here, whose changes are "
        f"reverted as well: {', '.join(map(one_line, names[:_MOST_NAMED]))}"
        + (" and more." if len(names) > _MOST_NAMED else ".")
    )


def resume_command(note: SessionNote, *, starts_anew: bool) -> str | None:
    """Return the command that continues a rewound session; None if there is none."""
    commands = _START if starts_anew else _RESUME
    if note.agent not in commands:
        return None
    return commands[note.agent].format(shell_quote(note.session))
