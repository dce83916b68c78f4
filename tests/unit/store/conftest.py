"""An archive to import."""

from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager
from tests.unit.store.carried import fill


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    manager = CheckpointManager()
    fill(manager)
    manager.export_archive(tmp_path / "a.ckpt", "key")
    return tmp_path / "a.ckpt"
