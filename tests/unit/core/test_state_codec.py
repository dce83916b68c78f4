"""Values to JSON text and back: every listed type exactly, everything else sealed or refused."""

import enum
import math
import re
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

import numpy
import pytest

from agent_checkpoint import Checkpointable, StateError, UntrustedDataError
from agent_checkpoint.core.codec.decode import TAG_HANDLERS
from agent_checkpoint.core.codec.leaves import DECODERS
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.store.canonical_json import write_json
from tests.exact import alike, as_json, decode_state, through_json
from tests.properties.values import TAGS

needs_zones = pytest.mark.skipif(
    "Europe/Berlin" not in available_timezones(), reason="no time zones are installed"
)


def tags_of(tree: Any) -> "set[str]":
    """Return the tags in a tree."""
    found: set[str] = set()
    if isinstance(tree, dict):
        found.update(key for key in tree if key[:1] == "$" != key[1:2])
    for item in tree.values() if isinstance(tree, dict) else tree:
        if isinstance(item, (dict, list)):
            found |= tags_of(item)
    return found


def is_readable(value: Any) -> bool:
    """Tell whether the value is written without a pickle."""
    return "$pickle" not in tags_of(encode_state({"value": value}, "agent"))


PLAIN = [
    None,
    True,
    False,
    0,
    -1,
    2**63 - 1,
    -(2**63),
    0.0,
    -0.0,
    0.1,
    1e-7,
    5e-324,
    1.7976931348623157e308,
    1e16,
    "",
    "text",
    "ünïcödé 漢字 🎉",
    "\x00\x01\x1f\x7f\u2028",
    [],
    {},
    [1, [2, [3]]],
    {"a": {"b": [None]}},
]

TAGGED = [
    2**63,
    -(2**63) - 1,
    10**5000,
    -(10**5000),
    math.nan,
    math.inf,
    -math.inf,
    "\ud800",
    "a\udfff\\u0041\n🎉",
    "\ud83d\ude00",
    b"",
    b"\x00\xff",
    bytearray(b"\x00\xff"),
    (),
    (1,),
    (1, (2, [3])),
    set(),
    {1, "a", None, (1, 2)},
    frozenset({1, frozenset({2})}),
    {frozenset({(1, "a")}): 1},
    deque(),
    deque([1, 2], maxlen=2),
    datetime(2020, 1, 2, 3, 4, 5, 6),
    datetime(1, 1, 1),
    datetime.max,
    datetime(2020, 1, 2, tzinfo=timezone.utc),
    datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=45))),
    datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=-5), "EST")),
    datetime(2020, 1, 2, tzinfo=timezone(timedelta(microseconds=1))),
    datetime(2020, 10, 25, 2, 30, fold=1),
    time(1, 2, 3, 4),
    time(1, tzinfo=timezone.utc),
    time(1, fold=1),
    date(2020, 2, 29),
    timedelta(days=-1, microseconds=1),
    timedelta.max,
    timezone.utc,
    timezone(timedelta(hours=-3)),
    timezone(timedelta(hours=-3), "BRT"),
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("1E+1000"),
    Decimal("NaN"),
    Decimal("sNaN12"),
    Decimal("-Infinity"),
    Fraction(1, 3),
    Fraction(-(10**50), 7),
    1 + 2j,
    complex(math.nan, -math.inf),
    complex(-0.0, -0.0),
    UUID("12345678-1234-5678-1234-567812345678"),
    Path(),
    Path("/a/b c"),
    Path("caf\udce9"),
    PurePosixPath("a/../b"),
    PureWindowsPath("C:\\a\\b"),
    {1: "a", "1": "b"},
    {(1, 2): 1, None: 2, 1.5: 3, True: 4},
    {"\ud800": 1},
    Counter("abca"),
    Counter({"a": -1, (1, 2): 0}),
    Counter({"a": "no number"}),
    OrderedDict([("b", 1), ("a", 2)]),
    OrderedDict({1: 2}),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {1: 2}),
    *(defaultdict(cls) for cls in (dict, set, int, float, str, tuple, bool, bytes, deque, Counter)),
]


