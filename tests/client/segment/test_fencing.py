"""Two writers with one id: who lost its numbers hears of it, and not that an event was stored that was not."""

import asyncio

import pytest

from segstore.client import Client
from segstore.client.connection import ConnectionPool, FixedStore
from segstore.client.errors import Final, WriterFenced
from segstore.client.segment import SegmentWriter
from segstore.server import MockSegmentStore
from segstore.wire import AppendBlockEnd, Command, InvalidEventNumber, SetupAppend
from tests.client.segment.test_writer import WRITER
from tests.client.segments import SEGMENT, content, make, setup_reply, writing
from tests.client.support import ScriptedPeer, endpoint, make_stream, settings, until


async def test_the_writer_whose_number_was_taken_fails_and_its_event_is_not_stored() -> None:
    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        one, other = (SegmentWriter(pool, where, SEGMENT, writer_id=WRITER) for _ in range(2))
        await asyncio.gather(one.started(), other.started())
        await one.write(b"a")
        waiting = [other.write(b"b"), other.write(b"c")]
        for each in waiting:
            with pytest.raises(WriterFenced) as caught:
                await each
            assert (caught.value.segment, caught.value.endpoint) == (SEGMENT, str(endpoint(store)))
            assert caught.value.details["writer_id"] == WRITER
        assert isinstance(caught.value, Final)
        with pytest.raises(WriterFenced, match=f"as {WRITER}"):
            other.write(b"d")
        await other.abort()
        assert content(store) == b"a"
        await one.write(b"e")
        await one.aclose()
        assert content(store) == b"ae"


async def test_a_store_that_has_more_than_a_writer_has_sent_has_it_of_another() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        one = SegmentWriter(pool, where, SEGMENT, writer_id=WRITER)
        await one.write(b"a")
        store.faults.add("type = APPEND_BLOCK_END", nth=1, do="close")
        store.faults.add("type = SETUP_APPEND", nth=1, do="hold", name="later")
        lost = one.write(b"b")
        await store.faults.wait_held("later")
        async with SegmentWriter(pool, where, SEGMENT, writer_id=WRITER) as other:
            await asyncio.gather(other.write(b"c"), other.write(b"d"))
        store.faults.clear()
        with pytest.raises(WriterFenced):
            await lost
        await one.abort()
        assert content(store) == b"acd"


async def test_a_number_that_the_store_has_from_before_a_reconnect_is_the_writers_own() -> None:
    """The first of two copies of an append arrives between the set-up and the second: nobody else is there."""
    set_ups = 0

    def script(peer: ScriptedPeer, command: Command) -> None:
        nonlocal set_ups
        if isinstance(command, SetupAppend):
            set_ups += 1
            peer.send(setup_reply(command, -(2**63) if set_ups < 3 else 1))
        elif isinstance(command, AppendBlockEnd):
            if set_ups == 2:
                peer.send(InvalidEventNumber(command.writer_id, command.request_id, "", 1))
            peer.close()

    async with writing(script) as (_, _, writer):
        await writer.write(b"x")
        assert (set_ups, writer.last_number) == (3, 1)


async def test_event_writers_of_one_name_fence_each_other(grpc_runs: None, pravega: Client) -> None:
    await make_stream(pravega)
    one = pravega.event_writer("a", "s", name="orders")
    other = pravega.event_writer("a", "s", name="orders")
    await one.open()
    await other.open()
    await one.write(b"x")
    with pytest.raises(WriterFenced):
        await other.write(b"y")
    await other.aclose()
    await one.write(b"z")
    await one.aclose()
    async with pravega.event_reader("a", "s") as events:
        got: list[bytes] = []
        while len(got) < 2:
            event = await events.read()
            got.append(event.data)
    assert got == [b"x", b"z"]
    await until(lambda: pravega.metrics().flows == 0)
