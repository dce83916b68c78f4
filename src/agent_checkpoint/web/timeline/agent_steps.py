"""What the hook of a coding agent noted in a checkpoint, for histories.

Reads the note only where it stands in the record itself, which is where the hook puts it, so that a
history costs no further reads. The note is not verified: it is only shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from agent_checkpoint.agents.agent_events import AFTER, BEFORE, is_prompt, moment_of
from agent_checkpoint.agents.session_note import PART as HOOK
from agent_checkpoint.session.session_record import SESSION_PART

PROMPT, END = "prompt", "end"
"""Moments besides those of calls: a prompt of the user, and the end of a turn."""
_ENDS = ("Stop", "AfterAgent")


class AgentStep(NamedTuple):
    """What the hook noted in a checkpoint."""

    moment: str
    """`prompt`, `before` or `after` a call, `end` of a turn, or empty."""
    calls: tuple[str, ...]
    """The ids of the calls; their words if the agent has no ids."""
    tags: frozenset[str]
    """The tags that the hook added."""
    started: float | None
    """When the call began; None if that was not reported."""


def agent_step(parts: Mapping[str, Any]) -> AgentStep | None:
    """Return what the hook noted in the parts of a checkpoint; None if it is not of the hook."""
    note = parts.get(HOOK)
    if not isinstance(note, dict) or not isinstance(note.get("event"), str):
        return None
    event, rows, started = note["event"], note.get("calls"), note.get("started")
    calls, tags = [], {f"event:{event}"}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and len(row) > 1 and all(isinstance(one, str) for one in row):
            calls.append(row[2] if len(row) > 2 else row[1])
            tags |= {f"tool:{row[0]}", *row[2:3]}
    moment = moment_of(event) if moment_of(event) in (BEFORE, AFTER) else ""
    moment = PROMPT if is_prompt(event) else END if event in _ENDS else moment
    began = started if isinstance(started, float) else None
    return AgentStep(moment, tuple(calls), frozenset(tags), began)


def directory_in(parts: Mapping[str, Any]) -> str:
    """Return the directory that a checkpoint claims, unverified; empty if it names none here."""
    for part, field in ((HOOK, "root"), (SESSION_PART, "workspace")):
        found = parts.get(part)
        if isinstance(found, dict) and isinstance(found.get(field), str):
            return str(found[field])
    return ""
