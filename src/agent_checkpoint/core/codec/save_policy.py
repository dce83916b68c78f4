"""What a save does with pickles and secrets. Warns about pickles once per class and process.

A pickled LLM client is the typical case: its API key is readable in the store, and a rollback
replaces the live client. Does not depend on the encoder.
"""

from __future__ import annotations

import warnings
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from agent_checkpoint.backends.os_support.os_fork import block_forks
from agent_checkpoint.core.path_errors import PathError
from agent_checkpoint.named_tuple import NamedTuple
from agent_checkpoint.options import Pickles

if TYPE_CHECKING:
    from agent_checkpoint.redaction import Redactor

_WAYS_OUT = (
    "To leave it out, keep it in an attribute with a leading underscore, or list the saved fields "
    "in _checkpoint_fields(). To save its content as JSON, register_type() its class. To save the "
    'pickle, pass pickles="allow".'
)
_PASSED_OVER = frozenset({"agent_checkpoint", "contextlib"})
"""Packages of the frames between a save and the code of the user."""

_warned: WeakSet[type] = WeakSet()


class PickledValueError(PathError):
    """A value would be pickled, and the policy does not allow it yet."""

    def __init__(self, value: Any) -> None:
        self.cls = cls = type(value)
        super().__init__(
            f"({cls.__module__}.{cls.__qualname__}) would be pickled. {_ways_out(cls)}"
        )

    def warn(self, root: str) -> None:
        """Warn about the class of the value, with the path of the value below `root`."""
        name = f"{self.cls.__module__}.{self.cls.__qualname__}"
        warnings.warn(
            f"{self.path(root)} ({name}) is saved as a pickle: its content, such as an API key, is "
            f"readable in the store, and loading replaces the live object by a copy. "
            f"{_ways_out(self.cls)}",
            stacklevel=_caller_level(),
        )
        _warned.add(self.cls)  # last: with warnings as errors, every save fails


class SavePolicy(NamedTuple):
    """The options of a manager or session for the values that it saves."""

    pickles: Pickles = "allow"
    redactor: Redactor | None = None

    def objects_to(self, value: Any) -> bool:
        """Return whether a pickle of a value is refused, or needs a warning first."""
        return self.pickles == "refuse" or (self.pickles == "warn" and type(value) not in _warned)


NO_POLICY = SavePolicy()
"""For encodings that are not stored."""


def _ways_out(cls: type) -> str:
    if hasattr(cls, "model_dump"):  # such as a reply of a client library in a conversation
        return f"To save it as plain data, use its .model_dump(exclude_unset=True). {_WAYS_OUT}"
    return _WAYS_OUT


def _caller_level() -> int:
    """Return the `stacklevel` of the first frame of the user, seen from the caller."""
    with block_forks():
        from inspect import currentframe  # slow to import, and rarely needed

    level, frame = 0, currentframe()
    while frame is not None and _package(frame) in _PASSED_OVER:
        level, frame = level + 1, frame.f_back
    return level


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
