"""F19: a process that is stopped while it holds a lock."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from agent_checkpoint import (
    ConflictError,
    FileBackend,
    InvalidInputError,
    StorageError,
    Workspace,
    WorkspaceError,
)
from agent_checkpoint.agents.session_lock import hold_session_lock
from agent_checkpoint.backends.os_support import lock_wait
from agent_checkpoint.backends.os_support.lock_wait import lock_holders
from agent_checkpoint.backends.os_support.posix import exclusive_lock, store_lock
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.workspace.workspace_lock import RootLock

SOON = 0.2
needs_the_list = pytest.mark.skipif(
    not os.path.exists("/proc/locks"), reason="only Linux lists the holders of locks"
)

PROGRAM = """
import sys
from pathlib import Path
from agent_checkpoint import FileBackend
from agent_checkpoint.backends.os_support.posix import store_lock
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.agents.session_lock import hold_session_lock
from agent_checkpoint.workspace.workspace_lock import RootLock
what, path = sys.argv[1], Path(sys.argv[2])
if what == "sqlite":
    lock = SQLiteBackend(path)._connections.write_lock()
elif what == "transaction":
    lock = SQLiteBackend(path)._connections.transaction()  # and not the lock before it
elif what in ("file", "deleter"):
    lock = store_lock(path / ".lock", exclusive=what == "deleter")
elif what == "workspace":
    lock = RootLock(path).held(exclusive=True)
else:
    lock = hold_session_lock("session")
with lock:
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(what, path, stop=True):
    """Have another process hold a lock, and be stopped."""
    command = [sys.executable, "-c", PROGRAM, what, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        if stop:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.stdin.close()
            process.wait(60)


def check_named(error, pid):
    assert error.retryable
    if os.path.exists("/proc/locks"):
        assert f"process {pid} (" in str(error)
        assert "which is stopped" in str(error)


@pytest.mark.parametrize("what", ["sqlite", "transaction"])
def test_a_saver_is_told_who_is_stopped(tmp_path, what):
    backend = SQLiteBackend(tmp_path, lock_timeout=SOON)
    backend.append("key/a", b"one")
    with holding(what, tmp_path) as process:
        assert len(backend.read("key/a")) == 1  # readers do not wait
        with pytest.raises(StorageError) as caught:
            backend.append("key/a", b"two")
        check_named(caught.value, process.pid)
        with pytest.raises(StorageError) as caught:
            backend.remove("key/a", [1])
        check_named(caught.value, process.pid)
    assert backend.append("key/a", b"two") == 2
    backend.close()


def test_savers_of_files_are_told_that_a_deleter_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("agent_checkpoint.backends.os_support.posix._GATE_WAIT", SOON)
    backend = FileBackend(tmp_path, lock_timeout=SOON)
    backend.append("key/a", b"one")
    with holding("deleter", tmp_path) as process:
        assert len(backend.read("key/a")) == 1
        with pytest.raises(StorageError) as caught:
            backend.append("key/a", b"two")
        check_named(caught.value, process.pid)
    assert backend.append("key/a", b"two") == 2


def test_a_deleter_of_files_is_told_that_a_saver_is_stopped(tmp_path):
    backend = FileBackend(tmp_path, lock_timeout=SOON)
    backend.append("key/a", b"one")
    with holding("file", tmp_path) as process:
        with pytest.raises(StorageError) as caught:
            backend.remove("key/a", [1])
        check_named(caught.value, process.pid)
        assert backend.append("key/a", b"two") == 2  # savers share the lock
    backend.remove("key/a", [1])


def test_a_workspace_whose_restorer_is_stopped(tmp_path):
    (tmp_path / "file").write_text("content")
    with holding("workspace", tmp_path) as process:
        with (
            pytest.raises(WorkspaceError) as caught,
            RootLock(tmp_path).held(exclusive=False, timeout=SOON),
        ):
            pass
        check_named(caught.value, process.pid)
    assert Workspace(tmp_path).snapshot()


@needs_the_list
def test_a_session_of_the_hook_whose_saver_is_stopped(tmp_path):
    stopped = holding("session", tmp_path)
    with (
        stopped as process,
        pytest.raises(ConflictError) as caught,
        hold_session_lock("session", SOON),
    ):
        pass
    assert f"process {process.pid} (" in str(caught.value)


@needs_the_list
def test_a_holder_that_runs_is_waited_for_longer(tmp_path, monkeypatch):
    """A collection of a large store is no reason to fail."""
    looks = threading.Semaphore(0)
    usual = lock_wait.lock_holders

    def look(*files, **options):
        looks.release()
        return usual(*files, **options)

    monkeypatch.setattr(lock_wait, "_RUNNING_FACTOR", 1_000_000)
    monkeypatch.setattr(lock_wait, "lock_holders", look)
    taken = []

    def wait():
        with exclusive_lock(tmp_path / ".lock", 0.01):
            taken.append(looks)

    thread = threading.Thread(target=wait)
    with holding("file", tmp_path, stop=False):
        thread.start()
        for _ in range(5):  # each time it goes on waiting
            assert looks.acquire(timeout=60)
        assert not taken
    thread.join(60)
    assert taken


@needs_the_list
def test_a_holder_that_never_ends_is_named_too(tmp_path):
    lock = tmp_path / ".lock"
    with exclusive_lock(lock), pytest.raises(StorageError) as caught, exclusive_lock(lock, 0.02):
        pass
    assert "another thread of this process" in str(caught.value)


@needs_the_list
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_that_a_child_has_from_a_process_that_ended(tmp_path):
    """The kernel knows the lock by the process that took it."""
    program = (
        "import fcntl, os, sys\n"  # not by `held`, whose files a child does not keep
        "fcntl.flock(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)\n"
        "if os.fork():\n"
        "    os._exit(0)\n"
        "print(os.getppid(), flush=True)\n"
        "sys.stdin.read()\n"
    )
    lock = tmp_path / ".lock"
    command = [sys.executable, "-c", program, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.wait(60)
        with pytest.raises(StorageError) as caught, exclusive_lock(lock, SOON):
            pass
        process.stdin.close()
    assert f"a child of process {process.pid}, which has exited" in str(caught.value)


def test_an_interrupt_ends_the_wait(tmp_path):
    program = (
        "import pathlib, signal, sys\n"
        # A shell has programs that it starts in the background ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from agent_checkpoint.backends.os_support.posix import exclusive_lock\n"
        "print('waits', flush=True)\n"
        "with exclusive_lock(pathlib.Path(sys.argv[1])): pass\n"
    )
    with exclusive_lock(tmp_path / ".lock"):
        command = [sys.executable, "-c", program, str(tmp_path / ".lock")]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
            assert process.stdout.readline() == b"waits\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors


def test_without_a_list_of_locks_the_holder_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_wait, "_LOCKS", str(tmp_path / "none"))
    lock = tmp_path / ".lock"
    unnamed = pytest.raises(StorageError, match="by another process")
    with exclusive_lock(lock), unnamed, store_lock(lock, exclusive=False, seconds=0.02):
        pass
    assert lock_holders(os.stat(tmp_path)) == []


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1", None, True])
def test_a_time_that_is_none_is_refused(tmp_path, wrong):
    for kind in (SQLiteBackend, FileBackend):
        with pytest.raises(InvalidInputError, match="lock_timeout"):
            kind(tmp_path, lock_timeout=wrong)
