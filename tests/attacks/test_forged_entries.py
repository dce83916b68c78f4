"""Entries with a right hash that we never write: typed errors, with both JSON libraries."""

import hashlib
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import CheckpointError, CheckpointManager, IntegrityError, StateError
from agent_checkpoint.store import canonical_json
from agent_checkpoint.store.canonical_json import read_json
from agent_checkpoint.store.checkpoint_entries import seal_entry
from tests.exact import decode_state

RECORD: "dict[str, Any]" = {
    "key": "key",
    "ts_ns": 1,
    "kind": "save",
    "label": None,
    "tags": [],
    "metrics": {},
    "parents": [],
    "parts": {"agent": {}},
}


@pytest.fixture(params=["orjson", "without orjson"], autouse=True)
def library(request: Any, monkeypatch: Any) -> None:
    """Run every test with both JSON libraries."""
    if request.param == "without orjson":
        monkeypatch.setattr(canonical_json, "orjson", None)
    elif canonical_json.orjson is None:
        pytest.skip("orjson is not installed")


def forged(data: bytes) -> CheckpointManager:
    """Return a store whose second entry has these bytes."""
    manager = CheckpointManager()
    manager.save("key", {"n": 1})
    manager.store.backend.append("key/key", data)
    return manager


def sealed(body: bytes) -> bytes:
    """Return any text with the hash that an entry would carry."""
    return body + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


TEXTS = [
    b'"\xff"',
    b'"\xed\xa0\x80"',
    '"a"'.encode("utf-16"),
    b'\xef\xbb\xbf"a"',
    rb'"\ud800"',
    rb'"\uDFFF"',
    rb'{"\ud800": 1}',
    rb'["\\", "a\ude00\ud83d"]',
    b"1e999",
    b"[-1e999]",
    b"1" + b"0" * 400 + b".0",
    b"NaN",
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
class TestTexts:
    def test_what_we_never_write_is_refused(self, text: bytes) -> None:
        with pytest.raises(IntegrityError):
            read_json(text)

    def test_such_an_entry_is_named_and_the_rest_goes_on(self, text: bytes) -> None:
        entry = seal_entry({**RECORD, "parts": {"agent": "HERE"}})
        manager = forged(sealed(entry[: entry.rindex(b",")].replace(b'"HERE"', text)))
        with pytest.raises(IntegrityError, match="key@2"):
            manager.load("key", {})
        assert [row["kind"] for row in manager.history("key")] == ["unreadable", "save"]
        assert [problem.checkpoint for problem in manager.verify().problems] == ["key@2"]
        with pytest.raises(IntegrityError):
            manager.gc()


@pytest.mark.parametrize(
    ("text", "value"),
    [(rb'"\ud83d\ude00"', "\U0001f600"), (rb'"\\ud800"', r"\ud800"), (b"1e308", 1e308)],
)
def test_a_text_that_comes_close_is_read(text: bytes, value: Any) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize(
    "change",
    [
        {"ts_ns": -1},
        {"ts_ns": 10**20},
        {"ts_ns": 1.5},
        {"ts_ns": True},
        {"metrics": {"score": 10**400}},
        {"metrics": {"score": None}},
        {"label": 5},
        {"tags": [None]},
        {"tags": {"a": 1}},
        {"parts": ["agent"]},
    ],
    ids=lambda change: str(change)[:40],
)
def test_fields_that_make_no_sense_are_refused(change: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical_json, "orjson", None)  # which does not write large integers
        entry = seal_entry({**RECORD, **change})
    manager = forged(entry)
    with pytest.raises(IntegrityError, match="key@2"):
        manager.load("key", {})
    assert [row["kind"] for row in manager.history("key")] == ["unreadable", "save"]


@pytest.mark.parametrize("names", [5, None, "a" * 63, {"a" * 64: 1}, [5], [["a"]], ["a"], [None]])
def test_gc_deletes_nothing_beside_an_entry_that_names_no_objects(names: Any) -> None:
    manager = forged(seal_entry({**RECORD, "parts": {"agent": {"$ref": names}}}))
    unused = hashlib.sha256(b"unused").hexdigest()
    manager.store.backend.put_objects({unused: b"unused"})
    with pytest.raises(IntegrityError, match="2 of 'key/key'"):
        manager.gc()
    assert manager.store.backend.missing_objects([unused]) == set()


def test_a_giant_fraction_takes_no_time() -> None:
    tree: Any = {"$fraction": [{"$int": "0x" + "7" * 10**6}, {"$int": "0x" + "3" * 10**6}]}
    start = time.process_time()
    with pytest.raises(StateError, match="damaged"):
        decode_state(tree, "agent")
    assert time.process_time() - start < 2


@pytest.mark.parametrize("depth", [330, 480, 700])
@pytest.mark.parametrize("wrap", [lambda tree: [tree], lambda tree: {"a": tree}])
def test_deep_trees_give_typed_errors_from_every_verb(
    depth: int, wrap: Any, tmp_path: Path
) -> None:
    tree: Any = 1
    for _ in range(depth):
        tree = wrap(tree)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical_json, "orjson", None)  # which does not write that deep
        entry = seal_entry({**RECORD, "parts": {"agent": {"x": tree}}})
    manager = forged(entry)
    for verb in (
        lambda: manager.load("key", {}),
        lambda: manager.diff("key", checkpoint_id_a="key@1", checkpoint_id_b="key@2"),
        lambda: manager.diff("key", agent={}, deep=True),
        lambda: manager.fork("key", "other"),
        lambda: manager.export_archive(tmp_path / "a", "key"),
        lambda: manager.gc(),
        lambda: manager.stats(),
        lambda: manager.verify(),
    ):
        with suppress(CheckpointError):
            verb()
