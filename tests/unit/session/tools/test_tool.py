"""@tool: what may be one, how it is called, and what it is without a session."""

import asyncio
import functools
import inspect
import math
from datetime import timedelta
from typing import Any, NamedTuple, get_args

import pytest

from agent_checkpoint import CheckpointManager, EffectError, InvalidInputError, Session, tool
from agent_checkpoint.session.tools.effect_kinds import BEHAVIOURS, EffectKind, behaviour_of
from agent_checkpoint.session.tools.invoke import invoke_by_name, run_if_awaitable
from agent_checkpoint.session.tools.tool import registered_tool


@pytest.fixture
def session() -> "Any":
    with Session("work", store=CheckpointManager()) as session:
        yield session


def arguments(session: Session) -> Any:
    return session.calls[-1]["arguments"]


# -- how it is called ----------------------------------------------------------------------------


def everything(a: int, /, b: int = 2, *rest: int, c: int, d: int = 4, **more: int) -> Any:
    return a, b, rest, c, d, more


CALLS: "list[tuple[tuple[int, ...], dict[str, int]]]" = [
    ((1,), {"c": 3}),
    ((1, 5), {"c": 3, "d": 6}),
    ((1, 5, 7, 8), {"c": 3, "e": 9}),
    ((1,), {"b": 5, "c": 3, "a": 9}),
]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_every_kind_of_parameter_arrives(session: Session, args: Any, kwargs: Any) -> None:
    assert tool(everything)(*args, **kwargs) == everything(*args, **kwargs)


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_it_arrives_the_same_without_a_session(args: Any, kwargs: Any) -> None:
    assert tool(everything)(*args, **kwargs) == everything(*args, **kwargs)


def test_arguments_are_recorded_by_name_with_defaults(session: Session) -> None:
    tool(everything)(1, 5, 7, c=3, e=9)
    assert arguments(session) == {
        "a": 1,
        "b": 5,
        "rest": (7,),
        "c": 3,
        "d": 4,
        "more": {"e": 9},
    }


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"x": 2}), ((), {"y": 2})]
)
def test_wrong_arguments_are_a_type_error_and_no_call(
    session: Session, args: Any, kwargs: Any
) -> None:
    @tool
    def one(x: int) -> int:
        return x

    with pytest.raises(TypeError):
        one(*args, **kwargs)
    assert len(session.calls) == 0


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    def sell(self, what: str, number: int = 1) -> str:
        return f"{self.name}: {number} {what}"

    @tool
    async def asell(self, what: str) -> str:
        await asyncio.sleep(0)
        return f"{self.name}: {what}"

    @staticmethod
    @tool
    def below_static(what: str) -> str:
        return what

    @tool
    @staticmethod
    def above_static(what: str) -> str:
        return what

    @classmethod
    @tool
    def below_class(cls, what: str) -> str:
        return f"{cls.__name__} {what}"

    @tool(effect="read")
    @classmethod
    def above_class(cls, what: str) -> str:
        return f"{cls.__name__} {what}"


def test_a_method_is_called_on_its_object(session: Session) -> None:
    assert Shop("A").sell("tea", number=2) == "A: 2 tea"
    assert Shop.sell(Shop("B"), "tea") == "B: 1 tea"
    assert arguments(session) == {"what": "tea", "number": 1}
    assert session.calls[-1]["tool"] == "Shop.sell"


def test_a_coroutine_method(session: Session) -> None:
    assert asyncio.run(Shop("A").asell("tea")) == "A: tea"
    assert session.calls[-1]["result"] == "A: tea"


@pytest.mark.parametrize("name", ["below_static", "above_static"])
@pytest.mark.parametrize("on", [Shop, Shop("A")])
def test_static_methods(session: Session, name: str, on: Any) -> None:
    assert getattr(on, name)("tea") == "tea"
    assert arguments(session) == {"what": "tea"}


