"""REST requests as calls of the gRPC methods that they stand for: recorded, observed, and under fault rules."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from segstore.traces import FileRecorder
from segstore.wire.trace import Call, Metadata, RecordKind
from tests.looped import looped
from tests.server.rest.support import asking, refused, stream
from tests.server.traffic import read_all

pytestmark = pytest.mark.usefixtures("grpc_runs")

SCOPE = {"scopeName": "a"}


async def test_requests_are_recorded_as_the_calls_that_they_make(tmp_path: Path) -> None:
    async with asking() as (mock, http):
        recorder = FileRecorder(tmp_path / "run.wtrace", Metadata(17, "a test"))
        mock.stores[0].hub.recorder = recorder
        for status in (201, 409):
            assert (await http.post("/v1/scopes", json=SCOPE)).status_code == status
        assert (await http.post("/v1/scopes/a/streams", json=stream())).status_code == 201
        assert (await http.get("/v1/scopes/a/streams/no")).status_code == 404
        assert len((await http.get("/v1/scopes/a/streams")).json()["streams"]) == 1
        assert [request.reply for request in mock.requests("rpc = createScope")] == ["OK", "SCOPE_EXISTS"]
        recorder.close()
    records = [each for each in read_all(tmp_path / "run.wtrace") if each.kind is RecordKind.CALL]
    calls = [call for record in records if (call := Call.unpack(record.data)) is not None]
    made = [str(each) for each in calls if not each.status]
    assert made[:2] == ['createScope scope="a"'] * 2
    assert made[2].startswith('createStream streamInfo={"scope": "a", "stream": "s"}')
    assert [each.split()[0] for each in made[3:]] == ["getStreamConfiguration", *["listStreamsInScope"] * 2]
    assert [each.outcome for each in calls if each.status] == ["OK", "SCOPE_EXISTS", "OK", "NOT_FOUND", "OK", "OK"]
    assert all(each.peer.startswith("http:127.0.0.1:") for each in calls if not each.status)


@looped(
    ("do", "status", "why"),
    [
        ([{"status": "UNAVAILABLE", "details": "later"}], 503, "UNAVAILABLE: later"),
        ([{"status": "NOT_FOUND", "at": "after"}], 404, "NOT_FOUND: fault rule 'r'"),
        ([{"status": "ABORTED"}], 500, "ABORTED: fault rule 'r'"),
        ([{"answer": {"status": "SCOPE_EXISTS"}}], 409, "a fault rule answered SCOPE_EXISTS"),
        ([{"answer": {"status": "FAILURE"}, "at": "before"}], 500, "a fault rule answered FAILURE"),
    ],
)
async def test_a_rule_about_calls_applies_to_requests(do: Any, status: int, why: str) -> None:
    async with asking() as (mock, http):
        mock.faults.add("rpc = createScope", do=do, name="r", times=1)
        assert refused(await http.post("/v1/scopes", json=SCOPE)) == (status, why)
        assert [decision.rule for decision in mock.faults.decisions] == ["r"]


async def test_a_rule_on_replies_replaces_a_refusal_of_the_controller() -> None:
    async with asking() as (mock, http):
        assert (await http.post("/v1/scopes", json=SCOPE)).status_code == 201
        mock.faults.add("status = SCOPE_EXISTS or status = NOT_FOUND", on="reply", do={"status": "INTERNAL"}, times=2)
        for replaced in (True, False):
            exists = refused(await http.post("/v1/scopes", json=SCOPE))
            missing = refused(await http.get("/v1/scopes/a/streams/no"))
            assert (exists[0], missing[0]) == ((500, 500) if replaced else (409, 404))


async def test_a_rule_may_turn_a_failure_into_a_success() -> None:
    async with asking() as (mock, http):
        mock.faults.add("rpc = deleteScope", do=[{"answer": {"status": "SUCCESS"}}])
        assert (await http.delete("/v1/scopes/a")).status_code == 204


async def test_a_request_that_a_rule_holds_waits_and_a_reset_ends_one_that_is_dropped() -> None:
    async with asking() as (mock, http):
        mock.faults.add("rpc = createScope", do="hold", name="held")
        held = asyncio.create_task(http.post("/v1/scopes", json=SCOPE))
        await mock.faults.wait_held("held")
        assert not held.done()
        mock.faults.release("held")
        assert (await held).status_code == 201
        mock.faults.clear()
        mock.faults.add("rpc = listScopes", do="drop")
        dropped = asyncio.create_task(http.get("/v1/scopes"))
        await mock.wait_for("rpc = listScopes", stage="received")
        assert not dropped.done()
        await mock.reset()
        assert (await dropped).status_code == 503


@pytest.mark.parametrize(("do", "applied"), [("drop", 0), ("hold after", 1), ({"delay_ms": 1e7}, 0)])
async def test_a_request_that_a_rule_holds_ends_with_its_connection(
    do: Any, applied: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking() as (mock, http):
        mock.faults.add("rpc = createScope", do=do, name="held")
        asking_for_it = asyncio.create_task(http.post("/v1/scopes", json=SCOPE))
        await mock.wait_for("rpc = createScope", stage="received")
        asking_for_it.cancel()
        await mock.wait_for("rpc = createScope", stage="refused")
        assert [request.reply for request in mock.requests("rpc = createScope")] == ["CANCELLED"]
        assert mock.faults.held("held") == 0
        mock.faults.clear()
        assert ((await http.get("/v1/scopes")).json() == {}) is not bool(applied)
    assert caplog.messages == []
