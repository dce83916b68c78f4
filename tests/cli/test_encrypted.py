"""Encrypted stores on the command line: by URL, without a key, and a rotation."""

from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from agent_checkpoint import CheckpointManager
from tests.cli.scene import scene
from tests.cli.world import run

OLD = "correct horse battery staple"
WORD = b"Xylophone"


@pytest.fixture
def keys(tmp_path: Path) -> "tuple[Path, Path]":
    paths = tmp_path / "old.key", tmp_path / "new.key"
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number] * 32))
        path.chmod(0o600)
    return paths


@pytest.fixture
def url(tmp_path: Path, keys: "tuple[Path, Path]") -> str:
    return f"sqlite://{tmp_path}/secret-store?encryption_key_file={keys[0]}"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    files = tmp_path / "files"
    files.mkdir()
    (files / "Xylophone.txt").write_bytes(WORD)
    return files


def test_every_command_works_with_a_key(url: str, files: Path, tmp_path: Path) -> None:
    assert run("--store", url, "save", "--label", "Xylophone", at=files).status == 0
    (files / "Xylophone.txt").write_text("other")
    assert run("--store", url, "save", at=files).status == 0
    for typed in (
        ["log"],
        ["keys"],
        ["stats"],
        ["verify"],
        ["gc"],
        ["diff", "@1", "@2"],
        ["doctor"],
    ):
        assert run("--store", url, *typed, at=files).status == 0, typed
    assert run("--store", url, "restore", "@1", "--yes", at=files).status == 0
    assert (files / "Xylophone.txt").read_bytes() == WORD
    key = run("--store", url, "keys", "--json").data[0]["key"]
    archive = tmp_path / "archive"
    assert run("--store", url, "export", key, archive).status == 0
    with CheckpointManager(tmp_path / "plain") as manager:
        manager.import_archive(archive)  # an archive is plaintext
        assert len(manager.history(key)) >= 2
    for file in (tmp_path / "secret-store").rglob("*"):
        assert file.is_dir() or WORD not in file.read_bytes()


def test_an_archive_is_imported_into_an_encrypted_store(url: str, tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "plain") as manager:
        manager.save("a", {"n": "Xylophone"})
        manager.export_archive(tmp_path / "archive", "a")
    assert run("--store", url, "import", tmp_path / "archive").status == 0
    with CheckpointManager(url) as manager:
        assert manager.state_dict("a") == {"n": "Xylophone"}
    for file in (tmp_path / "secret-store").rglob("*"):
        assert file.is_dir() or WORD not in file.read_bytes()


def test_without_a_key_the_url_is_explained(url: str, files: Path, tmp_path: Path) -> None:
    assert run("--store", url, "save", at=files).status == 0
    for typed in (["save"], ["keys"], ["log"], ["verify"], ["gc"]):
        found = run("--store", tmp_path / "secret-store", *typed, at=files)
        assert found.status == 1
        assert "is encrypted. Name its key in the URL: --store '…?encryption_key_file" in found.err
        assert "encryption_key=" not in found.err


def test_a_key_is_rotated(
    url: str, keys: "tuple[Path, Path]", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
    for _ in range(2):  # the second finds it done
        done = run("--store", url, "rotate-key", "--to-file", keys[1], "--json")
        assert (done.status, done.data) == (0, {"done": True})
    assert run("--store", url, "keys").status == 1
    new = url.replace("old.key", "new.key")
    assert [row["key"] for row in run("--store", new, "keys", "--json").data] == ["a"]
    monkeypatch.setenv("THE_KEY", OLD)
    assert "Only the new key" in run("--store", new, "rotate-key", "--to-env", "THE_KEY").out
    last = f"sqlite://{tmp_path}/secret-store?encryption_key_env=THE_KEY"
    assert [row["key"] for row in run("--store", last, "keys", "--json").data] == ["a"]


def test_a_rotation_that_is_refused(url: str, keys: "tuple[Path, Path]", tmp_path: Path) -> None:
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
    assert run("--store", url, "rotate-key").status == 2
    assert run("--store", url, "rotate-key", "--to-file", keys[1], "--to-env", "A").status == 2
    assert run("--store", url, "rotate-key", "--to-file", tmp_path / "missing").status == 1
    with CheckpointManager(tmp_path / "plain") as manager:
        manager.save("a", {"n": 1})
    assert run("--store", tmp_path / "plain", "rotate-key", "--to-file", keys[1]).status == 1
    assert run("--store", url, "keys").status == 0


@pytest.mark.slow
@pytest.mark.parametrize("by", ["file", "env"])
def test_the_hook_saves_into_an_encrypted_store(
    tmp_path: Path, keys: "tuple[Path, Path]", by: str
) -> None:
    """The daemon has a key file; it does not get the variables of the agent."""
    url = f"sqlite://{tmp_path}/store?encryption_key_{by}={keys[0] if by == 'file' else 'THE_KEY'}"
    with scene(tmp_path / "scene", "served") as work:
        work.environment.update({"AGENT_CHECKPOINT_STORE": url, "THE_KEY": OLD})
        work.tool(1)
        assert bool(work.servers()) == (by == "file")
        assert work.log == ""
    key = keys[0] if by == "file" else OLD
    with CheckpointManager(tmp_path / "store", encryption_key=key) as manager:
        (name,) = manager.list_keys()
        assert name.startswith("claude-code/")
    for file in (tmp_path / "store").rglob("*"):
        assert file.is_dir() or b"claude" not in file.read_bytes()
