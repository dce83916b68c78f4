"""Small agents that many tests use."""

from typing import Any

from agent_checkpoint import Checkpointable, CheckpointManager


class Agent(Checkpointable):
    def __init__(self, count: int = 0) -> None:
        self.memory: list[Any] = []
        self.count = count
        self._client = object()


class Planner(Checkpointable):
    def __init__(self) -> None:
        self.plan = ["think"]


class TorchLike:
    """As a torch module: a state of its own, no base class of ours."""

    def __init__(self) -> None:
        self.weights = {"w": [0.0, 0.0]}

    def state_dict(self) -> dict[str, Any]:
        return self.weights

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> str:
        if set(state_dict) != set(self.weights):
            raise KeyError("wrong keys")
        self.weights = state_dict
        return "loaded"


def managers(tmp_path: Any) -> dict[str, CheckpointManager]:
    """Return a manager of every backend that is here without a server."""
    return {
        "memory": CheckpointManager(),
        "file": CheckpointManager(backend="file", path=tmp_path / "json"),
        "sqlite": CheckpointManager(backend="sqlite", path=tmp_path / "sqlite"),
        "pickle": CheckpointManager(backend="file", path=tmp_path / "pickle", fmt="pickle"),
    }