@pytest.mark.parametrize("name", ["below_class", "above_class"])
@pytest.mark.parametrize("on", [Shop, Shop("A")])
def test_class_methods(session: Session, name: str, on: Any) -> None:
    assert getattr(on, name)("tea") == "Shop tea"
    assert arguments(session) == {"what": "tea"}


def test_a_partial_function_and_a_callable_object_are_tools(session: Session) -> None:
    class Adder:
        def __call__(self, x: int) -> int:
            return x + 1

    assert tool(Adder())(1) == 2
    assert session.calls[-1]["tool"] == "Adder"
    double = tool(name="double")(functools.partial(lambda y, x: x * y, 2))
    assert double(4) == 8
    assert arguments(session) == {"x": 4}


def test_a_result_that_has_not_run_is_refused(session: Session) -> None:
    async def later() -> int:
        return 1

    class Numbers:
        @tool
        def lazy(self) -> Any:
            yield from range(3)

        @tool(effect="irreversible")
        def unawaited(self) -> Any:
            return later()

    for call, words in (
        (Numbers().lazy, "lazy returned a generator, which has not run"),
        (Numbers().unawaited, "unawaited returned an awaitable, which has not run"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            call()
        assert words in session.calls[-1]["error"]
    assert [effect.status for effect in session.effects] == ["unknown"]


# -- what it looks like --------------------------------------------------------------------------


def test_it_keeps_its_name_and_documentation() -> None:
    @tool
    def search(query: str, limit: int = 3) -> int:
        """Search."""
        return limit

    assert search.__name__ == "search"
    assert search.__doc__ == "Search."
    assert search.__annotations__["query"] is str
    assert str(inspect.signature(search)) == "(query: str, limit: int = 3) -> int"


def test_a_coroutine_function_stays_one() -> None:
    @tool
    async def search() -> None:
        pass

    assert inspect.iscoroutinefunction(search)


def test_the_effect_is_hidden_from_the_signature() -> None:
    @tool(effect="irreversible")
    def mail(to: str, *, effect: Any) -> None:
        pass

    assert list(inspect.signature(mail).parameters) == ["to"]


def in_front(effect: Any, a: int, b: int) -> Any:
    return effect, a, b


def in_the_middle(a: int, effect: Any, b: int) -> Any:
    return effect, a, b


def positional_only(a: int, effect: Any, /, b: int) -> Any:
    return effect, a, b


def keyword_only(a: int, *, effect: Any, b: int) -> Any:
    return effect, a, b


def with_default(a: int, b: int, effect: Any = "none") -> Any:
    return effect, a, b


@pytest.mark.parametrize(
    "function", [in_front, in_the_middle, positional_only, keyword_only, with_default]
)
def test_the_effect_may_stand_anywhere(session: Session, function: Any) -> None:
    effect, a, b = tool(effect="idempotent")(function)(1, b=2)
    assert (a, b) == (1, 2)
    assert len(effect.key) == 40
    assert arguments(session) == {"a": 1, "b": 2}


@pytest.mark.parametrize("kind", ["local", "read"])
def test_where_there_is_none_it_is_none(session: Session, kind: str) -> None:
    assert tool(effect=kind)(in_the_middle)(1, 2) == (None, 1, 2)


def test_who_calls_cannot_give_the_effect(session: Session) -> None:
    with pytest.raises(TypeError):
        tool(effect="idempotent")(keyword_only)(1, b=2, effect="forged")


# -- without a session ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "read"])
def test_it_is_the_plain_function(kind: str) -> None:
    assert tool(effect=kind)(everything)(1, c=2)[0] == 1
    assert Shop("A").sell("tea") == "A: 1 tea"
    assert asyncio.run(Shop("A").asell("tea")) == "A: tea"
    assert Shop.above_static("tea") == "tea"
    assert Shop.above_class("tea") == "Shop tea"


def test_its_errors_are_its_own() -> None:
    @tool
    def fails() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fails()


@pytest.mark.parametrize(
    "options",
    [
        {"effect": "idempotent"},
        {"effect": "irreversible"},
        {"effect": "reversible", "undo": print},
        {"approve": True},
        {"approve": lambda question: True},
        {"effect": "read", "approve": True},
    ],
    ids=lambda options: "-".join(options),
)
def test_outside_effects_and_approvals_need_one(options: "dict[str, Any]") -> None:
    called = []

    @tool(**options)
    def act() -> None:
        called.append(1)

    @tool(**options)
    async def aact() -> None:
        called.append(1)

    with pytest.raises(EffectError, match=r"act has an external side effect.*with Session"):
        act()
    with pytest.raises(EffectError, match="Session"):
        asyncio.run(aact())
    assert called == []


def test_after_the_session_it_is_plain_again() -> None:
    with Session("work", store=CheckpointManager()) as session:
        pass
    tool(everything)(1, c=2)
    assert len(session.calls) == 0
    with pytest.raises(EffectError, match="session"):
        tool(effect="idempotent")(everything)(1, c=2)


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effect": "harmless"}, "'local', 'read', 'idempotent'"),
        ({"effect": None}, "effect must be"),
        ({"effect": "reversible"}, "needs undo="),
        ({"effect": "irreversible", "undo": print}, "undo= needs effect="),
        ({"undo": print}, "undo= needs effect="),
        ({"verify": print}, "verify= needs a tool with external side effects"),
        ({"effect": "read", "verify": print}, "verify= needs a tool with external side effects"),
        ({"approve": "yes"}, "approve must be True, False or a function"),
        ({"approve": 1}, "approve must be True, False or a function"),
        ({"effect": "idempotent", "key": "order_id"}, "key= must be a function"),
        ({"effect": "idempotent", "verify": "x"}, "verify= must be a function"),
        ({"effect": "reversible", "undo": "x"}, "undo= must be a function"),
        ({"expires": 0}, "expires must be a number of seconds"),
        ({"expires": -1}, "expires must be a number of seconds"),
        ({"expires": True}, "expires must be a number of seconds"),
        ({"expires": "5"}, "expires must be a number of seconds"),
        ({"expires": math.nan}, "expires must be a number of seconds"),
        ({"expires": math.inf}, "expires must be a number of seconds"),
        ({"expires": timedelta(0)}, "expires must be a number of seconds"),
        ({"name": ""}, "non-empty string"),
        ({"name": 3}, "non-empty string"),
    ],
)
def test_options_that_make_no_sense(options: "dict[str, Any]", words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        tool(**options)(everything)


def test_an_option_by_position_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="keyword options"):
        tool("irreversible")  # type: ignore[call-overload]


