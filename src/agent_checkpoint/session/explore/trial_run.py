"""One strategy on one fork, and what came of it. Owns reading its result; knows no executor."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import CheckpointError, InvalidInputError, Suspended
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.explore.outcome import SCORE
from agent_checkpoint.session.tools.call_arguments import describe_error
from agent_checkpoint.session.tools.invoke import run_if_awaitable

if TYPE_CHECKING:
    from agent_checkpoint.session.session import Session

Strategy = Callable[..., Any]
_REPORTED = ("tokens", "cost")
"""Numbers that an agent may have about itself."""
_LEVELS = 6


def run_strategy(branch: Session, strategy: Strategy, variant: Mapping[str, Any]) -> dict[str, Any]:
    """Run a strategy in a fork to its end, whatever that is; return plain JSON about it.

    Raises:
        KeyboardInterrupt: a person has stopped it.
    """
    began, calls, used = time.monotonic(), len(branch.calls), _reported(branch.agent)
    found: dict[str, Any] = {"metrics": {}, "error": None}
    try:
        with branch._as_current():
            result = run_if_awaitable(strategy(branch, **variant))
        spent = {
            name: value - used.get(name, 0.0) for name, value in _reported(branch.agent).items()
        }
        found["metrics"] = {**spent, **_metrics(result)}
    except Suspended as waiting:
        found["error"] = f"It waits for the approval {waiting.approval_id}."
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: it is an end of this trial alone
        found["error"] = _with_traceback(error)
    found["steps"] = max(0, len(branch.calls) - calls)
    try:
        label = "end of the trial" if found["error"] is None else "the trial failed"
        found["head"] = _saved(branch, label, found["metrics"])
    except CheckpointError as error:
        found["head"] = branch.head
        found["error"] = found["error"] or f"Its end could not be saved: {error}"
    found["seconds"] = time.monotonic() - began
    return found


def _saved(branch: Session, label: str, metrics: Mapping[str, float]) -> str:
    """Save the end; what no checkpoint can have as a metric is in the outcome alone."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    try:
        return branch.save(label=label, metrics=finite)
    except InvalidInputError:
        return branch.save(label=label)


def _with_traceback(error: BaseException) -> str:
    """Return an error for a person: what it is, and the last lines of where it came from."""
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
            f"A strategy returns a number, or numbers by name; {short_repr(name)} is a "
            f"{type(value).__name__}."
        ) from None


def _reported(agent: Any) -> dict[str, float]:
    """Return what an agent tells about all that it has used so far, if it does."""
    found = {}
    for name in _REPORTED:
        value = getattr(agent, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found[name] = float(value)
    return found
