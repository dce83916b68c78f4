"""The change service: a new process scans what changed, and everything where that is in doubt."""

import mmap
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager, Workspace
from agent_checkpoint.backends.os_support import mounts
from agent_checkpoint.store import directory_identity
from agent_checkpoint.store.directory_identity import identity_of
from agent_checkpoint.workspace.changes import journal, served, service
from agent_checkpoint.workspace.changes.changed_paths import ChangedPaths
from agent_checkpoint.workspace.changes.inotify import Watcher
from agent_checkpoint.workspace.changes.served import Answer, Token, changes_since, encode_answer
from agent_checkpoint.workspace.changes.service import ChangeService
from agent_checkpoint.workspace.scan import scan_cache, scanner, stat_index
from agent_checkpoint.workspace.scan.stat_pass import StatPass
from agent_checkpoint.workspace.scan.walk import TreeWalk
from tests.unit.workspace.watching import can_watch

PATIENCE = 300.0
HOUR = 3600.0


@pytest.fixture(autouse=True)
def no_mounts_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out mounts that other processes make meanwhile: a file that is a copy never changes."""
    table = tmp_path / "mounted"
    table.write_bytes(mounts.TABLE.read_bytes())
    monkeypatch.setattr(mounts, "TABLE", table)


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer be late, and no stat pass be due, because the machine is busy."""
    monkeypatch.setattr(served, "_TIMEOUT", PATIENCE)
    monkeypatch.setattr(service, "_REQUEST_TIMEOUT", PATIENCE)
    monkeypatch.setattr(scanner, "_FULL_SCAN_AFTER", HOUR)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for place in ("a", "b/c", "b/d/e"):
        (root / place).mkdir(parents=True)
        for name in ("one", "two"):
            (root / place / name).write_text(f"{place} {name}")
    if not can_watch(root):
        pytest.skip("the file system of the test directory raises no events")
    return root


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(backend="sqlite", path=tmp_path / "store") as manager:
        yield manager


@pytest.fixture
def serve() -> "Iterator[Callable[[], ChangeService]]":
    """Start a service in this process, whose workspaces ask it as those of another would."""
    services: list[ChangeService] = []

    def serve() -> ChangeService:
        service = ChangeService()
        service.ensure()
        assert served.serving_process == os.getpid()
        served.serving_process = 0
        services.append(service)
        return service

    yield serve
    for each in services:
        each.close()


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> "list[str]":
    """The kinds of scan that cover everything, as they happen."""
    kinds: list[str] = []
    run, full = StatPass.run, TreeWalk.full

    def counted_run(self: StatPass, known: Any) -> None:
        kinds.append("stat pass")
        run(self, known)

    def counted_full(self: TreeWalk, old: Any, **options: Any) -> Any:
        kinds.append("walk")
        return full(self, old, **options)

    monkeypatch.setattr(StatPass, "run", counted_run)
    monkeypatch.setattr(TreeWalk, "full", counted_full)
    return kinds


def asked(root: Path, token: "Token | None" = None) -> "Answer | None":
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return changes_since(fd, token)
    finally:
        os.close(fd)


def wait_until_watched(root: Path) -> Answer:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        answer = asked(root)
        if answer is not None:
            return answer
        time.sleep(0.005)
    pytest.fail("the service does not watch the directory")


def snapshot(root: Path, manager: CheckpointManager, **options: Any) -> str:
    """Take a snapshot as a new process would."""
    with Workspace(root, manager.store, **options) as workspace:
        return workspace.snapshot().id


def full_scan(root: Path) -> str:
    return Workspace(root, CheckpointManager().store, watch=False).snapshot().id


def known(root: Path, manager: CheckpointManager, scans: "list[str]") -> None:
    """Bring everything to where a new process need not compare every file."""
    wait_until_watched(root)
    snapshot(root, manager)
    del scans[:]
    assert snapshot(root, manager) == full_scan(root)
    assert scans == ["walk"]  # that of `full_scan`
    del scans[:]


def is_partial(root: Path, manager: CheckpointManager, scans: "list[str]") -> bool:
    """Take a snapshot, which must be right; tell whether only changed paths were scanned."""
    del scans[:]
    found = snapshot(root, manager)
    kinds = list(scans)
    assert found == full_scan(root)
    return not kinds


# -- what it saves -------------------------------------------------------------------------------


