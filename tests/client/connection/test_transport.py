"""Connections to peers that answer nonsense, stop in the middle, do not read, or go away."""

import asyncio
import gc
from types import SimpleNamespace
from typing import cast
from uuid import UUID
from weakref import ref

import pytest

from segstore.client.connection import ConnectionPool, Flow, RawClient
from segstore.client.connection.transport import RECEIVE_BYTES, Connection
from segstore.client.errors import ConnectFailed, ConnectionLost, ProtocolViolation, RequestTimedOut
from segstore.wire import (
    AppendBlockEnd,
    Command,
    DataAppended,
    GetStreamSegmentInfo,
    KeepAlive,
    SegmentRead,
    SegmentSealed,
    SetupAppend,
    StreamSegmentInfo,
    encode,
)
from tests.client.support import Recorder, ScriptedPeer, ScriptedStore, settings, until
from tests.looped import looped


def info(request_id: int) -> Command:
    return GetStreamSegmentInfo(request_id, "scope/stream/0", "")


@looped(
    "nonsense",
    [
        b"\x00\x00\x13\x37\x00\x00\x00\x00",
        b"\x00\x00\x00\x0c\xff\xff\xff\xff",
        encode(SegmentSealed(1, "x"))[:-1].replace(b"\x00\x0b", b"\x00\x0a"),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        encode(SetupAppend(1, UUID(int=1), "s", "")),
    ],
)
async def test_a_peer_that_sends_no_reply_loses_the_connection_and_all_flows_hear_why(nonsense: bytes) -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        peer.writer.write(nonsense)

    async with ScriptedStore(answer) as store, ConnectionPool(settings(max_connections_per_store=1)) as pool:
        users = [Recorder(), Recorder()]
        flows = [await pool.flow(store.endpoint, user) for user in users]
        flows[0].send(info(flows[0].next_request_id()))
        await until(lambda: users[1].lost)
        assert [[type(error) for error in user.lost] for user in users] == [[ProtocolViolation]] * 2
        assert users[0].lost[0].endpoint == str(store.endpoint)
        assert pool.metrics().connections == 0


async def test_replies_before_the_nonsense_are_delivered() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, GetStreamSegmentInfo)
        peer.writer.write(encode(SegmentSealed(command.request_id, "x")) + b"\xff" * 8)

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        user = Recorder()
        flow = await pool.flow(store.endpoint, user)
        flow.send(info(flow.next_request_id()))
        await until(lambda: user.lost)
        assert len(user.replies) == 1


async def test_a_peer_that_stops_in_the_middle_of_a_frame_fails_the_request_by_its_deadline() -> None:
    def answer(peer: ScriptedPeer, command: Command) -> None:
        assert isinstance(command, GetStreamSegmentInfo)
        peer.writer.write(encode(StreamSegmentInfo(command.request_id, "x", True, False, False, 0, 0, 0))[:-3])

    async with ScriptedStore(answer) as store, ConnectionPool(settings()) as pool:
        client = await RawClient.open(pool, store.endpoint)
        with pytest.raises(RequestTimedOut) as caught:
            await client.request(info, timeout_ms=20)
        assert caught.value.facts() == {"endpoint": str(store.endpoint), "request_id": 1 << 32, "limit": 20}
        client.close()


async def test_a_peer_that_closes_before_its_hello_is_no_connection() -> None:
    async with ScriptedStore(hello=None) as store, ConnectionPool(settings()) as pool:
        joining = asyncio.ensure_future(pool.flow(store.endpoint, Recorder()))
        await until(lambda: store.peers)
        store.peers[0].close()
        with pytest.raises(ConnectFailed, match="before its Hello"):
            await joining


async def test_a_request_waits_for_a_peer_that_does_not_read_and_fails_by_its_deadline() -> None:
    async with ScriptedStore() as store, ConnectionPool(settings(write_buffer_bytes=10_000)) as pool:
        client = await RawClient.open(pool, store.endpoint)
        store.peers[0].writer.transport.pause_reading()  # type: ignore[attr-defined]
        flow = client.flow
        while not flow.connection.outbox.paused:
            for _ in range(100):
                flow.send(GetStreamSegmentInfo(0, "x" * 60_000, ""))
            await asyncio.sleep(0)
        sent = pool.metrics().bytes_out
        with pytest.raises(RequestTimedOut):
            await client.request(info, timeout_ms=20)
        assert pool.metrics().bytes_out == sent, "it was not sent"
        flow.connection.end(ConnectionLost("enough"))
        with pytest.raises(ConnectionLost):
            await client.request(info)


