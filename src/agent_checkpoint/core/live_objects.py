"""The live objects that a state was captured from.

A rollback in the same process loads each state into the object it was captured from, instead of
creating new objects. So attributes that are not captured (clients, caches) are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_checkpoint.core.captured_fields import is_checkpointable
from agent_checkpoint.core.copying import live_outline

_NOTHING: Mapping[Any, Any] = {}


class LiveObjects:
    """Maps each captured object to the containers of its fields, reduced to live objects."""

    def __init__(self, subjects: Iterable[Any]) -> None:
        self._known: dict[int, tuple[Any, Mapping[Any, Any]]] = {}
        for subject in subjects:
            self._keep(subject)

    def of(self, owner: Any) -> Mapping[Any, Any]:
        """Return the recorded fields of an object, or members of a plain dict."""
        known = self._known.get(id(owner))
        return _NOTHING if known is None else known[1]

    def _keep(self, part: Any) -> Any:
        if id(part) in self._known:
            return part
        if is_checkpointable(part):
            fields = {name: getattr(part, name, None) for name in part._checkpoint_fields()}
        else:
            fields = part if isinstance(part, dict) else {}
        # Keep the part too, so that its id is not reused. Register it first: parts may form cycles.
        self._known[id(part)] = (part, _NOTHING)
        below = {name: live_outline(value, self._keep) for name, value in fields.items()}
        self._known[id(part)] = (part, below)
        return part
