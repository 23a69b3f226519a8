"""A store that listens: its ports, TLS, and a stop that leaves nothing."""

import asyncio
import sys
from pathlib import Path

import pytest

from segstore.server import AddressInUse, LimitSettings, MockSegmentStore, SegmentStoreServer, StoreSettings
from segstore.server.net import CannotListen
from segstore.wire import CreateTransientSegment, DataAppended, Hello, KeepAlive, SegmentCreated, SegmentRead
from tests.server.certificates import trusting, write_certificate
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, WRITER, Peer, append, create, read, set_up, until

MIB = 1024 * 1024


async def test_port_0_picks_a_free_port_which_is_in_the_address() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = MockSegmentStore().port
    async with MockSegmentStore(admin_port=0) as store:
        assert store.host == "127.0.0.1"
        assert 0 < store.port != store.admin_port > 0


async def test_a_port_that_is_taken_is_named_and_nothing_is_left_open() -> None:
    async with MockSegmentStore() as first:
        second = SegmentStoreServer(StoreSettings(port=0, admin_port=first.port))
        with pytest.raises(AddressInUse) as caught:
            await second.start()
        assert caught.value.port == first.port
        assert "for admin commands" in str(caught.value)
        assert "--admin-port" in str(caught.value)


async def test_a_control_api_that_cannot_be_imported_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "segstore.server.control_api", None)
    store = MockSegmentStore(http_port=0)
    with pytest.raises(ImportError):
        await store.__aenter__()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(store.host, store.port)


async def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1") as caught:
        await SegmentStoreServer(StoreSettings(host="192.0.2.1", port=0)).start()
    assert caught.value.host == "192.0.2.1"


