"""PDP-36, ids 36.28 to 36.30: reads, at the tail, refused, and beside others on one connection.

Where a line is about a peer that misbehaves, a scripted store plays it.
"""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from segstore.client.connection import RECEIVE_BYTES, ConnectionPool, FixedStore, RawClient, SegmentRequests
from segstore.client.errors import Closed, TokenRefused
from segstore.client.retry import Backoff
from segstore.client.segment import SegmentReader, SegmentWriter
from segstore.server import MockSegmentStore
from segstore.wire import (
    AuthTokenCheckFailed,
    Command,
    GetStreamSegmentInfo,
    ReadSegment,
    SealSegment,
    SegmentRead,
    StreamSegmentInfo,
)
from segstore.wire import SegmentSealed as SegmentSealedReply
from tests.client.segments import SEGMENT, make
from tests.client.support import Recorder, ScriptedPeer, ScriptedStore, endpoint, settings, until
from tests.looped import looped
from tests.server.support import Peer


@pytest.mark.seed("36.28")
async def test_reads_bring_at_most_two_mebibytes_wait_at_the_tail_and_tell_the_end() -> None:
    async with MockSegmentStore(watched=False, long_poll_s=0.02) as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        data = Random(2).randbytes(5 << 20)
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            for at in range(0, len(data), 1 << 20):
                writer.write(data[at : at + (1 << 20)])
        async with SegmentReader(pool, where, SEGMENT) as reader:
            got = b""
            while len(got) < len(data):
                chunk = await reader.read()
                assert chunk.offset == len(got)
                assert 0 < len(chunk.data) <= 2 << 20
                got += chunk.data
            assert got == data
            empty = await reader.read()
            assert (empty.data, empty.at_tail, empty.end_of_segment) == (b"", True, False)
            store.store.container_for(SEGMENT).seal_segment(SEGMENT, now_ms=0)
            chunks = [chunk async for chunk in reader]
            assert chunks == []
        async with SegmentReader(pool, where, SEGMENT, len(data)) as reader:
            assert (await reader.read()).end_of_segment


