"""Errors that contain the path of a value, such as `agent.memory[3].client`.

A recursive function raises `PathError` at the value that failed. Each level on the way up adds its
segment of the path, so paths cost nothing unless an error occurs. Does not depend on the codec.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agent_checkpoint.errors import CheckpointError, StateError
from agent_checkpoint.records import safe_repr

MAX_DEPTH = 100
"""The nesting limit; a nested object counts twice.

Loading a value of this depth uses less than two thirds of Python's default recursion limit. So a
value that was saved can be loaded, unless the caller has used up the rest.
"""

ITEMS: dict[type, Callable[[Any], Iterable[Any]]] = {}
"""Reads the items of a sequence that shows copies of them. `core.log` adds its own."""

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_SHOWN_SEGMENTS = 12
_SHOWN_TEXTS = 20


class PathError(Exception):
    """A value cannot be captured or loaded. Collects the segments of its path, innermost first."""

    def __init__(self, reason: str, error_type: type[CheckpointError] = StateError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error_type = error_type
        self.segments: list[str] = []

    def at(self, segment: str) -> PathError:
        """Add the next outer segment of the path."""
        self.segments.append(segment)
        return self

    def path(self, root: str) -> str:
        """Return the path as a string, shortened in the middle if it is very long."""
        segments = self.segments[::-1]
        if len(segments) > 2 * _SHOWN_SEGMENTS:
            segments = [*segments[:_SHOWN_SEGMENTS], " … ", *segments[-_SHOWN_SEGMENTS:]]
        return root + "".join(segments)

    def message(self, root: str) -> str:
        """Return the message, with the path first."""
        return f"{self.path(root)} {self.reason}"


class OpaqueValueError(PathError):
    """A value that is pickled or copied as a whole cannot be; a value inside it may be the cause.

    The message names the value and its class first, because that is what the user knows.
    """

    def __init__(
        self, value: Any, error: Exception, attempt: Callable[[Any], object], verb: str, advice: str
    ) -> None:
        super().__init__(f"cannot be {verb}")
        self.cause, self.advice = cause_text(error), advice
        outer, part = _failing_parts(value, attempt, _CONTAINERS)
        inner, innermost = _failing_parts(part, attempt)
        self.segments, self.kind = outer[::-1], type_name(part)
        self.inner, self.inner_kind = inner[::-1], type_name(innermost)

    def message(self, root: str) -> str:
        """Return the message: the value and its class, then the path inside it."""
        path, inner = self.path(root), PathError("")
        inner.segments = self.inner
        because = f" because of {inner.path(path)} ({self.inner_kind})" if self.inner else ""
        return f"{path} ({self.kind}) {self.reason}{because} ({self.cause}). {self.advice}"


class TooDeepError(PathError):
    """The value is nested too deeply, or refers to itself."""

    def __init__(self) -> None:
        super().__init__(
            f"is nested deeper than {MAX_DEPTH} levels (a nested object counts twice). Flatten it."
        )


class as_state_error:  # a class: a generator costs more than encoding a small value
    """Convert a PathError in the block into a StateError whose message contains the whole path.

    Raises:
        StateError: instead of PathError and RecursionError, with the original cause.
    """

    __slots__ = ("_root", "_value")

    def __init__(self, root: str, value: Any = None) -> None:
        self._root = root
        self._value = value

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (TooDeepError, RecursionError)):
            raise _too_deep(self._root, self._value, error) from None
        if isinstance(error, PathError):
            raise error.error_type(error.message(self._root)) from error.__cause__


def _too_deep(root: str, value: Any, error: Exception) -> StateError:
    """Return the error for a value that is nested too deeply, or refers to itself."""
    cycle = find_cycle(value)
    if cycle is None:
        if isinstance(error, TooDeepError):
            return StateError(error.message(root))
        return StateError(
            f"{root} is nested deeper than the remaining Python stack or {MAX_DEPTH} levels. "
            "Flatten it, or call this with a shallower stack."
        )
    outermost = cycle.segments[-1]
    kind = next((type_name(part) for name, part in children(value) or () if name == outermost))
    inner = f" contains a cycle: {cycle.path(root)}" if len(cycle.segments) > 1 else ""
    return StateError(
        f"{root}{outermost} ({kind}){inner} refers back to a value that contains it. A state "
        "must not have cycles: remove the reference, or keep it in an attribute with a leading "
        "underscore."
    )


def key_segment(key: Any, *, whole: bool = False) -> str:
    """Return the path segment of a dict key: `.role`, `["two words"]`, `[7]`.

    Args:
        key: the key.
        whole: do not shorten it, so that different keys have different segments.
    """
    if isinstance(key, str) and key.isidentifier() and (whole or len(key) <= 60):
        return f".{key}"
    text = '"' + key.replace('"', '\\"') + '"' if isinstance(key, str) else safe_repr(key)
    return f"[{text if whole or len(text) <= 40 else text[:38] + '…'}]"


def find_cycle(value: Any) -> PathError | None:
    """Return the path at which a value refers back to itself, or None."""
    stack: list[Iterator[tuple[str, Any]]] = [iter([("", value)])]
    segments: list[str] = []
    opened: dict[int, Any] = {}  # in order; holds the values, so that ids are not reused
    done: dict[int, Any] = {}
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            if segments:
                segments.pop()
                done.update([opened.popitem()])
            continue
        segment, child = step
        if id(child) in opened:
            error = PathError("")
            error.segments = [segment, *reversed(segments[1:])]  # the first is the value itself
            return error
        below = None if id(child) in done else children(child)
        if below is not None:
            stack.append(below)
            segments.append(segment)
            opened[id(child)] = child
    return None


def paths_to(value: Any, wanted: Iterable[Any]) -> dict[int, str]:
    """Return the paths of objects inside a value, by their id; of those that can be found."""
    left = {id(part) for part in wanted}
    found: dict[int, str] = {}
    seen: dict[int, Any] = {}  # holds the values, so that ids are not reused
    stack: list[tuple[str, Any]] = [("", value)]
    while stack and left:
        path, part = stack.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if id(part) in left:
            left.discard(id(part))
            found[id(part)] = path
        stack += [(path + segment, child) for segment, child in children(part) or ()]
    return found


def listed(texts: list[str], separator: str = ", ") -> str:
    """Return texts for a message; of very many the first ones, and how many more there are."""
    more = len(texts) - _SHOWN_TEXTS
    return separator.join(texts[:_SHOWN_TEXTS]) + (f" and {more} more" if more > 0 else "")


def type_name(value: Any) -> str:
    """Return the name of the class of a value, with its module."""
    cls = type(value)
    name = cls.__qualname__.rpartition("<locals>.")[2]
    return name if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{name}"


def _failing_parts(
    value: Any, attempt: Callable[[Any], object], within: type | tuple[type, ...] = object
) -> tuple[list[str], Any]:
    """Return the path to the smallest part of a value that `attempt` fails on, and that part.

    Goes only into values of the classes `within`. The path is empty for the value itself.
    """
    segments: list[str] = []
    while isinstance(value, within) and len(segments) < MAX_DEPTH:
        for segment, child in children(value) or ():
            try:
                attempt(child)
            except Exception:
                segments.append(segment)
                value = child
                break
        else:
            break
    return segments, value


def children(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return the nested values of a value with their path segments; None if it has none."""
    if isinstance(value, dict):
        return ((key_segment(key), item) for key, item in list(value.items()))
    if isinstance(value, _CONTAINERS):
        return ((f"[{index}]", item) for index, item in enumerate(list(value)))
    if type(value) in ITEMS:
        return ((f"[{index}]", item) for index, item in enumerate(ITEMS[type(value)](value)))
    if isinstance(value, type):
        return None
    fields = getattr(type(value), "_checkpoint_fields", None)
    if fields is not None:
        names = [name for name in fields(value) if hasattr(value, name)]
        return ((f".{name}", getattr(value, name)) for name in names)
    found: dict[str, Any] = {}
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name):
                found[name] = getattr(value, name)
    found.update(getattr(value, "__dict__", {}))
    return ((f".{name}", item) for name, item in found.items()) if found else None


def cause_text(error: BaseException) -> str:
    """Return the text of a CheckpointError for a message; the type name of any other exception.

    The text of another exception may contain values of the state. It stays in the chained
    exception.
    """
    return str(error) if isinstance(error, CheckpointError) else type(error).__name__
