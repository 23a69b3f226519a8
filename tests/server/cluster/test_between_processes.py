"""Credentials and tokens that processes of a cluster send each other, and to whom."""

import asyncio
import importlib
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from segstore.server.cluster import ClusterProcess, ClusterSettings, ZooKeeperSettings
from segstore.server.config import StoreSettings
from segstore.server.controller import ControllerConfig
from segstore.server.controller.api import Accounts, Authority, ForwardingServer
from segstore.server.net import TlsFiles
from segstore.wire.controller_api import SERVICE
from segstore.wire.endpoint import Endpoint
from tests.server.certificates import CERTIFICATE, write_certificate
from tests.server.controller.test_front import Upstream, echo

pytestmark = pytest.mark.usefixtures("grpc_runs")

CREDENTIALS = "Basic YW5uOnNlY3JldA=="


async def handed_on(tls: TlsFiles | None, **options: Any) -> dict[str, str | bytes]:
    """The metadata that the leader gets of a call with credentials."""
    leader, server = Upstream(echo), grpc.aio.server()
    server.add_generic_rpc_handlers((leader,))
    if tls is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = tls.key.read_bytes(), tls.certificate.read_bytes()
        port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    host = "127.0.0.1" if tls is None else "localhost"
    forwarding = ForwardingServer(lambda: Endpoint(host, port), ControllerConfig(), tls=tls, **options)
    front = await forwarding.start("127.0.0.1", 0)
    where = f"{host}:{front.port}"
    try:
        async with (
            grpc.aio.insecure_channel(where)
            if tls is None
            else grpc.aio.secure_channel(where, grpc.ssl_channel_credentials(tls.certificate.read_bytes()))
        ) as channel:
            call = channel.unary_unary(f"/{SERVICE}/createScope", request_serializer=bytes, response_deserializer=bytes)
            given = (("authorization", CREDENTIALS), ("x-other", "kept"))
            assert await call(b"scope", metadata=given) == b"scope"
    finally:
        await front.aclose(0)
        await server.stop(0)
    ((_, metadata),) = leader.calls
    assert metadata["x-other"] == "kept"
    return metadata


async def test_credentials_are_handed_on_under_tls_or_where_the_network_is_trusted(tmp_path: Path) -> None:
    assert "authorization" not in await handed_on(None)
    assert (await handed_on(None, trust_network=True))["authorization"] == CREDENTIALS
    assert (await handed_on(TlsFiles(*write_certificate(tmp_path))))["authorization"] == CREDENTIALS


@pytest.mark.parametrize(
    ("more", "authority"),
    [
        ({"auth_key": "k"}, None),
        ({}, Authority(Accounts(["ann:secret"]), now_s=lambda: 0.0)),
        ({}, Authority(None, "k", now_s=lambda: 0.0)),
    ],
    ids=["stores with a key", "users", "a controller with a key"],
)
def test_a_process_that_would_send_secrets_in_clear_is_refused_unless_the_network_is_trusted(
    tmp_path: Path, more: dict[str, Any], authority: Authority | None
) -> None:
    def made(**options: Any) -> ClusterProcess:
        settings = ClusterSettings(store=StoreSettings(**more, **tls), data=tmp_path / "data")
        return ClusterProcess(settings, ZooKeeperSettings(zookeeper="127.0.0.1:1", **options), authority=authority)

    tls: dict[str, Path] = {}
    with pytest.raises(ValueError, match="give tls_cert and tls_key, or trust_network if this is intended"):
        made()
    made(trust_network=True)
    tls = dict(zip(("tls_cert", "tls_key"), write_certificate(tmp_path), strict=True))
    made()


async def test_processes_trust_their_own_certificate_and_no_other_of_its_authority(tmp_path: Path) -> None:
    tools = str(Path(__file__).parents[3] / "tools")
    sys.path.insert(0, tools)
    try:
        other = importlib.import_module("make_cert").make(tmp_path)
    finally:
        sys.path.remove(tools)
    chain, key = tmp_path / "chain.pem", write_certificate(tmp_path)[1]
    chain.write_text(f"ours, and who made theirs\n{CERTIFICATE}{other.ca.read_text()}")
    assert TlsFiles(chain, key).own_certificate() == CERTIFICATE.encode()
    trusting = TlsFiles(chain, key).trusting_context()

    async def shakes_hands(certificate: Path, key: Path) -> bool:
        shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown.load_cert_chain(certificate, key)
        serve: Callable[..., None] = lambda _, writer: writer.close()  # noqa: E731
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=shown) as server:
            host, port = server.sockets[0].getsockname()
            try:
                _, writer = await asyncio.open_connection(host, port, ssl=trusting, server_hostname="localhost")
            except ssl.SSLCertVerificationError:
                return False
            writer.transport.abort()
            return True

    assert await shakes_hands(chain, key)
    assert not await shakes_hands(other.cert, other.key)
