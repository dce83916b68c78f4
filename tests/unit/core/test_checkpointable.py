"""Objects to states and back: what design section 2.1 promises of one object."""

import copy
import pickle
import threading
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import pytest

from agent_checkpoint import (
    Checkpointable,
    MigrationError,
    StateError,
    StateMismatchError,
    register_alias,
    register_migration,
)
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.core.stateful import LoadResult, StateDict
from tests.unit.core.agents import Holder, Module, MyAgent, PinnedAgent, Remark, Skill, reloaded

NO_CHANGES: "dict[str, Any]" = {"added": {}, "removed": {}, "changed": {}}


class TestCapture:
    def test_a_state_is_all_public_attributes_with_version_and_class(self) -> None:
        agent = MyAgent()
        agent.memory.append({"role": "user"})
        agent.call_count = 2
        assert agent.state_dict() == {
            "memory": [{"role": "user"}],
            "config": {},
            "call_count": 2,
            "__version__": "1.0",
            "__class__": "MyAgent",
        }

    def test_attributes_with_a_leading_underscore_are_not_captured(self) -> None:
        assert "_cache" not in MyAgent().state_dict()

    def test_pinned_fields_and_version(self) -> None:
        assert PinnedAgent().state_dict() == {
            "memory": [],
            "call_count": 0,
            "__version__": "2.0",
            "__class__": "PinnedAgent",
        }

    def test_pinned_fields_may_have_a_leading_underscore(self) -> None:
        class Open(MyAgent):
            def _checkpoint_fields(self) -> "list[str]":
                return ["_cache"]

        assert Open().state_dict()["_cache"] == {}

    def test_pinned_fields_may_extend_the_default(self) -> None:
        class More(MyAgent):
            def _checkpoint_fields(self) -> "list[str]":
                return [*super()._checkpoint_fields(), "_cache"]

        assert {"memory", "config", "call_count", "_cache"} < set(More().state_dict())

    def test_a_pinned_field_that_does_not_exist_is_named(self) -> None:
        class Wrong(Checkpointable):
            def _checkpoint_fields(self) -> "list[str]":
                return ["nowhere"]

        with pytest.raises(StateError, match=r"agent\.nowhere does not exist.*Wrong"):
            Wrong().state_dict()

    @pytest.mark.parametrize("name", ["__class__", "__version__"])
    def test_a_reserved_name_cannot_be_a_field(self, name: str) -> None:
        agent = MyAgent()
        agent._checkpoint_fields = lambda: [name]  # type: ignore[method-assign]
        with pytest.raises(StateError, match=f"agent.{name} cannot be captured.*reserved"):
            agent.state_dict()

    def test_class_attributes_are_not_captured(self) -> None:
        class WithDefault(Checkpointable):
            limit = 3

        assert set(WithDefault().state_dict()) == {"__version__", "__class__"}

    def test_a_pinned_property_is_captured_by_its_value(self) -> None:
        class Sum(Checkpointable):
            def _checkpoint_fields(self) -> "list[str]":
                return ["total"]

            @property
            def total(self) -> int:
                return 3

        assert Sum().state_dict()["total"] == 3

    def test_an_attribute_that_is_a_mock_is_no_stateful(self) -> None:
        with pytest.raises(StateError, match=r"agent\.part"):
            encode_state(Holder(MagicMock()), "agent")

    def test_an_attribute_that_is_a_class_stays_that_class(self) -> None:
        assert reloaded(Holder(Skill), Holder()).part is Skill

    def test_state_dict_may_be_extended_by_super(self) -> None:
        class Extended(MyAgent):
            def state_dict(self) -> "dict[str, Any]":
                state = super().state_dict()
                state["call_count"] += 100
                return state

        agent = Extended()
        assert agent.state_dict()["call_count"] == 100
        assert reloaded(agent, Extended()).call_count == 100

    def test_an_overriding_state_dict_of_a_nested_object_is_asked(self) -> None:
        class Own(Checkpointable):
            def state_dict(self) -> "dict[str, Any]":
                return {"secret": 7}

        state = Holder(Own()).state_dict()
        assert state["part"] == {"secret": 7, "__version__": "1.0", "__class__": "Own"}

    def test_an_overriding_state_dict_that_fails_is_named(self) -> None:
        class Broken(Checkpointable):
            def state_dict(self) -> "dict[str, Any]":
                raise KeyError("no")

        with pytest.raises(StateError, match=r"agent\.part has a state_dict\(\) that failed"):
            encode_state(Holder(Broken()), "agent")


