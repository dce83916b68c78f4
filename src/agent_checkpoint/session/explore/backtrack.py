"""`backtrack`: tries variants on the session itself and rolls back after each failure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint.errors import StorageError
from agent_checkpoint.options import RollbackEffects
from agent_checkpoint.session.current_session import as_current
from agent_checkpoint.session.explore.trial_run import Strategy
from agent_checkpoint.session.session import Session
from agent_checkpoint.session.subagent import state_of
from agent_checkpoint.session.tools.call_arguments import describe_call, describe_error
from agent_checkpoint.session.tools.invoke import run_if_awaitable


@dataclass
class Backtracking:
    """The outcome of `backtrack`; true if a variant was accepted."""

    variant: dict[str, Any] | None = None
    """The accepted variant; the session keeps its state."""
    result: Any = None
    """The result of the strategy for the accepted variant."""
    failures: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    """The variants that failed, each with the reason."""

    def __bool__(self) -> bool:
        return self.variant is not None


def backtrack(
    session: Session,
    strategy: Strategy,
    variants: Iterable[Mapping[str, Any]],
    *,
    accept: Callable[[Any], object] = lambda result: True,
    effects: RollbackEffects = "refuse",
) -> Backtracking:
    """Try variants in order until one is accepted; roll back after each that fails.

    Args:
        session: the session to work on; it is not forked.
        strategy: called with the session and a variant's values as keywords; fails by raising.
        variants: the variants, in order.
        accept: returns whether a result is accepted.
        effects: the rollback policy for external side effects; see `Session.rollback`.

    Raises:
        RollbackRefusedError: a variant failed after an effect that cannot be undone.
        CheckpointError: the session cannot be saved or rolled back.
    """
    outcome = Backtracking()
    start = session.save(label="backtrack")
    for item in variants:
        variant = dict(item)
        try:
            with as_current(state_of(session).root.tools):
                result = run_if_awaitable(strategy(session, **variant))
            if accept(result):
                outcome.variant, outcome.result = variant, result
                redactor = session.manager.policy.redactor
                session.save(label=describe_call("backtrack", variant, redactor))
                return outcome
            why = f"not accepted: {result!r}"[:200]
        except StorageError:
            raise  # every other variant would fail as well
        except Exception as error:
            why = describe_error(error)
        session.rollback(to=start, effects=effects)
        outcome.failures.append((variant, why))
    return outcome
