"""What came of trying several ways. Owns the figures and how they are compared; runs nothing."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import safe_repr, short_repr
from agent_checkpoint.session.tools.call_arguments import describe_call

if TYPE_CHECKING:
    from agent_checkpoint.core.state_diff import Changes
    from agent_checkpoint.session.explore.inspection import TrialInspection
    from agent_checkpoint.session.rollback.rollback_report import RollbackReport
    from agent_checkpoint.store.ledger.ledger import Effect
    from agent_checkpoint.workspace.tree.workspace_diff import WorkspaceDiff

_LONGEST = 60
SCORE = "score"
"""The metric that a strategy returns as a bare number."""


@dataclass
class Trial:
    """One run of one variant, in a fork of its own."""

    variant: dict[str, Any]
    number: int
    """Which of the variants it is, from 0."""
    repeat: int
    """Which of its runs, from 0."""
    key: str
    """The key of the fork."""
    head: str | None = None
    """The last checkpoint of the fork; None if it never began."""
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    """Why it failed; None if it came to its end."""
    seconds: float = 0.0
    ready: float = 0.0
    """How long it took until the strategy was called."""
    steps: int = 0
    """How many calls of tools it made."""
    place: str | None = None
    """Where it saw its files."""
    output: str = ""
    """The end of what its process wrote, if it had one of its own."""
    _inspection: TrialInspection | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether it came to its end without an error."""
        return self.error is None

    @property
    def score(self) -> float | None:
        """The metric `score`, if there is one."""
        return self.metrics.get(SCORE)

    @property
    def state_diff(self) -> Changes:
        """What changed in the state since the fork, by path. Raises CheckpointError."""
        return self._require_inspection.state(self._require_head)

    @property
    def file_diff(self) -> WorkspaceDiff | None:
        """What changed in the files since the fork, if there are any. Raises CheckpointError."""
        return self._require_inspection.files(self._require_head)

    @property
    def effects(self) -> list[Effect]:
        """What it did outside. Raises CheckpointError."""
        return self._require_inspection.effects(self.key)

    def adopt(self, *, merge: str | None = None) -> RollbackReport:
        """Make its end the session's present. Takes and raises what `Session.adopt` does."""
        return self._require_inspection.adopt(self, merge=merge)

    def take(self, found: dict[str, Any]) -> None:
        """Take in what came of it, plain JSON. Raises StorageError."""
        for name in ("metrics", "error", "seconds", "ready", "steps", "place", "output", "head"):
            if name in found:
                setattr(self, name, found[name])
        if self.head is None and self._inspection is not None:  # it could not tell any more
            self.head = self._inspection.head(self.key)

    def in_words(self) -> str:
        """Return the variant, and what came of it, in a line."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        end = "done" if self.error is None else self.error.splitlines()[0]
        return f"{_variant_label(self)}: {values or end}"

    def to_dict(self) -> dict[str, Any]:
        """Return what is known without reading the store, for JSON."""
        return {
            "variant": {str(name): _plain(value) for name, value in self.variant.items()},
            "number": self.number,
            "repeat": self.repeat,
            "key": self.key,
            "head": self.head,
            "ok": self.ok,
            "metrics": dict(self.metrics),
            "error": self.error,
            "seconds": self.seconds,
            "ready": self.ready,
            "steps": self.steps,
            "place": self.place,
            "output": self.output,
        }

    @property
    def _require_inspection(self) -> TrialInspection:
        if self._inspection is None:
            raise NotFoundError(f"The trial {short_repr(self.key)} was read from elsewhere.")
        return self._inspection

    @property
    def _require_head(self) -> str:
        if self.head is None:
            raise NotFoundError(f"The trial {short_repr(self.key)} never began: {self.error}")
        return self.head


@dataclass(frozen=True)
class Summary:
    """A metric of a variant over its runs."""

    n: int
    mean: float
    spread: float | None
    """The standard deviation of a sample; None of a single run, which tells nothing of it."""

    def __str__(self) -> str:
        return f"{self.mean:.4g}" + ("" if self.spread is None else f" ± {self.spread:.2g}")


class Outcome:
    """All trials of an exploration, in the order of the variants."""

    def __init__(self, trials: list[Trial]) -> None:
        self.trials = trials

    def __repr__(self) -> str:
        good = sum(trial.ok for trial in self.trials)
        return f"<Outcome: {good} of {len(self.trials)} trials came to their end>"

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def summary(self, number: int, metric: str = SCORE) -> Summary | None:
        """Return a metric of a variant over its runs; None if no run has it."""
        values = [trial.metrics[metric] for trial in self._runs(number, metric)]
        if not values:
            return None
        spread = statistics.stdev(values) if len(values) > 1 else None
        return Summary(len(values), statistics.fmean(values), spread)

    def best(self, metric: str = SCORE, *, mode: str = "max") -> Trial:
        """Return the best run of the variant that is best on average.

        Args:
            metric: by which; runs that failed do not count.
            mode: `max`, or `min` if less is better.

        Raises:
            InvalidInputError: it is neither.
            NotFoundError: no run has the metric.
        """
        if mode not in ("max", "min"):
            raise InvalidInputError(f"mode is max or min, not {short_repr(mode)}.")
        sign = 1 if mode == "max" else -1
        means = {}
        for number in {trial.number for trial in self.trials}:
            found = self.summary(number, metric)
            if found is not None:
                means[number] = sign * found.mean
        if not means:
            there = sorted({name for trial in self.trials for name in trial.metrics})
            errors = sorted({_first_line(trial.error) for trial in self.trials if trial.error})
            raise NotFoundError(
                f"No trial has the metric {short_repr(metric)}; there are: "
                f"{', '.join(there) or 'none'}. " + " ".join(errors)
            )
        number = max(means, key=lambda name: (means[name], -name))
        runs = self._runs(number, metric)
        return max(runs, key=lambda trial: (sign * trial.metrics[metric], -trial.repeat))

    def _runs(self, number: int, metric: str) -> list[Trial]:
        """Return the runs of a variant that have a metric; what is no number is none."""
        return [
            trial
            for trial in self.trials
            if trial.number == number
            and trial.ok
            and not math.isnan(trial.metrics.get(metric, math.nan))
        ]

    def table(self) -> str:
        """Return a table for people: a line for each variant, with its runs and their spread."""
        metrics = list(dict.fromkeys(name for trial in self.trials for name in trial.metrics))
        rows = [["variant", "runs", *metrics, "seconds", "steps", "error"]]
        for number in sorted({trial.number for trial in self.trials}):
            runs = [trial for trial in self.trials if trial.number == number]
            good = [trial for trial in runs if trial.ok]
            found = [self.summary(number, metric) for metric in metrics]
            errors = list(dict.fromkeys(trial.error for trial in runs if trial.error))
            rows.append(
                [
                    _variant_label(runs[0]),
                    f"{len(good)}/{len(runs)}",
                    *("" if summary is None else str(summary) for summary in found),
                    f"{statistics.fmean(trial.seconds for trial in runs):.2f}",
                    f"{statistics.fmean(trial.steps for trial in runs):.3g}",
                    _first_line(errors[0]) if errors else "",
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain lists and dicts, for JSON."""
        return {"trials": [trial.to_dict() for trial in self.trials]}


def _first_line(error: str) -> str:
    line = error.splitlines()[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _plain(value: Any) -> Any:
    """Return a value as JSON can have it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return safe_repr(value)
    return value


def _variant_label(trial: Trial) -> str:
    return describe_call("", trial.variant)[1:-1] or f"#{trial.number}"
