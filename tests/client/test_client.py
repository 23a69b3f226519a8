"""Streams end to end, against stores and a controller in this process: order, scaling, sealing, tails, tokens."""

import asyncio
from typing import Any

import pytest

from segstore.client import ClientSettings, CutError, connect
from segstore.client.client import Client, parse_uri
from segstore.client.errors import Closed, NoSuchStream, ProtocolViolation, SegmentMissing, StreamSealed
from segstore.client.routing import SegmentRange
from segstore.server.cluster import MockCluster
from segstore.wire.hashing import position_of
from tests.client.support import client, make_stream, until
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")


async def take(events: Any, count: int) -> list[bytes]:
    got = []
    async with asyncio.timeout(60):
        while len(got) < count:
            event = await events.read()
            got.append(event.data)
    return got


async def test_what_is_written_is_read_from_the_head_and_ends_with_the_stream() -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega:
        await make_stream(pravega, 3)
        async with pravega.event_writer("a", "s") as writer:
            for number in range(50):
                await writer.write(b"%d" % number, routing_key=f"key {number % 7}")
            await writer.write(b"no key")
        async with pravega.event_reader("a", "s", from_="head") as events:
            got = await take(events, 51)
            assert sorted(got) == sorted([*(b"%d" % number for number in range(50)), b"no key"])
            for key in range(7):
                mine = [each for each in got if each.isdigit() and int(each) % 7 == key]
                assert mine == sorted(mine, key=int)
            await pravega.controller.seal_stream("a", "s")
            assert await events.read() is None
        async with pravega.event_reader("a", "s") as events:
            assert len([event async for event in events]) == 51


async def test_a_reader_from_the_tail_sees_what_comes_later_and_one_from_a_cut_goes_on(pravega: Client) -> None:
    await make_stream(pravega, 2)
    async with pravega.event_writer("a", "s") as writer:
        for number in range(10):
            await writer.write(b"%d" % number)
        async with pravega.event_reader("a", "s", from_="tail") as late:
            await writer.write(b"late")
            assert await take(late, 1) == [b"late"]
        async with pravega.event_reader("a", "s") as events:
            first = await take(events, 4)
            cut = dict(events.cut)
        async with pravega.event_reader("a", "s", from_=cut) as events:
            rest = await take(events, 7)
    assert sorted([*first, *rest]) == sorted([*(b"%d" % number for number in range(10)), b"late"])


async def test_a_cut_with_a_finished_segment_beside_one_of_its_successors_is_read_on(pravega: Client) -> None:
    """Readers give such a cut while another of its successors waits for another segment."""
    await make_stream(pravega, 2)
    async with pravega.event_writer("a", "s") as writer:
        for number in range(40):
            await writer.write(b"%d" % number, routing_key=f"{number}")
        async with pravega.event_reader("a", "s", from_="tail") as events:
            finished, begun = dict(events.cut)[0], dict(events.cut)[1]
        new = await pravega.controller.scale("a", "s", [0, 1], [(0.0, 0.25), (0.25, 1.0)], wait_ms=60_000)
        await writer.write(b"low", routing_key=next(f"{n}" for n in range(99) if position_of(f"{n}") < 0.25))
        await writer.write(b"high", routing_key=next(f"{n}" for n in range(99) if position_of(f"{n}") > 0.75))
    cut = {0: finished, 1: begun, new[0].segment_id: 0}
    async with pravega.event_reader("a", "s", from_=cut) as events:
        assert sorted(await take(events, 2)) == [b"high", b"low"]
    with pytest.raises(CutError, match="share keys, and neither is at its end"):
        await pravega.event_reader("a", "s", from_=cut | {0: 0}).open()
    with pytest.raises(CutError, match=r"no segment has the keys from 0\.25 to 1\.0"):
        await pravega.event_reader("a", "s", from_={new[0].segment_id: 0}).open()


