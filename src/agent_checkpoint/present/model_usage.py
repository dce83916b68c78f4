"""The model calls of a checkpoint in words: tokens, cost and time; their totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_TOKENS = ("input_tokens", "output_tokens")
_SHOWN = (*_TOKENS, "cost", "model_seconds")


def model_words(metrics: Mapping[str, float]) -> list[str]:
    """Return tokens (input + output), cost and time of the model calls; empty without any."""
    if "model_seconds" not in metrics:
        return []
    tokens = [f"{metrics[name]:,.0f}" for name in _TOKENS if name in metrics]
    words = [f"{'+'.join(tokens)} tokens"] if tokens else []
    words += [f"cost {metrics['cost']:.4g}"] if "cost" in metrics else []
    return [*words, f"{metrics['model_seconds']:.1f} s"]


def other_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that `model_words` does not show."""
    shown = _SHOWN if "model_seconds" in metrics else ()
    return {name: value for name, value in metrics.items() if name not in shown}


def usage_totals(rows: Iterable[Any]) -> dict[str, float]:
    """Return the totals of stored model calls, named as the metrics of a checkpoint; empty if none.

    `model_calls` counts them. A store may hold any value: other values are not counted.
    """
    totals: dict[str, float] = {}
    for row in rows:
        if not isinstance(row, dict):
            continue
        tokens = row.get("tokens")
        named = tokens.items() if isinstance(tokens, dict) else ()
        found = {f"{name}_tokens": count for name, count in named}
        found.update(cost=row.get("cost"), model_seconds=row.get("seconds"), model_calls=1)
        for name, value in found.items():
            if type(value) in (int, float):
                totals[name] = totals.get(name, 0) + value
    return totals
