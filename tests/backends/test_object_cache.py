"""The object cache: a bounded directory of verified copies that many processes share."""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_checkpoint import (
    CacheBackend,
    CheckpointManager,
    CountingBackend,
    FileBackend,
    InvalidInputError,
    MemoryBackend,
    StorageError,
    Workspace,
)
from agent_checkpoint.backends.registry import open_url
from agent_checkpoint.backends.sqlite import SQLiteBackend
from agent_checkpoint.backends.wrappers import cache_directory
from agent_checkpoint.errors import MissingObjectsError
from tests.backends.full_disks import fill, small_disk
from tests.backends.test_wrapper import SECRET, Disguise

BLOCK = 4096
MIB = 1 << 20


def named(*contents):
    return {hashlib.sha256(data).hexdigest(): data for data in contents}


def numbered(count, size=100):
    return named(*(b"%06d" % number + bytes(size - 6) for number in range(count)))


@pytest.fixture
def counting(tmp_path):
    return CountingBackend(SQLiteBackend(tmp_path / "store"))


@pytest.fixture
def backend(counting, tmp_path):
    with_cache = CacheBackend(counting, tmp_path / "cache")
    yield with_cache
    with_cache.close()


def fetched(counting):
    count = counting.counts.get("get_objects")
    return 0 if count is None else count.objects


def cached_files(folder):
    return sorted(path for path in Path(folder).glob("??/*") if path.is_file())


def size_of(folder):
    return sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in cached_files(folder))


# -- hits and misses ---------------------------------------------------------------------------


def test_an_object_is_fetched_once(backend, counting):
    objects = numbered(3)
    backend.put_objects(objects)
    for _ in range(3):
        assert backend.get_objects(objects) == objects
    assert fetched(counting) == 3
    assert counting.counts["get_objects"].calls == 1


def test_only_what_is_missing_is_fetched(backend, counting):
    objects = numbered(4)
    backend.put_objects(objects)
    first, *_ = objects
    backend.get_objects([first])
    assert backend.get_objects(objects) == objects
    assert fetched(counting) == 4


def test_another_instance_uses_the_same_files(backend, counting, tmp_path):
    objects = numbered(3)
    backend.put_objects(objects)
    backend.get_objects(objects)
    again = CacheBackend(counting, tmp_path / "cache")
    assert again.get_objects(objects) == objects
    assert fetched(counting) == 3


def test_an_object_that_does_not_exist_is_not_cached(backend, tmp_path):
    (name,) = named(b"later")
    assert backend.get_objects([name, "no id"]) == {}
    backend.put_objects(named(b"later"))
    assert backend.get_objects([name]) == named(b"later")


def test_two_stores_in_one_directory_do_not_mix(tmp_path):
    (name,) = named(b"x")
    one, two = (CacheBackend(SQLiteBackend(tmp_path / n), tmp_path / "cache") for n in "ab")
    one.put_objects({name: b"one"})
    two.put_objects({name: b"two"})
    for _ in range(2):
        assert one.get_objects([name]) == {name: b"one"}
        assert two.get_objects([name]) == {name: b"two"}


def test_stores_without_a_url_do_not_mix(tmp_path):
    (name,) = named(b"x")
    one, two = (CacheBackend(MemoryBackend(), tmp_path / "cache") for _ in "ab")
    one.put_objects({name: b"one"})
    assert one.get_objects([name])
    assert two.get_objects([name]) == {}


def test_other_wrappers_in_the_url_share_the_objects(tmp_path):
    objects = numbered(2)
    url = f"sqlite://{tmp_path}/store?cache={tmp_path}/cache"
    for query in ("", "&retry=3", "&count=1&retry=2"):
        backend = open_url(url + query)
        backend.put_objects(objects)
        assert backend.get_objects(objects) == objects
        backend.close()
    assert len(cached_files(tmp_path / "cache")) == 2


# -- the cache never vouches for an object -----------------------------------------------------


def test_existence_is_asked_of_the_store(backend, counting):
    objects = numbered(2)
    backend.put_objects(objects)
    backend.get_objects(objects)
    counting.inner.delete_objects(objects)  # as another machine would
    assert backend.missing_objects(objects) == set(objects)
    assert list(backend.list_objects()) == []
    with pytest.raises(MissingObjectsError):
        backend.append("key/a", b"entry", requires=list(objects))


def test_a_save_writes_again_what_another_machine_deleted(backend, counting):
    manager = CheckpointManager(backend)
    state = {"text": "long" * 100_000}
    manager.save("a", state)
    assert manager.state_dict("a") == state
    counting.inner.delete_objects([info.id for info in counting.inner.list_objects()])
    manager.save("a", state)
    with CheckpointManager(counting) as direct:
        assert direct.state_dict("a") == state


