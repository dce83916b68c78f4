"""What changed between two states: exactly, and by path."""

import math
import sys
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy
import pydantic
import pytest

from agent_checkpoint.core.state_diff import diff_states, same

NO_CHANGES: "dict[str, Any]" = {"added": {}, "removed": {}, "changed": {}}


def deep(old: Any, new: Any) -> Any:
    return diff_states(old, new, deep=True)


@dataclass
class Note:
    text: Any
    seen: Any = field(default=0, compare=False)


class Plain:
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class Slotted:
    __slots__ = ("__private", "x")

    def __init__(self, x: Any, private: Any = 0) -> None:
        self.x = x
        self.__private = private


class Pair(NamedTuple):
    x: Any
    y: Any


@attrs.define
class Cell:
    content: Any


class Form(pydantic.BaseModel):
    rows: Any
    _private: Any = pydantic.PrivateAttr(default=0)


class Unwilling:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


UTC = timezone.utc
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)

ALIKE = [
    (math.nan, float("nan")),
    (-math.nan, math.nan),
    ({float("nan")}, {float("nan")}),
    ({float("nan"): 1}, {float("nan"): 1}),
    ({(1, float("nan"))}, {(1, float("nan"))}),
    ({float("nan"), math.nan, 1}, {1, float("nan"), math.nan}),
    (complex(math.nan, 1), complex(float("nan"), 1)),
    (Decimal("NaN"), Decimal("NaN")),
    (Decimal("sNaN"), Decimal("sNaN")),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ([1, [2, (3,)]], [1, [2, (3,)]]),
    (Path(""), Path(".")),
    (Path("a//b"), Path("a", "b")),
    (Note(math.nan), Note(float("nan"))),
    (Plain(a=[math.nan]), Plain(a=[float("nan")])),
    (Slotted(1), Slotted(1)),
    (Pair(1, math.nan), Pair(1, float("nan"))),
    (Cell(math.nan), Cell(float("nan"))),
    (Form(rows=math.nan), Form(rows=float("nan"))),
    (numpy.array([math.nan]), numpy.array([math.nan])),
    (numpy.array([[1], None], dtype=object), numpy.array([[1], None], dtype=object)),
    (numpy.float32("nan"), numpy.float32("nan")),
    (b"a", b"a"),
    (bytearray(b"a"), bytearray(b"a")),
    (NOON, datetime(2020, 1, 1, 12, tzinfo=UTC)),
]

UNLIKE = [
    (1, True),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (1, 1.0),
    (0.0, -0.0),
    (complex(0.0, 0.0), complex(0.0, -0.0)),
    ("1", 1),
    ("a", b"a"),
    (b"a", bytearray(b"a")),
    ([1], (1,)),
    ([1], [1.0]),
    ({1}, {True}),
    ({1}, {1, 2}),
    ({1}, frozenset({1})),
    ({1: 0}, {True: 0}),
    ({1: 0}, {1.0: 0}),
    ({"a": 1}, OrderedDict(a=1)),
    ({"a": 1}, {"a": 1, "b": 2}),
    ({"a": 1}, {"b": 1}),
    (deque([1]), deque([1], maxlen=3)),
    (defaultdict(int), defaultdict(list)),
    (Decimal("1.0"), Decimal("1.00")),
    (NOON, datetime(2020, 1, 1, 13, tzinfo=timezone(timedelta(hours=1)))),
    (datetime(2020, 1, 1), datetime(2020, 1, 1, fold=1)),
    (time(1), time(1, fold=1)),
    (numpy.zeros(2, "<i4"), numpy.zeros(2, "<i8")),
    (numpy.zeros((2, 1)), numpy.zeros((1, 2))),
    (numpy.zeros(2), numpy.array([0.0, -0.0])),
    (numpy.array([[1]], dtype=object), numpy.array([[True]], dtype=object)),
    (numpy.int64(1), 1),
    (Note(1), Note(True)),
    (Note(1, seen=1), Note(1, seen=2)),
    (Plain(a=1), Plain(a=1.0)),
    (Slotted(1), Slotted(True)),
    (Slotted(1, private=1), Slotted(1, private=2)),
    (Pair(1, 2), (1, 2)),
    (Cell(1), Cell(True)),
    (Form(rows=1), Form(rows=True)),
    (Unwilling(), Unwilling()),
    (object(), object()),
]


class TestExactness:
    @pytest.mark.parametrize(("a", "b"), ALIKE, ids=range(len(ALIKE)))
    def test_what_is_alike_is_no_change(self, a: Any, b: Any) -> None:
        assert same(a, b)
        assert diff_states({"f": a}, {"f": b}) == NO_CHANGES
        assert deep({"f": a}, {"f": b}) == NO_CHANGES

    @pytest.mark.parametrize(("a", "b"), UNLIKE, ids=range(len(UNLIKE)))
    def test_what_is_equal_but_not_alike_is_a_change(self, a: Any, b: Any) -> None:
        assert not same(a, b)
        assert list(diff_states({"f": a}, {"f": b})["changed"]) == ["f"]
        assert deep({"f": a}, {"f": b}) != NO_CHANGES

    def test_bytes_between_fields_of_an_array_are_no_change(self) -> None:
        dtype = numpy.dtype([("a", "i1"), ("b", "<i8")], align=True)
        dirty, clean = numpy.frombuffer(b"\xaa" * 16, dtype), numpy.zeros(1, dtype)
        clean["a"], clean["b"] = dirty["a"], dirty["b"]
        assert same(dirty, clean)

    def test_private_attributes_of_models_count(self) -> None:
        a, b = Form(rows=1), Form(rows=1)
        b._private = 1
        assert not same(a, b)

    def test_objects_that_refer_to_each_other_count_as_changed(self) -> None:
        a, b = Plain(), Plain()
        a.other, b.other = b, a  # type: ignore[attr-defined]
        assert not same(a, b)


