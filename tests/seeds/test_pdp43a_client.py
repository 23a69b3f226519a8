"""PDP-43A, ids 43.7 to 43.9, 43.11 and 43.12: large events of the client, against a real store over sockets.

Most tests call events large from 1,000 bytes on, which is a setting; the limits themselves are tried as they are. Where
a line is about a store that misbehaves, a scripted one plays it.
"""

import asyncio
import struct
import tracemalloc
from typing import Any

import pytest

from segstore.client import ClientSettings, ConnectionPool, FixedStore, connect
from segstore.client.errors import (
    EventTooLarge,
    NotSupported,
    ProtocolViolation,
    RetriesExhausted,
    SegmentMissing,
    SegmentSealed,
    TokenRefused,
)
from segstore.client.stream import EventDecoder
from segstore.client.stream.large_events import LargeEventWriter
from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.wire import AppendSetup, CreateTransientSegment, Hello, SegmentCreated, SetupAppend
from tests.client.support import ScriptedPeer, all_events, endpoint, make_stream, settings, until
from tests.seeds.large_events import MIB, STEPS, Played, asked, big, held_at, played, scale, small, stream
from tests.server.support import SEGMENT, Peer, create


@pytest.mark.seed("43.7")
@pytest.mark.usefixtures("grpc_runs")
async def test_events_above_8_mebibytes_take_this_path_and_those_of_exactly_8_do_not() -> None:
    config = settings()
    assert (config.max_event_bytes, config.max_large_event_bytes) == (8_388_608, 1 << 30)
    async with MockCluster() as mock, connect(f"tcp://{mock.controller_uri}", config) as pravega:
        await make_stream(pravega)
        async with pravega.event_writer("a", "s") as writer:
            await writer.write(bytes(8 * MIB))
            assert asked(mock, "CREATE_TRANSIENT_SEGMENT") == 0
            await writer.write(bytes(8 * MIB + 1))
            assert asked(mock, "CREATE_TRANSIENT_SEGMENT") == 1
        assert [len(each) for each in await all_events(pravega)] == [8 * MIB, 8 * MIB + 1]


@pytest.mark.seed("43.7")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize(
    ("more", "limit"), [({"enable_large_events": False}, 1_000), ({"max_large_event_bytes": 5_000}, 5_000)]
)
async def test_what_is_not_enabled_or_above_all_limits_is_refused_with_its_size_and_the_limit(
    more: dict[str, Any], limit: int
) -> None:
    async with stream(**more) as (_, pravega), pravega.event_writer("a", "s") as writer:
        await writer.write(bytes(limit))
        with pytest.raises(EventTooLarge, match=rf"{limit + 1} bytes for a/s, the limit is {limit}") as caught:
            await writer.write(bytes(limit + 1))
        assert (caught.value.actual, caught.value.limit, caught.value.stream) == (limit + 1, limit, "a/s")


@pytest.mark.seed("43.8")
@pytest.mark.usefixtures("grpc_runs")
async def test_the_envelope_is_cut_into_chunks_with_the_event() -> None:
    async with stream() as (mock, pravega), pravega.event_writer("a", "s") as writer:
        await writer.write(big(2_500))
        (segment,) = await pravega.controller.current_segments("a", "s")
        chunks = list(mock.requests("type = CONDITIONAL_APPEND"))
        assert [chunk.offset for chunk in chunks] == [0, 1_000, 2_000]
        empty = chunks[0].size - 1_000
        assert [each.size - empty for each in chunks] == [1_000, 1_000, 508]
        result = mock.stores[0].store.read(segment.name, 0, 10_000)
        assert b"".join(result.data) == struct.pack(">ii", 0, 2_500) + big(2_500)
    assert ClientSettings().large_event_chunk_bytes == 8 * MIB


@pytest.mark.seed("43.9")
@pytest.mark.usefixtures("grpc_runs")
async def test_the_target_is_flushed_first_and_each_event_has_a_fresh_writer_and_segment() -> None:
    async with stream() as (mock, pravega):
        mock.faults.add("type = APPEND_BLOCK_END", nth=1, do="hold", name="small")
        async with pravega.event_writer("a", "s") as writer:
            done = [await writer.submit(event) for event in (b"first", big(1_500), big(1_500, 2), b"last")]
            await mock.faults.wait_held("small")
            await asyncio.sleep(0.01)
            assert asked(mock, "CREATE_TRANSIENT_SEGMENT") == 0
            mock.faults.release("small")
            await asyncio.gather(*done)
        kinds = [
            each.type_name for each in mock.requests("kind = frame") if each.type_name not in ("HELLO", "KEEP_ALIVE")
        ]
        sequence = ["CREATE_TRANSIENT_SEGMENT", "SETUP_APPEND", *["CONDITIONAL_APPEND"] * 2, "MERGE_SEGMENTS"]
        assert kinds == ["SETUP_APPEND", "APPEND_BLOCK_END", *sequence, *sequence, "APPEND_BLOCK_END"]
        writers = [each.writer_id for each in mock.requests("type = CREATE_TRANSIENT_SEGMENT")]
        sources = [request.segments[1] for request in mock.requests("type = MERGE_SEGMENTS")]
        assert len(set(writers)) == len(set(sources)) == 2
        assert await all_events(pravega) == [b"first", big(1_500), big(1_500, 2), b"last"]


