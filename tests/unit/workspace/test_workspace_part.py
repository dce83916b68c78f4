"""A workspace within other states: where a load finds it, and what cannot be one."""

from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, StateError, Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    (root / "file").write_text("before")
    return root


class AgentAtWork(Checkpointable):
    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.steps = 1


def test_an_attribute_is_restored_in_place(root: Path) -> None:
    manager = CheckpointManager()
    agent = AgentAtWork(Workspace(root))
    manager.save("key", agent)
    (root / "file").write_text("after")
    agent.steps = 2
    manager.load("key", agent)
    assert (root / "file").read_text() == "before"
    assert agent.steps == 1
    assert isinstance(agent.workspace, Workspace)


def test_a_member_of_a_plain_dict_is_restored_in_place(root: Path) -> None:
    manager = CheckpointManager()
    state: dict[str, Any] = {"steps": 1, "workspace": Workspace(root)}
    manager.save("key", state)
    (root / "file").write_text("after")
    manager.load("key", state)
    assert (root / "file").read_text() == "before"
    assert isinstance(state["workspace"], Workspace)


def test_files_go_back_if_another_part_refuses_its_state(root: Path) -> None:
    class Stubborn:
        def state_dict(self) -> dict[str, int]:
            return {"a": 1}

        def load_state_dict(self, state: Any) -> None:
            raise ValueError("no")

    manager = CheckpointManager()
    workspace = Workspace(root, manager.store)
    manager.save("key", {"workspace": workspace, "other": Stubborn()})
    (root / "file").write_text("after")
    with pytest.raises(StateError, match="other rejected the state"):
        manager.load("key", {"workspace": workspace, "other": Stubborn()})
    assert (root / "file").read_text() == "after"


@pytest.mark.parametrize("backend", ["memory", "file"])
def test_a_workspace_is_no_pickle(root: Path, tmp_path: Path, backend: str) -> None:
    where: dict[str, Any] = {} if backend == "memory" else {"path": tmp_path / "store"}
    manager = CheckpointManager(backend=backend, fmt="pickle", **where)
    manager.save("key", {"workspace": Workspace(root, manager.store)})
    with pytest.raises(StateError, match=r"agent\.workspace \(\S+\) cannot be captured"):
        manager.save("key", AgentAtWork(Workspace(root, manager.store)))
