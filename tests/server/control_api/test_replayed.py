"""The HTTP API of a replay: its problems, its counters, and what it lacks."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from segstore.server.control_api import Controlled
from segstore.server.replay import TraceServer
from segstore.wire import ReadSegment, SegmentCreated, encode
from segstore.wire.commands import SetupAppend
from segstore.wire.trace import CONTROLLER, Call, Direction, Record, RecordKind
from tests.server.control_api.support import alone, done, refusal
from tests.server.support import HELLO, SEGMENT, WRITER, create

TRACE = [
    Record(at, 1, Direction(direction), RecordKind.FRAME, encode(command))
    for at, (direction, command) in enumerate([(0, HELLO), (1, HELLO), (0, create()), (1, SegmentCreated(1, SEGMENT))])
]


@pytest.fixture
async def replay() -> AsyncIterator[TraceServer]:
    async with TraceServer(TRACE, mode="match", missing="close") as server:
        yield server


@pytest.fixture
async def http(replay: TraceServer) -> AsyncIterator[httpx.AsyncClient]:
    async with alone(Controlled(replay=replay)) as client:
        yield client


async def sent(replay: TraceServer, *requests: Any) -> None:
    """Sends requests that the trace lacks, each on a connection of its own, which the replay closes."""
    for request in requests:
        reader, writer = await asyncio.open_connection(replay.host, replay.port)
        writer.write(encode(HELLO) + encode(request))
        assert await reader.read() == encode(HELLO)
        writer.transport.abort()


async def test_problems_are_listed_in_pages(replay: TraceServer, http: httpx.AsyncClient) -> None:
    assert await done(http, "GET", "/v1/problems") == {"total": 0, "problems": [], "next": None}
    await sent(replay, *(ReadSegment(f"scope/stream/{number}", 0, 10, "", 1) for number in range(3)))
    page = await done(http, "GET", "/v1/problems", limit=2)
    assert (page["total"], page["next"]) == (3, 2)
    assert [(each["number"], each["connection"]) for each in page["problems"]] == [(1, 1), (2, 2)]
    (last,) = (await done(http, "GET", "/v1/problems", after=2))["problems"]
    assert (last["request"], last["expected"]) == ("READ_SEGMENT", None)
    assert last["detail"] == str(replay.problems[2]) == "connection 3: READ_SEGMENT is not in the trace"
    counted = (await done(http, "GET", "/v1/counters"))["stores"]
    assert counted[0]["totals"] == {"connections": 3, "requests": 6, "problems": 3}


async def test_a_delegation_token_is_not_shown(replay: TraceServer, http: httpx.AsyncClient) -> None:
    await sent(replay, SetupAppend(3, WRITER, SEGMENT, "a secret token"))
    answer = await http.get("/v1/problems")
    assert "SETUP_APPEND" in answer.text
    assert "secret" not in answer.text


@pytest.mark.usefixtures("grpc_runs")
async def test_a_problem_of_the_controller_has_no_connection(replay: TraceServer, http: httpx.AsyncClient) -> None:
    calls = [
        Record(0, CONTROLLER, Direction.REQUEST, RecordKind.CALL, Call(1, "listScopes").pack()),
        Record(1, CONTROLLER, Direction.REPLY, RecordKind.CALL, Call(1, "listScopes", status="OK").pack()),
    ]
    await replay.start_controller([*TRACE, *calls])
    replay.call(Call(1, "createScope"))
    (found,) = (await done(http, "GET", "/v1/problems"))["problems"]
    assert (found["connection"], found["request"]) == (None, "createScope")


async def test_it_lists_what_it_is_and_refuses_the_rest(replay: TraceServer, http: httpx.AsyncClient) -> None:
    found = await done(http, "GET", "/v1/server")
    assert found["capabilities"] == ["replay", "counters"]
    assert [each["address"] for each in found["stores"]] == [f"{replay.host}:{replay.port}"]
    for method, path in (("GET", "/v1/segments"), ("GET", "/v1/faults"), ("GET", "/v1/requests"), ("GET", "/")):
        status, said, where = refusal(await http.request(method, path))
        assert (status, where) == (409, "path")
        assert said.startswith("a replay has problems only")


async def test_stores_refuse_what_only_a_replay_has() -> None:
    async with alone(Controlled()) as other:
        said = refusal(await other.get("/v1/problems"))[1]
        assert said == "only a replay answers from a trace: this is a request for `segstore replay`"


async def test_its_description_has_only_what_it_serves(http: httpx.AsyncClient) -> None:
    description = await done(http, "GET", "/v1/openapi.json")
    assert [error.message for error in OpenAPIV31SpecValidator(description).iter_errors()] == []
    served = {"/v1/health", "/v1/version", "/v1/server", "/v1/counters", "/metrics", "/v1/problems"}
    assert description["paths"].keys() == served