class TestExactRoundTrip:
    @pytest.mark.parametrize("value", PLAIN, ids=ascii)
    def test_what_json_has_is_written_as_it_is(self, value: Any) -> None:
        assert not tags_of(encode_state({"value": value}, "agent"))
        assert alike(through_json(value), value)

    @pytest.mark.parametrize("value", TAGGED, ids=range(len(TAGGED)))
    def test_other_types_are_written_without_a_pickle(self, value: Any) -> None:
        assert is_readable(value)
        assert alike(through_json(value), value)

    @pytest.mark.parametrize("value", [PLAIN, TAGGED], ids=["plain", "tagged"])
    def test_all_at_once_nested_in_every_container(self, value: Any) -> None:
        nested = [tuple(value), deque(value), {5: value}, defaultdict(list, {"a": value})]
        assert alike(through_json(nested), nested)

    def test_the_order_of_a_dict_is_kept(self) -> None:
        value = {"b": 1, "a": 2, "$c": 3}
        assert list(through_json(value)) == ["b", "a", "$c"]

    @pytest.mark.parametrize("key", ["Europe/Berlin", "America/New_York"])
    @needs_zones
    def test_times_in_named_zones(self, key: str) -> None:
        for fold in (0, 1):
            value = datetime(2020, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo(key))
            assert is_readable(value)
            assert alike(through_json(value), value)
            assert through_json(value).utcoffset() == value.utcoffset()

    @needs_zones
    def test_a_zone_by_itself(self) -> None:
        assert through_json(ZoneInfo("Europe/Berlin")) is ZoneInfo("Europe/Berlin")

    def test_the_plain_path_class_comes_back_as_the_one_of_this_system(self) -> None:
        assert type(through_json(PurePath("a"))) is type(PurePath("a"))

    def test_factories_are_usable_after_the_way(self) -> None:
        value = through_json(defaultdict(list))
        value["new"].append(1)
        assert value == {"new": [1]}

    def test_a_bounded_deque_is_still_bounded(self) -> None:
        value = through_json(deque([1, 2], maxlen=2))
        value.append(3)
        assert list(value) == [2, 3]

    @pytest.mark.parametrize(
        "wrap",
        [
            lambda value: [value],
            lambda value: (value,),
            lambda value: {"a": value},
            lambda value: {1: value},
            lambda value: deque([value]),
            lambda value: defaultdict(list, {1: value}),
        ],
    )
    def test_a_value_at_the_depth_limit_comes_back(self, wrap: Any) -> None:
        value: Any = 0
        for _ in range(100):
            value = wrap(value)
        assert through_json(value) == value

    def test_mixed_keys_cost_no_more_the_deeper_they_are_nested(self) -> None:
        value: Any = 0
        for _ in range(90):  # would never end if each level encoded its values twice
            value = {"text": value, 1: 0}
        assert through_json(value) == value


class TestStableText:
    def test_equal_sets_are_equal_bytes_whatever_their_order_in_memory(self) -> None:
        numbers = [0, 8, 16, 2**70, -1, 0.5]
        texts = {
            write_json(encode_state({"v": set(order)}, "a")) for order in (numbers, numbers[::-1])
        }
        assert len(texts) == 1

    def test_sets_in_sets_are_sorted_too(self) -> None:
        one = {frozenset({8, 0, 16}), frozenset({"b", "a"})}
        other = {frozenset({"a", "b"}), frozenset({16, 8, 0})}
        assert encode_state({"v": one}, "a") == encode_state({"v": other}, "a")

    def test_the_form_of_the_text_does_not_change(self) -> None:
        # What is written today must be readable forever: a change here is a change of format.
        value = {
            "n": [None, True, 1, 1.5],
            "big": 2**64,
            "nan": math.nan,
            "t": (1, {2}),
            "$x": 1,
            "k": {1: "a"},
            "at": datetime(2020, 1, 2, tzinfo=timezone.utc),
            "b": b"\x00",
        }
        assert write_json(encode_state(value, "agent")) == (
            b'{"n":[null,true,1,1.5],"big":{"$int":"0x10000000000000000"},"nan":{"$float":"nan"},'
            b'"t":{"$tuple":[1,{"$set":[2]}]},"$$x":1,"k":{"$dict":[[1,"a"]]},'
            b'"at":{"$datetime":["2020-01-02T00:00:00",0,"UTC"]},"b":{"$bytes":"AA=="}}'
        )


