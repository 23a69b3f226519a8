"""Revisioned streams and state synchronizers against a real store: conditions, marks, truncation, lost connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from segstore.client import errors
from segstore.client.connection import ConnectionPool, Endpoint, FixedStore, SegmentRequests
from segstore.client.stream import Revision, RevisionedStream, StateSynchronizer
from segstore.client.stream.revisioned import MARK_ATTRIBUTE
from segstore.server import FaultSettings, MockSegmentStore
from segstore.wire import (
    AppendSetup,
    Command,
    ConditionalAppend,
    ConditionalCheckFailed,
    DataAppended,
    SegmentCreated,
    SetupAppend,
)
from segstore.wire.hashing import java_hash_code, murmur3_128_low
from segstore.wire.schema import utf16
from tests.client.support import FAST, AddedUp, ScriptedPeer, ScriptedStore, Sum, create, endpoint, settings
from tests.looped import looped

SEGMENT = "a/log/0.#epoch.0"


@asynccontextmanager
async def stored(connections: int = 2, **more: Any) -> AsyncIterator[tuple[MockSegmentStore, ConnectionPool]]:
    """A store with the segment, and a pool."""
    async with MockSegmentStore() as store:
        pool = ConnectionPool(settings(max_connections_per_store=connections, retry=FAST, **more))
        async with pool, SegmentRequests(pool, FixedStore(endpoint(store))) as requests:
            await requests.ask(SEGMENT, SegmentCreated, lambda id_, token: create(SEGMENT, id_))
            yield store, pool


def log(pool: ConnectionPool, where: Endpoint) -> RevisionedStream:
    return RevisionedStream(pool, FixedStore(where), SEGMENT)


async def entries(stream: RevisionedStream, start: Revision, to: Revision | None = None) -> list[bytes]:
    return [entry.data async for entry in stream.read(start, to)]


def test_the_mark_is_the_attribute_of_the_reference() -> None:
    hashed = murmur3_128_low(utf16("RevisionStreamClientMark"), java_hash_code("SegmentAttribute"))
    assert MARK_ATTRIBUTE.bytes[:8] == hashed.to_bytes(8, "little")


async def test_an_entry_is_written_only_where_the_log_ends() -> None:
    async with stored() as (store, pool), log(pool, endpoint(store)) as ours, log(pool, endpoint(store)) as other:
        start = await ours.latest()
        assert start == await ours.oldest() == Revision(SEGMENT, 0)
        first = await ours.write_conditionally(start, b"first")
        assert first == Revision(SEGMENT, 13)
        assert await other.write_conditionally(start, b"late") is None
        assert await other.write_conditionally(first, b"") == Revision(SEGMENT, 21)
        assert await ours.write_conditionally(first, b"late again") is None
        await ours.write(b"whatever is there")
        assert await entries(ours, start) == [b"first", b"", b"whatever is there"]
        assert await entries(other, first) == [b"", b"whatever is there"]
        assert await entries(ours, start, first) == [b"first"]
        assert await entries(ours, await ours.latest()) == []
        revisions = [entry.revision async for entry in ours.read(start)]
        assert revisions == [first, Revision(SEGMENT, 21), await other.latest()]


async def test_the_mark_is_compared_and_set() -> None:
    async with stored() as (store, pool), log(pool, endpoint(store)) as ours:
        one = await ours.write_conditionally(await ours.latest(), b"1")
        assert await ours.mark() is None
        assert await ours.compare_and_set_mark(None, one)
        assert not await ours.compare_and_set_mark(None, Revision(SEGMENT, 0))
        assert await ours.mark() == one
        assert await ours.compare_and_set_mark(one, None)
        assert await ours.mark() is None


async def test_what_was_truncated_cannot_be_read_and_the_error_has_the_start() -> None:
    async with stored() as (store, pool), log(pool, endpoint(store)) as ours:
        start = await ours.latest()
        one = await ours.write_conditionally(start, b"1")
        await ours.write(b"2")
        await ours.truncate(one)
        await ours.truncate(one)
        await ours.truncate(start)
        assert await ours.oldest() == one
        with pytest.raises(errors.SegmentTruncated) as caught:
            await entries(ours, start)
        assert caught.value.details["start_offset"] == one.offset
        assert await entries(ours, one) == [b"2"]


async def test_invalid_calls_are_refused_before_anything_is_sent() -> None:
    async with stored(max_event_bytes=10) as (store, pool), log(pool, endpoint(store)) as ours:
        with pytest.raises(errors.EventTooLarge):
            await ours.write_conditionally(Revision(SEGMENT, 0), b"x" * 11)
        with pytest.raises(errors.EventTooLarge):
            await ours.write(b"x" * 11)
        with pytest.raises(ValueError, match="is not a revision of"):
            await ours.write_conditionally(Revision("a/other/0.#epoch.0", 0), b"")
        with pytest.raises(ValueError, match="cannot be read from 5 to 0"):
            await entries(ours, Revision(SEGMENT, 5))
        await ours.aclose()
        with pytest.raises(errors.Closed):
            await ours.latest()


async def test_an_entry_whose_reply_was_lost_is_not_written_twice() -> None:
    seen: list[Command] = []

    def script(peer: ScriptedPeer, command: Command) -> None:
        seen.append(command)
        appends = sum(isinstance(each, ConditionalAppend) for each in seen)
        if isinstance(command, SetupAppend):
            last = 1 if appends else -1
            peer.send(AppendSetup(command.request_id, command.segment, command.writer_id, last))
        elif isinstance(command, ConditionalAppend):
            if appends == 1:
                peer.close()  # it was stored, nobody hears of it
            elif appends == 2:
                peer.send(ConditionalCheckFailed(command.writer_id, command.event_number, command.request_id))
            else:
                peer.send(DataAppended(command.request_id, command.writer_id, command.event_number))

    async with (
        ScriptedStore(script) as store,
        ConnectionPool(settings(retry=FAST)) as pool,
        log(pool, store.endpoint) as ours,
    ):
        assert await ours.write_conditionally(Revision(SEGMENT, 0), b"1") == Revision(SEGMENT, 9)
        assert await ours.write_conditionally(Revision(SEGMENT, 0), b"2") is None
        assert await ours.write_conditionally(Revision(SEGMENT, 9), b"3") == Revision(SEGMENT, 18)
    appends = [each for each in seen if isinstance(each, ConditionalAppend)]
    assert [each.event_number for each in appends] == [1, 2, 3]
    assert len({append.writer_id for append in appends}) == 1


async def test_synchronizers_of_one_state_see_each_others_updates_once() -> None:
    async with stored() as (store, pool):

        def shared() -> StateSynchronizer[int]:
            return StateSynchronizer(log(pool, endpoint(store)), Sum())

        async with shared() as one, shared() as two:
            assert await one.fetch() is None
            with pytest.raises(errors.ConditionFailed):
                await one.update(lambda _: [b"1"])
            assert [await one.initialise(b"5"), await two.initialise(b"7")] == [True, False]
            assert two.state == 5

            async def add(which: StateSynchronizer[int]) -> None:
                for _ in range(20):
                    await which.update(lambda _: [b"1", b"2"])

            await asyncio.gather(add(one), add(two))
            await one.update_unconditionally([b"1000"])
            assert await one.fetch() == await two.fetch() == 1125
            assert one.revision == two.revision
            before = one.revision
            assert await one.update(lambda state: [b"-1"] if state == 0 else []) == 1125
            assert one.revision == before


async def test_a_compacted_state_is_read_from_its_mark_and_what_was_before_is_dropped() -> None:
    async with stored() as (store, pool):
        async with StateSynchronizer(log(pool, endpoint(store)), Sum()) as one:
            await one.initialise(b"0")
            late = StateSynchronizer(log(pool, endpoint(store)), Sum())
            assert await late.fetch() == 0
            for _ in range(2):
                for _ in range(10):
                    await one.update(lambda _: [b"1"])
                await one.compact()
            assert one.state == 20
        async with log(pool, endpoint(store)) as stream:
            assert (await stream.oldest()).offset > 0
            fresh = StateSynchronizer(stream, Sum())
            assert await fresh.fetch() == 20
        assert late.state == 0
        assert await late.fetch() == 20
        assert await late.update(lambda _: [b"1"]) == 21
        await late.aclose()


async def test_a_log_that_holds_something_else_is_refused() -> None:
    async with stored() as (store, pool), StateSynchronizer(log(pool, endpoint(store)), Sum()) as ours:
        async with log(pool, endpoint(store)) as stream:
            await stream.write(b"\0\0\0\7")
        with pytest.raises(errors.ProtocolViolation, match="kind 7"):
            await ours.fetch()


@looped("seed", range(2))
async def test_each_entry_is_stored_once_while_connections_break(seed: int) -> None:
    random = Random(seed)
    async with stored() as (store, pool):
        store.faults.load(FaultSettings(seed=seed))
        for what in ("CONDITIONAL_APPEND", "SETUP_APPEND", "READ_SEGMENT", "GET_STREAM_SEGMENT_INFO"):
            how = random.choice(["close", "close after"])
            store.faults.add(f"type = {what}", probability=0.15, do=how)

        async def add(name: int) -> None:
            async with StateSynchronizer(log(pool, endpoint(store)), AddedUp()) as shared:
                await shared.initialise(b"")
                for number in range(15):
                    await shared.update(lambda state, number=number: [b"%d:%d," % (name, number)])  # type: ignore[misc]
                    if random.random() < 0.1:
                        await shared.compact()

        async with asyncio.timeout(60):
            await asyncio.gather(*map(add, range(3)))
            async with StateSynchronizer(log(pool, endpoint(store)), AddedUp()) as shared:
                state = await shared.fetch()
        assert sorted(state.split(b",")) == sorted([b"", *(b"%d:%d" % (n, i) for n in range(3) for i in range(15))])


async def test_a_write_that_was_cancelled_leaves_the_next_one_right() -> None:
    async with stored() as (store, pool), log(pool, endpoint(store)) as ours:
        rule = store.faults.add("type = CONDITIONAL_APPEND", do="hold", nth=1)
        writing = asyncio.create_task(ours.write_conditionally(Revision(SEGMENT, 0), b"held"))
        await store.faults.wait_held(rule)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        store.faults.release(rule)
        at = await ours.latest()
        behind = await ours.write_conditionally(at, b"next")
        assert behind is not None
        assert (await entries(ours, at))[0] == b"next"


async def test_a_mark_that_was_set_while_the_reply_was_lost_counts_as_set() -> None:
    async with stored() as (store, pool), log(pool, endpoint(store)) as ours:
        store.faults.add("type = UPDATE_SEGMENT_ATTRIBUTE", nth=1, do="close after")
        assert await ours.compare_and_set_mark(None, Revision(SEGMENT, 7))
        assert pool.metrics().connections_lost == 1, "the reply was lost"
        assert await ours.mark() == Revision(SEGMENT, 7)
        store.faults.add("type = UPDATE_SEGMENT_ATTRIBUTE", nth=1, do="close before")
        assert not await ours.compare_and_set_mark(None, Revision(SEGMENT, 8)), "nobody has set this one"
        assert await ours.mark() == Revision(SEGMENT, 7)
