"""`@tool`: functions that an agent may call. Owns what is said about them; records no call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, overload

from agent_checkpoint.errors import EffectError, InvalidInputError
from agent_checkpoint.records import show
from agent_checkpoint.session.current import current_session

F = TypeVar("F", bound=Callable[..., Any])

LOCAL, READ = "local", "read"
IDEMPOTENT, REVERSIBLE, IRREVERSIBLE = "idempotent", "reversible", "irreversible"
KINDS = (LOCAL, READ, IDEMPOTENT, REVERSIBLE, IRREVERSIBLE)
OUTSIDE = frozenset({IDEMPOTENT, REVERSIBLE, IRREVERSIBLE})

EFFECT = "effect"
"""The parameter by which a tool is told about the effect that it is to make."""

_TOOLS: dict[str, Tool] = {}


@dataclass(frozen=True)
class Tool:
    """What is known of a tool."""

    name: str
    function: Callable[..., Any]
    kind: str
    key: Callable[..., Any] | None
    verify: Callable[..., Any] | None
    undo: Callable[..., Any] | None
    approve: Callable[..., Any] | bool
    expires: float | None
    signature: inspect.Signature
    is_method: bool
    takes_effect: bool

    @property
    def is_outside(self) -> bool:
        """Whether it changes what no checkpoint holds."""
        return self.kind in OUTSIDE

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
        args: list[Any] = [owner] if self.is_method else []
        kwargs: dict[str, Any] = {}
        for name, parameter in list(self.signature.parameters.items())[len(args) :]:
            if name not in named:
                continue
            value = named[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                args += value
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = value
            else:
                args.append(value)
        if self.takes_effect:
            kwargs[EFFECT] = effect
        return self.function(*args, **kwargs)


def tool_named(name: str) -> Tool | None:
    """Return the tool of a name, if its module was imported here."""
    return _TOOLS.get(name)


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
    if function is not None and not callable(function):
        raise InvalidInputError(f"@tool takes options by name, not {show(function)}.")
    _check(effect, undo, verify, approve)
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if seconds is not None and (isinstance(seconds, bool) or not seconds > 0):
        raise InvalidInputError(f"expires is a number of seconds, not {show(expires)}.")

    def decorate(function: Callable[..., Any]) -> Any:
        signature = inspect.signature(function)
        parameters = dict(signature.parameters)
        first = next(iter(parameters), None)
        spec = Tool(
            name=name or function.__qualname__.rpartition("<locals>.")[2],
            function=function,
            kind=effect,
            key=key,
            verify=verify,
            undo=undo,
            approve=approve,
            expires=seconds,
            signature=signature.replace(
                parameters=[item for item in parameters.values() if item.name != EFFECT]
            ),
            is_method=first in ("self", "cls") and "." in function.__qualname__,
            takes_effect=EFFECT in parameters,
        )
        _TOOLS[spec.name] = spec
        return _wrapped(spec)

    return decorate if function is None else decorate(function)


def _wrapped(spec: Tool) -> Any:
    """Return the function that is called in the place of the tool's own."""
    if spec.is_async:

        @functools.wraps(spec.function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            session = current_session()
            if session is None:
                return await _plainly(spec, args, kwargs)
            return await session._calls.arun(spec, args, kwargs)

        wrapper: Any = acall
    else:

        @functools.wraps(spec.function)
        def call(*args: Any, **kwargs: Any) -> Any:
            session = current_session()
            if session is None:
                return _plainly(spec, args, kwargs)
            return session._calls.run(spec, args, kwargs)

        wrapper = call
    wrapper.tool = spec
    wrapper.__signature__ = spec.signature
    return wrapper


def _plainly(spec: Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if spec.is_outside or spec.approve is not False:
        raise EffectError(
            f"{spec.name} has an effect on the outside or needs an approval, and there is no "
            "session to keep account of it: call it within `with Session(…)`."
        )
    owner, arguments = spec.bind(args, kwargs)
    return spec.call(owner, arguments, None)


def _check(effect: str, undo: Any, verify: Any, approve: Any) -> None:
    if effect not in KINDS:
        raise InvalidInputError(f"An effect is one of {', '.join(KINDS)}, not {show(effect)}.")
    if effect == REVERSIBLE and undo is None:
        raise InvalidInputError("A reversible effect needs undo=, or it is irreversible.")
    if undo is not None and effect != REVERSIBLE:
        raise InvalidInputError(f"undo= is for reversible effects, and this one is {effect}.")
    if verify is not None and effect not in OUTSIDE:
        raise InvalidInputError(f"verify= is for effects on the outside; this one is {effect}.")
    if not isinstance(approve, bool) and not callable(approve):
        raise InvalidInputError(f"approve is True, False or a function, not {show(approve)}.")


def fitted(function: Callable[..., Any], arguments: Mapping[str, Any], **more: Any) -> Any:
    """Call a function with those of the arguments that it takes, by their names.

    A single parameter that is none of them gets `result`, if that is offered.

    Raises what the function raises, and TypeError if it wants something that there is not.
    """
    parameters = inspect.signature(function).parameters
    named = dict(arguments)
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = {name: more[name] for name in more if name in parameters}
            return function(**{**named, **extra})
    offered = {**named, **more}
    given = {name: offered[name] for name in parameters if name in offered}
    lacking = [
        name
        for name, parameter in parameters.items()
        if name not in offered
        and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if len(lacking) == 1 and "result" in more and "result" not in given:
        given[lacking[0]] = more["result"]
    return function(**given)


def settled(value: Any) -> Any:
    """Return a value; one that has to be awaited is, on an event loop of its own."""
    if not inspect.isawaitable(value):
        return value
    import asyncio
    from threading import Thread

    async def wait() -> Any:
        return await value

    found: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(wait()))
        except BaseException as error:
            errors.append(error)

    thread = Thread(target=run)  # the one of the caller may have a loop that is running
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]
