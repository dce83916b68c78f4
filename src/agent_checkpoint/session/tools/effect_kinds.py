"""Effect kinds: what a tool changes outside the session. Owns the table of their behaviour."""

from __future__ import annotations

from typing import Literal

from agent_checkpoint.named_tuple import NamedTuple

EffectKind = Literal["local", "read", "idempotent", "reversible", "irreversible"]


class EffectBehaviour(NamedTuple):
    """How a session treats the calls of tools of one kind."""

    is_external: bool = False
    """Whether a rollback does not undo it, so that the ledger records each call."""
    is_repeatable: bool = False
    """Whether a call may run again while the outcome of the first one is unknown."""
    is_compensable: bool = False
    """Whether the tool has a compensation, `undo=`."""
    is_final: bool = False
    """Whether it cannot be undone at all; a fork runs it only with `effects="allow"`."""


BEHAVIOURS: dict[str, EffectBehaviour] = {
    "local": EffectBehaviour(),
    "read": EffectBehaviour(),
    "idempotent": EffectBehaviour(is_external=True, is_repeatable=True),
    "reversible": EffectBehaviour(is_external=True, is_compensable=True),
    "irreversible": EffectBehaviour(is_external=True, is_final=True),
}


def behaviour_of(kind: str) -> EffectBehaviour:
    """Return the behaviour of a recorded kind; that of `irreversible` if the kind is unknown."""
    return BEHAVIOURS.get(kind, BEHAVIOURS["irreversible"])
