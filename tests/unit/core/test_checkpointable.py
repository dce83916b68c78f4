"""Objects to states and back: what design section 2.1 promises."""

import copy
import gc
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
    Stateful,
    StateMismatchError,
    register_alias,
    register_migration,
    register_type,
)
from agent_checkpoint.core.codec import decode_state, encode_state
from agent_checkpoint.core.stateful import LoadResult, StateDict
from tests.exact import as_json

NO_CHANGES: "dict[str, Any]" = {"added": {}, "removed": {}, "changed": {}}


class MyAgent(Checkpointable):
    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.config: dict[str, Any] = {}
        self.call_count = 0
        self._cache: dict[str, Any] = {}


class PinnedAgent(Checkpointable):
    def __init__(self) -> None:
        self.memory: list[Any] = []
        self.config: dict[str, Any] = {}
        self.call_count = 0
        self._cache: dict[str, Any] = {}

    def _checkpoint_fields(self) -> "list[str]":
        return ["memory", "call_count"]

    def _checkpoint_version(self) -> str:
        return "2.0"


class Holder(Checkpointable):
    """Has one attribute, `part`, of any kind."""

    def __init__(self, part: Any = None) -> None:
        self.part = part


class Skill(Checkpointable):
    def __init__(self, name: str = "read", level: int = 1) -> None:
        self.name = name
        self.level = level
        self._client = object()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skill) and (self.name, self.level) == (other.name, other.level)

    __hash__ = None  # type: ignore[assignment]


def reloaded(agent: Any, fresh: Any) -> Any:
    """Return `fresh` after it has taken over the agent's state, by way of JSON text."""
    fresh.load_state_dict(decode_state(as_json(agent), "agent", fresh))
    return fresh


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
        with pytest.raises(StateMismatchError, match="is a MyAgent.*'PinnedAgent'"):
            MyAgent().load_state_dict(PinnedAgent().state_dict())

    def test_a_state_of_a_renamed_class_is_taken(self) -> None:
        register_alias("OldName", "MyAgent")
        agent = MyAgent()
        agent.load_state_dict({"call_count": 4, "__class__": "OldName", "__version__": "1.0"})
        assert agent.call_count == 4

    def test_a_state_newer_than_the_code_is_refused(self) -> None:
        with pytest.raises(MigrationError, match=r"2\.1, newer than the code, which is at 2\.0"):
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
        with pytest.raises(StateMismatchError, match="agent needs a state, a dict"):
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


class Guarded(Checkpointable):
    """Refuses a negative `b`, in the middle of its fields."""

    def __init__(self) -> None:
        self.a: Any = 1
        self.b = 1
        self.c: Any = 1

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "b" and value < 0:
            raise ValueError("b is negative")
        super().__setattr__(name, value)


