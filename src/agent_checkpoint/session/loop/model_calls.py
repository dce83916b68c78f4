"""Calls a model through the user's function, and records the calls of one agent.

A row holds what is new in the request since the row before, so that a conversation is stored once
and not once per call. Clients, headers and other credentials are not recorded.
"""

from __future__ import annotations

import inspect
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from agent_checkpoint import telemetry
from agent_checkpoint.core.log import Log
from agent_checkpoint.errors import InvalidInputError, NotFoundError
from agent_checkpoint.records import short_repr
from agent_checkpoint.session.agent_scope import AgentScope
from agent_checkpoint.session.current_session import current_task
from agent_checkpoint.session.loop.request_prefix import compare, json_text
from agent_checkpoint.session.loop.usage import cost_of, tokens_in
from agent_checkpoint.session.session_state import SessionState
from agent_checkpoint.session.tools.recorded_calls import RecordedReply, recorded_error
from agent_checkpoint.transcripts.fields import get, json_value, plain

_NOT_RECORDED = frozenset({"client", "http_client", "http_options", "extra_query"})
_CREDENTIAL = re.compile(
    r"(^|_)(headers?|cookies?|auth|authorization|credentials?|password|passwd|passphrase)(_|$)"
    r"|secret|(^|_)(api|access|account|private|subscription)_?keys?(_|$)"
    r"|(^|_)(auth|access|ad|api|bearer|id|oauth|refresh|security|session)_?token(_|$)|^token$"
)
_CONVERSATION = frozenset({"messages", "input", "contents"})
_STREAM = (
    "send returned a stream, which is not a reply yet. Pass a function that reads the stream and "
    "returns the final message."
)


