"""Types of the keyword options of the manager's verbs.

Only type checkers need them, and a TypedDict compiles each of its annotations: nothing loads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict


class SaveOptions(TypedDict, total=False):
    """Options of a save."""

    label: str | None
    tags: Iterable[str]
    metrics: Mapping[str, float] | None
    parents: Sequence[str] | None
    expected_head: str | None


class LoadOptions(TypedDict, total=False):
    """Options of a load."""

    strict: bool
    trust_pickle: bool


class DiffOptions(TypedDict, total=False):
    """Options of a diff; see `CheckpointManager.diff`."""

    agent: Any
    checkpoint_id_a: str | None
    checkpoint_id_b: str | None
    deep: bool
    trust_pickle: bool
