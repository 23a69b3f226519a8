"""Client metrics for prometheus-client, which is imported only here; it is the extra `metrics`.

    from prometheus_client import REGISTRY
    REGISTRY.register(segstore.client.metrics.collector(pravega, name="orders"))

Invariant: a scrape reads the numbers in the client's own event loop, from any thread, and waits no longer than its
timeout; on expiry it returns the last numbers and their age. `METRICS` gives name and help text for each field of
`PoolMetrics`; there are no other metrics.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.client.connection import PoolMetrics
from segstore.wire.extras import pip_command

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from segstore.client.client import Client

_PREFIX: Final = "segstore_client_"


class _Described(NamedTuple):
    name: str
    help: str
    counts: bool = False


METRICS: Final[dict[str, _Described]] = {
    "connections_opened": _Described("connections_opened", "Connections that became ready.", counts=True),
    "connections_failed": _Described("connections_failed", "Connection set-ups that failed.", counts=True),
    "connections_lost": _Described("connections_lost", "Ready connections not closed by this side.", counts=True),
    "reconnects": _Described("reconnects", "Connections that became ready after one was lost.", counts=True),
    "dropped_replies": _Described("dropped_replies", "Replies for closed flows.", counts=True),
    "failed_flows": _Described("failed_flows", "Flows ended by an error of their user.", counts=True),
    "keep_alives": _Described("keep_alives", "Keep-alives sent.", counts=True),
    "bytes_in": _Described("received_bytes", "Bytes received from stores.", counts=True),
    "bytes_out": _Described("sent_bytes", "Bytes sent to stores.", counts=True),
    "connections": _Described("connections", "Ready connections to stores."),
    "connecting": _Described("connections_being_set_up", "Connections to stores being set up."),
    "flows": _Described("flows", "Writers, readers and request clients on these connections."),
    "bytes_in_flight": _Described("in_flight_bytes", "Appended bytes not yet acknowledged."),
}
"""Metrics by field of `PoolMetrics`."""


class _Source:
    """The metrics of one client, readable from any thread. Must be created in the client's event loop."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._last = client.metrics()
        self._read_at_s = time.monotonic()

    def read(self) -> tuple[PoolMetrics, float]:
        """Returns the numbers and their age in seconds, 0 if just read."""
        asked_s = time.monotonic()
        taken = threading.Event()
        if threading.get_ident() == self._thread:
            self._take(taken)
        else:
            with suppress(RuntimeError):  # the loop has closed; the age shows it
                self._loop.call_soon_threadsafe(self._take, taken)
                taken.wait(self._timeout_s)
        return self._last, max(asked_s - self._read_at_s, 0.0)

    def _take(self, taken: threading.Event) -> None:
        self._last, self._read_at_s = self._client.metrics(), time.monotonic()
        taken.set()


class Collector:
    """A prometheus-client collector for one or more clients of a process. Created by `collector`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sources: dict[str, _Source] = {}

    def add(self, client: Client, *, name: str) -> None:
        """Adds an open client; must be called in its event loop. Raises ValueError if the name is taken."""
        if name in self._sources:
            raise ValueError(f"client {name!r} is already registered: each needs its own name")
        self._sources[name] = _Source(client, self._timeout_s)

    def remove(self, name: str) -> None:
        """Removes a client; a no-op if the name is unknown."""
        self._sources.pop(name, None)

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        read = {name: source.read() for name, source in tuple(self._sources.items())}
        family: CounterMetricFamily | GaugeMetricFamily
        for field, (called, text, counts) in METRICS.items():
            kind = CounterMetricFamily if counts else GaugeMetricFamily
            family = kind(_PREFIX + called, text, labels=["client"])
            for name, (numbers, _) in read.items():
                family.add_metric([name], getattr(numbers, field))
            yield family
        text = "Age of the client's numbers: above 0 if its event loop did not answer."
        family = GaugeMetricFamily(_PREFIX + "metrics_age_seconds", text, labels=["client"])
        for name, (_, age_s) in read.items():
            family.add_metric([name], age_s)
        yield family


def collector(client: Client, *, name: str = "default", timeout_s: float = 1.0) -> Collector:
    """Returns a collector of an open client's metrics; `add` takes further clients. Call it in the client's event loop.

    name: the label `client`. timeout_s: how long a scrape waits for the loop. Raises ImportError without
    prometheus-client, and Closed if the client is not open.
    """
    try:
        import prometheus_client  # noqa: F401 — checks that it is installed
    except ImportError as cause:
        raise ImportError(
            f"segstore.client.metrics needs prometheus-client, which is not installed: {pip_command('metrics')}; "
            "client.metrics() gives the same numbers without it",
            name="prometheus_client",
        ) from cause
    metrics = Collector(timeout_s)
    metrics.add(client, name=name)
    return metrics
