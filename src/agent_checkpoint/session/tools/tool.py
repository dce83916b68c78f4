"""`@tool`: functions that an agent may call. Owns what is said about them; records no call."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar, overload

from agent_checkpoint.errors import EffectConflictError, EffectError, InvalidInputError
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.current_session import current_session, open_sessions
from agent_checkpoint.session.tools.invoke import OWNER_NAMES, split_arguments

F = TypeVar("F", bound=Callable[..., Any])

LOCAL, READ = "local", "read"
IDEMPOTENT, REVERSIBLE, IRREVERSIBLE = "idempotent", "reversible", "irreversible"
KINDS = (LOCAL, READ, IDEMPOTENT, REVERSIBLE, IRREVERSIBLE)
EXTERNAL_KINDS = frozenset({IDEMPOTENT, REVERSIBLE, IRREVERSIBLE})

EFFECT_PARAMETER = "effect"
"""The parameter by which a tool is told about the effect that it is to make."""

_TOOLS: dict[tuple[str, str], Tool] = {}
"""By their names and the modules that define them."""


_THREADS = (
    "Start threads with contextvars.copy_context().run, once several sessions are open or one was "
    "forked."
)


@dataclass(frozen=True)
class Tool:
    """What is known of a tool."""

    name: str
    module: str
    function: Callable[..., Any]
    kind: str
    key: Callable[..., Any] | None
    verify: Callable[..., Any] | None
    undo: Callable[..., Any] | None
    approve: Callable[..., Any] | bool
    expires: float | None
    parameters: tuple[inspect.Parameter, ...]
    """Those of the function itself."""
    signature: inspect.Signature
    """As it is called, without `effect`."""
    is_method: bool
    takes_effect: bool

    @property
    def is_external(self) -> bool:
        """Whether it changes what no checkpoint holds."""
        return self.kind in EXTERNAL_KINDS

    @property
    def is_async(self) -> bool:
        """Whether it is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the object that a method is called on, and the arguments by name.

        Raises:
            TypeError: they do not fit the function, as Python would say.
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
        """Return the arguments as `key`, `verify` and `undo` get them: `**kwargs` one by one."""
        named = dict(arguments)
        for parameter in self.parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                named = {**named.pop(parameter.name, {}), **named}
        return named


class _ToolReference(Protocol):
    """An effect or a request, which names its tool."""

    tool: str
    module: str


def registered_tool(record: _ToolReference) -> Tool | None:
    """Return the tool of an effect or a request, if it is known here.

    One of the same name may have moved to another module; between two of them nothing is guessed,
    for another tool's `undo` would do harm.
    """
    exact = _TOOLS.get((record.tool, record.module))
    alike = [item for item in _TOOLS.values() if item.name == record.tool]
    return exact or (alike[0] if len(alike) == 1 else None)


