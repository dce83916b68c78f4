"""Arguments and results as they are recorded, compared and told."""

import enum
import json
import os
import subprocess
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from uuid import UUID

import pytest

from agent_checkpoint import InvalidInputError, register_type
from agent_checkpoint.core.codec.encode import encode
from agent_checkpoint.session.tools.call_arguments import (
    describe_call,
    encode_for_ledger,
    fingerprints,
    recordable,
)
from tests.agents import Agent, TorchLike


class Colour(str, enum.Enum):
    RED = "red"


class Number(int):
    pass


@register_type
@dataclass
class Spot:
    x: int
    y: "list[int]"


@dataclass
class Unregistered:
    x: int


class NoRepr:
    def __repr__(self) -> str:
        raise ValueError("no repr")

    def __reduce__(self) -> Any:
        raise ValueError("no pickle")


PLAIN = [
    None,
    True,
    7,
    10**40,
    2.5,
    float("inf"),
    "text",
    "\ud800",
    b"\x00\xff",
    [1, [2, {"a": (3,)}]],
    (),
    {"a": {"b": [1]}},
    {1: "one", (2, 3): "pair"},
    {1, 2},
    frozenset("ab"),
    deque([1], maxlen=2),
    Decimal("1.10"),
    datetime(2026, 1, 2, tzinfo=timezone.utc),
    UUID(int=5),
    Path("/a/b"),
    bytearray(b"abc"),
    Spot(1, [2]),
    {"$pickle": "a user's own"},
]


@pytest.mark.parametrize("value", PLAIN, ids=[str(place) for place in range(len(PLAIN))])
def test_what_the_codec_knows_is_recorded_as_it_is(value: Any) -> None:
    found = recordable(value)
    assert found == value
    assert type(found) is type(value)


UNSAVEABLE = [
    threading.Lock(),
    (item for item in ()),
    lambda: None,
    NoRepr(),
    Colour.RED,
    Number(3),
    Unregistered(1),
    subprocess.CompletedProcess(["make"], 0),
    sys,
    object,
]


@pytest.mark.slow
@pytest.mark.parametrize("value", UNSAVEABLE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x], lambda x: {"a": (x,)}])
def test_the_rest_is_described_and_can_be_saved_anywhere(value: Any, wrap: Any) -> None:
    found = recordable(wrap(value))
    assert "$pickle" not in str(encode(found))
    assert f"<{type(value).__name__}: " in str(found)


def test_a_value_beside_one_that_is_described_stays() -> None:
    found = recordable({"lock": threading.Lock(), "number": 3})
    assert found["number"] == 3
    assert found["lock"].startswith("<lock")


@pytest.mark.parametrize("value", [Agent(), TorchLike(), MagicMock()])
def test_a_stateful_is_named_only(value: Any) -> None:
    assert recordable([value]) == [f"<{type(value).__name__}>"]


def test_a_description_is_short() -> None:
    assert len(recordable(Unregistered(10**900))) < 250


@pytest.mark.parametrize("depth", [10, 19, 20, 21, 90, 94, 95, 96, 99, 100, 101, 119, 121, 3000])
@pytest.mark.parametrize("kind", [list, deque])
def test_nothing_recorded_is_too_deep_for_a_row_of_calls(kind: Any, depth: int) -> None:
    value: Any = []
    for _ in range(depth):
        value = kind([value])
    encode([{"arguments": {"x": recordable(value)}}])


def test_a_cycle_is_described() -> None:
    value: list[Any] = []
    value.append(value)
    encode([recordable(value)])


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda value: value.append(2)),
        ({"a": [1]}, lambda value: value["a"].append(2)),
        ({1, 2}, lambda value: value.add(3)),
        ([{1}], lambda value: value[0].add(3)),
        (deque([1]), lambda value: value.append(2)),
        (bytearray(b"a"), lambda value: value.extend(b"b")),
        (Spot(1, [2]), lambda value: value.y.append(3)),
    ],
)
def test_what_is_recorded_shares_nothing_with_the_value(value: Any, change: Any) -> None:
    found = recordable(value)
    before = repr(found)
    change(value)
    assert repr(found) == before


