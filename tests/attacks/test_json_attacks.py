"""A4: values and texts that break naive JSON code come back exactly, or with a typed error."""

import hashlib
import json
import math
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointError,
    CheckpointManager,
    IntegrityError,
    StateError,
)
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.store import canonical_json
from agent_checkpoint.store.canonical_json import read_json, write_json
from tests.attacks.forging import forge
from tests.exact import alike, decode_state

DEEP = 200_000
LIBRARIES = (
    ["without orjson"] if canonical_json.orjson is None else ["with orjson", "without orjson"]
)


class Reader(Checkpointable):
    def __init__(self, value: Any = "as it was") -> None:
        self.value = value


@pytest.fixture(params=LIBRARIES)
def library(request: Any, monkeypatch: Any) -> None:
    """Run a test with both JSON libraries."""
    if request.param == "without orjson":
        monkeypatch.setattr(canonical_json, "orjson", None)


@pytest.fixture(params=["memory", "file", "pickle"])
def manager(request: Any, tmp_path: Path) -> CheckpointManager:
    if request.param == "memory":
        return CheckpointManager()
    fmt = "pickle" if request.param == "pickle" else "json"
    return CheckpointManager(backend="file", path=tmp_path / "store", fmt=fmt)


def through(manager: CheckpointManager, value: Any) -> Any:
    """Return the value after it was saved and loaded."""
    manager.save("key", Reader(value))
    fresh = Reader()
    manager.load("key", fresh)
    return fresh.value


def nested(wrap: Any, depth: int = DEEP) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = wrap(value)
    return value


class Node:
    """A linked list of Python objects, which is pickled."""

    def __init__(self, following: Any) -> None:
        self.following = following


class TestDeepValues:
    @pytest.mark.slow
    def test_a_python_value_200_000_deep_is_a_typed_error(self) -> None:
        manager = CheckpointManager()
        with pytest.raises(StateError, match=r"^agent\.value.* nested deeper than 100 levels"):
            manager.save("key", Reader(nested(lambda value: [value])))
        assert manager.list_keys() == []

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "wrap",
        [
            lambda value: [value],
            lambda value: (value,),
            lambda value: {"a": value},
            lambda value: {1: value},
            lambda value: deque([value]),
            Node,
        ],
        ids=["list", "tuple", "dict", "pairs", "deque", "object"],
    )
    def test_no_verb_overflows_the_stack(self, wrap: Any, manager: CheckpointManager) -> None:
        value = nested(wrap, 5_000)  # CPython itself crashes on a deque that is much deeper
        agent = Reader(value)
        for use in (
            lambda: manager.save("key", agent),
            agent.state_dict,
            agent.clone,
            lambda: Reader().load_state_dict({"value": value}),
        ):
            with pytest.raises(StateError, match=r"^agent"):
                use()
        assert agent.value is value
        assert manager.list_keys() == []
        with suppress(StateError):  # Python 3.13 can pickle a plain dict of this depth
            manager.save("key", {"value": value})
            manager.state_dict("key")


@pytest.mark.usefixtures("library")
class TestDeepTexts:
    def test_a_json_text_200_000_deep_is_a_typed_error(self) -> None:
        for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b'{"$tuple":[', b"]}")):
            for text in (opening * DEEP, opening * DEEP + b"0" + closing * DEEP):
                with pytest.raises(IntegrityError):
                    read_json(text)

    def test_a_forged_entry_200_000_deep_is_a_typed_error(self, tmp_path: Path) -> None:
        manager = CheckpointManager(backend="file", path=tmp_path)
        manager.save("agent", Reader("good"))
        good = (tmp_path / "agent" / "1.json").read_bytes()
        body = good[: good.rindex(b",")].replace(b'"good"', b"[" * DEEP + b"]" * DEEP)
        digest = hashlib.sha256(body).hexdigest().encode()
        (tmp_path / "agent" / "2.json").write_bytes(body + b',\n  "sha256": "' + digest + b'"\n}\n')
        fresh = Reader()
        with pytest.raises(IntegrityError, match=r"agent.*@2"):
            manager.load("agent", fresh)
        assert fresh.value == "as it was"
        manager.load("agent", fresh, checkpoint_id="agent@1")
        assert fresh.value == "good"

    @pytest.mark.parametrize("depth", [101, 300, 500, 900, 1000])
    def test_a_tree_of_any_depth_that_can_be_read_is_loaded_or_a_typed_error(
        self, depth: int
    ) -> None:
        for opening, closing in (("[", "]"), ('{"$tuple":[', "]}"), ('{"$state":{"a":', "}}")):
            agent = Reader()
            try:
                tree = read_json((opening * depth + "0" + closing * depth).encode())
                agent.load_state_dict({"value": decode_state(tree, "agent")})
            except CheckpointError:
                assert agent.value == "as it was"


