"""Controller calls: recorded, observed, and under fault rules."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from segstore.server.clock import LoopClock
from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Calls, CallsInFlight
from segstore.server.faults import Faults, Observer, Rule
from segstore.server.tap import TapServer, TapSettings
from segstore.wire.controller_api import METHODS, SERVICE, messages
from segstore.wire.trace import Call, Direction
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")


class Recorded:
    """Keeps calls; the connections of stores are not its business."""

    def __init__(self) -> None:
        self.requests = 0
        self.calls: list[tuple[Direction, Call]] = []
        self.answered = asyncio.Event()

    def called(self, direction: Direction, call: Call) -> None:
        self.calls.append((direction, call))
        if direction is Direction.REPLY:
            self.answered.set()

    def opened(self, **facts: str) -> int:
        return 1

    def received(self, *_: Any) -> None: ...

    def sent(self, *_: Any) -> None: ...

    def closed(self, *_: Any, **facts: str) -> None: ...


async def call(
    server: MockCluster | TapServer, rpc: str, request: Any, timeout_s: float | None = 10, **metadata: str
) -> Any:
    method = METHODS[rpc]
    async with grpc.aio.insecure_channel(str(server.controller_address)) as channel:
        ask = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return await ask(request, timeout=timeout_s, metadata=tuple(metadata.items()))


SCOPE = messages.ScopeInfo(scope="s")


async def test_calls_are_recorded_with_metadata_and_outcome() -> None:
    recorded = Recorded()
    async with MockCluster() as mock:
        for store in mock.stores:
            store.hub.recorder = recorded
        await call(mock, "createScope", SCOPE, custom="x")
        await call(mock, "createScope", SCOPE)
        mock.faults.add("rpc = deleteScope", do={"status": "aborted", "details": "by a rule"})
        with pytest.raises(grpc.aio.AioRpcError):
            await call(mock, "deleteScope", SCOPE)
    ways, calls = zip(*recorded.calls, strict=True)
    assert list(ways) == [Direction.REQUEST, Direction.REPLY] * 3
    assert [each.number for each in calls] == [1, 1, 2, 2, 3, 3]
    assert calls[0].metadata["custom"] == "x"
    assert calls[0].content == SCOPE
    assert calls[0].peer.startswith("ipv4:127.0.0.1:")
    assert [each.outcome for each in calls[1::2]] == ["OK", "SCOPE_EXISTS", "ABORTED"]
    assert calls[-1].details == "by a rule"


async def test_a_method_that_does_not_exist_is_recorded_and_a_request_of_the_log() -> None:
    recorded = Recorded()
    async with MockCluster() as mock:
        mock.stores[0].hub.recorder = recorded
        async with grpc.aio.insecure_channel(str(mock.controller_address)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary(f"/{SERVICE}/notThere")(b"abc")
        assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        await mock.wait_for("status = UNIMPLEMENTED", stage="refused")
        assert [each.call and each.call.rpc for each in mock.requests()] == ["notThere"]
    (_, request), (_, reply) = recorded.calls
    assert (request.rpc, request.message) == ("notThere", b"abc")
    assert (reply.rpc, reply.status, reply.details) == ("notThere", "UNIMPLEMENTED", "Method not found!")


async def test_a_call_that_its_client_gives_up_is_recorded_as_cancelled() -> None:
    recorded = Recorded()
    async with MockCluster() as mock:
        for store in mock.stores:
            store.hub.recorder = recorded
        mock.faults.add("rpc = createScope", do="drop")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(mock, "createScope", SCOPE, timeout_s=0.2)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(10):
            await recorded.answered.wait()
        assert recorded.calls[-1][1].status == "CANCELLED"
        mock.faults.clear()
        assert (await call(mock, "createScope", SCOPE)).status == messages.CreateScopeStatus.SUCCESS


async def test_calls_are_requests_of_the_log() -> None:
    async with MockCluster() as mock:
        await call(mock, "createScope", SCOPE)
        await call(mock, "createScope", SCOPE)
        refused = await mock.wait_for("rpc = createScope", stage="refused")
        assert (refused.reply, refused.failure, refused.kind) == ("SCOPE_EXISTS", True, "call")
        for match in ("", "rpc ~ *", "kind = call", "scope = s", "not malformed"):
            assert [request.reply for request in mock.requests(match)] == ["OK", "SCOPE_EXISTS"]
        assert mock.requests("kind = frame") == mock.requests("type ~ *") == []


async def test_a_call_has_a_status_from_its_end() -> None:
    async with MockCluster() as mock:
        mock.faults.add("rpc = createScope", do="hold", name="late")
        asked = asyncio.create_task(call(mock, "createScope", SCOPE))
        await mock.faults.wait_held("late")
        assert mock.requests("status ~ *") == []
        asked.cancel()
        await mock.wait_for("rpc = createScope and status = CANCELLED", stage="refused")
        mock.faults.clear()
        mock.faults.add("rpc = createScope", do={"status": "UNAVAILABLE"})
        with pytest.raises(grpc.aio.AioRpcError):
            await call(mock, "createScope", SCOPE)
        mock.faults.clear()
        await call(mock, "createScope", SCOPE)
        assert [request.status for request in mock.requests("scope = s")] == ["CANCELLED", "UNAVAILABLE", "OK"]
        assert [each.status for each in mock.requests("status != OK and failure")] == ["CANCELLED", "UNAVAILABLE"]


@looped(("do", "through_tap"), [("hold", False), ("drop", True), ("hold after", True)])
async def test_a_call_that_a_stop_interrupts_has_the_status_that_its_client_sees(do: str, through_tap: bool) -> None:
    recorded = Recorded()
    async with MockCluster() as mock:
        faults = Faults(LoopClock(), observer=Observer())
        tap = TapServer(TapSettings(controller=mock.controller_address), recorder=recorded, faults=faults)
        server: MockCluster | TapServer = tap
        if not through_tap:
            server, mock.stores[0].hub.recorder = mock, recorded
        async with tap:
            server.faults.add("rpc = createScope", do=do)
            asked = asyncio.create_task(ended(call(server, "createScope", SCOPE)))
            await server.wait_for("rpc = createScope", stage="received")
    assert (await asked)[0] == "UNAVAILABLE"
    (seen,) = server.requests("rpc = createScope", stage="refused")
    assert [seen.status, recorded.calls[-1][1].status] == ["UNAVAILABLE"] * 2
    assert seen.replied_s is not None


class Failing:
    """Ends calls with NOT_FOUND, or with an error that it did not expect."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.sends = asyncio.Event()

    async def fail(self, request: bytes, context: Any) -> bytes:
        if self.error is not None:
            raise self.error
        asyncio.get_running_loop().call_soon(self.sends.set)
        await context.abort(grpc.StatusCode.NOT_FOUND, "not here")
        return request


