"""PDP-36, ids 36.26 and 36.27, and what 36.7 and 36.9 say of writers: trying again, ending, flushing.

Where a line is about a peer that misbehaves, a scripted store plays it.
"""

import asyncio
from collections.abc import Callable

import pytest

from segstore.client.config import ClientSettings
from segstore.client.connection import ConnectionPool, Endpoint, FixedStore
from segstore.client.errors import Closed, RequestTimedOut, RetriesExhausted, SegmentMissing, SegmentOver, SegmentSealed
from segstore.client.retry import Backoff
from segstore.client.segment import SegmentReader, SegmentWriter, WriterState
from segstore.server import MockSegmentStore
from segstore.wire import AppendBlockEnd, AuthTokenCheckFailed, AuthTokenErrorCode, Command, SetupAppend
from tests.client.segments import FAST_RETRY, SEGMENT, content, make, sets_up, stores_all, writing
from tests.client.support import ScriptedPeer, ScriptedStore, endpoint, settings, until
from tests.looped import looped


class Moving(FixedStore):
    """Two stores, of which the segment is in the second."""

    def __init__(self, *endpoints: Endpoint) -> None:
        super().__init__(endpoints[0])
        self._endpoints = list(endpoints)
        self.forgotten = 0

    async def endpoint_of(self, segment: str) -> Endpoint:
        return self._endpoints[min(self.forgotten, len(self._endpoints) - 1)]

    def forget(self, segment: str, endpoint: Endpoint) -> None:
        self.forgotten += 1


@pytest.mark.seed("36.26")
def test_a_writer_tries_ten_times_with_delays_that_grow_tenfold_to_twenty_seconds() -> None:
    assert ClientSettings().retry == Backoff(initial_ms=1, multiplier=10, max_ms=20_000, jitter=0, max_attempts=10)


@pytest.mark.seed("36.26")
async def test_a_wrong_host_forgets_the_endpoint_and_connects_to_the_owner() -> None:
    async with (
        MockSegmentStore(watched=False, containers=1, own=set()) as wrong,
        MockSegmentStore(watched=False, containers=1) as right,
        ConnectionPool(settings()) as pool,
    ):
        await make(right)
        where = Moving(endpoint(wrong), endpoint(right))
        async with SegmentWriter(pool, where, SEGMENT) as writer:
            await writer.write(b"event")
        assert where.forgotten == 1
        assert content(right) == b"event"


@pytest.mark.seed("36.26")
@looped("end", ["seal", "delete"])
async def test_a_sealed_or_missing_segment_hands_over_what_is_not_acknowledged_in_order(end: str) -> None:
    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings()) as pool:
        await make(store, SEGMENT, "scope/stream/1.#epoch.1")
        where = FixedStore(endpoint(store))
        over: list[SegmentOver] = []
        heard = asyncio.Event()

        def on_over(writer: SegmentWriter, error: SegmentOver) -> None:
            over.append(error)
            heard.set()

        writer = SegmentWriter(pool, where, SEGMENT, on_over=on_over)
        await writer.write(b"stored")
        if end == "seal":
            store.store.container_for(SEGMENT).seal_segment(SEGMENT, now_ms=0)
        else:
            store.store.delete_segment(SEGMENT)
        acks = [writer.write(b"%d" % number, tag=number) for number in range(3)]
        await heard.wait()
        acks += [writer.write(b"%d" % number, tag=number) for number in range(3, 6)]
        assert [type(error) for error in over] == [SegmentSealed if end == "seal" else SegmentMissing]
        assert writer.state is WriterState.OVER
        pending = writer.take_pending()
        assert [item.tag for item in pending] == list(range(6))
        successor = SegmentWriter(pool, where, "scope/stream/1.#epoch.1")
        successor.adopt(pending)
        await asyncio.gather(*acks)
        assert content(store, "scope/stream/1.#epoch.1") == b"012345"
        await writer.aclose()
        await successor.aclose()


@pytest.mark.seed("36.26")
async def test_without_successors_what_is_not_acknowledged_fails_as_sealed() -> None:
    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings()) as pool:
        await make(store)
        writer = SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT)
        await writer.write(b"stored")
        store.store.container_for(SEGMENT).seal_segment(SEGMENT, now_ms=0)
        acks = [writer.write(b"late") for _ in range(3)]
        results = await asyncio.gather(*acks, return_exceptions=True)
        assert [type(result) for result in results] == [SegmentSealed] * 3
        with pytest.raises(SegmentSealed):
            writer.write(b"later")
        with pytest.raises(SegmentSealed):
            await writer.aclose()
        await writer.aclose()


