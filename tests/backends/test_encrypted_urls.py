"""Encrypted stores by option and by URL: every place that takes a store opens the same one."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs agent-checkpoint[encryption]")

from agent_checkpoint import (
    Approvals,
    CacheBackend,
    CheckpointManager,
    CountingBackend,
    EncryptionKeyError,
    InvalidInputError,
    MemoryBackend,
    ReadOnlyBackend,
    RetryBackend,
    Session,
    StorageError,
    Workspace,
    list_sessions,
)
from agent_checkpoint.agents.hook.event_sender import _is_here
from agent_checkpoint.backends import registry
from agent_checkpoint.backends.registry import open_url
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.wrappers.encryption import EncryptedBackend
from agent_checkpoint.backends.wrappers.encryption_keys import EnvironmentKey
from tests.backends.test_url_options import layers

KEY = bytes(range(32))
OTHER = bytes(reversed(range(32)))


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "the key,%&.bin"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


@pytest.fixture
def url(tmp_path, key_file):
    return EncryptedBackend(SQLiteBackend(tmp_path / "store"), key_file).properties.url


@pytest.mark.parametrize("form", ["path", "text", "url", "named", "backend"])
def test_every_way_to_name_a_store_takes_a_key(tmp_path, form):
    path = tmp_path / "store"
    stores = {
        "path": {"store": path},
        "text": {"store": str(path)},
        "url": {"store": f"sqlite://{path}"},
        "named": {"backend": "sqlite", "path": path},
        "backend": {"backend": SQLiteBackend(path)},
    }
    with CheckpointManager(**stores[form], encryption_key=KEY) as manager:
        manager.save("a", {"n": 1})
    with CheckpointManager(f"sqlite://{path}", encryption_key=KEY) as manager:
        assert manager.state_dict("a") == {"n": 1}
    with CheckpointManager(path) as plain, pytest.raises(EncryptionKeyError):
        plain.list_keys()


def test_in_memory():
    with CheckpointManager(encryption_key=KEY) as manager:
        manager.save("a", {"n": 1})
        assert layers(manager.store.backend) == [EncryptedBackend, MemoryBackend]
        assert manager.state_dict("a") == {"n": 1}


def test_a_manager_takes_no_key():
    with pytest.raises(InvalidInputError, match="cannot be combined"):
        CheckpointManager(CheckpointManager(), encryption_key=KEY)


def test_a_key_is_named_once(tmp_path, url):
    with pytest.raises(InvalidInputError, match="not both"):
        CheckpointManager(url, encryption_key=KEY)


def test_the_url_opens_the_same_store(url):
    assert "encryption_key_file=/" in url
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
        assert manager.store.backend.properties.url == url
    with closing(open_url(url)) as again:
        assert again.properties.url == url
        assert list(again.streams("key/")) == ["key/a"]


def test_the_url_names_a_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("THE_KEY", "correct horse battery staple")
    url = f"sqlite://{tmp_path}/store?encryption_key_env=THE_KEY"
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
        assert manager.store.backend.properties.url == url
    code = f"from agent_checkpoint import CheckpointManager as M; print(M({url!r}).state_dict('a'))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert done.stdout.strip() == b"{'n': 1}"


def test_both_options_are_two_keys(tmp_path, key_file, monkeypatch):
    monkeypatch.setenv("OLD", "correct horse battery staple")
    base = f"sqlite://{tmp_path}/store"
    with CheckpointManager(f"{base}?encryption_key_env=OLD") as manager:
        manager.save("a", {"n": 1})
    inner = SQLiteBackend(tmp_path / "store")
    both = EncryptedBackend(inner, [key_file, EnvironmentKey("OLD")]).properties.url
    inner.close()
    for _ in range(2):
        with CheckpointManager(both) as manager:
            assert manager.state_dict("a") == {"n": 1}
            manager.rotate_key()
    with CheckpointManager(base, encryption_key=KEY) as manager:
        assert manager.state_dict("a") == {"n": 1}


def test_two_files_are_two_keys(tmp_path, url, key_file, monkeypatch):
    monkeypatch.setenv("UNUSED", "correct horse battery staple")
    new = tmp_path / "new.key"
    new.touch(0o600)
    new.write_bytes(OTHER)
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
    inner = SQLiteBackend(tmp_path / "store")
    both = EncryptedBackend(inner, [new, EnvironmentKey("UNUSED"), key_file]).properties.url
    inner.close()
    assert f"encryption_key_file={new}&encryption_key_env=UNUSED&old_encryption_key_" in both
    for _ in range(2):
        with CheckpointManager(both) as manager:
            assert manager.state_dict("a") == {"n": 1}
            manager.rotate_key()
    with CheckpointManager(f"sqlite://{tmp_path}/store", encryption_key=OTHER) as manager:
        assert manager.state_dict("a") == {"n": 1}


@pytest.mark.parametrize(
    "key",
    [
        KEY,
        "correct horse battery staple",
        lambda: KEY,
        [KEY],
        [EnvironmentKey("A"), KEY],
        [EnvironmentKey("A"), EnvironmentKey("B")],
        [lambda: KEY, EnvironmentKey("A")],
        [Path("a"), Path("b"), EnvironmentKey("A")],
        [Path("a"), Path("b"), Path("c")],
    ],
)
def test_other_keys_are_in_no_url(tmp_path, key):
    backend = EncryptedBackend(SQLiteBackend(tmp_path / "store"), key)
    assert backend.properties.url is None
    assert backend.url is None


@pytest.mark.parametrize(
    "option",
    ["file=", "file=relative", "env=", "env=a-b", "env=%41", "file=/a&encryption_key_file=/b"],
)
def test_malformed_options(tmp_path, option):
    with pytest.raises(InvalidInputError, match="encryption_key_"):
        open_url(f"sqlite://{tmp_path}/store?encryption_key_{option}")


def test_the_order_of_the_wrappers(tmp_path, url):
    everything = open_url(f"{url}&read_only=1&count=1&retry=2&cache={tmp_path}/cache")
    expected = [ReadOnlyBackend, CountingBackend, EncryptedBackend, CacheBackend, RetryBackend]
    assert layers(everything) == [*expected, SQLiteBackend]
    assert layers(open_url(everything.properties.url)) == [*expected, SQLiteBackend]


def test_a_cache_holds_ciphertext_and_verify_reads_the_store(tmp_path, url):
    with CheckpointManager(f"{url}&cache={tmp_path}/cache") as manager:
        manager.save("a", {"text": "Xylophone " * 3000})
    with CheckpointManager(f"{url}&cache={tmp_path}/cache") as manager:
        assert manager.state_dict("a") == {"text": "Xylophone " * 3000}
        cached = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in cached) > 100
        for file in cached:
            assert b"Xylophone" not in file.read_bytes()
        assert manager.verify().ok
        inner = manager.store.backend.inner.inner
        inner.delete_objects([info.id for info in inner.list_objects()])
        assert not manager.verify().ok


def test_every_place_that_takes_a_store(tmp_path, url):
    with Session("s", store=url) as session:
        session.messages.append({"role": "user", "content": "hello"})
        session.save()
    assert [row.key for row in list_sessions(url)] == ["s"]
    assert Approvals(url).pending() == []
    (tmp_path / "files").mkdir()
    with CheckpointManager(url) as manager:
        Workspace(tmp_path / "files", store=manager).snapshot()
        assert [row.key for row in list_sessions(manager)] == ["s"]
        with Session("s", store=manager) as session:
            assert session.resumed
            assert len(session.messages) == 1
    for place in (list_sessions, Approvals, lambda store: Session("s", store=store)):
        with pytest.raises(EncryptionKeyError):
            getattr(place(str(tmp_path / "store")), "pending", list)()


def test_a_read_only_store_keeps_its_key(url, key_file):
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
    with CheckpointManager(f"{url}&read_only=1") as manager:
        assert manager.state_dict("a") == {"n": 1}
        with pytest.raises(StorageError, match="read-only"):
            manager.rotate_key(OTHER)
    with CheckpointManager(f"{url}&count=1") as manager:
        manager.rotate_key(OTHER)
    with CheckpointManager(url) as manager, pytest.raises(EncryptionKeyError):
        manager.list_keys()


def test_reading_a_missing_store_read_only_creates_nothing(tmp_path, url):
    with CheckpointManager(f"{url}&read_only=1") as manager:
        assert manager.list_keys() == []
    assert not (tmp_path / "store").exists()


def test_a_rotation_with_the_old_key_can_be_repeated(tmp_path, url):
    with CheckpointManager(url) as manager:
        manager.save("a", {"n": 1})
    for _ in range(2):
        with CheckpointManager(url) as manager:
            manager.rotate_key(OTHER)
            assert manager.state_dict("a") == {"n": 1}


def test_a_plaintext_store_has_no_key_to_rotate():
    manager = CheckpointManager()
    manager.save("a", {"n": 1})
    with pytest.raises(EncryptionKeyError, match="without an encryption key"):
        manager.rotate_key(KEY)


def test_the_package_is_named_if_it_is_missing(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("encryption", "store_cipher"):
        monkeypatch.delitem(
            sys.modules, f"agent_checkpoint.backends.wrappers.{name}", raising=False
        )
        monkeypatch.delattr(registry.__package__ + f".wrappers.{name}", raising=False)
    with pytest.raises(InvalidInputError, match=r"agent-checkpoint\[encryption\]"):
        CheckpointManager(encryption_key=KEY)


def test_the_daemon_of_the_hook_does_not_serve_a_key_in_a_variable(url):
    """It does not get the variables of the agent."""
    assert _is_here(url)
    assert not _is_here("sqlite:///store?encryption_key_env=THE_KEY")


def test_an_interrupted_restore_needs_no_url(tmp_path, key_file):
    """A journal names the store by its URL: it must not hold the key."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "a").write_text("one")
    with CheckpointManager(tmp_path / "store", encryption_key=KEY) as manager:
        workspace = Workspace(files, store=manager)
        tree = workspace.snapshot()
        (files / "a").write_text("two")
        workspace.restore(tree)
        assert (files / "a").read_text() == "one"
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or file == key_file or KEY not in file.read_bytes()
    assert os.listdir(files) == ["a"]