def test_verify_reads_the_store_and_not_the_cache(backend, counting, tmp_path):
    manager = CheckpointManager(backend)
    manager.save("a", {"text": "long" * 100_000})
    assert manager.verify().ok
    backend.get_objects([info.id for info in backend.list_objects()])
    assert cached_files(tmp_path / "cache")
    counting.inner.delete_objects([info.id for info in counting.inner.list_objects()])
    assert not manager.verify().ok
    assert backend.uncached() is counting
    assert CountingBackend(backend).uncached().inner is counting


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data[:32],
        lambda data: data[:5],
        lambda data: b"",
    ],
)
def test_a_damaged_file_is_fetched_again(backend, counting, tmp_path, damage):
    objects = numbered(1)
    backend.put_objects(objects)
    backend.get_objects(objects)
    (file,) = cached_files(tmp_path / "cache")
    file.write_bytes(damage(file.read_bytes()))
    assert backend.get_objects(objects) == objects
    assert fetched(counting) == 2
    assert backend.get_objects(objects) == objects
    assert fetched(counting) == 2


def test_a_file_under_another_name_is_not_used(backend, counting, tmp_path):
    objects = numbered(2)
    backend.put_objects(objects)
    backend.get_objects(objects)
    one, two = cached_files(tmp_path / "cache")
    one.write_bytes(two.read_bytes())
    assert backend.get_objects(objects) == objects


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_is_not_read(backend, tmp_path, kind):
    objects = numbered(1)
    backend.put_objects(objects)
    backend.get_objects(objects)
    (file,) = cached_files(tmp_path / "cache")
    content = file.read_bytes()
    file.unlink()
    if kind == "link":
        (tmp_path / "elsewhere").write_bytes(content)
        file.symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        file.mkdir()
    else:
        os.mkfifo(file)
    assert backend.get_objects(objects) == objects


@pytest.mark.parametrize("content", [b"", b"short", bytes(100)])
def test_a_damaged_state_is_measured_again(backend, counting, tmp_path, content):
    objects = numbered(5)
    backend.put_objects(objects)
    backend.get_objects(objects)
    state = tmp_path / "cache" / "agent-checkpoint-cache"
    state.write_bytes(content)
    more = named(b"more")
    backend.put_objects(more)
    for _ in range(2):
        assert backend.get_objects(more) == more
    assert fetched(counting) == 6  # the second time from the cache
    assert int.from_bytes(state.read_bytes()[8:16], "little") == size_of(tmp_path / "cache")


def test_the_file_of_a_killed_process_is_replaced(backend, tmp_path):
    objects = numbered(2)
    backend.put_objects(objects)
    backend.get_objects(list(objects)[:1])
    (tmp_path / "cache" / "new").write_bytes(b"half")
    assert backend.get_objects(objects) == objects
    assert len(cached_files(tmp_path / "cache")) == 2


def test_a_cache_that_was_removed_is_made_again(backend, tmp_path):
    objects = numbered(2)
    backend.put_objects(objects)
    backend.get_objects(objects)
    shutil.rmtree(tmp_path / "cache")
    for _ in range(2):
        assert backend.get_objects(objects) == objects
    assert len(cached_files(tmp_path / "cache")) == 2
    shutil.rmtree(tmp_path / "cache")
    backend.delete_objects(objects)
    assert not (tmp_path / "cache").exists()


# -- the size ----------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=5), max_size=30),
    st.integers(1, 60),
)
@settings(deadline=None, max_examples=30)
def test_the_limit_holds(tmp_path_factory, reads, blocks):
    """After every read, and whatever is read; the content is always right."""
    inner = MemoryBackend()
    contents = {n: b"%02d" % n * (n * 300) + b"." for n in range(41)}
    ids = {n: hashlib.sha256(data).hexdigest() for n, data in contents.items()}
    inner.put_objects({ids[n]: data for n, data in contents.items()})
    folder = tmp_path_factory.mktemp("cache")
    backend = CacheBackend(inner, folder, max_bytes=blocks * BLOCK)
    for wanted in reads:
        found = backend.get_objects([ids[n] for n in wanted])
        assert found == {ids[n]: contents[n] for n in wanted}
        assert size_of(folder) <= blocks * BLOCK


