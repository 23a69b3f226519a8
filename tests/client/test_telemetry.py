"""Spans and metrics through OpenTelemetry, recorded by its SDK; and nothing without a provider."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest

from segstore.client import Client, connect
from segstore.client.errors import NoSuchStream, RequestRejected
from segstore.client.telemetry import ObservedEventWriter, telemetry_of
from segstore.server.cluster import MockCluster
from tests.client.support import make_stream, settings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Telemetry:
    """What the SDK has recorded."""

    def __init__(self, exporter: InMemorySpanExporter, reader: InMemoryMetricReader) -> None:
        self._exporter = exporter
        self._reader = reader

    def spans(self, start: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(start)]

    async def metrics(self) -> dict[str, Any]:
        """Name → first data point. Collected in another thread, as exporters do."""
        data = await asyncio.to_thread(self._reader.get_metrics_data)
        return {
            metric.name: metric.data.data_points
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Telemetry:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: tracers)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)
    return Telemetry(exporter, reader)


@pytest.fixture
async def pravega(grpc_runs: None, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    if "telemetry" in request.fixturenames:
        request.getfixturevalue("telemetry")  # a client looks for providers when it is opened
    async with MockCluster() as mock, connect(f"tcp://{mock.controller_uri}", settings()) as client:
        await make_stream(client)
        yield client


@pytest.mark.needs("opentelemetry-sdk")
async def test_writes_reads_and_calls_are_spans(telemetry: Telemetry, pravega: Client) -> None:
    async with pravega.event_writer("a", "s") as writer:
        await writer.write(b"secret", routing_key="key")
        for _ in range(3):
            await writer.submit(b"secret")
        await writer.flush()
    async with pravega.event_reader("a", "s") as reader:
        got = 0
        async for events in reader.slices():
            got += len(events)
            if got == 4:
                break
    one, three = telemetry.spans("send a/s")
    assert dict(one.attributes or {}) == {
        "messaging.system": "pravega",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "a/s",
        "messaging.batch.message_count": 1,
    }
    assert one.kind.name == "PRODUCER"
    assert (three.attributes or {})["messaging.batch.message_count"] == 3
    received = telemetry.spans("receive a/s")
    assert sum(int((each.attributes or {})["messaging.batch.message_count"]) for each in received) == 4
    (call,) = telemetry.spans("io.pravega.controller.stream.api.grpc.v1.ControllerService/createStream")
    assert (call.kind.name, (call.attributes or {})["rpc.method"]) == ("CLIENT", "createStream")
    assert "secret" not in str([span.to_json() for span in telemetry.spans("")])

    points = await telemetry.metrics()
    assert points["messaging.client.sent.messages"][0].value == 4
    assert points["messaging.client.consumed.messages"][0].value == 4
    durations = {
        point.attributes["messaging.operation.name"]: point for point in points["messaging.client.operation.duration"]
    }
    assert durations["send"].count == 2


@pytest.mark.needs("opentelemetry-sdk")
async def test_readers_of_a_group_name_the_group(telemetry: Telemetry, pravega: Client) -> None:
    async with pravega.event_writer("a", "s") as writer:
        await writer.write(b"event")
    async with pravega.reader_group("a", "g", streams=["s"]) as group, group.reader("r") as reader:
        assert await reader.read() is not None
    (received,) = telemetry.spans("receive a/s")
    assert (received.attributes or {})["messaging.consumer.group.name"] == "a/g"


@pytest.mark.needs("opentelemetry-sdk")
async def test_an_error_is_in_the_span(telemetry: Telemetry, pravega: Client) -> None:
    with pytest.raises(NoSuchStream):
        await pravega.event_writer("a", "none").open()
    with pytest.raises((RequestRejected, NoSuchStream)):
        await pravega.controller.create_stream("none", "s")
    failed = [span for span in telemetry.spans("") if "error.type" in (span.attributes or {})]
    assert {(each.attributes or {})["error.type"] for each in failed} == {"NoSuchStream"}
    assert all(each.status.status_code.name == "ERROR" for each in failed)


@pytest.mark.needs("opentelemetry-sdk")
async def test_a_cancelled_write_is_named_in_its_span(telemetry: Telemetry, grpc_runs: None) -> None:
    async with MockCluster() as mock, connect(f"tcp://{mock.controller_uri}", settings()) as client:
        await make_stream(client)
        rule = mock.faults.add("type = APPEND_BLOCK_END", do="hold")
        async with client.event_writer("a", "s") as writer:
            write = asyncio.create_task(writer.write(b"event"))
            await mock.faults.wait_held(rule)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            mock.faults.release(rule)
    (span,) = telemetry.spans("send a/s")
    assert (span.attributes or {})["error.type"] == "CancelledError"


async def test_without_a_provider_nothing_observes(pravega: Client) -> None:
    assert telemetry_of() is None
    async with pravega.event_writer("a", "s") as writer:
        assert not isinstance(writer, ObservedEventWriter)


def test_the_client_does_not_import_the_package() -> None:
    program = (
        "import sys, segstore.client.telemetry as t; "
        "print(sorted(each for each in sys.modules if each.startswith('opentelemetry')), t.telemetry_of())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] None\n"


async def test_log_records_carry_facts(grpc_runs: None, caplog: pytest.LogCaptureFixture) -> None:
    quick = settings(refused_timeout_ms=20)
    with caplog.at_level(logging.WARNING, "segstore.client"):
        async with connect("tcp://127.0.0.1:1", quick) as client:
            with pytest.raises(Exception, match="no controller could be reached"):
                await client.controller.create_scope("a")
    (record,) = [each for each in caplog.records if "retrying" in each.getMessage()]
    assert vars(record)["endpoint"] == "127.0.0.1:1"
