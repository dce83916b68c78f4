"""Every value comes back exactly from a store, wherever its state is cut."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_checkpoint import Checkpointable, CheckpointManager, Log
from tests.exact import alike
from tests.properties.values import any_text, fields, values
from tests.unit.store.shelves import cut_small

ours = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

OUR_KEYS = ["$ref", "$list", "$map", "$text", "$blob", "$log", "$state", "$", "$$ref"]


class StoredAgent(Checkpointable):
    def __init__(self, fields: "dict[str, Any]") -> None:
        vars(self).update(fields)


class Opaque:
    """What only a pickle can keep."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


@pytest.fixture(scope="module", params=["memory", "sqlite", "sqlite, real limits"])
def manager(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CheckpointManager]:
    backend, *real = request.param.split(",")
    options: Any = {"path": tmp_path_factory.mktemp("store"), "durability": "fast"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", "of these tests")
        if not real:
            cut_small(patch)
        with CheckpointManager(
            backend=backend, pickles="allow", **options if backend == "sqlite" else {}
        ) as opened:
            yield opened


def through(manager: CheckpointManager, state: "dict[str, Any]") -> Any:
    manager.save("key", state)
    return manager.state_dict("key")


@ours
@given(values)
def test_every_value_comes_back_from_a_store(manager: CheckpointManager, value: Any) -> None:
    state = {"value": value, "list": [value, [value]], "long": "a text longer than the limits"}
    assert alike(through(manager, state), state)


@ours
@given(fields)
def test_every_agent_comes_back_from_a_store(
    manager: CheckpointManager, content: "dict[str, Any]"
) -> None:
    inner = StoredAgent(dict(content))
    manager.save("agent", StoredAgent({**content, "others": [inner, {"deep": inner}]}))
    fresh = StoredAgent({})
    manager.load("agent", fresh)
    others = vars(fresh).pop("others")
    assert alike(vars(fresh), content)
    assert alike(vars(others[0]), content)
    assert alike(vars(others[1]["deep"]), content)


json_like = st.recursive(
    st.integers() | any_text | st.sampled_from(['"$ref', '{"$list":"x"}', "$blob", '\\"$']),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.sampled_from(OUR_KEYS) | any_text, inner, max_size=6)
        | st.sampled_from(OUR_KEYS).flatmap(lambda key: st.builds(lambda x: {key: x}, inner))
    ),
    max_leaves=25,
)


@ours
@given(json_like, st.sampled_from([1, 20, 300]))
@example({"$ref": "0" * 64}, 1)
@example({"a": 1, "$ref": 2}, 20)
@example({"$blob": ["0" * 64]}, 300)
def test_keys_that_look_like_tags_stay_data_at_every_size(
    manager: CheckpointManager, value: Any, times: int
) -> None:
    once = {"value": value}
    assert alike(through(manager, once), once)
    if times * len(repr(value)) < 10_000:
        many = {"values": [value] * times, "by name": {str(n): value for n in range(times)}}
        assert alike(through(manager, many), many)


@ours
@given(st.lists(values, max_size=6))
def test_every_log_comes_back_from_a_store(manager: CheckpointManager, items: "list[Any]") -> None:
    log = Log(items)
    again = through(manager, {"log": log, "in": [log], "text": "longer than any of the limits"})
    assert type(again["log"]) is Log
    assert alike(again["log"].to_list(), items)
    assert alike(again["in"][0].to_list(), items)


@ours
@given(st.binary(max_size=40), st.sampled_from([1, 30, 100]), st.lists(any_text, max_size=3))
def test_bytes_arrays_and_pickles_come_back(
    manager: CheckpointManager, data: bytes, times: int, texts: "list[str]"
) -> None:
    state = {
        "bytes": data * times,
        "bytearray": bytearray(data * times),
        "array": numpy.frombuffer(data * times, "u1"),
        "in a list": [data * times, [data] * times],
        "text": "".join(texts) * times,
    }
    opaque = through(manager, {**state, "opaque": Opaque(state)}).pop("opaque")
    assert alike(opaque.inside, state)
    assert alike(through(manager, state), state)