@pytest.mark.seed("36.26")
async def test_a_store_that_cannot_be_reached_fails_what_waits_after_the_last_attempt() -> None:
    async with ScriptedStore() as gone:
        where = gone.endpoint
    async with ConnectionPool(settings(retry=FAST_RETRY)) as pool:
        writer = SegmentWriter(pool, FixedStore(where), SEGMENT)
        flushing = asyncio.ensure_future(writer.flush())
        ack = writer.write(b"event")
        with pytest.raises(RetriesExhausted) as caught:
            await ack
        assert caught.value.actual == 4
        assert caught.value.endpoint == str(where)
        await asyncio.gather(flushing, return_exceptions=True)
        with pytest.raises(RetriesExhausted):
            await writer.aclose()


@pytest.mark.seed("36.26")
async def test_a_store_that_sets_up_but_never_acknowledges_does_not_hang_the_writer() -> None:
    async with writing(sets_up, request_timeout_ms=20, retry=FAST_RETRY) as (store, _, writer):
        with pytest.raises(RetriesExhausted) as caught:
            await writer.write(b"event")
        assert caught.value.endpoint == str(store.endpoint)
        assert caught.value.request_id is not None
        assert isinstance(caught.value.__cause__, RequestTimedOut)
        assert caught.value.__cause__.segment == SEGMENT


async def test_an_expired_token_is_fetched_again_for_the_next_set_up() -> None:
    used: list[str] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend) and not used:
            peer.send(AuthTokenCheckFailed(command.request_id, "", AuthTokenErrorCode.TOKEN_EXPIRED))
        else:
            stores_all(peer, command)
        if isinstance(command, SetupAppend):
            used.append(command.delegation_token)

    async def fetch() -> str:
        return f"token {len(used)}"

    async with (
        ScriptedStore(answer) as store,
        ConnectionPool(settings(retry=FAST_RETRY)) as pool,
        SegmentWriter(pool, FixedStore(store.endpoint, fetch), SEGMENT) as writer,
    ):
        await writer.write(b"event")
    assert used == ["token 0", "token 1"]


@pytest.mark.seed("36.27")
async def test_flush_returns_when_what_was_written_before_it_is_acknowledged() -> None:
    held: list[Callable[[], None]] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, AppendBlockEnd):
            held.append(lambda: stores_all(peer, command))
        else:
            sets_up(peer, command)

    async with writing(answer) as (_, _, writer):
        await writer.flush()
        acks = [writer.write(b"x") for _ in range(3)]
        flushing = asyncio.ensure_future(writer.flush())
        await until(lambda: len(held) == 1)
        later = writer.write(b"y")
        await until(lambda: len(held) == 2)
        assert not flushing.done()
        held[0]()
        await flushing
        assert all(ack.done() for ack in acks)
        assert not later.done()
        held[1]()
        await writer.aclose()
        assert later.done()


@pytest.mark.seed("36.7")
async def test_closing_the_pool_ends_a_writers_futures_and_its_flush() -> None:
    async with writing(sets_up) as (_, pool, writer):
        ack = writer.write(b"x")
        flushing = asyncio.ensure_future(writer.flush())
        await until(lambda: writer.in_flight)
        await pool.aclose()
        results = await asyncio.gather(ack, flushing, return_exceptions=True)
        assert [type(result) for result in results] == [Closed, Closed]


@pytest.mark.seed("36.9")
@looped("pooled", [True, False])
async def test_without_pooling_each_writer_and_reader_has_a_connection_of_its_own(pooled: bool) -> None:
    config = settings(enable_connection_pooling=pooled, max_connections_per_store=2)
    async with MockSegmentStore(watched=False) as store, ConnectionPool(config) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        writers = [SegmentWriter(pool, where, SEGMENT) for _ in range(4)]
        await asyncio.gather(*[writer.write(b"x") for writer in writers])
        reader = SegmentReader(pool, where, SEGMENT)
        assert (await reader.read()).data == b"xxxx"
        assert pool.metrics().connections == (2 if pooled else 5)
        reader.close()
        for writer in writers:
            await writer.aclose()
        assert pool.metrics().connections == (2 if pooled else 0)
