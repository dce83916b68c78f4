"""The `@tool` decorator and its registry. Owns the declaration of a tool; does not record calls."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar, overload

from agent_checkpoint.errors import EffectConflictError, EffectError, InvalidInputError
from agent_checkpoint.options import check_option
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.current_session import current_session, open_sessions
from agent_checkpoint.session.tools.effect_kinds import BEHAVIOURS, EffectBehaviour, EffectKind
from agent_checkpoint.session.tools.invoke import OWNER_NAMES, split_arguments

F = TypeVar("F", bound=Callable[..., Any])

EFFECT_PARAMETER = "effect"
"""The parameter that receives the `EffectContext`."""

_TOOLS: dict[tuple[str, str], Tool] = {}
"""Registered tools, by name and defining module."""


_THREADS = (
    "Start threads with contextvars.copy_context().run if several sessions are open or a session "
    "was forked."
)


@dataclass(frozen=True)
class Tool:
    """The declaration of a tool."""

    name: str
    module: str
    function: Callable[..., Any]
    kind: EffectKind
    key: Callable[..., Any] | None
    verify: Callable[..., Any] | None
    undo: Callable[..., Any] | None
    approve: Callable[..., Any] | bool
    expires: float | None
    parameters: tuple[inspect.Parameter, ...]
    """The parameters of the function."""
    signature: inspect.Signature
    """The signature for callers, without `effect`."""
    is_method: bool
    takes_effect: bool

    @property
    def behaviour(self) -> EffectBehaviour:
        """How sessions treat its calls."""
        return BEHAVIOURS[self.kind]

    @property
    def is_external(self) -> bool:
        """Whether the tool has external side effects, which a rollback does not undo."""
        return self.behaviour.is_external

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function, or an object that is called as one."""
        call = getattr(type(self.function), "__call__", None)  # noqa: B004
        return any(map(inspect.iscoroutinefunction, (self.function, call)))

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the object that a method is called on, and the arguments by name.

        Raises:
            TypeError: the arguments do not match the signature.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        owner = named.pop(next(iter(named))) if self.is_method else None
        return owner, named

    def call(self, owner: Any, arguments: Mapping[str, Any], effect: Any) -> Any:
        """Call the function; arguments are those of `bind`. Raises what it raises."""
        named = dict(arguments)
        if self.is_method:
            named[self.parameters[0].name] = owner
        if self.takes_effect:
            named[EFFECT_PARAMETER] = effect
        args, kwargs = split_arguments(self.parameters, named)
        return self.function(*args, **kwargs)

    def keyword_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for `key=`, `verify=` and `undo=`, with `**kwargs` flattened."""
        named = dict(arguments)
        for parameter in self.parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                named = {**named.pop(parameter.name, {}), **named}
        return named


class _ToolReference(Protocol):
    """A ledger record that refers to a tool: an effect or a request."""

    tool: str
    module: str


def registered_tool(record: _ToolReference) -> Tool | None:
    """Return the registered tool of an effect or a request, or None.

    A tool that moved to another module is found by its name, unless the name is ambiguous: running
    another tool's `undo` would do harm.
    """
    exact = _TOOLS.get((record.tool, record.module))
    alike = [item for item in _TOOLS.values() if item.name == record.tool]
    return exact or (alike[0] if len(alike) == 1 else None)


def check_same_tool(tool: Tool, record: _ToolReference, words: str) -> None:
    """Reject a record of another registered tool with the same name.

    Raises EffectConflictError.
    """
    if record.module != tool.module and (record.tool, record.module) in _TOOLS:
        raise EffectConflictError(
            f"{words} belongs to the tool {short_repr(record.tool)} in {record.module}, and "
            f"{tool.module} has a tool of the same name. Rename one of them with name=."
        )


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *,
    effect: EffectKind = ...,
    key: Callable[..., Any] | None = ...,
    verify: Callable[..., Any] | None = ...,
    undo: Callable[..., Any] | None = ...,
    approve: Callable[..., Any] | bool = ...,
    expires: float | timedelta | None = ...,
    name: str | None = ...,
) -> Callable[[F], F]: ...
def tool(
    function: Any = None,
    *,
    effect: EffectKind = "local",
    key: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    undo: Callable[..., Any] | None = None,
    approve: Callable[..., Any] | bool = False,
    expires: float | timedelta | None = None,
    name: str | None = None,
) -> Any:
    """Declare a function, method or coroutine function as a tool; sessions record its calls.

    Args:
        function: the decorated function.
        effect: `local`: no external side effect, a rollback undoes it; `read`: only reads external
            data; `idempotent`: a repeat is harmless; `reversible`: `undo` compensates it;
            `irreversible`: it cannot be undone.
        key: receives the arguments and returns the idempotency key, such as an order id.
        verify: receives the arguments and returns the result if the effect happened, else None.
        undo: the compensation; receives the arguments, and `result` if it has that parameter.
        approve: True to require a person's approval of each call; or a function that receives the
            call and returns whether to run it.
        expires: how long a request can be answered and its answer used, in seconds.
        name: the name in checkpoints; the function's qualified name if not given.

    Raises:
        InvalidInputError: an option is invalid.
    """
    _check_options(effect, undo, verify, approve)
    _check_callables(key=key, verify=verify, undo=undo)
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidInputError(f"name must be a non-empty string, not {short_repr(name)}.")
    seconds = _expiry_seconds(expires)

    def decorate(function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(decorate(function.__func__))
        signature = _signature_of(function)
        parameters = dict(signature.parameters)
        first = next(iter(parameters), None)
        full_name = default_name(function)
        spec = Tool(
            name=name or full_name,
            module=getattr(function, "__module__", None) or "",
            function=function,
            kind=effect,
            key=key,
            verify=verify,
            undo=undo,
            approve=approve,
            expires=seconds,
            parameters=tuple(parameters.values()),
            signature=signature.replace(
                parameters=[item for item in parameters.values() if item.name != EFFECT_PARAMETER]
            ),
            is_method=first in OWNER_NAMES and "." in _qualified_name(function),
            takes_effect=EFFECT_PARAMETER in parameters,
        )
        _TOOLS[spec.name, spec.module] = spec
        wrapper = _session_wrapper(spec)
        wrapper.tool = spec
        return wrapper

    return decorate if function is None else decorate(function)


def local_tool(function: Callable[..., Any], name: str) -> Tool:
    """Return the declaration of a function without `@tool`: a local tool, not registered.

    Raises:
        InvalidInputError: the signature of the function is unknown.
    """
    signature = _signature_of(function)
    return Tool(
        name=name,
        module=getattr(function, "__module__", None) or "",
        function=function,
        kind="local",
        key=None,
        verify=None,
        undo=None,
        approve=False,
        expires=None,
        parameters=tuple(signature.parameters.values()),
        signature=signature,
        is_method=False,
        takes_effect=False,
    )


def default_name(function: Callable[..., Any]) -> str:
    """Return the name that a tool has in checkpoints if it is declared without `name=`."""
    return _qualified_name(function).rpartition("<locals>.")[2]


def _qualified_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _session_wrapper(spec: Tool) -> Any:
    """Return the wrapper that runs the tool in the current session."""
    if spec.is_async:

        @functools.wraps(spec.function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            session = current_session()
            if session is None:
                return await _call_without_session(spec, args, kwargs)
            return await session.arun(spec, args, kwargs)

        wrapper: Any = acall
    else:

        @functools.wraps(spec.function)
        def call(*args: Any, **kwargs: Any) -> Any:
            session = current_session()
            if session is None:
                return _call_without_session(spec, args, kwargs)
            return session.run(spec, args, kwargs)

        wrapper = call
    wrapper.__signature__ = spec.signature
    return wrapper


def _call_without_session(spec: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    others = open_sessions()
    if spec.is_external or spec.approve is not False:
        hint = "Call it within `with Session(…)`."
        if others:
            hint = "This thread belongs to none of the open sessions. " + _THREADS
        raise EffectError(
            f"{spec.name} has an external side effect or needs approval, and no session is active "
            f"to record it. {hint}"
        )
    for session in others:
        session.add_notice(
            f"{spec.name} was called in a thread without a session, so the call was not recorded. "
            + _THREADS
        )
    owner, arguments = spec.bind(args, kwargs)
    return spec.call(owner, arguments, None)


def _check_options(effect: str, undo: Any, verify: Any, approve: Any) -> None:
    check_option("effect", effect, EffectKind)
    behaviour = BEHAVIOURS[effect]
    if behaviour.is_compensable and undo is None:
        raise InvalidInputError('effect="reversible" needs undo=. Without it, use "irreversible".')
    if undo is not None and not behaviour.is_compensable:
        raise InvalidInputError(f'undo= needs effect="reversible", not {short_repr(effect)}.')
    if verify is not None and not behaviour.is_external:
        raise InvalidInputError(
            f"verify= needs a tool with external side effects, and this one is {effect}."
        )
    if not isinstance(approve, bool) and not callable(approve):
        raise InvalidInputError(
            f"approve must be True, False or a function, not {short_repr(approve)}."
        )


def _check_callables(**functions: Any) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidInputError(f"{name}= must be a function, not {short_repr(function)}.")


def _expiry_seconds(expires: Any) -> float | None:
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if seconds is None:
        return None
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        raise InvalidInputError(f"expires must be a number of seconds, not {short_repr(expires)}.")
    return float(seconds)


def _signature_of(function: Any) -> inspect.Signature:
    if not callable(function):
        raise InvalidInputError(f"@tool takes keyword options only, not {short_repr(function)}.")
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise InvalidInputError(
            f"{short_repr(function)} has no signature to inspect. Wrap it in a function."
        ) from error
