"""Runs one strategy on one fork. Owns its metrics and errors. Does not depend on the executor."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from agent_checkpoint.errors import CheckpointError, InvalidInputError, Suspended
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.branch.trial import SCORE
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.subagent import state_of
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.session.tools.invoke import run_if_awaitable

Strategy = Callable[..., Any]
_REPORTED = ("tokens", "cost")
"""Usage counters that an agent may have as attributes."""
_LEVELS = 6


def run_strategy(branch: Session, strategy: Strategy, variant: Mapping[str, Any]) -> dict[str, Any]:
    """Run a strategy in a fork; return metrics, error and head as JSON.

    Raises:
        KeyboardInterrupt: the user interrupted it.
    """
    began, calls, used = time.monotonic(), len(branch.calls), _reported(branch.agent)
    outcome: dict[str, Any] = {"metrics": {}, "error": None}
    try:
        with as_current(state_of(branch).root.tools):
            result = run_if_awaitable(strategy(branch, **variant))
        spent = {
            name: value - used.get(name, 0.0) for name, value in _reported(branch.agent).items()
        }
        outcome["metrics"] = {**spent, **_metrics(result)}
    except Suspended as waiting:
        outcome["error"] = f"Suspended: waiting for the approval {waiting.approval_id}."
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: it ends this trial only
        outcome["error"] = _with_traceback(error)
    outcome["steps"] = max(0, len(branch.calls) - calls)
    try:
        label = "end of the trial" if outcome["error"] is None else "the trial failed"
        outcome["head"] = _saved(branch, label, outcome["metrics"])
    except CheckpointError as error:
        outcome["head"] = branch.head
        outcome["error"] = outcome["error"] or f"The last checkpoint could not be saved: {error}"
    outcome["seconds"] = time.monotonic() - began
    return outcome


def _saved(branch: Session, label: str, metrics: Mapping[str, float]) -> str:
    """Save the last checkpoint, without metrics that a checkpoint cannot contain."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    try:
        return branch.save(label=label, metrics=finite)
    except InvalidInputError:
        return branch.save(label=label)


def _with_traceback(error: BaseException) -> str:
    """Return the description of an error and the last frames of its traceback."""
    last = traceback.format_tb(error.__traceback__)[-_LEVELS:]
    return describe_error(error) + "\n" + "".join(last)


def _metrics(result: Any) -> dict[str, float]:
    if result is None:
        return {}
    if isinstance(result, Mapping):
        return {str(name): _number(name, value) for name, value in result.items()}
    return {SCORE: _number(SCORE, result)}


def _number(name: Any, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"A strategy must return a number or a dict of numbers; {short_repr(name)} is a "
            f"{type(value).__name__}."
        ) from None


def _reported(agent: Any) -> dict[str, float]:
    """Return the usage counters of an agent, if it has them."""
    outcome = {}
    for name in _REPORTED:
        value = getattr(agent, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            outcome[name] = float(value)
    return outcome
