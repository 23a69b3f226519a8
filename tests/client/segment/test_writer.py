"""Appends with functions in place of futures, what goes first after a reconnect, and the frames that leave."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from segstore.client.connection import ConnectionPool, FixedStore, Flow, InFlightAppend
from segstore.client.connection.outbox import EventCounters, Outbox
from segstore.client.errors import ClientError, Closed
from segstore.client.segment import SegmentWriter
from segstore.server import MockSegmentStore
from segstore.wire import AppendBlockEnd, Command, DataAppended, SetupAppend
from segstore.wire.blocks import AppendBlockEncoder
from tests.client.segments import SEGMENT, content, make, sets_up, writing
from tests.client.support import Recorder, ScriptedPeer, ScriptedStore, endpoint, settings, until
from tests.looped import looped

WRITER = UUID(int=7)


async def test_a_function_hears_that_its_append_is_stored_and_may_append_again() -> None:
    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings()) as pool:
        await make(store)
        async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT) as writer:
            heard: list[ClientError | None] = []
            done = asyncio.get_running_loop().create_future()

            def stored(error: ClientError | None) -> None:
                heard.append(error)
                if len(heard) < 50:
                    writer.append(b"%04d" % len(heard), stored)
                else:
                    done.set_result(None)

            writer.append(b"0000", stored)
            await done
        assert heard == [None] * 50
        assert content(store) == b"".join(b"%04d" % number for number in range(50))


async def test_an_append_that_is_waited_for_leaves_at_once_and_what_comes_while_it_is_on_its_way_gathers() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store)
        async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT) as writer:
            await writer.write(b"first ")
            sent, heard = pool.counters.bytes_out, list[ClientError | None]()
            writer.append(b"alone ", heard.append, now=True)
            left = pool.counters.bytes_out
            assert left > sent, "before the loop has turned"
            writer.append(b"then ", heard.append, now=True)
            last = writer.write(b"last")
            assert pool.counters.bytes_out == left, "these go together"
            await last
            assert heard == [None, None]
        assert [request.event_number for request in store.requests("type = APPEND_BLOCK_END")] == [1, 2, 4]
        assert content(store) == b"first alone then last"


async def test_a_function_hears_of_the_end_once_and_its_own_failure_is_reported_and_harms_nobody() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with MockSegmentStore() as store, ConnectionPool(settings()) as pool:
        await make(store)
        writer = SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT)

        def broken(error: ClientError | None) -> None:
            raise ZeroDivisionError

        writer.append(b"a", broken)
        await writer.write(b"b")
        assert [type(each["exception"]) for each in reported] == [ZeroDivisionError]
        store.faults.add("type = APPEND_BLOCK_END", do={"drop": "request"})
        heard: list[ClientError | None] = []
        writer.append(b"c", heard.append)
        await writer.abort()
        assert [type(each) for each in heard] == [Closed]
        with pytest.raises(Closed):
            writer.append(b"d", heard.append)
        assert len(heard) == 1
    asyncio.get_running_loop().set_exception_handler(None)


async def test_after_a_reconnect_the_oldest_append_goes_alone_and_the_others_when_it_is_acknowledged() -> None:
    ends: list[list[int]] = []

    def script(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            ends.append([])
            sets_up(peer, command)
        elif isinstance(command, AppendBlockEnd):
            ends[-1].append(command.last_event_number)
            if len(ends) == 1 and command.last_event_number == 3:
                peer.close()  # all three are on the way, none is acknowledged

    async with writing(script, max_batch_events=1) as (store, _, writer):
        for _ in range(3):
            writer.append(b"x", lambda _: None)
        await until(lambda: len(ends) == 2 and ends[1])
        writer.append(b"new", lambda _: None)
        await asyncio.sleep(0.02)
        assert ends == [[1, 2, 3], [1]]
        store.peers[-1].send(DataAppended(writer.request_id, writer.writer_id, 1, 0, 1))
        await until(lambda: len(ends[1]) == 4)
        assert ends[1] == [1, 2, 3, 4]


@looped("ends", ["stored", "closed"])
async def test_coroutines_that_wait_for_a_writer_go_on_together_and_a_cancelled_one_disturbs_no_other(
    ends: str,
) -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings(max_in_flight_bytes=1)) as pool:
        await make(store)
        store.faults.add("type = APPEND_BLOCK_END", nth=1, do="hold", name="append")
        writer = SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT)
        starts = [asyncio.create_task(writer.started()) for _ in range(3)]
        await asyncio.sleep(0)
        starts.pop().cancel()
        await asyncio.gather(*starts)
        writer.append(b"held", lambda _: None)
        await store.faults.wait_held("append")
        waits = [asyncio.create_task(wait()) for wait in (writer.room, writer.flush, writer.flush, writer.flush)]
        await asyncio.sleep(0)
        waits.pop().cancel()
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        if ends == "stored":
            store.faults.release("append")
        else:
            await writer.abort()
        room, *flushes = await asyncio.gather(*waits, return_exceptions=True)
        assert room is None
        assert [type(end) for end in flushes] == [type(None) if ends == "stored" else Closed] * 2
        assert ends == "stored" or flushes[0] is not flushes[1], "their tracebacks are their own"
        await writer.flush()
        await writer.abort()


async def test_a_flush_waits_for_earlier_appends_alone() -> None:
    async with MockSegmentStore() as store, ConnectionPool(settings(max_in_flight_bytes=1)) as pool:
        await make(store)
        store.faults.add("type = APPEND_BLOCK_END", nth=2, do="hold", name="later")
        async with SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT) as writer:
            await writer.started()
            writer.write(b"earlier")
            flush = asyncio.create_task(writer.flush())
            await asyncio.sleep(0)
            writer.write(b"later")
            await asyncio.wait_for(flush, 5)
            assert not writer.has_room
            store.faults.release("later")


class Alone:
    """A writer with some appends to send."""

    segment, writer_id, writer_bytes, request_id, frame_events = SEGMENT, WRITER, WRITER.bytes, 5, False

    def __init__(self, appends: list[InFlightAppend]) -> None:
        self.appends = appends

    def take_turn(self, now_s: float, most_bytes: int) -> list[InFlightAppend]:
        return self.appends


@looped("sizes", [[0], [5], [100, 1, 0, 30], [5_000], [4_096, 5_000, 20_000], [1] * 300])
async def test_an_append_by_itself_has_the_frames_that_the_encoder_makes(sizes: list[int]) -> None:
    class Socket:
        def __init__(self) -> None:
            self.written = b""

        def is_closing(self) -> bool:
            return False

        def writelines(self, parts: list[bytes]) -> None:
            self.written += b"".join(parts)

    config = settings()
    async with ScriptedStore() as store, ConnectionPool(config) as pool:
        flow: Flow = await pool.flow(store.endpoint, Recorder())
        counters, socket = EventCounters(), Socket()
        outbox = Outbox(config, counters, asyncio.get_running_loop())
        outbox.opened(socket)  # type: ignore[arg-type]  # what it uses of one
        setup = SetupAppend(5, WRITER, SEGMENT, "")
        outbox.send(setup)
        outbox.write()
        outbox.turn_due = False
        append = InFlightAppend(b"", print, 1, None, sum(sizes))
        append.data = [bytes([65 + at % 26]) * size for at, size in enumerate(sizes)]
        append.first, append.last = 1, len(sizes)
        flow.appender = Alone([append])
        outbox.turn_now(flow)
        encoder = AppendBlockEncoder()
        expected = encoder.command(setup)
        expected += encoder.append(SEGMENT, WRITER, len(sizes), len(sizes), b"".join(append.data), 5, 0.0)
        assert socket.written == b"".join(expected)
        assert counters.bytes_out == len(socket.written)
        assert flow.bytes_in_flight == outbox.bytes_in_flight == sum(sizes)
        outbox.close()
