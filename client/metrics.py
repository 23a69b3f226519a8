"""Client metrics for prometheus-client, which is imported only here: `pip install 'segstore[metrics]'`.

    from prometheus_client import REGISTRY
    REGISTRY.register(segstore.client.metrics.collector(pravega, name="orders"))

Invariant: a scrape reads the numbers in the client's own event loop, whichever thread it runs in, and waits no longer
than its timeout: then it gives the last ones, and their age. Names and help come from `METRICS`, one for each field of
`PoolMetrics`; there are no others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from segstore.client.client import Client
from segstore.client.connection import PoolMetrics

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX: Final = "segstore_client_"


class _Described(NamedTuple):
    name: str
    help: str
    counts: bool = False


METRICS: Final[dict[str, _Described]] = {
    "connections": _Described("connections", "Connections to stores that are ready."),
    "connecting": _Described("connections_being_set_up", "Connections to stores that are being set up."),
    "flows": _Described("flows", "Writers, readers and users of requests on these connections."),
    "bytes_in_flight": _Described("in_flight_bytes", "Appended bytes that were not acknowledged."),
    "connections_opened": _Described("connections_opened", "Connections that became ready.", counts=True),
    "connections_failed": _Described("connections_failed", "Set-ups of connections that failed.", counts=True),
    "connections_lost": _Described("connections_lost", "Ready connections that this side did not end.", counts=True),
    "reconnects": _Described("reconnects", "Connections that became ready after one was lost.", counts=True),
    "dropped_replies": _Described("dropped_replies", "Replies that no flow wanted any more.", counts=True),
    "failed_flows": _Described("failed_flows", "Flows that their user's error ended.", counts=True),
    "keep_alives": _Described("keep_alives", "Keep-alives that were sent.", counts=True),
    "bytes_in": _Described("received_bytes", "Bytes that came from stores.", counts=True),
    "bytes_out": _Described("sent_bytes", "Bytes that went to stores.", counts=True),
}
"""By the field of `PoolMetrics`."""


class _Source:
    """One client, read from any thread."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._last = client.metrics()
        self._read_at_s = time.monotonic()

    def read(self) -> tuple[PoolMetrics, float]:
        """The numbers and how old they are, in seconds; 0 if they were read just now."""
        asked_s = time.monotonic()
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._take()
        elif not self._loop.is_closed():
            taken = threading.Event()

            def take() -> None:
                self._take()
                taken.set()

            try:
                self._loop.call_soon_threadsafe(take)
            except RuntimeError:
                return self._last, max(asked_s - self._read_at_s, 0.0)  # closed since: the age says so
            taken.wait(self._timeout_s)
        return self._last, max(asked_s - self._read_at_s, 0.0)

    def _take(self) -> None:
        self._last, self._read_at_s = self._client.metrics(), time.monotonic()


class Collector:
    """What a registry of prometheus-client collects from: one for all clients of a process. Made by `collector`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._sources: dict[str, _Source] = {}

    def add(self, client: Client, *, name: str) -> None:
        """One more client, open, in whose event loop this is called. Raises ValueError if the name is taken."""
        if name in self._sources:
            raise ValueError(f"there is a client {name!r}: each needs a name of its own")
        self._sources[name] = _Source(client, self._timeout_s)

    def remove(self, name: str) -> None:
        """Forgets a client; nothing if there is none of the name."""
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
        text = "How old the client's numbers are: above 0 if its event loop did not answer."
        family = GaugeMetricFamily(_PREFIX + "metrics_age_seconds", text, labels=["client"])
        for name, (_, age_s) in read.items():
            family.add_metric([name], age_s)
        yield family


def collector(client: Client, *, name: str = "default", timeout_s: float = 1.0) -> Collector:
    """A collector of an open client's numbers, to be registered; `add` takes further clients. In its event loop.

    name: the label `client`. timeout_s: how long a scrape waits for the loop. Raises ImportError without
    prometheus-client, Closed before the client is open.
    """
    try:
        import prometheus_client  # noqa: F401 — whether it is there
    except ImportError as cause:
        raise ImportError(
            "prometheus-client is not installed, which segstore.client.metrics needs: pip install 'segstore[metrics]'; "
            "client.metrics() gives the same numbers without it",
            name="prometheus_client",
        ) from cause
    made = Collector(timeout_s)
    made.add(client, name=name)
    return made
