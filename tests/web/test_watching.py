"""Whether something is new in a store of many keys, without looking at all of it each time."""

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.web import watching
from agent_checkpoint.web.watching import Watch


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> CheckpointManager:
    monkeypatch.setattr(watching, "EVERY", 0.0)
    monkeypatch.setattr(watching, "_LATELY", 5)
    monkeypatch.setattr(watching, "_IN_TURN", 5)
    manager = CheckpointManager()
    for number in range(30):
        manager.save(f"key-{number:02}", {"n": 1})
    return manager


def looks_until_seen(watch: Watch, before: str) -> int:
    for number in range(1, 20):
        if watch.version() != before:
            return number
    raise AssertionError("it was never seen")


def test_every_key_is_seen_in_its_turn(many: CheckpointManager) -> None:
    watch = Watch(many.store)
    version = watch.version()
    assert [watch.version() for _ in range(10)] == [version] * 10
    for number in (0, 7, 15, 29):
        many.save(f"key-{number:02}", {"n": 2})
        assert looks_until_seen(watch, version) <= 6
        version = watch.version()
        many.save(f"key-{number:02}", {"n": 3})
        assert looks_until_seen(watch, version) == 1  # what changed last is looked at each time
        version = watch.version()


def test_what_comes_and_goes_is_seen_at_once(many: CheckpointManager) -> None:
    watch = Watch(many.store)
    version = watch.version()
    many.save("zz", {"n": 1})
    assert looks_until_seen(watch, version) == 1
    version = watch.version()
    many.delete("key-15", "key-15@1")
    assert looks_until_seen(watch, version) == 1
    version = watch.version()
    many.store.backend.append("fx/family", b"{}")  # something was done outside
    assert looks_until_seen(watch, version) == 1


def test_a_look_reads_few_streams(many: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(many.store)
    watch.version()
    read: list[str] = []
    monkeypatch.setattr(Watch, "_read", lambda self, name: read.append(name) or 1)
    watch.version()
    assert len(read) <= 10


def test_pages_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CheckpointManager()
    watch = Watch(manager.store)
    version = watch.version()
    manager.save("key", {"n": 1})
    assert watch.version() == version  # within a second
    monkeypatch.setattr(watching, "EVERY", 0.0)
    assert watch.version() != version
    assert Watch(manager.store).version() != watch.version()  # another server is another one
