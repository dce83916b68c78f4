"""Values of unusual classes: they come back exactly, or saving says that they cannot."""

import random
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Generic, Optional, TypeVar

import attrs
import numpy
import pydantic
import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, StateError, register_type
from agent_checkpoint.core.stateful import is_stateful
from tests.exact import as_json, through_json

T = TypeVar("T")


@pytest.fixture(autouse=True)
def secret(monkeypatch: Any) -> None:
    monkeypatch.setenv("AGENT_CHECKPOINT_SECRET", "of these tests")


class Items(Checkpointable, list):  # type: ignore[type-arg]
    pass


class Mapped(dict, Checkpointable):  # type: ignore[type-arg]
    pass


class Failure(Checkpointable, Exception):
    pass


class Ordered(Checkpointable, OrderedDict):  # type: ignore[type-arg]
    pass


class Dice(Checkpointable, random.Random):
    pass


class Kept(Checkpointable, list):  # type: ignore[type-arg]
    note = ""

    def state_dict(self) -> "dict[str, Any]":
        return {**super().state_dict(), "items": list(self)}

    def load_state_dict(self, state: "dict[str, Any]", strict: bool = False) -> Any:
        self[:] = state["items"]


class Box(Checkpointable, Generic[T]):
    def __init__(self) -> None:
        self.value = 1


class Exotic(Checkpointable):
    def __init__(self, value: Any = None) -> None:
        self.value = value


class TestBasesWithContent:
    @pytest.mark.parametrize("cls", [Items, Mapped, Failure, Ordered, Dice])
    def test_content_that_is_no_field_is_never_lost_in_silence(self, cls: Any) -> None:
        for use in (
            lambda: cls().state_dict(),
            lambda: CheckpointManager().save("key", cls()),
            lambda: CheckpointManager().save("key", Exotic([cls()])),
        ):
            with pytest.raises(StateError, match=rf"{cls.__name__} .*Override state_dict\(\)"):
                use()

    def test_a_class_that_keeps_it_itself_is_fine(self) -> None:
        manager, fresh = CheckpointManager(), Kept()
        manager.save("key", Kept([1, 2]))
        manager.load("key", fresh)
        assert fresh == [1, 2]

    def test_bases_in_python_are_fine(self) -> None:
        assert Box[int]().state_dict()["value"] == 1


class Slot:
    __slots__ = ("extra",)


@dataclass
class Noted(Slot):
    x: int


@attrs.define(slots=False)
class Marked(Slot):
    x: int


@attrs.define
class Compact(Slot):
    x: int

    @cached_property
    def double(self) -> int:
        return 2 * self.x


@dataclass
class Demanding:
    x: int

    def __new__(cls, x: int) -> Any:
        return object.__new__(cls)


class Parameters(Generic[T]):
    pass


@dataclass
class Generous(Parameters[int]):
    x: int


class Coded:
    pass


class Form(pydantic.BaseModel):
    x: int = 1
    _private: int = pydantic.PrivateAttr()


class TestTypes:
    @pytest.fixture(autouse=True)
    def registered(self) -> None:
        for cls in (Noted, Marked, Compact, Demanding, Generous, Form):
            register_type(cls)
        register_type(Coded, lambda value: None, lambda data: [data])

    @pytest.mark.parametrize("cls", [Noted, Marked])
    def test_a_slot_beyond_the_fields_comes_back(self, cls: Any) -> None:
        value = cls(1)
        assert "$pickle" not in str(as_json({"value": value}))
        value.extra = 2
        again = through_json(value)
        assert (type(again), again.x, again.extra) == (cls, 1, 2)

    def test_what_even_a_pickle_would_lose_is_refused(self) -> None:
        value = Compact(1)
        assert value.double == 2
        assert through_json(value) == value
        value.extra = 2
        with pytest.raises(StateError, match="extra"):
            through_json(value)

    @pytest.mark.parametrize("cls", [Demanding, Generous])
    def test_no_new_is_called(self, cls: Any) -> None:
        assert through_json(cls(1)) == cls(1)

    def test_private_attributes_that_are_not_set_stay_so(self) -> None:
        again = through_json(Form())
        assert again.__pydantic_private__ == {}
        again._private = 3
        assert again._private == 3

    def test_a_type_may_be_written_as_none(self) -> None:
        assert as_json({"value": Coded()}) == {"value": {"$type:Coded": None}}
        assert through_json(Coded()) == [None]


class Degrees(numpy.float64):
    def __reduce__(self) -> Any:  # numpy's own forgets the class
        return Degrees, (float(self),)


RECORD = numpy.dtype((numpy.record, [("a", "<i4")]))


class TestArrays:
    def test_a_subclass_of_a_scalar_comes_back(self) -> None:
        assert type(through_json(Degrees(1.5))) is Degrees

    @pytest.mark.parametrize("dtype", [RECORD, numpy.dtype([("x", RECORD)])])
    def test_records_come_back(self, dtype: Any) -> None:
        array = numpy.zeros(2, dtype)
        for value in (array, array[0]):
            again = through_json(value)
            assert type(again) is type(value)
            assert repr(again.dtype) == repr(value.dtype)

    @pytest.mark.parametrize("nested", [False, True])
    def test_aligned_types_come_back(self, nested: bool) -> None:
        dtype = numpy.dtype([("a", "i1"), ("b", "<i8")], align=True)
        dtype = numpy.dtype([("x", dtype)]) if nested else dtype
        again = through_json(numpy.zeros(2, dtype)).dtype
        assert (again["x"] if nested else again).isalignedstruct
        assert again == dtype


class TestFractions:
    def test_large_ones_come_back(self) -> None:
        for value in (Fraction(7**2000, 3**2000), Fraction(-1, 2**79_999)):
            assert through_json(value) == value

    def test_giant_ones_come_back_or_are_refused(self) -> None:
        value = Fraction(1, 2**80_000)
        # Before Python 3.11 a pickle has their decimal digits, of which Python prints 4300.
        with suppress(StateError):
            assert through_json(value) == value


class Foreign:
    """Stateful, but not ours; its state looks like one of ours."""

    def __init__(self, member: str) -> None:
        self.state = {member: "Exotic", "value": 1}

    def state_dict(self) -> Any:
        return dict(self.state)

    def load_state_dict(self, state: Any) -> None:
        self.state = dict(state)


class Proxy:
    """Hands everything on, as wrappers of models do."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


class Attributes(dict):  # type: ignore[type-arg]
    __getattr__ = dict.__getitem__


class Halfway:
    state_dict: Optional[Any] = None
    load_state_dict: Optional[Any] = None


class TestForeignStates:
    @pytest.mark.parametrize("member", ["__class__", "__version__", "other"])
    def test_a_state_that_looks_like_ours_stays_its_own(self, member: str) -> None:
        manager, agent = CheckpointManager(pickles="allow"), Exotic(Foreign(member))
        manager.save("key", agent)
        agent.value.state = {"changed": True}
        manager.load("key", agent)
        assert type(agent.value) is Foreign
        assert agent.value.state == {member: "Exotic", "value": 1}

    def test_a_proxy_counts_as_what_it_stands_for(self) -> None:
        assert is_stateful(Proxy(Exotic()))

    def test_what_cannot_be_called_does_not_count(self) -> None:
        assert not is_stateful(Halfway())
        assert not is_stateful(Attributes(a=1))
        assert not is_stateful(Exotic)
