"""The recorded tool and model calls that answer those of a replay. Owns how calls are matched.

A call matches the next recorded one with the same tool and arguments. Calls that ran at the same
time match in any order. Calls that a recorded tool made itself are part of that tool's call: they
may be missing.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any

from agent_checkpoint.errors import InvalidInputError
from agent_checkpoint.transcripts.fields import plain


@dataclass(frozen=True)
class Divergence:
    """The first call of a replay that is not as recorded."""

    kind: str
    """`call`, `model`, `files`, or `end` if the loop ended before the record."""
    agent: str
    """The path of the sub-agent; empty for the session's own agent."""
    expected: Any
    """The recorded call or request; for `files`, the paths as they were. None after the last."""
    actual: Any
    """The call or request of the replay; for `files`, the paths as they are. None at the end."""
    checkpoint: str | None
    """The id of the checkpoint of the recorded call."""
    words: str
    """What differs, on one line."""

    def __str__(self) -> str:
        return self.words


class ReplayStopped(BaseException):
    """Ends the loop of a replay. Not an Exception: no `except Exception` of the loop catches it."""


class RecordedReply(dict[str, Any]):
    """A recorded reply of a model: a dict whose values are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _with_attributes(self[name])
        except KeyError:
            raise AttributeError(f"The recorded reply has no {name!r}.") from None

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Return the reply as a plain dict, as replies of client libraries do."""
        return dict(self)


def _with_attributes(value: Any) -> Any:
    if isinstance(value, dict):
        return RecordedReply(value)
    return [_with_attributes(item) for item in value] if isinstance(value, list) else value


@dataclass
class RecordedCall:
    """A row of a list of calls, and its state in a replay."""

    row: Mapping[str, Any]
    given: Any
    """The arguments of a tool, or the whole request to a model."""
    place: int = 0
    """The position in the line of the first checkpoint that has it."""
    is_matched: bool = False
    is_optional: bool = False

    @property
    def began(self) -> float:
        """When it began, in seconds since the epoch."""
        return _seconds(self.row.get("ts"))

    @property
    def ended(self) -> float:
        """When it ended."""
        return self.began + _seconds(self.row.get("seconds"))

    @property
    def words(self) -> str:
        """The call on one line."""
        return f"{self.row.get('tool')}({_json(self.given)})"[:300]


