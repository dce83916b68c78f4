"""Reports operations to OpenTelemetry as spans and metrics. Needs the extra `otel`.

Attributes of tools, models and conversations have the names of OpenTelemetry's conventions for
generative AI. Arguments, results, messages and state are never reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agent_checkpoint import __version__, telemetry
from agent_checkpoint.adapters import needs_extra
from agent_checkpoint.errors import ConflictError, Suspended

with needs_extra("otel"):
    from opentelemetry import metrics, trace
    from opentelemetry.trace import SpanKind, Status, StatusCode

_NAMES = {
    "key": "gen_ai.conversation.id",
    "agent": "gen_ai.agent.name",
    "tool": "gen_ai.tool.name",
    "call_id": "gen_ai.tool.call.id",
    "model": "gen_ai.request.model",
    "checkpoint": "gen_ai.agent.checkpoint.id",
    "input": "gen_ai.usage.input_tokens",
    "output": "gen_ai.usage.output_tokens",
    "error": "error.type",
}
_IN_METRICS = frozenset({"tool", "model", "kind", "operation", "error"})
_SPANS = {"tool": "execute_tool", "model": "chat"}
_EVENTS = {
    "save": "gen_ai.agent.checkpointed",
    "paused": "gen_ai.agent.paused",
    "resumed": "gen_ai.agent.resumed",
}
_COUNTERS = {
    "conflict": "Writes that found that another writer had written first.",
    "retry": "Calls of a store that were repeated after a failure.",
    "paused": "Sessions that were suspended for an approval.",
    "resumed": "Sessions that were resumed.",
}


def instrument(
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Report the operations of this process from now on, to the global providers by default."""
    telemetry.set_observer(_Reporter(tracer_provider, meter_provider))


def uninstrument() -> None:
    """Report nothing any more."""
    telemetry.set_observer(None)


class _Reporter:
    """The observer: a span and a duration for each operation, counters, events."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        meter_provider: metrics.MeterProvider | None,
    ) -> None:
        self._tracer = trace.get_tracer("agent_checkpoint", __version__, tracer_provider)
        meter = metrics.get_meter("agent_checkpoint", __version__, meter_provider)
        self._duration = meter.create_histogram(
            "agent_checkpoint.operation.duration", "s", "Duration of operations."
        )
        self._size = meter.create_counter(
            "agent_checkpoint.save.size", "By", "Size of the entries of saved checkpoints."
        )
        self._counters = {
            name: meter.create_counter(f"agent_checkpoint.{name}.count", "1", text)
            for name, text in _COUNTERS.items()
        }

    @contextmanager
    def operation(self, name: str, attributes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Report a block as a span and its duration."""
        outcome: dict[str, Any] = {}
        known = dict(attributes)
        subject = known.get("tool") or known.get("model")
        title = (
            f"{_SPANS[name]} {subject or ''}".rstrip()
            if name in _SPANS
            else f"agent_checkpoint.{name}"
        )
        began = time.perf_counter()
        with self._tracer.start_as_current_span(
            title,
            kind=SpanKind.CLIENT if name == "model" else SpanKind.INTERNAL,
            attributes=_named(known),
            record_exception=False,  # a message may contain what must not be reported
            set_status_on_exception=False,
        ) as span:
            try:
                yield outcome
            except BaseException as error:
                known["error"] = type(error).__name__
                if not isinstance(error, Suspended):
                    span.set_status(Status(StatusCode.ERROR, known["error"]))
                if isinstance(error, ConflictError):
                    self.count("conflict", {"operation": name})
                raise
            finally:
                known.update(outcome.pop("tokens", None) or {})
                known.update(outcome)
                span.set_attributes(_named(known))
                if name in _EVENTS and "error" not in known:
                    span.add_event(_EVENTS[name], _named(known, {"key", "checkpoint"}))
                    self._size.add(known.get("size", 0), {"kind": known.get("kind", "")})
                labels = {"operation": name, **_named(known, _IN_METRICS)}
                self._duration.record(time.perf_counter() - began, labels)

    def count(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Count an occurrence; those of a session are events of the current span as well."""
        self._counters[name].add(1, _named(attributes, _IN_METRICS))
        if name in _EVENTS:
            trace.get_current_span().add_event(_EVENTS[name], _named(attributes))


def _named(
    attributes: Mapping[str, Any], only: frozenset[str] | set[str] | None = None
) -> dict[str, Any]:
    """Return attributes by their public names, without those that are not known."""
    return {
        _NAMES.get(name, name if name == "operation" else f"agent_checkpoint.{name}"): value
        for name, value in attributes.items()
        if value not in (None, "") and (only is None or name in only)
    }
