"""The retention policy of checkpoints that the hook and `watch` save by themselves.

All of the last days are kept, then one a turn, then one a session. Reads no store and no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent_checkpoint.agents.agent_events import is_end, is_prompt
from agent_checkpoint.records import Checkpoint, Kind
from agent_checkpoint.store.maintenance.retention import Policy

WATCH = "event:watch"
"""The tag of checkpoints that `watch` saves."""
ALL_SECONDS = 3 * 86400.0
"""All checkpoints of this age are kept."""
TURN_SECONDS = 30 * 86400.0
"""One checkpoint a turn of this age is kept; of `watch`, one an hour."""

_EVENT = "event:"
_PROMPT = "prompt"
"""How the label of a prompt begins. Some agents report each request as a prompt without a text."""
_HOUR, _DAY = 3600, 86400


class AutomaticRetention(Policy):
    """Keep all recent checkpoints, then one a turn, then the newest.

    A turn is kept by the checkpoint of its prompt, which has the files before the turn. If the
    prompt changed nothing, so that it has no checkpoint, the end of the turn before is kept.
    Checkpoints of `watch` have no turns: one an hour is kept, then one a day. Checkpoints that were
    not saved by the hook or by `watch` itself are always kept: saved by hand, safety checkpoints,
    rollbacks, forks, imports.
    """

    def __init__(self, now: float) -> None:
        """Judge ages by a time, in seconds since the epoch."""
        self.now = now

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers of the checkpoints to keep."""
        prompts = [item for item in newest_first if _is_prompt(item)]
        followed = {parent for prompt in prompts for parent in prompt.parents}
        hours = _newest_of_each(newest_first, _HOUR)
        kept = {item.seq for item in newest_first[:1]} | _newest_of_each(newest_first, _DAY)
        for item in newest_first:
            age = self.now - item.ts_ns / 1e9
            is_turn = _is_prompt(item) or (_is_end(item) and item.id not in followed)
            if (
                not is_automatic(item)
                or age < ALL_SECONDS
                or (age < TURN_SECONDS and (is_turn or item.seq in hours))
            ):
                kept.add(item.seq)
        return kept


class KeepThese(Policy):
    """Keep the checkpoints with these ids."""

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = frozenset(ids)

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers of the checkpoints with these ids."""
        return {item.seq for item in newest_first if item.id in self.ids}


def is_automatic(checkpoint: Checkpoint) -> bool:
    """Return whether the hook or `watch` saved a checkpoint by itself."""
    return (
        checkpoint.kind == Kind.SAVE
        and checkpoint.token is None
        and any(tag.startswith(_EVENT) for tag in checkpoint.tags)
    )


def _newest_of_each(newest_first: Sequence[Checkpoint], seconds: int) -> set[int]:
    """Return the newest checkpoint of `watch` in each interval."""
    found: dict[int, int] = {}
    for item in newest_first:
        if WATCH in item.tags:
            found.setdefault(item.ts_ns // (seconds * 10**9), item.seq)
    return set(found.values())


def _is_prompt(checkpoint: Checkpoint) -> bool:
    is_given = (checkpoint.label or "").startswith(_PROMPT)
    return is_given and any(is_prompt(name) for name in _events(checkpoint))


def _is_end(checkpoint: Checkpoint) -> bool:
    return any(is_end(name) for name in _events(checkpoint))


def _events(checkpoint: Checkpoint) -> list[str]:
    tags = checkpoint.tags
    return [tag[len(_EVENT) :] for tag in tags if tag.startswith(_EVENT)]
