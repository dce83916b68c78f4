"""Reader processes: the same tree and objects as without them, and none that dies unnoticed."""

import gc
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, StorageError, Workspace, WorkspaceError
from agent_checkpoint.backends.memory import MemoryBackend
from agent_checkpoint.backends.os_support import own_program
from agent_checkpoint.store.objects.object_format import Object, open_object
from agent_checkpoint.store.objects.references import CapturedState
from agent_checkpoint.store.store import Store
from agent_checkpoint.workspace.scan.reading import file_reader, read_pool
from agent_checkpoint.workspace.scan.reading.entry_reader import ReadRequest, ReadResult
from agent_checkpoint.workspace.scan.reading.read_messages import (
    DirectoryRequest,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from agent_checkpoint.workspace.tree.dir_state import Note
from agent_checkpoint.workspace.tree.snapshot import Tree
from agent_checkpoint.workspace.tree.tree_format import FILE, LINK, Item
from agent_checkpoint.workspace.workspace import WorkspaceFiles


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> "Iterator[list[read_pool.ReadPool]]":
    """Every scan has two reader processes from its first file on, and waits for them."""
    pools: list[read_pool.ReadPool] = []
    real = read_pool.ReadPool.start

    def start(pool: read_pool.ReadPool, *args: Any) -> None:
        real(pool, *args)
        pools.append(pool)
        with pool._changed:
            pool._changed.wait_for(lambda: all(each.is_ready for each in pool._workers), 60)

    monkeypatch.setattr(read_pool.ReadPool, "start", start)
    monkeypatch.setattr(own_program, "usable_cores", lambda: 3)
    monkeypatch.setattr(file_reader, "PARALLEL_FROM_FILES", 1)
    yield pools
    for pool in pools:
        assert all(each.process.returncode is not None for each in pool._workers), "left behind"


def fill(root: Path, seed: int, files: int = 300) -> None:
    chance = random.Random(seed)
    folders = [root]
    for number in range(files):
        if chance.random() < 0.2:
            folder = chance.choice(folders) / f"d{number}"
            folder.mkdir()
            folders.append(folder)
        path = Path(os.fsdecode(bytes(chance.choice(folders)) + b"/\xff%d" % number))
        size = chance.choice([0, 1, 100, 5000, 200_000, 1_200_000 if chance.random() < 0.2 else 3])
        if chance.random() < 0.1:
            path.symlink_to("to\nnowhere")
        elif chance.random() < 0.1 and number:
            os.link(next(p for p in root.iterdir() if p.is_file()), path) if any(
                p.is_file() for p in root.iterdir()
            ) else path.write_bytes(b"x")
        else:
            path.write_bytes(chance.randbytes(size // 2) + b"a" * (size - size // 2))
            path.chmod(chance.choice([0o644, 0o755, 0o4755]))
    os.mkfifo(root / "fifo")


def snapshot(root: Path) -> "tuple[Tree, dict[str, Object]]":
    """The tree and its objects, verified: isal, which is loaded later, packs as zlib does not."""
    backend = MemoryBackend()
    with Workspace(root, Store(backend), watch=False) as workspace:
        tree = workspace.snapshot()
    names = [info.id for info in backend.list_objects()]
    stored = backend.get_objects(names)
    return tree, {name: open_object(name, stored[name]) for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_tree_and_objects_are_those_of_one_process(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    fill(tmp_path, seed)
    alone, objects = snapshot(tmp_path)
    pools = request.getfixturevalue("parallel")
    together, same = snapshot(tmp_path)
    assert len(pools) == 1
    assert (together.root, together.files, together.bytes, together.notes) == (
        alone.root,
        alone.files,
        alone.bytes,
        alone.notes,
    )
    assert same == objects


@pytest.mark.slow
def test_a_killed_reader_fails_the_snapshot(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    fill(root, 1)
    take = read_pool.ReadPool.take
    killed: list[int] = []

    def kill_first(self: read_pool.ReadPool, *args: Any) -> Any:
        if not killed:
            killed.append(self._workers[0].process.pid)
            for each in self._workers:
                os.kill(each.process.pid, signal.SIGSTOP)  # it has work when it is killed
        rest = take(self, *args)
        if len(self._workers[0].sent) == 1:
            os.kill(killed[0], signal.SIGKILL)
        return rest

    monkeypatch.setattr(read_pool.ReadPool, "take", kill_first)
    manager = CheckpointManager(tmp_path / "store")
    with Workspace(root, manager.store, watch=False) as workspace:
        with pytest.raises(WorkspaceError, match=r"ended unexpectedly \(status -9\)"):
            workspace.snapshot()
        assert manager.list_keys() == []
        monkeypatch.setattr(read_pool.ReadPool, "take", take)
        assert workspace.snapshot().id == snapshot(root)[0].id


@pytest.mark.slow
def test_the_limit_counts_the_files_of_all_readers(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]"
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(200):
        (root / f"{number}").write_bytes(bytes(1000))
    with (
        Workspace(root, tmp_path / "store", watch=False, limit=150_000) as workspace,
        pytest.raises(WorkspaceError, match="Snapshot limit exceeded"),
    ):
        workspace.snapshot()


@pytest.mark.slow
@pytest.mark.parametrize("watch", [True, False])
@pytest.mark.parametrize("what", ["a file", "a directory"])
def test_what_is_moved_before_it_is_read_is_found_where_it_is(
    tmp_path: Path,
    parallel: "list[read_pool.ReadPool]",
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    watch: bool,
) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        for number in range(10):
            (tmp_path / folder / f"{number}").write_text(f"{folder} {number}")
    real = read_pool.ReadPool.wait

    def wait(self: read_pool.ReadPool, *args: Any) -> None:
        if (tmp_path / "b" / "3").exists():  # listed, and not read yet
            if what == "a file":
                (tmp_path / "b" / "3").rename(tmp_path / "a" / "moved")
            else:
                (tmp_path / "b").rename(tmp_path / "a" / "moved")
        real(self, *args)

    monkeypatch.setattr(read_pool.ReadPool, "wait", wait)
    with Workspace(tmp_path, CheckpointManager().store, watch=watch) as workspace:
        tree = workspace.snapshot()
        assert not workspace.losses
    assert tree.files == 30
    assert tree.id == snapshot(tmp_path)[0].id


def test_objects_are_being_stored_when_directories_are_assembled(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)
    left: list[int] = []
    real = file_reader.FileReader.wait

    def wait(reader: file_reader.FileReader, batch: int) -> None:
        real(reader, batch)
        left.append(len(reader._objects) + len(reader._packed))

    monkeypatch.setattr(file_reader.FileReader, "wait", wait)
    snapshot(tmp_path)
    assert left[-1] == 0


def test_directories_are_assembled_while_later_ones_are_read(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in range(5):
        (tmp_path / f"{folder}").mkdir()
        for number in range(64):
            (tmp_path / f"{folder}" / f"{number}").write_text(f"{folder} {number}")
    waited: list[tuple[int, int]] = []
    real = read_pool.ReadPool.wait

    def wait(self: read_pool.ReadPool, number: int, *args: Any) -> None:
        real(self, number, *args)
        if number:
            waited.append((number, len(self._waiting)))

    monkeypatch.setattr(read_pool.ReadPool, "wait", wait)
    monkeypatch.setattr(read_pool.ReadPool, "_feed", lambda self: None)  # this process reads all
    tree = snapshot(tmp_path)[0]
    assert waited == [(1, 4), (2, 3), (3, 2), (4, 1), (5, 0)]
    assert tree.files == 320


def test_a_small_tree_is_read_without_processes_and_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"{number}").write_text(f"{number}")
    readers: list[file_reader.FileReader] = []
    real = file_reader.FileReader.finish

    def finish(reader: file_reader.FileReader) -> None:
        assert reader._pool is not None
        assert not reader._pool._workers
        assert reader._background is None
        readers.append(reader)
        real(reader)

    monkeypatch.setattr(file_reader.FileReader, "finish", finish)
    assert snapshot(tmp_path)[0].files == 20
    assert len(readers) == 1


def test_the_entry_waits_until_the_last_files_are_stored(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 3)
    done: list[str] = []
    put, append = MemoryBackend.put_objects, MemoryBackend.append

    def slow_put(*args: Any, **options: Any) -> None:
        time.sleep(0.3)  # longer than the flush
        put(*args, **options)
        done.append("put")

    def noted_append(self: MemoryBackend, stream: str, *args: Any, **options: Any) -> int:
        if stream.startswith("key/"):
            done.append("append")
        return append(self, stream, *args, **options)

    monkeypatch.setattr(MemoryBackend, "put_objects", slow_put)
    monkeypatch.setattr(MemoryBackend, "append", noted_append)
    snapshot(tmp_path)
    assert done[-2:] == ["append", "put"]  # the last one puts the objects of the entry
    assert "put" in done[:-2]


def test_no_entry_is_written_if_the_last_files_cannot_be_stored(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 3)
    backend = MemoryBackend()

    def full(self: MemoryBackend, objects: Any) -> None:
        if objects:  # the format record has none
            time.sleep(0.1)  # the scan has ended
            raise StorageError("the disk is full")

    with Workspace(tmp_path, Store(backend), watch=False) as workspace:
        with monkeypatch.context() as broken:
            broken.setattr(MemoryBackend, "put_objects", full)
            with pytest.raises(StorageError, match="the disk is full"):
                workspace.snapshot()
        assert not [name for name in backend.streams() if name.startswith("key/")]
        assert workspace.snapshot().id == snapshot(tmp_path)[0].id


def test_a_diff_after_a_failed_snapshot_reads_the_files_again(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan that failed knows files whose contents the store lacks."""

    def full(self: MemoryBackend, objects: Any) -> None:
        time.sleep(0.1)  # the scan has ended
        raise StorageError("the disk is full")

    with Workspace(tmp_path, Store(MemoryBackend()), watch=False) as workspace:
        tree = workspace.snapshot()
        (tmp_path / "new").write_text("the text")
        with monkeypatch.context() as broken:
            broken.setattr(MemoryBackend, "put_objects", full)
            with pytest.raises(StorageError, match="the disk is full"):
                workspace.snapshot()
        assert "+the text" in workspace.diff(tree).text()


def test_a_confirmed_capture_has_stored_what_the_store_had_lost(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an entry, too, it is waited for: the index says that all files are stored."""
    for number in range(100):
        (tmp_path / f"{number:03}").write_bytes(b"%d" % number)

    def full(self: MemoryBackend, objects: Any) -> None:
        if objects:  # the format record has none
            time.sleep(0.1)  # the scan has ended
            raise StorageError("the disk is full")

    store = Store(MemoryBackend())
    monkeypatch.setattr(MemoryBackend, "put_objects", full)
    with Workspace(tmp_path, store, watch=False) as workspace:
        files = WorkspaceFiles(workspace, full=False)
        CapturedState(files, store.writer)
        with pytest.raises(StorageError, match="the disk is full"):
            files.writer.confirm()


def test_a_storing_thread_ends_if_its_start_is_interrupted(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 3)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        start(self)
        if self.name == "agent-checkpoint-storing":
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        snapshot(tmp_path)
    started[0].join(10)
    assert not started[0].is_alive()


def test_the_queue_is_bounded(
    tmp_path: Path, parallel: "list[read_pool.ReadPool]", monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(320):
        (tmp_path / f"{number:03}").touch()
    taken: list[int] = []
    real = read_pool.ReadPool.take

    def take(self: read_pool.ReadPool, *args: Any) -> Any:
        rest, number = real(self, *args)
        taken.append(len(rest))
        return rest, number

    monkeypatch.setattr(read_pool, "_MOST_WAITING", 2)
    monkeypatch.setattr(read_pool.ReadPool, "take", take)
    monkeypatch.setattr(read_pool.ReadPool, "_feed", lambda self: None)
    assert snapshot(tmp_path)[0].files == 320
    assert taken == [0, 0, 64, 64, 64]


def test_without_a_process_that_gets_ready_the_scan_reads_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 2)
    expected = snapshot(tmp_path)[0]
    monkeypatch.setattr(own_program, "usable_cores", lambda: 2)
    monkeypatch.setattr(file_reader, "PARALLEL_FROM_FILES", 1)
    monkeypatch.setattr(read_pool, "_WORKER", "agent_checkpoint.errors")  # it has no `main`
    assert snapshot(tmp_path)[0].root == expected.root


@pytest.mark.parametrize("fails", [False, True])
def test_collection_is_paused_until_the_snapshot_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    tmp_path.joinpath("file").touch()
    paused: list[bool] = []
    real = Store.write

    def write(*args: Any, **options: Any) -> Any:
        paused.append(not gc.isenabled())
        if fails:
            raise WorkspaceError("no")
        return real(*args, **options)

    monkeypatch.setattr(Store, "write", write)
    with suppress(WorkspaceError):
        snapshot(tmp_path)
    assert paused == [True]
    assert gc.isenabled()


def test_without_a_second_core_there_are_no_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_program, "usable_cores", lambda: 1)
    pool = read_pool.ReadPool(lambda objects: None)
    pool.start(3, lambda: "zlib")
    assert not pool._workers


def test_an_interrupt_while_readers_start_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Popen(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            if started:
                raise KeyboardInterrupt
            super().__init__(*args, **options)
            started.append(self)

    (tmp_path / "file").touch()
    monkeypatch.setattr(own_program.subprocess, "Popen", Popen)
    monkeypatch.setattr(own_program, "usable_cores", lambda: 3)
    monkeypatch.setattr(file_reader, "PARALLEL_FROM_FILES", 1)
    with pytest.raises(KeyboardInterrupt):
        snapshot(tmp_path)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_without_threads_the_scan_reads_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: read_pool.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fill(tmp_path, 2)
    expected = snapshot(tmp_path)[0]
    monkeypatch.setattr(own_program, "usable_cores", lambda: 2)
    monkeypatch.setattr(file_reader, "PARALLEL_FROM_FILES", 1)
    monkeypatch.setattr(read_pool, "Thread", type("T", (read_pool.Thread,), {"start": refuse}))
    assert snapshot(tmp_path)[0].root == expected.root


def test_a_reader_whose_objects_cannot_be_stored_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(objects: object) -> None:
        raise StorageError("the disk is full")

    (tmp_path / "file").touch()
    monkeypatch.setattr(own_program, "usable_cores", lambda: 2)
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        pool = read_pool.ReadPool(receive)
        pool.start(root, lambda: "zlib")
        _, number = pool.take(b"", [ReadRequest(b"file", 0, is_link=False)], {})
        with pool._changed:
            pool._changed.wait_for(lambda: pool._workers[0].is_ready, 60)
        with pytest.raises(StorageError, match="full"):
            pool.wait(number, lambda directories: [])
        # Before `close`: the scan might wait until it reads a request.
        assert pool._workers[0].process.wait(60) == -signal.SIGKILL
        pool.close()
    finally:
        os.close(root)


def test_messages_are_read_back() -> None:
    request = [
        DirectoryRequest(b"", [ReadRequest(b"\xff\n", 3, is_link=False)]),
        DirectoryRequest(b"a/\xfe", [ReadRequest(b"l", 4, is_link=True)]),
    ]
    assert decode_request(encode_request(request)) == request
    results = [
        ReadResult(
            Item(b"\xff\n", FILE, 0o644, 3, "ab" * 32, "ab" * 32), b"s" * 36, Note("torn", "x")
        ),
        ReadResult(Item(b"l", LINK, 0o777, 4, target=b"\xff\xfe"), is_changing=True),
    ]
    objects = {"ab" * 32: b"rabc", "cd" * 32: b""}
    assert decode_answer(encode_answer(results, objects)) == (results, objects)