class TestSnapshot:
    def test_later_changes_to_the_agent_do_not_show_in_the_state(self) -> None:
        agent = MyAgent()
        agent.memory.append([1])
        state = agent.state_dict()
        agent.memory[0].append(2)
        agent.config["new"] = True
        assert (state["memory"], state["config"]) == ([[1]], {})

    def test_later_changes_to_the_state_do_not_show_in_the_agent_it_came_from(self) -> None:
        agent = MyAgent()
        agent.memory.append([1])
        agent.state_dict()["memory"][0].append(2)
        assert agent.memory == [[1]]

    def test_later_changes_to_the_state_do_not_show_in_the_agent_that_loaded_it(self) -> None:
        state = MyAgent().state_dict()
        agent = MyAgent()
        agent.load_state_dict(state)
        state["memory"].append(1)
        assert agent.memory == []

    def test_later_changes_to_the_agent_do_not_show_in_the_state_it_loaded(self) -> None:
        state = MyAgent().state_dict()
        agent = MyAgent()
        agent.load_state_dict(state)
        agent.memory.append(1)
        assert state["memory"] == []

    @pytest.mark.parametrize(
        "make",
        [
            lambda item: [item],
            lambda item: (item,),
            lambda item: {"key": item},
            lambda item: deque([item]),
            lambda item: OrderedDict(key=item),
            lambda item: defaultdict(list, key=item),
            lambda item: Remark(item),
        ],
    )
    def test_a_snapshot_reaches_into_every_container(self, make: Any) -> None:
        item: list[Any] = []
        agent = Holder(make(item))
        state = agent.state_dict()
        item.append(1)
        assert state["part"] == make([])
        assert type(state["part"]) is type(agent.part)

    def test_nested_objects_are_snapshots_too(self) -> None:
        agent = Holder(Skill())
        state = agent.state_dict()
        agent.part.level = 9
        assert state["part"]["level"] == 1

    def test_capturing_has_no_side_effects(self) -> None:
        class Counted(Checkpointable):
            def __init__(self) -> None:
                self.table: defaultdict[str, list[int]] = defaultdict(list)
                self.part = Skill()

        agent = Counted()
        before = (dict(vars(agent)), dict(agent.table), dict(vars(agent.part)))
        agent.state_dict()
        encode_state(agent, "agent")
        assert (dict(vars(agent)), dict(agent.table), dict(vars(agent.part))) == before

    def test_a_state_can_be_pickled_and_copied(self) -> None:
        state = Holder(Skill()).state_dict()
        for copied in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
            assert copied == state
            assert type(copied["part"]) is StateDict


