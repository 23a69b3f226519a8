"""Routes about the server itself: health, version, Prometheus metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.models import Counts, Health, Served, StoreCounts, StoreInfo, Version
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.net import address_text
from segstore.server.node import SegmentStoreServer
from segstore.wire import OLDEST_COMPATIBLE_VERSION

if TYPE_CHECKING:
    from prometheus_client import Metric

_GAUGES = ("connections_open",)


def router(controlled: Controlled) -> APIRouter:
    made = APIRouter()

    @made.get("/v1/health", tags=["server"], summary="Health")
    async def health() -> Health:
        return Health(stores=len(controlled.stores), controller=controlled.controller() is not None)

    @made.get("/v1/version", tags=["server"], summary="Versions")
    async def version() -> Version:
        return Version(
            segstore=controlled.version,
            wire_version=controlled.stores[0].settings.wire_version,
            oldest_compatible_version=OLDEST_COMPATIBLE_VERSION,
        )

    @made.get("/v1/server", tags=["server"], summary="Services and addresses")
    async def server() -> Served:
        settings = controlled.stores[0].settings
        return Served(
            segstore=controlled.version,
            started_ms=controlled.started_ms,
            controller=address_text(controlled.controller_address()),
            data=None if controlled.data is None else shown(str(controlled.data)),
            tls=settings.tls_cert is not None,
            containers=controlled.containers,
            stores=[
                StoreInfo(
                    store=each.number,
                    address=address_text(each.address),
                    admin_address=address_text(each.admin_address),
                    serving=each.address is not None and not each.hub.closing,
                )
                for each in controlled.stores
            ],
        )

    @made.get("/v1/counters", tags=["server"], summary="Counters as plain numbers")
    async def counters() -> Counts:
        return Counts(time_s=time.monotonic(), stores=[_counts(each) for each in controlled.stores])

    @made.get(
        "/metrics", tags=["server"], summary="Counters in Prometheus text format", response_class=PlainTextResponse
    )
    async def metrics() -> Response:
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise ApiProblem(501, "metrics need prometheus-client: pip install segstore[metrics]", "path") from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Counters(controlled))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return made


def _segments(store: SegmentStoreServer) -> int:
    return sum(len(container.segments) for container in store.store.containers.values())


def _counts(store: SegmentStoreServer) -> StoreCounts:
    counted: dict[str, int] = msgspec.structs.asdict(store.service.counters)
    now = {name: counted.pop(name) for name in _GAUGES}
    return StoreCounts(
        store=store.number,
        totals=counted,
        now={**now, "outstanding_bytes": store.hub.outstanding_bytes, "segments": _segments(store)},
    )


class _Counters:
    """Prometheus collector that reads the stores' counters when it is queried."""

    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    def describe(self) -> list[Any]:
        """Returns nothing, so that registration does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stores = self._controlled.stores
        for field in msgspec.structs.fields(type(stores[0].service.counters)):
            family = GaugeMetricFamily if field.name in _GAUGES else CounterMetricFamily
            said = f"{field.name.replace('_', ' ').capitalize()}."
            metric = family(f"segstore_{field.name}", said, labels=["store"])
            for each in stores:
                metric.add_metric([str(each.number)], getattr(each.service.counters, field.name))
            yield metric
        held = GaugeMetricFamily("segstore_outstanding_bytes", "Bytes held for all peers.", labels=["store"])
        segments = GaugeMetricFamily("segstore_segments", "Segments, including indexes.", labels=["store"])
        for each in stores:
            held.add_metric([str(each.number)], each.hub.outstanding_bytes)
            segments.add_metric([str(each.number)], _segments(each))
        yield held
        yield segments
        faults = self._controlled.faults
        if faults is not None:
            matched = CounterMetricFamily("segstore_fault_matched", "Matches of a rule.", labels=["rule"])
            fired = CounterMetricFamily("segstore_fault_fired", "How often a rule fired.", labels=["rule"])
            for tally in faults.tallies():
                matched.add_metric([tally.name], tally.matched)
                fired.add_metric([tally.name], tally.fired)
            yield matched
            yield fired
