"""A15 for files: a secret that was in a captured file is in no file of the store after a purge."""

from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, Workspace
from agent_checkpoint.workspace.scan.reading import chunking, entry_reader

SECRET = "sk-very-secret-0123456789"


class AgentWithFiles(Checkpointable):
    def __init__(self) -> None:
        self.steps = 3


def options(backend: str, tmp_path: Path) -> dict[str, Any]:
    return {"backend": backend, "path": tmp_path / "store"}


@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_the_workspace_that_holds_it_goes_and_the_rest_stays(backend: str, tmp_path: Path) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    (root / "settings").write_text(f"key = {SECRET}\n")
    (root / "readme").write_text("fine")
    manager = CheckpointManager(**options(backend, tmp_path))
    workspace = Workspace(root, manager.store)
    manager.save("tainted", {"agent": AgentWithFiles(), "workspace": workspace})
    (root / "settings").unlink()
    manager.save("clean", {"workspace": workspace})

    report = manager.purge(SECRET)

    assert report.objects == 1
    assert manager.history("tainted")[0]["parts"] == ["agent"]
    assert manager.verify().problems == ()
    (root / "readme").write_text("spoilt")
    manager.load("clean", {"workspace": workspace})
    assert (root / "readme").read_text() == "fine"
    manager.close()
    for path in (tmp_path / "store").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_it_is_found_where_two_chunks_of_a_file_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_reader, "CHUNKED_FROM", 10)
    monkeypatch.setattr(chunking, "is_installed", lambda: False)
    monkeypatch.setattr(chunking, "_CHUNK", 32)
    root = tmp_path / "repo"
    root.mkdir()
    (root / "log").write_text(f"twenty bytes of pads {SECRET} and more of it\n")
    manager = CheckpointManager(**options("sqlite", tmp_path))
    manager.save("key", {"workspace": Workspace(root, manager.store)})
    assert len(manager.purge(SECRET, dry_run=True).checkpoints) == 1


def test_a_workspace_deep_in_a_large_state_is_found(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    (root / "settings").write_text(SECRET)
    manager = CheckpointManager(**options("sqlite", tmp_path))
    workspace = Workspace(root, manager.store)
    manager.save("key", {"n": 1, "a": {"workspace": workspace, "x": "x" * 900, "y": "y" * 900}})
    manager.purge(SECRET)
    manager.close()
    for path in (tmp_path / "store").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()