async def test_a_reader_of_a_stream_that_was_deleted_says_so_and_one_of_a_truncated_segment_names_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with MockCluster(watched=False) as mock, client(mock) as pravega:
        await make_stream(pravega)
        async with pravega.event_writer("a", "s") as writer:
            await writer.write(b"gone")
        new = await pravega.controller.scale("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)], wait_ms=60_000)
        await pravega.controller.truncate_stream("a", "s", {each.segment_id: 0 for each in new})
        async with pravega.event_reader("a", "s", from_={0: 0}) as events:
            with pytest.raises(SegmentMissing) as missing:
                await events.read()
        assert missing.value.segment == "a/s/0.#epoch.0"
        await pravega.controller.seal_stream("a", "s")
        await pravega.controller.delete_stream("a", "s")
        last = {each.segment_id: 0 for each in new}
        with pytest.raises(NoSuchStream):
            await pravega.event_reader("a", "s", from_=last).open()

        async def deleted_after_this(scope: str, stream: str, epoch: int) -> list[SegmentRange]:
            return [new[0]._replace(low=0.0, high=1.0)]

        monkeypatch.setattr(pravega.controller, "epoch_segments", deleted_after_this)
        async with pravega.event_reader("a", "s", from_={new[0].segment_id: 0}) as events:
            with pytest.raises(
                NoSuchStream, match=r"^stream a/s is gone: segment a/s/1\.#epoch\.1 does not exist"
            ) as gone:
                await events.read()
        assert (gone.value.stream, gone.value.segment) == ("a/s", new[0].name)
        assert gone.value.endpoint is not None
        assert isinstance(gone.value.__cause__, SegmentMissing)


async def test_a_reader_that_cannot_ask_why_a_segment_is_missing_does_not_stop_silently(
    monkeypatch: pytest.MonkeyPatch, pravega: Client
) -> None:
    await make_stream(pravega)
    new = await pravega.controller.scale("a", "s", [0], [(0.0, 1.0)], wait_ms=60_000)
    await pravega.controller.truncate_stream("a", "s", {each.segment_id: 0 for each in new})

    async def nonsense(scope: str, stream: str) -> None:
        raise ValueError("what is this")

    monkeypatch.setattr(pravega.controller, "current_segments", nonsense)
    async with pravega.event_reader("a", "s", from_={0: 0}) as events:
        with pytest.raises(ProtocolViolation, match="what is this"):
            async with asyncio.timeout(60):
                await events.read()


async def test_slices_hold_the_same_events_and_a_cut_behind_one_goes_on(pravega: Client) -> None:
    await make_stream(pravega)
    async with pravega.event_writer("a", "s") as writer:
        for number in range(100):
            await writer.submit(b"%d" % number)
    await pravega.controller.seal_stream("a", "s")
    async with pravega.event_reader("a", "s") as events:
        first = await events.read()
        assert first is not None
        rest = await events.read_slice()
        cut = events.cut
    async with pravega.event_reader("a", "s", from_=cut) as events:
        rest += [event for piece in [slice_ async for slice_ in events.slices()] for event in piece]
        assert await events.read_slice() == []
        assert await events.read() is None
    assert [event.data for event in (first, *rest)] == [b"%d" % number for number in range(100)]


async def test_a_sealed_stream_refuses_what_is_not_stored_and_says_so(pravega: Client) -> None:
    await make_stream(pravega, 1)
    writer = pravega.event_writer("a", "s")
    await writer.open()
    await writer.write(b"stored")
    await pravega.controller.seal_stream("a", "s")
    late = await writer.submit(b"late")
    with pytest.raises(StreamSealed):
        await late
    with pytest.raises(StreamSealed):
        await writer.submit(b"later")
    with pytest.raises(StreamSealed):
        await writer.aclose()
    await writer.aclose()
    with pytest.raises(StreamSealed):
        await pravega.event_writer("a", "s").open()


async def test_a_writer_waits_while_too_much_is_in_flight_and_continues(mock: MockCluster) -> None:
    async with client(mock, max_in_flight_bytes=10_000) as pravega:
        await make_stream(pravega)
        async with pravega.event_writer("a", "s") as writer:
            most = 0
            for _ in range(200):
                await writer.submit(b"x" * 1_000)
                most = max(most, *(each.held_bytes for each in writer._writers.values()))
            assert 9_000 <= most < 10_000
        async with pravega.event_reader("a", "s") as events:
            assert len(await take(events, 200)) == 200


async def test_events_are_stored_in_the_order_of_their_submits_also_when_there_was_no_room(mock: MockCluster) -> None:
    async with client(mock, max_in_flight_bytes=500, max_batch_events=3) as pravega:
        await make_stream(pravega)
        async with pravega.event_writer("a", "s") as writer:
            await asyncio.gather(*[writer.write(b"%03d" % each + b"x" * 97, routing_key="k") for each in range(100)])
        async with pravega.event_reader("a", "s") as events:
            assert [each[:3] for each in await take(events, 100)] == [b"%03d" % number for number in range(100)]


async def test_closing_ends_what_waits_and_can_be_done_twice(mock: MockCluster) -> None:
    pravega = client(mock)
    with pytest.raises(Closed):
        pravega.event_writer("a", "s")
    async with pravega:
        await make_stream(pravega)
        events = pravega.event_reader("a", "s")
        await events.open()
        reading = asyncio.ensure_future(events.read())
        await until(lambda: pravega.metrics().flows == 1)
        await events.aclose()
        with pytest.raises(Closed):
            await reading
        await events.aclose()
    await pravega.aclose()


@looped(
    ("uri", "endpoints", "tls"),
    [
        ("tcp://a:1", [("a", 1)], False),
        ("tls://a:1,b:2", [("a", 1), ("b", 2)], True),
        ("a", [("a", 9090)], False),
        ("tcp://[::1]:7", [("::1", 7)], False),
    ],
)
def test_a_uri_names_controllers(uri: str, endpoints: list[tuple[str, int]], tls: bool) -> None:
    assert parse_uri(uri) == (endpoints, tls)


@looped("uri", ["http://a:1", "tcp://", "tcp://a:b", "tcp://a:99999", ""])
def test_what_names_no_controller_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match=r"host|scheme"):
        connect(uri, ClientSettings())


KEY = "k" * 64


async def test_a_reader_that_is_not_open_says_so_and_is_opened_once(pravega: Client) -> None:
    await make_stream(pravega)
    events = pravega.event_reader("a", "s")
    with pytest.raises(Closed, match="not open"):
        await events.read()
    async with events:
        with pytest.raises(Closed, match="was already opened"):
            await events.open()


@pytest.mark.watched
async def test_an_abort_that_is_cancelled_leaves_no_segment_writer_behind(mock: MockCluster, pravega: Client) -> None:
    await make_stream(pravega, segments=4)
    writer = pravega.event_writer("a", "s")
    await writer.open()
    mock.faults.add("type = APPEND_BLOCK_END", do="drop")
    waiting = [await writer.submit(b"x", routing_key=f"k{at}") for at in range(20)]
    closing = asyncio.create_task(writer.abort())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert all(isinstance(each.exception(), Closed) for each in waiting)
    assert pravega.metrics().flows == 0