@pytest.mark.seed("43.9")
async def test_chunks_are_pipelined_and_the_merge_waits_for_every_ack_also_if_one_covers_all() -> None:
    script = Played()
    script.ack_at = 6
    async with played(script) as large:
        writing = asyncio.create_task(large.write(SEGMENT, bytes(5_992)))
        await until(lambda: script.merges)
        await writing
        assert [(chunk.event_number, chunk.expected_offset) for chunk in script.chunks] == [
            (number, number * 1_000) for number in range(6)
        ]
        script.ack_at = 99
        waiting = asyncio.create_task(large.write(SEGMENT, bytes(5_992)))
        await until(lambda: len(script.chunks) == 6)
        await asyncio.sleep(0.01)
        assert len(script.merges) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.seed("43.9")
async def test_a_new_segment_that_was_written_to_is_nonsense() -> None:
    def set_up(peer: ScriptedPeer, command: SetupAppend) -> bool:
        peer.send(AppendSetup(command.request_id, command.segment, command.writer_id, 3))
        return True

    async with played(Played(SetupAppend=set_up)) as large:
        with pytest.raises(ProtocolViolation, match="has event 3 in the new segment"):
            await large.write(SEGMENT, bytes(5_992))


@pytest.mark.seed("43.1")
@pytest.mark.seed("43.2")
async def test_a_segment_of_another_name_than_asked_for_is_nonsense() -> None:
    def created(peer: ScriptedPeer, command: CreateTransientSegment) -> bool:
        peer.send(SegmentCreated(command.request_id, "another/stream/0.#epoch.0"))
        return True

    async with played(Played(CreateTransientSegment=created)) as large:
        with pytest.raises(ProtocolViolation, match=r"transient segment of scope/stream.* with .another/stream"):
            await large.write(SEGMENT, bytes(5_992))


async def test_a_peer_older_than_transient_segments_is_not_asked() -> None:
    async with played(Played(), Hello(14, 5)) as large:
        with pytest.raises(NotSupported, match="14, but large events need 15"):
            await large.write(SEGMENT, bytes(5_992))


EXPIRED = {"error": "AuthTokenCheckFailed", "fields": {"error_code": "TOKEN_EXPIRED"}}
REFUSED = {"error": "AuthTokenCheckFailed", "fields": {"error_code": "TOKEN_CHECK_FAILED"}}
TROUBLE: list[Any] = [
    "close before", "close after", "WrongHost", "ConditionalCheckFailed", "SegmentAlreadyExists", EXPIRED
]  # fmt: skip

CHUNKS = 4
"""Of the large event below."""


@pytest.mark.seed("43.11")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize("trouble", TROUBLE, ids=str)
@pytest.mark.parametrize("step", STEPS)
async def test_the_sequence_starts_again_with_a_new_transient_segment(step: str, trouble: Any) -> None:
    # A chunk in flight behind one that is refused like this ends the connection: the last one has none behind it.
    nth = CHUNKS if (step, trouble) == ("CONDITIONAL_APPEND", "SegmentAlreadyExists") else 1
    async with stream() as (mock, pravega):
        mock.faults.add(STEPS[step], nth=nth, do=trouble, name="trouble")
        async with pravega.event_writer("a", "s") as writer:
            done = [await writer.submit(event) for event in (b"before", big(3_500), b"after")]
            await asyncio.gather(*done)
            assert writer.large_events.exactly_once
            assert writer.large_events.restarts == 1
        created = asked(mock, "CREATE_TRANSIENT_SEGMENT")
        # After a merge whose reply was lost, the counter says that nothing is left to be done.
        assert created == (1 if (step, trouble) == ("MERGE_SEGMENTS", "close after") else 2)
        assert len({request.segments for request in mock.requests("type = MERGE_SEGMENTS")}) == asked(
            mock, "MERGE_SEGMENTS"
        )
        assert await all_events(pravega) == [b"before", big(3_500), b"after"]


