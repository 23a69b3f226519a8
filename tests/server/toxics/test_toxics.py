"""Toxics on real sockets, of a store and of a tap: each does to a client what Toxiproxy's does."""

import asyncio
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from segstore.server import FaultSettings, MockSegmentStore, StoreSettings
from segstore.server.cluster import Cluster, ClusterSettings
from segstore.server.faults import FaultRequest, Faults, Observer
from segstore.wire import encode
from tests.server.certificates import trusting, write_certificate
from tests.server.faults.traffic import PONG, Host, HostName, acknowledged, hosted, stored, writer_of
from tests.server.support import HELLO, FakeClock, Peer, append, create, set_up, until


async def nothing_comes(peer: Peer) -> None:
    """After everything that could come has had its turns."""
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert peer.reader._buffer == b""  # type: ignore[attr-defined]
    assert not peer.reader.at_eof()


def connections(mock: Host) -> int:
    """The connections that the toxics know of."""
    return len(mock.faults.toxics._wires)


async def test_a_latency_applies_to_an_open_connection_and_ends_with_its_removal(kind: HostName) -> None:
    clock = FakeClock()
    async with hosted(kind, clock=clock) as mock, await writer_of(mock) as peer:
        mock.faults.toxics.add("latency", latency=100)
        peer.send(append(1))
        await until(lambda: stored(mock) == 4)
        await until(lambda: clock.pending)
        await nothing_comes(peer)
        clock.advance(0.099)
        await nothing_comes(peer)
        clock.advance(0.001)
        assert acknowledged(await peer.receive()) == [1]
        peer.send(append(2))
        await until(lambda: clock.pending)
        mock.faults.toxics.clear("latency_downstream")
        assert acknowledged(await peer.receive()) == [2], "it was in flight"
        assert acknowledged(await peer.ask(append(3))) == [3]
        assert not clock.pending


async def test_a_timeout_of_zero_lasts_until_it_is_removed_which_closes_its_connections(kind: HostName) -> None:
    async with hosted(kind) as mock, await writer_of(mock) as peer:
        mock.faults.toxics.add("timeout", timeout=0)
        peer.send(append(1))
        await until(lambda: stored(mock) == 4)
        await nothing_comes(peer)
        mock.faults.toxics.clear("timeout_downstream")
        assert await peer.closed() == b""
        async with await Peer.connect(mock) as again:
            assert len(await again.ask(HELLO, set_up())) == 2


async def test_a_reset_is_felt_as_one_at_the_first_reply(kind: HostName) -> None:
    clock = FakeClock()
    async with hosted(kind, clock=clock) as mock, await writer_of(mock) as peer:
        mock.faults.toxics.add("reset_peer", timeout=500)
        peer.send(append(1))
        await until(lambda: clock.pending)
        assert stored(mock) == 4
        clock.advance(0.5)
        with pytest.raises(ConnectionResetError):
            await peer.reader.read(1)
        await until(lambda: not connections(mock))


async def test_a_connection_from_which_a_removed_toxic_has_dropped_bytes_ends(kind: HostName) -> None:
    async with hosted(kind) as mock, await writer_of(mock) as hit, await Peer.connect(mock) as spared:
        mock.faults.toxics.add("reset_peer", timeout=60_000)
        hit.send(append(1))
        await until(lambda: stored(mock) == 4)
        await nothing_comes(hit)
        mock.faults.toxics.clear()
        with pytest.raises(ConnectionResetError):
            await hit.reader.read(1)
        assert len(await spared.ask(HELLO)) == 1


@pytest.mark.parametrize("stream", ["upstream", "downstream"])
async def test_a_limit_closes_the_connection_behind_so_many_bytes(kind: HostName, stream: Any) -> None:
    async with hosted(kind) as mock, await writer_of(mock) as peer:
        one = len(encode(append(1)) if stream == "upstream" else await acknowledgement_of(peer))
        before = stored(mock)
        mock.faults.toxics.add("limit_data", bytes=2 * one, stream=stream)
        peer.send(append(11), append(12), append(13))
        rest = await peer.closed()
        if stream == "upstream":
            assert stored(mock) == before + 8, "the store has received two appends"
        else:
            assert len(rest) == 2 * one
        await until(lambda: not connections(mock))


async def acknowledgement_of(peer: Peer) -> bytes:
    (reply,) = await peer.ask(append(10))
    return encode(reply)


async def test_while_a_store_is_down_its_connections_are_reset(kind: HostName) -> None:
    async with hosted(kind) as mock, await writer_of(mock) as peer:
        mock.faults.toxics.add("down")
        with pytest.raises(ConnectionResetError):
            await peer.reader.read(1)
        for _ in range(3):
            again = await Peer.connect(mock)
            again.send(HELLO)
            assert await again.closed() == b""
            await again.close()
        await until(lambda: not connections(mock))
        mock.faults.toxics.clear("down")
        async with await Peer.connect(mock) as served:
            assert len(await served.ask(HELLO, set_up())) == 2


