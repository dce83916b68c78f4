"""What holds for every value that a checkpoint can keep."""

import copy
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent_checkpoint import Checkpointable, IntegrityError, Log, StateError
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.core.state_diff import diff_states, same
from agent_checkpoint.store import canonical_json
from agent_checkpoint.store.canonical_json import read_json, write_json
from agent_checkpoint.store.objects.splitting import inline_tree
from tests.exact import alike, decode_state, through_json
from tests.properties.values import any_text, changed, fields, json_trees, values

# The strategies nest deeply, which hypothesis takes for slow; functions use no fixture per example.
ours = settings(
    max_examples=75,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

NO_CHANGES: "dict[str, Any]" = {"added": {}, "removed": {}, "changed": {}}


class PropertyAgent(Checkpointable):
    def __init__(self, fields: "dict[str, Any]") -> None:
        vars(self).update(fields)


@pytest.fixture(scope="module", autouse=True)
def secret() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENT_CHECKPOINT_SECRET", "of these tests")
        yield


@pytest.mark.slow
@ours
@given(values)
def test_every_value_comes_back_exactly_from_json_text(value: Any) -> None:
    assert alike(through_json(value), value)


@pytest.mark.slow
@ours
@given(values)
def test_every_value_read_from_a_log_is_stored_and_copied_as_itself(value: Any) -> None:
    read = Log([value])[0]
    assert alike(through_json(read), value)
    assert alike(copy.deepcopy(read), value)
    assert alike(Log([read]).to_list()[0], value)


@pytest.mark.slow
@ours
@given(fields)
def test_every_agent_comes_back_exactly_from_json_text(content: "dict[str, Any]") -> None:
    tree = read_json(write_json(inline_tree(encode_state(PropertyAgent(content), "agent"))))
    fresh = PropertyAgent({})
    fresh.load_state_dict(decode_state(tree, "agent", fresh))
    assert alike(vars(fresh), content)


@ours
@given(values)
def test_no_value_of_the_listed_types_needs_a_pickle(value: Any) -> None:
    def tags(tree: Any) -> Any:
        if isinstance(tree, dict):
            yield from tree
        for item in tree.values() if isinstance(tree, dict) else tree:
            if isinstance(item, (dict, list)):
                yield from tags(item)

    assert "$pickle" not in set(tags(encode_state({"value": value}, "agent")))


@ours
@given(values)
def test_encoding_twice_gives_the_same_bytes(value: Any) -> None:
    first, second = (
        write_json(inline_tree(encode_state({"value": item}, "agent")))
        for item in (value, through_json(value))
    )
    assert first == second


@pytest.mark.skipif(find_spec("orjson") is None, reason="orjson is not installed")
@ours
@given(values | st.lists(st.floats() | any_text), st.booleans())
def test_the_bytes_are_the_same_with_and_without_orjson(value: Any, indent: bool) -> None:
    tree = encode_state({"value": value}, "agent")
    fast = write_json(tree, indent=indent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical_json, "orjson", None)
        assert write_json(tree, indent=indent) == fast
        assert alike(read_json(fast), canonical_json.json.loads(fast))


@ours
@given(fields)
def test_a_state_shares_nothing_with_the_agent(content: "dict[str, Any]") -> None:
    agent = PropertyAgent(copy.deepcopy(content))
    state = agent.state_dict()
    _spoil(vars(agent))
    assert alike({name: state[name] for name in content}, content)

    fresh = PropertyAgent({})
    fresh.load_state_dict(state)
    _spoil(state)
    assert alike(vars(fresh), content)


@ours
@given(fields)
def test_capturing_and_cloning_change_nothing(content: "dict[str, Any]") -> None:
    agent = PropertyAgent(copy.deepcopy(content))
    twin = agent.clone()
    assert alike(vars(agent), content)
    assert alike(vars(twin), content)
    assert agent.diff(twin) == NO_CHANGES


@ours
@given(values, st.booleans())
@example({float("nan")}, True)
@example({float("nan"): 1}, True)
@example({frozenset({float("nan"), "a", "b", "c"})}, True)
def test_a_value_does_not_differ_from_its_copy(value: Any, deep: bool) -> None:
    assert diff_states({"field": value}, {"field": through_json(value)}, deep=deep) == NO_CHANGES


@ours
@given(st.data(), values)
@example(None, {1: 0})
def test_a_diff_finds_any_single_change(data: Any, value: Any) -> None:
    other = {True: 0} if data is None else data.draw(changed(value))
    if alike(value, other, ordered=False):
        return
    assert list(diff_states({"field": value}, {"field": other})["changed"]) == ["field"]
    deep = diff_states({"field": value}, {"field": other}, deep=True)
    assert any(deep.values())
    assert all(name.startswith("field") for found in deep.values() for name in found)


@ours
@given(values, values)
def test_same_means_exactly_alike(a: Any, b: Any) -> None:
    assert same(a, b) == alike(a, b, ordered=False)


@ours
@given(json_trees)
def test_any_json_is_decoded_or_refused_with_a_state_error(tree: Any) -> None:
    agent = PropertyAgent({"memory": [1], "config": {"a": 1}})
    before = copy.deepcopy(vars(agent))
    try:
        agent.load_state_dict(decode_state(tree, "agent", agent))
    except StateError:
        assert alike(vars(agent), before)


@ours
@given(st.dictionaries(st.sampled_from(["memory", "config", "other"]), json_trees))
def test_any_state_is_loaded_whole_or_refused_whole(tree: "dict[str, Any]") -> None:
    agent = PropertyAgent({"memory": [1], "config": {"a": 1}})
    before = copy.deepcopy(vars(agent))
    try:
        state = decode_state({"$state": {**tree, "__class__": "PropertyAgent"}}, "agent", agent)
        agent.load_state_dict(state)
    except StateError:
        assert alike(vars(agent), before)


@ours
@given(
    st.binary(max_size=60) | json_trees.map(repr).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_are_read_as_json_or_refused(data: bytes) -> None:
    with suppress(IntegrityError):
        read_json(data)


def _spoil(value: Any) -> None:
    """Change every mutable container and array inside a value."""
    if isinstance(value, dict):
        for item in list(value.values()):
            _spoil(item)
        value["spoilt"] = True
    elif isinstance(value, (list, tuple)):
        for item in value:
            _spoil(item)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, set):
        value.add("spoilt")
    elif isinstance(value, bytearray):
        value.extend(b"spoilt")
    elif isinstance(value, numpy.ndarray):
        value.ravel(order="K").view("u1")[...] ^= 255
    elif hasattr(value, "more"):
        value.more.append("spoilt")