@pytest.mark.usefixtures("library")
class TestNumbers:
    @pytest.mark.parametrize(
        "value", [10**5000, -(10**5000), 7**7000, 2**63, 2**64, -(2**64)], ids=range(6)
    )
    def test_integers_of_any_size_come_back(self, value: int, manager: CheckpointManager) -> None:
        assert alike(through(manager, [value, {value: 1}, {value}]), [value, {value: 1}, {value}])

    def test_a_text_with_5_000_digits_is_a_typed_error_or_no_number_at_all(self) -> None:
        for text in (b"1" * 5000, b"-" + b"1" * 5000, b"[" + b"9" * 5000 + b"]"):
            with pytest.raises(CheckpointError):
                decode_state(read_json(text), "agent")

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0])
    def test_every_float_comes_back(self, value: float, manager: CheckpointManager) -> None:
        assert alike(through(manager, [value]), [value])

    @pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
    def test_numbers_that_json_has_not_are_a_typed_error(self, text: bytes) -> None:
        for whole in (text, b"[" + text + b"]", b'{"a":' + text + b"}"):
            with pytest.raises(CheckpointError):
                decode_state(read_json(whole), "agent")

    def test_metrics_that_are_no_numbers_are_refused(self, manager: CheckpointManager) -> None:
        for value in (math.nan, math.inf, 10**400, "one", None):
            with pytest.raises(CheckpointError):
                manager.save("key", Reader(), metrics={"score": value})
        assert manager.list_keys() == []

    @pytest.mark.parametrize("text", ["1e999999999", "1e-999999999", "9" * 10_000 + "/7"])
    def test_text_that_would_become_a_giant_number_is_a_typed_error(self, text: str) -> None:
        for payload in (text, [text], [text, 1], [1, text]):
            with pytest.raises(StateError):
                decode_state({"$fraction": payload}, "agent")

    def test_messages_can_quote_numbers_that_python_does_not_print(self) -> None:
        big = 10**5000
        for state in ({"__class__": big}, {"__version__": big}, {"__class__": [big]}):
            with pytest.raises(StateError):
                Reader().load_state_dict(state)
        agent, other = Reader({big: 1}), Reader({big: 2})
        assert len(agent.diff(other, deep=True)["changed"]) == 1


@pytest.mark.usefixtures("library")
class TestKeys:
    @pytest.mark.parametrize(
        "value",
        [
            {1: "number", "1": "text"},
            {"1": "text", 1: "number", 1.5: "float", "1.5": "text"},
            {None: 1, "None": 2, "null": 3},
            {True: 1, "True": 2, "true": 3},
            {(1, 2): 1, "(1, 2)": 2, "[1, 2]": 3},
            {b"a": 1, "a": 2, "b'a'": 3},
            {math.nan: 1, "nan": 2},
            {"a": 1, "a\u0301": 2, "\u00e1": 3},
            {"": 1, " ": 2, "\x00": 3},
        ],
        ids=ascii,
    )
    def test_keys_are_never_merged(self, value: Any, manager: CheckpointManager) -> None:
        assert alike(through(manager, value), value)

    @pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\ud83d\ude00", "\udc80" * 100])
    def test_lone_surrogates_come_back(self, text: str, manager: CheckpointManager) -> None:
        value = [text, {text: text}, {text}, (text,), {"nested": {text: [text]}}]
        assert alike(through(manager, value), value)

    def test_a_text_with_an_escaped_lone_surrogate_is_exact_or_a_typed_error(self) -> None:
        try:
            value = decode_state(read_json(rb'{"a": "\ud800"}'), "agent")
        except CheckpointError:
            return
        assert value == {"a": "\ud800"}

    def test_a_name_with_lone_surrogates_is_a_typed_error(self, manager: CheckpointManager) -> None:
        for use in (
            lambda: manager.save("\ud800", Reader()),
            lambda: manager.save("key", Reader(), label="\ud800"),
            lambda: manager.save("key", {"\ud800": Reader()}),
        ):
            with pytest.raises(CheckpointError):
                use()
        assert manager.list_keys() == []

    @pytest.mark.parametrize(
        "text",
        [b'{"a":1,"a":2}', b'{"$tuple":[1],"$tuple":[2]}', b'{"x":{"$int":"0x1","$int":"0x2"}}'],
    )
    def test_both_libraries_read_duplicate_keys_alike(self, text: bytes) -> None:
        # The last one counts everywhere; texts that we write have none.
        assert read_json(text) == json.loads(text)

    def test_a_forged_checkpoint_with_both_kinds_of_keys_stays_apart(self, tmp_path: Path) -> None:
        forge(tmp_path, "agent", {"$dict": [[1, "number"], ["1", "text"]]})
        state = CheckpointManager(backend="file", path=tmp_path).state_dict("agent")
        assert state == {1: "number", "1": "text"}

    def test_what_is_written_is_plain_utf_8(self) -> None:
        text = write_json(encode_state({"a": ["\ud800", {"\udfff": "é\x00"}]}, "agent"))
        json.loads(text.decode("utf-8"))
