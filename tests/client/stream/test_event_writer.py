"""PIP-79, writers that start lazily and are connected to a part of the segments, against stores over sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from random import Random
from typing import Any

import httpx
import pytest

from segstore.client import Backoff, EventWriter, PartialRoundRobin, RoundRobin, Router, SinglePartition, connect
from segstore.client.client import Client
from segstore.client.errors import Closed, ConnectFailed, EventTooLarge, PeerRefused, RetriesExhausted, StreamSealed
from segstore.server.cluster import MockCluster
from segstore.wire.hashing import position_of
from segstore.wire.names import writer_id
from tests.client.support import make_stream, settings, until
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")

TWICE = Backoff(initial_ms=1, max_ms=1, jitter=0, max_attempts=2)


@asynccontextmanager
async def streaming(
    segments: int, *, more: dict[str, Any] | None = None, **of_mock: Any
) -> AsyncIterator[tuple[Any, ...]]:
    """A cluster with the stream a/s, and a client whose chance is fixed."""
    async with MockCluster(**of_mock) as mock:
        uri = f"tcp://{mock.controller_uri}"
        async with connect(uri, settings(**(more or {})), random=Random(1)) as pravega:
            await make_stream(pravega, segments)
            yield mock, pravega


def set_ups(mock: MockCluster) -> list[str]:
    """The segments for which a writer was set up, in order."""
    return [request.segments[0] for request in mock.requests("type = SETUP_APPEND", "applied")]


def started(writer: EventWriter) -> set[str]:
    return set(writer.stats().segments)


async def scale(pravega: Client, parts: int) -> None:
    now = await pravega.controller.current_segments("a", "s")
    edges = [number / parts for number in range(parts + 1)]
    await pravega.controller.scale("a", "s", [each.segment_id for each in now], list(pairwise(edges)), wait_ms=60_000)


async def read_all(pravega: Client, count: int) -> list[bytes]:
    async with asyncio.timeout(60), pravega.event_reader("a", "s") as events:
        return [event.data async for event, _ in _counted(events, count)]


async def _counted(events: Any, count: int) -> AsyncIterator[Any]:
    for number in range(count):
        event = await events.read()
        assert event is not None
        yield event, number


@pytest.mark.seed("79.1")
async def test_eager_all_segment_writers_are_there_when_the_writer_is() -> None:
    async with streaming(6, stores=2) as (mock, pravega):
        async with pravega.event_writer("a", "s") as writer:
            assert len(set(set_ups(mock))) == len(set_ups(mock)) == 6
            assert len(started(writer)) == 6
            assert writer.is_connected
        assert pravega.metrics().flows == 0


@pytest.mark.seed("79.1")
async def test_eager_creation_fails_with_any_segment_writer_and_leaves_nothing() -> None:
    async with streaming(3, more={"retry": TWICE}) as (mock, pravega):
        (last,) = (segment for segment in await pravega.controller.current_segments("a", "s") if segment.high == 1)
        mock.faults.add(f'type = SETUP_APPEND and segment = "{last.name}"', do="WrongHost")
        writer = pravega.event_writer("a", "s")
        with pytest.raises(RetriesExhausted) as caught:
            await writer.open()
        assert caught.value.segment == last.name
        assert pravega.metrics().flows == 0
        assert not writer.is_connected


@pytest.mark.seed("79.2")
@looped("router", [None, RoundRobin(), PartialRoundRobin(3), SinglePartition()])
async def test_lazy_creation_starts_the_one_writer_that_the_router_says(router: Router | None) -> None:
    async with streaming(6) as (mock, pravega):
        async with pravega.event_writer("a", "s", lazy_start=True, router=router) as writer:
            assert len(set_ups(mock)) == 1
            assert started(writer) == set(set_ups(mock))
            assert pravega.metrics().connections == 1
            assert writer.is_connected
        assert len(set_ups(mock)) == 1


@pytest.mark.seed("79.2")
async def test_lazy_creation_fails_with_its_writer_and_leaves_nothing_behind() -> None:
    async with streaming(4, more={"retry": TWICE}) as (mock, pravega):
        mock.faults.add("type = SETUP_APPEND", do="WrongHost", name="no")
        writer = pravega.event_writer("a", "s", lazy_start=True)
        with pytest.raises(RetriesExhausted, match="failed 2 times"):
            await writer.open()
        assert (pravega.metrics().flows, started(writer), writer.is_connected) == (0, set(), False)
        with pytest.raises(Closed):
            await writer.submit(b"x")
        with pytest.raises(Closed):
            await writer.open()
        await writer.aclose()
        mock.faults.clear("no")
        async with pravega.event_writer("a", "s", lazy_start=True) as another:
            await another.write(b"now it goes")


@pytest.mark.seed("79.2")
async def test_a_creation_that_is_cancelled_leaves_nothing_behind() -> None:
    async with streaming(4) as (mock, pravega):
        mock.faults.add("type = SETUP_APPEND", do="hold", name="wait")
        writer = pravega.event_writer("a", "s", lazy_start=True)
        opening = asyncio.ensure_future(writer.open())
        await mock.faults.wait_held("wait")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert pravega.metrics().flows == 0


@pytest.mark.seed("79.2")
async def test_a_segment_that_was_sealed_meanwhile_is_followed_at_creation() -> None:
    async with streaming(1) as (mock, pravega):
        mock.faults.add("type = SETUP_APPEND", do="hold", times=1, name="wait")
        writer = pravega.event_writer("a", "s", lazy_start=True)
        opening = asyncio.ensure_future(writer.open())
        await mock.faults.wait_held("wait")
        (old,) = await pravega.controller.current_segments("a", "s")
        await pravega.controller.scale("a", "s", [old.segment_id], [(0.0, 0.5), (0.5, 1.0)], wait_ms=60_000)
        mock.faults.add(f'type = SETUP_APPEND and segment = "{old.name}"', do="SegmentIsSealed")
        for connection in tuple(mock.stores[0].hub.connections):
            connection.abort()
        await opening
        assert len(started(writer)) == 1
        assert old.name not in started(writer)
        await writer.write(b"x")
        await writer.aclose()


@pytest.mark.seed("79.3")
async def test_concurrent_first_events_share_one_start_and_keep_their_order() -> None:
    async with streaming(1) as (mock, pravega):
        mock.faults.add("type = SETUP_APPEND", skip=1, do="hold", name="wait")
        async with pravega.event_writer("a", "s", lazy_start=True) as writer:
            await scale(pravega, 2)
            sends = [asyncio.ensure_future(writer.write(b"%03d" % number, routing_key="k")) for number in range(50)]
            await mock.faults.wait_held("wait")
            late = [asyncio.ensure_future(writer.write(b"%03d" % number, routing_key="k")) for number in range(50, 60)]
            await asyncio.sleep(0)
            assert not any(send.done() for send in [*sends, *late])
            mock.faults.clear("wait")
            last = asyncio.ensure_future(writer.write(b"060", routing_key="k"))
            await asyncio.gather(*sends, *late, last)
            assert len(set_ups(mock)) == len(set(set_ups(mock)))
        assert await read_all(pravega, 61) == [b"%03d" % number for number in range(61)]


async def key_of(pravega: Client, segment: str) -> str:
    """A routing key that goes to a segment."""
    ranges = {each.name: each for each in await pravega.controller.current_segments("a", "s")}
    low, high = ranges[segment].low, ranges[segment].high
    return next(key for key in map(str, range(10_000)) if low <= position_of(key) < high)


@pytest.mark.seed("79.3")
async def test_a_start_that_fails_raises_from_each_send_and_a_later_send_tries_again() -> None:
    async with streaming(2, more={"retry": TWICE}) as (mock, pravega):
        async with pravega.event_writer("a", "s", lazy_start=True) as writer:
            (first,) = started(writer)
            (other,) = {segment.name for segment in await pravega.controller.current_segments("a", "s")} - {first}
            here, there = await key_of(pravega, first), await key_of(pravega, other)
            mock.faults.add(f'type = SETUP_APPEND and segment = "{other}"', do="WrongHost", name="no")
            for _ in range(3):
                sends = [writer.submit(b"lost", routing_key=there) for _ in range(4)]
                found = await asyncio.gather(*sends, return_exceptions=True)
                assert [type(each) for each in found] == [RetriesExhausted] * 4
                assert len({id(each) for each in found}) == 4
                await writer.write(b"here", routing_key=here)
                await writer.flush()
            assert started(writer) == {first}
            assert writer.is_connected
            assert pravega.metrics().flows == 1
            mock.faults.clear("no")
            await writer.write(b"there", routing_key=there)
            assert started(writer) == {first, other}
        assert sorted(await read_all(pravega, 4)) == [b"here", b"here", b"here", b"there"]


@pytest.mark.seed("79.3")
async def test_a_send_that_is_cancelled_while_the_writer_starts_takes_nothing_back() -> None:
    async with streaming(2) as (mock, pravega):
        async with pravega.event_writer("a", "s", lazy_start=True) as writer:
            (other,) = {each.name for each in await pravega.controller.current_segments("a", "s")} - started(writer)
            key = await key_of(pravega, other)
            mock.faults.add("type = SETUP_APPEND", do="hold", name="wait")
            sending = asyncio.ensure_future(writer.write(b"one", routing_key=key))
            await mock.faults.wait_held("wait")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            mock.faults.clear("wait")
            await writer.write(b"two", routing_key=key)
        assert await read_all(pravega, 2) == [b"one", b"two"]


@pytest.mark.seed("79.4")
@looped("router", [None, RoundRobin(), PartialRoundRobin(2)])
async def test_the_first_event_lands_on_the_writer_that_was_started(router: Router | None) -> None:
    async with streaming(8) as (mock, pravega):
        for _ in range(4):
            async with pravega.event_writer("a", "s", lazy_start=True, router=router) as writer:
                before = set_ups(mock)
                await writer.write(b"first")
                assert set_ups(mock) == before
                assert len(started(writer)) == 1


@pytest.mark.parametrize("routes", [1, 1000])
async def test_events_of_a_key_stay_in_order_while_the_stream_scales(
    monkeypatch: pytest.MonkeyPatch, routes: int
) -> None:
    monkeypatch.setattr("segstore.client.stream.event_writer._MOST_ROUTES", routes)
    keys = [str(number) for number in range(20)]
    async with streaming(2) as (_, pravega):
        async with pravega.event_writer("a", "s") as writer:
            for turn in range(4):
                for key in keys:
                    await writer.submit(f"{key} {turn}".encode(), routing_key=key)
                if turn < 2:
                    await scale(pravega, 3 - turn)
        found: dict[bytes, list[bytes]] = {}
        for event in await read_all(pravega, 4 * len(keys)):
            key_of_event, turn_of_event = event.split()
            found.setdefault(key_of_event, []).append(turn_of_event)
        assert len(found) == len(keys)
        assert all(turns == [b"0", b"1", b"2", b"3"] for turns in found.values())


@pytest.mark.seed("79.5")
async def test_a_partial_round_robin_connects_to_its_limit_and_grows_with_the_stream() -> None:
    async with streaming(2) as (_, pravega):
        async with pravega.event_writer("a", "s", lazy_start=True, router=PartialRoundRobin(3)) as writer:
            for number in range(12):
                await writer.write(b"%d" % number, routing_key="ignored")
            assert len(started(writer)) == 2
            old = await pravega.controller.current_segments("a", "s")
            low = old[0]
            middle = (low.low + low.high) / 2
            await pravega.controller.scale(
                "a", "s", [low.segment_id], [(low.low, middle), (middle, low.high)], wait_ms=60_000
            )
            for number in range(12):
                await writer.write(b"%d" % number)
            now = {segment.name for segment in await pravega.controller.current_segments("a", "s")}
            assert started(writer) == now
            assert len(now) == 3
            await scale(pravega, 8)
            for number in range(24):
                await writer.write(b"%d" % number)
            assert len(started(writer)) == 3
        assert len(await read_all(pravega, 48)) == 48


@looped(("size", "count"), [(1, 2048), (64 * 1024, 32)])
async def test_events_of_a_caller_that_never_waits_are_sent_meanwhile(size: int, count: int) -> None:
    async with streaming(1) as (_, pravega), pravega.event_writer("a", "s") as writer:
        before = pravega.metrics().bytes_out
        for _ in range(count):
            await writer.submit(bytes(size))
        assert pravega.metrics().bytes_out - before > count * size // 4
        await writer.flush()


async def test_an_event_that_is_too_large_is_refused_behind_others_as_well() -> None:
    given = {"max_event_bytes": 1000, "enable_large_events": False}
    async with streaming(1, more=given) as (_, pravega), pravega.event_writer("a", "s") as writer:
        await writer.write(b"x", routing_key="k")
        stored = await writer.submit(b"1", routing_key="k")
        with pytest.raises(EventTooLarge):
            await writer.submit(bytes(1001), routing_key="k")
        await (await writer.submit(bytes(1000), routing_key="k"))
        assert stored.done()
        assert writer.stats().events == 3


@looped("told_by", ["write", "flush", "a cancelled flush", "nothing", "nothing, and write"])
async def test_the_end_raises_a_failure_unless_the_caller_knows_of_it(told_by: str) -> None:
    async with streaming(1) as (_, pravega):
        writer = pravega.event_writer("a", "s")
        await writer.open()
        await pravega.controller.seal_stream("a", "s")
        if told_by != "write":
            (await writer.submit(b"lost")).add_done_callback(asyncio.Future.exception)
        if told_by in ("write", "nothing, and write"):
            with pytest.raises(StreamSealed):
                await writer.write(b"lost, too")
        if told_by == "flush":
            with pytest.raises(StreamSealed):
                await writer.flush()
        if told_by == "a cancelled flush":
            flushing = asyncio.ensure_future(writer.flush())
            await asyncio.sleep(0)
            flushing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await flushing
        if told_by in ("write", "flush"):
            await writer.aclose()
        else:
            with pytest.raises(StreamSealed):
                await writer.aclose()
        await writer.aclose()


async def test_the_end_raises_the_failure_of_an_event_whose_write_was_cancelled() -> None:
    async with streaming(1) as (mock, pravega):
        writer = pravega.event_writer("a", "s")
        await writer.open()
        mock.faults.add("type = APPEND_BLOCK_END", do="hold", name="held")
        writing = asyncio.ensure_future(writer.write(b"lost"))
        await mock.faults.wait_held("held")
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await pravega.controller.seal_stream("a", "s")
        mock.faults.release("held")
        with pytest.raises(StreamSealed):
            await writer.aclose()


@pytest.mark.seed("79.7")
async def test_looking_flushing_and_closing_start_no_writer() -> None:
    async with streaming(6) as (mock, pravega):
        writer = pravega.event_writer("a", "s", lazy_start=True, router=PartialRoundRobin(2), name="w")
        assert (writer.is_connected, writer.last_sequence, writer.stats().segments) == (False, -1, {})
        await writer.open()
        assert writer.last_sequence == -1
        for _ in range(5):
            await writer.write(b"abc")
        await writer.flush()
        stats = writer.stats()
        assert (stats.name, stats.events, stats.bytes, stats.unsettled, stats.connected) == ("w", 5, 15, 0, 2)
        assert sorted(segment.last_sequence for segment in stats.segments.values()) == [2, 3]
        assert writer.last_sequence == stats.last_sequence == 3
        await writer.aclose()
        assert len(set_ups(mock)) == 2
        assert not writer.is_connected
        assert writer.last_sequence == 3
        await writer.aclose()


@pytest.mark.seed("79.7")
async def test_is_connected_says_that_a_started_writer_has_lost_its_connection() -> None:
    async with (
        streaming(4) as (mock, pravega),
        pravega.event_writer("a", "s", lazy_start=True, router=RoundRobin()) as writer,
    ):
        await writer.write(b"x")
        await writer.write(b"x")
        assert writer.is_connected
        mock.faults.add("type = SETUP_APPEND", do="hold", name="wait")
        for connection in tuple(mock.stores[0].hub.connections):
            connection.abort()
        await mock.faults.wait_held("wait", 2)
        assert not writer.is_connected
        mock.faults.clear("wait")
        await until(lambda: writer.is_connected)


async def test_events_that_successors_take_over_are_counted_once() -> None:
    async with streaming(1) as (_, pravega):
        async with pravega.event_writer("a", "s") as writer:
            for _ in range(3):
                await writer.write(b"x", routing_key="k")
            await scale(pravega, 2)
            stored = [await writer.submit(b"abc", routing_key="k") for _ in range(5)]
            assert (writer.stats().events, writer.stats().bytes) == (8, 18)
            await asyncio.gather(*stored)
            assert (writer.stats().events, writer.stats().bytes) == (8, 18)
        assert (writer.stats().events, writer.stats().bytes, writer.last_sequence) == (8, 18, 5)


@pytest.mark.seed("79.8")
async def test_statistics_of_writers_on_different_subsets_add_up_by_name() -> None:
    async with (
        streaming(10, stores=2, http_port=0) as (mock, pravega),
        httpx.AsyncClient(base_url=mock.http_url, trust_env=False, timeout=60) as http,
    ):
        counts = {"north": 31, "south": 17, "east": 5}
        for name in ("south", "north"):
            assert (await http.post("/v1/writers", json={"name": name})).status_code == 201
        writers = {
            name: pravega.event_writer("a", "s", lazy_start=True, router=PartialRoundRobin(3), name=name)
            for name in counts
        }
        for writer in writers.values():
            await writer.open()
        for name, count in counts.items():
            for _ in range(count):
                await writers[name].write(b"twelve bytes")
        assert len({frozenset(started(each)) for each in writers.values()}) == 3, "the subsets are the same"
        stats = (await http.get("/v1/streams/a/s/stats")).json()
        assert (stats["segments"], stats["open_segments"], stats["events"]) == (10, 10, 53)
        named = {stat["name"]: stat for stat in stats["writers"] if stat["name"]}
        for name in ("north", "south"):
            assert (named[name]["events"], named[name]["bytes"]) == (counts[name], counts[name] * 20)
            assert (named[name]["segments"], named[name]["connected"], named[name]["id"]) == (3, 3, None)
        by_id = {each["id"]: each["events"] for each in stats["writers"] if each["name"] is None}
        assert set(by_id) == {str(writer_id("east", segment)) for segment in started(writers["east"])}
        assert sum(by_id.values()) == 5
        assert (await http.post("/v1/writers", json={"name": "east"})).status_code == 201
        for writer in writers.values():
            await writer.aclose()
        later = (await http.get("/v1/streams/a/s/stats")).json()["writers"]
        assert {each["name"]: each["events"] for each in later} == counts
        assert (await http.delete("/v1/writers/east")).status_code == 204
        last = (await http.get("/v1/streams/a/s/stats")).json()["writers"]
        assert {each["name"] for each in last} == {"north", "south", None}


@pytest.mark.seed("79.8")
async def test_a_writer_registers_its_name_where_the_settings_say() -> None:
    async with MockCluster(http_port=0) as mock:
        config = settings(control_api=mock.http_url)
        async with connect(f"tcp://{mock.controller_uri}", config) as pravega:
            await make_stream(pravega)
            async with pravega.event_writer("a", "s", name="w") as writer, pravega.event_writer("a", "s"):
                await writer.write(b"x")
                async with httpx.AsyncClient(base_url=mock.http_url, trust_env=False) as http:
                    assert (await http.get("/v1/writers")).json()["names"] == ["w"]
                    (found, _) = (await http.get("/v1/streams/a/s/stats")).json()["writers"]
                    assert (found["name"], found["events"]) == ("w", 1)
            with pytest.raises(PeerRefused, match="422"):
                await pravega.event_writer("a", "s", name="w" * 300).open()
            assert pravega.metrics().flows == 0


@pytest.mark.seed("79.8")
async def test_a_control_api_that_is_not_there_is_said_with_its_address(mock: MockCluster) -> None:
    config = settings(control_api="http://127.0.0.1:1")
    async with connect(f"tcp://{mock.controller_uri}", config) as pravega:
        await make_stream(pravega)
        with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1"):
            await pravega.event_writer("a", "s", name="w").open()


@pytest.mark.seed("79.8")
async def test_a_name_goes_on_where_it_was_left() -> None:
    async with streaming(2) as (_, pravega):
        for round_ in range(3):
            async with pravega.event_writer("a", "s", name="w", router=RoundRobin()) as writer:
                for number in range(4):
                    await writer.write(b"%d" % (round_ * 4 + number))
                assert writer.last_sequence == 2 * (round_ + 1)
        assert sorted(map(int, await read_all(pravega, 12))) == list(range(12))
