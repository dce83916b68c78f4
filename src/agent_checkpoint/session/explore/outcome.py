"""Trials and outcome of an exploration. Owns metrics and their comparison; runs nothing."""

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
    """One run of one variant, in its own fork."""

    variant: dict[str, Any]
    number: int
    """The index of the variant, from 0."""
    repeat: int
    """The index of the run of this variant, from 0."""
    key: str
    """The key of the fork."""
    head: str | None = None
    """The last checkpoint of the fork; None if the fork was not created."""
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    """Why the trial failed; None if it succeeded."""
    seconds: float = 0.0
    ready: float = 0.0
    """Seconds until the strategy was called."""
    steps: int = 0
    """The number of tool calls."""
    place: str | None = None
    """The workspace path of the trial."""
    output: str = ""
    """The end of stdout and stderr, if the trial had its own process."""
    _inspection: TrialInspection | None = field(default=None, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the trial succeeded."""
        return self.error is None

    @property
    def score(self) -> float | None:
        """The metric `score`, if there is one."""
        return self.metrics.get(SCORE)

    @property
    def state_diff(self) -> Changes:
        """Changes of the state since the fork, by path. Raises CheckpointError."""
        return self._require_inspection.state(self._require_head)

    @property
    def file_diff(self) -> WorkspaceDiff | None:
        """Changes of the files since the fork, if there are files. Raises CheckpointError."""
        return self._require_inspection.files(self._require_head)

    @property
    def effects(self) -> list[Effect]:
        """The external side effects of the trial. Raises CheckpointError."""
        return self._require_inspection.effects(self.key)

    def adopt(self, *, merge: str | None = None) -> RollbackReport:
        """Adopt the trial in the explored session. Takes and raises as `Session.adopt` does."""
        return self._require_inspection.adopt(self, merge=merge)

    def set_result(self, result: dict[str, Any]) -> None:
        """Set the fields from the JSON result of the run. Raises StorageError."""
        for name in ("metrics", "error", "seconds", "ready", "steps", "place", "output", "head"):
            if name in result:
                setattr(self, name, result[name])
        if self.head is None and self._inspection is not None:  # its process died before reporting
            self.head = self._inspection.head(self.key)

    def in_words(self) -> str:
        """Return the variant and its metrics or error, on one line."""
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        end = "done" if self.error is None else self.error.splitlines()[0]
        return f"{_variant_label(self)}: {values or end}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values, without reading the store."""
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
            raise NotFoundError(f"The trial {short_repr(self.key)} is not attached to a session.")
        return self._inspection

    @property
    def _require_head(self) -> str:
        if self.head is None:
            raise NotFoundError(f"The trial {short_repr(self.key)} was not started: {self.error}")
        return self.head


@dataclass(frozen=True)
class Summary:
    """A metric of a variant over its runs."""

    n: int
    mean: float
    spread: float | None
    """The sample standard deviation; None for a single run."""

    def __str__(self) -> str:
        return f"{self.mean:.4g}" + ("" if self.spread is None else f" ± {self.spread:.2g}")


class Outcome:
    """All trials of an exploration, in the order of the variants."""

    def __init__(self, trials: list[Trial]) -> None:
        self.trials = trials

    def __repr__(self) -> str:
        good = sum(trial.ok for trial in self.trials)
        return f"<Outcome: {good} of {len(self.trials)} trials succeeded>"

    def __iter__(self) -> Iterator[Trial]:
        return iter(self.trials)

    def __len__(self) -> int:
        return len(self.trials)

    def summary(self, number: int, metric: str = SCORE) -> Summary | None:
        """Return mean and spread of a metric over the runs of a variant; None without values."""
        values = [trial.metrics[metric] for trial in self._runs(number, metric)]
        if not values:
            return None
        spread = statistics.stdev(values) if len(values) > 1 else None
        return Summary(len(values), statistics.fmean(values), spread)

    def best(self, metric: str = SCORE, *, mode: str = "max") -> Trial:
        """Return the best run of the variant with the best mean.

        Args:
            metric: the metric to compare; failed runs do not count.
            mode: `max`, or `min` if less is better.

        Raises:
            InvalidInputError: `mode` is neither.
            NotFoundError: no run has the metric.
        """
        if mode not in ("max", "min"):
            raise InvalidInputError(f"mode must be max or min, not {short_repr(mode)}.")
        sign = 1 if mode == "max" else -1
        means = {}
        for number in {trial.number for trial in self.trials}:
            summary = self.summary(number, metric)
            if summary is not None:
                means[number] = sign * summary.mean
        if not means:
            available = sorted({name for trial in self.trials for name in trial.metrics})
            errors = sorted({_first_line(trial.error) for trial in self.trials if trial.error})
            raise NotFoundError(
                f"No trial has the metric {short_repr(metric)}; available: "
                f"{', '.join(available) or 'none'}. " + " ".join(errors)
            )
        number = max(means, key=lambda name: (means[name], -name))
        runs = self._runs(number, metric)
        return max(runs, key=lambda trial: (sign * trial.metrics[metric], -trial.repeat))

    def _runs(self, number: int, metric: str) -> list[Trial]:
        """Return the successful runs of a variant with a metric; NaN counts as missing."""
        return [
            trial
            for trial in self.trials
            if trial.number == number
            and trial.ok
            and not math.isnan(trial.metrics.get(metric, math.nan))
        ]

    def table(self) -> str:
        """Return a text table: one line per variant, with mean and spread of its metrics."""
        metrics = list(dict.fromkeys(name for trial in self.trials for name in trial.metrics))
        rows = [["variant", "runs", *metrics, "seconds", "steps", "error"]]
        for number in sorted({trial.number for trial in self.trials}):
            runs = [trial for trial in self.trials if trial.number == number]
            good = [trial for trial in runs if trial.ok]
            summaries = [self.summary(number, metric) for metric in metrics]
            errors = list(dict.fromkeys(trial.error for trial in runs if trial.error))
            rows.append(
                [
                    _variant_label(runs[0]),
                    f"{len(good)}/{len(runs)}",
                    *("" if summary is None else str(summary) for summary in summaries),
                    f"{statistics.fmean(trial.seconds for trial in runs):.2f}",
                    f"{statistics.fmean(trial.steps for trial in runs):.3g}",
                    _first_line(errors[0]) if errors else "",
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def to_dict(self) -> dict[str, Any]:
        """Return all trials as plain lists and dicts, for JSON."""
        return {"trials": [trial.to_dict() for trial in self.trials]}


def _first_line(error: str) -> str:
    line = error.splitlines()[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _plain(value: Any) -> Any:
    """Return a value, or its repr if JSON cannot represent it."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return safe_repr(value)
    return value


def _variant_label(trial: Trial) -> str:
    return describe_call("", trial.variant)[1:-1] or f"#{trial.number}"
