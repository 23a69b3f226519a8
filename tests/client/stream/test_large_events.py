"""Large events beside the lines of PDP-43A: cancelling, closing, connections of their own, the official client."""

import asyncio

import pytest

from segstore.client import ConnectionPool, FixedStore, connect
from segstore.client.errors import Closed, NotSupported, RequestTimedOut
from segstore.client.stream.large_events import LargeEventWriter
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from tests.client.support import all_events, endpoint, settings, until
from tests.official.client import run
from tests.official.support import uri
from tests.seeds.large_events import MIB, asked, big, small, stream, transients
from tests.server.support import SEGMENT, Peer, create


@pytest.mark.usefixtures("grpc_runs")
async def test_a_writer_that_is_given_up_in_a_large_event_leaves_nothing_at_the_store() -> None:
    async with stream() as (mock, pravega):
        mock.faults.add("type = CONDITIONAL_APPEND", nth=2, do="drop reply")
        writer = pravega.event_writer("a", "s")
        await writer.open()
        done = await writer.submit(big(3_500))
        await mock.wait_for("type = CONDITIONAL_APPEND", count=4)
        assert len(transients(mock)) == 1
        await writer.abort()
        await until(lambda: not transients(mock))  # the connection is still there, for others
        assert pravega.metrics().connections > 0
        with pytest.raises(Closed):
            await done
        assert pravega.metrics().bytes_in_flight == 0
        assert await all_events(pravega) == []


@pytest.mark.usefixtures("grpc_runs")
async def test_closing_waits_for_a_large_event_up_to_a_limit() -> None:
    async with stream(close_timeout_ms=200) as (mock, pravega):
        async with pravega.event_writer("a", "s") as writer:
            await writer.submit(big(3_500))
            await writer.flush()  # as long as it takes
        mock.faults.add("type = MERGE_SEGMENTS", do="drop")
        late = pravega.event_writer("a", "s")
        await late.open()
        await late.submit(big(3_500, 2))
        with pytest.raises(RequestTimedOut, match="not stored within 200 ms"):
            await late.aclose()
        assert await all_events(pravega) == [big(3_500)]


@pytest.mark.usefixtures("grpc_runs")
async def test_a_large_event_holds_the_next_ones_back_as_its_size_says() -> None:
    async with stream(max_in_flight_bytes=2_000) as (mock, pravega):
        mock.faults.add("type = MERGE_SEGMENTS", nth=1, do="hold", name="merge")
        async with pravega.event_writer("a", "s") as writer:
            submitting = asyncio.create_task(writer.submit(big(3_500)))
            await mock.faults.wait_held("merge")
            assert not submitting.done()
            mock.faults.release("merge")
            await (await submitting)


@pytest.mark.usefixtures("grpc_runs")
async def test_other_segments_go_on_beside_a_large_event() -> None:
    async with stream(segments=2, max_connections_per_store=3) as (mock, pravega):
        mock.faults.add("type = MERGE_SEGMENTS", nth=1, do="hold", name="merge")
        async with pravega.event_writer("a", "s") as writer:
            held = await writer.submit(big(3_500), routing_key="k1")
            behind = await writer.submit(b"behind", routing_key="k1")
            await mock.faults.wait_held("merge")
            keys = [f"k{number}" for number in range(20)]
            beside = [await writer.submit(b"beside", routing_key=key) for key in keys]
            await until(lambda: any(each.done() for each in beside))
            assert not held.done()
            assert not behind.done()
            mock.faults.release("merge")
            await asyncio.gather(held, behind, *beside)


@pytest.mark.usefixtures("grpc_runs")
async def test_without_pooling_a_large_event_has_a_connection_of_its_own_which_ends_with_it() -> None:
    async with stream(enable_connection_pooling=False) as (mock, pravega):
        async with pravega.event_writer("a", "s") as writer:
            await writer.write(big(3_500))
            assert pravega.metrics().connections == 1
        assert asked(mock, "MERGE_SEGMENTS") == 1
        assert await all_events(pravega) == [big(3_500)]


@pytest.mark.watched
async def test_a_store_that_does_not_serve_transient_segments_is_named(store: MockSegmentStore) -> None:
    async with ConnectionPool(small()) as pool, await Peer.connect(store) as peer:
        await peer.ask(create(SEGMENT))
        store.faults.add("type = CREATE_TRANSIENT_SEGMENT", do="OperationUnsupported")
        with pytest.raises(NotSupported) as caught:
            await LargeEventWriter(pool, FixedStore(endpoint(store))).write(SEGMENT, bytes(3_000))
        assert caught.value.endpoint == str(endpoint(store))


@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.needs("pravega, the official client")
@pytest.mark.timeout(600)
async def test_large_events_of_the_official_client_are_read() -> None:
    sizes = [1, 8 * MIB, 8 * MIB + 1, 3, 12_000_000]
    async with MockCluster(watched=False) as mock, connect(f"tcp://{mock.controller_uri}", settings()) as pravega:
        await run(uri(mock), "events.sizes", sizes=sizes)
        async with pravega.event_reader("a", "sized") as events:
            assert [len((await anext(events)).data) for _ in sizes] == sizes
