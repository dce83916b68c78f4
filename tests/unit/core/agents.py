"""The objects whose states the tests of `core` take, and the way through JSON text."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from agent_checkpoint import Checkpointable
from tests.exact import as_json, decode_state


class MyAgent(Checkpointable):
    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.config: dict[str, Any] = {}
        self.call_count = 0
        self._cache: dict[str, Any] = {}


class PinnedAgent(Checkpointable):
    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.config: dict[str, Any] = {}
        self.call_count = 0
        self._cache: dict[str, Any] = {}

    def _checkpoint_fields(self) -> "list[str]":
        return ["memory", "call_count"]

    def _checkpoint_version(self) -> str:
        return "2.0"


class Holder(Checkpointable):
    """Has one attribute, `part`, of any kind."""

    def __init__(self, part: Any = None) -> None:
        self.part = part


class Skill(Checkpointable):
    def __init__(self, name: str = "read", level: int = 1) -> None:
        self.name = name
        self.level = level
        self._client = object()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skill) and (self.name, self.level) == (other.name, other.level)

    __hash__ = None  # type: ignore[assignment]


class Guarded(Checkpointable):
    """Refuses a negative `b`, in the middle of its fields."""

    def __init__(self) -> None:
        self.a: Any = 1
        self.b = 1
        self.c: Any = 1

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "b" and value < 0:
            raise ValueError("b is negative")
        super().__setattr__(name, value)


@dataclass
class Remark:
    content: Any
    tags: "list[str]" = field(default_factory=list)


class Module:
    """A Stateful of another kind, as in torch: an own class of mapping, strict by default."""

    def __init__(self) -> None:
        self.weights = [0.0]

    def state_dict(self) -> "OrderedDict[str, Any]":
        return OrderedDict(weights=list(self.weights))

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        if strict and set(state_dict) != {"weights"}:
            raise KeyError(f"unexpected keys {sorted(state_dict)}")
        self.weights = list(state_dict["weights"])


class StateModule:
    """As in AgentScope 1.x: its state is its live attributes, and it keeps what it is given."""

    def __init__(self) -> None:
        self.content: list[Any] = []

    def state_dict(self) -> "dict[str, Any]":
        return {"content": self.content}

    def load_state_dict(self, state_dict: "dict[str, Any]", strict: bool = True) -> None:
        self.content = state_dict["content"]


def reloaded(agent: Any, fresh: Any) -> Any:
    """Return `fresh` after it has taken over the agent's state, by way of JSON text."""
    fresh.load_state_dict(decode_state(as_json(agent), "agent", fresh))
    return fresh
