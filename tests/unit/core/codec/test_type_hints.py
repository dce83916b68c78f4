"""Classes that a class names in its type hints are known without being registered."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Optional, Union

import attrs
import pydantic
import pytest

from agent_checkpoint import Checkpointable, StateError
from agent_checkpoint.core.codec.type_hints import hinted_types
from agent_checkpoint.core.state_codec import encode_state
from tests.exact import alike, as_json, decode_state
from tests.unit.core import postponed


@dataclass
class Step:
    text: str
    inner: "Optional[Detail]" = None


@dataclass
class Detail:
    size: int


class Kind(enum.Enum):
    A = 1


class Flags(enum.Flag):
    X = 1
    Y = 2


class Pos(NamedTuple):
    x: int


@attrs.define
class Tray:
    content: Any


class Form(pydantic.BaseModel):
    title: str = ""


class Helper(Checkpointable):
    steps: "list[Step]"

    def __init__(self) -> None:
        self.steps = []


class HintingAgent(Checkpointable):
    steps: "list[Step]"
    kind: Optional[Kind]
    flags: "dict[str, tuple[Flags, ...]]"
    pos: Union[Pos, int, None]
    tray: Tray
    form: "Callable[[int], Form]"
    total: ClassVar[int] = 0
    helper: Helper

    def __init__(self) -> None:
        self.value: Any = None


VALUES = [
    Step("a", Detail(1)),
    Kind.A,
    Flags.X | Flags.Y,
    Pos(1),
    Tray([1]),
    Form(title="a"),
    [{"nested": (Step("b"), {Kind.A})}],
]


def through(agent: Any) -> Any:
    """Return a fresh agent of the same class that has loaded the agent's state from JSON text."""
    fresh = type(agent)()
    fresh.load_state_dict(decode_state(as_json(agent), "agent", fresh))
    return fresh


class TestHintedValues:
    @pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
    def test_values_of_hinted_classes_need_no_registration(self, value: Any) -> None:
        agent = HintingAgent()
        agent.value = value
        assert "$pickle" not in str(encode_state(agent, "agent"))
        assert alike(through(agent).value, value)

    def test_hints_of_hinted_classes_count_too(self) -> None:
        assert "Detail" in hinted_types(HintingAgent)

    def test_a_nested_object_brings_its_own_hints(self) -> None:
        class Outer(Checkpointable):
            def __init__(self) -> None:
                self.helper: Any = Helper()

        agent = Outer()
        agent.helper.steps = [Step("a", Detail(1))]
        assert "$pickle" not in str(encode_state(agent, "agent"))
        assert through(agent).helper.steps == [Step("a", Detail(1))]

    def test_hints_do_not_reach_into_objects_of_other_classes(self) -> None:
        class Unhinted(Checkpointable):
            def __init__(self) -> None:
                self.step = Step("a")

        agent = HintingAgent()
        agent.value = Unhinted()
        assert "$pickle" in str(encode_state(agent, "agent"))
        assert through(agent).value.step == Step("a")

    def test_hints_of_base_classes_count(self) -> None:
        class Derived(HintingAgent):
            more: int

        agent = Derived()
        agent.value = Step("a")
        assert through(agent).value == Step("a")

    def test_without_the_class_at_hand_the_type_is_named(self) -> None:
        tree = {"$state": {"value": {"$type:Step": {"text": "a"}}, "__class__": "Elsewhere"}}
        with pytest.raises(StateError, match=r"^agent\.value is of the type 'Step'"):
            decode_state(tree, "agent")

    def test_a_hint_vouches_only_for_kinds_that_can_be_taken_apart(self) -> None:
        class Client:
            pass

        class WithClient(Checkpointable):
            client: Client

        tree = {"$state": {"client": {"$type:Client": {}}, "__class__": "WithClient"}}
        with pytest.raises(StateError, match="'Client', which is not registered"):
            decode_state(tree, "agent", WithClient())


class TestPostponedAnnotations:
    def test_annotations_that_are_texts_are_read(self) -> None:
        agent = postponed.Postponed()
        agent.items = [postponed.Item(1)]
        assert "$pickle" not in str(encode_state(agent, "agent"))
        assert through(agent).items == [postponed.Item(1)]

    def test_one_annotation_that_cannot_be_read_does_not_hide_the_others(self) -> None:
        agent = postponed.HalfReadable()
        agent.items = [postponed.Item(1)]
        assert "$pickle" not in str(encode_state(agent, "agent"))
        assert through(agent).items == [postponed.Item(1)]

    def test_nor_those_of_base_classes(self) -> None:
        assert "Item" in hinted_types(postponed.FurtherDown)


class TestCollecting:
    def test_builtins_are_left_out(self) -> None:
        class Simple(Checkpointable):
            a: int
            b: "dict[str, list[float]]"

        assert not hinted_types(Simple)

    def test_a_class_without_hints_has_none(self) -> None:
        class Bare(Checkpointable):
            pass

        assert not hinted_types(Bare)

    def test_a_name_of_two_classes_is_left_out(self) -> None:
        @dataclass
        class Step:
            other: int

        class Torn(Checkpointable):
            one: Step
            two: "tuple[postponed.Item, Any]"
            three: HintingAgent

        found = hinted_types(Torn)
        assert "Step" not in found
        assert found["Item"] is postponed.Item

    def test_classes_that_refer_to_each_other_end(self) -> None:
        assert hinted_types(postponed.Ring)["Chain"] is postponed.Chain

    def test_results_of_callables_count_and_their_parameters_do_not(self) -> None:
        class Calling(Checkpointable):
            hook: Callable[[Form], Detail]

        assert set(hinted_types(Calling)) == {"Detail"}
