"""Routes about the server itself: health, version, Prometheus metrics, the live page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.fronts import Front
from segstore.server.control_api.models import Counts, Health, ServerInfo, ServerVersion, StoreCounts, StoreInfo
from segstore.server.control_api.problems import ApiProblem, problem_response, shown
from segstore.server.net import address_text
from segstore.server.page import live_page
from segstore.wire import OLDEST_COMPATIBLE_VERSION
from segstore.wire.extras import pip_command

if TYPE_CHECKING:
    from prometheus_client import Metric

_HELP = {"outstanding_bytes": "Bytes held for all peers.", "segments": "Segments, including indexes."}


router = APIRouter()


@router.get("/v1/health", tags=["server"], summary="Health")
async def health(controlled: Here) -> Health:
    return Health(stores=len(controlled.stores), controller=controlled.controller_address() is not None)


@router.get("/v1/version", tags=["server"], summary="Versions")
async def version(controlled: Here) -> ServerVersion:
    return ServerVersion(
        segstore=controlled.version,
        wire_version=controlled.wire_version,
        oldest_compatible_version=OLDEST_COMPATIBLE_VERSION,
    )


@router.get("/v1/server", tags=["server"], summary="Services and addresses")
async def server(controlled: Here) -> ServerInfo:
    return ServerInfo(
        segstore=controlled.version,
        started_ms=controlled.started_ms,
        controller=address_text(controlled.controller_address()),
        capabilities=controlled.capabilities,
        data=None if controlled.data is None else shown(str(controlled.data)),
        tls=controlled.tls,
        containers=controlled.containers,
        stores=[store_info(front) for front in controlled.fronts],
    )


@router.get("/v1/counters", tags=["server"], summary="Counters as plain numbers")
async def counters(controlled: Here) -> Counts:
    counted = [(front.number, *front.counters()) for front in controlled.fronts]
    stores = [StoreCounts(store=store, totals=totals, now=now) for store, totals, now in counted]
    return Counts(time_s=time.monotonic(), stores=stores)


@router.get(
    "/metrics",
    tags=["server"],
    summary="Counters in Prometheus text format",
    response_class=PlainTextResponse,
    responses={501: problem_response("prometheus-client is not installed.")},
)
async def metrics(controlled: Here) -> Response:
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise ApiProblem(501, f"metrics need prometheus-client: {pip_command('metrics')}", "path") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Counters(controlled))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def store_info(front: Front) -> StoreInfo:
    addresses = {name: address_text(getattr(front, name)) for name in ("address", "admin_address", "upstream")}
    return StoreInfo.of(front, store=front.number, **addresses)


class _Counters:
    """Prometheus collector that reads the counters when it is queried."""

    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def family(kind: Any, name: str, text: str, label: str, values: Iterable[tuple[object, float]]) -> Metric:
            metric: Any = kind(f"segstore_{name}", text, labels=[label])
            for value, number in values:
                metric.add_metric([str(value)], number)
            return cast("Metric", metric)

        faults = self._controlled.faults
        counted = [(front.number, front.counters()) for front in self._controlled.fronts]
        for at, kind in enumerate((CounterMetricFamily, GaugeMetricFamily)):
            for name in counted[0][1][at] if counted else ():
                values = [(store, counters[at][name]) for store, counters in counted]
                yield family(kind, name, _HELP.get(name, f"{name.replace('_', ' ').capitalize()}."), "store", values)
        if faults is not None:
            for part, text in (("matched", "Matches of a rule."), ("fired", "How often a rule fired.")):
                tallied = [(tally.name, getattr(tally, part)) for tally in faults.tallies()]
                yield family(CounterMetricFamily, f"fault_{part}", text, "rule", tallied)


page = APIRouter()


_page = cache(live_page)


@page.get("/", include_in_schema=False)
async def live() -> Response:
    head, tail, policy = _page()
    headers = {
        "content-security-policy": f"{policy}; frame-ancestors 'none'",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
    }
    return HTMLResponse(head + tail, headers=headers)
