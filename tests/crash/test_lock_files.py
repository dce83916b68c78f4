"""Locks of stores that are lost or inherited: lock files removed or replaced, forks.

Whoever is told which process holds a lock may remove the lock file; and a child that is forked
while another thread writes has the locked file open.
"""

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing, contextmanager, suppress

import pytest

from agent_checkpoint import FileBackend, StorageError
from agent_checkpoint.backends.os_support.posix import exclusive_lock
from agent_checkpoint.backends.sqlite import LOOSE_FROM, SQLiteBackend
from tests.crash.fault_process import child_environment

BACKENDS = {"sqlite": SQLiteBackend, "file": FileBackend}
ID, OTHER = "ab" * 32, "abcd" * 16


@pytest.fixture(params=list(BACKENDS))
def kind(request):
    return BACKENDS[request.param]


# -- forks ---------------------------------------------------------------------------------------

PARENT = """
    import os, signal, sys, threading
    from agent_checkpoint import FileBackend
    from agent_checkpoint.backends.sqlite import SQLiteBackend

    store = {kind}(sys.argv[1], lock_timeout=1)
    store.append("key/a", b"one")
    locked = threading.Event()

    def ids():
        locked.set()
        threading.Event().wait()
        yield

    threading.Thread(target=lambda: store.delete_objects(ids()), daemon=True).start()
    locked.wait()
    is_over, parent = os.pipe()
    if os.fork() == 0:
        os.close(parent)
        os.read(is_over, 1)  # the parent is gone
        print(store.append("key/a", b"two"), flush=True)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_does_not_keep_the_lock_of_a_parent_that_is_killed(kind, tmp_path):
    program = textwrap.dedent(PARENT).format(kind=kind.__name__)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path / "store")],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "2\n", "")


def test_a_fork_within_a_locked_block_leaves_the_lock_with_the_parent(kind, tmp_path):
    with closing(kind(tmp_path / "store", lock_timeout=0)) as store:
        store.append("key/a", b"one")
        statuses = []

        def ids():
            pid = os.fork()
            if pid == 0:
                return  # the child goes on within the block, and leaves it
            statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            with pytest.raises(StorageError, match="locked by") as caught:
                kind(tmp_path / "store", lock_timeout=0).append("key/a", b"two")
            assert caught.value.retryable
            yield ID

        parent = os.getpid()
        try:
            store.delete_objects(ids())
        finally:
            if os.getpid() != parent:
                os._exit(0)
        assert statuses == [0]
        assert store.append("key/a", b"two") == 2


# -- lock files that stay open -------------------------------------------------------------------


def kept(store):
    """The descriptors of the lock files of a store that this process has open."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}") in (f"{store}/.lock", f"{store}/.gate"):
                found[fd] = os.fstat(fd).st_ino
    return found


def test_lock_files_stay_open_until_the_store_is_closed(tmp_path):
    with closing(SQLiteBackend(tmp_path / "store")) as store:
        store.append("key/a", b"one")
        first = kept(store.path)
        store.append("key/a", b"two")
        assert len(first) == 2
        assert kept(store.path) == first
    assert not kept(store.path)
    dropped = SQLiteBackend(tmp_path / "store")
    dropped.append("key/a", b"three")
    del dropped
    assert not kept(store.path)


def test_a_lock_file_that_was_replaced_is_opened_again(tmp_path):
    with closing(SQLiteBackend(tmp_path / "store", lock_timeout=0)) as store:
        store.append("key/a", b"one")
        old = kept(store.path)
        for name in (".lock", ".gate"):
            (store.path / name).rename(tmp_path / name)
        with exclusive_lock(store.path / ".lock"), pytest.raises(StorageError, match="locked by"):
            store.append("key/a", b"two")
        assert store.append("key/a", b"two") == 2
        assert not set(kept(store.path).values()) & set(old.values())


def test_a_descriptor_that_the_program_closed_is_not_taken_for_the_lock_file(tmp_path):
    with closing(SQLiteBackend(tmp_path / "store")) as store:
        store.append("key/a", b"one")
        files = list(kept(store.path))
        with (tmp_path / "other").open("w") as other:
            for fd in files:
                os.dup2(other.fileno(), fd)
            inode = os.fstat(other.fileno()).st_ino
            assert store.append("key/a", b"two") == 2
            store.close()
            assert [os.fstat(fd).st_ino for fd in files] == [inode, inode]  # still open
            with exclusive_lock(tmp_path / "other", 0):
                pass
            for fd in files:
                os.close(fd)


FORKED_BY_C = """
    import ctypes, os, sys, threading
    from agent_checkpoint.backends.sqlite import SQLiteBackend
    from agent_checkpoint.errors import StorageError

    store = SQLiteBackend(sys.argv[1], lock_timeout=0)
    store.append("key/a", b"one")
    locked, is_over = threading.Event(), threading.Event()

    def ids():
        locked.set()
        is_over.wait()
        yield "ab" * 32

    pid = ctypes.PyDLL(None).fork()  # no hook of Python is called
    if pid == 0:
        os.read(0, 1)
        try:
            store.append("key/a", b"two")
        except StorageError as error:
            print("locked by" in str(error), flush=True)
        os._exit(0)
    thread = threading.Thread(target=lambda: store.delete_objects(ids()))
    thread.start()
    locked.wait()
    os.write(1, b"go\\n")
    os.waitpid(pid, 0)
    is_over.set()
    thread.join()
"""


