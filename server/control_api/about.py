"""About the server itself: that it is there, what it is, its counters for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.models import Health, Version
from segstore.server.control_api.problems import ApiProblem
from segstore.wire import OLDEST_COMPATIBLE_VERSION

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["router"]

_GAUGES = ("connections_open",)


def router(controlled: Controlled) -> APIRouter:
    made = APIRouter()

    @made.get("/v1/health", tags=["server"], summary="That it answers")
    async def health() -> Health:
        return Health(stores=len(controlled.stores), controller=controlled.controller() is not None)

    @made.get("/v1/version", tags=["server"], summary="What it is")
    async def version() -> Version:
        return Version(
            segstore=controlled.version,
            wire_version=controlled.stores[0].settings.wire_version,
            oldest_compatible_version=OLDEST_COMPATIBLE_VERSION,
        )

    @made.get(
        "/metrics",
        tags=["server"],
        summary="Counters in the text form of Prometheus",
        response_class=PlainTextResponse,
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


class _Counters:
    """The numbers of the stores, as they are when they are asked for."""

    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    def describe(self) -> list[Any]:
        """Nothing, so that registering it does not collect."""
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
        held = GaugeMetricFamily("segstore_outstanding_bytes", "Held for all peers.", labels=["store"])
        segments = GaugeMetricFamily("segstore_segments", "Segments, those of indexes included.", labels=["store"])
        for each in stores:
            held.add_metric([str(each.number)], each.hub.outstanding_bytes)
            count = sum(len(container.segments) for container in each.store.containers.values())
            segments.add_metric([str(each.number)], count)
        yield held
        yield segments
        faults = self._controlled.faults
        if faults is not None:
            matched = CounterMetricFamily("segstore_fault_matched", "What has fitted a rule.", labels=["rule"])
            fired = CounterMetricFamily("segstore_fault_fired", "How often a rule fired.", labels=["rule"])
            for tally in faults.tallies():
                matched.add_metric([tally.name], tally.matched)
                fired.add_metric([tally.name], tally.fired)
            yield matched
            yield fired
