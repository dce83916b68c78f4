"""What is built on a backend, over an encrypted one: retention, sessions, retries, os.fork."""

import os
import threading
import warnings
from concurrent.futures import ProcessPoolExecutor
from copy import copy

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from agent_checkpoint import (
    CheckpointManager,
    FileBackend,
    KeepLatest,
    MemoryBackend,
    RetryBackend,
    Session,
    StorageError,
    UntrustedDataError,
    explore,
)
from agent_checkpoint import copy as copy_store
from agent_checkpoint.backends.registry import open_url
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.wrappers.encryption import EncryptedBackend
from agent_checkpoint.records import Entry

KEY = bytes(range(32))


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "store.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def test_gc_prune_and_delete(tmp_path):
    with CheckpointManager(tmp_path / "store", encryption_key=KEY) as manager:
        for number in range(10):
            manager.save("a", {"n": number, "text": f"{number} " * 3000})
        manager.fork("a", "b", checkpoint_id="a@3")
        manager.prune("a", KeepLatest(2))
        assert manager.gc(ignore_clock=True).objects == 7
        assert manager.state_dict("a")["n"] == 9
        assert manager.state_dict("b")["n"] == 2
        manager.delete("b")
        manager.gc()
        assert manager.list_keys() == ["a"]
        assert manager.verify().ok


def test_objects_are_shared_between_saves(tmp_path):
    with CheckpointManager(tmp_path / "store", encryption_key=KEY) as manager:
        for number in range(5):
            manager.save(f"key {number}", {"text": "the same " * 3000})
        assert manager.stats()["objects"] == 1


def test_a_file_store_is_no_longer_readable(tmp_path):
    backend = EncryptedBackend(FileBackend(tmp_path / "store"), KEY)
    assert not backend.properties.readable
    assert not backend.readable


def test_contents_are_compressed_before_they_are_encrypted(tmp_path):
    with CheckpointManager(encryption_key=KEY) as manager:
        manager.save("a", {"text": "the same " * 10_000})
        assert sum(info.size for info in manager.store.backend.inner.list_objects()) < 5000


def test_a_session_is_resumed_rolled_back_and_forked(tmp_path, key_file):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("one")
    url = f"sqlite://{tmp_path}/store?encryption_key_file={key_file}"
    with Session("s", store=url, workspace=files) as session:
        session.messages.append({"role": "user", "content": "hello"})
        session.save()
        (files / "a.txt").write_text("two")
        session.save()
    with Session("s", store=url, workspace=files) as session:
        assert session.resumed
        session.rollback(steps=1)
        assert (files / "a.txt").read_text() == "one"
        branch = session.fork("try")
        with branch:
            (branch.workspace.path / "a.txt").write_text("three")
            branch.save()
        session.adopt(branch)
        assert (files / "a.txt").read_text() == "three"


def score(branch, n):
    branch.messages.append({"role": "user", "content": f"{n}"})
    return n


@pytest.mark.slow
def test_trials_in_other_processes_open_the_store_by_its_url(tmp_path, key_file):
    url = f"sqlite://{tmp_path}/store?encryption_key_file={key_file}"
    with Session("s", store=url) as session:
        session.save()
        with ProcessPoolExecutor(1) as executor:
            outcome = explore(session, score, [{"n": 1}, {"n": 2}], executor=executor)
        assert outcome.best("score").variant == {"n": 2}


def test_an_encrypted_shared_store_is_signed_too(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "a" * 40)
    with CheckpointManager(tmp_path / "store", shared=True, encryption_key=KEY) as manager:
        manager.save("a", {"n": 1})
        assert manager.state_dict("a") == {"n": 1}
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "b" * 40)
        with pytest.raises(UntrustedDataError):
            manager.state_dict("a")


def test_a_copy_encrypts_for_the_same_store():
    backend = EncryptedBackend(MemoryBackend(), KEY)
    backend.append("key/a", b"one")
    twin = copy(backend)
    assert twin.append("key/a", b"two") == 2
    assert backend.read("key/a") == [Entry(1, b"one"), Entry(2, b"two")]