@looped("size", [1000, RECEIVE_BYTES, RECEIVE_BYTES + 1, 3 * RECEIVE_BYTES])
async def test_chunks_stay_unchanged_while_they_are_held(size: int) -> None:
    data = Random(4).randbytes(12 * RECEIVE_BYTES)
    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings(read_size_bytes=size)) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            await writer.write(data)
        async with SegmentReader(pool, where, SEGMENT) as reader:
            held = [await reader.read() for _ in range(min(12, len(data) // size))]
        assert b"".join(each.view for each in held) == data[: size * len(held)]
        assert all(type(each.data) is bytes for each in held)


@pytest.mark.seed("36.28")
async def test_a_tiny_read_still_brings_eight_bytes() -> None:
    config = settings(read_size_bytes=8)
    async with MockSegmentStore(watched=False) as store, ConnectionPool(config) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            await writer.write(b"0123456789abcdef")
        async with SegmentReader(pool, where, SEGMENT) as reader:
            assert [(await reader.read()).data for _ in range(2)] == [b"01234567", b"89abcdef"]
        async with await Peer.connect(store) as peer:
            (reply,) = await peer.ask(ReadSegment(SEGMENT, 0, 1, "", 5))
            assert isinstance(reply, SegmentRead)
            assert bytes(reply.data) == b"01234567"


@pytest.mark.watched
@pytest.mark.seed("36.28")
async def test_a_waiting_read_hears_of_appends_and_of_the_seal(store: MockSegmentStore, pool: ConnectionPool) -> None:
    await make(store)
    where = FixedStore(endpoint(store))
    async with SegmentReader(pool, where, SEGMENT) as reader, SegmentWriter(pool, where, SEGMENT) as writer:
        waiting = asyncio.ensure_future(reader.read())
        await writer.write(b"one")
        assert (await waiting).data == b"one"
        waiting = asyncio.ensure_future(reader.read())
        await store.wait_for("type = READ_SEGMENT", count=2, stage="received")
        async with SegmentRequests(pool, where) as requests:
            await requests.ask(SEGMENT, SegmentSealedReply, lambda id_, token: SealSegment(id_, SEGMENT, token))
        assert (await waiting).end_of_segment


@pytest.mark.seed("36.28")
async def test_replies_to_many_reads_on_one_connection_reach_who_asked_in_any_order() -> None:
    random = Random(3)
    held: list[ReadSegment] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, ReadSegment)
        held.append(command)
        if len(held) == 16:
            random.shuffle(held)
            for each in held:
                text = f"{each.segment} at {each.offset};".encode()
                peer.send(SegmentRead(each.segment, each.offset, False, False, text, each.request_id))
            held.clear()

    config = settings(max_connections_per_store=1)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        where = FixedStore(store.endpoint)
        # All read the same segments at the same offsets, so only the request id tells their replies apart.
        readers = [SegmentReader(pool, where, f"s{n % 4}", n % 2, read_ahead=False) for n in range(16)]
        for _ in range(5):
            chunks = await asyncio.gather(*[reader.read() for reader in readers])
            for n, chunk in enumerate(chunks):
                assert chunk.data.startswith(f"s{n % 4} at {chunk.offset}".encode())
        assert sum(reader.stale_replies for reader in readers) == 0
        assert len(store.peers) == 1
        for reader in readers:
            reader.close()


@pytest.mark.seed("36.28")
async def test_a_cancelled_read_loses_nothing(store: MockSegmentStore, pool: ConnectionPool) -> None:
    await make(store)
    where = FixedStore(endpoint(store))
    async with SegmentReader(pool, where, SEGMENT) as reader, SegmentWriter(pool, where, SEGMENT) as writer:
        got = b""
        expected = b""
        for number in range(40):
            reading = asyncio.ensure_future(reader.read())
            for _ in range(number % 5):
                await asyncio.sleep(0)
            event = b"<%d>" % number
            expected += event
            ack = writer.write(event)
            if number % 3:
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                reading.cancel()
            (result,) = await asyncio.gather(reading, return_exceptions=True)
            if not isinstance(result, BaseException):
                got += result.data
            await ack
        while len(got) < len(expected):
            got += (await reader.read()).data
        assert got == expected


@pytest.mark.seed("36.28")
@looped("when", ["before", "after"])
async def test_a_reader_goes_on_where_it_was_when_its_connection_is_cut(when: str) -> None:
    config = settings(read_size_bytes=64, retry=Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=10))
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        data = Random(4).randbytes(2_000)
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            await writer.write(data)
        store.faults.add("type = READ_SEGMENT", every=4, do=f"close {when}")
        async with SegmentReader(pool, where, SEGMENT) as reader:
            got = b""
            while len(got) < len(data):
                got += (await reader.read()).data
            assert got == data


@pytest.mark.seed("36.30")
@looped("strict", [False, True])
@looped("flow_exists", [False, True])
async def test_a_refused_read_ends_its_reader_and_disturbs_no_other_flow(strict: bool, flow_exists: bool) -> None:
    """The offset of the read, taken for a request id, is that of flow 3, request 7."""
    config = settings(max_connections_per_store=1)
    async with (
        MockSegmentStore(watched=False, auth_key="k" * 64, strict_request_ids=strict) as store,
        ConnectionPool(config) as pool,
    ):
        bystanders = [Recorder() for _ in range(3 if flow_exists else 2)]
        flows = [await pool.flow(endpoint(store), each) for each in bystanders]
        reader = SegmentReader(pool, FixedStore(endpoint(store), "bad"), SEGMENT, 3 << 32 | 7)
        with pytest.raises(TokenRefused) as caught:
            await reader.read()
        assert caught.value.request_id == (reader._request_id if strict else 3 << 32 | 7)
        assert [each.replies for each in bystanders] == [[]] * len(bystanders)
        assert [bystander.lost for bystander in bystanders] == [[]] * len(bystanders)
        assert not any(flow.closed for flow in flows)
        reader.close()


@pytest.mark.seed("36.30")
async def test_the_refusal_of_a_read_whose_reader_is_gone_disturbs_nobody() -> None:
    held: list[Callable[[], None]] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, ReadSegment):
            held.append(lambda: peer.send(AuthTokenCheckFailed(command.offset)))
        elif isinstance(command, GetStreamSegmentInfo):
            held[0]()
            peer.send(StreamSegmentInfo(command.request_id, SEGMENT, True, False, False, 0, 0, 0))

    config = settings(max_connections_per_store=1)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        client = await RawClient.open(pool, store.endpoint)
        offset = client.flow.flow_id << 32 | 99
        reader = SegmentReader(pool, FixedStore(store.endpoint), SEGMENT, offset)
        reading = asyncio.ensure_future(reader.read())
        await until(lambda: held)
        reader.close()
        with pytest.raises(Closed):
            await reading
        reply = await client.request(lambda id_: GetStreamSegmentInfo(id_, SEGMENT, ""))
        assert isinstance(reply, StreamSegmentInfo)
        assert not client.closed
        assert pool.metrics().dropped_replies == 1
        client.close()


@pytest.mark.seed("36.30")
async def test_a_read_whose_answer_went_elsewhere_is_asked_anew_and_one_that_waits_is_not() -> None:
    reads: list[int] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, ReadSegment):
            reads.append(command.request_id)
            if length and len(reads) > 1:
                peer.send(SegmentRead(SEGMENT, 0, False, False, b"data", command.request_id))
        elif isinstance(command, GetStreamSegmentInfo):
            nonlocal probes
            probes += 1
            peer.send(StreamSegmentInfo(command.request_id, SEGMENT, True, False, False, 0, length, 0))

    length = probes = 0
    config = settings(read_timeout_ms=10)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        reader = SegmentReader(pool, FixedStore(store.endpoint), SEGMENT, read_ahead=False)
        reading = asyncio.ensure_future(reader.read())
        await until(
            lambda: sum(isinstance(each, GetStreamSegmentInfo) for each in store.peers[:1] and store.peers[0].got) > 2
        )
        assert len(reads) == 1, "nothing to read: the read still waits and is not asked again"
        length = 4
        assert (await reading).data == b"data"
        assert len(set(reads)) == len(reads) >= 2, "asked anew with another request id"
        reader.close()
