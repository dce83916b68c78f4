"""What several tests of workspaces share; a module says otherwise where it needs another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.workspace.scan.reading import entry_reader
from agent_checkpoint.workspace.tree.snapshot import Tree
from tests.unit.workspace.disk import make


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with what the module calls THINGS."""
    root = tmp_path / "root"
    root.mkdir()
    make(root, request.module.THINGS)
    return root


@pytest.fixture
def manager() -> CheckpointManager:
    return CheckpointManager()


@pytest.fixture
def ws(root: Path, manager: CheckpointManager) -> Iterator[Workspace]:
    with Workspace(root, manager.store) as workspace:
        yield workspace


@pytest.fixture
def tree(ws: Workspace) -> Tree:
    return ws.snapshot()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> "list[bytes]":
    """The names of the files that are read."""
    names: list[bytes] = []
    read = entry_reader.read_whole

    def counted(directory: int, name: bytes) -> Any:
        names.append(name)
        return read(directory, name)

    monkeypatch.setattr(entry_reader, "read_whole", counted)
    return names
