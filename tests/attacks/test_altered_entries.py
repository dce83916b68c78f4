"""A12: an entry altered by hand is noticed and named; everything else goes on."""

import hashlib
import json

import pytest

from agent_checkpoint import (
    CheckpointManager,
    FormatError,
    IntegrityError,
    KeepLatest,
    MemoryBackend,
    NotFoundError,
)
from agent_checkpoint.store.checkpoint_entries import seal_entry

ENTRIES = 4
ALTERED = 2


class Medium:
    """A store whose entries can be looked at and changed past the code."""

    def __init__(self, manager, path):
        self.manager, self.path = manager, path

    def read(self, key, seq):
        if self.path is None:
            return self.manager.store.backend._streams[f"key/{key}"][seq]
        return (self.path / key / f"{seq}.json").read_bytes()

    def write(self, key, seq, data):
        if self.path is None:
            self.manager.store.backend._streams[f"key/{key}"][seq] = data
        else:
            (self.path / key / f"{seq}.json").write_bytes(data)

    def fresh_manager(self):
        if self.path is None:
            return CheckpointManager(self.manager.store.backend)
        return CheckpointManager(backend="file", path=self.path)


@pytest.fixture(params=["memory", "file"])
def medium(request, tmp_path):
    path = tmp_path / "store" if request.param == "file" else None
    manager = CheckpointManager(backend="file", path=path) if path else CheckpointManager()
    for n in range(1, ENTRIES + 1):
        manager.save("key", {"n": n, "text": "a value " * 20})
        manager.save("twin", {"n": -n, "text": "a value " * 20})
    return Medium(manager, path)


def resealed(data, **changes):
    """The entry with other fields and a hash that is right again."""
    record = json.loads(data)
    del record["sha256"], record["agent_checkpoint"]
    record.update(changes)
    record = {name: value for name, value in record.items() if value is not ...}
    return seal_entry(record)


ALTERATIONS = {
    "one letter": lambda data: data.replace(b"value", b"vaIue", 1),
    "one number": lambda data: data.replace(b'"n"', b'"m"', 1),
    "the time": lambda data: data.replace(b'"ts_ns"', b'"ts_nz"', 1),
    "the hash": lambda data: data[:-20] + data[-20:].replace(data[-10:-9], b"!", 1),
    "another valid hash": lambda data: data.replace(
        json.loads(data)["sha256"].encode(), b"0" * 64, 1
    ),
    "the first byte": lambda data: b"[" + data[1:],
    "the last byte": lambda data: data.rstrip()[:-1],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "cut before the hash": lambda data: data[:-80],
    "one byte": lambda data: data[:1],
    "empty": lambda data: b"",
    "zeroes": lambda data: bytes(len(data)),
    "garbage": lambda data: bytes(range(256)) * 8,
    "not UTF-8": lambda data: data.replace(b"value", b"v\xffl\xfee", 1),
    "something before": lambda data: b" " + data,
    "something behind": lambda data: data + b"{}",
    "twice": lambda data: data + data,
    "an empty object": lambda data: b"{}",
    "a list": lambda data: b"[]",
    "other white space": lambda data: json.dumps(json.loads(data), indent=7).encode(),
    "another key, hash recomputed": lambda data: resealed(data, key="other"),
    "no key, hash recomputed": lambda data: resealed(data, key=...),
    "no parts, hash recomputed": lambda data: resealed(data, parts=...),
    "parts that are text, hash recomputed": lambda data: resealed(data, parts="text"),
    "a time that is text, hash recomputed": lambda data: resealed(data, ts_ns="now"),
    "no time, hash recomputed": lambda data: resealed(data, ts_ns=None),
    "a label that is a list, hash recomputed": lambda data: resealed(data, label=["x"]),
    "tags that are text, hash recomputed": lambda data: resealed(data, tags="text"),
    "parents that are numbers, hash recomputed": lambda data: resealed(data, parents=[7]),
    "metrics that are text, hash recomputed": lambda data: resealed(data, metrics={"a": "b"}),
    "metrics that are true, hash recomputed": lambda data: resealed(data, metrics={"a": True}),
    "a kind that is nothing, hash recomputed": lambda data: resealed(data, kind=None),
    "no JSON, hash recomputed": lambda data: sealed_text(b'{"a": nonsense'),
    "deep JSON, hash recomputed": lambda data: sealed_text(b'{"a":' + b"[" * 200_000),
    "a format that is text, hash recomputed": lambda data: sealed_text(b'{"agent_checkpoint":"1"'),
    "no format, hash recomputed": lambda data: sealed_text(b'{"key":"key"'),
}


def sealed_text(body):
    """Any text with the hash that an entry would carry."""
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


