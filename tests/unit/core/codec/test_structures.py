"""Dataclasses, named tuples, Enums, attrs and pydantic classes, field by field."""

import dataclasses
import enum
import sys
from collections import OrderedDict
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Optional, TypeVar

import attrs
import pydantic
import pytest

from agent_checkpoint import InvalidInputError, StateError, register_type
from agent_checkpoint.core.state_codec import encode_state
from tests.exact import alike, as_json, decode_state, through_json

T = TypeVar("T")


def written(value: Any) -> Any:
    """Return the tree of a value."""
    return encode_state({"value": value}, "agent")["value"]


def read(tree: Any) -> Any:
    """Return the value of a tree."""
    return decode_state({"value": tree}, "agent")["value"]


class TestDataclasses:
    def test_fields_are_written_by_name(self) -> None:
        @register_type
        @dataclass
        class Message:
            role: str
            parts: "tuple[Any, ...]" = ()

        value = Message("user", (1, {2}))
        assert written(value) == {
            "$type:Message": {"role": "user", "parts": {"$tuple": [1, {"$set": [2]}]}}
        }
        assert through_json(value) == value

    def test_frozen_ones_come_back(self) -> None:
        @register_type
        @dataclass(frozen=True)
        class Fixed:
            x: Any

        assert through_json({Fixed(1): Fixed((1, 2))}) == {Fixed(1): Fixed((1, 2))}

    @pytest.mark.skipif(sys.version_info < (3, 10), reason="slots= came with Python 3.10")
    def test_slotted_ones_come_back(self) -> None:
        options: Any = {"slots": True, "frozen": True}

        @register_type
        @dataclass(**options)
        class Slotted:
            x: Any

        assert through_json(Slotted([1])) == Slotted([1])

    def test_init_and_post_init_do_not_run(self) -> None:
        ran: list[str] = []

        @register_type
        @dataclass
        class Active:
            x: int
            given: InitVar[int] = 0
            made: int = field(init=False, default=0)
            shared: ClassVar[int] = 5

            def __post_init__(self, given: int) -> None:
                ran.append("post_init")
                self.made = self.x + given

        value = Active(1, 2)
        copy = through_json(value)
        assert (copy.x, copy.made) == (1, 3)
        assert ran == ["post_init"]

    def test_a_field_that_is_not_set_stays_so(self) -> None:
        @register_type
        @dataclass
        class Partial:
            x: int
            later: Any = field(init=False)

        assert not hasattr(through_json(Partial(1)), "later")

    def test_a_field_added_since_gets_its_default(self) -> None:
        @register_type
        @dataclass
        class Grown:
            old: int
            new: int = 7
            made: "list[int]" = field(default_factory=list)

        first, second = (read({"$type:Grown": {"old": 1}}) for _ in range(2))
        assert first == Grown(1, 7, [])
        assert first.made is not second.made

    def test_a_field_removed_since_is_named(self) -> None:
        @register_type
        @dataclass
        class Shrunk:
            kept: int

        with pytest.raises(StateError, match=r"agent\.value.*'Shrunk'.*no field gone"):
            read({"$type:Shrunk": {"kept": 1, "gone": 2}})

    def test_attributes_beyond_the_fields_are_not_lost(self) -> None:
        register_type(Noted)
        value = Noted(1)
        value.extra = 2  # type: ignore[attr-defined]
        assert "$pickle" in written(value)
        assert through_json(value).extra == 2

    def test_a_generic_dataclass_comes_back(self) -> None:
        @register_type
        @dataclass
        class Box(Generic[T]):
            content: T

        assert through_json(Box([1])) == Box([1])

    def test_a_subclass_is_a_type_of_its_own(self) -> None:
        @register_type
        @dataclass
        class Base:
            x: int

        register_type(Sub)
        assert through_json([Base(1), Sub(1, 2)]) == [Base(1), Sub(1, 2)]
        assert type(through_json(Sub(1, 2))) is Sub

    @pytest.mark.parametrize("base", [dict, OrderedDict, list, Exception])
    def test_one_with_content_beside_its_fields_is_not_taken_apart(self, base: type) -> None:
        @dataclass
        class Loaded(base):  # type: ignore[misc]
            x: int = 0

        with pytest.raises(InvalidInputError, match="register_type"):
            register_type(Loaded)

    def test_content_beside_the_fields_is_not_lost(self) -> None:
        value = Output(label="a")
        value["score"] = 5
        copy = through_json(value)
        assert (copy.label, dict(copy)) == ("a", {"score": 5})

    @pytest.mark.parametrize("payload", [None, 5, "text", [], [1]])
    def test_a_damaged_payload_is_named(self, payload: Any) -> None:
        register_type(Noted)
        with pytest.raises(StateError, match=r"^agent\.value"):
            read({"$type:Noted": payload})


