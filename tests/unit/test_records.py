"""Object ids among other names."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_checkpoint.records import is_object_id, only_object_ids

ID = hashlib.sha256(b"").hexdigest()
OTHER = hashlib.sha256(b"other").hexdigest()


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "e3b0",
        ID[:32] + " " * 32,
        ID.upper(),
        ID[:-1],
        ID + "0",
        ID[:-1] + "g",
        "٣" * 64,  # digits that are no ASCII
        "\udcff" * 64,
    ],
)
def test_what_is_no_object_id_is_left_out(wrong: str) -> None:
    assert only_object_ids([ID, wrong, OTHER]) == [ID, OTHER]
    assert only_object_ids([wrong]) == []


def test_names_that_are_ids_only_together_are_left_out() -> None:
    assert only_object_ids([ID[:32], ID[32:] + OTHER]) == []


@given(st.lists(st.one_of(st.just(ID), st.text("0aF ", min_size=62, max_size=65), st.text())))
def test_it_tells_as_for_each(names: "list[str]") -> None:
    assert only_object_ids(names) == [name for name in names if is_object_id(name)]
