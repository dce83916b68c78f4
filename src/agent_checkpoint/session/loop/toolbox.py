"""The tools of an agent loop, by the names that the model knows. Owns what counts as a tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, Union

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.tools.tool import Tool, default_name, local_tool


class _Function(Protocol):
    """Any function. For mypy the items of a list of different functions have this type."""

    __name__: str
    __qualname__: str


Tools = Union[
    Mapping[str, Callable[..., Any]],
    Iterable[Callable[..., Any]],
    Mapping[str, _Function],
    Iterable[_Function],
]

_EXPECTED = "tools= is a list of Python functions, or a dict of functions by name"


class BoundTool(NamedTuple):
    """A tool, and the object that it is called on if it is a method."""

    tool: Tool
    owner: tuple[Any, ...]


def toolbox(tools: Tools) -> dict[str, BoundTool]:
    """Return tools by name. Functions without `@tool` become local tools.

    Args:
        tools: functions by name; or functions, each known by its name or the `name=` of `@tool`.

    Raises:
        InvalidInputError: an item is not a function, has no name, or two have the same name.
    """
    if isinstance(tools, str) or not isinstance(tools, (Mapping, Iterable)):
        raise InvalidInputError(f"{_EXPECTED}, not {short_repr(tools)}.")
    if isinstance(tools, Mapping):
        named = list(tools.items())
    else:
        named = [(_name_of(function), function) for function in tools]
    found: dict[str, BoundTool] = {}
    for name, function in named:
        if not callable(function):
            raise InvalidInputError(f"{_EXPECTED}; {short_repr(name)} is not a function.")
        if name in found:
            raise InvalidInputError(
                f"Two tools are named {short_repr(name)}. Pass a dict of tools by name."
            )
        spec = getattr(function, "tool", None)
        if isinstance(spec, Tool):
            owner = (getattr(function, "__self__", None),) if spec.is_method else ()
            if owner == (None,):
                raise InvalidInputError(
                    f"The tool {short_repr(name)} is a method: pass it from its object."
                )
            found[name] = BoundTool(spec, owner)
        else:
            found[name] = BoundTool(local_tool(function, name), ())
    return found


def _name_of(function: Any) -> str:
    spec = getattr(function, "tool", None)
    if isinstance(spec, Tool) and spec.name != default_name(spec.function):
        return spec.name
    if isinstance(function, (Mapping, str)):
        raise InvalidInputError(
            f"{_EXPECTED}, not their schemas or names, as {short_repr(function)} is. Pass schemas "
            "to the model."
        )
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidInputError(
            f"{short_repr(function)} has no name. Pass a dict of tools by name."
        )
    return name