@pytest.fixture(params=ALTERATIONS.values(), ids=ALTERATIONS.keys())
def altered(request, medium):
    """The medium with its second entry altered, and the ids of all four as they were."""
    ids = [row["id"] for row in medium.manager.history("key")][::-1]
    data = medium.read("key", ALTERED)
    changed = request.param(data)
    assert changed != data
    medium.write("key", ALTERED, changed)
    return medium, ids


def test_an_altered_entry_is_never_loaded(altered):
    medium, ids = altered
    manager = medium.fresh_manager()
    loaded = {"untouched": True}
    for name in (ids[ALTERED - 1], f"key@{ALTERED}", "key~2"):
        with pytest.raises(IntegrityError, match=f"checkpoint 'key@{ALTERED}'") as caught:
            manager.load("key", loaded, checkpoint_id=name)
        assert "a value" not in str(caught.value)
    with pytest.raises(IntegrityError):
        manager.fork("key", "fork", ids[ALTERED - 1])
    assert loaded == {"untouched": True}
    assert manager.list_keys() == ["key", "twin"]


def test_the_other_checkpoints_still_load(altered):
    medium, ids = altered
    manager = medium.fresh_manager()
    assert manager.state_dict("key")["n"] == ENTRIES
    for n, checkpoint_id in enumerate(ids, 1):
        if n != ALTERED:
            assert manager.state_dict("key", checkpoint_id)["n"] == n
    assert manager.state_dict("twin")["n"] == -ENTRIES
    assert len(manager.history("twin")) == ENTRIES


def test_history_and_verify_name_it(altered):
    medium, ids = altered
    manager = medium.fresh_manager()
    rows = manager.history("key")[::-1]
    assert [row["kind"] for row in rows] == ["save", "unreadable", "save", "save"]
    assert rows[ALTERED - 1]["id"] == f"key@{ALTERED}"
    assert f"'key@{ALTERED}'" in rows[ALTERED - 1]["error"]
    assert [row["id"] for row in rows if row["kind"] == "save"] == ids[:1] + ids[2:]
    report = manager.verify()
    assert report.checkpoints == 2 * ENTRIES
    assert [problem.checkpoint for problem in report.problems] == [f"key@{ALTERED}"]


def test_it_can_be_deleted_and_saving_goes_on(altered):
    medium, ids = altered
    manager = medium.fresh_manager()
    new = manager.save("key", {"n": "new"})
    assert manager.history("key")[0]["parents"] == [ids[-1]]
    manager.delete("key", ids[ALTERED - 1])
    assert manager.verify().ok
    assert [row["id"] for row in manager.history("key")] == [new, *ids[:1:-1], ids[0]]
    manager.gc()


def test_an_altered_head_stops_neither_saving_nor_pruning(medium):
    manager = medium.fresh_manager()
    before = manager.history("key")[1]["id"]
    medium.write("key", ENTRIES, b"garbage")
    with pytest.raises(IntegrityError, match=f"'key@{ENTRIES}'"):
        manager.load("key", {})
    with pytest.raises(IntegrityError):
        manager.save("key", {"n": 9}, expected_head=before)
    new = manager.save("key", {"n": 9})
    assert manager.history("key", n=1)[0]["parents"] == [before]
    assert manager.state_dict("key", new) == {"n": 9}
    manager.prune("key", KeepLatest(1))
    assert [row["kind"] for row in manager.history("key")] == ["save", "unreadable"]
    manager.delete("key", f"key@{ENTRIES}")
    assert manager.verify().ok


def test_the_only_entry_altered(tmp_path):
    manager = CheckpointManager(backend="file", path=tmp_path)
    manager.save("key", {"n": 1})
    (tmp_path / "key" / "1.json").write_bytes(b"")
    assert [row["kind"] for row in manager.history("key")] == ["unreadable"]
    assert manager.list_keys() == ["key"]
    manager.save("key", {"n": 2})
    assert manager.history("key")[0]["parents"] == []
    manager.delete("key")
    assert manager.list_keys() == []


def test_gc_deletes_nothing_beside_a_damaged_entry(medium):
    """Nobody can tell which objects it names."""
    manager = medium.fresh_manager()
    unused = hashlib.sha256(b"unused").hexdigest()
    manager.store.backend.put_objects({unused: b"unused"})
    medium.write("key", ALTERED, b"garbage")
    with pytest.raises(IntegrityError, match="2 of 'key/key'"):
        manager.gc()
    assert manager.store.backend.missing_objects([unused]) == set()


def test_entries_swapped_between_keys(medium):
    manager = medium.fresh_manager()
    mine, theirs = medium.read("key", 3), medium.read("twin", 3)
    medium.write("key", 3, theirs)
    medium.write("twin", 3, mine)
    with pytest.raises(IntegrityError, match=r"'key@3' .* names the key 'twin'"):
        manager.state_dict("key", "key@3")
    with pytest.raises(IntegrityError, match=r"'twin@3' .* names the key 'key'"):
        manager.state_dict("twin", "twin@3")
    assert [problem.checkpoint for problem in manager.verify().problems] == ["key@3", "twin@3"]
    assert manager.state_dict("key")["n"] == ENTRIES


