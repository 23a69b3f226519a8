"""Which requests of the kept traffic fault rules and the observer were about, over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from segstore.server import MockSegmentStore
from segstore.server.cluster import MockCluster
from segstore.server.faults import Observer
from segstore.server.traffic import History, Traffic
from segstore.tap import Tap
from segstore.wire import AppendBlock, AppendBlockEnd, Command, Hello, KeepAlive, Padding, encode
from tests.looped import looped
from tests.server.control_api.support import asking, client_of, done, peer_of
from tests.server.support import HELLO, WRITER, Peer, append, create, read, set_up, until
from tests.server.tap.test_server import upstream

PING = encode(KeepAlive())
BLOCK = encode(AppendBlock(WRITER, b"data"))
STATUS = {"name": "st", "match": "rpc = createScope", "times": 1, "do": {"status": "UNAVAILABLE"}}


def traffic_of(mock: MockSegmentStore) -> Traffic:
    recorder = mock.server.hub.recorder
    assert isinstance(recorder, Traffic)
    return recorder


async def ask_last(peer: Peer, *commands: Command) -> None:
    """Sends commands, and waits until they and all before are answered."""
    peer.send(*commands, create(request_id=99))
    while getattr((await peer.receive())[0], "request_id", 0) != 99:
        pass


async def faults_of(http: httpx.AsyncClient, match: str) -> list[list[str]]:
    """Those of the requests that match, oldest first; each is the same in detail."""
    found = (await done(http, "GET", "/v1/requests", match=match, limit=1_000))["requests"]
    for each in found[:5] + found[-5:]:
        detail = await done(http, "GET", f"/v1/requests/{each['number']}")
        assert (detail["faults"], detail["stage"]) == (each["faults"], each["stage"])
    return [each["faults"] for each in reversed(found)]


@asynccontextmanager
async def listened_to() -> AsyncIterator[tuple[Tap, httpx.AsyncClient, Callable[[bytes], Awaitable[None]]]]:
    """A tap before a store that answers nothing, a client of its control API, and a call that sends bytes through it
    and returns when the store has them, as they were sent.
    """
    heard, sent = bytearray(), bytearray()

    async def listens(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            heard.extend(data)

    async with (
        upstream(listens) as (host, port),
        Tap(store=f"{host}:{port}", http_port=0) as tap,
        httpx.AsyncClient(base_url=tap.http_url, trust_env=False, timeout=60) as http,
    ):
        where: Any = tap  # a peer asks for host and port alone
        async with await Peer.connect(where) as peer:

            async def send(data: bytes) -> None:
                peer.send_bytes(data)
                sent.extend(data)
                await until(lambda: heard == sent)

            yield tap, http, send


@pytest.mark.usefixtures("grpc_runs")
async def test_a_fault_is_shown_at_the_call_that_it_has_ended() -> None:
    async with MockCluster(http_port=0, rest_port=0) as mock, client_of(mock) as http:
        async with httpx.AsyncClient(base_url=mock.rest_url, trust_env=False, timeout=60) as rest:
            for name in "abcd":
                if name == "c":
                    await done(http, "POST", "/v1/faults", STATUS)
                await rest.post("/v1/scopes", json={"scopeName": name})
        found = (await done(http, "GET", "/v1/requests", match="rpc = createScope"))["requests"]
        assert [(each["reply"], each["faults"]) for each in reversed(found)] == [
            ("OK", []),
            ("OK", []),
            ("UNAVAILABLE", ["st: status UNAVAILABLE"]),
            ("OK", []),
        ]


async def test_a_fault_is_shown_at_its_frame_among_others_that_look_the_same() -> None:
    async with asking() as (mock, http), peer_of(mock) as peer:
        mock.faults.add("type = KEEP_ALIVE", nth=2, do={"delay_ms": 1}, name="late")
        mock.faults.add("type = READ_SEGMENT", nth=3, do="WrongHost", name="lost")
        peer.send(KeepAlive(), Padding(8), KeepAlive(), KeepAlive())
        await ask_last(peer, create(), set_up(), append(1))
        await ask_last(peer, *[read(length=1)] * 4)
        assert await faults_of(http, "type = KEEP_ALIVE") == [[], ["late: delay"], []]
        assert await faults_of(http, "type = READ_SEGMENT") == [[], [], ["lost: error WRONG_HOST"], []]


@looped("observed", [True, False])
async def test_faults_are_shown_at_their_frames_after_older_records_were_discarded(observed: bool) -> None:
    async with asking() as (mock, http), peer_of(mock) as peer:
        if not observed:  # appends pass the rules together
            mock.faults.observer = Observer(history=History(traffic_of(mock), mock.faults))
        await peer.ask(create(), set_up())
        peer.send(*map(append, range(1, 1_001)))
        mock.faults.add("type = READ_SEGMENT", nth=2, do="WrongHost", name="lost")
        await ask_last(peer, append(1_001), read(length=1))
        traffic_of(mock).clear()
        peer.send(*map(append, range(1_002, 2_001)))
        await ask_last(peer, *[read(length=1)] * 3)
        assert await faults_of(http, "type = READ_SEGMENT") == [["lost: error WRONG_HOST"], [], []]
        traffic_of(mock).clear()
        mock.faults.add("type = KEEP_ALIVE", nth=2, do="hold", name="held")
        peer.send(*[KeepAlive()] * 3)
        await mock.faults.wait_held("held")
        assert await faults_of(http, "type = KEEP_ALIVE") == [[], ["held: hold"], []]
        mock.faults.clear()


@looped("appends", [1, 1_000])
async def test_a_tap_shows_faults_at_their_frames(appends: int) -> None:
    async with (
        MockSegmentStore() as mock,
        Tap(store=f"{mock.host}:{mock.port}", http_port=0) as tap,
        httpx.AsyncClient(base_url=tap.http_url, trust_env=False, timeout=60) as http,
    ):
        where: Any = tap  # a peer asks for host and port alone
        async with await Peer.connect(where) as peer:
            await peer.ask(HELLO, create(), set_up())
            await ask_last(peer, *map(append, range(1, appends + 1)))
            tap.traffic.clear()
            tap.faults.add("type = READ_SEGMENT", nth=3, do="WrongHost", name="lost")
            tap.faults.add("type = KEEP_ALIVE", nth=2, do="hold", name="held")
            await peer.ask(*[read(0, 1)] * 4)
            peer.send(*[KeepAlive()] * 3)
            await tap.faults.wait_held("held")
            assert await faults_of(http, "type = READ_SEGMENT") == [[], [], ["lost: error WRONG_HOST"], []]
            assert await faults_of(http, "type = KEEP_ALIVE") == [[], ["held: hold"], []]
            tap.faults.release("held")
            await ask_last(peer)
            tap.traffic.clear()
            tap.faults.add("type = KEEP_ALIVE", nth=1, do="hold", name="again")
            peer.send(Padding(8), Hello(17, 5), *[KeepAlive()] * 3)
            await tap.faults.wait_held("again")
            assert await faults_of(http, "type = KEEP_ALIVE") == [["again: hold"], [], []]
            tap.faults.clear()


@looped(
    "other", [b"\0\0\0\x09\0\0\0\x02no", BLOCK[:4] + b"\0\0\0\x02no", encode(Padding(8)), b"\0\0\x22\x22\0\0\0\x03abc"]
)
async def test_a_tap_shows_faults_at_their_frames_behind_others_that_no_rule_sees(other: bytes) -> None:
    async with listened_to() as (tap, http, send):
        tap.faults.add("type = KEEP_ALIVE", nth=3, do="hold after", name="late")
        await send(encode(HELLO) + PING + other + other + 3 * PING)
        assert await faults_of(http, "type = KEEP_ALIVE") == [[], [], ["late: hold"], []]
        await send(other + PING)
        assert await faults_of(http, "type = KEEP_ALIVE") == [[], [], ["late: hold"], [], []]


@looped(
    "malformed",
    [BLOCK, encode(set_up()) + BLOCK + encode(Padding(8)), encode(AppendBlockEnd(WRITER, 0, b"data", 1, 1, 3))],
)
async def test_a_tap_shows_faults_at_their_frames_before_a_malformed_append(malformed: bytes) -> None:
    async with listened_to() as (tap, http, send):
        tap.faults.add("type = KEEP_ALIVE", nth=2, do="hold after", name="late")
        await send(encode(HELLO) + 3 * PING)
        await send(malformed + 2 * PING)
        assert await faults_of(http, "type = KEEP_ALIVE") == [[], ["late: hold"], [], [], []]
