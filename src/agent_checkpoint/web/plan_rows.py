"""The plan of a restore as rows for pages. Owns the number of paths shown."""

from __future__ import annotations

from collections.abc import Mapping

from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.workspace.restore.plan import Plan

_MAX_PATHS = 200


class PlanRow(NamedTuple):
    """What happens to some paths."""

    words: str
    paths: list[str]
    """Some of them, with the reason where there is one."""
    number: int
    """How many there are."""


def plan_rows(plan: Plan, not_mine: Mapping[str, str] | None = None) -> list[PlanRow]:
    """Return what a plan changes, deletes and leaves alone.

    Args:
        plan: the plan.
        not_mine: paths that are kept because others changed them, each with the reason.
    """
    kept = {**plan.leave, **(not_mine or {})}
    lists = [
        ("write", plan.write),
        ("delete", plan.delete),
        ("change mode", plan.mode),
        ("keep unchanged", [f"{path}: {why}" for path, why in kept.items()]),
        ("keep a copy", [f"{path} as {where}" for path, where in plan.kept.items()]),
        ("open for writing in another process", plan.open),
        ("only in the safety checkpoint", plan.unseen),
        ("git", plan.git),
    ]
    return [PlanRow(words, list(paths[:_MAX_PATHS]), len(paths)) for words, paths in lists if paths]
