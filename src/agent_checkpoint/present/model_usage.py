"""The model calls of a checkpoint in words: tokens, cost and time."""

from __future__ import annotations

from collections.abc import Mapping

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