def test_the_least_recently_used_objects_go(tmp_path):
    counting = CountingBackend(MemoryBackend())
    backend = CacheBackend(counting, tmp_path / "cache", max_bytes=16 * BLOCK)
    objects = numbered(20)
    backend.put_objects(objects)
    names = list(objects)
    for name in names[:16]:
        backend.get_objects([name])
    backend.get_objects(names[:4])  # used again
    for name in names[16:]:
        backend.get_objects([name])
    counting.reset()
    backend.get_objects(names[:4])
    assert fetched(counting) == 0
    backend.get_objects(names[4:6])
    assert fetched(counting) == 2


def test_an_object_larger_than_an_eighth_is_not_cached(tmp_path):
    backend = CacheBackend(MemoryBackend(), tmp_path / "cache", max_bytes=16 * BLOCK)
    small, large = named(bytes(2 * BLOCK - 32)), named(bytes(2 * BLOCK - 31))
    backend.put_objects({**small, **large})
    assert backend.get_objects({**small, **large}) == {**small, **large}
    assert len(cached_files(tmp_path / "cache")) == 1


def test_a_smaller_limit_is_reached_in_bounded_steps(tmp_path):
    inner = SQLiteBackend(tmp_path / "store")
    objects = numbered(600)
    inner.put_objects(objects)
    CacheBackend(inner, tmp_path / "cache").get_objects(objects)
    assert size_of(tmp_path / "cache") == 600 * BLOCK
    small = CacheBackend(inner, tmp_path / "cache", max_bytes=100 * BLOCK)
    small.get_objects(first := put(inner, b"first"))
    assert 100 * BLOCK < size_of(tmp_path / "cache") < 600 * BLOCK
    assert not list((tmp_path / "cache").glob(f"??/{next(iter(first))}-*"))  # it did not fit
    for number in range(12):
        small.get_objects(put(inner, b"more %d" % number))
    assert size_of(tmp_path / "cache") <= 100 * BLOCK
    inner.close()


def put(backend, *contents):
    backend.put_objects(named(*contents))
    return named(*contents)


def test_a_read_of_more_than_the_limit_keeps_the_limit(tmp_path):
    inner = MemoryBackend()
    objects = numbered(50)
    inner.put_objects(objects)
    backend = CacheBackend(inner, tmp_path / "cache", max_bytes=20 * BLOCK)
    for _ in range(2):
        assert backend.get_objects(objects) == objects
        assert size_of(tmp_path / "cache") == 20 * BLOCK


def test_the_work_for_one_object_is_bounded(tmp_path, monkeypatch):
    """A full cache of many objects lists a few folders, not all, for one more object."""
    inner = SQLiteBackend(tmp_path / "store")
    objects = numbered(700)
    inner.put_objects(objects)
    backend = CacheBackend(inner, tmp_path / "cache", max_bytes=700 * BLOCK)
    backend.get_objects(objects)
    listed = []
    scan = cache_directory.scan_directory
    monkeypatch.setattr(
        cache_directory, "scan_directory", lambda folder: listed.append(folder) or scan(folder)
    )
    backend.get_objects(put(inner, b"one more"))
    assert 0 < len(listed) <= 64
    inner.close()


# -- deletions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("as_ids", [list, iter])
def test_a_deletion_reaches_the_cache(backend, tmp_path, as_ids):
    objects = numbered(3)
    backend.put_objects(objects)
    backend.get_objects(objects)
    backend.delete_objects(as_ids(list(objects)[:2]))
    assert len(cached_files(tmp_path / "cache")) == 1
    assert list(backend.get_objects(objects)) == list(objects)[2:]


def test_a_deletion_by_another_instance_reaches_the_cache(backend, counting, tmp_path):
    objects = numbered(3)
    backend.put_objects(objects)
    backend.get_objects(objects)
    CacheBackend(counting, tmp_path / "cache").delete_objects(objects)
    assert backend.get_objects(objects) == {}


@pytest.mark.parametrize("verb", ["delete_objects", "scrub"])
def test_an_object_that_is_deleted_while_it_is_read_is_not_cached(tmp_path, verb):
    """The read has the object already, but has not added it to the cache yet."""
    inner = MemoryBackend()
    inner.url = "memory://one"
    other = CacheBackend(inner, tmp_path / "cache")

    class Slow(MemoryBackend):
        url = inner.url

        def get_objects(self, ids):
            found = inner.get_objects(ids)
            if verb == "scrub":
                inner.delete_objects(found)
                other.scrub()
            else:
                other.delete_objects(found)
            return found

    objects = numbered(1)
    inner.put_objects(objects)
    assert CacheBackend(Slow(), tmp_path / "cache").get_objects(objects) == objects
    assert cached_files(tmp_path / "cache") == []
    assert other.get_objects(objects) == {}