def check_same_tool(tool: Tool, record: _ToolReference, words: str) -> None:
    """Refuse what another tool of the same name did, if that is here as well.

    Raises EffectConflictError.
    """
    if record.module != tool.module and (record.tool, record.module) in _TOOLS:
        raise EffectConflictError(
            f"{words} is of the tool {short_repr(record.tool)} of {record.module}, and "
            f"{tool.module} has one of the same name: give one of them another by name=."
        )


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *,
    effect: str = ...,
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
    effect: str = LOCAL,
    key: Callable[..., Any] | None = None,
    verify: Callable[..., Any] | None = None,
    undo: Callable[..., Any] | None = None,
    approve: Callable[..., Any] | bool = False,
    expires: float | timedelta | None = None,
    name: str | None = None,
) -> Any:
    """Make a function, method or coroutine function a tool: in a session its calls are recorded.

    Args:
        function: what is decorated.
        effect: `local`: a rollback undoes all of it; `read`: it only looks outside; `idempotent`:
            twice is as once; `reversible`: `undo` undoes it; `irreversible`: nothing does.
        key: gets the arguments and returns what the effect is the same as, such as an order's id.
        verify: gets the arguments and returns the outcome if the effect did happen, else None.
        undo: gets the arguments, and `result` if it takes that.
        approve: True if a person has to agree to each call; or a function that gets the request
            and tells whether to go on.
        expires: how long a request may be answered and the answer used, in seconds.
        name: what it is called in checkpoints; the function's own name if not given.

    Raises:
        InvalidInputError: an option makes no sense.
    """
    _check_options(effect, undo, verify, approve)
    _check_callables(key=key, verify=verify, undo=undo)
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidInputError(f"A tool is named by text, not {short_repr(name)}.")
    seconds = _expiry_seconds(expires)

    def decorate(function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(decorate(function.__func__))
        signature = _signature_of(function)
        parameters = dict(signature.parameters)
        first = next(iter(parameters), None)
        full_name = getattr(function, "__qualname__", type(function).__qualname__)
        spec = Tool(
            name=name or full_name.rpartition("<locals>.")[2],
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
            is_method=first in OWNER_NAMES and "." in full_name,
            takes_effect=EFFECT_PARAMETER in parameters,
        )
        _TOOLS[spec.name, spec.module] = spec
        return _session_wrapper(spec)

    return decorate if function is None else decorate(function)


def _session_wrapper(spec: Tool) -> Any:
    """Return the function that is called in the place of the tool's own."""
    if spec.is_async:

        @functools.wraps(spec.function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            session = current_session()
            if session is None:
                return await _call_without_session(spec, args, kwargs)
            return await session._tool_runner.arun(spec, args, kwargs)

        wrapper: Any = acall
    else:

        @functools.wraps(spec.function)
        def call(*args: Any, **kwargs: Any) -> Any:
            session = current_session()
            if session is None:
                return _call_without_session(spec, args, kwargs)
            return session._tool_runner.run(spec, args, kwargs)

        wrapper = call
    wrapper.tool = spec
    wrapper.__signature__ = spec.signature
    return wrapper


def _call_without_session(spec: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    others = open_sessions()
    if spec.is_external or spec.approve is not False:
        where = "call it within `with Session(…)`."
        if others:
            where = "this thread belongs to none of those that are open. " + _THREADS
        raise EffectError(
            f"{spec.name} has an effect on the outside or needs an approval, and there is no "
            f"session to keep account of it: {where}"
        )
    for session in others:
        session._add_notice(
            f"{spec.name} was called in a thread that belongs to no session, and is not recorded. "
            + _THREADS
        )
    owner, arguments = spec.bind(args, kwargs)
    return spec.call(owner, arguments, None)


def _check_options(effect: str, undo: Any, verify: Any, approve: Any) -> None:
    if effect not in KINDS:
        raise InvalidInputError(
            f"An effect is one of {', '.join(KINDS)}, not {short_repr(effect)}."
        )
    if effect == REVERSIBLE and undo is None:
        raise InvalidInputError("A reversible effect needs undo=, or it is irreversible.")
    if undo is not None and effect != REVERSIBLE:
        raise InvalidInputError(f"undo= is for reversible effects, and this one is {effect}.")
    if verify is not None and effect not in EXTERNAL_KINDS:
        raise InvalidInputError(f"verify= is for effects on the outside; this one is {effect}.")
    if not isinstance(approve, bool) and not callable(approve):
        raise InvalidInputError(f"approve is True, False or a function, not {short_repr(approve)}.")


def _check_callables(**functions: Any) -> None:
    for name, function in functions.items():
        if function is not None and not callable(function):
            raise InvalidInputError(f"{name}= is a function, not {short_repr(function)}.")


def _expiry_seconds(expires: Any) -> float | None:
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if seconds is None:
        return None
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        raise InvalidInputError(f"expires is a number of seconds, not {short_repr(expires)}.")
    return float(seconds)


def _signature_of(function: Any) -> inspect.Signature:
    if not callable(function):
        raise InvalidInputError(f"@tool takes options by name, not {short_repr(function)}.")
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise InvalidInputError(
            f"{short_repr(function)} does not say which arguments it takes: wrap it in a function."
        ) from error
