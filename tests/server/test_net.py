"""Addresses, ports that cannot be listened on, and servers that stop while peers come in: none loses a socket."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from segstore.server.net import (
    AddressInUse,
    CannotListen,
    address_text,
    listening_on,
    public_host,
    stop_accepting,
    trusting,
)
from segstore.server.node import MockSegmentStore
from segstore.wire.endpoint import Endpoint
from tests.looped import looped
from tests.server.certificates import CERTIFICATE, read_once, write_certificate


def test_no_endpoint_has_no_text() -> None:
    assert address_text(Endpoint("::1", 5)) == "[::1]:5"
    assert address_text(None) is None


@looped(
    ("host", "tls", "public"),
    [
        ("127.0.0.1", False, "127.0.0.1"),
        ("127.0.0.2", True, "localhost"),
        ("::1", True, "localhost"),
        ("0.0.0.0", True, "127.0.0.1"),
        ("::", False, "::1"),
        ("store.example", True, "store.example"),
    ],
)
def test_clients_are_sent_to_a_name_that_they_can_connect_to(host: str, tls: bool, public: str) -> None:
    assert public_host(host, tls=tls) == public


def test_authorities_are_read_once_and_are_the_only_ones_trusted(tmp_path: Path) -> None:
    text = f"# Főtanúsítvány\n{CERTIFICATE}".encode()
    with read_once(tmp_path, text) as file:
        context, trusted = trusting(file)
    assert trusted == text
    assert [cert["subject"] for cert in context.get_ca_certs()] == [((("commonName", "localhost"),),)]
    assert trusting(None)[1] == b""


def test_a_taken_port_is_named_with_its_use_and_option() -> None:
    with pytest.raises(AddressInUse) as caught, listening_on("h", 5, "HTTP", "--http-port"):
        raise OSError(errno.EADDRINUSE, "taken")
    assert (caught.value.host, caught.value.port, caught.value.errno) == ("h", 5, errno.EADDRINUSE)
    said = "port 5 on h, for HTTP, is taken by another process; choose another with --http-port, or 0 for a free one"
    assert str(caught.value) == said


def test_another_error_of_a_port_says_why() -> None:
    with pytest.raises(CannotListen, match=r"^cannot listen on h port 5: No way$"), listening_on("h", 5):
        raise OSError(errno.EACCES, "No way")
    with (
        pytest.raises(CannotListen, match=r"^cannot listen on h port 5 for HTTP: no number$"),
        listening_on("h", 5, "HTTP"),
    ):
        raise OSError("no number")


def test_an_error_that_says_it_already_passes() -> None:
    first = CannotListen("the certificate cannot be used", "h", 5)
    with pytest.raises(CannotListen) as caught, listening_on("h", 5):
        raise first
    assert caught.value is first


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
