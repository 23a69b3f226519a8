"""The server on its socket: ports, TLS, time, other loops, and that nothing is left when it is closed."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from segstore.server.controller import Controller, ControllerConfig, ControllerServer, StreamConfig
from segstore.server.controller.api.in_flight import CallsInFlight
from segstore.server.controller.state import Core, TransactionStatus
from segstore.server.controller.state import operations as op
from segstore.server.net import TlsFiles
from segstore.wire.controller_api import messages as m
from tests.server.certificates import write_certificate
from tests.server.controller.calls import Client
from tests.server.controller.fake_store import FakeStore

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What an HTTP/2 client says first, with settings of none."""

pytestmark = pytest.mark.usefixtures("grpc_runs")


def controller(store: FakeStore | None = None, ended: asyncio.Event | None = None, **settings: int) -> Controller:
    """A controller that tells by an event when a transaction has ended."""

    def journal(operation: op.Operation) -> None:
        if ended is not None and isinstance(operation, op.TransactionEnded):
            ended.set()

    return Controller(Core(store or FakeStore(), ControllerConfig.model_validate(settings), journal=journal))


async def test_a_port_that_another_server_has_is_refused() -> None:
    async with await ControllerServer(controller()).start() as first:
        assert first.port > 0
        with pytest.raises(OSError, match=str(first.port)):
            await ControllerServer(controller()).start(port=first.port)


async def test_closing_twice_is_fine_and_frees_the_port() -> None:
    server = await ControllerServer(controller()).start()
    await server.aclose()
    await server.aclose()
    async with await ControllerServer(controller()).start(port=server.port) as again:
        assert again.port == server.port


async def test_a_start_that_is_cancelled_frees_the_port() -> None:
    in_flight = CallsInFlight(lambda _: None)
    starting = asyncio.create_task(in_flight.start("127.0.0.1", 0))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    socket.create_server(("127.0.0.1", in_flight.port)).close()


async def test_with_tls_clients_get_the_published_name(tmp_path: Path) -> None:
    tls = TlsFiles(*write_certificate(tmp_path))
    async with await ControllerServer(controller()).start(tls=tls, published_host="localhost") as server:
        credentials = grpc.ssl_channel_credentials(tls.certificate.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{server.port}", credentials) as channel:
            answer = await Client(channel)("getControllerServerList")
    assert list(answer.nodeURI) == [m.NodeUri(endpoint="localhost", port=server.port)]


async def test_a_certificate_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await ControllerServer(controller()).start(tls=TlsFiles(tmp_path / "no.pem", tmp_path / "no.key"))


async def test_what_is_due_is_done_while_the_server_is_open() -> None:
    ended = asyncio.Event()
    served = controller(ended=ended, commit_delay_ms=5)
    async with await ControllerServer(served).start():
        served.scopes.create("a")
        await served.create_stream("a", "s", StreamConfig())
        transaction, _ = await served.transactions.open("a", "s", 90_000)
        await served.transactions.commit("a", "s", transaction)
        assert served.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTING
        async with asyncio.timeout(60):
            await ended.wait()
    assert served.transactions.status("a", "s", transaction) is TransactionStatus.COMMITTED
