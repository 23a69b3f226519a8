"""Routes about the latest requests: list them, show a request in detail, send a request again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Path, Query

from segstore.server.control_api.controlled import Controlled, Here
from segstore.server.control_api.detail import detail_of
from segstore.server.control_api.models import LatestRequests, RequestDetail, RequestInfo, SentAgain
from segstore.server.control_api.problems import ApiProblem, required, shown
from segstore.server.control_api.routes import NUMBER
from segstore.server.control_api.routes.resending import resend
from segstore.server.traffic import History, RecordedRequest, Traffic
from segstore.wire.trace import MOST_TEXT, Exchange, FilterError

_NEIGHBOURS = 10


router = APIRouter(prefix="/v1")
sending = APIRouter(prefix="/v1")
"""The routes that need a store."""


async def _about(history: History, number: int, count: int) -> tuple[RecordedRequest, list[tuple[int, Exchange]]]:
    """Returns a request, and up to `count` records before and after it. Raises ApiProblem."""
    request, beside = await history.about(number, count)
    if request is None:
        raise ApiProblem(404, f"there is no request {number}, or it is no longer kept", "path.number")
    return request, beside


@router.get("/requests", tags=["requests"], summary="The latest requests, newest first")
async def list_requests(
    controlled: Here,
    match: Annotated[
        str, Query(max_length=MOST_TEXT, description='A filter: `type = READ_SEGMENT and segment ~ "scope/*"`.')
    ] = "",
    after: Annotated[int, Query(ge=0, description="Only requests with a greater number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of requests.")] = 100,
) -> LatestRequests:
    history = required(controlled.history)
    try:
        requests = await history.find(match, limit=limit, after=after)
    except (FilterError, ValueError) as error:
        raise ApiProblem(422, f"query.match: {error}", "query.match") from error
    traffic, numbers = history.traffic, _numbers(controlled)
    infos = [_info(request, traffic, numbers) for request in requests]
    return LatestRequests(last=traffic.last_request, forgotten=traffic.first_request - 1, requests=infos)


@router.get(f"/requests/{NUMBER}", tags=["requests"], summary="A request and its reply in detail")
async def get_request(controlled: Here, number: Annotated[int, Path(ge=1)]) -> RequestDetail:
    history = required(controlled.history)
    request, beside = await _about(history, number, _NEIGHBOURS)
    return detail_of(_info(request, history.traffic, _numbers(controlled)), request, beside, history.traffic)


@sending.post(f"/requests/{NUMBER}/send", tags=["requests"], summary="Send a request again, as a client of its own")
async def send_request(controlled: Here, number: Annotated[int, Path(ge=1)]) -> SentAgain:
    traffic = required(controlled.history).traffic
    request, _ = await _about(required(controlled.history), number, 0)
    facts = traffic.peers.get(request.request.connection, {})
    at = _number(_numbers(controlled), facts.get("store", ""))
    store = next((store for store in controlled.stores if store.number == at), None)
    if store is None:  # a request of the controller, or of a store that listens elsewhere now
        owner = next((controlled.store_of(segment) for segment in request.request.segments), None)
        store = owner or controlled.stores[0]
    return await resend(request, store, traffic, admin=facts.get("port") == "admin")


def _info(recorded: RecordedRequest, traffic: Traffic, numbers: Mapping[str, int]) -> RequestInfo:
    request, reply = recorded.request, recorded.reply
    peer = traffic.peers.get(request.connection, {})
    return RequestInfo.of(
        request,
        number=recorded.number,
        store=_number(numbers, peer.get("store", "")),
        role=peer.get("role", ""),
        type=shown(request.name),
        segments=[shown(segment) for segment in request.segments],
        streams=[shown(stream) for stream in request.streams],
        request_id=None if request.request_id is None else str(request.request_id),
        size=recorded.size,
        received_ms=request.record.ts_ns // 1_000_000,
        stage=recorded.stage,
        reply=None if reply is None else shown(reply.outcome),
        latency_ms=None if request.latency_ns is None else request.latency_ns / 1e6,
        faults=[shown(fault) for fault in recorded.faults],
    )


def _numbers(controlled: Controlled) -> dict[str, int]:
    """The numbers of stores, by the address in the records of their connections.

    A store of this process is recognised by its port, under any host name; on a tap it is the store's own address.
    """
    numbers = {}
    for front in controlled.fronts:
        if front.upstream is not None:
            numbers[str(front.upstream)] = front.number
            continue
        for where in (front.address, front.admin_address):
            if where is not None:
                numbers[str(where.port)] = front.number
    return numbers


def _number(numbers: Mapping[str, int], address: str) -> int | None:
    return numbers.get(address, numbers.get(address.rpartition(":")[2]))
