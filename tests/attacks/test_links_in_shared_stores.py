"""Links to files of this user's own, which others have put into a store that they may write."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, StorageError
from agent_checkpoint.backends import file_sequence
from agent_checkpoint.backends.os_support.posix import open_single_link
from agent_checkpoint.backends.os_support.reserve import SIZE, Reserve
from agent_checkpoint.store.archive.importer import _this_process
from agent_checkpoint.store.import_journal import begin_import

PRECIOUS = b"mine\n" * 1000


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_bytes(PRECIOUS)
    path.chmod(0o600)
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "the secret of a team, which is long enough")
    path = tmp_path / "store"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.mark.parametrize("link", [os.link, os.symlink])
@pytest.mark.parametrize("name", [".lock", ".gate", ".reserve"])
@pytest.mark.parametrize("backend", ["sqlite", "file"])
def test_neither_its_bytes_nor_its_mode_change(
    store: Path, precious: Path, backend: str, name: str, link: "Callable[..., None]"
) -> None:
    with CheckpointManager(backend=backend, path=store, shared=True) as manager:
        manager.save("k", {"x": 1})
        names = [path.name for path in store.iterdir() if path.name.endswith(name[1:])]
        for found in [*names, name]:
            (store / found).unlink(missing_ok=True)
            link(precious, store / found)
        for _ in range(2):
            with suppress(StorageError):  # it says that a symbolic one is in the place of a lock
                manager.save("k", {"x": 2})
                manager.delete("k")
    assert precious.read_bytes() == PRECIOUS
    assert stat.S_IMODE(precious.stat().st_mode) == 0o600


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_no_reserve_is_cut_that_is_a_link(
    tmp_path: Path, link: "Callable[..., None]", monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large"
    large.write_bytes(b"x" * SIZE)
    link(large, tmp_path / "reserve")
    # As if it was put there after it was looked at.
    monkeypatch.setattr(Reserve, "_present", lambda self: SIZE)
    assert not Reserve(tmp_path / "reserve").cut(SIZE // 2)
    assert large.stat().st_size == SIZE


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_no_entry_is_emptied_that_is_a_link(
    tmp_path: Path, precious: Path, link: "Callable[..., None]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(file_sequence, "write_new", full)
    link(precious, tmp_path / "1.json")
    with pytest.raises(OSError, match=r"link|symbolic"):
        file_sequence.record_number(tmp_path, tmp_path, 1)
    assert precious.read_bytes() == PRECIOUS


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_no_database_is_used_that_is_a_link(
    tmp_path: Path, store: Path, link: "Callable[..., None]"
) -> None:
    with CheckpointManager(backend="sqlite", path=tmp_path / "own") as own:
        own.save("k", {"x": 1})
        link(tmp_path / "own" / "store.db", store / "store.db")
        with pytest.raises(StorageError, match=r"link|other names"):
            CheckpointManager(backend="sqlite", path=store, shared=True).delete("k")
        assert own.state_dict("k") == {"x": 1}


def test_a_pipe_is_no_file_of_ours(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (
        pytest.raises(OSError, match="not a regular file"),
        open_single_link(tmp_path / "pipe", os.O_RDWR),
    ):
        raise AssertionError("it was opened")


_IN_A_NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc"]


@pytest.mark.skipif(
    sys.platform != "linux" or subprocess.run([*_IN_A_NAMESPACE, "true"], check=False).returncode,
    reason="makes a PID namespace",
)
def test_an_import_in_another_container_is_not_taken_for_dead(tmp_path: Path) -> None:
    code = (
        "from agent_checkpoint.store.archive.importer import _this_process; print(_this_process())"
    )
    run = [*_IN_A_NAMESPACE, sys.executable, "-c", code]
    there = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    assert there.split("/")[0] != _this_process().split("/")[0]
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        manager.save("k", {"x": 1})
        begin_import(manager.store.backend, "job", "0" * 32, there)
        manager.gc()
        assert [found.token for found in manager.store.imports()] == ["0" * 32]
