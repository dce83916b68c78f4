"""Differences between the parts of two checkpoints. Owns how parts are named in a diff."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_checkpoint.core.diff import Changes, diff_states
from agent_checkpoint.manager.subjects import ONLY, states_of
from agent_checkpoint.records import JsonValue
from agent_checkpoint.store.reading import Reader


def compare(
    old: Mapping[str, JsonValue],
    new: Mapping[str, JsonValue],
    targets: Mapping[str, Any],
    *,
    deep: bool,
    trust_pickle: bool,
    reader: Reader,
) -> Changes:
    """Return what changed between two sets of parts; with several, names begin with the part's.

    Args:
        old: the parts before.
        new: the parts after.
        targets: live objects by part, whose type hints vouch for types.
        deep: name paths inside values.
        trust_pickle: load pickles without checking their seal.
        reader: gives what stands outside of the parts.

    Raises:
        StateError: a state cannot be decoded here.
    """
    before: dict[str, Any] = states_of(old, targets, trust_pickle=trust_pickle, reader=reader)
    after: dict[str, Any] = states_of(new, targets, trust_pickle=trust_pickle, reader=reader)
    if list(old) == list(new) == [ONLY]:
        return diff_states(before, after, deep=deep)
    before = {ONLY: before} if list(old) == [ONLY] else before
    after = {ONLY: after} if list(new) == [ONLY] else after
    changes: Changes = {"added": {}, "removed": {}, "changed": {}}
    for name in dict.fromkeys([*before, *after]):
        if name not in before:
            changes["added"][name] = after[name]
        elif name not in after:
            changes["removed"][name] = before[name]
        else:
            for how, found in diff_states(before[name], after[name], deep=deep).items():
                changes[how].update({_below(name, path): value for path, value in found.items()})
    return changes


def _below(part: str, path: str) -> str:
    return part + path if path.startswith("[") else f"{part}.{path}"