@dataclass
class Noted:
    x: Any


@dataclass
class Sub:
    x: int
    y: int


@dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    label: str = ""


class Place(NamedTuple):
    x: Any
    y: Any = 0


class Tagged(Place):
    """Has no slots, so that an instance can have attributes of its own."""


class TestNamedTuples:
    def test_fields_are_written_by_name(self) -> None:
        register_type(Place)
        assert written(Place(1, {2})) == {"$type:Place": {"x": 1, "y": {"$set": [2]}}}
        assert alike(through_json(Place(1, {2})), Place(1, {2}))

    def test_one_is_a_key(self) -> None:
        register_type(Place)
        assert through_json({Place(1): 2}) == {Place(1): 2}

    def test_a_field_added_since_gets_its_default(self) -> None:
        register_type(Place)
        assert read({"$type:Place": {"x": 1}}) == Place(1, 0)

    @pytest.mark.parametrize("payload", [{}, {"y": 1}, {"x": 1, "z": 2}, [], None, "xy"])
    def test_a_damaged_payload_is_named(self, payload: Any) -> None:
        register_type(Place)
        with pytest.raises(StateError, match=r"^agent\.value"):
            read({"$type:Place": payload})

    def test_attributes_beyond_the_fields_are_not_lost(self) -> None:
        register_type(Tagged)
        value = Tagged(1, 2)
        assert "$type:Tagged" in written(value)
        value.extra = 3  # type: ignore[attr-defined]
        assert through_json(value).extra == 3


class Colour(enum.Enum):
    RED = 1
    ROSE = 1
    BLUE = ("b", 2)


class Size(enum.IntEnum):
    BIG = 10


class Word(str, enum.Enum):
    YES = "yes"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3


class Bits(enum.IntFlag):
    LOW = 1
    HIGH = 8


class TestEnums:
    @pytest.mark.parametrize("member", [*Colour, Size.BIG, Word.YES, Rights.READ, Rights.BOTH])
    def test_members_are_written_by_name(self, member: Any) -> None:
        register_type(type(member))
        assert written(member) == {f"$type:{type(member).__name__}": member.name}
        assert through_json(member) is member

    @pytest.mark.parametrize("member", [Rights(0), Bits.LOW | Bits.HIGH, Bits(0), Bits(4 | 1)])
    def test_combinations_of_flags_are_written_by_value(self, member: Any) -> None:
        register_type(type(member))
        assert written(member) == {f"$type:{type(member).__name__}": {"value": member.value}}
        assert through_json(member) == member
        assert type(through_json(member)) is type(member)

    def test_an_alias_is_its_member(self) -> None:
        register_type(Colour)
        assert read({"$type:Colour": "ROSE"}) is Colour.RED

    def test_members_are_keys(self) -> None:
        register_type(Colour)
        register_type(Word)
        assert alike(through_json({Colour.RED: 1, Word.YES: 2}), {Colour.RED: 1, Word.YES: 2})

    @pytest.mark.parametrize("payload", ["GREEN", "__class__", {}, {"value": 99}, 5, None, []])
    def test_a_member_that_does_not_exist_is_named(self, payload: Any) -> None:
        register_type(Colour)
        with pytest.raises(StateError, match=r"^agent\.value"):
            read({"$type:Colour": payload})

    def test_an_unregistered_enum_comes_back_too(self) -> None:
        assert through_json([Colour.RED, Rights.BOTH]) == [Colour.RED, Rights.BOTH]


@attrs.define
class Plate:
    food: Any
    size: int = 1
    extras: "list[Any]" = attrs.Factory(list)


@attrs.frozen
class FrozenPlate:
    food: Any


@attrs.define
class Derived:
    food: Any
    own: Any = attrs.Factory(lambda self: [self.food], takes_self=True)