@looped(("error", "status"), [(None, "NOT_FOUND"), (ArithmeticError("odd"), "UNKNOWN")])
async def test_a_call_that_fails_has_the_status_that_its_client_sees(error: Exception | None, status: str) -> None:
    recorded, observer, failing = Recorded(), Observer(), Failing(error)
    faults = Faults(LoopClock(), observer=observer)
    in_flight = CallsInFlight(lambda _: failing.fail, calls=Calls(lambda: recorded, lambda: faults))
    await in_flight.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{in_flight.port}") as channel:
        asked = asyncio.create_task(ended(channel.unary_unary(METHODS["createScope"].path)(b"")))
        if error is None:
            await failing.sends.wait()
            in_flight.interrupt()  # while the status is sent
        assert (await asked)[0] == status
    await in_flight.stop(0)
    (seen,) = observer.requests("rpc = createScope", stage="refused")
    assert [seen.status, recorded.calls[-1][1].status] == [status] * 2


@looped(("at", "exists"), [("before", False), ("after", True)])
async def test_a_status_replaces_the_call_or_its_answer(at: str, exists: bool) -> None:
    async with MockCluster() as mock:
        mock.faults.add("rpc = createScope", do=[{"status": "UNAVAILABLE", "at": at}], name="gone")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(mock, "createScope", SCOPE)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert caught.value.details() == "fault rule 'gone'"
        answer = await call(mock, "createScope", SCOPE)
        expected = messages.CreateScopeStatus.SCOPE_EXISTS if exists else messages.CreateScopeStatus.SUCCESS
        assert answer.status == expected
        assert [(decision.rule, decision.type_name) for decision in mock.faults.decisions] == [("gone", "createScope")]


