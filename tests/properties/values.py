"""Strategies for values of every type that a checkpoint keeps exactly, nested at will."""

import enum
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

import attrs
import numpy
import pydantic
from hypothesis import strategies as st
from hypothesis.extra import numpy as np_st

from agent_checkpoint import register_type
from tests.exact import alike

TAGS = [
    "$state",
    "$tuple",
    "$set",
    "$frozenset",
    "$deque",
    "$dict",
    "$ordereddict",
    "$counter",
    "$defaultdict",
    "$ndarray",
    "$pickle",
    "$object",
    "$int",
    "$float",
    "$str",
    "$bytes",
    "$bytearray",
    "$datetime",
    "$time",
    "$date",
    "$timedelta",
    "$timezone",
    "$zoneinfo",
    "$decimal",
    "$fraction",
    "$complex",
    "$uuid",
    "$path",
    "$posixpath",
    "$windowspath",
    "$log",
]
"""Every tag that the codec writes, but those of registered types."""


@register_type
class Mood(enum.Enum):
    CALM = "calm"
    TENSE = ("tense", 2)


@register_type
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 10


@register_type
class Rights(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()


@register_type
class Point(NamedTuple):
    x: Any
    y: Any = 0


@register_type
@dataclass
class Note:
    text: Any
    seen: Any = None
    more: Any = field(default_factory=list)


@register_type
@dataclass(frozen=True)
class Stamp:
    by: Any
    at: Any = None


@register_type
@attrs.define
class Cell:
    content: Any
    width: Any = 1


@register_type
class Form(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    title: Any = None
    rows: Any = None


ZONES = [
    ZoneInfo(key)
    for key in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu")
    if key in available_timezones()
]

any_text = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.text(st.sampled_from('aé漢🎉$\\"/\n\x00\x7f\ud800\udfff\ud83d\ude00'), max_size=4),
)
"""Text with every code point, lone surrogates too."""

look_alikes = st.sampled_from(
    [
        *TAGS,
        "$ref",
        "$list",
        "$map",
        "$text",
        "$blob",
        "$",
        "$$",
        "$$tuple",
        "$type:Note",
        "__class__",
        "__version__",
    ]
)
"""Keys that look like the codec's own."""

zones = st.one_of(
    st.just(timezone.utc),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
    st.builds(timezone, st.just(timedelta(hours=2)), st.sampled_from(["CEST", "", "UTC"])),
    *([st.sampled_from(ZONES)] if ZONES else []),
)
clocks = st.one_of(
    st.datetimes(timezones=st.none() | zones, allow_imaginary=True),
    st.times(timezones=st.none() | zones),
).flatmap(lambda value: st.sampled_from([value, value.replace(fold=1)]))

numbers = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**300]),
    st.floats(),
    st.complex_numbers(),
    st.fractions(),
    st.fractions().map(lambda value: value + Fraction(1, 2**80)),
    st.decimals().filter(lambda value: not value.is_snan()),  # that one has no hash
    st.sampled_from([Decimal("1.00"), Decimal("-0"), Decimal("1E+99"), Decimal("-NaN12")]),
)

_hashable_leaves = st.one_of(
    st.none(),
    numbers,
    any_text,
    st.binary(max_size=8),
    clocks,
    zones,
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    any_text.map(Path),
    any_text.map(PurePosixPath),
    any_text.map(PureWindowsPath),
    st.sampled_from([*Mood, *Level, *Rights, Rights.READ | Rights.WRITE, Rights(0)]),
    np_st.from_dtype(numpy.dtype("<f4")),
    np_st.from_dtype(numpy.dtype("<i8")),
    st.sampled_from([numpy.datetime64("2020-01-01", "ns"), numpy.str_("é"), numpy.bool_(True)]),
)


def _shortly(strategy: "st.SearchStrategy[Any]") -> "st.SearchStrategy[Any]":
    """Return the strategy with a short repr: hypothesis warns of long ones."""

    @st.composite
    def any_value(draw: Any) -> Any:
        return draw(strategy)

    return any_value()


