"""PDP-36, ids 36.22, 36.23 and 36.25: acknowledgements, what is sent again, and errors of appends.

Where a line is about a peer that misbehaves, a scripted store plays it.
"""

import asyncio
from typing import Any
from uuid import UUID

import jwt
import pytest

from segstore.client.connection import ConnectionPool, FixedStore
from segstore.client.retry import Backoff
from segstore.client.segment import SegmentWriter, WriterState
from segstore.server import MockSegmentStore
from segstore.wire import (
    AppendBlockEnd,
    AuthTokenCheckFailed,
    Command,
    DataAppended,
    GetStreamSegmentInfo,
    InvalidEventNumber,
    OperationUnsupported,
    ReadSegment,
    SealTableSegment,
    SegmentAlreadyExists,
    SegmentCreated,
    SetupAppend,
    WrongHost,
)
from tests.client.segments import FAST_RETRY, SEGMENT, content, make, sets_up, setup_reply, stores_all, writing
from tests.client.support import ScriptedPeer, ScriptedStore, create, endpoint, settings, until
from tests.looped import looped
from tests.server.support import Peer


@pytest.mark.seed("36.22")
async def test_one_ack_covers_all_appends_before_it() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command))
        elif isinstance(command, AppendBlockEnd) and command.last_event_number == 6:
            peer.send(DataAppended(command.request_id, command.writer_id, 6, 0, 60))

    async with writing(answer, append_batching="turn", max_batch_events=2) as (_, _, writer):
        acks = [writer.write(b"x") for _ in range(6)]
        await acks[0]
        assert all(ack.done() for ack in acks)
        assert writer.segment_length == 60
        assert writer.in_flight == 0
        await writer.aclose()


@pytest.mark.seed("36.22")
@looped(("number", "previous"), [(2, 2), (2, 3), (3, 1), (9, 0)])
async def test_an_ack_that_cannot_be_is_a_protocol_error_and_nothing_is_lost(number: int, previous: int) -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, AppendBlockEnd) and peer is store.peers[0]:
            peer.send(DataAppended(command.request_id, command.writer_id, number, previous, 1))
        else:
            stores_all(peer, command)

    async with writing(answer) as (store, _, writer):
        await asyncio.gather(*[writer.write(b"x") for _ in range(3)])
        await writer.aclose()
        assert len(store.peers) == 2, "the connection that lied is gone"


@pytest.mark.seed("36.23")
@looped("stored", [0, 1, 2, 3, 4])
async def test_the_answer_to_a_set_up_acknowledges_and_the_rest_is_sent_again_before_anything_new(stored: int) -> None:
    sent_again: list[int] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        first = peer is store.peers[0]
        if isinstance(command, SetupAppend):
            peer.send(setup_reply(command) if first else setup_reply(command, stored or -(2**63)))
        elif isinstance(command, AppendBlockEnd):
            if first:
                if command.last_event_number == 4:
                    peer.close()
                    acks.append(writer.write(b"new"))
                return
            sent_again.append(command.last_event_number)
            stores_all(peer, command)

    async with writing(answer, max_batch_events=2) as (store, _, writer):
        acks = [writer.write(b"x") for _ in range(4)]
        await until(lambda: len(acks) == 5)
        await asyncio.gather(*acks)
        assert writer.set_ups == 2
        assert writer.last_number == 5
        await writer.aclose()
    assert sent_again[-1] == 5
    assert sent_again[:-1] == [last for last in (2, 4) if last > stored]


@pytest.mark.seed("36.23")
async def test_a_writer_id_that_has_written_before_goes_on_where_it_stopped() -> None:
    async with MockSegmentStore(watched=False) as store, ConnectionPool(settings()) as pool:
        await make(store)
        where = FixedStore(endpoint(store))
        for last in (3, 6):
            async with SegmentWriter(pool, where, SEGMENT, writer_id=UUID(int=5)) as writer:
                await asyncio.gather(*[writer.write(b"x") for _ in range(3)])
                assert writer.last_number == last
        assert content(store) == b"xxxxxx"