class TestAtomicLoad:
    def test_a_failing_assignment_leaves_the_agent_as_it_was(self) -> None:
        agent = Guarded()
        mine = agent.a = ["mine"]
        with pytest.raises(StateError, match=r"agent\.b cannot be assigned \(b is negative\)"):
            agent.load_state_dict({"a": ["new"], "b": -1, "c": 2})
        assert vars(agent) == {"a": ["mine"], "b": 1, "c": 1}
        assert agent.a is mine

    def test_attributes_that_were_not_there_are_gone_again(self) -> None:
        agent = Guarded()
        state = {"fresh": 1, "b": -1, "__class__": "Guarded"}
        with pytest.raises(StateError):
            agent.load_state_dict(state)
        assert vars(agent) == {"a": 1, "b": 1, "c": 1}

    def test_a_default_of_the_class_is_not_left_on_the_instance(self) -> None:
        class WithDefault(Guarded):
            limit = 3

        agent = WithDefault()
        with pytest.raises(StateError):
            agent.load_state_dict({"limit": 9, "b": -1, "__class__": "WithDefault"})
        assert vars(agent) == {"a": 1, "b": 1, "c": 1}
        assert agent.limit == 3

    def test_slots_that_were_empty_are_empty_again(self) -> None:
        class Slotted(Checkpointable):
            __slots__ = ("first", "second")

            def __setattr__(self, name: str, value: Any) -> None:
                if value == "bad":
                    raise ValueError(name)
                super().__setattr__(name, value)

        agent = Slotted()
        with pytest.raises(StateError):
            agent.load_state_dict({"first": 1, "second": "bad", "__class__": "Slotted"})
        assert not hasattr(agent, "first")

    def test_a_property_without_a_setter_is_refused(self) -> None:
        class ReadOnly(Checkpointable):
            def __init__(self) -> None:
                self.a = 1

            def _checkpoint_fields(self) -> "list[str]":
                return ["a", "double"]

            @property
            def double(self) -> int:
                return self.a * 2

        agent = ReadOnly()
        with pytest.raises(StateError, match=r"agent\.double cannot be assigned"):
            agent.load_state_dict({"a": 5, "double": 10})
        assert vars(agent) == {"a": 1}

    def test_a_failing_migration_leaves_the_agent_as_it_was(self) -> None:
        def fail(state: "dict[str, Any]") -> None:
            state["memory"].append("half done")
            raise KeyError("calls")

        register_migration("PinnedAgent", from_version="1.0", fn=fail)
        agent = PinnedAgent()
        state = {"memory": [], "__class__": "PinnedAgent", "__version__": "1.0"}
        with pytest.raises(MigrationError, match=r"PinnedAgent from 1\.0 failed \(KeyError"):
            agent.load_state_dict(state)
        assert agent.memory == []
        assert state["memory"] == []

    def test_a_nested_object_that_refuses_undoes_the_whole_load(self) -> None:
        class Pair(Checkpointable):
            def __init__(self) -> None:
                self.before = Skill()
                self.guarded = Guarded()
                self.after = 1

        agent = Pair()
        state = agent.state_dict()
        state["before"]["level"] = 9
        state["guarded"]["a"] = 9
        state["guarded"]["b"] = -9
        state["after"] = 9
        with pytest.raises(StateError, match=r"agent\.guarded\.b cannot be assigned"):
            agent.load_state_dict(state)
        assert (agent.before.level, vars(agent.guarded), agent.after) == (
            1,
            {"a": 1, "b": 1, "c": 1},
            1,
        )

    def test_a_nested_object_of_an_unknown_class_refuses_the_whole_load(self) -> None:
        agent = Holder(1)
        nested = StateDict({"__class__": "NobodyDefinesThis"})
        with pytest.raises(StateError, match=r"agent\.part\[1\].*'NobodyDefinesThis'"):
            agent.load_state_dict({"more": 2, "part": [0, nested], "__class__": "Holder"})
        assert vars(agent) == {"part": 1}

    def test_a_rebuilt_object_that_refuses_leaves_the_agent_as_it_was(self) -> None:
        agent = Holder(1)
        nested = StateDict({"b": -1, "__class__": "Guarded"})
        with pytest.raises(StateError, match=r"agent\.part\[0\] cannot be rebuilt.*b is negative"):
            agent.load_state_dict({"part": [nested]})
        assert agent.part == 1

    def test_a_foreign_part_is_taken_back_when_a_later_one_fails(self) -> None:
        class Mixed(Guarded):
            def __init__(self) -> None:
                self.module = Module()
                super().__init__()

        agent = Mixed()
        state = agent.state_dict()
        state["module"]["weights"] = [9.0]
        state["b"] = -1
        with pytest.raises(StateError):
            agent.load_state_dict(state)
        assert agent.module.weights == [0.0]

    def test_taking_back_goes_on_when_one_step_cannot_be_taken_back(self) -> None:
        class Ratchet(Guarded):
            """Its `a` can only grow, so that setting it back fails."""

            def __setattr__(self, name: str, value: Any) -> None:
                if name == "a" and value < getattr(self, "a", 0):
                    raise ValueError("a shrinks")
                super().__setattr__(name, value)

        agent = Ratchet()
        with pytest.raises(StateError, match="b is negative"):
            agent.load_state_dict({"c": 5, "a": 5, "b": -1})
        assert agent.c == 1