hashable_leaves = _shortly(_hashable_leaves)
hashables = st.recursive(
    hashable_leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Stamp, inner, inner),
    ),
    max_leaves=4,
)
"""Values that can be keys and members of sets."""

arrays = np_st.arrays(
    dtype=st.sampled_from(
        [
            *(numpy.dtype(text) for text in ["?", "i1", "<u2", ">i4", "<i8", "<f2", ">f8", "<c8"]),
            *(numpy.dtype(text) for text in ["<U3", "S4", "<M8[ns]", "<M8[D]", "<m8[us]"]),
            numpy.dtype([("a", "<i4"), ("b", [("c", ">f8", (2,)), ("d", "U2")])]),
        ]
    ),
    shape=np_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
).flatmap(lambda array: st.sampled_from([array, numpy.asfortranarray(array)]))

leaves = _shortly(
    st.one_of(
        hashable_leaves,
        st.floats(),
        any_text,
        st.binary(max_size=8).map(bytearray),
        st.just(Decimal("sNaN")),
        arrays,
    )
)

keys = st.one_of(any_text, look_alikes, hashables)


def _containers(inner: "st.SearchStrategy[Any]") -> "st.SearchStrategy[Any]":
    few = st.lists(inner, max_size=3)
    pairs = st.dictionaries(keys, inner, max_size=3)
    return st.one_of(
        few,
        few.map(tuple),
        st.builds(deque, few, st.sampled_from([None, 3, 7])),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
        pairs,
        st.dictionaries(look_alikes, inner, max_size=1),
        pairs.map(OrderedDict),
        st.dictionaries(keys, st.integers(), max_size=3).map(Counter),
        st.builds(defaultdict, st.sampled_from([None, list, dict, int, set, str]), pairs),
        st.builds(Note, inner, inner, few),
        st.builds(Point, inner, inner),
        st.builds(Cell, inner, inner),
        st.builds(Form, title=inner, rows=inner) | st.builds(Form, extra=inner),
    )


values = st.recursive(leaves, _containers, max_leaves=12)
"""Any value that round-trips exactly."""

fields = st.dictionaries(
    st.sampled_from(["memory", "config", "call_count", "plan", "notes"]), values, max_size=4
)
"""The fields of an agent."""


@st.composite
def changed(draw: Any, value: Any) -> Any:
    """Return a strategy for values that differ from `value` at one place."""
    return _change(draw, value)


def _change(draw: Any, value: Any) -> Any:
    if isinstance(value, (list, tuple, deque)) and len(value) and draw(st.booleans()):
        items = list(value)
        place = draw(st.integers(0, len(items) - 1))
        items[place] = _change(draw, items[place])
        if isinstance(value, deque):
            return deque(items, value.maxlen)
        return type(value)(*items) if isinstance(value, Point) else type(value)(items)
    if type(value) in (dict, OrderedDict) and value and draw(st.booleans()):
        copy = value.copy()
        key = draw(st.sampled_from(list(value)))
        if draw(st.booleans()):
            copy[key] = _change(draw, copy[key])
        else:
            del copy[key]
        return copy
    if isinstance(value, (set, frozenset)) and value and draw(st.booleans()):
        return type(value)(list(value)[1:])
    if isinstance(value, Note) and draw(st.booleans()):
        return Note(_change(draw, value.text), value.seen, value.more)
    return draw(leaves.filter(lambda other: not alike(value, other)))


json_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    any_text,
    st.sampled_from(["UTC", "2020-01-01", "0x10", "nan", "list", "1e999999999", "<f8", "MyAgent"]),
)
tag_names = st.sampled_from([*TAGS, "$unknown", "$type:Note", "$type:Mood", "$type:os.system"])

json_trees = st.recursive(
    json_leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(any_text, inner, max_size=3),
        st.dictionaries(tag_names, inner, min_size=1, max_size=1),
        st.dictionaries(
            st.sampled_from(
                ["dtype", "shape", "order", "data", "seal", "zone", "value", "__class__"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)
"""Any JSON that somebody may put where a checkpoint was, with our tags in the wrong places."""
