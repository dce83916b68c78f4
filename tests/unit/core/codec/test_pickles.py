"""Pickled values whose class has changed since: pickles are not migrated."""

import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import attrs
import pydantic
import pytest

from agent_checkpoint import StateMismatchError
from agent_checkpoint.core.state_codec import encode_state
from tests.exact import decode_state


def _dataclass(name: str, default: Any) -> type:
    return dataclass(type("Order", (), {"__annotations__": {name: Any}, name: default}))


def _attrs_class(slots: bool) -> Any:
    return lambda name, default: attrs.make_class(
        "Order", {name: attrs.field(default=default)}, slots=slots
    )


def _pydantic_model(name: str, default: Any) -> type:
    return pydantic.create_model("Order", **{name: (Any, default)})


KINDS = {
    "dataclass": _dataclass,
    "attrs": _attrs_class(False),
    "attrs with slots": _attrs_class(True),
    "pydantic": _pydantic_model,
}


class Holder:
    """An object that is pickled as a whole."""

    def __init__(self, order: Any) -> None:
        self.order = order


def _set_class(monkeypatch: Any, cls: Any) -> Any:
    cls.__module__, cls.__qualname__ = __name__, "Order"
    monkeypatch.setattr(sys.modules[__name__], "Order", cls, raising=False)
    return cls


def _state(value: Any) -> Any:
    return encode_state({"value": value}, "agent")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], Holder], ids=["it", "list", "inside"])
def test_a_renamed_field_is_a_mismatch(monkeypatch: Any, kind: str, wrap: Any) -> None:
    tree = _state(wrap(_set_class(monkeypatch, KINDS[kind]("amount", 0))(amount=900)))
    _set_class(monkeypatch, KINDS[kind]("total", 0))
    with pytest.raises(StateMismatchError) as caught:
        decode_state(tree, "agent")
    message = str(caught.value)
    assert message.startswith("agent.value")
    assert "pickled" in message
    assert "Order that does not fit its class: it lacks total" in message
    if kind != "attrs with slots":  # attrs drops unknown fields
        assert "and has amount instead" in message
    assert "register_type()" in message


@pytest.mark.parametrize("kind", KINDS)
def test_an_unchanged_class_fits(monkeypatch: Any, kind: str) -> None:
    cls = _set_class(monkeypatch, KINDS[kind]("amount", 0))
    assert decode_state(_state([cls(amount=9)]), "agent")["value"][0].amount == 9


@dataclass
class Extended:
    n: int = 0
    unset: Any = field(init=False)

    @cached_property
    def double(self) -> int:
        return 2 * self.n


@dataclass
class Dropping:
    n: int
    client: Any

    def __getstate__(self) -> "dict[str, Any]":
        return {"n": self.n}


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    n: int = 0
    _private: int = 1


def test_attributes_beyond_the_fields_are_no_mismatch() -> None:
    value = Extended(3)
    value.other = value.double  # type: ignore[attr-defined]
    loaded = decode_state(_state(value), "agent")["value"]
    assert (loaded.n, loaded.other, loaded.double) == (3, 6, 6)
    assert decode_state(_state(Extra(n=2, more=3)), "agent")["value"].more == 3


def test_a_class_may_leave_fields_out_of_its_pickles() -> None:
    loaded = decode_state(_state(Dropping(1, object())), "agent")["value"]
    assert loaded.n == 1
    assert not hasattr(loaded, "client")