class TestNested:
    def test_a_nested_object_is_a_state_dict_of_its_own(self) -> None:
        state = Holder(Skill("write", 2)).state_dict()
        assert type(state["part"]) is StateDict
        assert state["part"] == {
            "name": "write",
            "level": 2,
            "__version__": "1.0",
            "__class__": "Skill",
        }

    def test_an_attribute_that_exists_is_loaded_in_place(self) -> None:
        agent = Holder(Skill("write", 2))
        fresh = Holder(Skill())
        kept, client = fresh.part, fresh.part._client
        reloaded(agent, fresh)
        assert fresh.part is kept
        assert fresh.part == Skill("write", 2)
        assert fresh.part._client is client

    def test_an_attribute_that_does_not_exist_is_rebuilt(self) -> None:
        fresh = reloaded(Holder(Skill("write", 2)), Holder(None))
        assert fresh.part == Skill("write", 2)
        assert not hasattr(fresh.part, "_client")

    @pytest.mark.parametrize(
        "make",
        [
            lambda skill: [skill, 1],
            lambda skill: (skill, 1),
            lambda skill: {"key": skill, 5: 1},
            lambda skill: deque([skill], maxlen=3),
            lambda skill: OrderedDict(key=skill),
            lambda skill: defaultdict(list, key=skill),
            lambda skill: [{"deep": (skill,)}],
        ],
    )
    @pytest.mark.parametrize("by_json", [False, True])
    def test_an_object_in_a_container_is_rebuilt(self, make: Any, by_json: bool) -> None:
        agent = Holder(make(Skill("write", 2)))
        fresh = Holder()
        if by_json:
            reloaded(agent, fresh)
        else:
            fresh.load_state_dict(agent.state_dict())
        assert fresh.part == agent.part
        assert type(fresh.part) is type(agent.part)

    def test_an_object_in_a_container_is_a_state_in_the_state(self) -> None:
        state = Holder([{"a": (Skill(),)}]).state_dict()
        assert type(state["part"][0]["a"][0]) is StateDict

    def test_an_object_in_a_registered_dataclass_is_rebuilt(self) -> None:
        register_type(Remark)
        fresh = reloaded(Holder(Remark(Skill("write", 2))), Holder())
        assert fresh.part == Remark(Skill("write", 2))

    def test_an_object_in_an_unregistered_dataclass_is_rebuilt(self) -> None:
        fresh = reloaded(Holder(Remark(Skill("write", 2))), Holder())
        assert fresh.part == Remark(Skill("write", 2))

    def test_an_object_in_a_dataclass_is_not_shared_with_the_state(self) -> None:
        agent = Holder(Remark(Skill()))
        state = agent.state_dict()
        agent.part.content.level = 9
        assert state["part"].content.level == 1

    def test_an_attribute_may_hold_an_object_of_another_class(self) -> None:
        fresh = reloaded(Holder(Skill("write", 2)), Holder(MyAgent()))
        assert fresh.part == Skill("write", 2)

    def test_an_attribute_may_become_and_cease_to_be_an_object(self) -> None:
        assert reloaded(Holder(None), Holder(Skill())).part is None
        assert reloaded(Holder(Skill()), Holder(None)).part == Skill()

    def test_objects_nest_in_objects(self) -> None:
        agent = Holder(Holder([Holder(Skill("deep"))]))
        fresh = reloaded(agent, Holder())
        assert fresh.part.part[0].part == Skill("deep")

    def test_a_nested_object_in_a_list_is_migrated(self) -> None:
        class Versioned(Checkpointable):
            def _checkpoint_version(self) -> str:
                return "2.0"

        register_migration("Versioned", from_version="1.0", fn=lambda state: {"new": state["old"]})
        old = StateDict({"old": 5, "__class__": "Versioned", "__version__": "1.0"})
        agent = Holder()
        agent.load_state_dict({"part": [old]})
        assert vars(agent.part[0]) == {"new": 5}

    def test_a_nested_object_in_place_is_migrated(self) -> None:
        class Upgraded(Checkpointable):
            def __init__(self) -> None:
                self.new = 0

            def _checkpoint_version(self) -> str:
                return "2.0"

        register_migration("Upgraded", from_version="1.0", fn=lambda state: {"new": state["old"]})
        agent = Holder(Upgraded())
        old = StateDict({"old": 5, "__class__": "Upgraded", "__version__": "1.0"})
        agent.load_state_dict({"part": old})
        assert agent.part.new == 5

    def test_a_nested_object_newer_than_the_code_is_named_by_its_path(self) -> None:
        agent = Holder(Skill())
        state = agent.state_dict()
        state["part"]["__version__"] = "9.0"
        with pytest.raises(MigrationError, match=r"agent\.part is a state of Skill 9\.0"):
            agent.load_state_dict(state)

    def test_an_own_dict_with_a_class_key_stays_data(self) -> None:
        data = {"__class__": "Skill", "__version__": "1.0", "name": "data"}
        assert reloaded(Holder([data, data]), Holder()).part == [data, data]
        assert reloaded(Holder(data), Holder(Skill())).part == data

    def test_an_object_as_a_key_is_refused_when_it_is_saved(self) -> None:
        for value in ({MyAgent(): 1}, {(1, MyAgent()): 1}, {MyAgent()}, {(MyAgent(),)}):
            with pytest.raises(StateError, match=r"agent\.part.* has a MyAgent as a key"):
                encode_state(Holder(value), "agent")

    def test_nested_load_state_dict_overrides_are_called(self) -> None:
        class Loud(Checkpointable):
            def __init__(self) -> None:
                self.value = 0
                self._loaded = 0

            def load_state_dict(self, state: Any, strict: bool = False) -> LoadResult:
                self._loaded += 1
                return super().load_state_dict(state, strict)

        agent = Holder(Loud())
        state = agent.state_dict()
        state["part"]["value"] = 3
        agent.load_state_dict(state)
        assert (agent.part.value, agent.part._loaded) == (3, 1)


