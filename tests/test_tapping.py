"""A tap as people use it: clients that are pointed at it, what it records, what it makes go wrong."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import SecretStr

from segstore.client import Client, ClientSettings, connect
from segstore.client.errors import TokenRefused
from segstore.server import FaultFileError, MockSegmentStore, Rule
from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Accounts, Authority
from segstore.server.faults import FaultSettings, NoFaults
from segstore.server.faults.observe import NotObserved
from segstore.server.replay import TraceServer
from segstore.tap import Tap
from segstore.traces import FileRecorder, UnknownSuffix
from segstore.wire.trace import Metadata, RecordKind, unpack_data
from tests.looped import looped
from tests.server.certificates import write_certificate
from tests.server.support import Peer, until
from tests.server.traffic import check_replayed_as_a_server, read_all, streams, writes

pytestmark = pytest.mark.usefixtures("grpc_runs")

APPENDS = "type = APPEND_BLOCK_END"


def before(cluster: MockCluster, **more: object) -> Tap:
    return Tap(f"tcp://{cluster.controller_uri}", **more)


def store_before(mock: MockSegmentStore, **more: object) -> Tap:
    return Tap(store=f"{mock.host}:{mock.port}", **more)


async def make_stream(pravega: Client, segments: int = 2) -> None:
    await pravega.controller.create_scope("shop")
    await pravega.controller.create_stream("shop", "orders", segments=segments)


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


async def read_events(pravega: Client, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with pravega.event_reader("shop", "orders", from_="head") as events:
        async for event in events:
            found.append(event.data)
            if len(found) == count:
                break
    return found


@looped("watched", [True, False])
async def test_a_client_that_is_pointed_at_a_tap_reaches_all_stores_through_it(watched: bool) -> None:
    events = [b"order %d" % number for number in range(60)]
    async with MockCluster(2) as cluster, before(cluster, watched=watched) as tap:
        assert tap.address is None, "no store is known yet"
        async with connect(tap.controller_uri) as pravega:
            await make_stream(pravega, segments=6)
            async with pravega.event_writer("shop", "orders") as writer:
                for number, event in enumerate(events):
                    await writer.submit(event, routing_key=str(number))
                await writer.flush()
            assert sorted(await read_events(pravega, len(events))) == sorted(events)
            stores = {store.address for store in cluster.stores}
            assert set(tap.addresses) == stores
            assert not set(tap.addresses.values()) & stores
            connections = [connection for store in cluster.stores for connection in store.hub.connections]
            assert len(connections) == len(tap.links) > 0, "somebody came by another way"
        if watched:
            assert len(tap.requests(APPENDS, stage="replied")) >= 6


async def test_what_goes_wrong_is_said_by_a_file_or_by_settings(tmp_path: Path) -> None:
    file = tmp_path / "faults.yaml"
    file.write_text("rules:\n  - match: type = HELLO\n    do: close\n    name: from the file\n")
    rules = FaultSettings(rules=(Rule(name="given", do="close"),))
    async with MockSegmentStore() as mock:
        for given, name in ((file, "from the file"), (rules, "given")):
            async with store_before(mock, faults=given) as tap, await Peer.connect(tap) as peer:  # type: ignore[arg-type]
                assert tap.faults.rules == [name]
                peer.send_bytes(bytes.fromhex("ffffff81000000080000001100000005"))
                assert await peer.closed() == b""
        file.write_text("rules:\n  - mtch: type = HELLO\n    do: close\n")
        with pytest.raises(FaultFileError, match="line 2"):
            store_before(mock, faults=file)
        with pytest.raises(NotObserved):
            store_before(mock, faults=rules, watched=False).requests()
        with pytest.raises(NoFaults):
            _ = store_before(mock, watched=False).faults


async def test_tls_passwords_and_tokens_pass_and_the_recording_holds_none_of_them(tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    tls = {"tls_cert": certificate, "tls_key": key}
    signed_with = "k" * 64
    authority = Authority(Accounts(["ann:secret"]), signed_with, now_s=time.time)
    path = tmp_path / "run.wtrace"
    async with MockCluster(2, authority=authority, auth_key=signed_with, **tls) as cluster:
        uri = f"tls://{cluster.controller_uri}"
        async with Tap(uri, ca=certificate, record=path, **tls) as tap:
            assert tap.controller_uri.startswith("localhost:"), "which its certificate carries"
            settings = ClientSettings(tls_ca_file=certificate, username="ann", password="secret")
            async with connect(f"tls://{tap.controller_uri}", settings) as pravega:
                await make_stream(pravega)
                async with pravega.event_writer("shop", "orders") as writer:
                    await writer.write(b"tea", routing_key="table 7")
                assert await read_events(pravega, 1) == [b"tea"]
            wrong = settings.model_copy(update={"password": SecretStr("wrong")})
            async with connect(f"tls://{tap.controller_uri}", wrong) as pravega:
                with pytest.raises(TokenRefused):
                    await pravega.controller.create_scope("b")
        async with Tap(uri, ca=certificate) as plain:
            settings = ClientSettings(username="ann", password="secret")
            async with connect(plain.controller_uri, settings) as pravega:
                assert await read_events(pravega, 1) == [b"tea"]
    tokens = [each.data.split(b"shop/orders/")[1][14:] for each in read_all(path) if each.data[:4] == b"\0\0\0\1"]
    assert tokens
    assert {bytes(set(token[2:])) for token in tokens} == {b"*"}


@pytest.mark.parametrize("watched", [True, False], ids=["watched", "plain"])
async def test_a_tap_records_what_the_store_itself_records(tmp_path: Path, watched: bool) -> None:
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        recorder = FileRecorder(tmp_path / "store.wtrace", Metadata(17, "a test"))
        mock.server.hub.recorder = recorder
        async with store_before(mock, record=tmp_path / "tap.wtrace", watched=watched) as tap:
            await writes(tap.host, tap.port)
            await until(lambda: not tap.links and not mock.server.hub.connections)
        recorder.close()
    ours, theirs = read_all(tmp_path / "tap.wtrace"), read_all(tmp_path / "store.wtrace")
    assert streams(ours) == streams(theirs)
    for kind in (RecordKind.FRAME, RecordKind.CLOSE):
        shown = [
            sorted((each.connection, each.direction, each.data) for each in each_ if each.kind is kind)
            for each_ in (ours, theirs)
        ]
        assert shown[0] == shown[1]
    opened = [[unpack_data(each.data) for each in every if each.kind is RecordKind.OPEN] for every in (ours, theirs)]
    assert [each["store"] for each in opened[0]] == [each["store"] for each in opened[1]]
    assert [set(each) for each in opened[0]] == [set(each) for each in opened[1]] == [{"peer", "store"}] * 2
    await check_replayed_as_a_server(ours)


@pytest.mark.parametrize("mode", ["strict", "match"])
async def test_a_recording_alone_answers_a_client_as_the_cluster_did(
    tmp_path: Path, mode: Literal["strict", "match"]
) -> None:
    async def program(uri: str) -> tuple[bool, list[bytes]]:
        async with connect(uri) as pravega:
            await make_stream(pravega)
            async with pravega.event_writer("shop", "orders") as writer:
                for number in range(4):
                    await writer.write(b"tea %d" % number, routing_key=f"table {number}")
            again = await pravega.controller.create_scope("shop")
            return again, sorted(await read_events(pravega, 4))

    async with MockCluster(2) as cluster, before(cluster, record=tmp_path / "run.wtrace") as tap:
        recorded = await program(tap.controller_uri)
    records = read_all(tmp_path / "run.wtrace")
    async with TraceServer(records, mode=mode) as server:
        controller = await server.start_controller(records)
        assert await program(str(controller)) == recorded
        assert server.problems == []
        assert not server.unused()


async def test_a_tap_that_cannot_listen_leaves_no_recording(tmp_path: Path) -> None:
    async with MockSegmentStore() as mock:
        tap = store_before(mock, record=tmp_path / "run.wtrace", port=mock.port)
        with pytest.raises(OSError, match="is taken by another process"):
            await tap.start()
        assert names_in(tmp_path) == []
        with pytest.raises(UnknownSuffix):
            store_before(mock, record=tmp_path / "run.txt")


async def test_a_disk_that_takes_no_more_ends_the_recording_and_not_the_connections(tmp_path: Path) -> None:
    async with MockSegmentStore(long_poll_s=0.05) as mock:
        tap = store_before(mock, record=tmp_path / "run.wtrace")
        await tap.start()
        tap.recorder.failure = OSError(28, "No space left on device", "run.wtrace")
        assert len(await writes(tap.host, tap.port)) > 5
        with pytest.raises(OSError, match="No space left"):
            await tap.stop()
        await tap.stop()


def test_the_program_of_the_page_runs() -> None:
    page = (Path(__file__).parent.parent / "docs" / "how-to" / "use-the-tap.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@looped(
    ("given", "said"),
    [
        ({"controller": "http://a:1"}, "the scheme must be tcp or tls"),
        ({"controller": "tcp://a:b"}, "is not host:port"),
        ({"store": "[::1]"}, "a store's address needs a port"),
        ({"controller": "tls://a:1", "store": "b:2"}, "either both speak TLS or none"),
        ({"controller": "tls://a:1", "tls": False}, "tls: the addresses decide it"),
    ],
)
def test_addresses_that_do_not_do_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Tap(**given)


async def test_addresses_are_those_that_people_write() -> None:
    tap = Tap("tls://localhost", "tls://[::1]:12345")
    assert tap.settings.controller == ("localhost", 9090)
    assert tap.settings.store == ("::1", 12345)
    assert tap.settings.tls
    assert tap.settings.public_host == "127.0.0.1"
    assert Tap(store="a:1", published_host="tap").settings.public_host == "tap"
    with pytest.raises(RuntimeError, match="has no controller"):
        _ = tap.controller_uri
    with pytest.raises(RuntimeError, match="has no store"):
        _ = tap.port
    await asyncio.sleep(0)
