"""Finds the object that a method tool is called on, among the parts of a session."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.tools.tool import Tool

if TYPE_CHECKING:
    from agent_checkpoint.session.work import Work


def find_owner(session: Work, tool: Tool, part: str | None = None) -> Any:
    """Return the object that a method tool is called on; `part=None` matches any single part.

    Raises:
        NotFoundError: no part has the method, or several have it.
    """
    owners: dict[int, Any] = {}
    for name, item in session._live_parts().items():
        method = getattr(type(item), tool.function.__name__, None)
        is_classmethod = inspect.ismethod(method)
        if getattr(method, "tool", None) is tool and (is_classmethod or part in (None, name)):
            owner = type(item) if is_classmethod else item
            owners[id(owner)] = owner
    if len(owners) == 1:
        return next(iter(owners.values()))
    which = "Several parts" if owners else f"The part {short_repr(part)}" if part else "No part"
    raise NotFoundError(
        f"{which} of the session can own the method {short_repr(tool.name)}. Pass its object as "
        "agent= or in parts=, under its earlier name."
    )


def part_name(session: Work, tool: Tool, owner: Any) -> str | None:
    """Return the name of the part that owns a method; None if the tool is no method."""
    if not tool.is_method:
        return None
    parts = session._live_parts()
    return next((name for name, part in parts.items() if part is owner), "")
