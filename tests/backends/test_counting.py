"""The counting wrapper: what passes through it, by method."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from agent_checkpoint import CheckpointManager, CountingBackend, MemoryBackend, StorageError
from agent_checkpoint.backends.registry import open_url
from agent_checkpoint.backends.wrappers import counting
from agent_checkpoint.backends.wrappers.counting import CallCount

ID, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def backend():
    return CountingBackend(MemoryBackend())


def test_nothing_is_counted_at_first(backend):
    assert backend.counts == {}
    assert backend.total == CallCount(0, 0, 0, 0)


def test_each_method_is_counted(backend):
    backend.put_objects({ID: b"four", OTHER: b"12"})
    assert backend.counts == {"put_objects": CallCount(calls=1, objects=2, bytes=6)}
    backend.reset()
    backend.get_objects([ID, "ef" * 32])
    assert backend.counts == {"get_objects": CallCount(calls=1, objects=1, bytes=4)}
    backend.reset()
    backend.missing_objects(iter([ID, OTHER, "ef" * 32]))
    assert backend.counts == {"missing_objects": CallCount(calls=1, objects=3)}
    backend.reset()
    assert len(list(backend.list_objects())) == 2
    assert backend.counts == {"list_objects": CallCount(calls=1, objects=2)}
    backend.reset()
    for number in (1, 2):
        backend.append("key/a", b"entry", objects={f"{number}f" * 32: b"12345"})
    assert backend.counts == {"append": CallCount(calls=2, objects=2, entries=2, bytes=20)}
    backend.reset()
    backend.read("key/a", limit=1)
    assert backend.counts == {"read": CallCount(calls=1, entries=1, bytes=5)}
    backend.reset()
    assert list(backend.streams()) == ["key/a"]
    assert backend.counts == {"streams": CallCount(calls=1, entries=1)}
    backend.reset()
    backend.remove("key/a", iter([1, 2]))
    assert backend.counts == {"remove": CallCount(calls=1, entries=2)}
    backend.reset()
    backend.scrub()
    backend.is_replaced()
    assert backend.counts == {"scrub": CallCount(1), "is_replaced": CallCount(1)}
    assert backend.total == CallCount(2)


@pytest.mark.parametrize("as_ids", [list, set, iter, lambda ids: (name for name in ids)])
def test_deletions_count_the_ids(backend, as_ids):
    backend.inner.put_objects({ID: b"x", OTHER: b"y"})
    backend.delete_objects(as_ids([ID, OTHER]))
    assert backend.counts == {"delete_objects": CallCount(calls=1, objects=2)}
    assert list(backend.list_objects()) == []


def test_a_call_that_fails_is_counted(backend):
    def fail(*_):
        raise StorageError("broken")

    backend.inner.get_objects = fail
    with pytest.raises(StorageError):
        backend.get_objects([ID])
    assert backend.counts == {"get_objects": CallCount(calls=1)}


def test_an_abandoned_listing_counts_what_it_yielded(backend):
    backend.inner.put_objects({ID: b"x", OTHER: b"y"})
    listing = backend.list_objects()
    next(listing)
    listing.close()
    assert backend.counts == {"list_objects": CallCount(calls=1, objects=1)}


def test_threads_lose_no_count(backend, monkeypatch):
    """Two threads that both read a count before either writes it would lose one call."""
    together = threading.Barrier(2, timeout=30)

    class Slow(CallCount):
        def __new__(cls, *counts):
            if together.n_waiting < 2 and not together.broken:
                with suppress(threading.BrokenBarrierError):
                    together.wait(0.05)  # both have read; with a lock, only one gets here
            return super().__new__(cls, *counts)

    monkeypatch.setattr(counting, "CallCount", Slow)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: backend.put_objects({ID: b"four"}), range(2)))
    assert backend.counts == {"put_objects": (2, 2, 0, 8)}


def test_the_counts_are_a_copy(backend):
    backend.counts["append"] = CallCount(9)
    assert backend.counts == {}


def test_a_save_is_one_append(tmp_path):
    with CheckpointManager(open_url(f"sqlite://{tmp_path}/store?count=1")) as manager:
        manager.save("a", {"text": "x" * 100_000})
        backend = manager.store.backend
        backend.reset()
        manager.save("a", {"text": "y" * 100_000})
        assert backend.counts["append"].calls == 1
        assert backend.counts["append"].objects >= 1
        assert "put_objects" not in backend.counts
