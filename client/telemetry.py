"""OpenTelemetry spans and metrics of a client, through its API package.

They are recorded if the program has set up a provider of traces or metrics before the client is opened; otherwise the
package is not used. Names follow OpenTelemetry's semantic conventions for messaging and RPC.

Spans: `send` for each `write` and `flush` of an event writer, `receive` for each read that a reader hands to its user,
and each call to a controller. Metrics: durations of these operations, and numbers of events. The numbers of the pool
are in `segstore.client.metrics`.

Invariants: the provider is looked up once for each client; without a provider, no operation is observed. Payloads,
routing keys and tokens are not recorded. Events have no headers, so the context of a trace does not travel with them.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from segstore.client.stream import EventWriter
from segstore.wire.controller_api import SERVICE

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, Meter
    from opentelemetry.trace import Span, Tracer

_NAME: Final = "segstore.client"
_SYSTEM: Final = {"messaging.system": "pravega"}


def _provider(package: str, name: str) -> tuple[ModuleType, Any] | None:
    """Returns a module of the API and the provider that the program has set up, if any."""
    module = sys.modules.get(f"opentelemetry.{package}")  # a program that has set one up has imported it
    if module is None:
        return None
    provider = getattr(module, name)()
    if type(provider).__module__.startswith(f"opentelemetry.{package}"):  # the API's own, which records nothing
        return None
    return module, provider


class Telemetry:
    """The spans and metrics of a client. Created by `telemetry_of`."""

    def __init__(self, traces: tuple[ModuleType, Any] | None, metrics: tuple[ModuleType, Any] | None) -> None:
        self._trace = None if traces is None else traces[0]
        self._tracer: Tracer | None = None if traces is None else traces[1].get_tracer(_NAME)
        self._durations = self._sent = self._consumed = self._calls = None
        if metrics is not None:
            meter: Meter = metrics[1].get_meter(_NAME)
            self._durations = meter.create_histogram(
                "messaging.client.operation.duration", "s", "Duration of operations of writers and readers."
            )
            self._sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Events sent.")
            self._consumed = meter.create_counter(
                "messaging.client.consumed.messages", "{message}", "Events handed to the program."
            )
            self._calls = meter.create_histogram("rpc.client.duration", "ms", "Duration of calls to controllers.")

    @contextmanager
    def sending(self, stream: str, count: int) -> Iterator[None]:
        """Observes the storing of `count` events."""
        attributes = _operation("send", stream)
        with _measured(self._durations, attributes), self._span(f"send {stream}", "PRODUCER", attributes, count):
            yield
        if self._sent is not None:
            self._sent.add(count, attributes)

    @contextmanager
    def calling(self, method: str) -> Iterator[None]:
        """Observes a call to a controller."""
        attributes = {"rpc.system": "grpc", "rpc.service": SERVICE, "rpc.method": method}
        with _measured(self._calls, attributes, 1000), self._span(f"{SERVICE}/{method}", "CLIENT", attributes):
            yield

    def receiving(self, stream_of: Callable[[Any], str], group: str | None = None) -> Receiving:
        """Returns the observer of a reader. stream_of: returns "scope/stream" of a segment, as the reader names it."""
        return Receiving(self, stream_of, group)

    def received(self, stream: str, group: str | None, count: int, waited_s: float) -> None:
        """Reports that a reader has handed over events for which it waited that long."""
        attributes = _operation("receive", stream)
        if group is not None:
            attributes["messaging.consumer.group.name"] = group
        if self._tracer is not None and self._trace is not None:
            now_ns = time.time_ns()
            span = self._tracer.start_span(
                f"receive {stream}",
                kind=self._trace.SpanKind.CLIENT,
                attributes={**attributes, "messaging.batch.message_count": count},
                start_time=now_ns - int(waited_s * 1e9),
            )
            span.end(now_ns)
        if self._durations is not None and self._consumed is not None:
            self._durations.record(waited_s, attributes)
            self._consumed.add(count, attributes)

    @contextmanager
    def _span(self, name: str, kind: str, attributes: Mapping[str, Any], count: int | None = None) -> Iterator[None]:
        if self._tracer is None or self._trace is None:
            yield
            return
        if count is not None:
            attributes = {**attributes, "messaging.batch.message_count": count}
        span: Span
        with self._tracer.start_as_current_span(name, kind=self._trace.SpanKind[kind], attributes=attributes) as span:
            try:
                yield
            except (Exception, asyncio.CancelledError) as error:
                span.set_attribute("error.type", type(error).__name__)
                raise


@contextmanager
def _measured(durations: Histogram | None, attributes: Mapping[str, Any], per_s: int = 1) -> Iterator[None]:
    """Records how long the block takes, in units of which a second has `per_s`."""
    began_s = time.perf_counter()
    try:
        yield
    finally:
        if durations is not None:
            durations.record((time.perf_counter() - began_s) * per_s, attributes)


def telemetry_of() -> Telemetry | None:
    """Returns what observes a client; None if the program has set up no provider."""
    traces = _provider("trace", "get_tracer_provider")
    metrics = _provider("metrics", "get_meter_provider")
    return None if traces is None and metrics is None else Telemetry(traces, metrics)


def _operation(name: str, stream: str) -> dict[str, Any]:
    named = {"messaging.operation.name": name, "messaging.operation.type": name}
    return {**_SYSTEM, **named, "messaging.destination.name": stream}


@dataclass(slots=True, eq=False)
class Receiving:
    """Observes the events that a reader hands to its user."""

    _telemetry: Telemetry
    _stream_of: Callable[[Any], str]
    _group: str | None
    _since_s: float | None = None

    def waits(self) -> None:
        """The user waits from now on, if it did not before."""
        if self._since_s is None:
            self._since_s = time.perf_counter()

    def took(self, segment: Any, count: int) -> None:
        """Events of one read of a segment are handed over."""
        waited_s = 0.0 if self._since_s is None else time.perf_counter() - self._since_s
        self._since_s = None
        self._telemetry.received(self._stream_of(segment), self._group, count, waited_s)


class ObservedEventWriter(EventWriter):
    """An event writer with spans and metrics. A `flush` covers the events submitted before it."""

    def __init__(self, *of_writer: Any, telemetry: Telemetry, **options: Any) -> None:
        """of_writer, options: as for `EventWriter`."""
        super().__init__(*of_writer, **options)
        self._telemetry = telemetry
        self._submitted = 0

    async def write(self, event: bytes, *, routing_key: str | None = None) -> None:
        """As in the base class."""
        with self._telemetry.sending(self._name, 1):
            await super().write(event, routing_key=routing_key)

    async def submit(self, event: bytes, *, routing_key: str | None = None) -> asyncio.Future[None]:
        """As in the base class."""
        self._submitted += 1
        return await super().submit(event, routing_key=routing_key)

    async def flush(self) -> None:
        """As in the base class."""
        count, self._submitted = self._submitted, 0
        if not count:
            return await super().flush()
        with self._telemetry.sending(self._name, count):
            return await super().flush()
