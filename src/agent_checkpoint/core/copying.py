"""Copies of values that share nothing with the original.

Owns the snapshot and its opposite, the rebuilding of nested objects; knows no JSON.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from agent_checkpoint.core.checkpointable import Checkpointable
from agent_checkpoint.core.encode import state_of
from agent_checkpoint.core.stateful import StateDict
from agent_checkpoint.core.trouble import MAX_DEPTH, TooDeep, Trouble, blame, key_piece
from agent_checkpoint.core.values import LEAVES

_ATOMS = frozenset({type(None), bool, int, float, str, *LEAVES}) - {bytearray}


def snapshot(value: Any, depth: int = 0) -> Any:
    """Return a deep copy in which nested Checkpointables are their states.

    Raises:
        Trouble: a part cannot be copied, is too deep, or is an object where none can be a state.
    """
    if isinstance(value, Checkpointable):
        value = state_of(value)
    return _copy(value, depth, snapshot)


def _copy(value: Any, depth: int, descend: Callable[[Any, int], Any]) -> Any:
    kind = type(value)
    if kind in _ATOMS:
        return value
    if depth > MAX_DEPTH:
        raise TooDeep
    if kind in (list, tuple, deque):
        return _sequence(value, depth, descend)
    if kind in (dict, OrderedDict, defaultdict, StateDict):
        return _mapping(value, depth, descend)
    try:
        return copy.deepcopy(value)
    except Exception as error:
        trouble = Trouble(
            f"cannot be copied ({type(error).__name__}). Keep it in an attribute with a leading "
            "underscore, or leave it out of _checkpoint_fields()."
        )
        trouble.pieces = blame(value, copy.deepcopy)
        raise trouble from error


def _sequence(value: Any, depth: int, descend: Callable[[Any, int], Any]) -> Any:
    done: list[Any] = []
    try:
        for item in value:
            done.append(descend(item, depth + 1))
    except Trouble as trouble:
        raise trouble.at(f"[{len(done)}]") from trouble.__cause__
    if type(value) is list:
        return done
    return tuple(done) if type(value) is tuple else deque(done, value.maxlen)


def _mapping(value: Any, depth: int, descend: Callable[[Any, int], Any]) -> Any:
    done: dict[Any, Any]
    if type(value) is StateDict:
        done = StateDict(types=value.types)
    elif type(value) is defaultdict:
        done = defaultdict(value.default_factory)
    else:
        done = type(value)()
    for key, item in value.items():
        try:
            done[key] = descend(item, depth + 1)
        except Trouble as trouble:
            raise trouble.at(key_piece(key)) from trouble.__cause__
    return done


def rebuilt(value: Any, rebuild: Callable[[StateDict], Any], depth: int = 0) -> Any:
    """Return a deep copy in which nested states are objects again.

    Raises:
        Trouble: a part cannot be copied, or a state cannot be made an object.
    """
    if isinstance(value, StateDict):
        return rebuild(value)
    return _copy(value, depth, lambda item, below: rebuilt(item, rebuild, below))