class TestLoad:
    def test_a_state_is_taken_over(self) -> None:
        agent, other = MyAgent(), MyAgent()
        agent.memory.append("hello")
        agent.call_count = 5
        other.load_state_dict(agent.state_dict())
        assert (other.memory, other.call_count) == (["hello"], 5)

    def test_the_result_is_a_named_tuple_of_missing_and_unexpected_keys(self) -> None:
        result = MyAgent().load_state_dict({"memory": [], "extra": 1})
        missing, unexpected = result
        assert result.missing_keys == missing == ["config", "call_count"]
        assert result.unexpected_keys == unexpected == ["extra"]

    def test_a_full_state_has_no_mismatch(self) -> None:
        agent = MyAgent()
        assert agent.load_state_dict(agent.state_dict()) == LoadResult([], [])

    def test_missing_fields_keep_their_present_value(self) -> None:
        agent = MyAgent()
        agent.call_count = 3
        agent.load_state_dict({"memory": [1]})
        assert (agent.memory, agent.call_count) == ([1], 3)

    def test_a_hand_made_state_needs_neither_class_nor_version(self) -> None:
        agent = PinnedAgent()
        agent.load_state_dict({"memory": [1], "call_count": 2})
        assert (agent.memory, agent.call_count) == ([1], 2)

    def test_unexpected_keys_of_a_captured_state_are_restored(self) -> None:
        agent = MyAgent()
        agent.later = "set after __init__"  # type: ignore[attr-defined]
        fresh = MyAgent()
        assert fresh.load_state_dict(agent.state_dict()).unexpected_keys == ["later"]
        assert fresh.later == "set after __init__"  # type: ignore[attr-defined]

    def test_unexpected_keys_of_a_hand_made_state_are_only_reported(self) -> None:
        agent = MyAgent()
        assert agent.load_state_dict({"typo": 1}).unexpected_keys == ["typo"]
        assert not hasattr(agent, "typo")

    def test_unexpected_keys_are_only_reported_where_fields_are_pinned(self) -> None:
        agent = PinnedAgent()
        state = {**agent.state_dict(), "config": {"a": 1}, "other": 2}
        assert agent.load_state_dict(state).unexpected_keys == ["config", "other"]
        assert agent.config == {}
        assert not hasattr(agent, "other")

    def test_a_state_of_another_class_is_refused_naming_both(self) -> None:
        with pytest.raises(StateMismatchError, match=r"of the class MyAgent.*'PinnedAgent'"):
            MyAgent().load_state_dict(PinnedAgent().state_dict())

    def test_a_state_of_a_renamed_class_is_taken(self) -> None:
        register_alias("OldName", "MyAgent")
        agent = MyAgent()
        agent.load_state_dict({"call_count": 4, "__class__": "OldName", "__version__": "1.0"})
        assert agent.call_count == 4

    def test_a_state_newer_than_the_code_is_refused(self) -> None:
        with pytest.raises(MigrationError, match=r"version 2\.1 of .*, newer than version 2\.0"):
            PinnedAgent().load_state_dict({**PinnedAgent().state_dict(), "__version__": "2.1"})

    @pytest.mark.parametrize(("saved", "newer"), [("2.0.0", False), ("2", False), ("2.0.1", True)])
    def test_versions_compare_by_their_numbers(self, saved: str, newer: bool) -> None:
        state = {**PinnedAgent().state_dict(), "__version__": saved}
        if newer:
            with pytest.raises(MigrationError):
                PinnedAgent().load_state_dict(state)
        else:
            PinnedAgent().load_state_dict(state)

    def test_an_old_state_is_migrated(self) -> None:
        def migrate_v1_to_v2(state: "dict[str, Any]") -> "dict[str, Any]":
            state["call_count"] = state.pop("calls")
            return state

        register_migration("PinnedAgent", from_version="1.0", fn=migrate_v1_to_v2)
        agent = PinnedAgent()
        state = {"memory": [1], "calls": 8, "__class__": "PinnedAgent", "__version__": "1.0"}
        assert agent.load_state_dict(state, strict=True) == LoadResult([], [])
        assert agent.call_count == 8
        assert state["calls"] == 8

    @pytest.mark.parametrize("state", [None, [], "text", 5])
    def test_what_is_no_dict_is_refused(self, state: Any) -> None:
        with pytest.raises(StateMismatchError, match="agent needs a dict as its state"):
            MyAgent().load_state_dict(state)

    def test_load_state_dict_may_be_extended_by_super(self) -> None:
        class Reconnecting(MyAgent):
            def load_state_dict(self, state: Any, strict: bool = False) -> LoadResult:
                result = super().load_state_dict(state, strict)
                self._cache["connected"] = True
                return result

        agent = Reconnecting()
        agent.load_state_dict({"call_count": 3})
        assert agent.call_count == 3
        assert agent._cache == {"connected": True}


