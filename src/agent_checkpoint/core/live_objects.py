"""The live objects that a state was captured from.

Owns remembering which object stood where, so that going back in the same process gives every
object its own state again instead of making new ones: what is not captured (clients, caches) stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_checkpoint.core.checkpointable import Checkpointable
from agent_checkpoint.core.copying import live_outline

_NOTHING: Mapping[Any, Any] = {}


class LiveObjects:
    """For each object with a state: its fields as they were, with only the live parts in them."""

    def __init__(self, subjects: Iterable[Any]) -> None:
        self._known: dict[int, tuple[Any, Mapping[Any, Any]]] = {}
        for subject in subjects:
            self._keep(subject)

    def of(self, owner: Any) -> Mapping[Any, Any]:
        """Return what was remembered of an object's fields, or of a plain dict's members."""
        known = self._known.get(id(owner))
        return _NOTHING if known is None else known[1]

    def _keep(self, part: Any) -> Any:
        if id(part) in self._known:
            return part
        if isinstance(part, Checkpointable):
            names = part._checkpoint_fields()
            fields = {name: getattr(part, name, None) for name in names}
        else:
            fields = part if isinstance(part, dict) else {}
        # The part is kept too, so that its id is not used again; and before what is below it.
        self._known[id(part)] = (part, _NOTHING)
        below = {name: live_outline(value, self._keep) for name, value in fields.items()}
        self._known[id(part)] = (part, below)
        return part
