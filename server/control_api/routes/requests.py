"""Routes about the latest requests: a list, one in detail, sending one again, and the trace of all that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from fastapi.responses import Response, StreamingResponse

from segstore.server.control_api.controlled import Controlled, Store
from segstore.server.control_api.detail import detail_of
from segstore.server.control_api.latest import Kept, Latest
from segstore.server.control_api.models import LatestRequests, RequestDetail, RequestInfo, SentAgain
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.routes.resending import Resending
from segstore.server.traffic import Traffic
from segstore.wire.trace import FilterError, FixtureHeader, header_line, to_line

_LINES_AT_ONCE = 100
_NEIGHBOURS = 10


def router(controlled: Controlled) -> APIRouter:
    made = APIRouter(prefix="/v1")
    latest = None if controlled.traffic is None else Latest(controlled.traffic, controlled.faults)
    resending = Resending()

    def kept() -> Latest:
        if latest is None:
            raise ApiProblem(409, "requests are not kept here: history_bytes is 0", "path")
        return latest

    @made.get("/requests", tags=["requests"], summary="The latest requests, newest first")
    async def list_requests(
        match: Annotated[
            str, Query(max_length=10_000, description='A filter: `type = READ_SEGMENT and segment ~ "scope/*"`.')
        ] = "",
        after: Annotated[int, Query(ge=0, description="Only requests with a greater number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of requests.")] = 100,
    ) -> LatestRequests:
        found = kept()
        try:
            requests = await found.find(match, limit=limit, after=after)
        except FilterError as error:
            raise ApiProblem(422, f"query.match: {error}", "query.match") from error
        traffic = found.traffic
        return LatestRequests(
            last=traffic.last, forgotten=traffic.first - 1, requests=[info_of(controlled, each) for each in requests]
        )

    @made.get("/requests/{number}", tags=["requests"], summary="A request and its reply in detail")
    async def get_request(number: Annotated[int, Path(ge=1)]) -> RequestDetail:
        found = kept()
        request, beside = await found.about(number, _NEIGHBOURS)
        if request is None:
            raise ApiProblem(404, f"there is no request {number}, or it is no longer kept", "path.number")
        return detail_of(info_of(controlled, request), request, beside, found.traffic)

    @made.post("/requests/{number}/send", tags=["requests"], summary="Send a request again, as a client of its own")
    async def send_request(number: Annotated[int, Path(ge=1)]) -> SentAgain:
        found = kept()
        if not controlled.stores:
            raise ApiProblem(409, "requests cannot be sent from here: there is no store in this process", "path")
        request, _ = await found.about(number, 0)
        if request is None:
            raise ApiProblem(404, f"there is no request {number}, or it is no longer kept", "path.number")
        facts = found.traffic.peers.get(request.connection, {})
        store = _store(controlled, facts.get("store", ""))
        if store is None:  # a request of the controller, or of a store that listens elsewhere now
            store = next((controlled.store_of(each) for each in request.segments), None) or controlled.stores[0]
        return await resending.send(request, store, found.traffic, admin=facts.get("port") == "admin")

    @made.get("/trace", tags=["requests"], summary="The latest traffic as a trace", response_class=Response)
    async def get_trace(
        form: Annotated[
            Literal["wtrace", "jsonl"], Query(description="A capture, or a fixture with one record per line.")
        ] = "wtrace",
    ) -> Response:
        traffic = kept().traffic
        name = {"content-disposition": f'attachment; filename="segstore.{form}"'}
        if form == "jsonl":
            return StreamingResponse(_lines(traffic), media_type="application/x-ndjson", headers=name)
        return StreamingResponse(_pieces(traffic.trace()), media_type="application/octet-stream", headers=name)

    return made


async def _pieces(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for each in pieces:
        yield each


async def _lines(traffic: Traffic) -> AsyncIterator[bytes]:
    """The lines of a fixture, which are made as they are sent."""
    last, start_ns = traffic.flush(), traffic.started_ns
    yield f"{header_line(FixtureHeader(traffic.metadata, start_ns))}\n".encode()
    for done, (_, record) in enumerate(traffic.records(last=last), 1):
        yield f"{to_line(record, start_ns)}\n".encode()
        if done % _LINES_AT_ONCE == 0:
            await asyncio.sleep(0)


def info_of(controlled: Controlled, kept: Kept) -> RequestInfo:
    latency_ns = kept.latency_ns
    peer = {} if controlled.traffic is None else controlled.traffic.peers.get(kept.connection, {})
    store = _store(controlled, peer.get("store", ""))
    return RequestInfo(
        number=kept.number,
        store=None if store is None else store.number,
        connection=kept.connection,
        role=peer.get("role", ""),
        kind=kept.kind,
        type=shown(kept.request.name),
        segments=[shown(each) for each in kept.segments],
        request_id=None if kept.request_id is None else str(kept.request_id),
        writer_id=kept.writer_id,
        size=kept.size,
        received_ms=kept.request.record.ts_ns // 1_000_000,
        stage=kept.stage,
        reply=None if kept.reply is None else shown(kept.reply.outcome),
        failure=kept.failure,
        latency_ms=None if latency_ns is None else latency_ns / 1e6,
        faults=[shown(each) for each in kept.faults],
    )


def _store(controlled: Controlled, address: str) -> Store | None:
    """The store that listens at an address, which may name the host otherwise than its settings."""
    port = address.rpartition(":")[2]
    for each in controlled.stores:
        if any(where is not None and str(where.port) == port for where in (each.address, each.admin_address)):
            return each
    return None
