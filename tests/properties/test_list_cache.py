"""Lists that are saved again and again: what is remembered of them does not show in the store."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_checkpoint import CheckpointManager, Log
from tests.properties.test_merkle_list import ours
from tests.unit.store.shelves import cut_small

values = st.lists(st.one_of(st.booleans(), st.integers(0, 2), st.text("ab", max_size=30)))
edits = st.lists(
    st.tuples(st.sampled_from(["append", "insert", "delete", "set"]), st.integers(0, 60), values),
    max_size=12,
)


@pytest.fixture(scope="module", autouse=True)
def small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        yield


def edited(items: "list[Any]", how: str, where: int, new: "list[Any]") -> "list[Any]":
    at = where % (len(items) + 1)
    if how == "append":
        return items + new
    if how == "insert":
        return items[:at] + new + items[at:]
    if how == "delete":
        return items[:at] + items[at + len(new) :]
    return items[:at] + new + items[at + len(new) :]


def exact(value: Any) -> str:
    return json.dumps(value)  # 1, 1.0 and True are equal, but not the same


@pytest.mark.slow
@ours
@given(values, edits)
def test_each_save_is_as_if_it_were_the_first(first: "list[Any]", changes: Any) -> None:
    manager = CheckpointManager()
    items, other = first, ["another list", *first] * 3
    for change in [("append", 0, []), *changes]:
        items = edited(items, *change)
        state = {"items": items, "other": other, "more": {"deep": [items]}}
        manager.save("key", state)
        assert exact(manager.state_dict("key")) == exact(state)
        # Of a store that remembers nothing, and of a log.
        alone = CheckpointManager()
        alone.save("key", state)
        parts = manager.store.head("key"), alone.store.head("key")
        assert parts[0].parts == parts[1].parts
        assert parts[0].size == parts[1].size
    logged = CheckpointManager()
    logged.save("key", {"log": Log(items)})
    assert exact(list(logged.state_dict("key")["log"])) == exact(items)


def test_a_list_after_gc_and_after_a_failed_save() -> None:
    manager = CheckpointManager()
    items = [f"message {n} " for n in range(60)]
    manager.save("key", {"items": items})
    manager.delete("key")
    manager.gc()
    items.append("one more")
    manager.save("key", {"items": items})
    assert manager.state_dict("key") == {"items": items}
    assert manager.verify().ok
