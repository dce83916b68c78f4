"""A10: any text is a key of its own and leads nowhere else; what is no key is refused."""

import asyncio
import os

import pytest

from agent_checkpoint import CheckpointManager, InvalidInputError, KeepLatest, NotFoundError
from agent_checkpoint.testing.name_tests import NAMES

KEYS = {
    **NAMES,
    "like an id": "a_1700000000000000000-1",
    "a short form of itself": "a~0",
    "brackets and braces": "{0.__class__}%s$(id)`id`",
    "a tag": '{"$pickle": {}}',
    "a byte order mark": "\ufeffa",
    "not a character": "\uffff",
    "beyond the first plane": "\U0010ffff",
    "a line separator": "a\u2028b",
    "a soft hyphen": "a\u00adb",
}

NO_KEYS = {
    "empty": "",
    "a byte too long": "k" * 1025,
    "a byte too long in UTF-8": "é" * 512 + "k",
    "a lone surrogate": "a\ud800",
    "another lone surrogate": "\udfffb",
    "nothing": None,
    "a number": 5,
    "bytes": b"key",
    "a list": ["key"],
    "a path": os.curdir.__class__,
}


@pytest.fixture(params=["memory", "file"])
def manager(request, tmp_path):
    if request.param == "memory":
        return CheckpointManager()
    (tmp_path / "neighbour").write_text("untouched")
    return CheckpointManager(backend="file", path=tmp_path / "store")


@pytest.fixture(autouse=True)
def nothing_outside(tmp_path):
    """Whatever the key, nothing appears beside the store, and no link leads out of it."""
    yield
    assert {item.name for item in tmp_path.iterdir()} <= {"neighbour", "store", "archive"}
    if (tmp_path / "neighbour").exists():
        assert (tmp_path / "neighbour").read_text() == "untouched"
    for item in (tmp_path / "store").rglob("*"):
        assert not item.is_symlink()
        assert len(item.relative_to(tmp_path / "store").parts) <= 3


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_any_text_is_a_key(manager, tmp_path, key):
    first = manager.save(key, {"n": 1}, label="first")
    second = manager.save(key, {"n": 2})
    assert manager.list_keys() == [key]
    assert manager.list_keys(prefix=key) == [key]
    assert manager.list_keys(prefix=key + "?") == []
    assert [row["id"] for row in manager.history(key)] == [second, first]
    assert manager.state_dict(key) == {"n": 2}
    for checkpoint_id in (first, f"{key}~1", f"{key}@1"):
        loaded = {}
        manager.load(key, loaded, checkpoint_id=checkpoint_id)
        assert loaded == {"n": 1}
    assert manager.diff(key, checkpoint_id_a=first)["changed"] == {"n": (1, 2)}
    assert manager.save(key, {"n": 3}, expected_head=second)
    manager.delete(key, first)
    assert len(manager.history(key)) == 2
    manager.export_archive(tmp_path / "archive", key)
    assert manager.verify().ok
    manager.delete(key)
    assert manager.list_keys() == []
    with pytest.raises(NotFoundError):
        manager.load(key, {})
    assert manager.import_archive(tmp_path / "archive") == key
    assert manager.state_dict(key) == {"n": 3}


def test_all_keys_at_once(manager):
    """No two of them meet: not by case, not by form, not by escaping."""
    ids = {key: manager.save(key, {"key": key}) for key in KEYS.values()}
    assert manager.list_keys() == sorted(KEYS.values())
    for key, checkpoint_id in ids.items():
        assert manager.state_dict(key) == {"key": key}
        assert manager.state_dict(key, checkpoint_id) == {"key": key}
        assert len(manager.history(key)) == 1
    manager.delete("a")
    assert manager.list_keys() == sorted(set(KEYS.values()) - {"a"})


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS.keys())
def test_any_text_is_a_key_to_fork_to(manager, key):
    manager.save("original", {"n": 1})
    manager.fork("original", key)
    manager.save("original", {"n": 2})
    assert manager.state_dict(key) == {"n": 1}
    manager.fork(key, "back")
    assert manager.state_dict("back") == {"n": 1}


def test_a_key_that_is_the_id_of_another_checkpoint_wins(manager):
    checkpoint_id = manager.save("plain", {"n": "plain"})
    manager.save(checkpoint_id, {"n": "named like an id"})
    assert manager.state_dict(checkpoint_id) == {"n": "named like an id"}
    assert manager.state_dict("plain", checkpoint_id) == {"n": "plain"}


VERBS = {
    "save": lambda manager, key: manager.save(key, {}),
    "save in background": lambda manager, key: manager.save_in_background(key, {}),
    "asave": lambda manager, key: asyncio.run(manager.asave(key, {})),
    "load": lambda manager, key: manager.load(key, {}),
    "aload": lambda manager, key: asyncio.run(manager.aload(key, {})),
    "state_dict": lambda manager, key: manager.state_dict(key),
    "history": lambda manager, key: manager.history(key),
    "fork from": lambda manager, key: manager.fork(key, "new"),
    "fork to": lambda manager, key: manager.fork("there", key),
    "delete": lambda manager, key: manager.delete(key),
    "delete one": lambda manager, key: manager.delete(key, "there"),
    "prune": lambda manager, key: manager.prune(key, KeepLatest(1)),
    "diff": lambda manager, key: manager.diff(key, agent={}),
    "export": lambda manager, key: manager.export_archive(os.devnull, key),
    "rollback_context": lambda manager, key: manager.rollback_context(key, {}).__enter__(),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
@pytest.mark.parametrize("key", NO_KEYS.values(), ids=NO_KEYS.keys())
def test_what_is_no_key_is_refused_by_every_verb(manager, key, verb):
    manager.save("there", {"n": 1})
    with pytest.raises(InvalidInputError) as caught:
        verb(manager, key)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 200
    manager.close()
    assert manager.list_keys() == ["there"]
    assert len(manager.history("there")) == 1


def test_a_refused_key_makes_no_store(tmp_path):
    manager = CheckpointManager(backend="file", path=tmp_path / "store")
    for key in NO_KEYS.values():
        with pytest.raises(InvalidInputError):
            manager.save(key, {})
    assert not (tmp_path / "store").exists()


BAD_IDS = {
    "empty": "",
    "a number": 7,
    "a path": "../../etc/passwd",
    "another key": "other",
    "a lone surrogate": "there\ud800",
    "too far back": "there~1",
    "very far back": "there~" + "9" * 18,
    "a number that is too long": "there@" + "9" * 5000,
    "number 0": "there@0",
    "not there": "there@2",
    "a wrong time": "there_1-1",
    "a kilobyte": "k" * 3000,
    "a pattern": "there@*",
    "a negative number": "there~-1",
    "foreign digits": "there@\u0661",
}


@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS.keys())
def test_an_id_that_names_nothing_is_a_typed_error(manager, bad):
    manager.save("there", {"n": 1})
    manager.save("other", {"n": 1})
    loaded = {"untouched": True}
    with pytest.raises((NotFoundError, InvalidInputError)):
        manager.load("there", loaded, checkpoint_id=bad)
    with pytest.raises((NotFoundError, InvalidInputError)):
        manager.delete("there", bad)
    assert loaded == {"untouched": True}
    assert manager.list_keys() == ["other", "there"]
