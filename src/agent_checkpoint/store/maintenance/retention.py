"""Retention policies: select the checkpoints of a key to keep. Do not remove checkpoints.

    KeepLatest(20) | KeepBest(3, "score") | KeepEvery(10)

keeps a checkpoint if at least one of the three policies keeps it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.options import Mode, check_option
from agent_checkpoint.records import Checkpoint, short_repr


class Policy(ABC):
    """Selects checkpoints to keep. Combine policies with `|`."""

    @abstractmethod
    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers of the checkpoints to keep."""

    def __or__(self, other: Policy) -> Policy:
        if not isinstance(other, Policy):
            return NotImplemented
        return _Any(self, other)


class KeepLatest(Policy):
    """Keep the newest `n` checkpoints."""

    def __init__(self, n: int) -> None:
        self.n = _count(n)

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers of the newest `n` checkpoints."""
        return {checkpoint.seq for checkpoint in newest_first[: self.n]}


class KeepBest(Policy):
    """Keep the `n` checkpoints with the highest value of a metric (lowest with `mode="min"`).

    Checkpoints without the metric are not kept.
    """

    def __init__(self, n: int, metric: str, *, mode: Mode = "max") -> None:
        check_option("mode", mode, Mode)
        self.n = _count(n)
        self.metric = _text(metric)
        self.mode = mode

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers of the best `n` checkpoints; of equal values, the newer is kept."""
        scored = [item for item in newest_first if self.metric in item.metrics]
        ranked = sorted(
            scored, key=lambda item: item.metrics[self.metric], reverse=self.mode == "max"
        )
        return {checkpoint.seq for checkpoint in ranked[: self.n]}


class KeepEvery(Policy):
    """Keep checkpoints whose number is a multiple of `n`.

    Numbers do not change, so pruning is idempotent.
    """

    def __init__(self, n: int) -> None:
        self.n = _count(n)

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers that are multiples of `n`."""
        return {checkpoint.seq for checkpoint in newest_first if checkpoint.seq % self.n == 0}


class KeepNewerThan(Policy):
    """Keep checkpoints younger than an age, in seconds or as a timedelta."""

    def __init__(self, age: float | timedelta) -> None:
        seconds = age.total_seconds() if isinstance(age, timedelta) else age
        known = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not known or not 0 <= seconds < 1e12:
            raise InvalidInputError(
                f"The age must be a number of seconds or a timedelta, not {short_repr(age)}."
            )
        self.seconds = seconds

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers of checkpoints younger than the age."""
        oldest = time.time() - self.seconds
        return {item.seq for item in newest_first if item.ts_ns / 1e9 >= oldest}


class KeepTagged(Policy):
    """Keep checkpoints that have at least one of the tags; without arguments, any tag."""

    def __init__(self, *tags: str) -> None:
        self.tags = frozenset(map(_text, tags))

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        """Return the numbers of checkpoints with a matching tag."""
        return {
            item.seq
            for item in newest_first
            if (self.tags.intersection(item.tags) if self.tags else item.tags)
        }


class _Any(Policy):
    def __init__(self, *policies: Policy) -> None:
        self.policies = policies

    def keep(self, newest_first: Sequence[Checkpoint]) -> set[int]:
        return set().union(*(policy.keep(newest_first) for policy in self.policies))


def _text(name: str) -> str:
    if not isinstance(name, str):
        raise InvalidInputError(f"A metric or tag must be a string, not {short_repr(name)}.")
    return name


def _count(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise InvalidInputError(
            f"The number n of a policy must be a positive integer, not {short_repr(n)}."
        )
    return n