def test_a_deletion_that_fails_still_reaches_the_cache(backend, counting, tmp_path):
    objects = numbered(3)
    backend.put_objects(objects)
    backend.get_objects(objects)

    def fail(ids):
        list(ids)
        raise StorageError("some are deleted")

    counting.delete_objects = fail
    with pytest.raises(StorageError, match="some are deleted"):
        backend.delete_objects(iter(objects))
    assert cached_files(tmp_path / "cache") == []


def test_replaced_bytes_are_fetched_again(backend):
    objects = named(b"zebra")
    (name,) = objects
    backend.put_objects(objects)
    backend.get_objects(objects)
    backend.replace_objects({name: b"ape"})
    assert backend.get_objects([name]) == {name: b"ape"}


def test_a_scrub_empties_the_cache(backend, tmp_path):
    objects = numbered(3)
    backend.put_objects(objects)
    backend.get_objects(objects)
    (tmp_path / "cache" / "00").mkdir(exist_ok=True)
    (tmp_path / "cache" / "00" / "notes.txt").write_text("not of the cache")
    (tmp_path / "cache" / "new").write_bytes(b"of a process that was killed")
    assert backend.properties.can_scrub
    backend.scrub()
    assert not (tmp_path / "cache" / "new").exists()
    assert [path.name for path in cached_files(tmp_path / "cache")] == ["notes.txt"]
    assert backend.get_objects(objects) == objects


def test_a_purge_leaves_no_secret_in_the_cache(backend, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_bytes(SECRET.encode() + os.urandom(99))  # stored uncompressed
    manager = CheckpointManager(backend)
    saved = manager.save("files", {"workspace": Workspace(files, store=manager)})
    Workspace(files, store=manager).restore(saved)
    manager.verify()
    backend.get_objects([info.id for info in backend.list_objects()])
    assert any(SECRET.encode() in path.read_bytes() for path in cached_files(tmp_path / "cache"))
    manager.purge(SECRET)
    for path in (tmp_path / "cache").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


def test_the_cache_holds_what_the_inner_backend_holds(tmp_path):
    """Inside an encrypting wrapper it holds ciphertext."""
    cache = CacheBackend(SQLiteBackend(tmp_path / "store"), tmp_path / "cache")
    backend = Disguise(cache)
    objects = named(SECRET.encode())
    backend.put_objects(objects)
    for _ in range(2):
        assert backend.get_objects(objects) == objects
    assert len(cached_files(tmp_path / "cache")) == 1
    for path in (tmp_path / "cache").rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()
        assert next(iter(objects)) not in path.name


# -- the directory -----------------------------------------------------------------------------


def test_files_are_private(backend, tmp_path):
    backend.put_objects(numbered(3))
    before = os.umask(0)
    try:
        backend.get_objects(numbered(3))
    finally:
        os.umask(before)
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_existing_empty_directory_becomes_private(counting, tmp_path):
    (tmp_path / "cache").mkdir(mode=0o755)
    CacheBackend(counting, tmp_path / "cache").get_objects(numbered(1))
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def test_nothing_is_created_before_the_first_read(counting, tmp_path):
    backend = CacheBackend(counting, tmp_path / "cache")
    backend.put_objects(numbered(1))
    backend.delete_objects(numbered(1))
    backend.scrub()
    assert not (tmp_path / "cache").exists()


def test_a_directory_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(InvalidInputError, match="all users can write"):
        CacheBackend(MemoryBackend(), tmp_path / "cache")
    backend = CacheBackend(MemoryBackend(), tmp_path / "later")
    (tmp_path / "later").mkdir()
    (tmp_path / "later").chmod(0o777)
    with pytest.raises(InvalidInputError, match="all users can write"):
        backend.get_objects(numbered(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_of_another_user_is_refused(tmp_path):
    (tmp_path / "cache").mkdir(mode=0o700)
    os.chown(tmp_path / "cache", 12345, 12345)
    with pytest.raises(InvalidInputError, match="is owned by uid 12345"):
        CacheBackend(MemoryBackend(), tmp_path / "cache")


def test_a_directory_of_other_files_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInputError, match="contains other files and is not a cache"):
        CacheBackend(MemoryBackend(), tmp_path)
    with pytest.raises(InvalidInputError, match="is not a directory"):
        CacheBackend(MemoryBackend(), tmp_path / "notes.txt")
    with pytest.raises(InvalidInputError, match="contains other files"):
        open_url(f"memory://?cache={tmp_path}")


@pytest.mark.parametrize("max_bytes", [0, -1, True, "9", None, 1.5])
def test_invalid_limits(tmp_path, max_bytes):
    with pytest.raises(InvalidInputError, match="positive number of bytes"):
        CacheBackend(MemoryBackend(), tmp_path / "cache", max_bytes=max_bytes)


# -- a cache that cannot be written ------------------------------------------------------------


def test_a_full_disk_turns_the_cache_off(counting, tmp_path):
    objects = numbered(4, size=100_000)
    counting.put_objects(objects)
    with small_disk("tmpfs", tmp_path, 1) as disk:
        backend = CacheBackend(counting, disk / "cache")
        first = next(iter(objects))
        backend.get_objects([first])
        fill(disk)
        with pytest.warns(UserWarning, match="cannot be written.*No space left"):
            assert backend.get_objects(objects) == objects
        assert backend.get_objects(objects) == objects  # without a second warning
        counting.reset()
        backend.get_objects([first])
        assert fetched(counting) == 0  # what is cached is still used
        assert not (disk / "cache" / "new").exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.EDQUOT])
