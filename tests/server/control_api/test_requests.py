"""The latest requests over HTTP, where they are kept always and where only while somebody asks."""

from __future__ import annotations

import pytest

from segstore.server import MockSegmentStore
from segstore.server.clock import LoopClock
from segstore.server.control_api.routes import Watch
from segstore.server.faults import Faults, Observer
from tests.server.control_api.support import asking, peer_of, refusal
from tests.server.support import SEGMENT, WRITER, append, create, set_up, until


async def test_requests_come_newest_first_with_what_has_become_of_them() -> None:
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(create(), set_up(), append(1, b"four"))
        mock.faults.add("type = APPEND_BLOCK_END", do="hold", name="held")
        peer.send(append(2))
        await mock.faults.wait_held("held")
        told = (await http.get("/v1/requests")).json()
        assert (told["last"], told["forgotten"], told["on_demand"]) == (5, 0, False)
        assert [each["number"] for each in told["requests"]] == [5, 4, 3, 2, 1]
        held, stored = told["requests"][:2]
        assert (held["type"], held["stage"], held["faults"]) == ("APPEND_BLOCK_END", "received", ["held: hold"])
        assert (stored["stage"], stored["reply"], stored["failure"]) == ("replied", "DATA_APPENDED", False)
        assert (stored["segments"], stored["writer_id"], stored["request_id"]) == ([SEGMENT], str(WRITER), "3")
        assert stored["latency_ms"] >= 0
        assert stored["connection"] == (await http.get("/v1/connections")).json()["connections"][0]["number"]


async def test_requests_are_chosen_by_a_filter_by_number_and_by_how_many() -> None:
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(create(), create())

        async def numbers(**query: str | int) -> list[int]:
            return [each["number"] for each in (await http.get("/v1/requests", params=query)).json()["requests"]]

        assert await numbers(match="type = CREATE_SEGMENT") == [3, 2]
        assert await numbers(match="failure") == [3]
        assert await numbers(after=2) == [3]
        assert await numbers(limit=1) == [3]
        status, said, where = refusal(await http.get("/v1/requests", params={"match": "type ="}))
        assert (status, where) == (422, "query.match")
        assert "column 7" in said


async def test_a_name_that_utf8_cannot_encode_is_listed_escaped() -> None:
    async with asking() as (mock, http), peer_of(mock) as peer:
        await peer.ask(create())
        mock.requests()[-1].segments = ("odd \ud800",)
        assert (await http.get("/v1/requests")).json()["requests"][0]["segments"] == ["odd \\ud800"]


async def test_an_unwatched_store_raises_an_error_that_explains_it() -> None:
    async with asking(watched=False) as (_, http):
        status, said, _ = refusal(await http.get("/v1/requests"))
        assert status == 409
        assert "watched=False" in said


async def test_requests_are_recorded_on_demand_from_the_first_query_until_queries_stop() -> None:
    async with MockSegmentStore() as mock, peer_of(mock) as peer:
        mock.faults.observer = None
        watch = Watch()
        observer, on_demand = watch.of(mock.faults)
        assert on_demand
        assert observer.requests() == []
        await peer.ask(create())
        assert [each.type_name for each in observer.requests()] == ["CREATE_SEGMENT"]
        watch.forget_s = 0.01
        assert watch.of(mock.faults) == (observer, True)
        await until(lambda: mock.faults.observer is None)
        await peer.ask(create())
        assert len(observer.requests()) == 1
        assert watch.of(mock.faults)[0] is not observer
        watch.close()
        watch.close()


@pytest.mark.parametrize("closed", ["before", "after"])
async def test_an_observer_that_was_there_stays(closed: str) -> None:
    kept = Observer()
    faults = Faults(LoopClock(), observer=kept)
    watch = Watch()
    if closed == "before":
        watch.close()
    assert watch.of(faults) == (kept, False)
    watch.close()
    assert faults.observer is kept
