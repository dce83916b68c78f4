"""Files that look like secrets are found by name, within bounds, and left out on request."""

import os
from pathlib import Path

import pytest

from agent_checkpoint import MemoryBackend, Workspace
from agent_checkpoint.errors import WorkspaceError
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.ignore.secret_files import leave_out, secret_files


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_by_name(tmp_path: Path) -> None:
    secrets = [".env", ".env.local", "deploy/id_rsa", "deploy/server.PEM", "a/b/c/credentials.json"]
    others = [".env.example", "app.py", "deploy/id_rsa.pub", "environment.py", "keys.py"]
    skipped = ["node_modules/x/.env", ".git/.env", "a/b/c/d/e/f/.env"]
    make(tmp_path, *secrets, *others, *skipped)
    os.symlink("/etc", tmp_path / "link.pem")
    (tmp_path / "dir.key").mkdir()
    assert secret_files(tmp_path) == sorted(secrets)


def test_contents_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pem")  # reading would hang
    make(tmp_path, ".env")
    (tmp_path / ".env").chmod(0)
    assert secret_files(tmp_path) == [".env"]


def test_what_is_left_out_is_not_saved_and_not_named_again(tmp_path: Path) -> None:
    make(tmp_path, ".env", "odd [name]*.pem", "odd n.pem", "app.py")
    (tmp_path / ".checkpointignore").write_text("*.log")  # without an end of line
    leave_out(tmp_path, [".env", "odd [name]*.pem"])
    assert secret_files(tmp_path) == ["odd n.pem"]
    assert (tmp_path / ".checkpointignore").read_text().startswith("*.log\n/.env\n")
    with Workspace(tmp_path, Store(MemoryBackend()), watch=False) as workspace:
        tree = workspace.snapshot()
        assert sorted(workspace.left_out) == [".env", "odd [name]*.pem"]
        assert tree.files == 3


def test_an_ignore_file_that_is_none(tmp_path: Path) -> None:
    target = tmp_path / "other"
    target.write_text("")
    root = tmp_path / "root"
    make(root, ".env")
    (root / ".checkpointignore").symlink_to(target)
    with pytest.raises(WorkspaceError, match="Cannot write"):
        leave_out(root, [".env"])
    assert target.read_text() == ""
    (root / ".checkpointignore").unlink()
    os.mkfifo(root / ".checkpointignore")
    with pytest.raises(WorkspaceError, match="not a regular file"):
        leave_out(root, [".env"])
