"""Trying variants on the session itself, one after another, until one is good. Owns going back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.errors import StorageError
from agent_checkpoint.session.explore.trial_run import Strategy
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.tools.call_arguments import describe_call, describe_error
from agent_checkpoint.session.tools.invoke import run_if_awaitable


@dataclass
class Backtracking:
    """What came of it; true if a variant was good."""

    variant: dict[str, Any] | None = None
    """The one that was good; the session is where it led."""
    result: Any = None
    """What the strategy returned for it."""
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    """The others before it, and why they were not."""

    def __bool__(self) -> bool:
        return self.variant is not None


def backtrack(
    session: Session,
    strategy: Strategy,
    variants: Iterable[Mapping[str, Any]],
    *,
    accept: Callable[[Any], object] = lambda result: True,
    effects: str = "refuse",
) -> Backtracking:
    """Try one variant after another; after each that fails, go back to where it began.

    Args:
        session: what is worked on; there is no fork.
        strategy: called with the session and a variant's values as keywords. It fails by raising.
        variants: what to try, in this order.
        accept: tells whether a result is good enough.
        effects: what to do on the way back about things done outside; see `Session.rollback`.

    Raises:
        RollbackRefusedError: a variant failed after it had done something that cannot be undone.
        CheckpointError: the session cannot be saved, or not go back.
    """
    found = Backtracking()
    start = session.save(label="backtrack")
    for item in variants:
        variant = dict(item)
        try:
            with session._as_current():
                result = run_if_awaitable(strategy(session, **variant))
            if accept(result):
                found.variant, found.result = variant, result
                session.save(label=describe_call("backtrack", variant))
                return found
            why = f"not accepted: {result!r}"[:200]
        except StorageError:
            raise  # the next one would fail, too
        except Exception as error:
            why = describe_error(error)
        session.rollback(to=start, effects=effects)
        found.failures.append((variant, why))
    return found
