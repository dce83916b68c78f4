"""A2 and A3: tags name entries of a registry; nothing is imported, and user data stays data."""

import builtins
import os
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from agent_checkpoint import Checkpointable, CheckpointManager, StateError
from tests.attacks.forging import forge
from tests.exact import alike, decode_state, through_json
from tests.properties.values import TAGS

# In no program by itself, and imported without effects: whoever imports it has been tricked.
UNUSED = "this"

NAMES = [
    "os.system",
    "posix.system",
    "os:system",
    "os",
    "builtins.eval",
    "builtins.exec",
    "__builtin__.eval",
    "eval",
    "subprocess.Popen",
    "Popen",
    UNUSED,
    f"{UNUSED}.s",
    f"{UNUSED}:s",
    "agent_checkpoint.core.codec.pickles.decode_pickle",
    "pickle.loads",
    "object",
    "type",
    "__main__.X",
    "..os",
    "",
]


class Target(Checkpointable):
    def __init__(self) -> None:
        self.value: Any = "as it was"


@pytest.fixture(scope="module", autouse=True)
def all_imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what the library itself imports when it is first used."""
    for manager in (
        CheckpointManager(),
        CheckpointManager(backend="file", path=tmp_path_factory.mktemp("warm")),
    ):
        manager.save("agent", Target())
        manager.load("agent", Target())
    through_json(numpy.zeros(1))
    with pytest.raises(StateError):
        decode_state({"$zoneinfo": {"zone": "Nowhere/Nowhere"}}, "agent")


@pytest.fixture(autouse=True)
def nothing_runs(all_imported: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fail the test if a module is imported, or a dangerous function called."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("code has run")

    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, UNUSED, raising=False)
        patch.setattr(os, "system", refuse)
        patch.setattr(builtins, "eval", refuse)
        before = set(sys.modules)
        yield
        assert set(sys.modules) == before


def trees(name: str) -> "list[Any]":
    """Return trees that name a class, module or function wherever a name may stand."""
    return [
        {f"$type:{name}": {}},
        {f"$type:{name}": ["touch /tmp/owned"]},
        {f"$type:{name}": {"args": ["true"], "__reduce__": "x"}},
        {f"${name}": ["true"]},
        {"$type": name},
        {"$class": name},
        {"$import": name},
        {"$call": [name, ["true"]]},
        {"py/object": name, f"$type:{name}": {}},
        {"$defaultdict": [name, []]},
        {"$defaultdict": [name, [["a", 1]]]},
        {"$type:Target": {}},
    ]


class TestNames:
    @pytest.mark.parametrize("name", NAMES)
    def test_a_tag_that_names_code_is_refused(self, name: str) -> None:
        for tree in trees(name):
            agent = Target()
            for state in (tree, {"value": [tree]}, {"$state": {"value": tree}}):
                with pytest.raises(StateError):
                    agent.load_state_dict(decode_state(state, "agent", agent))
                assert agent.value == "as it was"

    @pytest.mark.parametrize("name", NAMES)
    def test_trusting_pickles_does_not_make_names_trusted(self, name: str) -> None:
        for tree in trees(name):
            with pytest.raises(StateError):
                decode_state({"value": tree}, "agent", trust_pickle=True)

    @pytest.mark.parametrize("name", NAMES)
    def test_a_state_that_names_code_as_its_class_is_refused(self, name: str) -> None:
        agent = Target()
        nested = {"$state": {"__class__": name, "__version__": "1.0", "cmd": "true"}}
        for value in (nested, [nested], {"$tuple": [nested]}, {"$dict": [[1, nested]]}):
            with pytest.raises(StateError, match=r"^agent\.value"):
                agent.load_state_dict(decode_state({"$state": {"value": value}}, "agent", agent))
        with pytest.raises(StateError):
            agent.load_state_dict(decode_state(nested, "agent", agent))
        assert agent.value == "as it was"

    @pytest.mark.parametrize("name", NAMES)
    def test_a_forged_checkpoint_that_names_code_is_refused(
        self, name: str, tmp_path: Path
    ) -> None:
        forge(tmp_path, "agent", {"$state": {"value": {f"$type:{name}": ["true"]}}})
        manager = CheckpointManager(backend="file", path=tmp_path)
        agent = Target()
        with pytest.raises(StateError, match=r"^agent\.value"):
            manager.load("agent", agent)
        assert agent.value == "as it was"

    def test_a_class_that_is_defined_but_not_registered_is_refused(self) -> None:
        for tree in (
            {"$type:Target": {"value": 1}},
            {"$type:Path": ["/"]},
            {"$type:StateError": {}},
        ):
            with pytest.raises(StateError, match="not registered"):
                decode_state(tree, "agent", Target())

    @pytest.mark.parametrize("name", ["StateDict", "Structure", "Checkpoint", "Draft"])
    def test_the_classes_of_the_library_itself_are_no_types(self, name: str) -> None:
        with pytest.raises(StateError, match="not registered"):
            decode_state({f"$type:{name}": {}}, "agent")

    @pytest.mark.parametrize(
        "zone", ["os.path/x", "../../../etc/passwd", "/etc/passwd", "this", "..", "", "a/../../b"]
    )
    def test_a_zone_leads_to_no_file_and_no_module(self, zone: str) -> None:
        with pytest.raises(StateError, match="damaged"):
            decode_state({"$zoneinfo": {"zone": zone}}, "agent")


class TestHooksAndAttributes:
    @pytest.mark.parametrize(
        "name", ["__class__", "__dict__", "__init__", "load_state_dict", "_checkpoint_fields"]
    )
    def test_a_hand_made_state_cannot_replace_methods(self, name: str) -> None:
        agent = Target()
        tree = {"$state": {"value": 1, name: "Target" if name == "__class__" else {"a": 1}}}
        try:
            agent.load_state_dict(decode_state(tree, "agent", agent))
        except StateError:
            assert agent.value == "as it was"
        assert type(agent) is Target
        assert callable(agent.load_state_dict)


LOOK_ALIKES = [
    *({tag: payload} for tag in TAGS for payload in ([], {}, "x", {"data": "x", "seal": "y"})),
    *({f"$type:{name}": {"a": 1}} for name in NAMES),
    {"$": {"$$": {"$$$": {}}}},
    {"$tuple": [1], "plain": 2},
    {"__class__": "Target", "__version__": "1.0", "value": 1},
    {"py/object": "os.system", "__reduce__": ["os.system", ["true"]]},
]


class TestLookAlikes:
    def test_user_data_with_our_tags_stays_data(self) -> None:
        for value in LOOK_ALIKES:
            assert alike(through_json(value), value)

    def test_nested_in_each_other(self) -> None:
        for outer in TAGS:
            for inner in TAGS:
                value = {outer: [{inner: {outer: inner}}]}
                assert alike(through_json(value), value)

    def test_as_keys_as_members_and_beside_other_keys(self) -> None:
        for tag in TAGS:
            value = [{(tag, 1): tag, tag: 1, 2: {tag: 3}}, {tag}, (tag, {tag: ()})]
            assert alike(through_json(value), value)

    def test_through_a_store_and_back_into_an_agent(self, tmp_path: Path) -> None:
        manager = CheckpointManager(backend="file", path=tmp_path)
        agent, fresh = Target(), Target()
        agent.value = LOOK_ALIKES
        manager.save("agent", agent)
        manager.load("agent", fresh)
        assert alike(fresh.value, LOOK_ALIKES)

    def test_as_the_whole_of_a_plain_dict(self) -> None:
        manager = CheckpointManager()
        for value in LOOK_ALIKES:
            manager.save("dict", value)
            assert alike(manager.state_dict("dict"), value)
