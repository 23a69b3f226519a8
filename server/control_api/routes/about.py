"""Routes about the server itself: health, version, Prometheus metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from segstore.server.control_api.controlled import Controlled, Store
from segstore.server.control_api.models import Counts, Health, Served, StoreCounts, StoreInfo, Version
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.net import address_text
from segstore.wire import OLDEST_COMPATIBLE_VERSION
from segstore.wire.extras import pip_command

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
            raise ApiProblem(501, f"metrics need prometheus-client: {pip_command('metrics')}", "path") from error
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Counters(controlled))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return made


def _segments(store: Store) -> tuple[int, int]:
    """Returns the numbers of segments and of their indexes, without iterating over them."""
    containers = store.store.containers.values()
    indexes = sum(each.index_count for each in containers)
    return sum(len(each.segments) for each in containers) - indexes, indexes


def _counts(store: Store) -> StoreCounts:
    counted: dict[str, int] = msgspec.structs.asdict(store.service.counters)
    now = {name: counted.pop(name) for name in _GAUGES}
    segments, indexes = _segments(store)
    return StoreCounts(
        store=store.number,
        totals=counted,
        now={**now, "outstanding_bytes": store.hub.outstanding_bytes, "segments": segments, "index_segments": indexes},
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

        def family(kind: Any, name: str, text: str, label: str, values: Iterable[tuple[object, float]]) -> Metric:
            made: Any = kind(f"segstore_{name}", text, labels=[label])
            for value, number in values:
                made.add_metric([str(value)], number)
            return cast("Metric", made)

        stores, faults = self._controlled.stores, self._controlled.faults
        for field in msgspec.structs.fields(type(stores[0].service.counters)):
            name, kind = field.name, GaugeMetricFamily if field.name in _GAUGES else CounterMetricFamily
            counts = ((each.number, getattr(each.service.counters, name)) for each in stores)
            yield family(kind, name, f"{name.replace('_', ' ').capitalize()}.", "store", counts)
        held = ((each.number, each.hub.outstanding_bytes) for each in stores)
        yield family(GaugeMetricFamily, "outstanding_bytes", "Bytes held for all peers.", "store", held)
        segments = [(each.number, *_segments(each)) for each in stores]
        kept = ((store, count) for store, count, _ in segments)
        yield family(GaugeMetricFamily, "segments", "Segments, without indexes.", "store", kept)
        indexes = ((store, count) for store, _, count in segments)
        yield family(GaugeMetricFamily, "index_segments", "Index segments.", "store", indexes)
        if faults is not None:
            matched = [(each.name, each.matched) for each in faults.tallies()]
            yield family(CounterMetricFamily, "fault_matched", "Matches of a rule.", "rule", matched)
            fired = [(each.name, each.fired) for each in faults.tallies()]
            yield family(CounterMetricFamily, "fault_fired", "How often a rule fired.", "rule", fired)
