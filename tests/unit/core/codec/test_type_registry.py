"""Teaching the codec a type: by decorator, by call, with an encode and a decode."""

from dataclasses import dataclass
from typing import Any

import pytest

from agent_checkpoint import InvalidInputError, StateError, register_alias, register_type
from agent_checkpoint.core.state_codec import encode_state
from tests.exact import decode_state, through_json


class Money:
    """Of no kind that the codec takes apart by itself."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.cents == other.cents

    def __hash__(self) -> int:
        return hash(self.cents)


@dataclass
class Plain:
    x: Any = 0


def written(value: Any) -> Any:
    return encode_state({"value": value}, "agent")["value"]


class TestRegistering:
    def test_as_a_decorator(self) -> None:
        @register_type
        @dataclass
        class Decorated:
            x: int

        assert Decorated(1).x == 1
        assert written(Decorated(1)) == {"$type:Decorated": {"x": 1}}

    def test_as_a_decorator_with_a_name(self) -> None:
        @register_type(name="shop.Item")
        @dataclass
        class Item:
            x: int

        assert written(Item(1)) == {"$type:shop.Item": {"x": 1}}
        assert through_json(Item(1)) == Item(1)

    def test_by_a_call(self) -> None:
        assert register_type(Plain) is Plain
        assert written(Plain(1)) == {"$type:Plain": {"x": 1}}

    def test_by_a_call_with_a_name(self) -> None:
        assert register_type(Plain, name="other.Plain") is Plain
        assert written(Plain(1)) == {"$type:other.Plain": {"x": 1}}

    def test_with_an_encode_and_a_decode(self) -> None:
        register_type(Money, lambda money: money.cents, Money, name="Money")
        assert written(Money(5)) == {"$type:Money": 5}
        assert through_json([Money(5), {Money(6): 1}]) == [Money(5), {Money(6): 1}]

    def test_what_encode_returns_may_be_any_value(self) -> None:
        register_type(Money, lambda m: (m.cents, {"at": {m.cents}}), lambda d: Money(d[0]))
        assert through_json(Money(5)) == Money(5)

    def test_an_encode_overrides_how_a_dataclass_is_taken_apart(self) -> None:
        register_type(Plain, lambda plain: [plain.x], lambda data: Plain(data[0]))
        assert written(Plain(3)) == {"$type:Plain": [3]}
        assert through_json(Plain(3)) == Plain(3)

    def test_a_subclass_is_not_registered_with_its_base(self) -> None:
        register_type(Money, lambda money: money.cents, Money)
        assert "$pickle" in written(Euro(5))
        assert type(through_json(Euro(5))) is Euro

    def test_again_in_the_same_place_replaces_the_first(self) -> None:
        def define() -> Any:  # a notebook cell that is run twice
            @register_type
            @dataclass
            class Cell:
                x: int

            return Cell

        define()
        second = define()
        assert type(through_json(second(1))) is second

    def test_a_renamed_type_is_found_by_its_alias(self) -> None:
        register_type(Plain)
        register_alias("OldPlain", "Plain")
        assert decode_state({"$type:OldPlain": {"x": 4}}, "agent") == Plain(4)


class Euro(Money):
    pass


class TestRefused:
    def test_a_name_that_is_taken(self) -> None:
        register_type(Plain, name="Taken")
        with pytest.raises(InvalidInputError, match=r"'Taken' is registered for .*Plain.*name="):
            register_type(Money, lambda money: money.cents, Money, name="Taken")
        assert through_json(Plain(1)) == Plain(1)

    @pytest.mark.parametrize("value", [5, "Plain", Plain(), lambda: 0])
    def test_what_is_no_class(self, value: Any) -> None:
        with pytest.raises(InvalidInputError, match="takes a class"):
            register_type(value)

    @pytest.mark.parametrize("cls", [Money, object, dict])
    def test_a_class_of_another_kind_without_encode_and_decode(self, cls: type) -> None:
        with pytest.raises(InvalidInputError, match=r"register_type\(cls, encode, decode\)"):
            register_type(cls)

    @pytest.mark.parametrize("half", [{"encode": id}, {"decode": id}])
    def test_half_of_encode_and_decode(self, half: Any) -> None:
        with pytest.raises(InvalidInputError, match="Money needs both encode and decode"):
            register_type(Money, **half)


class TestFailures:
    def test_an_encode_that_fails_is_named_with_the_path(self) -> None:
        def fail(value: Any) -> Any:
            raise KeyError("no")

        register_type(Money, fail, Money)
        with pytest.raises(StateError, match=r"^agent\.value\[0\] cannot be encoded as Money"):
            encode_state({"value": [Money(1)]}, "agent")

    def test_a_decode_that_fails_is_named_with_the_path(self) -> None:
        def fail(data: Any) -> Any:
            raise KeyError("cents")

        register_type(Money, lambda money: money.cents, fail)
        tree = encode_state({"value": [Money(1)]}, "agent")
        with pytest.raises(
            StateError, match=r"^agent\.value\[0\] does not fit the current type 'Money'"
        ):
            decode_state(tree, "agent")

    def test_an_encode_that_never_ends_is_refused(self) -> None:
        register_type(Money, lambda money: [money], Money)
        with pytest.raises(StateError, match="nested deeper than 100 levels"):
            encode_state({"value": Money(1)}, "agent")

    def test_an_encode_that_returns_the_value_itself_is_refused(self) -> None:
        register_type(Money, lambda money: money, Money)
        with pytest.raises(StateError, match=r"^agent"):
            encode_state({"value": Money(1)}, "agent")

    def test_what_is_inside_a_type_is_named_with_the_path(self) -> None:
        register_type(Plain)
        with pytest.raises(StateError, match=r"^agent\.value\.x\[0\] has the tag"):
            decode_state({"value": {"$type:Plain": {"x": [{"$unknown": 1}]}}}, "agent")
