"""A tap on sockets: what one side says the other one hears, as it was said, and so the end of it."""

import asyncio
import gc
import socket
import struct
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from segstore.server import MockSegmentStore
from segstore.server.clock import LoopClock
from segstore.server.faults import Faults, Observer
from segstore.server.tap import TapServer, TapSettings
from segstore.server.tap.link import Link
from segstore.server.tap.side import HIGH_BYTES
from segstore.wire import AppendBlock, encode
from segstore.wire.endpoint import Endpoint
from segstore.wire.trace import Direction
from tests.looped import looped
from tests.ports import held_port
from tests.server.certificates import write_certificate
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, WRITER, Peer, append, create, read, set_up, until
from tests.server.test_recording import Notes
from tests.server.traffic import Port

HELLO_BYTES = encode(HELLO)
NONSENSE = [
    b"POST /topics/orders HTTP/1.1\r\nhost: here\r\n\r\n",
    HELLO_BYTES + b"\0\0\0\x09\xff\xff\xff\xff and more",
    HELLO_BYTES + b"\0\0\x22\x22\0\0\0\x40 a frame of a type that no command has, and not whole",
    HELLO_BYTES + b"\0\0\0\x09\0\0\0\x04read",
    HELLO_BYTES + encode(append(1)) + b"?",
]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(params=[False, True], ids=["plain", "watched"])
def watched(request: pytest.FixtureRequest) -> bool:
    """Whether the tap decodes what it forwards."""
    return bool(request.param)


def watched_faults() -> Faults:
    return Faults(LoopClock(), observer=Observer())


def tap_before(host: str, port: int, /, *, watched: bool = False, **more: object) -> TapServer:
    return TapServer(TapSettings(store=Endpoint(host, port), **more), faults=watched_faults() if watched else None)


def entry(tap: TapServer) -> Port:
    """Where a client comes in."""
    return Port(*tap.address)


async def connected(tap: TapServer) -> Peer:
    return await Peer.connect(entry(tap))  # type: ignore[arg-type]  # it asks for host and port alone


@asynccontextmanager
async def upstream(handler: Handler) -> AsyncIterator[tuple[str, int]]:
    """A store that does what the handler says; nothing of it is left when the tap before it is gone."""
    running: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        running.add(task)
        try:
            await handler(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=4096)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.read()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@looped("said", NONSENSE)
async def test_nonsense_passes_both_ways_unchanged(said: bytes, watched: bool) -> None:
    heard: list[bytes] = []

    async def answers_the_same(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await read_all(reader))
        writer.write(heard[0][::-1] + heard[0])

    async with (
        upstream(answers_the_same) as store,
        tap_before(*store, watched=watched) as tap,
        await connected(tap) as peer,
    ):
        for at in range(0, len(said), 7):
            peer.send_bytes(said[at : at + 7])
            await asyncio.sleep(0)
        peer.writer.write_eof()
        assert await read_all(peer.reader) == said[::-1] + said
    assert heard == [said]


PIECE = bytes(range(256)) * 256
PIECES = 16 * HIGH_BYTES // len(PIECE)


async def send_pieces(writer: asyncio.StreamWriter) -> None:
    for _ in range(PIECES):
        writer.write(PIECE)
        await writer.drain()


async def count_bytes(reader: asyncio.StreamReader) -> int:
    count = 0
    async with asyncio.timeout(PATIENCE_S):
        while data := await reader.read(1 << 20):
            count += len(data)
    return count


def held(tap: TapServer) -> int:
    """Bytes that the tap has for both sides."""
    sides = [side for link in tap.links for side in (link.client, link.store) if side.transport is not None]
    return sum(side.transport.get_write_buffer_size() for side in sides if side.transport is not None)


