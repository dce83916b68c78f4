"""The catalog of many keys: order, versions, and bounded reads."""

import re
from typing import Any

import pytest

from agent_checkpoint import CheckpointManager
from agent_checkpoint.web.pages import key_list
from agent_checkpoint.web.timeline import key_catalog
from agent_checkpoint.web.timeline.key_catalog import KeyCatalog
from tests.web.test_pages import plain
from tests.web.visitor import Visitor


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> CheckpointManager:
    monkeypatch.setattr(key_catalog, "EVERY", 0.0)
    monkeypatch.setattr(key_catalog, "_LATELY", 5)
    monkeypatch.setattr(key_catalog, "_IN_TURN", 5)
    monkeypatch.setattr(key_catalog, "_ANEW", 2)
    manager = CheckpointManager()
    for number in range(30):
        manager.save(f"key-{number:02}", {"n": 1})
    return manager


def looks_until_seen(watch: KeyCatalog, before: str) -> int:
    for number in range(1, 20):
        if watch.version() != before:
            return number
    raise AssertionError("it was never seen")


def test_every_key_is_seen_in_its_turn(many: CheckpointManager) -> None:
    watch = KeyCatalog(many.store)
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
    watch = KeyCatalog(many.store)
    version = watch.version()
    many.save("zz", {"n": 1})
    assert looks_until_seen(watch, version) == 1
    version = watch.version()
    many.delete("key-15", "key-15@1")
    assert looks_until_seen(watch, version) == 1
    version = watch.version()
    many.store.backend.append("fx/family", b"{}")  # something was done outside
    assert looks_until_seen(watch, version) == 1


def counted(many: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> "list[str]":
    read: list[str] = []
    backend = many.store.backend
    real = backend.read

    def reading(stream: str, **options: Any) -> Any:
        if stream.startswith("key/"):
            read.append(stream)
        return real(stream, **options)

    monkeypatch.setattr(backend, "read", reading)
    return read


def test_a_look_reads_few_streams(many: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = KeyCatalog(many.store)
    watch.version()
    read = counted(many, monkeypatch)
    watch.version()
    assert len(set(read)) <= 12


def test_the_first_view_of_many_keys_reads_some_and_lists_all(
    many: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_catalog, "_UNREAD", 4)
    monkeypatch.setattr(key_catalog, "_SECONDS", 600.0)
    monkeypatch.setattr(key_list, "PAGE", 3)
    read = counted(many, monkeypatch)
    visitor = Visitor(many)
    text = plain(visitor.text("/"))
    assert "1 to 3 of 30" in text
    # Each page looks twice, for the order and for the forks: what is new is read by both.
    assert len(set(read)) <= 2 * (4 + 12) + 3
    assert re.search(r"\d+ keys not read yet", text)
    seen = {key for start in range(0, 30, 3) for key in shown(visitor, start)}
    assert len(seen) == 30
    many.save("key-07", {"n": 2})  # by now all are known, and the latest is the first
    assert any(shown(visitor, 0)[0] == "key-07" for _ in range(20))
    assert "not read yet" not in visitor.text("/")
    assert shown(visitor, 0, q="KEY-1") == ["key-19", "key-18", "key-17"]


def shown(visitor: Visitor, start: int, **asked: str) -> "list[str]":
    return re.findall(r">(key-\d+)</bdo>", visitor.text("/", **{"from": start}, **asked))


def test_what_takes_long_is_not_done_for_each_page(
    many: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_catalog, "_CHEAP", -1.0)
    monkeypatch.setattr(key_catalog, "_REST", 10**9)
    visitor = Visitor(many)
    visitor.text("/")
    read = counted(many, monkeypatch)
    for page in ("/updates", "/updates?key=key-03", "/timeline?key=key-03", "/updates"):
        assert visitor.client.get(page).status_code == 200
    assert set(read) == {"key/key-03"}


def test_a_pruned_beginning_and_a_deleted_key_are_noticed(many: CheckpointManager) -> None:
    known = KeyCatalog(many.store)
    many.fork("key-00", "a fork")
    many.save("a fork", {"n": 2})
    assert known.origins()["a fork"].parent == ("key-00", 1)
    many.delete("a fork", "a fork@1")
    assert any(known.origins()["a fork"].parent is None for _ in range(40))
    many.delete("a fork")
    assert "a fork" not in known.origins()
    assert "a fork" not in known.latest_first()


def test_pages_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CheckpointManager()
    watch = KeyCatalog(manager.store)
    version = watch.version()
    manager.save("key", {"n": 1})
    assert watch.version() == version  # within a second
    monkeypatch.setattr(key_catalog, "EVERY", 0.0)
    assert watch.version() != version
    assert KeyCatalog(manager.store).version() != watch.version()  # another server is another one