class TestStrict:
    def test_a_matching_state_is_taken(self) -> None:
        agent = MyAgent()
        assert agent.load_state_dict(agent.state_dict(), strict=True) == LoadResult([], [])

    def test_every_mismatch_is_named_at_once(self) -> None:
        agent = Holder(Skill())
        state = agent.state_dict()
        del state["part"]["level"]
        state["part"]["rank"] = 1
        state["extra"] = 2
        with pytest.raises(StateMismatchError) as caught:
            agent.load_state_dict(state, strict=True)
        for words in ("lacks part.level", "unexpected", "part.rank", "extra"):
            assert words in str(caught.value)

    def test_nothing_is_assigned(self) -> None:
        agent = MyAgent()
        with pytest.raises(StateMismatchError, match="lacks config, call_count"):
            agent.load_state_dict({"memory": [1]}, strict=True)
        assert agent.memory == []

    def test_lenient_loading_names_nested_mismatches_by_their_path(self) -> None:
        agent = Holder(Skill())
        state = agent.state_dict()
        del state["part"]["level"]
        state["part"]["rank"] = 1
        assert agent.load_state_dict(state) == LoadResult(["part.level"], ["part.rank"])


class TestKindsOfClasses:
    def test_slots_are_captured(self) -> None:
        class Slotted(Checkpointable):
            __slots__ = ("_hidden", "unset", "value")

            def __init__(self) -> None:
                self.value = 1
                self._hidden = 2

        agent, fresh = Slotted(), Slotted()
        agent.value = 5
        assert set(agent.state_dict()) == {"value", "__version__", "__class__"}
        assert reloaded(agent, fresh).value == 5

    def test_slots_and_attributes_of_base_classes_are_captured(self) -> None:
        class Base(Checkpointable):
            __slots__ = ("one",)

        class Derived(Base):  # without slots: has a __dict__ too
            def __init__(self) -> None:
                self.one = 1
                self.two = 2

        state = Derived().state_dict()
        assert (state["one"], state["two"]) == (1, 2)

    def test_a_single_slot_may_be_given_as_text(self) -> None:
        class Single(Checkpointable):
            __slots__ = "value"

        agent = Single()
        agent.value = 1
        assert agent.state_dict()["value"] == 1

    def test_a_slotted_agent_is_cloned(self) -> None:
        class SlottedTwin(Checkpointable):
            __slots__ = ("_client", "items")

            def __init__(self) -> None:
                self.items = [1]
                self._client = object()

        agent = SlottedTwin()
        twin = agent.clone()
        twin.items.append(2)
        assert agent.items == [1]
        assert twin._client is agent._client

    def test_a_dataclass_can_be_an_agent(self) -> None:
        @dataclass
        class Worker(Checkpointable):
            name: str
            jobs: "list[str]" = field(default_factory=list)

        fresh = reloaded(Worker("a", ["x"]), Worker("b"))
        assert fresh == Worker("a", ["x"])
        assert fresh.clone() == fresh
        assert fresh.diff(Worker("a"))["changed"] == {"jobs": (["x"], [])}

    def test_an_agent_may_have_other_bases(self) -> None:
        class Base:
            def __init__(self) -> None:
                self.from_base = 1

        class Mixed(Base, Checkpointable):
            pass

        assert Mixed().state_dict()["from_base"] == 1

    def test_a_class_may_take_options(self) -> None:
        class Optional(Checkpointable):
            def __init_subclass__(cls, *, colour: str = "", **options: Any) -> None:
                super().__init_subclass__(**options)
                cls.colour = colour  # type: ignore[attr-defined]

        class Red(Optional, colour="red"):
            pass

        assert Red.colour == "red"  # type: ignore[attr-defined]


