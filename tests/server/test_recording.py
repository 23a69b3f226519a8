"""What a recorder is told: every byte of every connection, both ways, who ended it and why."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from segstore.server import MockSegmentStore
from segstore.wire import Buffer, GetStreamSegmentInfo, Hello, KeepAlive, encode
from segstore.wire.trace import Direction
from tests.server.support import PATIENCE_S, until

HELLO = encode(Hello(17, 5))


class Notes:
    """A recorder that keeps what it is told."""

    requests = 0

    def __init__(self) -> None:
        self.begun: list[dict[str, str]] = []
        self.bytes: dict[tuple[int, str], bytes] = {}
        self.ended: dict[int, tuple[Direction, dict[str, str]]] = {}

    def skip_number(self) -> int:
        self.requests += 1
        return self.requests

    def opened(self, **facts: str) -> int:
        self.begun.append(facts)
        return len(self.begun)

    def _add(self, connection: int, way: str, data: bytes) -> None:
        self.bytes[connection, way] = self.bytes.get((connection, way), b"") + data

    def received(self, connection: int, data: Buffer, *, lasting: bool = False) -> bool:
        self._add(connection, "in", bytes(data))
        return False

    def sent(self, connection: int, parts: Sequence[Buffer]) -> None:
        self._add(connection, "out", b"".join(parts))

    def closed(self, connection: int, by: Direction, **facts: str) -> None:
        self.ended[connection] = by, facts


async def talk(mock: MockSegmentStore, data: bytes, answer: int, **connect: Any) -> tuple[bytes, str]:
    """Sends bytes, reads that many back and then, unless the store closes, leaves; the answer and one's address."""
    port = connect.get("port", mock.port)
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(mock.host, port)
        host, number = writer.get_extra_info("sockname")[:2]
        writer.write(data)
        found = await (reader.readexactly(answer) if answer else reader.read())
        writer.close()
        await writer.wait_closed()
    return found, f"{host}:{number}"


async def test_a_recorder_gets_all_bytes_of_both_directions() -> None:
    notes = Notes()
    async with MockSegmentStore(watched=False) as mock:
        mock.server.hub.recorder = notes
        found, here = await talk(mock, HELLO + encode(KeepAlive()) + b"\0\0", 24)
        await until(lambda: len(notes.ended) == 1)
        assert notes.begun == [{"peer": here, "store": f"{mock.host}:{mock.port}"}]
    assert notes.bytes == {(1, "in"): HELLO + encode(KeepAlive()) + b"\0\0", (1, "out"): found}
    assert notes.ended == {1: (Direction.REQUEST, {})}


async def test_a_recorder_gets_the_reason_for_which_the_store_closed_a_connection() -> None:
    notes = Notes()
    async with MockSegmentStore(watched=False) as mock:
        mock.server.hub.recorder = notes
        await talk(mock, HELLO + b"\0\0\0\x09\xff\xff\xff\xff", 0)
        await until(lambda: len(notes.ended) == 1)
    by, facts = notes.ended[1]
    assert by is Direction.REPLY
    assert facts["reason"].startswith("it broke the protocol: ")
    assert notes.bytes[1, "in"].endswith(b"\xff\xff\xff\xff")


async def test_a_recorder_is_notified_of_connections_that_the_store_closes_when_it_stops() -> None:
    notes = Notes()
    async with MockSegmentStore(watched=False) as mock:
        mock.server.hub.recorder = notes
        reader, writer = await asyncio.open_connection(mock.host, mock.port)
        writer.write(HELLO)
        async with asyncio.timeout(PATIENCE_S):
            await reader.readexactly(16)
    writer.close()
    await writer.wait_closed()
    assert notes.ended == {1: (Direction.REPLY, {"reason": "the store shuts down"})}


async def test_connections_have_their_own_numbers_and_admin_ones_are_marked() -> None:
    notes = Notes()
    async with MockSegmentStore(watched=False, admin_port=0) as mock:
        mock.server.hub.recorder = notes
        await talk(mock, HELLO, 16)
        await talk(mock, HELLO, 16, port=mock.admin_port)
        await until(lambda: len(notes.ended) == 2)
    assert [facts.get("port") for facts in notes.begun] == [None, "admin"]
    assert notes.bytes[1, "in"] == notes.bytes[2, "in"] == HELLO


async def test_a_recorder_is_notified_of_a_refused_connection_too() -> None:
    notes = Notes()
    async with MockSegmentStore(watched=False, limits={"max_connections": 1}) as mock:
        mock.server.hub.recorder = notes
        async with asyncio.timeout(PATIENCE_S):
            _, first = await asyncio.open_connection(mock.host, mock.port)
            first.write(HELLO + encode(GetStreamSegmentInfo(1, "a/b/0", "")))
            await until(lambda: len(notes.bytes.get((1, "out"), b"")) > 16)
            with suppress(ConnectionError):  # it may be cut before it was made
                _, second = await asyncio.open_connection(mock.host, mock.port)
                second.close()
        await until(lambda: len(notes.ended) == 1)
        first.close()
        await until(lambda: len(notes.ended) == 2)
    assert notes.ended[2] == (Direction.REPLY, {"reason": "1 connections are open, the limit (max_connections)"})
