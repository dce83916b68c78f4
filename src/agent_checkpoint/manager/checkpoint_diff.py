"""Differences between a checkpoint and another one, or an agent.

Owns what is compared with what, and how parts are named in a diff.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from agent_checkpoint.core.codec.encode import NewWriter
from agent_checkpoint.core.state_diff import Changes, diff_states
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.manager.parts import SINGLE_PART, capture, parts_of, states_of
from agent_checkpoint.records import Checkpoint, JsonValue
from agent_checkpoint.store.lookup import find, retry_if_pruned
from agent_checkpoint.store.objects.reader import Reader
from agent_checkpoint.store.store import Store


class DiffOptions(TypedDict, total=False):
    """What may be said about a diff; `CheckpointManager.diff` tells what it means."""

    agent: Any
    checkpoint_id_a: str | None
    checkpoint_id_b: str | None
    deep: bool
    trust_pickle: bool


class Comparison:
    """A diff that was asked for, with the agent's state as it was at that moment."""

    def __init__(
        self,
        new_writer: NewWriter,
        *,
        agent: Any = None,
        checkpoint_id_a: str | None = None,
        checkpoint_id_b: str | None = None,
        deep: bool = False,
        trust_pickle: bool = False,
    ) -> None:
        """Take the state of the agent, if there is one; writers are for what has its own objects.

        Raises:
            InvalidInputError: there is nothing to compare, or too much.
            StateError: the agent cannot be captured.
        """
        if agent is None and checkpoint_id_a is None and checkpoint_id_b is None:
            raise InvalidInputError("diff needs an agent, or the ids of one or two checkpoints.")
        if agent is not None and checkpoint_id_b is not None:
            raise InvalidInputError("diff compares with an agent or checkpoint_id_b, not both.")
        self._present = None if agent is None else capture(agent, new_writer=new_writer)
        # Live objects by part, whose type hints vouch for types.
        self._targets = {} if agent is None else parts_of(agent)
        self._before = checkpoint_id_a
        self._after = checkpoint_id_b
        self._deep = deep
        self._trust_pickle = trust_pickle

    def run(self, store: Store, key: str) -> Changes:
        """Return what changed; the key's latest checkpoint stands for an id that is not given.

        Raises:
            NotFoundError: there is no such key or checkpoint.
            StateError: a state cannot be decoded here.
        """
        return retry_if_pruned(
            store, lambda: self._found(store, key), lambda *found: self._compared(store, found)
        )

    def _found(self, store: Store, key: str) -> list[Checkpoint]:
        found = [find(store, key if self._before is None else self._before)]
        if self._present is None:
            found.append(find(store, key if self._after is None else self._after))
        return found

    def _compared(self, store: Store, found: Sequence[Checkpoint]) -> Changes:
        old = found[0].parts
        new = found[-1].parts if self._present is None else self._present
        reader = store.reader(*found)
        before, after = self._states(old, reader), self._states(new, reader)
        if list(old) == list(new) == [SINGLE_PART]:
            return diff_states(before[SINGLE_PART], after[SINGLE_PART], deep=self._deep)
        return self._by_part(before, after)

    def _states(self, parts: Mapping[str, JsonValue], reader: Reader) -> dict[str, Any]:
        states = states_of(parts, self._targets, trust_pickle=self._trust_pickle, reader=reader)
        return {SINGLE_PART: states} if list(parts) == [SINGLE_PART] else states

    def _by_part(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
        """Return what changed in several parts: names begin with the part's."""
        changes: Changes = {"added": {}, "removed": {}, "changed": {}}
        for name in dict.fromkeys([*before, *after]):
            if name not in before:
                changes["added"][name] = after[name]
            elif name not in after:
                changes["removed"][name] = before[name]
            else:
                for how, found in diff_states(before[name], after[name], deep=self._deep).items():
                    changes[how].update({_below(name, at): value for at, value in found.items()})
        return changes


def _below(part: str, path: str) -> str:
    if not path:  # a state that is no dict
        return part
    return part + path if path.startswith("[") else f"{part}.{path}"