@pytest.mark.seed("36.23")
@looped("when", ["before", "after"])
@looped("batching", ["turn", "blocks"])
async def test_whatever_is_cut_before_or_after_the_store_took_it_is_there_once_and_in_order(
    when: str, batching: str
) -> None:
    config = settings(retry=Backoff(initial_ms=1, max_ms=2, jitter=0, max_attempts=10), append_batching=batching)
    async with MockSegmentStore() as store, ConnectionPool(config) as pool:
        await make(store)
        store.faults.add("type = APPEND_BLOCK_END", every=3, do=f"close {when}")
        writer = SegmentWriter(pool, FixedStore(endpoint(store)), SEGMENT)
        acks = []
        for number in range(300):
            acks.append(writer.write(b"%05d" % number))
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        await asyncio.gather(*acks)
        await writer.aclose()
        assert content(store) == b"".join(b"%05d" % number for number in range(300))
        assert writer.set_ups > 1


@pytest.mark.seed("36.25")
async def test_each_error_of_the_store_has_its_reply() -> None:
    key = "0123456789abcdef" * 4
    async with MockSegmentStore(watched=False, containers=2, own={0}) as store:
        names = [f"a/b/{number}.#epoch.0" for number in range(20)]
        async with await Peer.connect(store) as peer:
            kinds = {type(reply) for reply in await peer.ask(*[create(name) for name in names])}
            assert kinds == {SegmentCreated, WrongHost}
            owned = next(name for name in names if name in store.segments)
            assert isinstance((await peer.ask(create(owned)))[0], SegmentAlreadyExists)
            assert isinstance((await peer.ask(SealTableSegment(1, owned, "")))[0], OperationUnsupported)
            writer = UUID(int=4)
            async with await Peer.connect(store) as other:
                for each in (peer, other):
                    await each.ask(SetupAppend(1, writer, owned, ""))
                await other.ask(AppendBlockEnd(writer, 1, b"x", 1, 5, 1))
                peer.send(AppendBlockEnd(writer, 1, b"x", 1, 6, 1))
                assert isinstance((await peer.receive())[0], InvalidEventNumber)
                assert await peer.closed() == b""
            async with await Peer.connect(store) as third:
                third.send(ReadSegment(owned, -5, 10, ""))
                assert await third.closed() == b"", "an error without a reply closes"
    async with MockSegmentStore(watched=False, auth_key=key) as store, await Peer.connect(store) as peer:
        old = jwt.encode({"a/b": "READ_UPDATE", "exp": 5}, key, "HS512")
        for token, code in ((old, 1), ("nonsense", 0)):
            (reply,) = await peer.ask(GetStreamSegmentInfo(3, "a/b/0", token))
            assert isinstance(reply, AuthTokenCheckFailed)
            assert reply.error_code == code


async def test_an_append_is_timed_from_when_it_was_sent_and_not_from_the_one_before() -> None:
    set_ups = 0

    def answer(peer: ScriptedPeer, command: Command) -> None:
        nonlocal set_ups
        if isinstance(command, SetupAppend):
            set_ups += 1
            peer.send(setup_reply(command, 1 if set_ups > 1 else -(2**63)))
        elif isinstance(command, AppendBlockEnd) and (command.last_event_number == 1 or set_ups > 1):
            stores_all(peer, command)

    async with writing(answer, request_timeout_ms=60) as (_, _, writer):
        await writer.write(b"a")
        await asyncio.sleep(0.02)
        await writer.write(b"b")  # is not acknowledged before the second set-up
        assert set_ups == 2


