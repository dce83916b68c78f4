"""A save to a remote store assumes that its last checkpoint is the head, and appends after it."""

import pytest

from agent_checkpoint import CheckpointManager, MemoryBackend, WrapperBackend


class SlowBackend(WrapperBackend):
    """A backend on another machine: each call is a round trip."""

    is_local = False

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = []

    @property
    def properties(self):
        return self.inner.properties._replace(is_local=self.is_local)

    def read(self, stream, **which):
        self.calls.append("read")
        return self.inner.read(stream, **which)

    def append(self, stream, entry, **options):
        self.calls.append("append")
        return self.inner.append(stream, entry, **options)

    def made(self):
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def shared():
    return MemoryBackend()


@pytest.fixture
def slow(shared):
    return SlowBackend(shared)


@pytest.fixture
def manager(slow):
    manager = CheckpointManager(slow)
    for number in range(3):
        manager.save("k", {"n": number})
    slow.made()
    return manager


def lineage(manager):
    return [(row["id"], row["parents"]) for row in manager.history("k")]


def test_a_save_appends_without_reading_the_head(manager, slow):
    head = manager.history("k")[0]["id"]
    slow.made()
    cid = manager.save("k", {"n": 3})
    assert slow.made() == ["append"]
    assert lineage(manager)[0] == (cid, [head])


def test_a_local_store_is_read(manager, slow):
    slow.is_local = True
    manager.save("k", {"n": 3})
    assert slow.made() == ["read", "append"]


def test_a_checkpoint_of_another_process_becomes_the_parent(manager, slow, shared):
    """And the next save reads, until this process has saved twice in a row."""
    theirs = CheckpointManager(shared).save("k", {"n": 3})
    ours = manager.save("k", {"n": 4})
    assert slow.made() == ["append", "read", "append"]
    assert lineage(manager)[0] == (ours, [theirs])
    slow.made()
    manager.save("k", {"n": 5})
    assert slow.made() == ["read", "append"]
    manager.save("k", {"n": 6})
    assert slow.made() == ["append"]
    assert manager.verify().ok


def test_a_head_that_another_process_deleted_is_no_parent(manager, slow, shared):
    newest, before = [row["id"] for row in manager.history("k")[:2]]
    CheckpointManager(shared).delete("k", newest)
    slow.made()
    cid = manager.save("k", {"n": 3})
    assert slow.made() == ["append", "read", "append"]
    assert lineage(manager)[0] == (cid, [before])


def test_a_key_that_another_process_deleted_begins_anew(manager, shared):
    CheckpointManager(shared).delete("k")
    cid = manager.save("k", {"n": 3})
    assert lineage(manager) == [(cid, [])]