def test_what_tells_no_arguments_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="Wrap it"):
        tool(functools.partial(int, base=2))


@pytest.mark.parametrize(("given", "seconds"), [(5, 5), (0.5, 0.5), (timedelta(minutes=1), 60)])
def test_expires_is_seconds_or_a_timedelta(given: Any, seconds: float) -> None:
    made: Any = tool(approve=True, expires=given)(everything)
    assert made.tool.expires == seconds


@pytest.mark.parametrize("kind", BEHAVIOURS)
def test_what_is_outside(kind: str) -> None:
    undo = print if kind == "reversible" else None
    made: Any = tool(effect=kind, undo=undo)(everything)
    assert made.tool.is_external is (kind not in ("local", "read"))


class Named(NamedTuple):
    tool: str
    module: str


def defined(name: str, module: str, number: int = 0) -> Any:
    def numbered() -> int:
        return number

    numbered.__module__ = module
    return tool(name=name)(numbered)


def test_a_tool_is_known_by_its_name_and_module() -> None:
    search = defined("known", "a")
    assert registered_tool(Named("known", "a")) is search.tool
    assert registered_tool(Named("nothing of the kind", "a")) is None


def test_a_tool_that_has_moved_is_known() -> None:
    assert registered_tool(Named("moved", "__main__")) is None
    search = defined("moved", "a.package")
    assert registered_tool(Named("moved", "__main__")) is search.tool


