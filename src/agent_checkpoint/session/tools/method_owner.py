"""Which object a method of a tool is called on. Owns telling the parts of a session apart."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.tools.tool import Tool

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work


def find_owner(session: Work, tool: Tool, part: str | None = None) -> Any:
    """Return the part of the session that a method was called on; None is any, if only one.

    Raises:
        NotFoundError: there is none, or several have the method.
    """
    found: dict[int, Any] = {}
    for name, item in session._live_parts().items():
        method = getattr(type(item), tool.function.__name__, None)
        of_class = inspect.ismethod(method)
        if getattr(method, "tool", None) is tool and (of_class or part in (None, name)):
            one = type(item) if of_class else item
            found[id(one)] = one
    if len(found) == 1:
        return next(iter(found.values()))
    which = "Several parts" if found else f"The part {short_repr(part)}" if part else "No part"
    raise NotFoundError(
        f"{which} of the session can be what the method {short_repr(tool.name)} was called on: "
        "pass that object as agent= or in parts=, by the name that it had."
    )


def part_name(session: Work, tool: Tool, owner: Any) -> str | None:
    """Return the name of the part that a method is called on; None if the tool is none."""
    if not tool.is_method:
        return None
    parts = session._live_parts()
    return next((name for name, part in parts.items() if part is owner), "")
