"""Probing what is behind a tap: a store answers a Hello; everything else is reported in one sentence, never raised."""

import asyncio

from segstore.server import MockSegmentStore
from segstore.server.tap.probe import Probed, probe_store
from segstore.wire.endpoint import Endpoint
from tests.looped import looped
from tests.server.support import until
from tests.server.tap.test_server import upstream

_LONG_S = 20.0


async def test_a_store_answers_and_no_connection_is_left() -> None:
    async with MockSegmentStore() as mock:
        where = Endpoint(mock.host, mock.port)
        probed = await probe_store(where, None, _LONG_S)
        assert probed == Probed(f"the store at {where} answers (wire version 17)")
        await until(lambda: not mock.server.hub.connections)


@looped("where", [Endpoint("127.0.0.1", 1), Endpoint("no such host.invalid", 1), Endpoint("127.0.0.1", 70_000)])
async def test_a_store_that_is_not_there_is_reported(where: Endpoint) -> None:
    probed = await probe_store(where, None, _LONG_S)
    assert not probed.answers
    assert probed.text.startswith(f"the store at {where} does not answer: ")


@looped("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x09\0\0\0\x04read", b"\xff" * 100])
async def test_what_is_no_store_is_reported(answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(answer)
        await writer.drain()

    async with upstream(handler) as where:
        assert (await probe_store(Endpoint(*where), None, _LONG_S)).text.endswith(
            ": what listens there is no segment store"
        )


async def test_a_silent_peer_is_reported_at_the_deadline() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with upstream(handler) as where:
        assert (await probe_store(Endpoint(*where), None, 0.05)).text.endswith(": it was silent for 0.05 s")