def test_stores_are_copied_into_and_out_of_encryption(tmp_path, key_file):
    plain, other = tmp_path / "plain", tmp_path / "other"
    url = f"sqlite://{tmp_path}/store?encryption_key_file={key_file}"
    with CheckpointManager(plain) as manager:
        manager.save("a", {"text": "Xylophone " * 3000})
    copy_store(plain, url)
    copy_store(url, other)
    for store in (url, other):
        with CheckpointManager(store) as manager:
            assert manager.state_dict("a") == {"text": "Xylophone " * 3000}
    for file in (tmp_path / "store").rglob("*"):
        assert file.is_dir() or b"Xylophone" not in file.read_bytes()


class LostReply(MemoryBackend):
    """The reply to an append is lost, once: it was stored."""

    is_lost = True

    def append(self, stream, entry, **options):
        seq = super().append(stream, entry, **options)
        if self.is_lost and stream.startswith("key/"):
            self.is_lost = False
            raise StorageError("lost", retryable=True, outcome_unknown=True)
        return seq


def test_a_lost_reply_is_recognised_by_its_ciphertext():
    """Even without `after`: the wrapper always knows the entry before."""
    retry = RetryBackend(LostReply(), sleep=lambda _: None)
    backend = EncryptedBackend(retry, KEY)
    assert backend.append("key/a", b"one") == 1
    assert backend.append("key/a", b"two") == 2
    assert backend.read("key/a") == [Entry(1, b"one"), Entry(2, b"two")]


def test_an_append_with_an_unknown_outcome_leaves_the_stream_usable():
    backend = EncryptedBackend(LostReply(), KEY)
    with pytest.raises(StorageError):
        backend.append("key/a", b"one")
    assert backend.append("key/a", b"two") == 2
    assert backend.read("key/a") == [Entry(1, b"one"), Entry(2, b"two")]


def test_an_append_behind_another_writer_costs_one_read():
    inner = MemoryBackend()
    one, other = EncryptedBackend(inner, KEY), EncryptedBackend(inner, KEY)
    for number in range(1, 9):
        assert (one if number % 2 else other).append("key/a", b"%d" % number) == number
    assert [entry.data for entry in one.read("key/a")] == [b"%d" % n for n in range(1, 9)]


def test_a_writer_that_never_catches_up_gets_an_error():
    class Busy(MemoryBackend):
        def append(self, stream, entry, **options):
            if stream.startswith("key/"):
                super().append(stream, b"of another writer")
            return super().append(stream, entry, **options)

    with pytest.raises(StorageError) as caught:
        EncryptedBackend(Busy(), KEY).append("key/a", b"one")
    assert caught.value.retryable


@pytest.mark.parametrize("medium", [SQLiteBackend, FileBackend])
def test_a_process_forked_during_a_first_save_works(tmp_path, medium):
    """Nothing that another thread has begun stays locked in the child."""
    backend = EncryptedBackend(medium(tmp_path / "store"), "correct horse battery staple")
    threads = [threading.Thread(target=backend.append, args=("key/a", b"parent")) for _ in range(2)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are the point
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            backend.append("key/a", b"child")
            status = 0
        finally:
            os._exit(status)
    for thread in threads:
        thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    assert sorted(e.data for e in backend.read("key/a")) == [b"child", b"parent", b"parent"]
    backend.close()


def test_a_replaced_store_is_not_written_under_the_old_key(tmp_path, key_file):
    url = f"sqlite://{tmp_path}/store?encryption_key_file={key_file}"
    backend = open_url(url)
    backend.append("key/a", b"one")
    (tmp_path / "store").rename(tmp_path / "moved")
    assert backend.is_replaced()
    with pytest.raises(StorageError):
        backend.append("key/a", b"two")
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
        assert manager.state_dict("a") == {"n": 1}
    backend.close()


@pytest.mark.parametrize("conflicts", [0, 1, 5])
def test_appends_of_many_writers_pause_after_the_second_conflict(monkeypatch, conflicts):
    """Without pauses, eight processes on one key save at a third of the rate, and some starve."""
    pauses = []
    monkeypatch.setattr("agent_checkpoint.backends.wrappers.encryption.time.sleep", pauses.append)
    left = conflicts

    class Contended(MemoryBackend):
        def append(self, stream, entry, **options):
            nonlocal left
            if stream.startswith("key/") and left:
                left -= 1
                super().append(stream, entry)  # another writer is faster
            return super().append(stream, entry, **options)

    backend = EncryptedBackend(Contended(), KEY)
    assert backend.append("key/a", b"entry") == conflicts + 1
    assert len(pauses) == max(0, conflicts - 1)
    assert all(0 <= pause <= 0.16 for pause in pauses)