def test_a_new_workspace_scans_only_what_changed(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    (root / "a" / "one").write_text("changed")
    assert is_partial(root, manager, scans)
    (root / "b" / "c" / "two").unlink()
    (root / "b" / "new").mkdir()
    (root / "b" / "new" / "file").write_text("new")
    assert is_partial(root, manager, scans)
    # A directory that did not exist when the watching began.
    (root / "b" / "new" / "file").write_text("changed again")
    assert is_partial(root, manager, scans)


def test_a_living_workspace_asks_each_time(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    with Workspace(root, manager.store) as workspace:
        for number in range(3):
            (root / "a" / "one").write_text(f"change {number}")
            assert workspace.snapshot().id == full_scan(root)
    assert scans == ["walk"] * 3


def test_only_needed_directories_of_the_index_are_decoded(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    known(root, manager, scans)
    (root / "b" / "c" / "one").write_text("changed")
    decoded: list[bytes] = []
    decode = stat_index._IndexedDir._decode

    def counted(self: Any) -> None:
        decode(self)
        decoded.append(self.packed_names)

    monkeypatch.setattr(stat_index._IndexedDir, "_decode", counted)
    snapshot(root, manager)
    assert decoded == [b"a/b", b"c/d", b"one/two"]  # the root, b and b/c


def test_the_identity_of_a_directory_that_is_kept_open_is_known(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    known(root, manager, scans)
    identity = identity_of(root)
    assert identity_of(root, "1:2:3") == identity
    (root / "a" / "one").write_text("changed")
    directory_identity._known_creation_time.cache_clear()
    monkeypatch.setattr(directory_identity, "_creation_time", lambda path: 7)
    with Workspace(root, manager.store) as workspace:
        workspace.snapshot()
        head = manager.store.head(workspace.key)
    assert head is not None
    assert head.claim is not None
    assert head.claim.identity == identity
    snapshot(root, manager, watch=False)  # it is not told that the directory was kept open
    (root / "a" / "one").write_text("changed again")
    with Workspace(root, manager.store, watch=False) as workspace:
        workspace.snapshot()
        head = manager.store.head(workspace.key)
    assert head is not None
    assert head.claim is not None
    assert head.claim.identity == f"{identity.rpartition(':')[0]}:7"


def test_nobody_else_is_asked_if_watching_is_off(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    snapshot(root, manager, watch=False)
    assert scans == ["stat pass"]


def test_the_process_that_serves_does_not_ask_itself(root: Path, serve: Any) -> None:
    serve()
    wait_until_watched(root)
    served.serving_process = os.getpid()
    assert asked(root) is None


# -- changes at any moment -----------------------------------------------------------------------


def test_changes_between_a_scan_and_its_index_are_found(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    wait_until_watched(root)
    write = scan_cache.write_index

    def late(*arguments: Any) -> Any:
        (root / "a" / "one").write_text("after the scan")
        (root / "new").mkdir(exist_ok=True)
        (root / "new" / "file").write_text("after the scan")
        return write(*arguments)

    monkeypatch.setattr(scan_cache, "write_index", late)
    snapshot(root, manager)
    assert is_partial(root, manager, scans)


def test_changes_during_a_scan_are_found(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    known(root, manager, scans)
    assemble = TreeWalk._assemble

    def late(self: TreeWalk, builders: Any) -> Any:
        (root / "a" / "one").write_text("after it was read")
        return assemble(self, builders)

    (root / "a" / "one").write_text("before")
    for number in range(20):  # so many that the index is written
        (root / f"new{number}").write_text("new")
    with monkeypatch.context() as patch:
        patch.setattr(TreeWalk, "_assemble", late)
        snapshot(root, manager)
    assert is_partial(root, manager, scans)


def test_a_checkpoint_that_was_not_written_keeps_the_old_position(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    tree = Workspace(root, manager.store).snapshot()
    (root / "a" / "one").write_text("changed")
    with Workspace(root, manager.store) as workspace:
        workspace.diff(tree)  # scans, and commits nothing
    assert is_partial(root, manager, scans)


def test_after_a_failed_scan_all_is_compared(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    known(root, manager, scans)

    def fails(self: TreeWalk, builders: Any) -> Any:
        raise MemoryError

    with Workspace(root, manager.store) as workspace:
        (root / "a" / "one").write_text("changed")
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(TreeWalk, "_assemble", fails)
            workspace.snapshot()
        del scans[:]
        workspace.snapshot()
        assert scans == ["stat pass"]
    assert is_partial(root, manager, scans)


def test_a_directory_that_was_moved_away_and_back(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    (root / "a").rename(root / "b" / "moved")
    asked(root)
    (root / "b" / "moved" / "one").write_text("changed meanwhile")
    asked(root)
    (root / "b" / "moved").rename(root / "a")  # with the inode that the index knows
    assert is_partial(root, manager, scans)


def test_hard_links_are_compared(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    os.link(root / "a" / "one", root / "b" / "link")
    serve()
    known(root, manager, scans)
    # An event names only the link through which the file was changed.
    (root / "a" / "one").write_text("through one link")
    assert is_partial(root, manager, scans)
    os.link(root / "a" / "two", root / "b" / "link2")
    assert not is_partial(root, manager, scans)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_change_without_an_event_is_found_after_a_while(
    root: Path,
    manager: CheckpointManager,
    serve: Any,
    scans: "list[str]",
    monkeypatch: pytest.MonkeyPatch,
    is_late: bool,
) -> None:
    serve()
    known(root, manager, scans)
    with open(root / "a" / "one", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:1] = b"!"
        mapped.flush()
        if is_late:
            now = time.monotonic() + HOUR + 1
            monkeypatch.setattr(time, "monotonic", lambda: now)
        snapshot(root, manager)
        assert scans == (["stat pass"] if is_late else [])
        del scans[:]
        snapshot(root, manager)  # the time of the stat pass is in the index
        assert scans == []


def test_all_is_compared_before_a_restore(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    with Workspace(root, manager.store) as workspace:
        tree = workspace.snapshot()
        (root / "a" / "one").write_text("changed")
        assert scans == []
        workspace.restore(tree)
    assert "stat pass" in scans


# -- doubts: each ends in a stat pass ------------------------------------------------------------


def test_no_daemon(root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]") -> None:
    service = serve()
    known(root, manager, scans)
    service.close()
    (root / "a" / "one").write_text("changed")
    assert not is_partial(root, manager, scans)


def test_another_daemon(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    service = serve()
    known(root, manager, scans)
    service.close()
    (root / "a" / "one").write_text("changed")
    serve()
    wait_until_watched(root)
    assert not is_partial(root, manager, scans)
    assert is_partial(root, manager, scans)


def test_an_overflow(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    known(root, manager, scans)
    drain = Watcher.drain

    def overflowed(self: Watcher) -> Any:
        drain(self)
        self._is_unreliable = True  # as after IN_Q_OVERFLOW
        return None

    (root / "a" / "one").write_text("changed")
    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "drain", overflowed)
        assert not is_partial(root, manager, scans)


def test_a_change_of_mounts_during_a_scan(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    known(root, manager, scans)
    (root / "a" / "one").write_text("changed")
    with Workspace(root, manager.store) as workspace:
        with monkeypatch.context() as patch:
            patch.setattr(mounts.MountTable, "have_changed", lambda self: True)
            workspace.snapshot()
        assert scans == []
        workspace.snapshot()  # what the last one saw may have been another file system
        assert scans == ["stat pass"]
        workspace.snapshot()
        assert scans == ["stat pass"]


def test_a_mount_between_the_answer_and_the_scan(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    serve()
    known(root, manager, scans)
    made: list[str] = []

    class Table(mounts.MountTable):
        def __init__(self) -> None:
            super().__init__()
            self.known = len(made)

        def have_changed(self) -> bool:
            return len(made) != self.known

    def mounted(*arguments: Any) -> "Answer | None":
        answer = changes_since(*arguments)
        made.append("a mount")
        return answer

    (root / "a" / "one").write_text("changed")
    with Workspace(root, manager.store) as workspace:
        with monkeypatch.context() as patch:
            patch.setattr(scanner, "MountTable", Table)
            patch.setattr(scanner, "changes_since", mounted)
            workspace.snapshot()
        assert scans == []
        workspace.snapshot()
        assert scans == ["stat pass"]


def test_a_change_by_another_during_a_restore_with_too_many_changes(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    monkeypatch.setattr(journal, "_MOST_PATHS", 3)
    serve()
    known(root, manager, scans)
    scan = scanner.Scanner.scan

    def late(self: Any, *arguments: Any, **options: Any) -> Any:
        if options.get("changed") is not None:  # the scan of what the restore changed
            (root / "b" / "c" / "two").write_text("by another")
        return scan(self, *arguments, **options)

    with Workspace(root, manager.store) as workspace:
        tree = workspace.snapshot()
        for number in range(10):
            (root / f"new{number}").write_text("x")
        monkeypatch.setattr(scanner.Scanner, "scan", late)
        workspace.restore(tree)
        assert (root / "b" / "c" / "two").read_text() == "by another"
        assert workspace.snapshot().id == full_scan(root)
    assert is_partial(root, manager, scans)


def test_a_rule_file_that_is_changed_through_another_link(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    (root / ".checkpointignore").write_text("none\n")
    os.link(root / ".checkpointignore", root / "rules")
    time.sleep(0.1)  # a file that was just written is read again
    serve()
    known(root, manager, scans)
    (root / "rules").write_text("a\n")
    assert not is_partial(root, manager, scans)


def test_another_directory_at_the_path(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    root.rename(root.with_name("moved"))
    shutil.copytree(root.with_name("moved"), root)
    (root / "a" / "one").write_text("changed")
    assert not is_partial(root, manager, scans)
    shutil.rmtree(root)
    root.with_name("moved").rename(root)  # back again
    (root / "a" / "two").write_text("changed")
    assert not is_partial(root, manager, scans)


@pytest.mark.parametrize("seconds", [-HOUR, 1e9])
def test_another_clock(
    root: Path,
    manager: CheckpointManager,
    serve: Any,
    scans: "list[str]",
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve()
    known(root, manager, scans)
    now = time.monotonic() + seconds
    monkeypatch.setattr(time, "monotonic", lambda: now)
    (root / "a" / "one").write_text("changed")
    assert not is_partial(root, manager, scans)


def test_a_changed_rule_file(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    (root / ".checkpointignore").write_text("b/d\n")
    assert not is_partial(root, manager, scans)
    (root / "b" / "d" / "e" / "one").write_text("ignored")
    assert is_partial(root, manager, scans)
    (root / ".checkpointignore").unlink()
    assert not is_partial(root, manager, scans)
    (root / "b" / "d" / "e" / "one").write_text("no longer ignored")
    assert is_partial(root, manager, scans)


def test_too_many_changes(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    monkeypatch.setattr(journal, "_MOST_PATHS", 3)
    serve()
    known(root, manager, scans)
    for number in range(5):
        (root / f"file{number}").write_text("new")
        asked(root)
    assert not is_partial(root, manager, scans)


def test_an_index_of_another_process_has_no_position(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", own_home: Path
) -> None:
    serve()
    known(root, manager, scans)
    for number in range(100):
        (root / f"file{number}").write_text("new")
    snapshot(root, manager, watch=False)  # writes another index, and knows no token
    (root / "a" / "one").write_text("changed")
    assert not is_partial(root, manager, scans)


@pytest.mark.parametrize("how", ["cut", "flipped", "empty", "open to others"])
def test_a_damaged_position(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", own_home: Path, how: str
) -> None:
    serve()
    known(root, manager, scans)
    (path,) = (own_home / "store" / "index").glob("*.update")
    data = path.read_bytes()
    if how == "open to others":
        path.chmod(0o666)
    else:
        changed = {"cut": data[:-3], "flipped": data[:-9] + b"9" + data[-8:], "empty": b""}
        path.write_bytes(changed[how])
    (root / "a" / "one").write_text("changed")
    assert not is_partial(root, manager, scans)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_damaged_block_of_the_index_is_never_used(
    root: Path,
    manager: CheckpointManager,
    serve: Any,
    scans: "list[str]",
    own_home: Path,
    monkeypatch: Any,
    is_used: bool,
) -> None:
    monkeypatch.setattr(stat_index, "_BLOCK", 16)
    serve()
    (root / "a" / "in the damaged block").write_text("x")
    known(root, manager, scans)
    (update,) = (own_home / "store" / "index").glob("*.update")
    index = update.with_suffix("")
    data = index.read_bytes()
    assert data.count(b"in the damaged block") == 1
    index.write_bytes(data.replace(b"in the damaged block", b"in the damaged blocK"))
    (root / ("a" if is_used else "b") / "new").write_text("new")
    del scans[:]
    assert snapshot(root, manager) == full_scan(root)
    assert scans == (["walk"] if is_used else []) + ["walk"]
    assert is_partial(root, manager, scans)
    (root / "a" / "one").write_text("changed")
    assert snapshot(root, manager) == full_scan(root)
    assert snapshot(root, manager, watch=False) == full_scan(root)


def test_a_process_without_a_position_keeps_that_of_the_index(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]"
) -> None:
    serve()
    known(root, manager, scans)
    (root / "a" / "one").write_text("changed")
    snapshot(root, manager, watch=False)
    (root / "a" / "two").write_text("changed")
    assert is_partial(root, manager, scans)


def test_changes_that_concern_nothing_are_told_once(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", monkeypatch: Any
) -> None:
    (root / ".checkpointignore").write_text("ignored\n")
    (root / "ignored").mkdir()
    serve()
    known(root, manager, scans)
    for number in range(5):
        (root / "ignored" / f"file{number}").write_text("x")
    assert is_partial(root, manager, scans)
    told: list[Any] = []
    scan = scanner.Scanner._scan_changed

    def counted(self: Any, root: Any, writer: Any, reader: Any, known: Any, events: Any) -> Any:
        told.append(dict(events.names))
        return scan(self, root, writer, reader, known, events)

    monkeypatch.setattr(scanner.Scanner, "_scan_changed", counted)
    snapshot(root, manager)
    assert told == [{}]


# -- attacks: whoever has the socket -------------------------------------------------------------


def hostile(answers: "Callable[[bytes], bytes]", home: Path) -> "Iterator[None]":
    """Serve at the path of the service, and answer anything."""
    path = home / "store" / "index" / served.socket_name()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(8)
        listener.settimeout(0.05)
        is_over = threading.Event()

        def run() -> None:
            while not is_over.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:  # a timeout
                    continue
                with connection:
                    request = b""
                    while piece := connection.recv(1 << 16):
                        request += piece
                    with suppress(OSError):  # the client has gone
                        connection.sendall(answers(request))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


RIGHT = encode_answer(Answer(Token(b"e" * 16, 1), ChangedPaths({b"a": {b"one"}}, set())))


def lie(*paths: bytes) -> bytes:
    """An answer with invalid paths."""
    return encode_answer(Answer(Token(b"e" * 16, 1), ChangedPaths({b"": set(paths)}, set())))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        RIGHT[:-1].replace(b"a/on", b"a//n"),
        RIGHT[:30],
        RIGHT.replace(b"changes 1", b"changes 2"),
        lie(b"../outside"),
        lie(b"/etc/passwd"),
        lie(b"a/./one"),
        lie(b"a", b""),
        encode_answer(Answer(Token(bytes(16), 1), ChangedPaths({}, set()))),
        encode_answer(Answer(Token(b"e" * 16, 1), ChangedPaths({}, {b"never changed"}))),
        lie(b"x" * (9 << 20)),
    ],
    ids=range(12),
)
def test_a_malformed_answer_is_none(root: Path, own_home: Path, answer: bytes) -> None:
    for _ in hostile(lambda request: answer, own_home):
        assert asked(root, Token(b"e" * 16, 0)) is None


def test_a_well_formed_answer_is_one(root: Path, own_home: Path) -> None:
    for _ in hostile(lambda request: RIGHT, own_home):
        assert asked(root, Token(b"e" * 16, 0)) is not None


def test_an_answer_of_another_user_is_none(
    root: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "peer_user", lambda connection: os.geteuid() + 1)
    for _ in hostile(lambda request: RIGHT, own_home):
        assert asked(root, Token(b"e" * 16, 0)) is None


def test_a_directory_that_others_can_access_is_not_used(root: Path, own_home: Path) -> None:
    for _ in hostile(lambda request: RIGHT, own_home):
        (own_home / "store" / "index").chmod(0o755)
        assert asked(root, Token(b"e" * 16, 0)) is None


def test_an_answer_that_does_not_come_is_none(
    root: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "_TIMEOUT", 0.05)
    ended = threading.Event()

    def never(request: bytes) -> bytes:
        ended.wait()
        return b""

    for _ in hostile(never, own_home):
        assert asked(root, Token(b"e" * 16, 0)) is None
        ended.set()


def test_an_answer_that_was_cut_off_is_none(root: Path, own_home: Path) -> None:
    # The daemon was killed, or gave up on a client that had been stopped.
    replaced = {b"a", b"b"}
    answer = encode_answer(Answer(Token(b"e" * 16, 1), ChangedPaths({b"": replaced}, replaced)))
    sizes = iter(range(len(answer) + 1))
    for _ in hostile(lambda request: answer[: next(sizes)], own_home):
        for _ in range(len(answer)):
            assert asked(root, Token(b"e" * 16, 0)) is None
        assert asked(root, Token(b"e" * 16, 0)) is not None


def test_another_user_gets_no_answer(
    root: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve()
    wait_until_watched(root)
    monkeypatch.setattr(service, "peer_user", lambda connection: os.geteuid() + 1)
    assert asked(root) is None


@pytest.mark.parametrize("request_", [b"", b"x" * 100, served.MAGIC, b"x" * (1 << 20)])
def test_a_malformed_request_harms_nobody(
    root: Path, serve: Any, own_home: Path, request_: bytes
) -> None:
    serve()
    wait_until_watched(root)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(own_home / "store" / "index" / served.socket_name()))
        with suppress(OSError):  # the service has closed the connection
            connection.sendall(request_)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(10) == b""
    assert asked(root) is not None


def test_only_the_user_can_connect(serve: Any, own_home: Path) -> None:
    serve()
    path = own_home / "store" / "index" / served.socket_name()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


# -- namespaces ----------------------------------------------------------------------------------

PRIVATE = """
import os, sys
from agent_checkpoint.workspace.changes.served import changes_since
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
print(changes_since(fd, None) is not None)
"""


def is_allowed(command: "list[str]") -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("is_private", [False, True])
def test_another_mount_namespace_gets_no_answer(root: Path, serve: Any, is_private: bool) -> None:
    serve()
    wait_until_watched(root)
    alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "-r", "--mount"]
    if is_private and not (shutil.which("unshare") and is_allowed([*alone, "true"])):
        pytest.skip("namespaces are refused")
    command = [*(alone if is_private else []), sys.executable, "-c", PRIVATE, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(not is_private)


# -- any changes ---------------------------------------------------------------------------------


def change(root: Path, draw: random.Random, kinds: int = 10) -> None:
    """Change something below a directory at random; only the first kinds of changes."""
    directories = [Path(place) for place, _, _ in os.walk(root)]
    paths = [Path(place, name) for place, _, names in os.walk(root) for name in names]
    files = [path for path in paths if not path.is_symlink()]
    place = draw.choice(directories)
    new = place / draw.choice("pqrstu")
    kind = draw.randrange(kinds)
    if kind <= 2 and files:
        draw.choice(files).write_text(str(draw.random()))
    elif kind == 3 and not new.exists() and not new.is_symlink():
        new.mkdir()
        (new / "file").write_text(str(draw.random()))
    elif kind == 4 and paths:
        draw.choice(paths).unlink()
    elif kind == 5 and place != root:
        target = draw.choice(directories) / draw.choice("vwxyz")
        if not target.exists() and not target.is_relative_to(place):
            place.rename(target)
    elif kind == 6 and place != root:
        shutil.rmtree(place)
        if draw.random() < 0.5:
            place.write_text("a file instead")
    elif kind == 7 and not os.path.lexists(new):
        new.symlink_to(draw.choice(["file", "..", "nowhere"]))
    elif kind == 8 and files and not os.path.lexists(new):
        os.link(draw.choice(files), new, follow_symlinks=False)
    elif kind == 9:
        (draw.choice(files) if files else root).chmod(0o700)


@pytest.mark.parametrize("seed", range(12))
def test_new_processes_see_what_a_full_scan_sees(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", seed: int
) -> None:
    draw = random.Random(seed)
    serve()
    known(root, manager, scans)
    partial = 0
    living = Workspace(root, manager.store)
    for _ in range(25):
        for _ in range(draw.randrange(4)):
            change(root, draw)
        if draw.random() < 0.2:
            living.snapshot()
        if draw.random() < 0.1:
            asked(root)
        if draw.random() < 0.1:
            snapshot(root, manager, watch=False)
        partial += is_partial(root, manager, scans)
    living.close()
    assert partial >= 5


@pytest.mark.parametrize("seed", range(4))
def test_changes_at_the_same_time_are_seen_at_the_next_snapshot(
    root: Path, manager: CheckpointManager, serve: Any, scans: "list[str]", seed: int
) -> None:
    draw = random.Random(seed)
    serve()
    known(root, manager, scans)

    def write(draw: random.Random) -> None:
        for _ in range(draw.randrange(30)):
            if draw.random() < 0.1:
                rules = draw.choice(["p\n", "q\n", "*/one\n", ""])
                (root / ".checkpointignore").write_text(rules)
            with suppress(OSError):  # a part of it was moved
                change(root, draw, 8)  # no links: a write through an ignored one has no event

    for _ in range(15):
        writer = threading.Thread(target=write, args=(random.Random(draw.random()),))
        writer.start()
        for _ in range(draw.randrange(1, 4)):
            snapshot(root, manager)
        writer.join()
        is_partial(root, manager, scans)