class TestAttrs:
    @pytest.mark.parametrize("value", [Plate({1}, 2, [3]), FrozenPlate((1,)), Derived(1)], ids=repr)
    def test_fields_come_back(self, value: Any) -> None:
        register_type(type(value))
        assert list(written(value)) == [f"$type:{type(value).__name__}"]
        assert alike(through_json(value), value)

    def test_validators_do_not_run(self) -> None:
        @register_type
        @attrs.define
        class Checked:
            x: int = attrs.field(default=0, on_setattr=attrs.setters.NO_OP)

            @x.validator
            def _check(self, attribute: Any, value: int) -> None:
                assert value >= 0

        value = Checked(1)
        value.x = -1
        assert through_json(value).x == -1

    def test_a_field_added_since_gets_its_default(self) -> None:
        register_type(Plate)
        assert read({"$type:Plate": {"food": 1}}) == Plate(1, 1, [])

    def test_a_field_without_a_default_stays_unset(self) -> None:
        register_type(Plate)
        assert not hasattr(read({"$type:Plate": {"size": 1}}), "food")

    def test_a_default_that_needs_the_object_stays_unset(self) -> None:
        register_type(Derived)
        assert not hasattr(read({"$type:Derived": {"food": 1}}), "own")

    def test_a_field_removed_since_is_named(self) -> None:
        register_type(Plate)
        with pytest.raises(StateError, match="no field gone"):
            read({"$type:Plate": {"gone": 1}})


class Model(pydantic.BaseModel):
    name: str
    when: Any = None
    tags: "list[str]" = pydantic.Field(default_factory=list)


class Nested(pydantic.BaseModel):
    inner: Model
    maybe: Optional[Model] = None
    _private: int = pydantic.PrivateAttr(default=0)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


class TestPydantic:
    def test_fields_come_back_with_what_was_set(self) -> None:
        register_type(Model)
        value = Model(name="a", when=(1, {2}))
        copy = through_json(value)
        assert alike(copy, value)
        assert copy.model_fields_set == {"name", "when"}

    def test_models_in_models(self) -> None:
        register_type(Model)
        register_type(Nested)
        value = Nested(inner=Model(name="a"))
        value._private = 7
        copy = through_json(value)
        assert copy == value
        assert copy._private == 7

    def test_extra_fields_come_back(self) -> None:
        register_type(Open)
        for value in (Open(), Open(a=1, b={2})):  # type: ignore[call-arg]
            assert alike(through_json(value), value)

    def test_validation_does_not_run(self) -> None:
        register_type(Model)
        value = Model.model_construct(name=5)
        assert through_json(value).name == 5

    def test_a_field_added_since_gets_its_default(self) -> None:
        register_type(Model)
        tree = {"$type:Model": {"fields": {"name": "a"}, "set": {"$set": ["name"]}}}
        assert read(tree) == Model(name="a")

    @pytest.mark.parametrize("payload", [None, 5, {}, {"fields": 5, "set": []}, {"fields": {}}])
    def test_a_damaged_payload_is_named(self, payload: Any) -> None:
        register_type(Model)
        with pytest.raises(StateError, match=r"^agent\.value"):
            read({"$type:Model": payload})


class TestUnregistered:
    @pytest.mark.parametrize(
        "value",
        [Noted([1]), Place(1, 2), Size.BIG, Bits.LOW, Plate(1), FrozenPlate(2), Model(name="a")],
        ids=lambda value: type(value).__name__,
    )
    def test_everything_comes_back_by_a_sealed_pickle(self, value: Any) -> None:
        assert list(written(value)) == ["$pickle"]
        assert alike(through_json(value), value)


class TestNesting:
    def test_types_nest_in_each_other_and_in_containers(self) -> None:
        for cls in (Noted, Place, Plate, Model, Colour):
            register_type(cls)
        value = Noted([Place(Plate(Model(name="a", when=Noted(Colour.RED))), {Place(1): 2})])
        assert "$pickle" not in str(as_json({"value": value}))
        assert alike(through_json(value), value)

    def test_deeply_nested_ones_come_back(self) -> None:
        register_type(Noted)
        value: Any = 0
        for _ in range(30):
            value = Noted(value)
        assert dataclasses.asdict(through_json(value)) == dataclasses.asdict(value)

    def test_a_dataclass_that_refers_to_itself_is_refused(self) -> None:
        register_type(Noted)
        value = Noted([])
        value.x.append(value)
        with pytest.raises(
            StateError,
            match=r"^agent\.value \(\S+\.Noted\) contains a cycle: agent\.value\.x\[0\] refers",
        ):
            written(value)