def test_a_child_that_was_forked_without_hooks_does_not_share_a_lock(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FORKED_BY_C), str(tmp_path / "store")],
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "go\n"
        assert process.communicate("x", timeout=100)[0] == "True\n"


# -- lock files that are removed -----------------------------------------------------------------


def test_a_sweep_without_its_lock_deletes_nothing(tmp_path, monkeypatch):
    """A file that no row names may be of a writer that has the new lock file, and commits next."""
    with closing(SQLiteBackend(tmp_path / "store")) as store:
        store.put_objects({ID: bytes(LOOSE_FROM)})
        loose = tmp_path / "store" / "objects" / "ab" / OTHER
        delete = store._space.delete

        def delete_and_lose_the_lock(*arguments):
            delete(*arguments)
            os.unlink(tmp_path / "store" / ".lock")
            loose.write_bytes(b"of another writer")

        monkeypatch.setattr(store._space, "delete", delete_and_lose_the_lock)
        with pytest.raises(StorageError, match="lock file") as caught:
            store.delete_objects([])
        assert caught.value.retryable
        assert loose.exists()


def test_objects_of_a_file_store_are_deleted_only_as_long_as_it_is_locked(tmp_path, monkeypatch):
    with closing(FileBackend(tmp_path / "store")) as store:
        store.put_objects({ID: b"one", OTHER: b"two"})
        unlink = type(tmp_path).unlink

        def unlink_and_lose_the_lock(path, *, missing_ok=False):
            unlink(path, missing_ok=missing_ok)
            if path.name in (ID, OTHER):
                unlink(tmp_path / "store" / ".lock", missing_ok=True)

        with monkeypatch.context() as patch:
            patch.setattr(type(tmp_path), "unlink", unlink_and_lose_the_lock)
            with pytest.raises(StorageError, match="lock file"):
                store.delete_objects([ID, OTHER])
        assert len(list(store.list_objects())) == 1


# -- reading without shared memory ---------------------------------------------------------------


def cannot_share(store, monkeypatch, before=lambda: None):
    """Have SQLite refuse to open the database in the usual way, as on a full disk."""
    connect = store._connections._connect

    def refuse(how="mode=rw", *, shared=True):
        if shared:
            raise sqlite3.OperationalError("unable to open database file")
        before()
        return connect(how, shared=shared)

    monkeypatch.setattr(store._connections, "_connect", refuse)


def test_a_writer_that_comes_to_a_store_without_a_lock_file(tmp_path, monkeypatch):
    with closing(SQLiteBackend(tmp_path / "store")) as store:
        store.append("key/a", b"one")
        store.close()
        lock = tmp_path / "store" / ".lock"
        lock.unlink()
        with monkeypatch.context() as patch:
            cannot_share(store, patch, before=lock.touch)
            with pytest.raises(StorageError, match="written during the read") as caught:
                store.read("key/a")
            assert caught.value.retryable
        assert [entry.data for entry in store.read("key/a")] == [b"one"]


@contextmanager
def no_descriptors():
    """Let this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_nobody_is_told_to_copy_the_store(tmp_path, monkeypatch):
    """The log of a process that died is there, and the lock file cannot be opened again."""
    with closing(SQLiteBackend(tmp_path / "store")) as store:
        store.append("key/a", b"one")
        cannot_share(store, monkeypatch)
        store._connections._idle.clear()  # not closed: the log stays
        (tmp_path / "store" / "store.db-wal").write_bytes(b"x")
        real = os.open
        opened = []

        def open_once(path, *arguments, **options):
            if str(path).endswith(".lock"):
                opened.append(path)
                if len(opened) > 1:
                    raise OSError(errno.EMFILE, "Too many open files")
            return real(path, *arguments, **options)

        monkeypatch.setattr(os, "open", open_once)
        with pytest.raises(StorageError, match="Too many open files") as caught:
            store.read("key/a")
        assert caught.value.retryable


def test_without_descriptors_every_verb_raises_a_typed_error(kind, tmp_path):
    with closing(kind(tmp_path / "store")) as store:
        store.append("key/a", b"one", objects={ID: bytes(LOOSE_FROM)})
        store.close()
        for verb in (
            lambda: store.append("key/a", b"two"),
            lambda: store.read("key/a"),
            lambda: store.get_objects([ID]),
            lambda: list(store.list_objects()),
            lambda: store.replace_objects({ID: b"x"}),
            lambda: store.remove("key/a", [1]),
            lambda: store.delete_objects([ID]),
        ):
            with no_descriptors(), pytest.raises(StorageError):
                verb()
        assert store.append("key/a", b"two") == 2
        assert store.get_objects([ID]) == {ID: bytes(LOOSE_FROM)}
