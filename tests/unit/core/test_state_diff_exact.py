"""A diff neither overlooks a change nor invents one, whatever the class of a value."""

import functools
import io
import pickle
import random
from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from agent_checkpoint import Checkpointable, CheckpointManager
from agent_checkpoint.core.state_diff import diff_states, same


class Numbered(list):  # type: ignore[type-arg]
    def __init__(self, *items: Any, number: int = 0) -> None:
        super().__init__(items)
        self.number = number


class Named(dict):  # type: ignore[type-arg]
    pass


class Bag(set):  # type: ignore[type-arg]
    pass


class Metres(float):
    pass


class Dropping:
    """Its pickles lack the cache."""

    def __init__(self, cache: int) -> None:
        self.cache = cache

    def __getstate__(self) -> Any:
        return {"kept": 1}


class Generated(Checkpointable):
    def __init__(self, value: Any) -> None:
        self.value = value


def advanced() -> random.Random:
    made = random.Random(1)
    made.random()
    return made


def masked(mask: int) -> Any:
    return numpy.ma.MaskedArray([1, 2], mask=[0, mask])


CHANGED = [
    (random.Random(1), advanced()),
    (ValueError("a"), ValueError("b")),
    (functools.partial(int, 1), functools.partial(int, 2)),
    (functools.partial(int, 1), functools.partial(int, True)),
    (io.BytesIO(b"a"), io.BytesIO(b"b")),
    (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    (SimpleNamespace(a=1), SimpleNamespace(a=1.0)),
    (numpy.random.default_rng(1), numpy.random.default_rng(2)),
    (Numbered(1, number=1), Numbered(1, number=2)),
    (Bag({1}), Bag({True})),
    (Metres(0.0), Metres(-0.0)),
    (masked(0), masked(1)),
    (numpy.array([0.0], "longdouble"), numpy.array([-0.0], "longdouble")),
    (numpy.clongdouble(1j), numpy.clongdouble(2j)),
    (slice(1), slice(True)),
]

ALIKE = [
    (random.Random(1), random.Random(1)),
    (ValueError("a"), ValueError("a")),
    (functools.partial(int, 1), functools.partial(int, 1)),
    (io.BytesIO(b"a"), io.BytesIO(b"a")),
    (SimpleNamespace(a=float("nan")), SimpleNamespace(a=float("nan"))),
    (numpy.random.default_rng(1), numpy.random.default_rng(1)),
    (numpy.random.RandomState(1), numpy.random.RandomState(1)),
    (Named(a=1, b=2), Named(b=2, a=1)),
    (Counter("ab"), Counter("ba")),
    (Bag("abcdefgh"), Bag("hgfedcba")),
    (Metres("nan"), Metres("nan")),
    (Dropping(1), Dropping(2)),
    (masked(1), masked(1)),
    (numpy.longdouble("nan"), numpy.longdouble("nan")),
    (Generated, Generated),
    (range(3), range(3)),
]


@pytest.mark.parametrize(("a", "b"), CHANGED, ids=range(len(CHANGED)))
def test_a_change_is_found(a: Any, b: Any) -> None:
    assert not same(a, b)
    assert list(diff_states({"f": a}, {"f": b})["changed"]) == ["f"]
    assert list(diff_states({"f": a}, {"f": b}, deep=True)["changed"]) == ["f"]


@pytest.mark.parametrize(("a", "b"), ALIKE, ids=range(len(ALIKE)))
def test_no_change_is_invented(a: Any, b: Any) -> None:
    assert same(a, b)


def test_nothing_differs_from_its_own_pickle() -> None:
    for pair in [*ALIKE, *CHANGED]:
        for value in pair:
            if type(value) is not Dropping:
                assert same(value, pickle.loads(pickle.dumps(value, 4)))


def test_bytes_without_a_meaning_in_long_doubles_are_no_change() -> None:
    if numpy.finfo("longdouble").nmant != 63:
        pytest.skip("no 80-bit long doubles here")
    clean = numpy.ones(2, "longdouble")
    dirty = clean.copy()
    dirty.view("u1")[10 : clean.itemsize] = 0xAA
    assert clean.tobytes() != dirty.tobytes()
    assert same(clean, dirty)


def test_a_generator_has_not_changed_right_after_a_save() -> None:
    manager = CheckpointManager(pickles="allow")
    agent = Generated(numpy.random.default_rng(1))
    manager.save("key", agent)
    saved = manager.state_dict("key")
    assert diff_states(agent.state_dict(), saved)["changed"] == {}
    agent.value.random()
    assert list(diff_states(agent.state_dict(), saved)["changed"]) == ["value"]


def test_names_with_points_are_not_taken_for_paths() -> None:
    old, new = {"a.b": 1, "a": {"b": 1}}, {"a.b": 2, "a": {"b": 3}}
    assert diff_states(old, new, deep=True)["changed"] == {'["a.b"]': (1, 2), "a.b": (1, 3)}
    assert list(diff_states(old, new)["changed"]) == ["a.b", "a"]