async def test_what_a_slow_client_does_not_read_is_left_with_the_store() -> None:
    sent = asyncio.Event()

    async def talks(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await send_pieces(writer)
        sent.set()

    async with upstream(talks) as store, tap_before(*store) as tap, await connected(tap) as peer:
        await until(lambda: held(tap) > HIGH_BYTES)
        for _ in range(20):
            await asyncio.sleep(0.002)  # in which what is not bounded would grow
            assert held(tap) < 2 * HIGH_BYTES
        assert not sent.is_set()
        assert await count_bytes(peer.reader) == PIECES * len(PIECE)


async def test_a_client_that_has_half_closed_still_receives_the_reply(watched: bool) -> None:
    async def answers_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await read_all(reader)
        writer.write(said + b"!")

    async with (
        upstream(answers_at_the_end) as store,
        tap_before(*store, watched=watched) as tap,
        await connected(tap) as peer,
    ):
        peer.send_bytes(HELLO_BYTES + b"\0\0")
        peer.writer.write_eof()
        assert await read_all(peer.reader) == HELLO_BYTES + b"\0\0!"
        await until(lambda: not tap.links)


async def test_a_store_that_has_half_closed_still_receives_requests(watched: bool) -> None:
    heard: list[bytes] = []

    async def goes_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HELLO_BYTES + b"\0\0\0")
        writer.write_eof()
        heard.append(await read_all(reader))

    async with upstream(goes_silent) as store, tap_before(*store, watched=watched) as tap:
        peer = await connected(tap)
        assert await read_all(peer.reader) == HELLO_BYTES + b"\0\0\0"
        assert len(tap.links) == 1
        peer.send_bytes(HELLO_BYTES)
        await peer.close()
        await until(lambda: not tap.links)
    assert heard == [HELLO_BYTES]


async def test_a_reset_by_the_client_is_one_for_the_store(watched: bool) -> None:
    ends: list[type[BaseException] | None] = []

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(HELLO_BYTES)))
        try:
            await read_all(reader)
            ends.append(None)
        except ConnectionError as error:
            ends.append(type(error))

    async with upstream(waits) as store, tap_before(*store, watched=watched) as tap:
        peer = await connected(tap)
        peer.send_bytes(HELLO_BYTES)
        assert await peer.receive() == [HELLO]
        reset(peer.writer)
        await until(lambda: ends)
        await until(lambda: not tap.links)
    assert ends == [ConnectionResetError]


async def test_a_reset_by_the_store_is_one_for_the_client(watched: bool) -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(HELLO_BYTES))
        reset(writer)

    async with upstream(resets) as store, tap_before(*store, watched=watched) as tap, await connected(tap) as peer:
        peer.send_bytes(HELLO_BYTES)
        with pytest.raises(ConnectionResetError):
            await read_all(peer.reader)
        await until(lambda: not tap.links)


@looped("address", [("127.0.0.1", 1), ("127.0.0.1", 70_000), ("no.such.host.invalid", 1), ("é..", 1), ("a\0b", 1)])
async def test_a_store_that_cannot_be_reached_is_named_and_its_client_is_disconnected(
    address: tuple[str, int], watched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with tap_before(*address, watched=watched) as tap, await connected(tap) as peer:
        peer.send(HELLO)
        assert await peer.closed() == b""
        await until(lambda: not tap.links)
    where = f"the store at {address[0]}:{address[1]}"
    assert any(f"{where} cannot be reached: " in said for said in caplog.messages)


async def test_a_store_that_dies_disconnects_its_clients_and_is_found_again_after_a_restart(watched: bool) -> None:
    async with MockSegmentStore() as first, tap_before(first.host, first.port, watched=watched) as tap:
        port = first.port
        async with await connected(tap) as peer:
            assert len(await peer.ask(HELLO, create())) == 2
            await first.server.stop(drain_s=0)
            assert await peer.closed() == b""
        async with MockSegmentStore(port=port), await connected(tap) as again:
            assert [each.type_name for each in await again.ask(HELLO, create())] == ["HELLO", "SEGMENT_CREATED"]


async def test_a_tap_that_stops_ends_what_is_in_flight_and_leaves_nothing(watched: bool) -> None:
    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(HELLO_BYTES)))
        await read_all(reader)

    async with upstream(waits) as store:
        tap = tap_before(*store, watched=watched)
        await tap.start()
        busy, silent = await connected(tap), await connected(tap)
        busy.send(HELLO)
        assert await busy.receive() == [HELLO]
        await asyncio.gather(tap.stop(), tap.stop())
        await tap.stop()
        assert not tap.links
        for peer in (busy, silent):
            assert await peer.closed() == b""
            await peer.close()


