"""A typed value keeps the type of the argument that it replaces."""

import datetime
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_checkpoint import InvalidInputError
from agent_checkpoint.records import same_json
from agent_checkpoint.session.effects.edited_arguments import typed_value

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.text(), st.text())
def test_text_is_the_value(current: str, text: str) -> None:
    assert typed_value("x", current, text) == text


@given(PLAIN)
def test_what_is_not_changed_is_the_same(value: Any) -> None:
    assert same_json(typed_value("x", value, json.dumps(value)), value)


@given(PLAIN, PLAIN | st.text())
def test_a_value_has_the_type_or_is_refused(current: Any, other: Any) -> None:
    try:
        value = typed_value("x", current, json.dumps(other))
    except InvalidInputError:
        assert type(current) is not type(other)
    else:
        assert type(value) is type(current)
        assert value == other


def test_a_tuple_stays_a_tuple() -> None:
    assert typed_value("x", (1, 2), "[3]") == (3,)


@pytest.mark.parametrize("current", [None, 1, 1.5, True, b"x", datetime.date(2020, 1, 1)])
@pytest.mark.parametrize("text", ["words", '"words"', "NaN", "[" * 5000])
def test_what_is_refused_says_the_type(current: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"The argument 'x' is .*JSON to change its type"):
        typed_value("x", current, text)
