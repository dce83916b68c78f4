"""A line of checkpoints with something of everything, to be carried from store to store."""

from collections import deque
from typing import Any

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, Log


class Carried(Checkpointable):
    def __init__(self, n: int = 0) -> None:
        self.n = n
        self.log: Log[Any] = Log({"n": n, "text": f"message {n} " * 20} for n in range(n * 30))
        self.blob = bytes(range(256)) * (10 * n)
        self.names = {f"name {n}": (n, {n}) for n in range(n * 100)}
        self.queue = deque([1.5, None, "é" * 3000], 5)
        self.look_alike = {"$ref": "0" * 64, "$blob": ["x"]}


def fill(manager: CheckpointManager) -> None:
    manager.save("other", {"not": "carried"})
    manager.save("key", Carried(1), label="first", tags=["good", "é"], metrics={"score": 0.5})
    manager.save("key", Carried(2))
    manager.save("key", Carried(3), label="gone")
    manager.delete("key", "key@3")
    with pytest.raises(KeyError), manager.rollback_context("key", agent := Carried(5)):
        manager.save("key", agent, label="within")
        raise KeyError
    manager.save("key", {"agent": Carried(2), "log": Log(["a part"])})
