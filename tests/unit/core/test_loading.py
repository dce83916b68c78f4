"""Objects in objects: what is loaded in place, what is rebuilt, and by which class."""

import gc
from collections import OrderedDict, defaultdict, deque
from typing import Any

import pytest

from agent_checkpoint import (
    Checkpointable,
    MigrationError,
    StateError,
    register_migration,
    register_type,
)
from agent_checkpoint.core.state_codec import encode_state
from agent_checkpoint.core.stateful import LoadResult, StateDict
from tests.unit.core.agents import Holder, MyAgent, Remark, Skill, reloaded


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
        with pytest.raises(MigrationError, match=r"agent\.part has state version 9\.0 of Skill"):
            agent.load_state_dict(state)

    def test_an_own_dict_with_a_class_key_stays_data(self) -> None:
        data = {"__class__": "Skill", "__version__": "1.0", "name": "data"}
        assert reloaded(Holder([data, data]), Holder()).part == [data, data]
        assert reloaded(Holder(data), Holder(Skill())).part == data

    def test_an_object_as_a_key_is_refused_when_it_is_saved(self) -> None:
        for value in ({MyAgent(): 1}, {(1, MyAgent()): 1}, {MyAgent()}, {(MyAgent(),)}):
            with pytest.raises(StateError, match=r"agent\.part.* has a MyAgent as a dict key"):
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

        with pytest.raises(StateError, match=r"_checkpoint_version\(\) must work without"):
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
