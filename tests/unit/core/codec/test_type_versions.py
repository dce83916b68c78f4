"""Changed fields of registered types: reported, and migrated from older versions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, Optional

import attrs
import pydantic
import pytest

from agent_checkpoint import (
    Checkpointable,
    CheckpointManager,
    InvalidInputError,
    Log,
    MigrationError,
    StateError,
    StateMismatchError,
    register_alias,
    register_migration,
    register_type,
)
from agent_checkpoint.core.codec import type_registry
from agent_checkpoint.core.state_codec import encode_state
from tests.exact import decode_state

KINDS = ["dataclass", "slots", "attrs", "pydantic", "named tuple"]


def make(kind: str, name: str = "Point", /, **fields: Any) -> Any:
    """Return a class of a kind, with int fields; a default of None means: no default."""
    hints = dict.fromkeys(fields, int)
    defaults = {key: default for key, default in fields.items() if default is not None}
    space: dict[str, Any] = {"__annotations__": hints, "__module__": __name__, **defaults}
    if kind == "pydantic":
        return type(pydantic.BaseModel)(name, (pydantic.BaseModel,), space)
    if kind == "named tuple":
        base: Any = NamedTuple(name, list(hints.items()))
        base.__new__.__defaults__ = tuple(defaults.values())
        base._field_defaults.update(defaults)
        return base
    if kind == "slots":
        return attrs.define(type(name, (), space))
    cls = type(name, (), space)
    return attrs.define(cls, slots=False) if kind == "attrs" else dataclass(cls)


def forget() -> None:
    """As in a new process, with the code changed."""
    type_registry._by_class.clear()
    type_registry._by_name.clear()


class TypedAgent(Checkpointable):
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


def saved(**fields: Any) -> CheckpointManager:
    manager = CheckpointManager()
    manager.save("key", TypedAgent(**fields))
    forget()
    return manager


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


# -- mismatches -----------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_a_renamed_field_is_reported(kind: str, strict: bool) -> None:
    old = register_type(make(kind, x=0, y=0))
    manager = saved(point=old(x=1, y=2))
    register_type(make(kind, x=0, z=0))
    agent = TypedAgent(point=None)
    with pytest.raises(
        StateMismatchError, match=r"agent\.point .*'Point'.*no field y and lacks z\..*version="
    ):
        manager.load("key", agent, strict=strict)
    assert agent.point is None


def test_every_mismatch_is_named(kind: str) -> None:
    first = register_type(make(kind, x=0, y=0))
    other = register_type(make(kind, "Line", a=0, b=0))
    manager = saved(points=[first(x=1), first(x=2)], line={"main": other(a=1)})
    register_type(make(kind, x=0, z=0))
    register_type(make(kind, "Line", c=0))
    with pytest.raises(StateMismatchError) as caught:
        manager.load("key", TypedAgent(points=[], line={}))
    text = str(caught.value)
    for path in ("agent.points[0] ", "agent.points[1] ", "agent.line.main "):
        assert path in text
    assert "no field y and lacks z" in text
    assert "no field a, b and lacks c" in text


def test_very_many_mismatches_are_counted() -> None:
    old = register_type(make("dataclass", x=0, y=0))
    manager = saved(points=[old(x=n) for n in range(1000)])
    register_type(make("dataclass", x=0))
    with pytest.raises(StateMismatchError, match="and 980 more") as caught:
        manager.load("key", TypedAgent(points=[]))
    assert len(str(caught.value)) < 5000


PLACES = {
    "point": lambda one: one,
    "points[1]": lambda one: [0, one],
    "points.main": lambda one: {"main": one},
    "points[0][0]": lambda one: ((one,),),
    "log[1].note[0]": lambda one: Log([0, {"note": [one]}]),
}


@pytest.mark.parametrize("path", PLACES)
def test_a_new_field_gets_its_default_and_is_reported(kind: str, path: str) -> None:
    name = path.partition("[")[0].partition(".")[0]
    old = register_type(make(kind, x=0))
    manager = saved(**{name: PLACES[path](old(x=1))})
    new = register_type(make(kind, x=0, z=7))
    agent = TypedAgent(**{name: None})
    assert manager.load("key", agent).missing_keys == [f"{path}.z"]
    assert getattr(agent, name) == PLACES[path](new(x=1, z=7))
    unchanged = TypedAgent(**{name: None})
    with pytest.raises(StateMismatchError, match=r"strict mode: agent lacks ") as caught:
        manager.load("key", unchanged, strict=True)
    assert f"{path}.z" in str(caught.value)
    assert getattr(unchanged, name) is None


def test_a_mismatch_in_a_part_that_is_no_agent_is_reported() -> None:
    old = register_type(make("pydantic", x=0))

    class Foreign:
        def __init__(self) -> None:
            self.state: Any = {"point": old(x=1)}

        def state_dict(self) -> Any:
            return self.state

        def load_state_dict(self, state: Any, strict: bool = False) -> None:
            self.state = state

    manager = CheckpointManager()
    parts = {"log": Log([old(x=1)]), "foreign": Foreign()}
    manager.save("key", parts)
    manager.save("plain", {"point": old(x=1)})
    forget()
    register_type(make("pydantic", x=0, z=7))
    assert manager.load("key", {"log": Log(), "foreign": Foreign()})["log"].missing_keys == [
        "[0].z"
    ]
    with pytest.raises(StateMismatchError, match=r"log lacks \[0\]\.z; foreign lacks point\.z"):
        manager.load("key", {"log": Log(), "foreign": Foreign()}, strict=True)
    with pytest.raises(StateMismatchError, match=r"agent lacks point\.z"):
        manager.load("plain", {}, strict=True)


def test_a_field_in_a_value_that_was_converted_is_reported_by_its_type() -> None:
    inner = register_type(make("dataclass", "Inner", x=0))

    class Outer:
        def __init__(self, x: Any) -> None:
            self.x = x

    register_type(Outer, lambda outer: inner(outer.x), lambda one: Outer(one.x))
    manager = saved(outer=Outer(3))
    inner = register_type(make("dataclass", "Inner", x=0, y=0))
    register_type(Outer, lambda outer: inner(outer.x), lambda one: Outer(one.x))
    assert manager.load("key", TypedAgent(outer=None)).missing_keys == [" (a Inner).y"]


def test_a_required_field_that_is_not_stored_is_reported() -> None:
    for kind in ("dataclass", "attrs", "pydantic"):
        old = register_type(make(kind, x=None))
        manager = saved(point=old(x=1))
        register_type(make(kind, x=None, y=None))
        assert manager.load("key", TypedAgent(point=None)).missing_keys == ["point.y"]
        forget()
    old = register_type(make("named tuple", x=None))
    manager = saved(point=old(x=1))
    register_type(make("named tuple", x=None, y=None))
    with pytest.raises(StateError, match=r"agent\.point .*'Point' \(Point needs y\)"):
        manager.load("key", TypedAgent(point=None))


def test_a_field_that_was_never_set_is_no_mismatch() -> None:
    @dataclass
    class Partial:
        x: int
        later: Any = field(init=False)

    @attrs.define
    class Other:
        x: int
        later: Any = attrs.field(init=False)

    register_type(Partial)
    register_type(Other)
    manager = CheckpointManager()
    manager.save("key", TypedAgent(a=Partial(1), b=Other(2)))
    assert manager.load("key", TypedAgent(a=None, b=None), strict=True) == ([], [])


# -- pydantic -------------------------------------------------------------------------------------


def test_a_cached_property_is_no_field() -> None:
    class Sum(pydantic.BaseModel):
        x: int

        @cached_property
        def twice(self) -> int:
            return 2 * self.x

    register_type(Sum)
    value = Sum(x=2)
    assert value.twice == 4
    manager = CheckpointManager()
    manager.save("key", TypedAgent(sum=value))
    fresh = TypedAgent(sum=None)
    assert manager.load("key", fresh, strict=True) == ([], [])
    assert fresh.sum.twice == 4


def test_private_attributes_and_extra_fields_are_compared_too() -> None:
    class Old(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        x: int = 0
        _kept: int = 1
        _gone: int = 2

    class New(pydantic.BaseModel):
        x: int = 0
        _kept: int = 1
        _new: int = 3

    register_type(Old, name="Form")
    manager = saved(form=Old(more=5))  # type: ignore[call-arg]
    register_type(New, name="Form")
    with pytest.raises(StateMismatchError, match="no field more, _gone and lacks _new"):
        manager.load("key", TypedAgent(form=None))


def test_a_new_private_attribute_has_its_default() -> None:
    class Old(pydantic.BaseModel):
        x: int = 0

    class New(pydantic.BaseModel):
        x: int = 0
        _new: list[int] = pydantic.PrivateAttr(default_factory=list)
        _unset: int = pydantic.PrivateAttr()

    register_type(Old, name="Form")
    manager = saved(form=Old(x=1))
    register_type(New, name="Form")
    agent = TypedAgent(form=None)
    assert manager.load("key", agent).missing_keys == ["form._new"]
    assert agent.form._new == []


# -- versions -------------------------------------------------------------------------------------


def test_a_type_without_a_version_is_stored_as_before(kind: str) -> None:
    cls = make(kind, x=0)
    written = []
    for version in ({}, {"version": "1.0"}, {"version": "1"}, {"version": "1.0.0"}):
        register_type(cls, **version)
        written.append(encode_state({"value": cls(x=1)}, "agent"))
    assert list(written[0]["value"]) == ["$type:Point"]
    assert written == [written[0]] * 4


def test_a_version_is_stored_with_the_name(kind: str) -> None:
    cls = register_type(make(kind, x=0), version="2.0")
    tree = encode_state({"value": cls(x=1)}, "agent")
    assert list(tree["value"]) == ["$type:Point@2.0"]
    assert decode_state(tree, "agent")["value"] == cls(x=1)


def renamed(state: "dict[str, Any]") -> None:
    state["z"] = state.pop("y")


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize("strict", [False, True])
def test_an_older_version_is_migrated(kind: str, path: str, strict: bool) -> None:
    name = path.partition("[")[0].partition(".")[0]
    old = register_type(make(kind, x=0, y=0))
    manager = saved(**{name: PLACES[path](old(x=1, y=2))})
    new = register_type(make(kind, x=0, z=0), version="2.0")
    register_migration("Point", from_version="1.0", fn=renamed)
    agent = TypedAgent(**{name: None})
    assert manager.load("key", agent, strict=strict) == ([], [])
    assert getattr(agent, name) == PLACES[path](new(x=1, z=2))
    manager.save("key", agent)  # at the new version from now on
    assert manager.load("key", TypedAgent(**{name: None}), strict=True) == ([], [])


def test_steps_chain(kind: str) -> None:
    first = register_type(make(kind, x=0))
    manager = saved(point=first(x=1))
    second = register_type(make(kind, y=0), version="2.0")
    register_migration("Point", "1.0", lambda state: {"y": state["x"] + 1}, "2.0")
    agent = TypedAgent(point=None)
    manager.load("key", agent)
    assert agent.point == second(y=2)
    manager.save("key", agent)
    forget()
    third = register_type(make(kind, z=0), version="2.1")
    register_migration("Point", "2.0", lambda state: {"z": state["y"] * 10})
    for checkpoint in ("key~1", "key"):
        manager.load("key", agent, checkpoint_id=checkpoint)
        assert agent.point == third(z=20)


def test_a_newer_version_is_refused(kind: str) -> None:
    new = register_type(make(kind, x=0), version="3.0")
    manager = saved(points=[new(x=1)])
    for options in ({}, {"version": "2.5"}):
        register_type(make(kind, x=0), **options)
        with pytest.raises(MigrationError, match=r"agent\.points\[0\].*3\.0 of Point, newer than"):
            manager.load("key", TypedAgent(points=[]))


def test_a_newer_version_of_a_hinted_type_is_refused() -> None:
    new = register_type(Hinted, version="2.0")
    manager = CheckpointManager()
    manager.save("key", HintedHolder(new(1)))
    forget()
    with pytest.raises(MigrationError, match=r"2\.0 of Hinted, newer than version 1\.0"):
        manager.load("key", HintedHolder(None))


@dataclass
class Hinted:
    x: int


class HintedHolder(Checkpointable):
    one: Optional[Hinted]

    def __init__(self, one: Any) -> None:
        self.one = one


def test_a_missing_step_is_named(kind: str) -> None:
    old = register_type(make(kind, x=0))
    manager = saved(point=old(x=1))
    register_type(make(kind, x=0), version="2.0")
    with pytest.raises(MigrationError, match=r"agent\.point .*register_migration\('Point'"):
        manager.load("key", TypedAgent(point=None))


@pytest.mark.parametrize("fn", [lambda state: 1 / 0, lambda state: 5], ids=["raises", "no dict"])
def test_a_migration_that_fails_is_named(kind: str, fn: Any) -> None:
    old = register_type(make(kind, x=0))
    manager = saved(point=old(x=1))
    register_type(make(kind, x=0), version="2.0")
    register_migration("Point", "1.0", fn)
    agent = TypedAgent(point=None)
    with pytest.raises(MigrationError, match=r"agent\.point could not be migrated.*Point"):
        manager.load("key", agent)
    assert agent.point is None


def test_a_migration_that_leaves_a_field_behind_is_reported(kind: str) -> None:
    old = register_type(make(kind, x=0, y=0))
    manager = saved(point=old(x=1))
    register_type(make(kind, x=0), version="2.0")
    register_migration("Point", "1.0", lambda state: state)
    with pytest.raises(StateMismatchError, match=r"agent\.point .*no field y"):
        manager.load("key", TypedAgent(point=None))


def test_a_renamed_type_is_migrated() -> None:
    old = register_type(make("dataclass", "Place", y=0))
    manager = saved(point=old(y=2))
    new = register_type(make("dataclass", z=0), version="2.0")
    register_alias("Place", "Point")
    register_migration("Place", "1.0", renamed)
    agent = TypedAgent(point=None)
    manager.load("key", agent)
    assert agent.point == new(z=2)


def test_a_renamed_type_with_a_version_is_found() -> None:
    old = register_type(make("dataclass", "Place", y=0), version="2.0")
    manager = saved(point=old(y=2))
    new = register_type(make("dataclass", y=0), version="2.0")
    register_alias("Place", "Point")
    agent = TypedAgent(point=None)
    manager.load("key", agent, strict=True)
    assert agent.point == new(y=2)


def test_a_name_that_looks_like_a_version_is_a_name() -> None:
    odd = register_type(make("dataclass", x=0), name="Point@2.0")
    other = register_type(make("attrs", x=0), name="a@b", version="2.0")
    manager = CheckpointManager()
    manager.save("key", TypedAgent(odd=odd(x=1), other=other(x=2)))
    agent = TypedAgent(odd=None, other=None)
    manager.load("key", agent, strict=True)
    assert (agent.odd, agent.other) == (odd(x=1), other(x=2))


@pytest.mark.parametrize("version", ["two", "", "1.x", 2, None, "v2"])
def test_a_version_is_dotted_numbers(version: Any) -> None:
    with pytest.raises(InvalidInputError, match="is not a version"):
        register_type(make("dataclass", x=0), version=version)
    with pytest.raises(InvalidInputError, match="is not a version"):
        register_type(version=version)


def test_the_decorator_takes_a_version() -> None:
    @register_type(version="2.0")
    @dataclass
    class Decorated:
        x: int = 0

    assert list(encode_state({"value": Decorated()}, "agent")["value"]) == ["$type:Decorated@2.0"]


# -- what a migration gets ------------------------------------------------------------------------


def test_a_model_is_migrated_by_the_names_of_its_fields() -> None:
    class Old(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        x: int = 0
        y: int = 0
        _hidden: int = 1

        @cached_property
        def total(self) -> int:
            return self.x + self.y

    class New(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(extra="allow")
        x: int = 0
        z: int = 0
        w: int = 0
        _secret: int = 0

        @cached_property
        def total(self) -> int:
            return self.x + 10 * self.z

    register_type(Old, name="Form")
    value = Old(y=2, more="extra")  # type: ignore[call-arg]
    assert value.total == 2
    value._hidden = 9
    manager = saved(form=value)
    register_type(New, name="Form", version="2.0")
    seen: list[Any] = []

    def migrate(state: "dict[str, Any]") -> None:
        seen.append(dict(state))
        state["z"] = state.pop("y")
        state["_secret"] = state.pop("_hidden")

    register_migration("Form", "1.0", migrate)
    agent = TypedAgent(form=None)
    assert manager.load("key", agent).missing_keys == ["form.w"]
    assert seen == [{"x": 0, "y": 2, "more": "extra", "_hidden": 9}]
    form = agent.form
    assert (form.x, form.z, form.w, form._secret, form.more) == (0, 2, 0, 9, "extra")
    assert form.model_fields_set == {"z", "more"}
    assert form.total == 20


def test_an_enum_is_migrated_by_the_name_of_its_member() -> None:
    class Mood(Enum):
        CALM = 1

    register_type(Mood)
    manager = saved(mood=Mood.CALM)

    class Pace(Enum):
        SLOW = 1

    register_type(Pace, name="Mood", version="2.0")
    register_migration("Mood", "1.0", {"CALM": "SLOW"}.__getitem__)
    agent = TypedAgent(mood=None)
    manager.load("key", agent)
    assert agent.mood is Pace.SLOW


def test_a_type_with_functions_of_its_own_is_migrated_by_what_they_stored() -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    register_type(Money, lambda money: money.cents // 100, lambda euros: Money(euros * 100))
    manager = saved(total=Money(500))
    register_type(Money, lambda money: money.cents, Money, version="2.0")
    register_migration("Money", "1.0", lambda euros: euros * 100)
    agent = TypedAgent(total=None)
    manager.load("key", agent)
    assert agent.total.cents == 500


@pytest.fixture(autouse=True)
def known_types_are_forgotten() -> "Iterator[None]":
    yield
    forget()