async def test_a_recorder_is_notified_of_a_store_that_closes_and_of_one_that_is_not_there() -> None:
    notes = Notes()

    async def leaves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(HELLO_BYTES)))

    async with (
        upstream(leaves) as store,
        TapServer(TapSettings(store=Endpoint(*store)), recorder=notes) as tap,
        await connected(tap) as peer,
    ):
        peer.send_bytes(HELLO_BYTES)
        assert await peer.closed() == HELLO_BYTES
    async with TapServer(TapSettings(store=Endpoint(*store)), recorder=notes) as tap, await connected(tap) as peer:
        await peer.closed()
        await until(lambda: len(notes.ended) == 2)
    assert notes.ended[1] == (Direction.REPLY, {})
    by, facts = notes.ended[2]
    assert by is Direction.REPLY
    assert "cannot be reached" in facts["reason"]


async def test_a_store_without_a_trusted_certificate_gets_no_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = write_certificate(tmp_path)
    async with (
        MockSegmentStore(tls_cert=certificate, tls_key=key) as mock,
        tap_before("localhost", mock.port, tls=True) as tap,
        await connected(tap) as peer,
    ):
        peer.send(HELLO)
        assert await peer.closed() == b""
    assert f"the store at localhost:{mock.port} cannot be reached: " in caplog.text


async def test_each_store_has_a_port_of_its_own_that_stays() -> None:
    async with MockSegmentStore() as one, MockSegmentStore() as other, tap_before(one.host, one.port) as tap:
        first = await tap.through(Endpoint(one.host, one.port))
        second, again = await asyncio.gather(*[tap.through(Endpoint(other.host, other.port)) for _ in range(2)])
        assert first == tap.address
        assert second == again != first
        assert tap.addresses == {Endpoint(one.host, one.port): first, Endpoint(other.host, other.port): second}
        async with await Peer.connect(Port(*second)) as peer:  # type: ignore[arg-type]  # it asks for no more
            assert len(await peer.ask(HELLO, create())) == 2
        assert SEGMENT in other.segments
        assert SEGMENT not in one.segments


@pytest.mark.parametrize(
    ("store", "host"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.1.1", "0.0.0.0")]
)
async def test_a_tap_before_itself_closes_its_clients_and_opens_no_more_connections(
    store: str, host: str, watched: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Link] = []
    over = TapServer.over
    monkeypatch.setattr(TapServer, "over", lambda tap, link: (ended.append(link), over(tap, link)))
    with held_port() as port:
        async with tap_before(store, port, watched=watched, host=host, port=port) as tap:
            for _ in range(3):
                async with await connected(tap) as peer:
                    peer.send_bytes(HELLO_BYTES)
                    with suppress(ConnectionError):
                        assert await read_all(peer.reader) == b""
            await until(lambda: not tap.links)
            assert len(ended) < 10
    assert [record.levelname for record in caplog.records if "is the tap itself" in record.message].count("ERROR") == 1


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
async def test_what_a_connection_holds_is_freed_with_it_and_without_the_garbage_collector(watched: bool) -> None:
    async with MockSegmentStore() as mock, tap_before(mock.host, mock.port, watched=watched) as tap:
        async with await connected(tap) as peer:
            await peer.ask(HELLO, create(), set_up())
            block = encode(AppendBlock(WRITER, bytes(1000)))
            peer.send_bytes(encode(read(0)) * 100 + block + struct.pack(">ii", 9, 8_000_000))
            await until(lambda: not watched or tap.held_bytes > 1000)
            links = [weakref.ref(link) for link in tap.links]
            reset(peer.writer)
        await until(lambda: not tap.links)
        await until(lambda: [link() for link in links] == [None])
