"""Route that lists the most recent requests and their outcomes.

At most 10,000 requests are examined, newest first; the store continues to serve meanwhile.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from segstore.server.control_api.controlled import Controlled
from segstore.server.control_api.models import LatestRequests, RequestInfo
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.faults import Seen
from segstore.wire.trace import FilterError


def router(controlled: Controlled) -> APIRouter:
    made = APIRouter(prefix="/v1")

    @made.get("/requests", tags=["requests"], summary="The latest requests, newest first")
    async def list_requests(
        match: Annotated[
            str, Query(max_length=10_000, description='A filter: `type = READ_SEGMENT and segment ~ "scope/*"`.')
        ] = "",
        after: Annotated[int, Query(ge=0, description="Only requests with a greater number.")] = 0,
        limit: Annotated[int, Query(ge=1, le=1_000, description="Maximum number of requests.")] = 100,
    ) -> LatestRequests:
        if controlled.faults is None:
            raise ApiProblem(409, "requests are not recorded: the store was made with watched=False", "path")
        observer, on_demand = controlled.watch.of(controlled.faults)
        try:
            found = await observer.latest(match, limit=limit, after=after)
        except FilterError as error:
            raise ApiProblem(422, f"query.match: {error}", "query.match") from error
        return LatestRequests(
            last=observer.mark(),
            forgotten=observer.forgotten,
            on_demand=on_demand,
            requests=[_info(each) for each in found],
        )

    return made


def _info(seen: Seen) -> RequestInfo:
    latency_ns = seen.latency_ns
    return RequestInfo(
        number=seen.number,
        store=seen.store,
        connection=seen.connection,
        type=seen.type_name,
        segments=[shown(each) for each in seen.segments],
        request_id=None if seen.request_id is None else str(seen.request_id),
        writer_id=seen.writer_id,
        size=seen.size,
        received_ms=round(seen.received_s * 1000),
        stage=_stage(seen),
        reply=seen.reply,
        failure=seen.failure,
        latency_ms=None if latency_ns is None else latency_ns / 1e6,
        faults=[shown(each) for each in seen.faults],
    )


def _stage(seen: Seen) -> str:
    """Returns the last stage that a request has reached."""
    if seen.replied_s is not None:
        return "replied"
    if seen.refused_s is not None:
        return "refused"
    return "received" if seen.applied_s is None else "applied"