async def test_a_tls_peer_that_does_not_read_stalls_and_catches_up(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    limits = LimitSettings(connection_outstanding_bytes=MIB)
    async with (
        MockSegmentStore(tls_cert=certificate, tls_key=key, limits=limits) as store,
        await Peer.connect(store, ssl=trusting(), server_hostname="localhost") as peer,
    ):
        await peer.ask(HELLO, create(), set_up(), append(0, bytes(MIB)))
        peer.send(*[read(0, MIB, request_id=each) for each in range(40)], KeepAlive())
        (connection,) = store.server.hub.connections
        await until(lambda: connection.session is not None and connection.session.full)
        assert store.server.hub.outstanding_bytes < 8 * MIB
        answers = await peer.receive(41)
        assert [answer.request_id for answer in answers if isinstance(answer, SegmentRead)] == list(range(40))
        assert answers[-1] == KeepAlive()


async def test_a_peer_without_tls_is_turned_away_by_a_store_with_it(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    async with MockSegmentStore(tls_cert=certificate, tls_key=key) as store, await Peer.connect(store) as peer:
        peer.send(HELLO)
        assert not (await peer.closed()).startswith(b"\xff\xff\xff\x81")
        assert not store.server.hub.connections


async def test_a_tls_handshake_that_does_not_come_is_given_up_in_time(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    limits = LimitSettings(first_frame_timeout_s=0.3)
    async with (
        MockSegmentStore(tls_cert=certificate, tls_key=key, limits=limits) as store,
        await Peer.connect(store) as silent,
    ):
        assert await silent.closed() == b""


async def test_an_invalid_certificate_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    certificate.write_text("no certificate")
    with pytest.raises(CannotListen, match="cannot be used") as caught:
        await SegmentStoreServer(StoreSettings(port=0, tls_cert=certificate, tls_key=key)).start()
    assert str(certificate) in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_stopping_twice_and_at_once_is_stopping() -> None:
    store = MockSegmentStore()
    await store.server.start()
    async with await Peer.connect(store) as peer:
        await peer.ask(HELLO)
        await asyncio.gather(store.server.stop(), store.server.stop())
        await store.server.stop()
        assert await peer.closed() == b""
    assert not store.server.hub.connections


async def test_replies_that_were_written_arrive_before_the_store_stops() -> None:
    store = MockSegmentStore()
    await store.server.start()
    async with await Peer.connect(store) as peer:
        await peer.ask(HELLO, create(), set_up(), append(0, bytes(2 * MIB)))
        peer.send(*[read(request_id=each) for each in range(4)])
        await until(lambda: store.server.service.counters.bytes_out > 8 * MIB)
        stopping = asyncio.ensure_future(store.server.stop())
        answers = await peer.receive(5)
        assert len(answers) == 4
        assert all(len(answer.data) == 2 * MIB for answer in answers if isinstance(answer, SegmentRead))
        await stopping


async def test_stopping_with_stalled_silent_and_waiting_peers_leaves_nothing() -> None:
    store = MockSegmentStore(limits=LimitSettings(connection_outstanding_bytes=MIB))
    await store.server.start()
    hub = store.server.hub
    async with (
        await Peer.connect(store) as stalled,
        await Peer.connect(store) as silent,
        await Peer.connect(store) as waiting,
    ):
        await waiting.ask(HELLO, create(), set_up(), append(0, bytes(2 * MIB)))
        waiting.send(read(2 * MIB), CreateTransientSegment(5, WRITER, SEGMENT, ""))
        assert isinstance((await waiting.receive())[0], SegmentCreated)
        stalled.send(*[read(request_id=each) for each in range(50)])
        silent.send_bytes(bytes(3))
        await until(lambda: any(connection.session and connection.session.full for connection in hub.connections))
        async with asyncio.timeout(PATIENCE_S):
            await store.server.stop(drain_s=0.05)
    assert not hub.connections
    assert hub.outstanding_bytes == 0
    assert len(store.store.waiters) == 0
    assert set(store.segments) == {SEGMENT, f"{SEGMENT}#index"}


async def test_a_stop_that_is_cancelled_cuts_what_is_left() -> None:
    store = MockSegmentStore(limits=LimitSettings(connection_outstanding_bytes=MIB))
    await store.server.start()
    hub = store.server.hub
    async with await Peer.connect(store) as stalled:
        await stalled.ask(HELLO, create(), set_up(), append(0, bytes(2 * MIB)))
        stalled.send(*[read(request_id=each) for each in range(50)])
        await until(lambda: any(connection.session and connection.session.full for connection in hub.connections))
        stopping = asyncio.ensure_future(store.server.stop(drain_s=60))
        await asyncio.wait([stopping], timeout=0.02)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await until(lambda: not hub.connections)
        await store.server.stop()


async def test_the_cleaner_comes_sooner_where_transient_segments_may_not_be_idle_for_long() -> None:
    async with MockSegmentStore(transient_idle_s=0.05) as store, await Peer.connect(store) as peer:
        (created,) = await peer.ask(CreateTransientSegment(5, WRITER, SEGMENT, ""))
        assert isinstance(created, SegmentCreated)
        async with asyncio.timeout(60):
            while created.segment in store.segments:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await peer.ask(KeepAlive()) == [KeepAlive()]


async def test_an_index_that_is_read_is_answered_when_an_entry_comes(peer: Peer) -> None:
    await peer.ask(HELLO, create(), set_up(), append(0))
    index = f"{SEGMENT}#index"
    (first,) = await peer.ask(type(read())(index, 0, 1000, "", 6))
    assert isinstance(first, SegmentRead)
    peer.send(type(read())(index, len(first.data), 1000, "", 7), append(1))
    answers = await peer.receive(2)
    assert {type(answer) for answer in answers} == {SegmentRead, DataAppended}


async def test_what_fails_in_keeping_house_is_counted_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with MockSegmentStore() as store, await Peer.connect(store) as peer:
        await peer.ask(HELLO)

        def fail(*_: int) -> int:
            raise ZeroDivisionError

        monkeypatch.setattr(store.store, "settle_index", fail)
        await until(lambda: store.server.service.counters.internal_errors >= 2)
        assert "ZeroDivisionError" in caplog.text
        assert await peer.ask(KeepAlive()) == [KeepAlive()]


@pytest.mark.needs("IPv6")
def test_no_ipv6_address_confuses_the_announcement() -> None:
    async def main() -> tuple[str, int]:
        async with MockSegmentStore(host="::1") as store, await Peer.connect(store) as peer:
            assert await peer.ask(HELLO) == [Hello(17, 5)]
            return store.host, store.port

    host, _ = asyncio.run(main())
    assert host == "::1"