@dataclass
class Remark:
    content: Any
    tags: "list[str]" = field(default_factory=list)


class TestHooks:
    def test_checkpoint_new_rebuilds_an_object(self) -> None:
        class Connection(Checkpointable):
            def __init__(self, host: str) -> None:
                self.host = host
                self._socket = f"connected to {host}"

            @classmethod
            def _checkpoint_new(cls, state: "dict[str, Any]") -> "Connection":
                return cls(state["host"])

        fresh = reloaded(Holder([Connection("example.org")]), Holder())
        assert fresh.part[0]._socket == "connected to example.org"

    def test_checkpoint_new_gets_a_migrated_state(self) -> None:
        seen: list[Any] = []

        class Remade(Checkpointable):
            def _checkpoint_version(self) -> str:
                return "3.0"

            @classmethod
            def _checkpoint_new(cls, state: "dict[str, Any]") -> "Remade":
                seen.append(dict(state))
                return cls()

        register_migration("Remade", from_version="1.0", fn=lambda state: {**state, "x": 1})
        old = StateDict({"__class__": "Remade", "__version__": "1.0"})
        Holder().load_state_dict({"part": [old]})
        assert seen == [{"__class__": "Remade", "__version__": "3.0", "x": 1}]

    def test_a_failing_checkpoint_new_is_named(self) -> None:
        class Unwilling(Checkpointable):
            @classmethod
            def _checkpoint_new(cls, state: "dict[str, Any]") -> "Unwilling":
                raise OSError("no network")

        with pytest.raises(StateError, match=r"agent\.part\[0\] cannot be rebuilt as Unwilling"):
            reloaded(Holder([Unwilling()]), Holder())

    def test_init_does_not_run_when_an_object_is_rebuilt(self) -> None:
        ran: list[int] = []

        class Busy(Checkpointable):
            def __init__(self) -> None:
                ran.append(1)

        reloaded(Holder([Busy()]), Holder())
        assert ran == [1]

    def test_checkpoint_name_as_a_class_method(self) -> None:
        class Tool(Checkpointable):
            @classmethod
            def _checkpoint_name(cls) -> str:
                return "web.Tool"

        agent = Holder([Tool()])
        assert agent.state_dict()["part"][0]["__class__"] == "web.Tool"
        assert type(reloaded(agent, Holder()).part[0]) is Tool

    def test_checkpoint_name_as_an_instance_method(self) -> None:
        class Tool(Checkpointable):
            def _checkpoint_name(self) -> str:  # type: ignore[override]
                return "shell.Tool"

        agent = Holder([Tool()])
        assert Tool().state_dict()["__class__"] == "shell.Tool"
        assert type(reloaded(agent, Holder()).part[0]) is Tool

    def test_classes_of_one_name_are_told_apart_by_checkpoint_name(self) -> None:
        def make(name: str) -> type:
            class Twin(Checkpointable):
                @classmethod
                def _checkpoint_name(cls) -> str:
                    return name

            return Twin

        first, second = make("first"), make("second")
        fresh = reloaded(Holder([first(), second()]), Holder())
        assert [type(part) for part in fresh.part] == [first, second]

    def test_an_ambiguous_name_is_refused_at_load(self) -> None:
        class Here:
            class Ambiguous(Checkpointable):
                pass

        class There:
            class Ambiguous(Checkpointable):
                pass

        agent = Holder([Here.Ambiguous()])
        with pytest.raises(StateError) as caught:
            reloaded(agent, Holder())
        for words in ("agent.part[0]", "Here.Ambiguous", "There.Ambiguous", "_checkpoint_name()"):
            assert words in str(caught.value)

    def test_a_direct_attribute_is_loaded_in_place_even_if_its_name_is_ambiguous(self) -> None:
        class Here:
            class Doubtful(Checkpointable):
                def __init__(self, value: int = 0) -> None:
                    self.value = value

        class There:
            class Doubtful(Checkpointable):
                pass

        assert There.Doubtful is not Here.Doubtful
        assert reloaded(Holder(Here.Doubtful(3)), Holder(Here.Doubtful())).part.value == 3

    def test_a_class_that_is_gone_makes_no_name_ambiguous(self) -> None:
        def define() -> type:
            class Fleeting(Checkpointable):
                pass

            return Fleeting

        class Keep:
            class Fleeting(Checkpointable):
                pass

        define()
        gc.collect()
        assert type(reloaded(Holder([Keep.Fleeting()]), Holder()).part[0]) is Keep.Fleeting

    def test_a_version_that_needs_an_instance_is_refused_when_rebuilding(self) -> None:
        class Layout(Checkpointable):
            def __init__(self) -> None:
                self.layout = "1.0"

            def _checkpoint_version(self) -> str:
                return self.layout

        with pytest.raises(StateError, match=r"_checkpoint_version\(\) must do without"):
            reloaded(Holder([Layout()]), Holder())