async def test_fields_of_an_answer_are_changed_before_or_after_the_call() -> None:
    async with MockCluster() as mock:
        mock.faults.add("rpc = createScope", do=[{"answer": {"status": "FAILURE"}}])
        assert (await call(mock, "createScope", SCOPE)).status == messages.CreateScopeStatus.FAILURE
        assert (await call(mock, "createScope", SCOPE)).status == messages.CreateScopeStatus.SCOPE_EXISTS
        mock.faults.add("rpc = deleteScope", do=[{"answer": {"status": "SCOPE_NOT_EMPTY"}, "at": "before"}])
        assert (await call(mock, "deleteScope", SCOPE)).status == messages.DeleteScopeStatus.SCOPE_NOT_EMPTY
        assert (await call(mock, "deleteScope", SCOPE)).status == messages.DeleteScopeStatus.SUCCESS


async def test_a_field_that_the_method_has_not_ends_the_call_with_the_rules_name() -> None:
    async with MockCluster() as mock:
        mock.faults.add("rpc ~ *", do={"answer": {"endpoint": "x"}}, name="address")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(mock, "createScope", SCOPE)
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "fault rule 'address'" in str(caught.value.details())


async def test_rules_about_answers_see_how_the_call_ended() -> None:
    async with MockCluster() as mock:
        mock.faults.add("status = SCOPE_EXISTS", on="reply", do={"status": "INTERNAL"})
        assert (await call(mock, "createScope", SCOPE)).status == messages.CreateScopeStatus.SUCCESS
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(mock, "createScope", SCOPE)
        assert caught.value.code() is grpc.StatusCode.INTERNAL


STREAM = messages.StreamInfo(scope="s", stream="missing")
OF_MISSING = "rpc = getCurrentSegments and status = NOT_FOUND"