# -- fingerprints --------------------------------------------------------------------------------


def fingerprint(value: Any, what: str) -> str:
    (only,) = fingerprints(value, what)
    return only


def test_equal_arguments_have_equal_fingerprints_in_any_order() -> None:
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}, "x") == fingerprint(
        {"b": {"d": 3, "c": 2}, "a": 1}, "x"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1, "1"),
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ({"a": None}, {}),
        ("é", "e"),
        (b"a", "a"),
        ({"$tuple": [1]}, (1,)),
    ],
)
def test_other_arguments_have_others(one: Any, other: Any) -> None:
    assert fingerprint({"x": one}, "x") != fingerprint({"x": other}, "x")


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    code = (
        "from agent_checkpoint.session.tools.call_arguments import fingerprints\n"
        "print(*fingerprints({'s': {'a', 'b', 'c'}, 'd': {('x', 1): frozenset('xyz')}}, ''))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_what_could_only_be_pickled_has_none() -> None:
    with pytest.raises(InvalidInputError, match=r"mail's arguments.*register_type"):
        fingerprint({"x": Unregistered(1)}, "mail's arguments")


def test_a_users_dict_that_looks_like_a_pickle_has_one() -> None:
    assert fingerprint({"$pickle": "x"}, "x") != fingerprint({"$pickle": "y"}, "x")


def test_large_arguments_are_compared_in_full() -> None:
    text = "x" * 3_000_000
    assert fingerprint([text + "a"], "x") != fingerprint([text + "b"], "x")


def test_what_cannot_be_kept_in_the_ledger_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidInputError, match=r"arguments\.x\[1\].*ledger"):
        encode_for_ledger({"x": [1, threading.Lock()]}, "arguments")


# -- words ---------------------------------------------------------------------------------------


def test_a_call_in_words() -> None:
    assert describe_call("mail", {"to": "ann", "n": 2}) == "mail(to='ann', n=2)"
    assert describe_call("ping", {}) == "ping()"


def test_words_are_one_short_line() -> None:
    text = describe_call("mail", {"body": "line\n" * 900, "more": list(range(999)), "x": NoRepr()})
    assert len(text) <= 120
    assert "\n" not in text


def test_equal_dicts_have_equal_fingerprints_in_any_order() -> None:
    for one, two in [
        ({1: "a", 2: "b"}, {2: "b", 1: "a"}),
        ({("a",): {1: 2, 3: 4}, ("b",): 2}, {("b",): 2, ("a",): {3: 4, 1: 2}}),
        (Counter("aab"), Counter("baa")),
        (defaultdict(int, {1: 2, 3: 4}), defaultdict(int, {3: 4, 1: 2})),
    ]:
        assert fingerprint([one], "x") == fingerprint([two], "x")
    assert fingerprint({1: 2, 2: 1}, "x") != fingerprint({1: 1, 2: 2}, "x")
    one, two = OrderedDict({1: 2, 3: 4}), OrderedDict({3: 4, 1: 2})
    assert fingerprint(one, "x") != fingerprint(two, "x")


@pytest.mark.parametrize(
    "place", [lambda it: it, lambda it: [{"a": (it,)}], lambda it: deque([it])]
)
def test_what_is_captured_in_part_has_no_fingerprint(place: Any) -> None:
    with pytest.raises(InvalidInputError, match="built-in types"):
        fingerprint(place(Agent()), "It")


def test_the_time_to_record_shared_values_is_bounded():
    shared = []
    for _ in range(19):
        shared = [shared] * 10
    assert "<list>" in json.dumps(recordable(shared))


def test_a_large_value_is_recorded_as_a_whole():
    rows = [{"n": [n]} for n in range(30_000)]
    assert recordable(rows) == rows