class HintedTool(Checkpointable):
    pass


def other_tool() -> "type[Checkpointable]":
    """Return a class whose Python name is HintedTool too, and whose checkpoint name is not."""

    class HintedTool(Checkpointable):
        @classmethod
        def _checkpoint_name(cls) -> str:
            return "other.HintedTool"

    return HintedTool


class TestHintedClasses:
    def test_a_hint_decides_between_classes_of_one_name(self) -> None:
        class Here:
            class Wanted(Checkpointable):
                pass

        class There:
            class Wanted(Checkpointable):
                pass

        class Chooser(Checkpointable):
            part: "list[Any]"
            wanted: There.Wanted

            def __init__(self) -> None:
                self.part = []

        assert Here.Wanted is not There.Wanted
        agent = Chooser()
        agent.part = [There.Wanted()]
        assert type(reloaded(agent, Chooser()).part[0]) is There.Wanted

    def test_a_hint_of_the_same_python_name_does_not_override_the_checkpoint_name(self) -> None:
        other = other_tool()

        class Hinting(Checkpointable):
            part: "list[Any]"
            tool: other  # type: ignore[valid-type]

            def __init__(self, part: Any = ()) -> None:
                self.part = list(part)

        fresh = reloaded(Hinting([HintedTool(), other()]), Hinting())
        assert [type(part) for part in fresh.part] == [HintedTool, other]

    def test_hinted_types_of_an_ambiguous_but_hinted_class_are_known(self) -> None:
        class Here:
            class Vouched(Checkpointable):
                pass

        class There:
            class Vouched(Checkpointable):
                remark: Remark

                def __init__(self) -> None:
                    self.remark = Remark("kept")

        class Voucher(Checkpointable):
            parts: "list[Any]"
            hint: There.Vouched

            def __init__(self) -> None:
                self.parts = []

        assert Here.Vouched is not There.Vouched
        agent = Voucher()
        agent.parts = [There.Vouched()]
        assert reloaded(agent, Voucher()).parts[0].remark == Remark("kept")


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
            __slots__ = "value"  # noqa: PLC0205

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

    def test_a_value_that_cannot_be_copied_is_named(self) -> None:
        with pytest.raises(StateError, match=r"agent\.part\[1\] cannot be copied"):
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