def test_an_id_never_loads_what_was_moved_to_its_place(medium):
    """Entries swapped between positions of one key: the id tells the time, too."""
    manager = medium.fresh_manager()
    ids = [row["id"] for row in manager.history("key")][::-1]
    first, third = medium.read("key", 1), medium.read("key", 3)
    medium.write("key", 1, third)
    medium.write("key", 3, first)
    for checkpoint_id in (ids[0], ids[2]):
        with pytest.raises((NotFoundError, IntegrityError)):
            manager.state_dict("key", checkpoint_id)
    assert manager.state_dict("key", ids[1])["n"] == 2
    assert manager.state_dict("key", ids[3])["n"] == 4


def test_a_key_folder_moved_to_another_name(tmp_path):
    manager = CheckpointManager(backend="file", path=tmp_path)
    manager.save("key", {"n": 1})
    (tmp_path / "key").rename(tmp_path / "moved")
    with pytest.raises(IntegrityError, match=r"'moved@1' .* names the key 'key'"):
        manager.load("moved", {})
    with pytest.raises(NotFoundError):
        manager.load("key", {})


def test_a_newer_format_is_refused(medium):
    """Such an entry is not damaged: a newer version reads it."""
    manager = medium.fresh_manager()
    data = medium.read("key", ALTERED)
    body = json.dumps({**json.loads(data), "agent_checkpoint": 2, "sha256": ""})
    newer = sealed_text(body[: body.rindex(", ")].encode())
    medium.write("key", ALTERED, newer)
    with pytest.raises(FormatError, match=r"'key@2' has format 2.*Install a newer"):
        manager.state_dict("key", f"key@{ALTERED}")
    assert manager.state_dict("key")["n"] == ENTRIES
    assert [problem.checkpoint for problem in manager.verify().problems] == [f"key@{ALTERED}"]
    assert medium.read("key", ALTERED) == newer


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"read": 2, "write": 2, "features": []}, FormatError),
        ({"read": 1, "write": 1, "features": ["packs"]}, FormatError),
        ({"read": "1", "write": "1", "features": []}, FormatError),
        ({}, FormatError),
    ],
)
def test_a_store_of_a_newer_format_is_refused_and_left_alone(tmp_path, record, error):
    CheckpointManager(backend="file", path=tmp_path).save("key", {"n": 1})
    format_file = tmp_path / ".meta%2fformat" / "1.json"
    format_file.write_bytes(seal_entry(record))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    manager = CheckpointManager(backend="file", path=tmp_path)
    for verb in (
        lambda: manager.save("key", {"n": 2}),
        lambda: manager.load("key", {}),
        lambda: manager.history("key"),
        lambda: manager.delete("key"),
        lambda: manager.fork("key", "fork"),
        lambda: manager.prune("key", KeepLatest(1)),
    ):
        with pytest.raises(error, match="Install a newer agent-checkpoint"):
            verb()
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_store_that_only_a_newer_version_may_write_can_be_read(tmp_path):
    CheckpointManager(backend="file", path=tmp_path).save("key", {"n": 1})
    format_file = tmp_path / ".meta%2fformat" / "1.json"
    format_file.write_bytes(seal_entry({"read": 1, "write": 2, "features": []}))
    manager = CheckpointManager(backend="file", path=tmp_path)
    assert manager.state_dict("key") == {"n": 1}
    with pytest.raises(FormatError):
        manager.save("key", {"n": 2})
    with pytest.raises(FormatError):
        manager.delete("key")
    assert manager.state_dict("key") == {"n": 1}


def test_a_damaged_format_record_stops_saves_but_no_load(tmp_path):
    CheckpointManager(backend="file", path=tmp_path).save("key", {"n": 1})
    (tmp_path / ".meta%2fformat" / "1.json").write_bytes(b"garbage")
    manager = CheckpointManager(backend="file", path=tmp_path)
    assert manager.state_dict("key") == {"n": 1}
    assert [problem.checkpoint for problem in manager.verify().problems] == ["meta/format"]
    for verb in (lambda: manager.save("key", {}), lambda: manager.delete("key")):
        with pytest.raises(IntegrityError, match="The format record of the store"):
            verb()
    assert manager.state_dict("key") == {"n": 1}


def test_a_backend_of_ones_own_is_checked_as_well():
    """The check is the store's, not the medium's."""

    class Forgetful(MemoryBackend):
        def read(self, stream, **window):
            entries = super().read(stream, **window)
            return [type(entry)(entry.seq, entry.data[:-1]) for entry in entries]

    backend = Forgetful()
    with pytest.raises(IntegrityError):
        manager = CheckpointManager(backend)
        manager.save("key", {"n": 1})
        manager.load("key", {})