async def test_a_half_open_connection_hides_each_end_from_the_other_until_it_is_removed(kind: HostName) -> None:
    async with hosted(kind) as mock:
        closing, staying = await writer_of(mock), await Peer.connect(mock)
        assert len(await staying.ask(HELLO)) == 1
        mock.faults.toxics.add("half_open")
        closing.send(append(1))
        await closing.close()
        staying.send(PONG)
        await nothing_comes(staying)
        assert stored(mock) == 0
        assert connections(mock) == 2, "the store has not learned that one has closed"
        mock.faults.toxics.clear("half_open")
        with pytest.raises(ConnectionResetError):
            await staying.reader.read(1)
        await until(lambda: not connections(mock))


async def test_a_server_stops_while_connections_are_half_open(kind: HostName) -> None:
    async with hosted(kind) as mock:
        peers = [await writer_of(mock), await Peer.connect(mock)]
        mock.faults.toxics.add("half_open")
        mock.faults.toxics.add("latency", latency=1000)
        for peer in peers:
            peer.send(PONG)
        await peers[0].close()
    assert not mock.faults.toxics._wires
    await peers[1].closed()
    await peers[1].close()


async def test_a_function_can_change_the_toxics_of_its_own_connection(kind: HostName) -> None:
    async with hosted(kind) as mock, await writer_of(mock) as peer, await Peer.connect(mock) as other:
        assert len(await other.ask(HELLO)) == 1
        toxics = mock.faults.toxics

        @mock.fault("type = APPEND_BLOCK_END")
        def change(request: FaultRequest) -> None:
            match request.seen.event_number:
                case 1:
                    toxics.add("slicer", average_size=1)
                    toxics.add("latency", latency=1, stream="upstream")
                case 2:
                    toxics.clear()
                case 3:
                    toxics.add("half_open", name="gone")
                    other.abort()

        for number in (1, 2):
            assert acknowledged(await peer.ask(append(number))) == [number]
        peer.send(append(3), append(4))
        await until(lambda: stored(mock) >= 12)
        await nothing_comes(peer)
        toxics.clear("gone")
        with pytest.raises(ConnectionResetError):
            await peer.reader.read(1)
        await until(lambda: not connections(mock))


async def test_toxics_apply_to_the_plain_bytes_under_tls(tmp_path: Path) -> None:
    clock, (certificate, key) = FakeClock(), write_certificate(tmp_path)
    async with MockSegmentStore(clock=clock, tls_cert=certificate, tls_key=key) as mock:
        peers = [await Peer.connect(mock, ssl=trusting(), server_hostname="localhost") for _ in range(3)]
        assert len(await peers[0].ask(HELLO, create())) == 2
        mock.faults.toxics.add("latency", latency=100)
        mock.faults.toxics.add("slicer", average_size=5)
        asked = asyncio.ensure_future(peers[0].ask(set_up()))
        await until(lambda: clock.pending)
        clock.advance(0.1)
        assert len(await asked) == 1
        mock.faults.toxics.clear()
        mock.faults.toxics.add("limit_data", bytes=7)
        peers[1].send(HELLO)
        assert await peers[1].closed() == encode(HELLO)[:7]
        mock.faults.toxics.add("reset_peer")
        peers[2].send(HELLO)
        assert await peers[2].closed() == b""
        for peer in peers:
            await peer.close()
    assert not mock.faults.toxics._wires


async def test_toxics_of_the_file_apply_from_the_start_and_by_store() -> None:
    settings = FaultSettings.model_validate({"seed": 5, "toxics": [{"type": "limit_data", "bytes": 5, "store": 1}]})
    clock = FakeClock()
    faults = Faults(clock, settings, observer=Observer())
    async with Cluster(ClusterSettings(stores=2, store=StoreSettings(port=0)), faults=faults) as cluster:
        found = []
        for store in cluster.stores:
            reader, writer = await asyncio.open_connection(*store.address)
            writer.write(encode(HELLO))
            found.append(await reader.readexactly(5 if store.number else 16))
            if store.number:
                assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        assert [len(each) for each in found] == [16, 5]


async def test_the_seed_decides_which_connections_have_a_toxic() -> None:
    async def chosen(seed: int) -> list[bool]:
        settings = FaultSettings.model_validate(
            {"seed": seed, "toxics": [{"type": "limit_data", "bytes": 0, "toxicity": 0.5}]}
        )
        found = []
        async with hosted("store", faults=settings) as mock:
            for _ in range(12):
                async with await Peer.connect(mock) as peer:
                    found.append(await peer.ask(HELLO) == [])
        return found

    first = await chosen(1)
    assert 0 < sum(first) < 12
    assert await chosen(1) == first
    assert await chosen(2) != first


async def test_a_disconnected_client_ends_at_the_store_behind_what_it_sent(kind: HostName) -> None:
    clock = FakeClock()
    async with hosted(kind, clock=clock) as mock:
        peer = await writer_of(mock)
        mock.faults.toxics.add("latency", latency=100, stream="upstream")
        peer.send(append(1), append(2))
        await until(lambda: clock.pending)
        end_with_a_reset(peer)
        await peer.close()
        await asyncio.sleep(0.02)
        assert connections(mock) == 1
        clock.advance(0.1)
        await until(lambda: not connections(mock))
        await until(lambda: stored(mock) == 8)


def end_with_a_reset(peer: Peer) -> None:
    found = peer.writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
