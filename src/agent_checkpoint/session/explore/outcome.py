"""Outcome of an exploration. Owns the comparison of metrics; runs nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.options import Mode, check_option
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.branch.trial import SCORE, Trial, variant_label

_LONGEST = 60


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

    def best(self, metric: str = SCORE, *, mode: Mode = "max") -> Trial:
        """Return the best run of the variant with the best mean.

        Args:
            metric: the metric to compare; failed runs do not count.
            mode: `max`, or `min` if less is better.

        Raises:
            InvalidInputError: `mode` is neither `max` nor `min`.
            NotFoundError: no run has the metric.
        """
        check_option("mode", mode, Mode)
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

    def _repr_html_(self) -> str:
        with block_forks():
            from agent_checkpoint import notebook  # only in notebooks

        heads, *rows = self._rows()
        return notebook.table(heads, rows)

    def table(self) -> str:
        """Return a text table: one line per variant, with mean and spread of its metrics."""
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])

    def _rows(self) -> list[list[str]]:
        """Return the cells of the table, with its heads first."""
        metrics = list(dict.fromkeys(name for trial in self.trials for name in trial.metrics))
        rows = [["variant", "runs", *metrics, "seconds", "steps", "error"]]
        for number in sorted({trial.number for trial in self.trials}):
            runs = [trial for trial in self.trials if trial.number == number]
            good = [trial for trial in runs if trial.ok]
            summaries = [self.summary(number, metric) for metric in metrics]
            errors = list(dict.fromkeys(trial.error for trial in runs if trial.error))
            rows.append(
                [
                    variant_label(runs[0]),
                    f"{len(good)}/{len(runs)}",
                    *("" if summary is None else str(summary) for summary in summaries),
                    f"{statistics.fmean(trial.seconds for trial in runs):.2f}",
                    f"{statistics.fmean(trial.steps for trial in runs):.3g}",
                    _first_line(errors[0]) if errors else "",
                ]
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return all trials as plain lists and dicts, for JSON."""
        return {"trials": [trial.to_dict() for trial in self.trials]}


def _first_line(error: str) -> str:
    line = error.splitlines()[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