class TestClone:
    def test_a_clone_has_its_own_captured_state(self) -> None:
        agent = MyAgent()
        agent.memory.append([1])
        twin = agent.clone()
        twin.memory[0].append(2)
        twin.config["a"] = 1
        assert type(twin) is MyAgent
        assert (agent.memory, agent.config) == ([[1]], {})

    def test_a_clone_shares_what_is_not_captured(self) -> None:
        agent = MyAgent()
        assert agent.clone()._cache is agent._cache

    def test_a_clone_shares_what_is_not_pinned(self) -> None:
        agent = PinnedAgent()
        twin = agent.clone()
        assert twin.config is agent.config
        assert twin.memory is not agent.memory

    def test_a_clone_has_its_own_nested_objects(self) -> None:
        agent = Holder(Holder([Skill()]))
        twin = agent.clone()
        twin.part.part[0].level = 9
        twin.part.part.append(1)
        assert agent.part.part == [Skill()]

    def test_a_nested_object_shares_with_its_clone_what_is_not_captured(self) -> None:
        agent = Holder(Skill())
        twin = agent.clone()
        assert twin.part is not agent.part
        assert twin.part._client is agent.part._client

    def test_a_clone_has_its_own_foreign_parts(self) -> None:
        agent = Holder(Module())
        twin = agent.clone()
        twin.part.weights.append(1.0)
        assert agent.part.weights == [0.0]

    def test_an_object_that_stands_in_two_places_is_one_in_the_clone(self) -> None:
        skill = Skill()
        twin = Holder([skill, {"again": skill}]).clone()
        assert twin.part[0] is twin.part[1]["again"]
        assert twin.part[0] is not skill

    def test_a_field_that_cannot_be_assigned_is_named(self) -> None:
        class Fixed(Checkpointable):
            def _checkpoint_fields(self) -> "list[str]":
                return ["total"]

            @property
            def total(self) -> int:
                return 3

        with pytest.raises(StateError, match=r"agent\.part\.total cannot be assigned"):
            Holder(Fixed()).clone()

    def test_overriding_methods_are_used(self) -> None:
        class Renaming(MyAgent):
            def state_dict(self) -> "dict[str, Any]":
                return {"calls": self.call_count}

            def load_state_dict(self, state: Any, strict: bool = False) -> Any:
                self.call_count = state["calls"] + 100

        agent = Renaming()
        agent.call_count = 5
        assert agent.clone().call_count == 105
        assert agent.call_count == 5

    def test_a_value_that_cannot_be_copied_is_named(self) -> None:
        with pytest.raises(
            StateError, match=r"agent\.part\[1\] \(_thread\.lock\) cannot be copied"
        ):
            Holder([1, threading.Lock()]).clone()


class TestDiff:
    def test_a_diff_names_changed_fields_with_both_values(self) -> None:
        agent, other = MyAgent(), MyAgent()
        agent.call_count, other.call_count = 5, 10
        assert agent.diff(other) == {"added": {}, "removed": {}, "changed": {"call_count": (5, 10)}}

    def test_a_diff_names_added_and_removed_fields(self) -> None:
        agent, other = MyAgent(), MyAgent()
        agent.mine = 1  # type: ignore[attr-defined]
        other.theirs = 2  # type: ignore[attr-defined]
        assert agent.diff(other) == {"added": {"theirs": 2}, "removed": {"mine": 1}, "changed": {}}

    def test_a_diff_leaves_out_what_is_not_captured(self) -> None:
        agent, other = MyAgent(), MyAgent()
        other._cache["a"] = 1
        assert agent.diff(other) == NO_CHANGES

    def test_a_deep_diff_names_paths(self) -> None:
        agent, other = MyAgent(), MyAgent()
        agent.memory = [{"role": "user"}, {"role": "user"}]
        other.memory = [{"role": "user"}, {"role": "tool"}]
        assert agent.diff(other, deep=True)["changed"] == {"memory[1].role": ("user", "tool")}

    def test_a_diff_between_classes_says_so(self) -> None:
        changed = MyAgent().diff(PinnedAgent())["changed"]
        assert changed["__class__"] == ("MyAgent", "PinnedAgent")
