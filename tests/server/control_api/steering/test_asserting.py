"""Waits and verification over HTTP."""

import asyncio

import grpc
import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.server.clock import LoopClock
from segstore.server.cluster import Cluster, ClusterSettings
from segstore.server.config import StoreSettings
from segstore.server.faults import Faults
from segstore.wire.controller_api import METHODS, messages
from tests.looped import looped
from tests.server.control_api.support import asking, asking_cluster, done, peer_of, refusal
from tests.server.support import HELLO, Peer, append, create, read, set_up, until

APPENDS = "type = APPEND_BLOCK_END"


async def test_a_wait_is_answered_when_the_third_append_is_applied(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    await peer.ask(create(), set_up(), append(0))
    waiting = asyncio.create_task(done(http, "GET", "/v1/requests/wait", match=APPENDS, count=3, timeout_s=50))
    await until(lambda: bool(mock.observer and mock.observer._waiters))
    await peer.ask(append(1))
    assert not waiting.done()
    await peer.ask(append(2))
    assert (await waiting)["type"] == "APPEND_BLOCK_END"
    mark = mock.mark()
    status, said, _ = refusal(
        await http.get("/v1/requests/wait", params={"match": APPENDS, "since": mark, "timeout_s": 0.01})
    )
    assert status == 409
    assert said.startswith(f"0 of 1 requests with {APPENDS} were applied within 0.01 s")


async def test_the_number_of_requests_is_verified(mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer) -> None:
    await peer.ask(create(), set_up(), append(0), append(1))
    for bounds in ({"exactly": 2}, {"at_least": 1}, {"at_most": 2}, {"at_least": 1, "at_most": 3}):
        assert await done(http, "GET", "/v1/requests/verify", match=APPENDS, **bounds) == {"count": 2}
    for wrong, said in (
        ({"exactly": 1}, "exactly 1 request"),
        ({"at_least": 3}, "at least 3 requests"),
        ({"at_most": 1}, "at most 1 request"),
    ):
        answer = refusal(await http.get("/v1/requests/verify", params={"match": APPENDS, **wrong}))
        assert answer[0] == 409
        last = "the last request was APPEND_BLOCK_END on connection 1"
        assert answer[1].startswith(f"expected {said} with {APPENDS}, 2 were received; {last}")
        matched = [line.partition(" on ")[0] for line in answer[1].splitlines()[1:]]
        assert matched == (
            []
            if "at_least" in wrong
            else [
                "  matched: request 5: APPEND_BLOCK_END of scope/stream/0.#epoch.0 event 1",
                "  matched: request 4: APPEND_BLOCK_END of scope/stream/0.#epoch.0 event 0",
            ]
        )
    assert await done(http, "GET", "/v1/requests/verify", match=APPENDS, stage="refused", exactly=0) == {"count": 0}
    await done(http, "DELETE", "/v1/requests")
    assert await done(http, "GET", "/v1/requests/verify", exactly=0) == {"count": 0}


async def test_what_cannot_be_asked_is_refused(http: httpx.AsyncClient) -> None:
    for path, params in [
        ("verify", {}),
        ("verify", {"match": "tipe = X", "exactly": 1}),
        ("verify", {"match": "x" * 1_001, "exactly": 1}),
        ("verify", {"at_least": 5, "at_most": 3}),
        ("verify", {"exactly": [1, 3]}),
        ("wait", {"match": "("}),
        ("wait", {"timeout_s": "nan"}),
    ]:
        assert refusal(await http.get(f"/v1/requests/{path}", params=params))[0] == 422


async def test_a_server_that_keeps_no_requests_says_how_to_keep_them(
    mock: MockSegmentStore, http: httpx.AsyncClient
) -> None:
    assert isinstance(mock.rules, Faults)
    mock.rules.observer = None
    await done(http, "GET", "/v1/requests")  # recorded on demand only
    for path in ("wait", "verify?exactly=0"):
        assert "POST /v1/requests/keep" in refusal(await http.get(f"/v1/requests/{path}"))[1]
    assert await done(http, "POST", "/v1/requests/keep") == {"last": 0}
    async with peer_of(mock) as peer:
        await peer.ask(create())
    assert (await done(http, "GET", "/v1/requests/wait"))["number"] > 0
    kept = mock.rules.observer
    await done(http, "POST", "/v1/requests/keep")
    assert mock.rules.observer is kept


async def test_appends_are_numbered_counted_and_waited_for_though_they_pass_the_rules_together() -> None:
    settings = ClusterSettings(store=StoreSettings(port=0), http_port=0)
    async with (
        Cluster(settings, faults=Faults(LoopClock())) as server,
        Peer(*await asyncio.open_connection(*server.address)) as peer,
        httpx.AsyncClient(base_url=f"http://{server.http_address}", trust_env=False, timeout=60) as http,
    ):

        async def verify(match: str, **bounds: int) -> int:
            count: int = (await done(http, "GET", "/v1/requests/verify", match=match, **bounds))["count"]
            return count

        await peer.ask(HELLO, create(), set_up(), *map(append, range(5)))
        waiting = asyncio.create_task(done(http, "GET", "/v1/requests/wait", match=APPENDS, count=7, timeout_s=50))
        (connection,) = server.stores[0].hub.connections
        observer, lane = server.rules.observer, connection._lane
        await until(lambda: bool(observer._waiters))
        assert not lane.lane.passes_appends, "a wait is notified"
        await peer.ask(append(5), append(6))
        assert (await waiting)["number"] == 10
        assert lane.lane.passes_appends
        await peer.ask(append(7), append(8))
        assert [request.number for request in observer.requests(APPENDS)] == [9, 10], "the others passed together"
        assert await verify(APPENDS, exactly=9) == 9
        assert await verify(f'{APPENDS} and data ~ "data"', since=10, exactly=2) == 2
        server.rules.add(APPENDS, nth=2, do="close after", name="lost ack")
        peer.send(append(9), append(10))
        await until(lambda: len(server.rules.decisions) == 1)  # type: ignore[union-attr]  # there are rules
        assert [decision.request for decision in server.rules.decisions] == [14]
        (lost,) = (await done(http, "GET", "/v1/requests", after=13))["requests"]
        assert (lost["number"], lost["faults"], lost["stage"]) == (14, ["lost ack: close after"], "applied")
        for which in ({"stage": "applied", "since": 13}, {"stage": "replied", "since": 12}):
            assert (await done(http, "GET", "/v1/requests/wait", match=APPENDS, **which))["number"] in (13, 14)


@pytest.mark.usefixtures("grpc_runs")
async def test_a_filter_selects_the_same_requests_in_lists_verifications_and_waits() -> None:
    async with asking_cluster() as (mock, http):
        async with Peer(*await asyncio.open_connection(*mock.stores[0].address)) as peer:
            await peer.ask(HELLO, create(), set_up(), create("other/stream/0.#epoch.0"), create())
        method = METHODS["createScope"]
        async with grpc.aio.insecure_channel(mock.controller_uri) as channel:
            ask = channel.unary_unary(method.path, method.request.SerializeToString, method.response.FromString)
            for scope in ("s", "s", "t"):
                await ask(messages.ScopeInfo(scope=scope))
        for match, count in (
            ("", 8),
            ("kind = call", 3),
            ("kind = frame", 5),
            ("failure", 2),
            ("not failure", 6),
            ("scope = s", 2),
            ("type != HELLO", 4),
            ("type ~ create*", 3),
            ("latency >= 0 and size > 0", 8),
            ("rpc = createScope and status != OK", 1),
            ("status = OK", 2),
            ("status = SCOPE_EXISTS and scope = s", 1),
            ("status = SCOPE_EXISTS or type = HELLO", 2),
            ("kind = call and direction = request and size > 1MiB", 0),
        ):
            listed = (await done(http, "GET", "/v1/requests", match=match, limit=100))["requests"]
            assert len(listed) == count, match
            assert await done(http, "GET", "/v1/requests/verify", match=match, exactly=count) == {"count": count}
            if count:
                await done(http, "GET", "/v1/requests/wait", match=match, count=count, stage="replied", timeout_s=50)
        exists = {"match": "rpc = createScope and status = SCOPE_EXISTS", "stage": "refused"}
        assert (await done(http, "GET", "/v1/requests/wait", **exists))["type"] == "createScope"
        none = {"match": "rpc = createScope and status = NOT_FOUND", "at_least": "1"}
        near = refusal(await http.get("/v1/requests/verify", params=none))[1].splitlines()[1:]
        assert [each.endswith(": not status = NOT_FOUND") for each in near] == [True] * 3


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/requests/wait?timeout_s=50"), ("POST", "/v1/faults/reads/wait?timeout_s=50")]
)
async def test_a_wait_ends_when_its_client_disconnects(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking() as (mock, _):
        mock.faults.add("type = READ_SEGMENT", do="hold", name="reads")
        waiting, rules = mock.observer._waiters, mock.faults._holding
        host, port = mock.http_url.removeprefix("http://").rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        await until(lambda: bool(waiting or rules))
        writer.close()
        await until(lambda: not waiting and not rules)
    assert [message for message in caplog.messages if "matched nothing" not in message] == []


async def test_a_wait_for_what_a_rule_holds(mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer) -> None:
    await peer.ask(create())
    await done(http, "POST", "/v1/faults", {"match": "type = READ_SEGMENT", "do": "hold", "name": "reads"})
    await done(http, "POST", "/v1/faults", {"name": "served", "do": "ok"})
    nothing = refusal(await http.post("/v1/faults/served/wait"))
    assert nothing == (409, "rule 'served' holds nothing: its action is ok", "path.name")
    status, said, _ = refusal(await http.post("/v1/faults/reads/wait", params={"timeout_s": 0.01}))
    assert (status, said) == (409, "'reads' held 0 and not 1 within 0.01 s; it has matched 0 and fired 0 times")
    peer.send(read(0))
    assert await done(http, "POST", "/v1/faults/reads/wait") == {"held": 1}
    assert refusal(await http.post("/v1/faults/none/wait"))[0] == 404


@looped(("method", "path"), [("DELETE", "/v1/faults/reads"), ("DELETE", "/v1/faults")])
async def test_a_wait_for_what_a_rule_holds_ends_when_the_rule_is_removed(method: str, path: str) -> None:
    async with asking() as (mock, http):
        await done(http, "POST", "/v1/faults", {"match": "type = READ_SEGMENT", "do": "hold", "name": "reads"})
        waiting = asyncio.create_task(http.post("/v1/faults/reads/wait", params={"timeout_s": 50}))
        await until(lambda: bool(mock.faults._holding))
        await done(http, method, path)
        status, said, where = refusal(await waiting)
        assert (status, where) == (404, "path.name")
        assert said.startswith("the rule was removed during the wait: no rule has the name 'reads'")


async def test_a_body_is_refused_where_the_parameters_are_in_the_query(http: httpx.AsyncClient) -> None:
    await done(http, "POST", "/v1/faults", {"match": "type = READ_SEGMENT", "do": "hold", "name": "reads"})
    for path, said in (
        ("reads/wait", "body: the operation takes none; its parameters are in the query: count, timeout_s"),
        ("reads/release", "body: the operation takes none"),
    ):
        answer = await http.post(f"/v1/faults/{path}", json={"count": 1})
        assert refusal(answer) == (422, said, "body")