async def test_what_was_sent_before_a_connection_was_closed_arrives() -> None:
    async with ScriptedStore() as store, ConnectionPool(settings()) as pool:
        flow = await pool.unpooled(store.endpoint, Recorder())
        flow.send(info(7))
        flow.close()
        await until(lambda: any(isinstance(each, GetStreamSegmentInfo) for each in store.peers[0].got))
        assert not any(isinstance(each, AppendBlockEnd) for each in store.peers[0].got)


async def test_the_rest_of_a_long_reply_is_received_in_the_memory_of_its_frame() -> None:
    async with ScriptedStore() as store, ConnectionPool(settings()) as pool:
        user = Recorder()
        flow = await pool.flow(store.endpoint, user)
        reply = SegmentRead("s", 0, False, False, bytes(2 * RECEIVE_BYTES), flow.next_request_id())
        frame = encode(reply)
        received = pool.metrics().bytes_in + len(frame) - 7
        store.peers[0].writer.write(frame[:-7])
        await until(lambda: pool.metrics().bytes_in == received)
        assert len(flow.connection.get_buffer(-1)) == 7
        store.peers[0].writer.write(frame[-7:])
        await until(lambda: user.replies)
        assert user.replies == [reply]
        assert len(flow.connection.get_buffer(-1)) == RECEIVE_BYTES


def ack(request_id: int, number: int) -> DataAppended:
    return DataAppended(request_id, UUID(int=7), number, number - 1, number)


async def test_acknowledgements_that_come_together_reach_their_flows_in_order() -> None:
    heard: list[Command] = []
    async with ScriptedStore() as store, ConnectionPool(settings(max_connections_per_store=1)) as pool:
        flows = [await pool.flow(store.endpoint, Recorder(heard.append)) for _ in range(2)]
        one, other = (flow.next_request_id() for flow in flows)
        sent = [ack(one, 1), ack(other, 1), ack(one, 2), KeepAlive(), SegmentSealed(other, "x"), ack(other, 2)]
        unknown = ack(99 << 32, 1)
        store.peers[0].send(unknown, *sent, unknown, ack(one, 3), ack(other, 3))
        await until(lambda: len(heard) == 7)
        assert heard == [*(each for each in sent if type(each) is not KeepAlive), ack(one, 3), ack(other, 3)]
        assert pool.counters.dropped_replies == 2


@looped("raises", [False, True])
async def test_a_flow_that_ends_between_acknowledgements_hears_of_no_more_and_the_others_do(raises: bool) -> None:
    def answer(reply: Command) -> None:
        if raises:
            raise ValueError("no more")
        flow.close()

    async with ScriptedStore() as store, ConnectionPool(settings(max_connections_per_store=1)) as pool:
        user, other = Recorder(answer), Recorder()
        flow = await pool.flow(store.endpoint, user)
        request_id, others = flow.next_request_id(), (await pool.flow(store.endpoint, other)).next_request_id()
        store.peers[0].send(ack(request_id, 1), ack(request_id, 2), ack(others, 1), ack(request_id, 3), ack(others, 2))
        await until(lambda: len(other.replies) == 2)
        assert user.replies == [ack(request_id, 1)]
        assert [type(error) for error in user.lost] == ([ProtocolViolation] if raises else [])
        assert pool.counters.dropped_replies == 2


async def test_a_connection_that_ends_between_acknowledgements_delivers_no_more() -> None:
    async with ScriptedStore() as store, ConnectionPool(settings(max_connections_per_store=1)) as pool:
        user = Recorder(lambda _: flow.connection.end(ConnectionLost("enough")))
        flow = await pool.flow(store.endpoint, user)
        request_id = flow.next_request_id()
        store.peers[0].send(*(ack(request_id, number) for number in range(1, 4)))
        await until(lambda: user.lost)
        assert user.replies == [ack(request_id, 1)]
        assert [type(error) for error in user.lost] == [ConnectionLost]


def test_a_flow_that_nobody_holds_lets_go_of_its_user_at_once() -> None:
    gc.disable()
    try:
        user = Recorder()
        flow = Flow(1, cast("Connection", SimpleNamespace(name="a:1", outbox=None)), user, lambda _: None)
        held = ref(user)
        del flow, user
        assert held() is None
    finally:
        gc.enable()
