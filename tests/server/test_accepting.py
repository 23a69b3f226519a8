"""A server that stops while peers come in: whom it has accepted it answers, and no socket is left without an owner."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from segstore.server.accepting import stop_accepting
from segstore.server.node import MockSegmentStore
from tests.server.certificates import write_certificate

TURNS = range(6)
"""Of the loop, between a peer's connection and the stop."""
ACCEPTED = 2
"""From so many turns on the peer is accepted; right after them it has no transport yet."""


class Greeting(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def said() -> list[dict[str, Any]]:
    """What the loop's handler of exceptions is told."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    return told


async def _ended(peer: socket.socket) -> bytes:
    """What a peer was sent before its connection ended."""
    peer.setblocking(False)
    got = b""
    async with asyncio.timeout(10):
        while data := await asyncio.get_running_loop().sock_recv(peer, 100):
            got += data
    return got


@pytest.mark.parametrize("passed", TURNS)
async def test_a_peer_is_answered_or_refused_whenever_its_server_closes(
    passed: int, said: list[dict[str, Any]]
) -> None:
    server = await asyncio.get_running_loop().create_server(Greeting, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as peer:
        await turns(passed)
        await stop_accepting(server)
        try:
            assert await _ended(peer) == b"hello"
        except ConnectionResetError:
            assert passed < ACCEPTED
    assert said == []
    assert not server.is_serving()


async def ends(peer: socket.socket, passed: int) -> None:
    """The store ends a connection without a word; with a reset, if it had not accepted it when it stopped."""
    with peer:
        try:
            assert await _ended(peer) == b""
        except ConnectionResetError:
            assert passed <= ACCEPTED


@pytest.mark.parametrize("passed", TURNS)
async def test_a_store_that_stops_ends_the_connection_that_just_came(passed: int, said: list[dict[str, Any]]) -> None:
    async with MockSegmentStore() as mock:
        peer = socket.create_connection((mock.host, mock.port))
        await turns(passed)
    await ends(peer, passed)
    assert said == []


@pytest.mark.parametrize("passed", TURNS)
async def test_a_store_that_stops_ends_the_tls_handshake_that_just_began(
    tmp_path: Path, passed: int, said: list[dict[str, Any]]
) -> None:
    certificate, key = write_certificate(tmp_path)
    async with MockSegmentStore(tls_cert=certificate, tls_key=key) as mock:
        peer = socket.create_connection((mock.host, mock.port))
        await turns(passed)
    await ends(peer, passed)
    assert said == []


async def test_a_stop_that_is_cancelled_closes_all_the_same() -> None:
    servers = [await asyncio.get_running_loop().create_server(Greeting, "127.0.0.1", 0) for _ in range(2)]
    stopping = asyncio.create_task(stop_accepting(*servers))
    await turns(1)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert [server.sockets for server in servers] == [(), ()]
    await stop_accepting(*servers)