def test_other_errors_turn_it_off_too(backend, monkeypatch, number):
    def fail(self, name, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cache_directory.CacheDirectory, "_write", fail)
    objects = numbered(2)
    backend.put_objects(objects)
    with pytest.warns(UserWarning, match="cannot be written"):
        assert backend.get_objects(objects) == objects
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend.get_objects(objects) == objects


def test_a_stopped_process_does_not_block_reads(backend, tmp_path, monkeypatch):
    objects = numbered(2)
    backend.put_objects(objects)
    backend.get_objects(list(objects)[:1])
    monkeypatch.setattr(cache_directory, "_WAIT", 0.01)
    monkeypatch.setattr(cache_directory, "LOCK_TIMEOUT", 0.01)
    with open(tmp_path / "cache" / "agent-checkpoint-cache", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.warns(UserWarning, match="it has been locked by"):
            assert backend.get_objects(objects) == objects
        with pytest.raises(StorageError, match="has been locked by") as caught:
            backend.delete_objects(objects)
        assert caught.value.retryable
    backend.delete_objects(objects)
    assert cached_files(tmp_path / "cache") == []


# -- many processes ----------------------------------------------------------------------------

CROWD = """
import random, sys
from agent_checkpoint import CacheBackend
from agent_checkpoint.backends.sqlite import SQLiteBackend
folder, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
backend = CacheBackend(SQLiteBackend(folder + "/store"), folder + "/cache", max_bytes=64 * 4096)
expected = {info.id: info.size for info in backend.list_objects()}
draw = random.Random(seed)
for step in range(count):
    names = draw.sample(sorted(expected), 5)
    if step % 10 == seed:
        backend.delete_objects(names[:1])
        backend.put_objects({names[0]: names[0].encode()})
    for name, data in backend.get_objects(names).items():
        assert data == name.encode()
"""


@pytest.mark.parametrize("count", [30, pytest.param(400, marks=pytest.mark.slow)])
def test_many_processes_share_a_cache(tmp_path, count):
    ids = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(100)]
    with CheckpointManager(tmp_path / "store") as manager:
        manager.store.backend.put_objects({name: name.encode() for name in ids})
    crowd = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CROWD, tmp_path, str(seed), str(count)],
            stderr=subprocess.PIPE,
        )
        for seed in range(3)
    ]
    errors = [process.communicate()[1] for process in crowd]
    assert [process.returncode for process in crowd] == [0, 0, 0], errors
    assert size_of(tmp_path / "cache") <= 64 * BLOCK
    state = (tmp_path / "cache" / "agent-checkpoint-cache").read_bytes()
    assert int.from_bytes(state[8:16], "little") >= size_of(tmp_path / "cache")


def test_a_url_with_a_cache(tmp_path):
    folder = tmp_path / "a b&c"
    backend = CacheBackend(FileBackend(tmp_path / "store"), folder, max_bytes=MIB)
    again = open_url(backend.properties.url)
    assert again.properties == backend.properties
    again.put_objects(numbered(1))
    again.get_objects(numbered(1))
    assert len(cached_files(folder)) == 1


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("cache=relative", "must be an absolute path"),
        ("cache=", "must be an absolute path"),
        ("cache_bytes=5", "cache_bytes needs a directory"),
        ("cache=/x&cache_bytes=much", "must be a number of bytes"),
        ("cache=/x&cache_bytes=0", "positive number of bytes"),
        ("cache=/a%00b", "NUL"),
    ],
)
def test_invalid_urls(query, message):
    with pytest.raises(InvalidInputError, match=message):
        open_url(f"memory://?{query}")
