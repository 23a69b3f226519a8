"""Routes that keep requests, wait for them and verify their number, and wait for requests held by a fault rule.

They use the log of requests that `mock.requests` and `mock.wait_for` use. A mock keeps it from its start to its end,
`segstore serve` until `DELETE /v1/requests/keep`, and a tap only from `POST /v1/requests/keep`. Where it is not kept,
waits and verifications are refused: they would count only the requests that come from then on.
Invariant: a wait ends by its deadline, or with its connection.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query

from segstore.server.control_api.controlled import Controlled, Here, faults_of, faults_with
from segstore.server.control_api.problems import ApiProblem, shown
from segstore.server.control_api.routes import NAME
from segstore.server.control_api.steering.models import Held, Matched, RequestLogEnd, Verified
from segstore.server.faults import NoSuchRule, NotSeen, Observer, StageName, line_of
from segstore.wire.printable import printable
from segstore.wire.trace import MOST_TEXT, FilterError

_MOST_KEPT: Final = 1_000_000
_SHOWN: Final = 3
_LONGEST: Final = 1_000
_Match = Annotated[
    str, Query(max_length=MOST_TEXT, description='A filter: `type = APPEND_BLOCK_END and segment ~ "s/*"`.')
]
_Stage = Annotated[StageName, Query(description="The stage that the requests must have reached.")]
_Since = Annotated[int, Query(ge=0, description="Only kept requests with a greater number count.")]
_Timeout = Annotated[float, Query(gt=0, le=50, description="Seconds to wait.")]
_Count = Annotated[int | None, Query(ge=0)]


router = APIRouter(prefix="/v1")


def _observer(controlled: Controlled, since: int) -> tuple[Observer, int]:
    """Returns the log of requests, and the number above which its requests count. Raises ApiProblem."""
    observer = faults_of(controlled).observer
    if observer is None or observer.kept_from is None:
        why = "requests are not kept here yet: POST /v1/requests/keep, or `segstore ctl keep`, before the test"
        raise ApiProblem(409, why, "path")
    return observer, max(since, observer.kept_from)


@router.post("/requests/keep", tags=["requests"], summary="Keep requests from now on")
async def keep_requests(controlled: Here) -> RequestLogEnd:
    return RequestLogEnd(last=controlled.keep_requests(faults_of(controlled)).last)


@router.delete("/requests/keep", tags=["requests"], summary="Stop keeping requests", status_code=204)
async def stop_keeping_requests(controlled: Here) -> None:
    faults = faults_of(controlled)
    if faults.observer is not controlled.observer:
        raise ApiProblem(409, "this server keeps requests from its start to its end", "path")
    if faults.observer is not None and faults.observer.history is None and faults.observer.is_waited_for:
        raise ApiProblem(409, "waits are in progress; end them first", "path")
    controlled.stop_keeping_requests(faults)


@router.delete("/requests", tags=["requests"], summary="Forget the requests so far", status_code=204)
async def forget_requests(controlled: Here) -> None:
    controlled.forget_requests()


@router.get("/requests/wait", tags=["requests"], summary="Wait until requests have reached a stage")
async def wait_for_requests(
    controlled: Here,
    match: _Match = "",
    count: Annotated[int, Query(ge=1, le=_MOST_KEPT, description="Number of requests to wait for.")] = 1,
    stage: _Stage = "applied",
    timeout_s: _Timeout = 5.0,
    since: _Since = 0,
) -> Matched:
    observer, since = _observer(controlled, since)
    try:
        last = await observer.wait_for(match, count=count, stage=stage, timeout_s=timeout_s, since=since)
    except (FilterError, ValueError) as error:
        raise _bad_filter(error) from error
    except NotSeen as error:
        raise ApiProblem(409, shown(str(error)), "query.match") from error
    return Matched(number=last.number, type=last.type_name, segments=[shown(segment) for segment in last.segments])


@router.get("/requests/verify", tags=["requests"], summary="Verify the number of requests")
async def verify_requests(
    controlled: Here,
    match: _Match = "",
    stage: _Stage = "received",
    since: _Since = 0,
    exactly: _Count = None,
    at_least: _Count = None,
    at_most: _Count = None,
) -> Verified:
    bounds = {"exactly": exactly, "at least": at_least, "at most": at_most}
    expected = [f"{name} {bound}" for name, bound in bounds.items() if bound is not None]
    if not expected:
        raise ApiProblem(422, "query: one of exactly, at_least and at_most is needed", "query")
    low, high = max(exactly or 0, at_least or 0), [bound for bound in (exactly, at_most) if bound is not None]
    if any(low > bound for bound in high):
        raise ApiProblem(422, f"query: no number is {' and '.join(expected)}", "query")
    observer, since = _observer(controlled, since)
    try:
        requests = await observer.find(match, stage, since)
    except (FilterError, ValueError) as error:
        raise _bad_filter(error) from error
    count = len(requests)
    if count < low or any(count > bound for bound in high):
        noun, verb = "request" if expected[-1].endswith(" 1") else "requests", "was" if count == 1 else "were"
        about = f" with {printable(match, _LONGEST)}" if match else ""
        known = f" ({observer.forgotten} older requests were discarded)" if observer.forgotten else ""
        said = f"expected {' and '.join(expected)} {noun}{about}, {count} {verb} {stage}{known}"
        said += f"; {observer.last_request()}"
        matching = (f"matched: {line_of(request)}" for request in requests[:_SHOWN])
        examples = observer.near(match, stage, since) if count < low else matching
        raise ApiProblem(409, shown("\n  ".join([said, *examples])), "query")
    return Verified(count=count)


@router.post(f"/faults/{NAME}/wait", tags=["faults"], summary="Wait until a rule holds requests or replies")
async def wait_held(
    controlled: Here,
    name: Annotated[str, Path(description="The name of a rule.")],
    count: Annotated[int, Query(ge=1, le=_MOST_KEPT)] = 1,
    timeout_s: _Timeout = 5.0,
) -> Held:
    faults = faults_with(controlled, name)
    try:
        await faults.wait_held(name, count, timeout_s)
    except (TimeoutError, ValueError) as error:
        raise ApiProblem(409, shown(str(error)), "path.name") from error
    except NoSuchRule as error:
        raise ApiProblem(404, f"the rule was removed during the wait: {error}", "path.name") from error
    return Held(held=faults.held(name))


def _bad_filter(error: FilterError | ValueError) -> ApiProblem:
    """A filter that cannot be read, or that no request can match."""
    return ApiProblem(422, f"query.match: {error}", "query.match")
