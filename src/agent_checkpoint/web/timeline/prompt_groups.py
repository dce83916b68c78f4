"""Rows of coding agents: the two checkpoints of a call in one, and groups by prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent_checkpoint.agents.agent_events import AFTER, BEFORE
from agent_checkpoint.records import Kind
from agent_checkpoint.web.timeline.agent_steps import END, PROMPT
from agent_checkpoint.web.timeline.history import CheckpointSummary

_MAX_BETWEEN = 20
"""Rows between the two checkpoints of a call, as parallel calls have them."""


class PromptGroup(NamedTuple):
    """The rows of a key from one prompt to the next."""

    rows: list[int]
    """The numbers of the rows, oldest first."""
    has_prompt: bool
    """Whether the first one is the prompt. If not, nothing had changed since the last turn."""


def paired_calls(checkpoints: Sequence[CheckpointSummary]) -> dict[int, CheckpointSummary]:
    """Return the checkpoint before each call that also has one after it, by the latter's number."""
    found: dict[int, CheckpointSummary] = {}
    waiting: list[CheckpointSummary] = []
    for checkpoint in checkpoints:
        step = checkpoint.step
        if checkpoint.kind != Kind.SAVE or step is None:
            waiting.clear()  # a rewind: what was begun has no end
        elif step.moment == BEFORE:
            waiting = [*waiting[-_MAX_BETWEEN:], checkpoint]
        elif step.moment == AFTER:
            for before in waiting:
                if before.step is not None and before.step.calls == step.calls:
                    found[checkpoint.seq] = before
                    waiting.remove(before)
                    break
    return found


def group_by_prompt(key: str, checkpoints: Iterable[CheckpointSummary]) -> list[PromptGroup]:
    """Return the rows of a key in groups, one per prompt, oldest first."""
    groups: list[PromptGroup] = []
    is_over = True
    for number, checkpoint in enumerate(checkpoints):
        if checkpoint.key != key:
            continue
        moment = "" if checkpoint.step is None else checkpoint.step.moment
        if moment == PROMPT or not groups or (is_over and moment in (BEFORE, AFTER)):
            groups.append(PromptGroup([], moment == PROMPT))
            is_over = False
        groups[-1].rows.append(number)
        is_over = is_over or moment == END
    return groups
