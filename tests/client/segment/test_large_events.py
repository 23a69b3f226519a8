"""Events that are too large for an append: each is carried alone, and in order."""

import asyncio

import pytest

from segstore.client.connection import ConnectionPool, FixedStore
from segstore.client.errors import Closed, EventTooLarge, ProtocolViolation, RequestRejected, SegmentSealed
from segstore.client.segment import SegmentWriter, WriterState
from segstore.server import MockSegmentStore
from segstore.wire import SegmentIsSealed
from tests.client.segments import SEGMENT, content, make, stores_all, writing
from tests.client.support import ScriptedStore, endpoint, settings, until
from tests.looped import looped


class Carrier:
    """Carries a large event when a test says so."""

    def __init__(self) -> None:
        self.carried: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, segment: str, data: bytes) -> None:
        self.carried.append(len(data))
        await self.done


async def test_what_is_too_large_for_an_append_is_carried_alone_and_in_order(
    store: MockSegmentStore, pool: ConnectionPool
) -> None:
    carried: list[tuple[str, bytes, bytes]] = []

    async def carry(segment: str, data: bytes) -> None:
        await asyncio.sleep(0)
        carried.append((segment, data[:1], content(store)))

    await make(store)
    large = pool.settings.max_event_bytes + 9
    async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT, carry=carry) as writer:
        first, second = writer.write(b"a"), writer.write(b"B" * large)
        third, fourth = writer.write(b"C" * large), writer.write(b"d")
        await asyncio.gather(first, second, third, fourth)
        assert carried == [(SEGMENT, b"B", b"a"), (SEGMENT, b"C", b"a")]
        assert content(store) == b"ad"


async def test_a_segment_that_is_over_for_who_carries_is_over_for_the_writer(
    store: MockSegmentStore, pool: ConnectionPool
) -> None:
    over = SegmentSealed("it is sealed", segment=SEGMENT)
    heard: list[Exception] = []

    async def carry(segment: str, data: bytes) -> None:
        raise over

    await make(store)
    writer = SegmentWriter(
        pool, FixedStore(endpoint(store)), SEGMENT, carry=carry, on_over=lambda _, error: heard.append(error)
    )
    writer.write(b"x" * (pool.settings.max_event_bytes + 9), tag="large")
    await until(lambda: writer.state is WriterState.OVER)
    assert heard == [over]
    assert [item.tag for item in writer.take_pending()] == ["large"]
    await writer.aclose()


@looped("problem", [RequestRejected("it is refused", segment=SEGMENT), ZeroDivisionError("by zero")])
async def test_a_large_event_that_cannot_be_carried_ends_the_writer_with_the_reason(problem: Exception) -> None:
    carry = Carrier()
    async with writing(stores_all, carry=carry, max_event_bytes=100) as (_, pool, writer):
        acks = [writer.write(b"x" * 109), writer.write(b"y")]
        await until(lambda: carry.carried)
        carry.done.set_exception(problem)
        kind, text = (
            (RequestRejected, "it is refused")
            if isinstance(problem, RequestRejected)
            else (ProtocolViolation, f"a large event for {SEGMENT} failed: by zero")
        )
        results = await asyncio.gather(*acks, return_exceptions=True)
        for result in results:
            assert isinstance(result, kind)
            assert text in str(result)
            assert result.segment == SEGMENT
            assert result.__cause__ is (None if kind is RequestRejected else problem)
        assert results[0] is not results[1], "their tracebacks are their own"
        assert writer.state is WriterState.FAILED
        assert pool.metrics().flows == 0


@looped("carried", ["stored", "over", "refused"])
async def test_a_segment_that_is_over_during_a_large_event_is_so_after_it(carried: str) -> None:
    heard: list[tuple[object, object]] = []
    carry = Carrier()

    async with writing(stores_all, carry=carry, on_over=lambda *over: heard.append(over), max_event_bytes=100) as (
        store,
        pool,
        writer,
    ):
        large, behind = writer.write(b"x" * 109, tag="large"), writer.write(b"y", tag="behind")
        await until(lambda: carry.carried)
        store.peers[0].send(SegmentIsSealed(writer.request_id, SEGMENT))
        await until(lambda: pool.metrics().flows == 0)
        assert heard == []
        assert writer.state is WriterState.CONNECTING
        if carried == "refused":
            carry.done.set_exception(RequestRejected("it is refused", segment=SEGMENT))
            with pytest.raises(RequestRejected):
                await behind
            assert heard == []
        else:
            if carried == "stored":
                carry.done.set_result(None)
            else:
                carry.done.set_exception(SegmentSealed("it is sealed", segment=SEGMENT))
            await until(lambda: heard)
            assert [(which, type(error)) for which, error in heard] == [(writer, SegmentSealed)]
            assert writer.state is WriterState.OVER
            tags = [item.tag for item in writer.take_pending()]
            assert tags == (["behind"] if carried == "stored" else ["large", "behind"])
            assert large.done() == (carried == "stored")
            large.cancel()
            behind.cancel()
        await writer.abort()
        await asyncio.gather(large, behind, return_exceptions=True)


async def test_a_connection_lost_during_a_large_event_is_set_up_again_and_nothing_overtakes_it() -> None:
    carry = Carrier()
    async with writing(stores_all, carry=carry, max_event_bytes=100) as (store, _, writer):
        large, behind = writer.write(b"x" * 109), writer.write(b"y")
        await until(lambda: carry.carried)
        store.peers[0].close()
        await until(lambda: writer.set_ups == 2)
        last = writer.write(b"z")
        assert writer.in_flight == 0
        carry.done.set_result(None)
        await asyncio.gather(large, behind, last)
        assert carry.carried == [109]
        assert writer.last_number == 2
        await writer.aclose()


async def test_a_writer_closed_during_a_large_event_fails_it_and_what_is_behind_it() -> None:
    carry = Carrier()
    async with writing(stores_all, carry=carry, max_event_bytes=100) as (_, _, writer):
        acks = [writer.write(b"x" * 109), writer.write(b"y")]
        await until(lambda: carry.carried)
        await writer.abort()
        assert carry.done.cancelled()
        assert [type(each) for each in await asyncio.gather(*acks, return_exceptions=True)] == [Closed, Closed]


async def test_an_event_of_the_largest_size_is_appended_and_a_larger_one_refused_with_the_limit() -> None:
    async with ScriptedStore(stores_all) as store, ConnectionPool(settings(max_event_bytes=100)) as pool:
        async with SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT, carry=Carrier()) as carrying:
            await carrying.write(b"x" * 108)
        async with SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT) as writer:
            await writer.write(b"x" * 108)
            with pytest.raises(EventTooLarge) as caught:
                writer.write(b"x" * 109)
            assert (caught.value.segment, caught.value.limit, caught.value.actual) == (SEGMENT, 108, 109)
            await writer.write(b"y")
        async with SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT, frame_events=True) as framing:
            await framing.write(b"x" * 100)
            with pytest.raises(EventTooLarge):
                framing.write(b"x" * 101)
