"""What holds for every long list, wherever it is cut."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_checkpoint.store.objects.merkle_list import MerkleListBuilder
from tests.unit.store.shelves import Shelf, cut_small

ours = settings(
    max_examples=75,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

numbers = st.integers(-(1 << 63), (1 << 63) - 1)  # others are not written as numbers
items = numbers | st.text(max_size=30) | st.lists(st.booleans(), max_size=4) | st.none()
texts = st.lists(items.map(lambda item: json.dumps(item).encode()), max_size=150)
repeated = st.builds(lambda text, n: [text] * n, items.map(json.dumps).map(str.encode), st.just(90))
lists = texts | repeated


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        yield


@ours
@given(lists)
def test_every_list_comes_back(list_of: "list[bytes]") -> None:
    shelf = Shelf()
    assert shelf.read(shelf.build(list_of)) == [json.loads(text) for text in list_of]


@ours
@given(lists, st.data())
def test_a_list_has_one_name_however_it_was_built(list_of: "list[bytes]", data: Any) -> None:
    finished = data.draw(st.sets(st.integers(0, len(list_of))))
    copied = data.draw(st.sets(st.integers(0, len(list_of))))
    shelf, builder = Shelf(), MerkleListBuilder()
    for place, text in enumerate(list_of):
        if place in finished:
            assert shelf.read(builder.finish(shelf.put)) == list(map(json.loads, list_of[:place]))
        if place in copied:
            left, builder = builder, builder.copy()
            left.add(b'"what the copy must not see"', (), shelf.put)
        builder.add(text, (), shelf.put)
    root = builder.finish(shelf.put)
    assert root == builder.finish(shelf.put) == builder.copy().finish(shelf.put)
    assert root == Shelf().build(list_of)
    split = data.draw(st.integers(0, len(list_of)))
    at_once = MerkleListBuilder()
    at_once.extend(list_of[:split], shelf.put)
    at_once.extend(list_of[split:], shelf.put)
    assert root == at_once.finish(shelf.put)
    assert at_once.bytes == builder.bytes


@ours
@given(texts, texts)
def test_other_lists_have_other_names(one: "list[bytes]", other: "list[bytes]") -> None:
    assert (Shelf().build(one) == Shelf().build(other)) == (one == other)


@ours
@given(lists)
def test_an_append_adds_few_objects(list_of: "list[bytes]") -> None:
    shelf, builder = Shelf(), MerkleListBuilder()
    for text in list_of:
        before = len(shelf.objects)
        builder.add(text, (), shelf.put)
        builder.finish(shelf.put)
        # A tail, or a leaf with the nodes that it completes and a spine.
        assert len(shelf.objects) - before <= 2 + len(builder._levels) + 1