LOOK_ALIKES = [
    {"$tuple": [1, 2]},
    {"$$tuple": [1]},
    {"$": 1},
    {"$$": 1},
    {"$unknown": 1},
    {"$pickle": {"data": "", "seal": ""}},
    {"$type:Skill": {"name": "x"}},
    {"$state": {"__class__": "Skill", "__version__": "1.0"}},
    {"$set": [1], "more": 2},
    {"$set": [1], "$tuple": [2]},
    {"$dict": [[1, 2]]},
    {"__class__": "Skill", "__version__": "9"},
    {"$ndarray": {"dtype": "<f8", "shape": [1], "order": "C", "data": "AAAA"}},
    "$tuple",
    ["$tuple", [1]],
]


class TestLookAlikes:
    @pytest.mark.parametrize("value", LOOK_ALIKES, ids=ascii)
    def test_data_that_looks_like_a_tag_stays_data(self, value: Any) -> None:
        assert alike(through_json(value), value)

    @pytest.mark.parametrize("tag", TAGS)
    def test_every_tag_as_a_key_of_its_own_encoding(self, tag: str) -> None:
        for value in ({tag: []}, {tag: {tag: [{tag: "x"}]}}, {tag: 1, 2: {tag: 3}}):
            assert alike(through_json(value), value)

    def test_encoded_trees_are_data_again_and_again(self) -> None:
        value: Any = {"a": (1, {2}), "b": b"x", 3: "\ud800"}
        tree = encode_state(value, "agent")
        assert alike(through_json(tree), tree)
        twice = encode_state({"tree": tree}, "agent")
        assert alike(
            decode_state(decode_state(as_json({"tree": twice}), "a")["tree"], "a")["tree"], tree
        )

    def test_tags_as_keys_beside_other_kinds_of_keys(self) -> None:
        value = {("$tuple",): {"$set": [1]}, "$int": {frozenset({"$float"}): 1}}
        assert alike(through_json(value), value)


