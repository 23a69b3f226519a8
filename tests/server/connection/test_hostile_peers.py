"""Peers that send too slowly, read too little, hold too much: they hold bounded memory, and nobody else.

Each test measures what its peers may make the store hold, in the hub's account and in this process, and that another
connection is served meanwhile.
"""

from __future__ import annotations

import gc
import logging
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest

from segstore.server import LimitSettings, MockSegmentStore
from segstore.server.connection import Connection
from segstore.wire import DataAppended, KeepAlive, SegmentRead, SetupAppend, encode
from tests.looped import looped
from tests.server.support import HELLO, SEGMENT, WRITER, Peer, append, create, read, set_up, until

MIB = 1024 * 1024


@contextmanager
def grows_less_than(limit: int) -> Iterator[None]:
    """Fails if Python's own memory peaks more than `limit` bytes above what it was."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < limit


async def filled(store: MockSegmentStore, size: int = 2 * MIB) -> Peer:
    """A segment with `size` bytes, and the peer that wrote them."""
    peer = await Peer.connect(store)
    await peer.ask(HELLO, create(), set_up(), append(0, bytes(size)))
    return peer


def connection_of(store: MockSegmentStore, peer: Peer) -> Connection:
    host, port = peer.writer.get_extra_info("sockname")
    (found,) = [
        connection
        for connection in store.server.hub.connections
        if connection.session and connection.session.peer == f"{host}:{port}"
    ]
    return found


class Crowd:
    """Many peers, all of which are gone in the end."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []

    async def connect(self, store: MockSegmentStore, count: int) -> list[Peer]:
        for _ in range(count):
            self.peers.append(await Peer.connect(store))
        return self.peers

    async def close(self) -> None:
        for peer in self.peers:
            peer.abort()
        for peer in self.peers:
            await peer.close()
        self.peers.clear()

    async def __aenter__(self) -> Crowd:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def is_served(peer: Peer) -> bool:
    return await peer.ask(KeepAlive()) == [KeepAlive()]


async def test_a_peer_that_never_reads_holds_one_connections_share_and_one_read_of_requests() -> None:
    limits = LimitSettings(connection_outstanding_bytes=4 * MIB)
    async with (
        MockSegmentStore(watched=False, limits=limits) as store,
        await filled(store) as healthy,
        await Peer.connect(store) as peer,
    ):
        hub = store.server.hub
        await peer.ask(HELLO)
        batch = b"".join(encode(read(request_id=each)) for each in range(4000))
        assert 200_000 < len(batch) < 256 * 1024  # one read takes it all
        with grows_less_than(16 * MIB):
            peer.send_bytes(batch)
            stalled = connection_of(store, peer)
            await until(lambda: stalled.session is not None and stalled.session.full)
            for number in range(1, 20):
                assert isinstance((await healthy.ask(append(number)))[0], DataAppended)
            assert hub.outstanding_bytes < limits.connection_outstanding_bytes + 2 * MIB + 4 * MIB
            assert stalled.held_bytes > 2 * MIB


@pytest.mark.mock(watched=False, limits=LimitSettings(connection_outstanding_bytes=MIB))
async def test_appends_that_waited_behind_replies_are_stored_with_the_bytes_that_were_sent(
    store: MockSegmentStore,
) -> None:
    """They lie in the receive buffer when the peer stalls, and that belongs to the next read of anybody."""
    async with await filled(store, MIB) as healthy, await Peer.connect(store) as peer:
        await peer.ask(HELLO, SetupAppend(9, WRITER, SEGMENT, ""))
        # Large enough that the codec leaves them where they came in.
        appends = [append(each, bytes([each]) * 20_000) for each in range(1, 9)]
        peer.send(*[read(0, MIB, request_id=each) for each in range(16)], *appends)
        stalled = connection_of(store, peer)
        await until(lambda: stalled.session.full and stalled.received.backlog)
        other = "scope/other/0.#epoch.0"
        junk = append(0, b"\xee" * 200_000, UUID(int=8))
        assert len(await healthy.ask(create(other), set_up(other, UUID(int=8)), junk)) == 3  # over the receive buffer
        answers = await peer.receive(16 + 8)
        assert [type(answer) for answer in answers] == [SegmentRead] * 16 + [DataAppended] * 8
        stored = store.segments[SEGMENT].read_bytes(MIB, 160_000)
        assert stored == b"".join(bytes([each]) * 20_000 for each in range(1, 9))


async def test_hundreds_that_hold_frames_in_part_hold_no_more_than_is_allowed_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = LimitSettings(total_outstanding_bytes=4 * MIB)
    header = (1).to_bytes(4, "big") + (16_000_000).to_bytes(4, "big")
    async with (
        MockSegmentStore(watched=False, limits=limits) as store,
        await filled(store, 10) as healthy,
        Crowd() as crowd,
    ):
        hub, counters = store.server.hub, store.server.service.counters
        peers = await crowd.connect(store, 200)
        highest = 0
        with grows_less_than(4 * MIB + 8 * MIB), caplog.at_level(logging.ERROR):
            for _ in range(3):
                for number, peer in enumerate(peers):
                    peer.send_bytes((header if _ == 0 else b"") + bytes(20_000))
                    if number % 20 == 0:
                        assert await is_served(healthy)
                        highest = max(highest, hub.outstanding_bytes)
            await until(lambda: counters.evictions > 0)
        assert highest <= limits.total_outstanding_bytes
        assert hub.outstanding_bytes <= limits.total_outstanding_bytes
        assert hub.outstanding_bytes > limits.total_outstanding_bytes // 2  # no more are cut than must be
        assert await is_served(healthy)
        await crowd.close()
        await until(lambda: hub.outstanding_bytes == 0)


@looped("watched", [False, True])
async def test_what_a_peer_held_is_freed_when_it_is_gone_and_not_when_garbage_is_collected(watched: bool) -> None:
    async with (
        MockSegmentStore(watched=watched) as store,
        await filled(store, 10) as healthy,
        await Peer.connect(store) as peer,
    ):
        await peer.ask(HELLO)
        peer.send(read(10))
        peer.send_bytes(encode(append(1, bytes(2 * MIB)))[:MIB])
        await until(lambda: store.server.hub.outstanding_bytes >= MIB)
        held = weakref.ref(connection_of(store, peer))
        gc.disable()
        try:
            peer.abort()
            await until(lambda: len(store.server.hub.connections) == 1)
            assert await is_served(healthy)
            assert held() is None
        finally:
            gc.enable()