async def test_attempts_are_counted_from_scratch_when_an_event_was_stored() -> None:
    refusals = 3

    def answer(peer: ScriptedPeer, command: Command) -> None:
        nonlocal refusals
        if isinstance(command, SetupAppend) and refusals:
            refusals -= 1
            peer.send(WrongHost(command.request_id, SEGMENT, ""))
        elif isinstance(command, SetupAppend):
            peer.send(setup_reply(command, stored))
        else:
            stores_all(peer, command)

    stored = -(2**63)
    async with writing(answer, retry=FAST_RETRY) as (store, _, writer):
        for number in (1, 2, 3):
            await writer.write(b"x")
            stored, refusals = number, 2  # beside the loss of the connection
            store.peers[-1].close()
        assert writer.set_ups == 3


async def test_what_a_writer_holds_is_counted_until_it_is_acknowledged() -> None:
    held: list[tuple[ScriptedPeer, Command]] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        if isinstance(command, AppendBlockEnd) and command.last_event_number == 2:
            held.append((peer, command))
        else:
            stores_all(peer, command)

    async with writing(answer, max_in_flight_bytes=10) as (_, pool, writer):
        assert (writer.segment_length, writer.set_ups, writer.state) == (-1, 0, WriterState.CONNECTING)
        await writer.started()
        assert (writer.set_ups, writer.state) == (1, WriterState.OPEN)
        first = writer.write(b"123456789")
        assert writer.has_room
        second = writer.write(b"0")
        assert not writer.has_room
        await until(lambda: held)
        assert (writer.unsettled, writer.held_bytes, writer.in_flight) == (2, 10, 2)
        assert pool.metrics().bytes_in_flight == 10
        stores_all(*held[0])
        await asyncio.gather(first, second)
        assert writer.has_room
        assert (writer.unsettled, writer.held_bytes, writer.in_flight) == (0, 0, 0)
        assert pool.metrics().bytes_in_flight == 0
        assert writer.segment_length == 20
        for _ in range(3):
            await writer.write(b"x")
        assert (writer.segment_length, pool.metrics().bytes_in_flight) == (50, 0)
        await writer.aclose()


async def test_a_turn_of_a_writer_is_bounded_so_that_others_on_its_connection_get_theirs() -> None:
    order: list[UUID] = []

    def answer(peer: ScriptedPeer, command: Command) -> None:
        stores_all(peer, command)
        if isinstance(command, AppendBlockEnd):
            order.append(command.writer_id)

    config = settings(write_buffer_bytes=1_000, max_connections_per_store=1, max_batch_events=1)
    async with ScriptedStore(answer) as store, ConnectionPool(config) as pool:
        one, other = (SegmentWriter(pool, FixedStore(store.endpoint), SEGMENT) for _ in range(2))
        await asyncio.gather(one.started(), other.started())
        acks = [writer.write(b"x" * 500) for writer in (one, other) for _ in range(6)]
        await asyncio.gather(*acks)
        turns = [one.writer_id] * 2 + [other.writer_id] * 2
        assert order == turns * 3
        await asyncio.gather(one.aclose(), other.aclose())


async def test_a_callback_that_fails_is_reported_with_its_segment_and_the_ack_of_the_next_is_not_lost() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def broken(error: object) -> None:
        raise ZeroDivisionError

    async with writing(stores_all) as (_, _, writer):
        for number in (1, 2):  # alone, and with another in its append
            writer.append(b"x", broken)
            await writer.write(b"y")
            assert len(reported) == number
        assert {each["message"] for each in reported} == {f"the callback of an append to {SEGMENT} failed"}
        await writer.aclose()
    asyncio.get_running_loop().set_exception_handler(None)


async def test_an_append_that_is_resent_once_the_peer_reads_again_is_timed_from_the_request() -> None:
    async with writing(sets_up) as (_, _, writer):
        ack = writer.write(b"x")
        await until(lambda: writer.in_flight == 1)
        writer._flow.connection.outbox.pause()
        writer._events.sent[0].sent_s -= 1_000
        writer._resend()
        writer._ack_due()
        assert (writer.state, writer.set_ups, ack.done()) == (WriterState.OPEN, 1, False)
        await writer.abort()
        assert ack.done()
