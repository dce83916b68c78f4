"""Readers, savers and deleters beside each other, and processes forked in the middle."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from agent_checkpoint import CheckpointManager, FileBackend, KeepLatest, MemoryBackend
from agent_checkpoint.backends import file as file_module
from agent_checkpoint.backends.os_support.posix import store_lock
from agent_checkpoint.errors import StorageError
from agent_checkpoint.records import Entry

LONGEST_WAIT = 60


@pytest.fixture
def backend(tmp_path):
    return FileBackend(tmp_path / "store")


# -- readers beside a pruner ---------------------------------------------------------------------


def after_each_listing(monkeypatch, action):
    """Do something between the listing of a stream and the reading of its files."""
    usual = file_module.entry_numbers

    def numbers(folder):
        found = usual(folder)
        with monkeypatch.context() as patch:
            patch.setattr(file_module, "entry_numbers", usual)
            action()
        return found

    monkeypatch.setattr(file_module, "entry_numbers", numbers)


@pytest.mark.parametrize("choice", [{}, {"limit": 1, "newest_first": True}, {"after": 0}])
def test_a_stream_with_entries_is_never_seen_empty(backend, monkeypatch, choice):
    backend.append("key/a", b"one")
    turns = iter(range(5))

    def save_and_prune():
        if next(turns, None) is not None:
            seq = backend.append("key/a", b"newer")
            backend.remove("key/a", [seq - 1])

    after_each_listing(monkeypatch, save_and_prune)
    assert backend.read("key/a", **choice) == [Entry(6, b"newer")]


def test_a_stream_that_is_emptied_is_empty(backend, monkeypatch):
    backend.append("key/a", b"one")
    after_each_listing(monkeypatch, lambda: backend.remove("key/a", [1]))
    assert backend.read("key/a") == []


def test_a_reader_that_never_catches_up_says_so(backend, monkeypatch):
    backend.append("key/a", b"one")

    def save_and_prune():
        seq = backend.append("key/a", b"newer")
        backend.remove("key/a", [seq - 1])

    after_each_listing(monkeypatch, save_and_prune)
    with pytest.raises(StorageError) as caught:
        backend.read("key/a")
    assert caught.value.retryable


PRUNER = """
import sys
from agent_checkpoint import CheckpointManager, KeepLatest
manager = CheckpointManager(backend="file", path=sys.argv[1])
for n in range(100):
    manager.save("key", {"n": n})
    manager.prune("key", KeepLatest(1))
"""


def test_reading_beside_a_process_that_saves_and_prunes(backend):
    CheckpointManager(backend).save("key", {"n": -1})
    pruner = subprocess.Popen([sys.executable, "-c", PRUNER, backend.path])
    try:
        while pruner.poll() is None:
            assert backend.read("key/key", limit=1, newest_first=True)
    finally:
        pruner.kill()
        pruner.wait(LONGEST_WAIT)
    assert pruner.returncode == 0


# -- deleters beside savers ----------------------------------------------------------------------

SAVER = """
import sys, time
from agent_checkpoint import CheckpointManager
manager = CheckpointManager(backend="file", path=sys.argv[1])
print("ready", flush=True)
end = time.monotonic() + 60  # also if the tests are killed
while time.monotonic() < end:
    manager.save(sys.argv[2], {"n": 1})
"""


def test_a_pruner_is_not_kept_out_by_savers(backend):
    manager = CheckpointManager(backend)
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, backend.path, f"key{n}"], stdout=subprocess.PIPE
        )
        for n in range(4)
    ]
    try:
        for saver in savers:
            assert saver.stdout.readline() == b"ready\n"
        started = time.monotonic()
        for _ in range(10):
            manager.save("key0", {"n": 0})
            manager.save("key0", {"n": 1})
            manager.prune("key0", KeepLatest(1))
        took = time.monotonic() - started
        assert all(saver.poll() is None for saver in savers)
    finally:
        for saver in savers:
            saver.kill()
            saver.communicate(timeout=LONGEST_WAIT)
    assert took < 20
    assert manager.verify().ok


def test_savers_that_overlap_without_a_gap_let_a_deleter_in(tmp_path):
    """At every moment one of them holds the lock, if nothing makes them wait."""
    lock = tmp_path / ".lock"
    over = threading.Event()

    def saver():
        while not over.is_set():
            with store_lock(lock, exclusive=False):
                time.sleep(0.01)

    threads = [threading.Thread(target=saver) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        started = time.monotonic()
        for _ in range(10):
            with store_lock(lock, exclusive=True):
                pass
        assert time.monotonic() - started < LONGEST_WAIT
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_savers_do_not_wait_for_ever_behind_a_deleter_that_cannot_go_on(tmp_path):
    """Such as one that waits for a process that was stopped in the middle of a save."""
    lock = tmp_path / ".lock"
    with store_lock(lock, exclusive=False):
        deleter = threading.Thread(target=take, args=(lock,))
        deleter.start()
        while not (tmp_path / ".gate").exists():
            time.sleep(0.01)
        with store_lock(lock, exclusive=False):
            assert deleter.is_alive()
    deleter.join(LONGEST_WAIT)
    assert not deleter.is_alive()


def take(lock):
    with store_lock(lock, exclusive=True):
        pass


def test_a_killed_deleter_leaves_the_gate_open(tmp_path):
    source = (
        "import os, pathlib, signal, sys\n"
        "from agent_checkpoint.backends.os_support.posix import store_lock\n"
        "with store_lock(pathlib.Path(sys.argv[1]), exclusive=True):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    lock = tmp_path / ".lock"
    done = subprocess.run([sys.executable, "-c", source, lock], timeout=LONGEST_WAIT)
    assert done.returncode == -signal.SIGKILL
    started = time.monotonic()
    with store_lock(lock, exclusive=False):
        assert time.monotonic() - started < LONGEST_WAIT / 2
    take(lock)


# -- memory and fork -----------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_memory_backend_works_in_a_process_forked_within_an_append():
    backend = MemoryBackend()
    backend.append("key/a", b"one")
    inside, forked = threading.Event(), threading.Event()

    class Slow(dict):
        def items(self):
            inside.set()
            forked.wait(LONGEST_WAIT)
            return super().items()

    thread = threading.Thread(
        target=backend.append, args=("key/a", b"two"), kwargs={"objects": Slow()}
    )
    thread.start()
    assert inside.wait(LONGEST_WAIT)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            works = backend.append("key/a", b"child") == 2 and len(backend.read("key/a")) == 2
            os._exit(0 if works else 1)
        finally:
            os._exit(2)
    forked.set()
    thread.join(LONGEST_WAIT)
    assert os.waitpid(pid, 0)[1] == 0
    assert backend.read("key/a") == [Entry(1, b"one"), Entry(2, b"two")]
