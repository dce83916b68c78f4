"""The read-only wrapper: every write is refused before anything is written, every read works."""

import pytest

from agent_checkpoint import (
    Backend,
    CheckpointManager,
    FileBackend,
    MemoryBackend,
    ReadOnlyBackend,
    Session,
    StorageError,
    Workspace,
)
from agent_checkpoint.backends.base import Append
from agent_checkpoint.backends.registry import open_url
from agent_checkpoint.cli.main import main
from tests.backends.test_read_only import check_reading

ID = "ab" * 32

WRITES = {
    "put_objects": lambda backend: backend.put_objects({ID: b"x"}),
    "delete_objects": lambda backend: backend.delete_objects(iter([1 / 0 for _ in ()])),
    "append": lambda backend: backend.append("key/a", b"x", objects={ID: b"x"}),
    "remove": lambda backend: backend.remove("key/a", [1]),
    "scrub": lambda backend: backend.scrub(),
    "replace_objects": lambda backend: backend.replace_objects({ID: b"x"}),
}
READS = {
    *("get_objects", "missing_objects", "list_objects", "read", "streams", "close"),
    *("is_replaced", "find_objects", "uncached", "changes"),
}


def test_every_method_is_a_read_or_a_write():
    """A new method of the contract must be put into one of the two."""
    methods = {n for n, found in vars(Backend).items() if callable(found) and n[0] != "_"}
    assert methods == READS | set(WRITES) | {"append_all"}


def test_each_of_several_appends_is_refused():
    inner = MemoryBackend()
    (outcome,) = ReadOnlyBackend(inner).append_all([Append("key/a", b"1")])
    assert "is open read-only" in str(outcome)
    assert inner.read("key/a") == []


@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_refused(name):
    inner = MemoryBackend()
    inner.append("key/a", b"1")
    with pytest.raises(StorageError, match=r"is open read-only\. Nothing was written") as caught:
        WRITES[name](ReadOnlyBackend(inner))
    assert not caught.value.retryable
    assert len(inner.read("key/a")) == 1
    assert list(inner.list_objects()) == []


def test_a_deletion_does_not_consume_the_ids():
    consumed = []
    with pytest.raises(StorageError):
        ReadOnlyBackend(MemoryBackend()).delete_objects(consumed.append(n) for n in [ID])
    assert consumed == []


@pytest.fixture(params=["file", "sqlite"])
def url(request, tmp_path):
    with CheckpointManager(backend=request.param, path=tmp_path / "store") as manager:
        for number in range(3):
            manager.save("a", {"n": number, "large": f"{number:06}" * 30_000})
        manager.delete("a", "a@1")
    return f"{request.param}://{tmp_path}/store?read_only=1"


def contents(folder):
    return {
        path: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".db-shm",)
    }


def test_all_reads_work(url, tmp_path):
    before = contents(tmp_path / "store")
    with CheckpointManager(url) as manager:
        check_reading(manager)
        assert manager.diff("a", checkpoint_id_a="a@2", checkpoint_id_b="a@3")
        assert manager.export_archive(tmp_path / "a.ckpt", "a")
    with CheckpointManager() as other:
        other.import_archive(tmp_path / "a.ckpt")
        assert other.state_dict("a")["n"] == 2
    assert contents(tmp_path / "store") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda manager: manager.save("a", {"n": 3}),
        lambda manager: manager.delete("a", "a@2"),
        lambda manager: manager.delete("a"),
        lambda manager: manager.fork("a", "b"),
        lambda manager: manager.purge("000001000001"),
        lambda manager: Session("s", store=manager).__enter__(),
    ],
)
def test_a_change_gives_one_clear_message(url, tmp_path, change):
    before = contents(tmp_path / "store")
    with CheckpointManager(url) as manager:
        with pytest.raises(StorageError) as caught:
            change(manager)
        check_reading(manager)
    assert str(caught.value) == (
        f"The store {tmp_path / 'store'} is open read-only. Nothing was written. To save, restore "
        "or delete, open it without read_only."
    )
    assert contents(tmp_path / "store") == before


@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_a_missing_store_is_not_created(tmp_path, scheme):
    with CheckpointManager(f"{scheme}://{tmp_path}/none?read_only=1") as manager:
        assert manager.list_keys() == []
        assert manager.verify().ok
        with pytest.raises(StorageError, match="read-only"):
            manager.save("a", {"n": 1})
    assert list(tmp_path.iterdir()) == []


def test_files_are_not_restored_without_a_safety_checkpoint(tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("old")
    backend = FileBackend(tmp_path / "store")
    with CheckpointManager(backend) as manager:
        saved = manager.save("w", {"workspace": Workspace(files, store=manager)})
    (files / "a.txt").write_text("new")
    reader = CheckpointManager(ReadOnlyBackend(backend))
    with pytest.raises(StorageError, match="read-only"):
        Workspace(files, store=reader).restore(saved)
    assert (files / "a.txt").read_text() == "new"


def test_an_existing_session_is_not_opened(tmp_path):
    path = tmp_path / "store"
    with Session("s", store=path) as session:
        session.messages.append({"role": "user", "content": "hello"})
        session.save(label="one")
    before = contents(path)
    with (
        pytest.raises(StorageError, match="read-only"),
        Session("s", store=f"sqlite://{path}?read_only=1"),
    ):
        pass
    assert contents(path) == before


@pytest.mark.parametrize("command", ["log", "keys", "show", "verify", "stats"])
def test_commands_read(url, command, capsys):
    arguments = {"log": ["a"], "show": ["a@2"]}.get(command, [])
    assert main(["--store", url, command, *arguments]) == 0


def test_a_command_that_writes_says_why_it_cannot(url, capsys):
    assert main(["--store", url, "delete", "a", "--yes"]) == 1
    assert "is open read-only" in capsys.readouterr().err


def test_properties_promise_no_writes(url):
    backend = open_url(url)
    assert not backend.properties.can_scrub
    assert not backend.properties.can_repack
    assert backend.properties.path == backend.inner.properties.path