def _seconds(value: Any) -> float:
    """Return a recorded time, 0 if it is none: a record may be from elsewhere."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e11 else 0.0


class RecordedCalls:
    """The calls of a recorded trajectory, by the path of the agent that made them."""

    def __init__(
        self,
        tools: Mapping[str, list[RecordedCall]],
        models: Mapping[str, list[RecordedCall]],
        *,
        as_recorded: Callable[[Any], Any],
        matched: Callable[[RecordedCall], Divergence | None],
        diverged: Callable[[Divergence], None],
        name_of: Callable[[int], str],
    ) -> None:
        """Prepare.

        Args:
            tools: the tool calls, in the order of the record.
            models: the model calls.
            as_recorded: translates arguments, such as paths of the workspace, to the record.
            matched: called with each matched tool call; returns why its files do not fit.
            diverged: called with the first divergence; may raise ReplayStopped. If it returns, the
                replay goes on with real calls.
            name_of: returns the id of the checkpoint at a position of the line.
        """
        self.tools, self.models = tools, models
        self._as_recorded = as_recorded
        self._matched = matched
        self._diverged = diverged
        self._name_of = name_of
        self._lock = RLock()
        self.is_live = False
        """Whether a divergence was found, and calls are real."""
        self.is_stopped = False
        """Whether the replay stopped at a divergence."""
        self._is_ended = False
        self.saved: Callable[[], None] = lambda: None
        """Called after a checkpoint of the replay."""

    def tool(self, agent: str, tool: str, arguments: Any) -> Mapping[str, Any] | None:
        """Return the recorded row of a tool call; None if the call is to be made."""
        with self._lock:
            self._check_running()
            if self.is_live:
                return None
            given = self._as_recorded(arguments)
            rows = self.tools.get(agent, [])
            found = _find(rows, lambda one: one.row["tool"] == tool and _is_equal(one, given))
            if found is None:
                self._call_differs("call", agent, rows, f"{tool}({_json(given)})"[:300])
                return None
            found.is_matched = True
            trouble = self._matched(found)
            if trouble is not None:
                self._diverge(trouble)
                return None
            return found.row

    def model(self, agent: str, request: Any) -> Mapping[str, Any] | None:
        """Return the recorded row of a model call; None if the call is to be made."""
        with self._lock:
            self._check_running()
            if self.is_live:
                return None
            given = self._as_recorded(request)
            rows = self.models.get(agent, [])
            found = _find(rows, lambda one: bool(one.given == given))
            if found is None:
                self._call_differs("model", agent, rows, given)
                return None
            found.is_matched = True
            return found.row

    def at_end(self) -> Divergence | None:
        """Return the first recorded call that was not made."""
        left = [
            (one, agent, kind)
            for kind, by_agent in (("call", self.tools), ("model", self.models))
            for agent, rows in by_agent.items()
            for one in rows
            if not one.is_matched and not one.is_optional
        ]
        if self.is_live or self.is_stopped or not left:
            return None
        one, agent, kind = min(left, key=lambda found: found[0].began)
        what = one.words if kind == "call" else f"a model call of {one.row.get('model')}"
        words = f"The loop ended, but the record goes on with {what}."
        return Divergence("end", agent, dict(one.row), None, self._name_of(one.place), words)

    def _call_differs(self, kind: str, agent: str, rows: list[RecordedCall], actual: Any) -> None:
        expected = next((one for one in rows if not one.is_matched and not one.is_optional), None)
        if expected is None:
            words = f"The record has ended, and the loop goes on with {_short(actual)}."
            self._diverge(Divergence(kind, agent, None, actual, None, words))
            return
        if kind == "call":
            shown: Any = expected.words
            words = f"The record has {shown}, and the loop calls {_short(actual)}."
        else:
            shown = expected.given
            words = f"The request differs from the record in {first_difference(shown, actual)}."
        name = self._name_of(expected.place)
        self._diverge(Divergence(kind, agent, shown, actual, name, words))

    def end(self) -> None:
        """Refuse all further calls: threads and tasks of the loop may outlive it."""
        with self._lock:
            self._is_ended = True

    def check_live(self) -> None:
        """Check that calls are made for real.

        Raises:
            ReplayStopped: the replay was stopped.
            InvalidInputError: it has ended, or has not diverged.
        """
        with self._lock:
            self._check_running()
            if not self.is_live:
                raise InvalidInputError("A replay makes no calls of its own before a divergence.")

    def _check_running(self) -> None:
        """Raise ReplayStopped again: `finally` blocks and other tasks of the loop make calls."""
        if self._is_ended:
            raise InvalidInputError(
                "The replay has ended: its session makes no further calls. To go on from there, "
                "fork it."
            )
        if self.is_stopped:
            raise ReplayStopped

    def _diverge(self, divergence: Divergence) -> None:
        self.is_stopped = True
        self._diverged(divergence)
        self.is_stopped, self.is_live = False, True


def recorded_error(text: str) -> Exception:
    """Return an error like a recorded one: of the same built-in class, else a RuntimeError."""
    name, _, message = text.partition(": ")
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message) if message else found()
        except TypeError:  # its constructor takes other arguments
            pass
    return RuntimeError(text)


def _find(rows: list[RecordedCall], fits: Callable[[RecordedCall], bool]) -> RecordedCall | None:
    """Return the first fitting row that no earlier one has to come before."""
    passed: list[RecordedCall] = []
    for one in rows:
        if one.is_matched:
            continue
        is_beside = all(one.began <= other.ended for other in passed)
        if not is_beside:
            return None
        if fits(one):
            for other in passed:  # made by the tool of this call
                if one.began <= other.began and other.ended <= one.ended:
                    other.is_optional = True
            return one
        if not one.is_optional:
            passed.append(one)
    return None


def _is_equal(recorded: RecordedCall, given: Any) -> bool:
    """Return whether arguments are the recorded ones; an approver may have edited some of these."""
    edited = recorded.row.get("edited") or ()
    if edited and isinstance(given, dict) and isinstance(recorded.given, dict):
        return {**given, **{name: recorded.given.get(name) for name in edited}} == recorded.given
    return bool(recorded.given == given)


def first_difference(expected: Any, actual: Any, path: str = "") -> str:
    """Return the path of the first difference between two values, and what it is there."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for name in [*expected, *(name for name in actual if name not in expected)]:
            if name not in expected or name not in actual:
                return f"{path}.{name}".lstrip(".") + (
                    " (not recorded)" if name not in expected else " (missing)"
                )
            if expected[name] != actual[name]:
                inner = path if name.startswith("$") else f"{path}.{name}"  # not tags of the codec
                return first_difference(expected[name], actual[name], inner)
    if isinstance(expected, list) and isinstance(actual, list):
        for number, (one, other) in enumerate(zip(expected, actual)):
            if one != other:
                return first_difference(one, other, f"{path}[{number}]")
        return f"{path.lstrip('.')}: {len(expected)} items recorded, {len(actual)} now"
    return f"{path.lstrip('.')}: recorded {_short(expected)}, now {_short(actual)}"


def _json(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, default=repr)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if len(text) <= 200 else text[:199] + "…"