class TestShallow:
    def test_nothing_changed(self) -> None:
        assert diff_states({"a": [1]}, {"a": [1]}) == NO_CHANGES

    def test_fields_added_removed_and_changed(self) -> None:
        assert diff_states({"a": 1, "b": 2, "c": 3}, {"b": 2, "c": 4, "d": 5}) == {
            "added": {"d": 5},
            "removed": {"a": 1},
            "changed": {"c": (3, 4)},
        }

    def test_fields_are_named_as_they_are(self) -> None:
        names = [".a", "a", "a.b", "two words", "[0]", "x" * 200]
        old, new = dict.fromkeys(names, 1), dict.fromkeys(names, 2)
        assert list(diff_states(old, new)["changed"]) == names

    def test_a_changed_field_comes_whole(self) -> None:
        assert diff_states({"m": [1, 2]}, {"m": [1, 3]})["changed"] == {"m": ([1, 2], [1, 3])}


class TestDeep:
    def test_paths_lead_into_lists_and_dicts(self) -> None:
        old = {"memory": [{"role": "a"}, {"role": "b"}, {"role": "c"}]}
        new = {"memory": [{"role": "a"}, {"role": "b"}, {"role": "d"}]}
        assert deep(old, new)["changed"] == {"memory[2].role": ("c", "d")}

    def test_an_append_shows_as_just_that(self) -> None:
        assert deep({"m": [1, 2]}, {"m": [1, 2, 3]}) == {**NO_CHANGES, "added": {"m[2]": 3}}

    def test_a_trim_at_the_front_shows_as_just_that(self) -> None:
        assert deep({"m": [1, 2, 3]}, {"m": [2, 3]}) == {**NO_CHANGES, "removed": {"m[0]": 1}}

    def test_an_insertion_in_the_middle_shows_as_just_that(self) -> None:
        assert deep({"m": [1, 3]}, {"m": [1, 2, 3]}) == {**NO_CHANGES, "added": {"m[1]": 2}}

    def test_paths_lead_into_tuples_and_dataclasses(self) -> None:
        old, new = {"n": (Note({"a": 1}),)}, {"n": (Note({"a": 2}),)}
        assert deep(old, new)["changed"] == {"n[0].text.a": (1, 2)}

    @pytest.mark.skipif(sys.version_info < (3, 10), reason="slots= came with Python 3.10")
    def test_paths_lead_into_slotted_dataclasses(self) -> None:
        options: Any = {"slots": True}

        @dataclass(**options)
        class Compact:
            x: int

        assert deep({"n": Compact(1)}, {"n": Compact(2)})["changed"] == {"n.x": (1, 2)}

    def test_other_values_are_compared_whole(self) -> None:
        assert deep({"s": {1}}, {"s": {2}})["changed"] == {"s": ({1}, {2})}
        assert deep({"d": deque([1])}, {"d": deque([2])})["changed"] == {
            "d": (deque([1]), deque([2]))
        }

    def test_a_value_of_another_type_comes_whole(self) -> None:
        assert deep({"a": [1]}, {"a": {"b": 1}})["changed"] == {"a": ([1], {"b": 1})}

    def test_keys_that_are_no_names_are_quoted(self) -> None:
        old = {"d": {"two words": 1, 7: 1, (1, "a"): 1, 'a"b': 1}}
        new = {"d": dict.fromkeys(old["d"], 2)}
        assert list(deep(old, new)["changed"]) == [
            'd["two words"]',
            "d[7]",
            "d[(1, 'a')]",
            'd["a\\"b"]',
        ]

    def test_long_keys_are_not_mixed_up(self) -> None:
        path = "src/agent/tools/browser/pages/history_"
        old = {"files": {f"{path}{number}.py": 1 for number in range(3)}}
        new = {"files": dict.fromkeys(old["files"], 2)}
        assert len(deep(old, new)["changed"]) == 3

    def test_keys_that_python_cannot_print_are_not_mixed_up(self) -> None:
        old = {"d": {10**5000: 1, 10**5000 + 1: 1}}
        assert len(deep(old, {"d": dict.fromkeys(old["d"], 2)})["changed"]) == 2

    def test_a_key_of_another_type_is_removed_and_added(self) -> None:
        assert deep({"d": {1: "x"}}, {"d": {True: "x"}}) == {
            "added": {"d[True]": "x"},
            "removed": {"d[1]": "x"},
            "changed": {},
        }

    def test_states_that_are_no_dicts_are_compared_too(self) -> None:
        assert deep([1, 2], [1, 3])["changed"] == {"[1]": (2, 3)}
        assert deep({1: {"a": 1}}, {1: {"a": 2}})["changed"] == {"[1].a": (1, 2)}
