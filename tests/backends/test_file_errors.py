"""The file backend reads without a trace, and fails with a word of advice."""

import errno
import hashlib
import os
import resource
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_checkpoint import CheckpointManager, FileBackend
from agent_checkpoint.backends.os_support.posix import wrap_os_errors
from agent_checkpoint.errors import InvalidInputError, StorageError
from agent_checkpoint.records import Entry

OBJECT = hashlib.sha256(b"object").hexdigest()
NOBODY = 65534


@pytest.fixture
def backend(tmp_path):
    return FileBackend(tmp_path / "store")


def everything(path):
    """All paths below, with their type and content, to see whether anything changed."""
    return {
        item: (stat.filemode(item.lstat().st_mode), item.read_bytes() if item.is_file() else None)
        for item in sorted(path.rglob("*"))
    }


# -- reading changes nothing ---------------------------------------------------------------------


def test_a_missing_directory_reads_as_empty_and_is_not_made(tmp_path):
    backend = FileBackend(tmp_path / "missing")
    manager = CheckpointManager(backend)
    assert backend.read("key/a") == []
    assert list(backend.streams()) == []
    assert list(backend.list_objects()) == []
    assert backend.get_objects([OBJECT]) == {}
    assert backend.missing_objects([OBJECT]) == {OBJECT}
    assert manager.list_keys() == []
    assert manager.verify().ok
    assert manager.stats()["checkpoints"] == 0
    with pytest.raises(KeyError):
        manager.load("a", {})
    with pytest.raises(KeyError):
        manager.history("a")
    assert list(tmp_path.iterdir()) == []


def test_removing_from_a_missing_directory_does_not_make_it(tmp_path):
    backend = FileBackend(tmp_path / "missing")
    backend.remove("key/a", [1])
    backend.delete_objects([OBJECT])
    CheckpointManager(backend).gc()
    assert list(tmp_path.iterdir()) == []


def test_reading_changes_nothing(backend):
    manager = CheckpointManager(backend)
    cid = manager.save("a", {"x": 1})
    manager.save("a", {"x": 2})
    manager.delete("a", cid)
    before = everything(backend.path)
    manager = CheckpointManager(FileBackend(backend.path))
    state = {}
    manager.load("a", state)
    manager.history("a")
    manager.list_keys()
    manager.verify()
    manager.stats()
    manager.diff("a", agent={"x": 3})
    assert everything(backend.path) == before


@contextmanager
def read_only_for_us(path):
    """Make a directory read-only; root, who may write anywhere, becomes nobody for a while."""
    for item in [path, *path.rglob("*")]:
        item.chmod(0o500 if item.is_dir() else 0o400)
        if os.geteuid() == 0:
            os.chown(item, NOBODY, NOBODY)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        for item in [path, *path.rglob("*")]:
            item.chmod(0o700 if item.is_dir() else 0o600)


def test_a_read_only_store_can_be_read():
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)
        path = Path(place, "store")
        CheckpointManager(backend="file", path=path).save("Session", {"x": 1})
        before = everything(path)
        with read_only_for_us(path):
            manager = CheckpointManager(backend="file", path=path)
            assert manager.state_dict("Session") == {"x": 1}
            assert manager.list_keys() == ["Session"]
            assert len(manager.history("Session")) == 1
            assert manager.verify().ok
            with pytest.raises(
                StorageError, match="Check the owner and the permissions of the store"
            ) as caught:
                manager.save("Session", {"x": 2})
            assert not caught.value.retryable
            assert isinstance(caught.value.__cause__, PermissionError)
            with pytest.raises(StorageError):
                manager.delete("Session")
        assert everything(path) == before


# -- errors --------------------------------------------------------------------------------------


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInputError, match="not a directory") as caught:
        FileBackend(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_path_with_a_nul_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="NUL"):
        FileBackend(f"{tmp_path}/a\0b")


@pytest.mark.parametrize("path", ["file/below", "x" * 300])
def test_a_path_that_cannot_be_made_is_a_storage_error(tmp_path, path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageError) as caught:
        FileBackend(tmp_path / path).append("key/a", b"one")
    assert str(tmp_path) in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


@contextmanager
def limited(which, soft):
    usual = resource.getrlimit(which)
    resource.setrlimit(which, (soft, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, usual)


def test_a_file_that_cannot_be_written_whole_leaves_nothing(backend):
    """The kernel writes the first part and then refuses: the part is not left behind."""
    backend.append("key/a", b"one")
    with limited(resource.RLIMIT_FSIZE, 4096), pytest.raises(StorageError) as caught:
        backend.append("key/a", b"x" * 10_000)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert "'key/a'" in str(caught.value)
    assert backend.read("key/a") == [Entry(1, b"one")]
    assert os.listdir(backend.path / ".tmp") == []
    assert backend.append("key/a", b"x" * 10_000) == 2


def test_too_many_open_files_is_worth_a_retry(backend):
    backend.append("key/a", b"one")
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    with limited(resource.RLIMIT_NOFILE, lowest_free), pytest.raises(StorageError) as caught:
        backend.append("key/a", b"two")
    assert caught.value.retryable
    with limited(resource.RLIMIT_NOFILE, lowest_free), pytest.raises(StorageError) as caught:
        backend.read("key/a")
    assert caught.value.retryable
    assert backend.append("key/a", b"two") == 2


@pytest.mark.parametrize(
    ("number", "advice", "retryable"),
    [
        (errno.ENOSPC, "Free some space. Existing checkpoints are intact.", False),
        (errno.EDQUOT, "Free some of your disk quota. Existing checkpoints are intact.", False),
        (
            errno.EROFS,
            "Reading works. To save, restore or delete, copy the store to a writable "
            "directory, and use the copy.",
            False,
        ),
        (errno.EACCES, "Check the owner and the permissions of the store.", False),
        (errno.EMFILE, "", True),
        (errno.ENOLCK, "", True),
        (errno.EIO, "", False),
    ],
)
def test_an_os_error_becomes_a_storage_error_with_advice(number, advice, retryable):
    cause = OSError(number, os.strerror(number), "/a/path")
    with pytest.raises(StorageError) as caught, wrap_os_errors("write it"):
        raise cause
    assert str(caught.value) == f"Cannot write it: {os.strerror(number)}. {advice}".strip()
    assert caught.value.retryable is retryable
    assert caught.value.__cause__ is cause


def test_a_stream_directory_that_is_a_file_is_a_storage_error(backend):
    backend.append("key/a", b"one")
    (backend.path / "b").write_bytes(b"in the way")
    with pytest.raises(StorageError):
        backend.append("key/b", b"one")
    with pytest.raises(StorageError):
        backend.read("key/b")
    assert (backend.path / "b").read_bytes() == b"in the way"
    assert list(backend.streams()) == ["key/a"]