@pytest.mark.seed("43.11")
@pytest.mark.usefixtures("grpc_runs")
async def test_chunks_behind_a_refused_one_end_the_connection_and_the_event_is_stored_once() -> None:
    async with stream() as (mock, pravega):
        mock.faults.add(STEPS["CONDITIONAL_APPEND"], nth=1, do="SegmentAlreadyExists", name="trouble")
        async with pravega.event_writer("a", "s") as writer:
            await asyncio.gather(*[await writer.submit(event) for event in (b"before", big(3_500), b"after")])
            # The connection may end before the next sequence has begun on it, or under it.
            assert writer.large_events.restarts in (1, 2)
        assert await all_events(pravega) == [b"before", big(3_500), b"after"]


@pytest.mark.seed("43.11")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize("step", STEPS)
async def test_a_refused_token_fails_the_event(step: str) -> None:
    async with stream() as (mock, pravega):
        mock.faults.add(STEPS[step], do=REFUSED)
        writer = pravega.event_writer("a", "s")
        await writer.open()
        with pytest.raises(TokenRefused):
            await writer.write(big(3_500))
        await writer.aclose()
        assert asked(mock, "CREATE_TRANSIENT_SEGMENT") == 1


@pytest.mark.seed("43.11")
@pytest.mark.usefixtures("grpc_runs")
async def test_what_goes_wrong_every_time_is_given_up_with_the_last_reason() -> None:
    async with stream() as (mock, pravega):
        mock.faults.add("type = CONDITIONAL_APPEND", do="close before")
        writer = pravega.event_writer("a", "s")
        await writer.open()
        with pytest.raises(RetriesExhausted, match=r"of 3500 bytes for a/s/0\.#epoch\.0 failed 9 times") as caught:
            await writer.write(big(3_500))
        assert caught.value.actual == 9
        await writer.abort()


@pytest.mark.seed("43.11")
async def test_a_sealed_or_missing_target_is_over_and_a_missing_source_is_not() -> None:
    async with MockSegmentStore() as store, ConnectionPool(small()) as pool, await Peer.connect(store) as peer:
        large = LargeEventWriter(pool, FixedStore(endpoint(store)))
        with pytest.raises(SegmentMissing):
            await large.write(SEGMENT, bytes(3_000))
        await peer.ask(create(SEGMENT))
        store.faults.add("type = MERGE_SEGMENTS", nth=1, do="NoSuchSegment")
        await large.write(SEGMENT, bytes(3_000))
        assert store.store.segment_info(SEGMENT).length == 3_008
        store.store.container_for(SEGMENT).seal_segment(SEGMENT, now_ms=1)
        with pytest.raises(SegmentSealed) as caught:
            await large.write(SEGMENT, bytes(3_000))
        assert caught.value.segment == SEGMENT
        assert store.store.segment_info(SEGMENT).length == 3_008


@pytest.mark.seed("43.11")
@pytest.mark.usefixtures("grpc_runs")
@pytest.mark.parametrize("step", STEPS)
async def test_a_target_that_is_sealed_meanwhile_hands_the_event_to_its_successor(step: str) -> None:
    async with stream() as (mock, pravega), held_at(step, mock, pravega):
        await scale(pravega, 2)
        await until(lambda: len(mock.stores[0].store.containers) > 0)
        mock.faults.release("step")


@pytest.mark.seed("43.12")
def test_memory_grows_with_what_came_and_not_with_what_was_announced() -> None:
    decoder = EventDecoder("s", 0)
    tracemalloc.start()
    try:
        assert decoder.feed(struct.pack(">ii", 0, 1 << 30) + b"the first of it") == []
        assert tracemalloc.get_traced_memory()[1] < 10_000
        piece = bytes(100_000)
        for _ in range(10):
            assert decoder.feed(piece) == []
        assert tracemalloc.get_traced_memory()[1] < 3 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.seed("43.12")
@pytest.mark.usefixtures("grpc_runs")
async def test_an_event_of_any_size_is_assembled_across_reads_and_one_above_the_cap_ends_the_reading() -> None:
    async with stream(read_size_bytes=777, max_large_event_bytes=40_000) as (mock, pravega):
        assert ClientSettings().max_large_event_bytes == 1 << 30
        sent = [big(size, size) for size in (0, 1, 776, 777, 20_000, 3, 40_000)]
        async with pravega.event_writer("a", "s") as writer:
            for event in sent:
                await writer.write(event)
        async with pravega.event_reader("a", "s") as events:
            assert [(await anext(events)).data for _ in sent] == sent
            (segment,) = await pravega.controller.current_segments("a", "s")
            end = mock.stores[0].store.segment_info(segment.name).length
            async with pravega.segment_writer(segment.name) as raw:
                await raw.write(struct.pack(">ii", 0, 40_001) + b"the first of it")
            with pytest.raises(EventTooLarge) as caught:
                await anext(events)
        assert (caught.value.segment, caught.value.details["offset"]) == (segment.name, end)
        assert (caught.value.actual, caught.value.limit) == (40_001, 40_000)
