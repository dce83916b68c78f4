"""Golden stores, copied before anything opens them: a store is never only read."""

import json
import shutil
from pathlib import Path
from typing import Any, Callable

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.store.objects import compression
from tests.compat import subjects

V1 = Path(__file__).resolve().parent / "v1"
STORES = ("sqlite", "file", "sqlite-zstd")
ARCHIVES = ("fork.ckpt", "imported.ckpt", "workspace.ckpt")

Open = Callable[[str], CheckpointManager]


def expected(name: str) -> dict[str, list[dict[str, Any]]]:
    """Return what must be in a golden store or archive, by key, oldest first."""
    found: dict[str, list[dict[str, Any]]] = json.loads(
        (V1 / "expected.json").read_text(encoding="utf-8")
    )[name]
    return found


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", subjects.SECRET_OF_PICKLES)


@pytest.fixture
def open_golden(tmp_path: Path) -> Open:
    """Open a copy of a golden store, or the store that an archive is imported into."""

    def open_copy(name: str) -> CheckpointManager:
        if name == "sqlite-zstd" and compression.load_zstd() is None:
            pytest.skip("zstd is not installed here")
        if name in ARCHIVES:
            manager = CheckpointManager(backend="sqlite", path=tmp_path / name)
            manager.import_archive(V1 / name)
            return manager
        shutil.copytree(V1 / name, tmp_path / name)
        return CheckpointManager(backend=name.partition("-")[0], path=tmp_path / name)

    return open_copy
