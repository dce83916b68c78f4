"""Finds the object that a method tool is called on, among the parts of a session."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from agent_checkpoint.errors import NotFoundError
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.tools.tool import Tool


def find_owner(parts: Mapping[str, Any], tool: Tool, part: str | None = None) -> Any:
    """Return the object that a method tool is called on; `part=None` matches any single part.

    Raises:
        NotFoundError: no part has the method, or several have it.
    """
    owners: dict[int, Any] = {}
    for name, item in parts.items():
        method = getattr(type(item), tool.function.__name__, None)
        is_classmethod = inspect.ismethod(method)
        if getattr(method, "tool", None) is tool and (is_classmethod or part in (None, name)):
            owner = type(item) if is_classmethod else item
            owners[id(owner)] = owner
    if len(owners) == 1:
        return next(iter(owners.values()))
    if owners:
        which = "Several parts of the session have"
    elif part:
        which = f"The session has no part {short_repr(part)} with"
    else:
        which = "No part of the session has"
    raise NotFoundError(
        f"{which} the method {short_repr(tool.name)}. Pass its object as agent= or in parts=, "
        "under its earlier name."
    )


def part_name(parts: Mapping[str, Any], tool: Tool, owner: Any) -> str | None:
    """Return the name of the part that owns a method; None if the tool is not a method."""
    if not tool.is_method:
        return None
    return next((name for name, part in parts.items() if part is owner), "")