class TestArrays:
    @pytest.mark.parametrize(
        "dtype",
        [
            "?",
            "i1",
            "<u2",
            ">i4",
            "<i8",
            "<f2",
            "<f4",
            ">f8",
            "<c8",
            ">c16",
            "S3",
            "<U3",
            ">U3",
            "V3",
        ],
    )
    def test_every_plain_dtype(self, dtype: str) -> None:
        array = numpy.zeros((2, 3), dtype)
        array[0, 0] = numpy.ones(1, dtype)[0]
        assert is_readable(array)
        assert alike(through_json(array), array)

    @pytest.mark.parametrize("dtype", ["<M8[ns]", "<M8[D]", ">M8[us]", "<m8[s]"])
    def test_dates(self, dtype: str) -> None:
        array = numpy.arange(3).astype(dtype)
        array[1] = "NaT"
        assert alike(through_json(array), array)

    @pytest.mark.parametrize(
        "dtype",
        [
            [("a", "<i4")],
            [("a", "<i4"), ("b", ">f8"), ("c", "U2")],
            [("a", [("x", "<i4"), ("y", "<f8", (2, 3))]), ("b", "<M8[ns]")],
            [(("title", "a"), "<i4")],
            {"names": ["a", "b"], "formats": ["i1", "<i8"], "offsets": [0, 8], "itemsize": 24},
        ],
        ids=str,
    )
    def test_structured_dtypes(self, dtype: Any) -> None:
        array = numpy.zeros(3, numpy.dtype(dtype))
        array["a"] = 7
        assert is_readable(array)
        assert alike(through_json(array), array)

    @pytest.mark.parametrize(
        "dtype",
        [
            {"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 0]},
            numpy.dtype("<i4", metadata={"unit": "m"}),
            numpy.dtype([("a", numpy.dtype("<i4", metadata={"unit": "m"}))]),
            [],
            "V0",
            [("a", "<i4", (0,))],
            (numpy.record, [("a", "<i4")]),
            object,
        ],
        ids=str,
    )
    def test_dtypes_that_text_cannot_say_are_pickled(self, dtype: Any) -> None:
        array = numpy.zeros(2, numpy.dtype(dtype))
        assert not is_readable(array)
        copy = through_json(array)
        assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
        assert type(copy[0]) is type(array[0])

    @pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0), (1, 1), (2, 3, 4)])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_every_shape_and_order(self, shape: Any, order: Any) -> None:
        array = numpy.arange(math.prod(shape), dtype="<f8").reshape(shape, order=order)
        assert alike(through_json(array), array)

    def test_parts_of_arrays(self) -> None:
        array = numpy.arange(20).reshape(4, 5)
        for part in (array[::2, ::2], array[::-1], array.T[1:], numpy.broadcast_to(1, (2, 3))):
            assert (through_json(part) == part).all()

    def test_an_array_can_be_written_to_after_the_way(self) -> None:
        array = through_json(numpy.zeros(3))
        array[0] = 1
        assert array[0] == 1

    @pytest.mark.parametrize(
        "scalar",
        [
            numpy.float32(0.1),
            numpy.float64("nan"),
            numpy.int8(-1),
            numpy.bool_(True),
            numpy.complex64(1j),
            numpy.str_("é"),
            numpy.str_(""),
            numpy.bytes_(b"a"),
            numpy.datetime64("2020-01-01"),
            numpy.timedelta64(5, "s"),
            numpy.zeros(1, [("a", "<i4"), ("b", "U2")])[0],
        ],
        ids=repr,
    )
    def test_scalars_keep_their_type(self, scalar: Any) -> None:
        assert is_readable(scalar)
        assert alike(through_json(scalar), scalar)

    def test_a_structured_scalar_can_be_written_to_after_the_way(self) -> None:
        scalar = through_json(numpy.zeros(1, [("a", "<i4")])[0])
        scalar["a"] = 7
        assert scalar["a"] == 7

    def test_bytes_between_fields_are_not_stored(self) -> None:
        inner = numpy.dtype([("a", "i1"), ("b", "<i8")], align=True)
        dirty = numpy.frombuffer(b"\xaa" * 48, numpy.dtype([("c", inner, (1,)), ("d", "<i8")]))
        clean = numpy.zeros(2, dirty.dtype)
        clean["c"]["a"], clean["c"]["b"], clean["d"] = dirty["c"]["a"], dirty["c"]["b"], dirty["d"]
        assert encode_state({"v": dirty}, "a") == encode_state({"v": clean}, "a")

    def test_arrays_as_values_and_scalars_as_keys(self) -> None:
        value = {numpy.int64(1): [numpy.zeros(2)]}
        assert alike(through_json(value), value)

    def test_a_subclass_of_array_is_pickled(self) -> None:
        value = numpy.ma.masked_array([1, 2], mask=[True, False])
        assert not is_readable(value)
        assert type(through_json(value)) is type(value)


