"""Our NamedTuple has what callers use of that of `typing`."""

import copy
import inspect
import pickle
import typing

import pytest

from agent_checkpoint.named_tuple import NamedTuple


class Ours(NamedTuple):
    """A record."""

    first: int
    second: str = "x"

    @property
    def both(self) -> str:
        return f"{self.first}{self.second}"


class Theirs(typing.NamedTuple):
    first: int
    second: str = "x"


class Empty(NamedTuple):
    pass


def test_it_is_made_as_that_of_typing_is():
    for cls in (Ours, Theirs):
        assert cls(1) == (1, "x")
        assert cls(second="y", first=2) == (2, "y")
        assert cls._make([1, "z"]) == (1, "z")
        assert cls._fields == ("first", "second")
        assert cls._field_defaults == {"second": "x"}
        assert list(inspect.signature(cls).parameters) == ["first", "second"]
    assert getattr(Ours, "__match_args__", None) == getattr(Theirs, "__match_args__", None)
    assert Ours(1).both == "1x"
    assert Ours.__doc__ == "A record."
    assert Empty() == ()


def test_it_is_copied_and_shown_as_that_of_typing_is():
    made = Ours(1)
    assert repr(made) == "Ours(first=1, second='x')"
    assert made._replace(first=3) == (3, "x")
    assert made._asdict() == {"first": 1, "second": "x"}
    for same in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert same == made
        assert type(same) is Ours
    assert not hasattr(made, "__dict__")


@pytest.mark.parametrize("cls", [Ours])
@pytest.mark.parametrize("arguments", [(), (1, 2, 3)])
def test_wrong_numbers_of_fields_are_refused(cls, arguments):
    with pytest.raises(TypeError, match="__new__"):
        cls(*arguments)
    with pytest.raises(TypeError, match="Expected 2 arguments"):
        cls._make(arguments)


@pytest.mark.parametrize("cls", [Ours, Theirs])
def test_unknown_fields_are_refused(cls):
    with pytest.raises((TypeError, ValueError), match="unexpected field names"):
        cls(1)._replace(third=3)