class ModelCalls:
    """Makes and records the model calls of one agent."""

    def __init__(self, state: SessionState, scope: AgentScope) -> None:
        self._state = state
        self._scope = scope
        self._last: tuple[tuple[int, float], dict[str, Any]] | None = None
        """The last row, by number and time, and its whole request."""

    def call(self, send: Callable[..., Any], request: Mapping[str, Any]) -> Any:
        """Call the model; see `Session.model`."""
        recorded = self._recorded_row(request)
        if recorded is not None:
            return self._answer(recorded)
        with self._recorded(request) as row:
            reply = send(**_for_client(request))
            if inspect.isawaitable(reply):
                if inspect.iscoroutine(reply):
                    reply.close()
                raise InvalidInputError("send is a coroutine function: use await session.amodel().")
            row["reply"] = _reply_json(reply)
        return reply

    async def acall(self, send: Callable[..., Any], request: Mapping[str, Any]) -> Any:
        """Call the model from asyncio; see `Session.amodel`."""
        recorded = self._recorded_row(request)
        if recorded is not None:
            return self._answer(recorded)
        with self._recorded(request) as row:
            reply = send(**_for_client(request))
            if inspect.isawaitable(reply):
                reply = await reply
            row["reply"] = _reply_json(reply)
        return reply

    def request(self, index: int) -> dict[str, Any]:
        """Return the whole request of a row.

        Raises:
            NotFoundError: there is no such row.
        """
        rows = self._scope.model_calls
        if not -len(rows) <= index < len(rows):
            raise NotFoundError(f"There is no model call {index}; {len(rows)} are recorded.")
        *_, request = whole_requests(rows[: index % len(rows) + 1])
        return json.loads(json_text(plain(request)))  # type: ignore[no-any-return]

    def _recorded_row(self, request: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the recorded row that answers a request, if the session is a replay."""
        replay = self._state.replay
        if replay is None:
            return None
        self._state.check_open()
        return replay.model(self._scope.path, plain(_request_json(request)))

    def _answer(self, row: Mapping[str, Any]) -> Any:
        """Return the recorded reply, or raise the recorded error."""
        with self._state.writer.lock:
            self._scope.model_calls.append(dict(row))
        if "error" in row:
            raise recorded_error(str(row["error"].get("type")))
        reply = plain(row["reply"])
        return RecordedReply(reply) if isinstance(reply, dict) else reply

    @contextmanager
    def _recorded(self, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Record a call when it ends, also by an error."""
        self._state.check_open()
        self._scope.check_open()
        sent = _request_json(request)
        row: dict[str, Any] = {}
        began, clock = time.time(), time.monotonic()
        try:
            with telemetry.operation(
                "model", key=self._state.key, agent=self._scope.path, model=sent.get("model")
            ) as outcome:
                yield row
                outcome.update(tokens=tokens_in(row.get("reply")))
        except Exception as error:
            row["error"] = {"type": type(error).__name__}
            with suppress(Exception):  # the error of the call is raised, not one of its properties
                status = get(error, "status_code", "status", "code")
                if isinstance(status, (int, str)):
                    row["error"]["status"] = json_value(status, _described)
            raise
        finally:
            if row:
                self._record(sent, row, began, time.monotonic() - clock)

    def _record(
        self, sent: dict[str, Any], outcome: dict[str, Any], began: float, seconds: float
    ) -> None:
        state = self._state
        reply = outcome.get("reply")
        models = [sent.get("model"), get(reply, "model", "model_version", "modelVersion")]
        names = [one if isinstance(one, str) else json_text(one) for one in models if one]
        row: dict[str, Any] = {"model": next(iter(names), None)}
        tokens, prices = tokens_in(reply), state.prices
        price = next((prices[name] for name in names if name in prices), None)
        if tokens is not None:
            row["tokens"] = tokens
            if prices and price is None:
                state.add_notice(
                    f"prices= has no price for the model {short_repr(row['model'])}: the cost of "
                    "its calls is None."
                )
        row["cost"] = None if tokens is None or price is None else cost_of(tokens, price)
        with state.writer.lock:
            before = self._last_request()
            new, kept = _delta(before or {}, sent)
            row.update(prefix=dict(compare(before, sent)._asdict()), request=new, kept=kept)
            row.update(outcome, ts=began, seconds=round(seconds, 6))
            task = current_task(self._scope.tools)
            self._scope.model_calls.append(row if task is None else {**row, "task": task})
            self._last = (len(self._scope.model_calls), began), sent

    def _last_request(self) -> dict[str, Any] | None:
        """Return the last request of this history; None before the first."""
        rows = self._scope.model_calls
        if not rows:
            return None
        place = len(rows), rows[-1]["ts"]
        if self._last is None or self._last[0] != place:  # resumed, rolled back or forked
            self._last = place, self.request(-1)
        return self._last[1]


def whole_requests(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Iterate over the whole requests of rows, from the first on."""
    request: dict[str, Any] = {}
    for row in rows:
        request = _restored(request, row)
        yield request


def _for_client(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request with logs as lists, which client libraries accept."""
    return {
        name: plain(value) if isinstance(value, Log) else value for name, value in request.items()
    }


def _request_json(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request as JSON, without clients and credentials.

    The conversation is recorded as it is sent, because it is also stored as such.
    """
    return {
        name: _without_credentials(json_value(value, _described), name)
        if name not in _CONVERSATION
        else json_value(value, _described)
        for name, value in request.items()
        if name not in _NOT_RECORDED and not _is_credential(name)
    }


def _without_credentials(value: Any, within: str) -> Any:
    if isinstance(value, list):
        return [_without_credentials(item, within) for item in value]
    if not isinstance(value, dict):
        return value
    if within == "properties":  # of a JSON schema: its names are those of parameters
        return {name: _without_credentials(item, "") for name, item in value.items()}
    return {
        name: _without_credentials(item, name)
        for name, item in value.items()
        if not _is_credential(name) and not (within == "config" and name in _NOT_RECORDED)
    }


def _is_credential(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^a-zA-Z0-9]+", "_", name).lower()
    return _CREDENTIAL.search(words) is not None


def _reply_json(reply: Any) -> Any:
    """Return a reply as JSON.

    Raises:
        InvalidInputError: it is a stream.
    """
    is_model = hasattr(reply, "model_dump")
    if not is_model and any(
        hasattr(reply, name) for name in ("__next__", "__anext__", "__enter__")
    ):
        raise InvalidInputError(_STREAM)
    return json_value(reply, _described)


def _described(value: Any) -> Any:
    if isinstance(value, SimpleNamespace):
        return plain(vars(value))
    return f"<{value.__name__ if isinstance(value, type) else type(value).__name__}>"


def _delta(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is new in a request, and how much of each value is kept from the one before.

    A value is kept as a whole (True), or the first items of a list.
    """
    new: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    for name, value in now.items():
        old = before.get(name)
        if isinstance(value, list) and isinstance(old, list):
            same = 0
            while same < min(len(old), len(value)) and _is_same(old[same], value[same]):
                same += 1
            if same:
                kept[name] = True if same == len(old) == len(value) else same
            if kept.get(name) is not True:
                new[name] = value[same:]
        elif name in before and _is_same(old, value):
            kept[name] = True
        else:
            new[name] = value
    return new, kept


def _is_same(one: Any, other: Any) -> bool:
    return one is other or json_text(one) == json_text(other)


def _restored(before: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the whole request of a row, from the request before."""
    new, kept = row["request"], row["kept"]
    request = {
        name: before[name] if part is True else [*before[name][:part], *new.get(name, ())]
        for name, part in kept.items()
    }
    return {**request, **{name: value for name, value in new.items() if name not in kept}}