async def ended(asking: Awaitable[Any]) -> tuple[str, str]:
    """The status and the details with which a call ends."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asking
    return caught.value.code().name, str(caught.value.details())


@looped("match", ["rpc = getCurrentSegments and latency >= 0ms", OF_MISSING, "rpc = getCurrentSegments and failure"])
@looped(
    ("do", "status"),
    [
        ({"delay_ms": 1}, ("NOT_FOUND", "stream s/missing does not exist")),
        ("ok", ("NOT_FOUND", "stream s/missing does not exist")),
        ({"status": "ABORTED", "details": "by a rule"}, ("ABORTED", "by a rule")),
        ({"status": "ABORTED", "at": "after"}, ("ABORTED", "fault rule 'r'")),
    ],
)
async def test_rules_about_answers_see_calls_that_end_with_a_status(match: str, do: Any, status: Any) -> None:
    async with MockCluster() as mock:
        mock.faults.add(match, on="reply", do=do, name="r")
        assert await ended(call(mock, "getCurrentSegments", STREAM)) == status
        assert [(decision.rule, decision.direction) for decision in mock.faults.decisions] == [("r", "reply")]
        seen = await mock.wait_for("rpc = getCurrentSegments", stage="refused")
        assert (seen.reply, len(seen.faults)) == (status[0], 1)


@looped(("on", "match"), [("reply", OF_MISSING), ("request", "rpc = getCurrentSegments")])
async def test_a_call_that_ends_with_a_status_is_held_until_its_rule_releases_it(on: Any, match: str) -> None:
    async with MockCluster() as mock:
        mock.faults.add(match, on=on, do="hold after", name="late")
        asked = asyncio.create_task(ended(call(mock, "getCurrentSegments", STREAM)))
        await mock.faults.wait_held("late")
        assert not asked.done()
        mock.faults.release("late")
        assert (await asked)[0] == "NOT_FOUND"


@looped(("on", "match"), [("reply", OF_MISSING), ("request", "rpc = getCurrentSegments")])
async def test_a_call_that_ends_with_a_status_is_not_answered_if_its_reply_is_dropped(on: Any, match: str) -> None:
    async with MockCluster() as mock:
        mock.faults.add(match, on=on, do="drop reply")
        assert (await ended(call(mock, "getCurrentSegments", STREAM, timeout_s=0.2)))[0] == "DEADLINE_EXCEEDED"


@looped(("on", "match"), [("reply", OF_MISSING), ("request", "rpc = getCurrentSegments")])
async def test_an_answer_in_place_of_a_status_has_the_fields_of_the_rule_only(on: Any, match: str) -> None:
    async with MockCluster() as mock:
        mock.faults.add(match, on=on, do={"answer": {"delegationToken": "x"}})
        assert await call(mock, "getCurrentSegments", STREAM) == messages.SegmentRanges(delegationToken="x")


async def test_a_status_after_the_call_replaces_the_one_that_it_ended_with() -> None:
    async with MockCluster() as mock:
        mock.faults.add("rpc = getCurrentSegments", do={"status": "ABORTED", "at": "after"}, name="r")
        mock.faults.add("rpc = getCurrentSegments", on="reply", do={"status": "INTERNAL"})
        assert await ended(call(mock, "getCurrentSegments", STREAM)) == ("ABORTED", "fault rule 'r'")
        assert [decision.rule for decision in mock.faults.decisions] == ["r"], "no rule sees what another has made"


async def test_rules_about_frames_leave_calls_alone() -> None:
    async with MockCluster() as mock:
        mock.faults.add("", do="drop")
        assert (await call(mock, "createScope", SCOPE)).status == messages.CreateScopeStatus.SUCCESS
        assert mock.faults.decisions == []


@looped(
    ("match", "do", "said"),
    [
        ("rpc = createStream", "close", "not for controller calls"),
        ("rpc = createStream", "WrongHost", "not for controller calls"),
        ("type = READ_SEGMENT", {"status": "UNAVAILABLE"}, "is for controller calls"),
        ("rpc = createStream", {"status": "UNAVAILABEL"}, r"is not a status \(UNAVAILABLE\?\)"),
        ("rpc = createStream", {"answer": {"statsu": 1}}, r"no answer has a field 'statsu' \(status\?\)"),
        ("rpc = createStraem", "drop", r"expected a method \(createStream\?\)"),
        ("rpc = createStream", {"answer": {"port": 1}}, "the answer of createStream cannot have these fields"),
        ("rpc ~ create*", {"answer": {"port": 1}}, "cannot have these fields"),
        ("rpc = createStream", {"answer": {"status": "SCOPE_NOT_EMPTY"}}, "the answer of createStream cannot have"),
        ("rpc ~ *", {"answer": {"port": 99999999999}}, "the answer of getURI cannot have these fields"),
        ("status = STREAM_EXIST", "drop", r"expected a status \(STREAM_EXISTS\?\)"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(match: str, do: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Rule(match=match, do=do)


async def test_what_is_observed_of_a_call_has_no_secrets() -> None:
    async with MockCluster() as mock:
        await call(mock, "createScope", SCOPE, authorization="Basic c2VjcmV0")
        assert "c2VjcmV0" not in repr(mock.requests("rpc = createScope"))


async def test_a_reset_ends_calls_that_a_rule_holds() -> None:
    async with MockCluster() as mock:
        mock.faults.add("rpc = createScope", do="hold", name="late")
        asked = asyncio.create_task(call(mock, "createScope", SCOPE))
        await mock.faults.wait_held("late")
        await mock.reset()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await call(mock, "createScope", SCOPE)).status == messages.CreateScopeStatus.SUCCESS


@looped(
    ("fields", "why"),
    [
        ({"status": "\ud800"}, "the answer of createScope cannot have these fields"),
        ({"status": []}, "the answer of createScope cannot have these fields"),
        ({"status": 0, "delegationToken": "x"}, "the answer of createScope cannot have these fields"),
    ],
)
def test_fields_that_protobuf_refuses_are_a_value_error(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Rule(match="rpc = createScope", do={"answer": fields})
