"""Errors that name the path of a value, such as `agent.memory[3].client`.

A walk over a value raises `PathError` at the bottom. Each level on the way up adds its segment of
the path, so that the normal case pays nothing for it. Knows no codec.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agent_checkpoint.errors import CheckpointError, StateError
from agent_checkpoint.records import safe_repr

MAX_DEPTH = 100
"""How deep values may be nested, where an object in another counts twice.

Whatever is nested so, a load of it takes less than two thirds of the stack that Python has by
default: what can be saved can also be loaded, unless the caller has used up the rest.
"""

_SHOWN = 12


class PathError(Exception):
    """A value that cannot be walked, with the segments of its path, innermost first."""

    def __init__(self, reason: str, error_type: type[CheckpointError] = StateError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error_type = error_type
        self.segments: list[str] = []

    def at(self, segment: str) -> PathError:
        """Add the next segment of the path, on the way out."""
        self.segments.append(segment)
        return self

    def path(self, root: str) -> str:
        """Return the path as text, cut in the middle if it is very long."""
        segments = self.segments[::-1]
        if len(segments) > 2 * _SHOWN:
            segments = [*segments[:_SHOWN], " … ", *segments[-_SHOWN:]]
        return root + "".join(segments)


class TooDeepError(PathError):
    """The value is nested deeper than can be stored, or refers to itself."""

    def __init__(self) -> None:
        super().__init__(
            f"is nested deeper than {MAX_DEPTH} levels (an object in another counts twice). "
            "Flatten it."
        )


@contextmanager
def as_state_error(root: str, value: Any = None) -> Iterator[None]:
    """Turn PathError in the block into one StateError that names the path below `root`.

    Raises:
        StateError: instead of PathError and RecursionError; its cause is what went wrong.
    """
    try:
        yield
    except (TooDeepError, RecursionError) as error:
        cycle = find_cycle(value)
        if cycle is None:
            if isinstance(error, TooDeepError):
                raise StateError(f"{error.path(root)} {error.reason}") from None
            raise StateError(
                f"{root} is nested deeper than the rest of Python's stack is here, or than "
                f"{MAX_DEPTH} levels. Flatten it, or call this where the stack is less deep."
            ) from None
        raise StateError(
            f"{cycle.path(root)} refers back to a value that contains it. A state must not have "
            "cycles: break it, or keep it in an attribute with a leading underscore."
        ) from None
    except PathError as error:
        raise error.error_type(f"{error.path(root)} {error.reason}") from error.__cause__


def key_segment(key: Any, *, whole: bool = False) -> str:
    """Return the segment of a path that a dict's key makes: `.role`, `["two words"]`, `[7]`.

    Args:
        key: the key.
        whole: do not cut it short, so that two keys never make the same segment.
    """
    if isinstance(key, str) and key.isidentifier() and (whole or len(key) <= 60):
        return f".{key}"
    text = '"' + key.replace('"', '\\"') + '"' if isinstance(key, str) else safe_repr(key)
    return f"[{text if whole or len(text) <= 40 else text[:38] + '…'}]"


def find_cycle(value: Any) -> PathError | None:
    """Return where a value of plain containers refers back to itself, or None."""
    stack: list[Iterator[tuple[str, Any]]] = [iter([("", value)])]
    segments: list[str] = []
    opened: dict[int, Any] = {}  # in order; the values keep their ids from being used again
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
            error.segments = [segment, *reversed(segments)]
            return error
        below = None if id(child) in done else children(child)
        if below is not None:
            stack.append(below)
            segments.append(segment)
            opened[id(child)] = child
    return None


def failing_path(value: Any, attempt: Callable[[Any], object]) -> list[str]:
    """Return the path, innermost first, of the smallest part on which `attempt` fails."""
    segments: list[str] = []
    for _ in range(MAX_DEPTH):
        for segment, child in children(value) or ():
            try:
                attempt(child)
            except Exception:
                segments.append(segment)
                value = child
                break
        else:
            break
    return segments[::-1]


def children(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return the parts of a value with their segments of the path; None if it has no parts."""
    if isinstance(value, dict):
        return ((key_segment(key), item) for key, item in list(value.items()))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return ((f"[{index}]", item) for index, item in enumerate(list(value)))
    if isinstance(value, type):
        return None
    fields = getattr(type(value), "_checkpoint_fields", None)
    if fields is not None:
        names = [name for name in fields(value) if hasattr(value, name)]
        return ((f".{name}", getattr(value, name)) for name in names)
    if not hasattr(value, "__dict__"):
        return None
    return ((f".{name}", item) for name, item in list(vars(value).items()))


def cause_text(error: BaseException) -> str:
    """Return what a message says of the error behind it: nothing that could quote a value.

    The text of an error that is not ours may hold anything. It stays in the chained exception.
    """
    return str(error) if isinstance(error, CheckpointError) else type(error).__name__