class Module:
    """A Stateful of another kind, as in torch: an own class of mapping, strict by default."""

    def __init__(self) -> None:
        self.weights = [0.0]

    def state_dict(self) -> "OrderedDict[str, Any]":
        return OrderedDict(weights=list(self.weights))

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        if strict and set(state_dict) != {"weights"}:
            raise KeyError(f"unexpected keys {sorted(state_dict)}")
        self.weights = list(state_dict["weights"])


class StateModule:
    """As in AgentScope 1.x: its state is its live attributes, and it keeps what it is given."""

    def __init__(self) -> None:
        self.content: list[Any] = []

    def state_dict(self) -> "dict[str, Any]":
        return {"content": self.content}

    def load_state_dict(self, state_dict: "dict[str, Any]", strict: bool = True) -> None:
        self.content = state_dict["content"]


class TestForeignStatefuls:
    def test_a_module_is_captured_by_its_own_method(self) -> None:
        state = Holder(Module()).state_dict()
        assert state["part"] == {"weights": [0.0]}
        assert "__class__" not in state["part"]

    def test_a_module_is_loaded_in_place_by_its_own_method(self) -> None:
        agent, fresh = Holder(Module()), Holder(Module())
        agent.part.weights = [1.5]
        kept = fresh.part
        reloaded(agent, fresh)
        assert fresh.part is kept
        assert fresh.part.weights == [1.5]

    def test_a_module_gets_a_plain_dict(self) -> None:
        class Picky(Module):
            def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
                assert type(state_dict) is dict
                super().load_state_dict(state_dict, strict)

        agent = Holder(Picky())
        reloaded(agent, agent)

    def test_a_module_that_is_not_there_cannot_be_made(self) -> None:
        fresh = Holder(None)
        with pytest.raises(StateError, match=r"agent\.part .*cannot be made anew"):
            reloaded(Holder(Module()), fresh)
        assert fresh.part is None

    def test_a_module_that_refuses_leaves_all_as_it_was(self) -> None:
        agent = Holder(Module())
        with pytest.raises(StateError, match=r"agent\.part refuses the state"):
            agent.load_state_dict({"more": 1, "part": StateDict(bias=1), "__class__": "Holder"})
        assert agent.part.weights == [0.0]
        assert not hasattr(agent, "more")

    def test_a_module_that_fails_half_way_is_put_back(self) -> None:
        class HalfWay(Module):
            def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
                super().load_state_dict(state_dict, strict)
                if state_dict["weights"] == [9.0]:
                    raise RuntimeError("shape")

        agent = Holder(HalfWay())
        with pytest.raises(StateError, match="shape"):
            agent.load_state_dict({"part": StateDict(weights=[9.0])})
        assert agent.part.weights == [0.0]

    def test_live_values_of_a_module_do_not_show_in_the_state(self) -> None:
        agent = Holder(StateModule())
        state = agent.state_dict()
        agent.part.content.append(1)
        assert state["part"] == {"content": []}

    def test_a_module_that_keeps_what_it_is_given_shares_nothing_with_the_state(self) -> None:
        agent = Holder(StateModule())
        state = agent.state_dict()
        agent.load_state_dict(state)
        agent.part.content.append(1)
        assert state["part"] == {"content": []}

    def test_a_module_with_live_values_is_put_back(self) -> None:
        class Failing(Guarded):
            def __init__(self) -> None:
                self.module = StateModule()
                super().__init__()

        agent = Failing()
        agent.module.content = [1]
        state = {"module": StateDict(content=[2]), "b": -1}
        with pytest.raises(StateError):
            agent.load_state_dict(state)
        assert agent.module.content == [1]

    def test_a_module_whose_state_dict_fails_is_named(self) -> None:
        class Broken(Module):
            def state_dict(self) -> Any:
                raise ValueError("on the GPU")

        with pytest.raises(StateError, match=r"agent\.part has a state_dict\(\) that failed"):
            Holder(Broken()).state_dict()

    def test_keys_that_are_not_text_come_back(self) -> None:
        class Optimizer(StateModule):
            def state_dict(self) -> "dict[Any, Any]":
                return {"content": self.content, 0: {"step": 1}}

        fresh = reloaded(Holder(Optimizer()), Holder(Optimizer()))
        assert fresh.part.content == []


