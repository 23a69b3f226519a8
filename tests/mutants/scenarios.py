"""The scenarios that exercise mutants: clients that `explore` can run, too. All but `hand_over` have fewer than 40
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import UUID

from segstore.client import Client, GroupReader, Revision, TableConfig, connect
from segstore.client.errors import BadKeyVersion, NoSuchKey
from segstore.wire.commands import AppendSetup, GetStreamSegmentInfo, SealSegment, SegmentRead, TruncateSegment
from tests.seeds.large_events import big, small
from tests.server.support import HELLO, SEGMENT, Peer, append, create, read, set_up, until


@asynccontextmanager
async def stream(mock: Any, segments: int = 1, **settings: Any) -> AsyncIterator[Client]:
    async with connect(f"tcp://{mock.controller_uri}", small(**settings)) as pravega:
        await pravega.controller.create_scope("a")
        await pravega.controller.create_stream("a", "s", segments=segments)
        yield pravega


async def read_all(pravega: Client) -> None:
    """Seals the stream and reads it to its end."""
    await pravega.controller.seal_stream("a", "s")
    async with pravega.event_reader("a", "s") as events:
        _ = [event async for event in events]


async def writer(mock: Any) -> None:
    """A writer, one event after the other."""
    async with stream(mock) as pravega:
        async with pravega.event_writer("a", "s") as events:
            for number in range(4):
                await events.write(b"event %d" % number)
        await read_all(pravega)


async def writers(mock: Any) -> None:
    """Two writers that take turns, with several events an append."""
    async with stream(mock) as pravega:
        async with pravega.event_writer("a", "s") as one, pravega.event_writer("a", "s") as two:
            for number in range(3):
                for name, events in (("one", one), ("two", two)):
                    await asyncio.gather(*(events.write(f"{name} {number} {event}".encode()) for event in range(4)))
        await read_all(pravega)


async def byte_stream(mock: Any) -> None:
    """A writer and a reader of bytes."""
    async with stream(mock) as pravega, pravega.byte_writer("a", "s") as written:
        for number in range(3):
            await written.append(b"bytes %d" % number)
            await written.flush()
        async with pravega.byte_reader("a", "s") as read:
            await read.read(100)


async def after_seal(mock: Any) -> None:
    """A writer whose stream is sealed before its last event."""
    async with stream(mock) as pravega, pravega.event_writer("a", "s") as events:
        await events.write(b"before")
        await pravega.controller.seal_stream("a", "s")
        await asyncio.gather(events.write(b"after"), return_exceptions=True)


async def transactions(mock: Any) -> None:
    """A writer, and two transactions on two segments: one is aborted, one committed."""
    async with stream(mock, 2) as pravega:
        async with pravega.event_writer("a", "s") as events, pravega.transaction_writer("a", "s") as writer:
            for number in range(2):
                async with writer.begin() as transaction:
                    for key in ("0", "1"):
                        await transaction.write(f"{key} of transaction {number}".encode(), routing_key=key)
                    if number == 0:
                        await transaction.abort()
                    else:
                        await transaction.flush()
                        await events.write(b"event", routing_key="1")
                        await transaction.commit()
                        await transaction.status()
        await read_all(pravega)


async def in_transactions(mock: Any) -> None:
    """Two transactions of one writer, one committed after the other."""
    async with stream(mock) as pravega:
        async with pravega.event_writer("a", "s") as events, pravega.transaction_writer("a", "s") as writer:
            both = [writer.begin(), writer.begin()]
            for number, transaction in enumerate(both):
                await transaction.open()
                await transaction.write(b"first of transaction %d" % number)
                await transaction.write(b"second of transaction %d" % number)
            for transaction in both:
                await transaction.commit(wait=False)
            await events.write(b"last")
        await read_all(pravega)


async def open_transaction(mock: Any) -> None:
    """A transaction that is open while the stream is read."""
    async with stream(mock) as pravega:
        async with pravega.event_writer("a", "s") as events, pravega.transaction_writer("a", "s") as writer:
            transaction = writer.begin()
            await transaction.open()
            await transaction.write(b"in a transaction")
            await transaction.flush()
            await events.write(b"event")
            async with pravega.event_reader("a", "s") as reader:
                await anext(reader)
            await transaction.commit()
        await read_all(pravega)


async def large_event(mock: Any) -> None:
    """A writer of a large event, and another writer."""
    async with stream(mock) as pravega:
        async with pravega.event_writer("a", "s") as one, pravega.event_writer("a", "s") as two:
            await one.write(b"small")
            await one.write(big(2_500))
            await two.write(b"last")
        await read_all(pravega)


async def table(mock: Any) -> None:
    """A client that changes and reads keys, on the versions that it knows and on old ones."""
    async with stream(mock) as pravega:
        await pravega.controller.create_table("a", "t", TableConfig(partitions=1, primary_key_bytes=2))
        async with pravega.table("a", "t") as keys:
            first = await keys.put_if_absent(b"k1", b"one")
            await keys.get(b"k1")
            second = await keys.put(b"k1", b"two", version=first)
            await keys.put(b"k2", b"other")
            await keys.get(b"k1")
            await asyncio.gather(keys.put(b"k1", b"three", version=first), return_exceptions=True)
            await keys.put(b"k1", b"four", version=second)
            await keys.get_all((b"k1", b"k2"))
            with suppress(BadKeyVersion, NoSuchKey):  # of a mutant
                await keys.remove(b"k1")
                await keys.get(b"k1")


async def revisions(mock: Any) -> None:
    """Two conditional writers of a stream, and its mark."""
    async with (
        stream(mock) as pravega,
        pravega.revisioned_stream("a", "s") as one,
        pravega.revisioned_stream("a", "s") as two,
    ):
        start = await one.latest()
        await one.write_conditionally(start, b"one")
        await two.write_conditionally(start, b"two")
        await two.write_conditionally(await two.latest(), b"three")
        mark, other = Revision(one.segment, 8), Revision(one.segment, 16)
        await one.compare_and_set_mark(None, mark)
        await two.compare_and_set_mark(None, other)
        await two.mark()


async def group(mock: Any) -> None:
    """Two readers of a group, and two segments."""
    async with stream(mock, 2) as pravega:
        async with pravega.event_writer("a", "s") as events:
            await events.write(b"one", routing_key="0")
            await events.write(b"two", routing_key="1")
        async with pravega.reader_group("a", "g", streams=["s"]) as readers, readers.reader("one") as one:
            await one.read()
            async with readers.reader("two"):
                await one.read()


async def hand_over(mock: Any) -> None:
    """A reader of a group that releases one of its segments to another reader, and a checkpoint of both."""
    async with (
        stream(mock, 2) as pravega,
        pravega.event_writer("a", "s") as events,
        pravega.reader_group("a", "g", streams=["s"], refresh_ms=100) as readers,
        readers.reader("one") as one,
        asyncio.TaskGroup() as tasks,
    ):

        async def write(event: bytes) -> None:
            await asyncio.gather(*(events.write(event, routing_key=key) for key in "01"))

        async def read(reader: GroupReader) -> None:
            event = await reader.read()
            while event is not None and event.data != b"last":
                event = await reader.read()

        await write(b"first")
        tasks.create_task(read(one))
        await asyncio.sleep(0.2)
        async with readers.reader("two") as two:
            await until(lambda: two.segments)
            await asyncio.sleep(0.3)  # it reports its position
            reading = tasks.create_task(read(two))
            for event in (b"second", b"third", b"fourth"):
                await write(event)
            await asyncio.gather(readers.checkpoint(timeout_ms=1_000), return_exceptions=True)
            await write(b"last")
            await reading


async def truncation(mock: Any) -> None:
    """A raw client that truncates a segment and reads before the truncation, then seals the segment."""
    async with await Peer.connect(mock) as peer:
        data = bytes(7) + b"\x04data"
        await peer.ask(HELLO, create(), set_up())
        for number in range(1, 4):
            await peer.ask(append(number, data))
        await peer.ask(TruncateSegment(5, SEGMENT, 12, ""))
        await peer.ask(GetStreamSegmentInfo(6, SEGMENT, ""))
        await peer.ask(read(0, 24))
        await peer.ask(read(12, 24))
        await peer.ask(read(12, 24))
        await peer.ask(SealSegment(7, SEGMENT, ""))
        await peer.ask(append(4, data))
        await peer.ask(read(36, 24))


async def fenced(mock: Any) -> None:
    """One writer id on two connections: the store must refuse the first when the second has stored an event."""
    data = bytes(7) + b"\x04data"
    async with await Peer.connect(mock) as one, await Peer.connect(mock) as two:
        await one.ask(HELLO, create(), set_up())
        await one.ask(append(1, data))
        await two.ask(HELLO, set_up())
        await two.ask(append(2, data))
        await one.ask(append(3, data))


async def unanswered(mock: Any) -> None:
    """A raw client that reads what it appends without waiting for acknowledgements."""
    async with await Peer.connect(mock) as peer:
        await peer.ask(HELLO, create(), set_up())
        peer.send(*(append(number, bytes(7) + b"\x04dat%d" % number) for number in (1, 2, 3)), read(0, 36))
        replies = await peer.receive()
        while replies and not isinstance(replies[0], SegmentRead):
            replies = await peer.receive()


async def two_stores(mock: Any) -> None:
    """Raw clients that append to a segment through its owner and through another store."""
    owner, other = sorted(mock.stores, key=lambda store: not store.store.owns(SEGMENT))
    for number, store, first in ((1, owner, (HELLO, create())), (2, other, (HELLO,))):
        async with await Peer.connect(store.address) as peer:
            writer = UUID(int=number)
            replies = await peer.ask(*first, set_up(writer_id=writer))
            if isinstance(replies[-1], AppendSetup):
                await peer.ask(append(1, bytes(7) + b"\x04dat%d" % number, writer))
