"""What fault rules have decided over HTTP: in order, in pages, by rule; rules without effect; the round-trip time."""

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.server.faults import Observer
from segstore.server.traffic import History
from tests.server.control_api.support import asking, done, peer_of, refusal
from tests.server.control_api.test_tap import tapped, through
from tests.server.support import SEGMENT, Peer, append, create, read, set_up
from tests.server.traffic.test_history import traffic_of


async def test_decisions_are_listed_in_order_in_pages_and_by_rule(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    assert await done(http, "GET", "/v1/decisions") == {"last": 0, "forgotten": 0, "decisions": []}
    mock.faults.add("type = APPEND_BLOCK_END", do={"delay_ms": 0}, name="slow")
    mock.faults.add("type = READ_SEGMENT", do="WrongHost", name="moved")
    await peer.ask(create(), set_up(), append(1), read(0))
    found = await done(http, "GET", "/v1/decisions")
    first, second = found["decisions"]
    assert (found["last"], found["forgotten"]) == (2, 0)
    assert first == {
        "number": 1,
        "rule": "slow",
        "action": mock.faults.decisions[0].action,
        "nth": 1,
        "request": 4,
        "store": 0,
        "connection": 1,
        "direction": "request",
        "type": "APPEND_BLOCK_END",
        "segments": [SEGMENT],
        "request_id": "3",
        "event_number": 1,
    }
    assert (second["number"], second["rule"], second["event_number"]) == (2, "moved", None)
    assert (await done(http, "GET", "/v1/decisions", after=1))["decisions"] == [second]
    assert (await done(http, "GET", "/v1/decisions", limit=1))["decisions"] == [first]
    assert (await done(http, "GET", "/v1/decisions", rule="moved"))["decisions"] == [second]
    assert (await done(http, "GET", "/v1/decisions", after=7))["decisions"] == []


async def test_rules_without_effect_are_listed_with_the_nearest_requests(
    mock: MockSegmentStore, http: httpx.AsyncClient, peer: Peer
) -> None:
    mock.faults.add(f'type = CREATE_SEGMENT and segment = "{SEGMENT}2"', do="WrongHost", name="never")
    mock.faults.add("type = CREATE_SEGMENT", nth=2, do="WrongHost", name="idle")
    await peer.ask(create())
    status, said, where = refusal(await http.get("/v1/decisions", params={"rule": "nevr"}))
    assert (status, said.partition(";")[0], where) == (422, "no rule has the name 'nevr'", "query.rule")
    never, idle = (await done(http, "GET", "/v1/unmatched"))["unmatched"]
    assert never.splitlines()[0].startswith("fault 'never' has matched nothing: ")
    assert "near: request 2: CREATE_SEGMENT" in never
    assert idle.startswith("fault 'idle' has matched, but never fired: ")
    await peer.ask(create())
    assert len((await done(http, "GET", "/v1/unmatched"))["unmatched"]) == 1


async def test_where_appends_pass_together_the_nearest_are_those_of_the_latest_traffic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asking() as (mock, http), peer_of(mock) as peer:
        mock.faults.observer = Observer(history=History(traffic_of(mock), mock.faults))  # as `segstore serve` has it
        mock.faults.add(f'type = APPEND_BLOCK_END and segment = "{SEGMENT}2"', do="WrongHost", name="never")
        await peer.ask(create(), set_up(), append(3, b"data"))
        (listed,) = (await done(http, "GET", "/v1/requests", match="type = APPEND_BLOCK_END"))["requests"]
        (never,) = (await done(http, "GET", "/v1/unmatched"))["unmatched"]
        about = f"request {listed['number']}: APPEND_BLOCK_END of {SEGMENT} event 3 on connection 1"
        near = f"near: {about}: DATA_APPENDED after "
        assert never.splitlines()[1].startswith(f"  {near}")
        assert never.endswith(f': not segment = "{SEGMENT}2"')
    assert near in caplog.text


async def test_the_round_trip_time_is_set_for_all_stores_or_for_some() -> None:
    async with tapped() as (tap, http), through(tap) as peer:
        for given in (1.5, {"0": 1.0, "1": 0.0}):
            assert await done(http, "PUT", "/v1/round-trip", {"round_trip_ms": given}) == {"round_trip_ms": given}
            assert (await done(http, "GET", "/v1/faults"))["round_trip_ms"] == given
        assert tap.faults.round_trip_ms == {0: 1.0, 1: 0.0}
        assert len(await peer.ask(append(1))) == 1