def test_of_two_tools_with_one_name_none_is_guessed() -> None:
    one, two = defined("twice", "a"), defined("twice", "b")
    assert registered_tool(Named("twice", "a")) is one.tool
    assert registered_tool(Named("twice", "b")) is two.tool
    assert registered_tool(Named("twice", "c")) is None


def test_one_that_is_defined_anew_takes_the_place_of_the_first() -> None:
    first, second = defined("anew", "a", 1), defined("anew", "a", 2)
    assert registered_tool(Named("anew", "a")) is second.tool
    assert (first(), second()) == (1, 2)


# -- functions that get what they ask for --------------------------------------------------------

ASKED: "list[tuple[Any, Any]]" = [
    (lambda order, cents: (order, cents), (1, 2)),
    (lambda cents, order: (cents, order), (2, 1)),
    (lambda order: order, 1),
    (lambda: "nothing", "nothing"),
    (lambda order, /, cents: (order, cents), (1, 2)),
    (lambda *, cents: cents, 2),
    (lambda order, **rest: (order, rest), (1, {"cents": 2})),
    (lambda **rest: rest, {"order": 1, "cents": 2}),
    (lambda result: result, "R"),
    (lambda order, result: (order, result), (1, "R")),
    (lambda result, **rest: (result, rest), ("R", {"order": 1, "cents": 2})),
    (lambda charge: charge, "R"),
    (lambda charge, /: charge, "R"),
    (lambda order, charge: (order, charge), (1, "R")),
    (lambda order, flag=7: (order, flag), (1, 7)),
    (lambda flag=7, cents=0: (flag, cents), (7, 2)),
    (lambda effect: effect, "E"),
    (lambda *rest: rest, ()),
]


@pytest.mark.parametrize(("function", "found"), ASKED)
def test_undo_gets_those_arguments_that_it_takes(function: Any, found: Any) -> None:
    assert invoke_by_name(function, {"order": 1, "cents": 2}, result="R", effect="E") == found


@pytest.mark.parametrize(
    "function",
    [lambda one, two: 0, lambda self, order: 0, lambda cls: 0, lambda charge, **rest: 0],
)
def test_what_is_not_there_is_not_guessed(function: Any) -> None:
    with pytest.raises(TypeError):
        invoke_by_name(function, {"order": 1, "cents": 2}, result="R")


def test_verify_is_offered_no_result() -> None:
    with pytest.raises(TypeError):
        invoke_by_name(lambda charge: charge, {"order": 1}, effect="E")


def test_rest_parameters_are_offered_as_they_were_given(session: Session) -> None:
    seen = []

    def key(first: int, *rest: int, order: int, **more: int) -> Any:
        seen.append((first, rest, order, more))
        return order

    @tool(effect="idempotent", key=key)
    def act(first: int, *rest: int, **more: int) -> None:
        pass

    act(1, 2, 3, order=4, other=5)
    assert seen == [(1, (2, 3), 4, {"other": 5})]


def test_what_has_to_be_awaited_is() -> None:
    async def one() -> int:
        await asyncio.sleep(0)
        return 1

    async def inside() -> Any:
        return run_if_awaitable(one())

    assert run_if_awaitable(one()) == 1
    assert run_if_awaitable(2) == 2
    assert asyncio.run(inside()) == 1


def test_its_error_is_passed_on() -> None:
    async def fails() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        run_if_awaitable(fails())


def test_every_kind_of_effect_has_a_behaviour() -> None:
    assert tuple(BEHAVIOURS) == get_args(EffectKind)


def test_an_unknown_kind_in_a_ledger_counts_as_irreversible() -> None:
    assert behaviour_of("of a later version") == behaviour_of("irreversible")