class Custom:
    """Of no kind that the codec knows."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class TextLike(str):
    __slots__ = ()


class IntLike(int):
    pass


class DictLike(dict):  # type: ignore[type-arg]
    pass


class ListLike(list):  # type: ignore[type-arg]
    pass


class OwnZone(tzinfo):
    def utcoffset(self, moment: Any) -> timedelta:
        return timedelta(hours=1)

    def dst(self, moment: Any) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnZone)

    __hash__ = None  # type: ignore[assignment]


def make_list() -> "list[Any]":
    return []


def impostor() -> "list[Any]":
    return ["not empty"]


impostor.__name__ = "list"


class Undefined(enum.Enum):
    """An Enum that nobody registered."""

    ONE = 1


Loose = namedtuple("Loose", "x y")


class TestSealedPickles:
    @pytest.mark.parametrize(
        "value",
        [
            Custom(a=1, b=[Custom()]),
            TextLike("text"),
            IntLike(5),
            DictLike(a=1),
            ListLike([1]),
            Undefined.ONE,
            Loose(1, 2),
            range(3),
            slice(1, 2),
            defaultdict(make_list, a=[1]),
            types.SimpleNamespace(a=1),
            make_list,
            Custom,
            NotImplemented,
            ...,
        ],
        ids=lambda value: getattr(value, "__name__", type(value).__name__),
    )
    def test_everything_else_is_sealed_and_needs_no_registration(self, value: Any) -> None:
        assert not is_readable(value)
        copy = through_json(value)
        assert type(copy) is type(value)
        assert copy == value

    def test_a_time_in_a_zone_of_ones_own_is_sealed(self) -> None:
        value = datetime(2020, 1, 1, tzinfo=OwnZone())
        assert not is_readable(value)
        assert type(through_json(value).tzinfo) is OwnZone

    def test_an_object_that_refers_to_itself_is_sealed_whole(self) -> None:
        value = Custom()
        value.__dict__["me"] = value
        copy = through_json(value)
        assert copy.me is copy

    def test_a_factory_is_known_by_itself_and_not_by_its_name(self) -> None:
        assert through_json(defaultdict(impostor))["new"] == ["not empty"]

    def test_only_what_needs_it_is_sealed(self) -> None:
        tree = encode_state({"readable": [1, (2,)], "other": Custom()}, "agent")
        assert tree["readable"] == [1, {"$tuple": [2]}]

    def test_a_pickle_without_a_seal_is_refused_unless_trusted(self) -> None:
        tree = encode_state({"value": [0, Custom(a=1)]}, "agent")
        tree["value"][1]["$pickle"].pop("seal")
        with pytest.raises(UntrustedDataError, match=r"^agent\.value\[1\] is a pickle"):
            decode_state(tree, "agent")
        assert decode_state(tree, "agent", trust_pickle=True) == {"value": [0, Custom(a=1)]}

    def test_a_pickle_of_another_user_is_refused(self, monkeypatch: Any) -> None:
        tree = encode_state({"value": Custom()}, "agent")
        monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "somebody else's")
        with pytest.raises(UntrustedDataError, match="without a valid signature under your secret"):
            decode_state(tree, "agent")

    def test_a_class_that_has_moved_is_reported(self, monkeypatch: Any) -> None:
        tree = encode_state({"value": Custom()}, "agent")
        monkeypatch.delitem(globals(), "Custom")
        with pytest.raises(StateError, match=r"agent\.value cannot be unpickled"):
            decode_state(tree, "agent")

    def test_a_whole_state_may_be_one_sealed_pickle(self) -> None:
        state = {"a": (1, Custom()), 2: {3}}
        tree = encode_state(state, "agent", "pickle")
        assert tags_of(tree) == {"$pickle"}
        assert alike(decode_state(tree, "agent")[2], {3})
        assert decode_state(tree, "agent") == state


class TestRefusedValues:
    @pytest.mark.parametrize("fmt", ["json", "pickle"])
    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (
                {"memory": [0, 1, 2, {"client": threading.Lock()}]},
                "agent.memory[3].client (_thread.lock)",
            ),
            ({"two words": threading.Lock()}, 'agent["two words"] (_thread.lock)'),
            ({"a": {7: threading.Lock()}}, "agent.a[7] (_thread.lock)"),
            ({"a": (0, threading.Lock())}, "agent.a[1] (_thread.lock)"),
            ({"a": deque([threading.Lock()])}, "agent.a[0] (_thread.lock)"),
            ({"a": Custom(b=[Custom(c=threading.Lock())])}, f"agent.a ({__name__}.Custom)"),
            ({"a": lambda: 0}, "agent.a (function)"),
            ({"a": defaultdict(lambda: 0)}, "agent.a (collections.defaultdict)"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_an_unpicklable_value_is_named_by_its_path(
        self, value: Any, path: str, fmt: str
    ) -> None:
        with pytest.raises(StateError, match=f"^{re.escape(path)} cannot be (captured|copied)"):
            encode_state(value, "agent", fmt)

    def test_a_key_with_a_huge_number_does_not_break_the_message(self) -> None:
        with pytest.raises(
            StateError, match=r"^agent\.a\[0x[0-9a-f]+…\] \(_thread\.lock\) cannot be"
        ):
            encode_state({"a": {10**5000: threading.Lock()}}, "agent")

    def test_a_key_whose_repr_fails_does_not_break_the_message(self) -> None:
        class Unspeakable:
            def __repr__(self) -> str:
                raise ValueError

        with pytest.raises(StateError, match=r"^agent\.a\[<Unspeakable>\] \(\S+\) cannot be"):
            encode_state({"a": {Unspeakable(): threading.Lock()}}, "agent")

    @pytest.mark.parametrize(
        "make",
        [lambda v: v.append(v), lambda v: v.append((v,)), lambda v: v.append({1: deque([v])})],
    )
    def test_a_cycle_is_refused(self, make: Any) -> None:
        value: list[Any] = []
        make(value)
        with pytest.raises(
            StateError, match=r"^agent\.v \(list\) contains a cycle: agent\.v\[0\].* refers back"
        ):
            encode_state({"v": value}, "agent")

    @pytest.mark.parametrize(
        "wrap", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: deque([v])]
    )
    def test_what_is_nested_too_deeply_is_refused(self, wrap: Any) -> None:
        value: Any = 0
        for _ in range(150):
            value = wrap(value)
        with pytest.raises(StateError, match="nested deeper than 100 levels"):
            encode_state({"v": value}, "agent")

    def test_a_container_that_never_stops_changing_is_reported(self) -> None:
        class Growing(dict):  # type: ignore[type-arg]
            def items(self) -> Any:
                raise RuntimeError("dictionary changed size during iteration")

        class Odd:
            def state_dict(self) -> Any:
                Growing().items()

            def load_state_dict(self, state: Any) -> None: ...

        with pytest.raises(StateError, match="agent cannot be captured"):
            encode_state(Odd(), "agent")

    def test_a_container_that_changes_once_is_captured_at_the_next_try(self) -> None:
        tries: list[int] = []

        class Lively:
            def state_dict(self) -> Any:
                tries.append(1)
                if len(tries) == 1:
                    raise RuntimeError("deque mutated during iteration")
                return {"a": 1}

            def load_state_dict(self, state: Any) -> None: ...

        assert encode_state(Lively(), "agent") == {"a": 1}


GARBAGE = [
    None,
    True,
    5,
    -1,
    1.5,
    "garbage",
    "é",
    "\\q",
    "\\N{DIGIT ONE}",
    [None],
    [[]],
    [[], []],
    [[[1, 2, 3]]],
    {"a": 1},
    {"$x": 1},
    {"$str": 5},
    {"zone": "Nowhere/Nowhere"},
    {"zone": "../../etc/passwd"},
    ["2020-01-01", 7, None],
    ["2020-01-01", 0, {"zone": 5}],
    ["2020-01-01", 0, [1, 2]],
    [[1], -1],
    [[1], "a"],
    ["os.system", []],
    ["1e999999999"],
    ["1e999999999", 1],
    [1, 0],
    [1e300, 0, 0],
    {"data": "", "seal": ""},
    {"data": "é"},
    {"data": 5, "seal": None},
    {"dtype": "O", "shape": [1], "order": "C", "data": "AAAAAAAAAAA="},
    {"dtype": "<f8", "shape": [3], "order": "C", "data": "AAAA"},
    {"dtype": "<f8", "shape": None, "order": "C", "data": ""},
    {"dtype": "<f8", "shape": [-1, -1], "order": "C", "data": ""},
    {"dtype": "<f8", "shape": [1], "order": "X", "data": "AAAAAAAAAAA="},
    {"dtype": ["a", 1, 2, 3], "shape": [1], "order": "C", "data": ""},
    {"dtype": [["a", "nonsense"]], "shape": [1], "order": "C", "data": ""},
]

SURELY_WRONG = {
    "$state": [None, 5, "text", [], {"$x": 1}, {"$tuple": [1]}],
    "$tuple": [None, 5, "text", {}, {"a": 1}],
    "$set": [None, 5, "text", {}, [[]], [{}]],
    "$frozenset": [None, 5, "text", {}, [[]]],
    "$deque": [None, 5, "ab", [], [[1]], [[1], -1], [[1], "a"], ["ab", None]],
    "$dict": [None, 5, "ab", {}, [1], ["ab"], [[1]], [[1, 2, 3]], [[[], 1]]],
    "$ordereddict": [None, 5, {}, ["ab"], [[1]], [[{}, 1]]],
    "$counter": [None, 5, {}, ["ab"], [[1]]],
    "$defaultdict": [None, [], ["list"], ["eval", []], ["os.system", []], [5, []], [None, {}]],
    "$ndarray": GARBAGE,
    "$pickle": GARBAGE,
    "$object": GARBAGE,
    "$int": [None, 5, "", "xyz", "0x", 1.5, [1]],
    "$float": [None, 5, "", "1.5", "NaN", "1e999", ["nan"]],
    "$str": [None, 5, "é", "\\", "\\q", "\\u12", "\\N{DIGIT ONE}", "\n", []],
    "$bytes": [None, 5, "é", "a", "====", "YQ==\n", []],
    "$bytearray": [None, 5, "é", "a", 3],
    "$datetime": [None, 5, "", "2020-13-01", [], ["2020-01-01", 2, None], ["2020-01-01", 0, []]],
    "$time": [None, 5, "", "25:00", ["12:00", 0, {}], ["12:00", 0, {"zone": "No/Where"}]],
    "$date": [None, 5, "", "2020-02-30", []],
    "$timedelta": [None, 5, "", [], [1], [1, 2], [1, 2, 3, 4], ["a", 0, 0], [10**10, 0, 0]],
    "$timezone": [None, 5, "CET", [], [2, 0, 0, None], {"zone": "Nowhere/Nowhere"}],
    "$zoneinfo": [
        None,
        5,
        "x",
        {},
        {"zone": 5},
        {"zone": "Nowhere/Nowhere"},
        {"zone": "/etc/passwd"},
    ],
    "$decimal": [None, 5, 1.5, "", "one", [0, [1], 2]],
    "$fraction": [
        None,
        5,
        "1/2",
        [],
        ["1/2"],
        [1, 0],
        [0.5, 1],
        ["1", "2"],
        [{"$float": "nan"}, 1],
    ],
    "$complex": [None, 5, "1j", [], [1], ["1", "2"], [1, 2, 3], [{"$tuple": []}, 1]],
    "$uuid": [None, 5, "", "1234", []],
    "$log": [None, 5, "x", {}, {"$list": "x"}, {"$ref": 5}],
    "$path": [None, 5, [], {}, {"$str": 5}, {"$bytes": ""}],
    "$posixpath": [None, 5, [], {}],
    "$windowspath": [None, 5, [], {}],
}


class TestDamagedTrees:
    def test_every_tag_is_tried(self) -> None:
        assert set(SURELY_WRONG) == set(TAGS) == set(TAG_HANDLERS) | set(DECODERS)

    @pytest.mark.parametrize("tag", SURELY_WRONG)
    def test_a_damaged_payload_is_a_state_error_that_names_the_path(self, tag: str) -> None:
        for payload in SURELY_WRONG[tag]:
            with pytest.raises(StateError, match=r"^agent\.a\[1\]"):
                decode_state({"a": [0, {tag: payload}]}, "agent")

    @pytest.mark.parametrize("tag", TAGS)
    def test_no_garbage_raises_anything_else(self, tag: str) -> None:
        for payload in GARBAGE:
            try:
                decode_state({tag: payload}, "agent")
            except StateError as error:
                assert str(error).startswith("agent")  # noqa: PT017

    @pytest.mark.parametrize("tag", ["$unknown", "$", "$Tuple", "$type", "$os.system"])
    def test_an_unknown_tag_is_named(self, tag: str) -> None:
        with pytest.raises(StateError) as caught:
            decode_state({"a": {tag: 1}}, "agent")
        assert str(caught.value).startswith(f"agent.a has the tag {tag!r}")

    def test_a_type_that_nobody_registered_is_named(self) -> None:
        with pytest.raises(
            StateError, match="agent is of the type 'Nobody', which is not registered"
        ):
            decode_state({"$type:Nobody": {}}, "agent")

    @pytest.mark.parametrize(
        "tree", [{"$tuple": [], "a": 1}, {"a": 1, "$tuple": []}, {"$set": [], "$int": "0x1"}]
    )
    def test_a_tag_stands_alone(self, tree: Any) -> None:
        with pytest.raises(StateError, match="agent is damaged: a tag must be the only member"):
            decode_state(tree, "agent")

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, object(), (1,), b"x"])
    def test_what_json_cannot_have_is_refused(self, value: Any) -> None:
        with pytest.raises(StateError, match=r"^agent\.a is damaged"):
            decode_state({"a": value}, "agent")

    def test_the_path_leads_through_every_container(self) -> None:
        bad = {"$unknown": 1}
        tree = {"a": [0, {"$dict": [[7, {"$tuple": [{"$deque": [[bad], None]}]}]]}]}
        with pytest.raises(StateError, match=r"^agent\.a\[1\]\[7\]\[0\]\[0\] has the tag"):
            decode_state(tree, "agent")

    def test_messages_do_not_quote_values(self) -> None:
        secret = "hunter2-hunter2"
        trees: list[Any] = [{"password": {tag: secret}} for tag in TAGS]
        trees += [{"password": {"$unknown": secret}}, {"password": {"$tuple": secret, "a": secret}}]
        for tree in trees:
            try:
                decode_state(tree, "agent")
            except StateError as error:
                assert secret not in str(error)  # noqa: PT017


class TestObjectsInTrees:
    def test_the_state_of_an_agent_is_marked_as_one(self) -> None:
        class Marked(Checkpointable):
            pass

        assert encode_state(Marked(), "agent") == {
            "$state": {"__version__": "1.0", "__class__": "Marked"}
        }

    def test_a_plain_dict_is_not(self) -> None:
        assert encode_state({"__class__": "Marked"}, "agent") == {"__class__": "Marked"}

    def test_a_decoded_state_can_be_loaded_without_its_class_at_hand(self) -> None:
        tree = {"$state": {"x": {"$tuple": [1]}, "__class__": "NeverDefinedHere"}}
        assert decode_state(tree, "agent") == {"x": (1,), "__class__": "NeverDefinedHere"}