class TestProtocol:
    @pytest.mark.parametrize("value", [MyAgent(), Module(), StateModule()])
    def test_anything_with_both_methods_is_a_stateful(self, value: Any) -> None:
        assert isinstance(value, Stateful)

    @pytest.mark.parametrize("value", [object(), {}, 5, None])
    def test_anything_else_is_not(self, value: Any) -> None:
        assert not isinstance(value, Stateful)


class TestPathsInErrors:
    def test_an_unpicklable_value_is_named_by_its_path(self) -> None:
        agent = MyAgent()
        agent.memory = [1, 2, 3, {"client": threading.Lock()}]
        with pytest.raises(StateError, match=r"^agent\.memory\[3\]\.client cannot be captured"):
            encode_state(agent, "agent")

    def test_an_uncopyable_value_is_named_by_its_path(self) -> None:
        agent = MyAgent()
        agent.memory = [1, 2, 3, {"client": threading.Lock()}]
        with pytest.raises(StateError, match=r"^agent\.memory\[3\]\.client cannot be copied"):
            agent.state_dict()

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_a_cycle_is_named_by_its_path(self, capture: Any) -> None:
        agent = MyAgent()
        agent.memory = [1, {"self": agent.memory}]
        agent.memory[1]["self"] = agent.memory
        with pytest.raises(StateError, match=r"^agent\.memory\[1\]\.self refers back"):
            capture(agent)

    @pytest.mark.parametrize(
        "capture", [Checkpointable.state_dict, lambda a: encode_state(a, "agent")]
    )
    def test_a_cycle_of_objects_is_named_by_its_path(self, capture: Any) -> None:
        parent = Holder(Holder())
        parent.part.part = [parent]
        with pytest.raises(StateError, match=r"^agent\.part\.part\[0\] refers back"):
            capture(parent)

    def test_a_cycle_of_slotted_objects_is_named_by_its_path(self) -> None:
        class Link(Checkpointable):
            __slots__ = ("next",)

        link = Link()
        link.next = deque([link])
        with pytest.raises(StateError, match=r"^agent\.next\[0\] refers back"):
            link.state_dict()

    def test_the_same_value_twice_is_no_cycle(self) -> None:
        shared = [1]
        assert reloaded(Holder([shared, shared]), Holder()).part == [[1], [1]]

    def test_values_that_are_shared_many_times_are_searched_for_cycles_once(self) -> None:
        value: list[Any] = []
        for _ in range(200):  # a tree of 2 ** 200 paths
            value = [value, value]
        with pytest.raises(StateError, match="nested deeper than 100 levels"):
            encode_state(Holder(value), "agent")
