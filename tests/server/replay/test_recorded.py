"""The controller beside a trace with controller calls, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from segstore.server.cluster import MockCluster
from segstore.server.replay import TraceServer
from segstore.server.replay.server import TraceOptions
from segstore.wire.controller_api import METHODS
from segstore.wire.controller_api import messages as m
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Call, Record
from tests.looped import looped
from tests.server.controller.calls import Client
from tests.server.replay.test_calls import MADE, STREAM, TWO, ask, one_by_one, reply, scope, trace
from tests.server.support import until

pytestmark = pytest.mark.usefixtures("grpc_runs")

CODE = grpc.StatusCode
NOT_THERE = "controller: createScope is not in the trace"
SUCCESSORS = "getSegmentsImmediatelyFollowing"


@asynccontextmanager
async def replaying(records: list[Record], **options: Any) -> AsyncIterator[tuple[TraceServer, Client]]:
    given: TraceOptions = {"mode": "match", **options}  # type: ignore[typeddict-item]  # of the tests below
    async with TraceServer(records, **given) as server:
        address = await server.start_controller(records)
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield server, Client(channel)


async def refusal(client: Client, rpc: str, request: Any = None) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client(rpc, request)
    return caught.value.code(), caught.value.details() or ""


async def test_calls_are_answered_with_the_replays_addresses() -> None:
    segment = m.SegmentId(streamInfo=STREAM)
    there = m.NodeUri(endpoint="10.1.2.3", port=9)
    records = one_by_one(
        (ask("getURI", segment), reply("getURI", there)),
        (ask("getControllerServerList"), reply("getControllerServerList", m.ServerResponse(nodeURI=[there]))),
    )
    async with replaying(records, mode="strict") as (server, client):
        assert await client("getURI", segment) == m.NodeUri(endpoint=server.host, port=server.port)
        (controller,) = (await client("getControllerServerList")).nodeURI
        async with grpc.aio.insecure_channel(f"{controller.endpoint}:{controller.port}") as channel:
            again = CODE.INVALID_ARGUMENT, "controller: getURI was answered before"
            assert await refusal(Client(channel), "getURI", segment) == again
        assert [each.outcome for each in server.recent][:2] == [
            "answered as call 1 of the trace",
            "answered as call 2 of the trace",
        ]
        assert str(server.recent[0]).startswith("request 1: getURI of a/s to the controller: ")


async def test_a_failure_has_its_status_details_and_trailing_metadata() -> None:
    failed = reply("createScope", status="UNAVAILABLE", details="é gone", metadata={"segstore-outcome": "unknown"})
    async with replaying(one_by_one((MADE, failed), (MADE, reply("createScope")))) as (_, client):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client("createScope", scope("a"))
        assert (caught.value.code(), caught.value.details()) == (CODE.UNAVAILABLE, "é gone")
        assert ("segstore-outcome", "unknown") in tuple(caught.value.trailing_metadata() or ())
        assert await client("createScope", scope("a")) == m.CreateScopeStatus()


@looped("answer", [None, reply("createScope", status="CANCELLED")])
async def test_a_call_without_an_answer_ends_with_the_callers_deadline_or_the_server(answer: Call | None) -> None:
    records = trace(MADE, *((answer,) if answer is not None else ()))
    async with replaying(records) as (server, client):
        asked = asyncio.create_task(refusal(client, "createScope", scope("a")))
        await until(lambda: server.requests == 1)
        assert not asked.done()
        await server.stop()
        code, details = await asked
        assert code is CODE.UNAVAILABLE
        assert "stopped" in details


@looped(("missing", "code"), [("error", CODE.INVALID_ARGUMENT), ("close", CODE.UNAVAILABLE)])
async def test_a_call_that_is_not_in_the_trace_is_a_problem(missing: str, code: grpc.StatusCode) -> None:
    seen: list[str] = []
    async with replaying(TWO, missing=missing, tell=lambda problem: seen.append(str(problem))) as (server, client):
        assert await refusal(client, "createScope", scope("ab")) == (code, NOT_THERE)
        assert (await client("createScope", scope("a"))).status == m.CreateScopeStatus.SUCCESS
        assert server.unused() == {"createScope": 1}
        assert server.missed() == ['call 2: createScope scope="b"']
    assert [each.splitlines()[1] for each in seen] == [
        "  near: call 1 of the trace: scope: 'ab' here, 'a' in the trace"
    ]


async def test_a_failed_server_refuses_all_calls_but_has_every_segment_and_no_successors() -> None:
    async with replaying(TWO, missing="fail") as (server, client):
        assert await refusal(client, "createScope", scope("c")) == (CODE.INVALID_ARGUMENT, NOT_THERE)
        assert server.failure.startswith(f"{NOT_THERE}\n  near: ")
        assert (await refusal(client, "createScope", scope("a")))[0] is CODE.INVALID_ARGUMENT
        segment = m.SegmentId(streamInfo=STREAM)
        assert await client("getURI", segment) == m.NodeUri(endpoint=server.host, port=server.port)
        assert await client(SUCCESSORS, segment) == m.SuccessorResponse()
        assert len(server.problems) == 1


async def test_a_deadline_ends_calls_that_wait() -> None:
    async with replaying(trace(MADE), timeout_s=0.05) as (_, client):
        code, details = await refusal(client, "createScope", scope("a"))
        assert (code, details) == (CODE.INVALID_ARGUMENT, "the trace was still answering clients after 0.05 s")


async def test_answers_take_their_time_at_the_recorded_pace() -> None:
    late = trace(MADE, reply("createScope"))
    late[1] = late[1]._replace(ts_ns=3_600_000_000_000)
    async with replaying(late, pace=1.0) as (server, client):
        asked = asyncio.create_task(refusal(client, "createScope", scope("a")))
        await until(lambda: server.requests == 1)
        await asyncio.sleep(0.02)
        assert not asked.done()
        await server.stop()
        assert (await asked)[0] is CODE.UNAVAILABLE
    async with replaying(late, pace=1e6) as (_, client):
        assert await client("createScope", scope("a")) == m.CreateScopeStatus()


async def test_methods_that_no_trace_has_and_other_services_are_refused() -> None:
    async with replaying(TWO) as (server, client):
        path = METHODS["createScope"].path
        for method, code in ((f"{path}New", CODE.INVALID_ARGUMENT), ("/other/method", CODE.UNIMPLEMENTED)):
            call = client._channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"\xff")
            assert caught.value.code() is code
        assert [str(problem) for problem in server.problems] == ["controller: createScopeNew is not in the trace"]


async def test_without_calls_that_can_be_answered_the_controller_knows_the_names() -> None:
    async with replaying(trace(b"{}")) as (server, client):
        assert [str(call) for call in server.left_out_calls] == ["record 1: 2 bytes that are not a call"]
        assert (await client("createScope", scope("any"))).status == m.CreateScopeStatus.SUCCESS
        assert server.problems == []


@asynccontextmanager
async def forwarding(records: list[Record], **options: Any) -> AsyncIterator[tuple[MockCluster, TraceServer, Client]]:
    """A replay before a cluster, and a client of it."""
    async with MockCluster(1) as cluster:
        upstream = {
            "upstream": cluster.stores[0].address,
            "upstream_controller": Endpoint.parse(cluster.controller_uri),
        }
        async with replaying(records, missing="pass", **upstream, **options) as (server, client):
            yield cluster, server, client


async def test_calls_that_the_trace_lacks_are_forwarded_and_answers_have_the_replays_addresses() -> None:
    async with forwarding(TWO) as (cluster, server, client):
        for name in ("a", "c"):
            assert await client.status("createScope", scope(name)) == "SUCCESS"
        stream = m.StreamInfo(scope="c", stream="s")
        made = m.StreamConfig(streamInfo=stream, scalingPolicy=m.ScalingPolicy(minNumSegments=1))
        assert await client.status("createStream", made) == "SUCCESS"
        there = await client("getURI", m.SegmentId(streamInfo=stream))
        assert there == m.NodeUri(endpoint=server.host, port=server.port)
        (controller,) = (await client("getControllerServerList")).nodeURI
        assert controller.port != Endpoint.parse(cluster.controller_uri).port
        assert cluster.controller.scopes.exists("c")
        assert not cluster.controller.scopes.exists("a")
        assert [str(problem).splitlines()[0] for problem in server.problems] == [
            "controller: createScope is not in the trace",
            "controller: createStream is not in the trace",
            "controller: getURI is not in the trace",
            "controller: getControllerServerList is not in the trace",
        ]
        assert [each.outcome for each in server.recent][1] == "a problem, missing='pass'"


async def test_how_the_other_controller_refuses_a_call_is_a_problem_and_the_answer() -> None:
    async with forwarding(TWO) as (cluster, server, client):
        where = f"the controller at {cluster.controller_uri} answers"
        assert await client.status("createScope", scope("a")) == "SUCCESS"
        made = m.StreamConfig(streamInfo=STREAM, scalingPolicy=m.ScalingPolicy(minNumSegments=1))
        assert await client.status("createStream", made) == "SCOPE_NOT_FOUND"
        cluster.faults.add("rpc = createScope", do={"status": "ABORTED", "details": "not today"})
        assert await refusal(client, "createScope", scope("c")) == (CODE.ABORTED, "not today")
        assert [str(problem) for problem in server.problems if problem.refusal] == [
            f"controller: createStream was forwarded: {where} SCOPE_NOT_FOUND",
            f"controller: createScope was forwarded: {where} ABORTED: not today",
        ]


async def test_a_controller_that_cannot_be_reached_is_a_problem_and_a_lost_connection() -> None:
    nowhere = ("127.0.0.1", 1)
    async with replaying(TWO, missing="pass", upstream=nowhere, upstream_controller=nowhere) as (server, client):
        assert (await refusal(client, "createScope", scope("c")))[0] is CODE.UNAVAILABLE
        (_, problem) = server.problems
        assert problem.refusal.startswith("no connection to the controller at 127.0.0.1:1: ")
        assert "refused" in problem.refusal


async def test_without_a_controller_to_forward_to_calls_are_refused() -> None:
    async with replaying(TWO, missing="pass", upstream=("127.0.0.1", 1)) as (_, client):
        assert (await refusal(client, "createScope", scope("c")))[0] is CODE.INVALID_ARGUMENT
    with pytest.raises(ValueError, match="upstream_controller goes with missing='pass'"):
        TraceServer(TWO, upstream_controller=("127.0.0.1", 1))
