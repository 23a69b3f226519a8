"""Connections over real sockets: what is asked is answered, in order, and the end is clean."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from segstore.server import MockSegmentStore
from segstore.wire import (
    AppendBlock,
    AppendBlockEnd,
    CreateTransientSegment,
    DataAppended,
    Hello,
    KeepAlive,
    SegmentRead,
    encode,
)
from tests.server.connection.conftest import Started
from tests.server.faults.traffic import writer_of
from tests.server.support import HELLO, PATIENCE_S, SEGMENT, WRITER, Peer, append, create, read, set_up, until

MALFORMED = Path(__file__).parents[3] / "fixtures" / "vectors" / "malformed.jsonl"


@pytest.fixture
async def store(started: Started, mock_settings: dict[str, Any]) -> AsyncIterator[MockSegmentStore]:
    async with started(**mock_settings) as opened:
        yield opened


async def test_a_pipelined_conversation_is_answered_in_order(peer: Peer) -> None:
    answers = await peer.ask(HELLO, create(), set_up(), append(0), append(1), KeepAlive(), read(0, 8))
    assert [type(answer).__name__ for answer in answers] == [
        "Hello",
        "SegmentCreated",
        "AppendSetup",
        "DataAppended",
        "DataAppended",
        "KeepAlive",
        "SegmentRead",
    ]
    assert isinstance(answers[-1], SegmentRead)
    assert bytes(answers[-1].data) == b"datadata"


async def test_a_block_that_comes_in_many_reads_is_stored_whole(started: Started) -> None:
    async with started() as store, await writer_of(store) as peer:
        payload = bytes(range(256)) * 4096
        block = b"".join((len(payload).to_bytes(8, "big"), payload))
        peer.send(AppendBlock(WRITER, block), AppendBlockEnd(WRITER, len(block), b"", 1, 0, 3))
        assert await peer.receive() == [DataAppended(3, WRITER, 0, -(1 << 63), len(block))]
        assert store.segments[SEGMENT].read_bytes(0, len(block)) == block


@pytest.mark.parametrize("hello", [Hello(4, 1), Hello(99, 18)], ids=["older", "newer"])
async def test_the_admin_port_closes_without_a_reply_if_no_version_is_common(started: Started, hello: Hello) -> None:
    async with started(admin_port=0) as store, await Peer.connect(store, admin=True) as admin:
        assert await admin.ask(HELLO) == [Hello(17, 5)]
        admin.send(KeepAlive(), hello, KeepAlive())
        assert await admin.closed() == b""


async def test_a_soft_end_delivers_replies_that_do_not_fit_the_sockets_buffers(started: Started) -> None:
    async with started() as store, await writer_of(store) as peer:
        await peer.ask(append(0, bytes(2_000_000)))
        peer.send(read(), read(), read(), Hello(4, 1))
        await until(lambda: store.server.service.counters.bytes_out > 6_000_000)
        rest = await peer.closed()
        assert len(rest) > 6_000_000
        assert rest.endswith(encode(Hello(17, 5)))


async def test_replies_do_not_wait_for_acknowledgements_of_those_before(started: Started) -> None:
    async with started() as store, await Peer.connect(store) as peer:
        assert await peer.ask(KeepAlive()) == [KeepAlive()]
        (connection,) = store.server.hub.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def malformed() -> list[Any]:
    """Of each category what the codec refuses; of the one with many, every fortieth."""
    seen: dict[str, int] = {}
    cases = []
    for line in MALFORMED.read_text().splitlines():
        case = json.loads(line)
        if case["ok"] or "hex" not in case:
            continue
        number = seen[case["category"]] = seen.get(case["category"], 0) + 1
        if number % 40 == 1 or case["category"] != "truncated_body":
            cases.append(case)
    assert len(seen) >= 8
    return cases


async def test_a_malformed_frame_ends_its_connection_and_is_logged_and_counted_and_the_others_go_on(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as store, await writer_of(store) as healthy:
        counters = store.server.service.counters
        for number, case in enumerate(malformed()):
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                async with await Peer.connect(store) as peer:
                    host, port = peer.writer.get_extra_info("sockname")
                    peer.send_bytes(bytes.fromhex(case["hex"]) + encode(KeepAlive()))
                    assert await peer.closed() == b"", case["case"]
            (record,) = [each for each in caplog.records if each.name.startswith("segstore")]
            facts = vars(record)
            assert facts["peer"] == f"{host}:{port}"
            assert facts["code"] == int.from_bytes(bytes.fromhex(case["hex"])[:4], "big", signed=True), case["case"]
            assert facts["offset"] >= 0
            assert "field" in facts or case["category"] == "unknown_type", case["case"]
            assert counters.malformed_frames == number + 1
            (ack,) = await healthy.ask(append(number))
            assert isinstance(ack, DataAppended)
        assert counters.connections_open == 1
        assert counters.internal_errors == 0


async def test_a_stop_at_once_blames_no_peers_when_all_have_gone(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as store, await Peer.connect(store) as peer:
        assert await peer.ask(HELLO) == [Hello(17, 5)]
        await store.server.stop(drain_s=0)
        assert await peer.closed() == b""
    assert "did not read their replies" not in caplog.text


async def test_hundreds_of_connections_that_come_and_go_leave_nothing(started: Started) -> None:
    """100 connections, each with a writer, a waiting read and a transient segment; half of them reset."""
    async with started() as store, await writer_of(store) as keeper:

        async def one(number: int) -> None:
            peer = await Peer.connect(store)
            peer.send(HELLO, set_up(), append(0), read(1 << 40), CreateTransientSegment(5, WRITER, SEGMENT, ""))
            await peer.receive(number % 4)
            if number % 2:
                peer.abort()
            await peer.close()

        for first in range(0, 100, 50):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*[one(first + each) for each in range(50)])
        hub, counters = store.server.hub, store.server.service.counters
        await until(lambda: len(hub.connections) == 1)
        assert len(store.store.waiters) == 0
        assert set(store.segments) == {SEGMENT, f"{SEGMENT}#index"}
        assert hub.outstanding_bytes == 0
        assert counters.connections_open == 1
        assert counters.connections == 101
        assert counters.internal_errors == 0
        assert await keeper.ask(KeepAlive()) == [KeepAlive()]


async def test_what_a_peer_broke_is_logged_with_its_address_and_with_what_it_seems_to_speak(
    started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    for sent, spoken in (
        (b"GET / HTTP/1.1\r\n\r\n", "; it seems to speak HTTP"),
        (b"POST / HTTP/1.1\r\n\r\n", "; it seems to speak HTTP"),
        (b"PUT / HTTP/1.1\r\n\r\n", "; it seems to speak HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\n", "; it seems to speak HTTP/2, as to a controller, which has a port of its own"),
        (b"\x00\x00\x13\x37\x00\x00\x00\x00", ""),
    ):
        caplog.clear()
        async with started() as store, await Peer.connect(store) as peer:
            host, port = peer.writer.get_extra_info("sockname")
            peer.send_bytes(sent)
            assert await peer.closed() == b""
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert line.startswith(f"connection from {host}:{port} closed: it broke the protocol: ")
        assert line.endswith(spoken)
        assert ("seems to speak" in line) == bool(spoken)
