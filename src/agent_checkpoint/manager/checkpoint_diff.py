"""Compares two checkpoints, or a checkpoint and a live agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_checkpoint.core.codec.encode import NewWriter
from agent_checkpoint.core.state_diff import diff_states
from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.manager.checkpoint_parts import SINGLE_PART, capture, parts_of, states_of
from agent_checkpoint.records import Changes, ChangeTable, Checkpoint, JsonValue
from agent_checkpoint.store.lookup import find, retry_if_pruned
from agent_checkpoint.store.objects.reader import Reader
from agent_checkpoint.store.store import Store


class Comparison:
    """A requested diff, with the state of the agent at the time of the request."""

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
        """Capture the state of the agent, if one is given.

        `new_writer` creates writers for parts that write their own objects.

        Raises:
            InvalidInputError: neither an agent nor an id is given, or both agent and a second id.
            StateError: the agent cannot be captured.
        """
        if agent is None and checkpoint_id_a is None and checkpoint_id_b is None:
            raise InvalidInputError("diff needs an agent, or the ids of one or two checkpoints.")
        if agent is not None and checkpoint_id_b is not None:
            raise InvalidInputError("diff compares with an agent or checkpoint_id_b, not both.")
        self._current = None if agent is None else capture(agent, new_writer=new_writer)
        # Live objects by part: their type hints allow types to be decoded.
        self._targets = {} if agent is None else parts_of(agent)
        self._before = checkpoint_id_a
        self._after = checkpoint_id_b
        self._deep = deep
        self._trust_pickle = trust_pickle

    def run(self, store: Store, key: str) -> Changes:
        """Return the changes. An omitted id defaults to the latest checkpoint of the key.

        Raises:
            NotFoundError: there is no such key or checkpoint.
            StateError: a state cannot be decoded.
        """
        return retry_if_pruned(
            store,
            lambda: self._find_checkpoints(store, key),
            lambda *checkpoints: self._compare(store, checkpoints),
        )

    def _find_checkpoints(self, store: Store, key: str) -> list[Checkpoint]:
        ids = [self._before] if self._current is not None else [self._before, self._after]
        return [find(store, key if name is None else name, base=key) for name in ids]

    def _compare(self, store: Store, checkpoints: Sequence[Checkpoint]) -> Changes:
        old = checkpoints[0].parts
        new = checkpoints[-1].parts if self._current is None else self._current
        reader = store.reader(*checkpoints)
        before, after = self._states(old, reader), self._states(new, reader)
        if list(old) == list(new) == [SINGLE_PART]:
            return diff_states(before[SINGLE_PART], after[SINGLE_PART], deep=self._deep)
        return self._by_part(before, after)

    def _states(self, parts: Mapping[str, JsonValue], reader: Reader) -> dict[str, Any]:
        states = states_of(parts, self._targets, trust_pickle=self._trust_pickle, reader=reader)
        return {SINGLE_PART: states} if list(parts) == [SINGLE_PART] else states

    def _by_part(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
        """Return the changes of several parts; each path starts with its part name."""
        changes = ChangeTable()
        for name in dict.fromkeys([*before, *after]):
            if name not in before:
                changes["added"][name] = after[name]
            elif name not in after:
                changes["removed"][name] = before[name]
            else:
                for how, paths in diff_states(before[name], after[name], deep=self._deep).items():
                    changes[how].update({_below(name, at): value for at, value in paths.items()})
        return changes


def _below(part: str, path: str) -> str:
    if not path:  # a state that is not a dict
        return part
    return part + path if path.startswith("[") else f"{part}.{path}"
