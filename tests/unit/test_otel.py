"""Spans and metrics: what is reported, under which names, and that no content is."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the packages of the group test")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agent_checkpoint import (
    CheckpointManager,
    ConflictError,
    Session,
    StorageError,
    Suspended,
    WrapperBackend,
    telemetry,
    tool,
)
from agent_checkpoint.adapters.otel import instrument, uninstrument
from agent_checkpoint.backends.base import BackendProperties
from agent_checkpoint.backends.memory import MemoryBackend
from agent_checkpoint.backends.wrappers.retry import RetryBackend


class Reported:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        instrument(tracers, MeterProvider([self.reader]))

    def spans(self, name: str) -> list[Any]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def metric(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def reported() -> Iterator[Reported]:
    yield Reported()
    uninstrument()


@tool
def look(what: str) -> str:
    return f"a secret about {what}"


@tool(effect="irreversible", key=lambda what: what, approve=True)
def deploy_it(what: str) -> str:
    return what


def test_save_and_load(reported: Reported) -> None:
    manager = CheckpointManager()
    checkpoint = manager.save("job", {"n": 1})
    manager.load("job", {"n": 0})
    (save,) = reported.spans("agent_checkpoint.save")
    assert save.attributes["gen_ai.conversation.id"] == "job"
    assert save.attributes["gen_ai.agent.checkpoint.id"] == checkpoint
    assert save.attributes["agent_checkpoint.kind"] == "save"
    assert [event.name for event in save.events] == ["gen_ai.agent.checkpointed"]
    (load,) = reported.spans("agent_checkpoint.load")
    assert load.attributes["gen_ai.agent.checkpoint.id"] == checkpoint
    durations = {
        point.attributes["operation"]: point.count
        for point in reported.metric("agent_checkpoint.operation.duration")
    }
    assert durations == {"capture": 1, "save": 1, "load": 1}
    (size,) = reported.metric("agent_checkpoint.save.size")
    assert size.value > 0


def test_conflicts_and_errors(reported: Reported) -> None:
    manager = CheckpointManager()
    first = manager.save("job", {"n": 1})
    manager.save("job", {"n": 2})
    with pytest.raises(ConflictError):
        manager.load("job", {}, expected_head=first)
    (load,) = reported.spans("agent_checkpoint.load")
    assert load.attributes["error.type"] == "ConflictError"
    assert not load.events  # no message, which may contain a value
    (count,) = reported.metric("agent_checkpoint.conflict.count")
    assert (count.value, dict(count.attributes)) == (1, {"operation": "load"})


def test_a_save_behind_another_writer_is_a_conflict(reported: Reported) -> None:
    class RemoteBackend(WrapperBackend):  # a save assumes that its last checkpoint is the head
        @property
        def properties(self) -> BackendProperties:
            return self.inner.properties._replace(is_local=False)

    backend = RemoteBackend(MemoryBackend())
    ours, theirs = CheckpointManager(backend), CheckpointManager(backend)
    for number in range(3):
        ours.save("job", {"n": number})
    theirs.save("job", {"n": 3})
    ours.save("job", {"n": 4})
    (count,) = reported.metric("agent_checkpoint.conflict.count")
    assert (count.value, dict(count.attributes)) == (1, {"operation": "save"})
    assert len(reported.spans("agent_checkpoint.save")) == 5


def test_gc_and_retries(reported: Reported) -> None:
    class Flaky(MemoryBackend):
        failures = 2

        def list_objects(self) -> Any:
            self.failures -= 1
            if self.failures >= 0:
                raise StorageError("unreachable", retryable=True)
            return super().list_objects()

    CheckpointManager(RetryBackend(Flaky(), attempts=3, sleep=lambda _: None)).gc()
    (gc,) = reported.spans("agent_checkpoint.gc")
    assert gc.attributes["agent_checkpoint.objects"] == 0
    (count,) = reported.metric("agent_checkpoint.retry.count")
    assert count.value == 2


def test_tools_models_and_sessions(reported: Reported) -> None:
    manager = CheckpointManager()
    message = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {"what": "x"}}],
    }
    reply = SimpleNamespace(usage={"prompt_tokens": 7, "completion_tokens": 3}, content="secret")
    with Session("job", store=manager, provider="anthropic") as session:
        session.messages.append({"role": "user", "content": "go"})
        session.model(lambda **request: reply, model="m-1", messages=session.messages)
        session.run_tools(message, [look])
        asyncio.run(session.arun_tools({**message, "content": []}, [look]))
        with pytest.raises(Suspended):
            deploy_it("v1")
        session.rollback()
    Session("job", store=manager).close()
    (called,) = reported.spans("execute_tool look")
    assert called.attributes["gen_ai.tool.name"] == "look"
    assert called.attributes["gen_ai.tool.call.id"] == "t1"
    assert called.attributes["gen_ai.conversation.id"] == "job"
    (chat,) = reported.spans("chat m-1")
    assert chat.attributes["gen_ai.request.model"] == "m-1"
    assert chat.attributes["gen_ai.usage.input_tokens"] == 7
    assert chat.attributes["gen_ai.usage.output_tokens"] == 3
    assert len(reported.spans("agent_checkpoint.rollback")) == 1
    assert [point.value for point in reported.metric("agent_checkpoint.paused.count")] == [1]
    assert [point.value for point in reported.metric("agent_checkpoint.resumed.count")] == [1]
    assert "secret" not in "".join(
        span.to_json() for span in reported.exporter.get_finished_spans()
    )


def test_a_failed_tool_is_an_error_without_its_message(reported: Reported) -> None:
    @tool
    def break_down() -> None:
        raise ValueError("the password is swordfish")

    with Session("job"), pytest.raises(ValueError, match="swordfish"):
        break_down()
    (span,) = reported.spans("execute_tool break_down")
    assert span.attributes["error.type"] == "ValueError"
    assert "swordfish" not in span.to_json()


def test_nothing_is_reported_unless_asked(reported: Reported) -> None:
    uninstrument()
    CheckpointManager().save("job", {"n": 1})
    assert not reported.exporter.get_finished_spans()
    with telemetry.operation("save") as outcome:
        outcome["checkpoint"] = "x"
    telemetry.count("retry")
