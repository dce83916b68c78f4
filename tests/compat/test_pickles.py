"""A store with `fmt="pickle"`: its pickles name our modules, so those modules stay where they are.

`v1-pickle` was written before modules were moved into sub-packages; it stays as it is.
"""

import shutil
from pathlib import Path

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, Log
from agent_checkpoint.core import class_names

PICKLED = Path(__file__).resolve().parent / "v1-pickle"


@pytest.fixture(autouse=True)
def names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the classes of this file for this file alone: others have an Agent, too."""
    monkeypatch.setattr(class_names, "_classes", {})


def test_an_agent_with_logs_loads_from_a_pickle_store(tmp_path: Path) -> None:
    class Sub(Checkpointable):
        def __init__(self) -> None:
            self.n = 0
            self.log = Log[int]()

    class Agent(Checkpointable):
        def __init__(self) -> None:
            self.log = Log[dict[str, str]]()
            self.items: list[int] = []
            self.logs: dict[str, Log[str]] = {}
            self.sub = Sub()

    store = shutil.copytree(PICKLED, tmp_path / "store")
    agent = Agent()
    with CheckpointManager(backend="file", path=store, fmt="pickle") as manager:
        manager.load("agent", agent)
        plain = manager.state_dict("plain")
    assert list(agent.log) == [{"role": "user", "content": "hi"}]
    assert agent.items == [1, 2]
    assert list(agent.logs["a"]) == ["x"]
    assert (agent.sub.n, list(agent.sub.log)) == (1, [1])
    assert list(plain["log"]) == [1, 2, 3]
    assert plain["sd"] == agent.state_dict()
