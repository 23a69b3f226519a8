"""`segstore serve --zookeeper`: processes are one cluster, whoever of them is killed, frozen or started again."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import SecretStr

from segstore.client import connect
from segstore.server.coordination import Configuration, CoordinationError
from segstore.server.coordination.errors import Unreachable
from segstore.server.coordination.zookeeper import ZooKeeperCoordinator, ZooKeeperSession
from segstore.server.segments.remote import StoreConnection
from segstore.wire import WIRE_VERSION, GetStreamSegmentInfo, ReadSegment, StreamSegmentInfo, WrongHost
from segstore.wire.endpoint import Endpoint
from tests.cluster_processes import IMPATIENT, PATIENT, PROMPT, Processes, Workload, are_at, chaos
from tests.official.client import OfficialClient, run
from tests.server.certificates import write_certificate
from tests.server.coordination.cut_line import CutLine
from tests.server.coordination.zookeeper_server import PART, ZooKeeperServer, zookeeper_server

pytestmark = [pytest.mark.needs(PART), pytest.mark.usefixtures("grpc_runs"), pytest.mark.timeout(400)]

PATIENCE_S = 60.0
RECONNECT = ("--session-expired-policy", "reconnect")
SMALL = ("--containers", "2")
_names = count()


@pytest.fixture
def place(zookeeper: str) -> str:
    """A part of the tree for one cluster."""
    return f"{zookeeper}/cluster-{next(_names)}"


@pytest.fixture(scope="module")
def shared(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Two processes that several tests use."""
    place = f"{zookeeper}/cluster-{next(_names)}"
    with Processes(tmp_path_factory.mktemp("pair"), place, 2, *SMALL, *RECONNECT, "--rest-port", "0") as processes:
        yield processes


@pytest.fixture
async def pair(shared: Processes) -> Processes:
    """Both run, and each serves a container, so that none is to move."""
    await shared.all_run()
    await Workload(shared.uri, 0).make(4)
    await are_at(shared.uri, "a", 2)
    return shared


@pytest.fixture
def scope() -> str:
    """One that no other test has."""
    return f"scope-{next(_names)}"


def refused(folder: Path, zookeeper: str, *options: str) -> str:
    """The complaint of a process that does not begin: one sentence, and a status."""
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "segstore", "serve", "--port", "0", "--controller-port", "0", *PROMPT),
            *("--zookeeper", zookeeper, "--data", str(folder), *options),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.stdout == ""
    assert ended.returncode != 0
    said = [splitline for splitline in ended.stderr.splitlines() if splitline.startswith("segstore")]
    assert len(said) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return said[0]


@pytest.mark.seed("57.7")
@pytest.mark.seed("57.8")
async def test_nothing_acknowledged_is_lost_doubled_or_reordered_whatever_happens_to_processes(
    tmp_path: Path, place: str
) -> None:
    async with Processes(tmp_path, place, 3, *RECONNECT) as processes:
        work = Workload(processes.uri, 3)
        await work.make(4)
        async with asyncio.timeout(PATIENCE_S * 2):
            async with work.running():
                done = await chaos(processes, Random(57), 2, most_frozen_s=1.8)
            assert await work.check() > 0
        assert sum(done.values()) >= 2


@pytest.mark.needs("pravega, the official client")
async def test_the_official_client_writes_while_a_process_is_killed_and_one_frozen_and_reads_it_all(
    tmp_path: Path, place: str
) -> None:
    what: dict[str, Any] = {"scope": "a", "stream": "s", "keys": 20, "per_key": 200}
    # Whatever the client sets up, it sets up while nothing moves: there it panics when it hears WrongHost.
    async with Processes(tmp_path, place, 1, *SMALL, *PATIENT) as processes:
        uri = processes.uri
        second = processes.another(*SMALL, *RECONNECT)
        await Workload(uri, 0).make(4)
        await are_at(uri, "a", 1)
        async with OfficialClient(uri, "events.write", **what, in_flight=100, pauses=3) as writer:
            await writer.said("writing")
            await writer.said("paused")
            await second.start()
            await are_at(uri, "a", 2)
            writer.go_on()
            await writer.said("paused")
            await second.kill()
            writer.go_on()
            await second.start()
            await writer.said("paused")
            await are_at(uri, "a", 2)
            writer.go_on()
            second.freeze()  # until its session is over and its containers are the other's
            await are_at(uri, "a", 1)
            second.thaw()
            await writer.result()
        assert await second.end() == 0
        await are_at(uri, "a", 1)
        assert await run(uri, "events.read", **what) == {"events": 4000, "wrong": [], "problem": ""}


@pytest.mark.seed("57.1")
async def test_with_shutdown_a_store_whose_session_has_expired_ends_and_says_so(tmp_path: Path, place: str) -> None:
    async with Processes(tmp_path, place, 1, *SMALL, *PATIENT) as processes:
        first, second = processes.all[0], processes.another(*SMALL, "--session-timeout-ms", "3000")
        await second.start()
        work = Workload(processes.uri, 2)
        await work.make(4)
        await are_at(processes.uri, "a", 2)
        async with work.running():
            second.freeze()
            await are_at(f"tcp://{first.controller}", "a", 1)
            second.thaw()
            assert await second.ended() == 1
        assert "segstore: the store ends: its coordination session has expired" in second.said()
        assert await work.check() > 0
        assert await first.end() == 0


@pytest.mark.seed("57.7")
async def test_a_process_that_stood_still_answers_no_read_from_what_it_had(pair: Processes, scope: str) -> None:
    await Workload(pair.uri, 0, scope=scope).make(1)
    segment = f"{scope}/s/0.#epoch.0"
    async with connect(pair.uri, IMPATIENT) as client, client.event_writer(scope, "s") as writer:
        await writer.write(b"before")
        owner = await client.controller.endpoint_of(scope, "s", 0)
    frozen, other = sorted(pair.all, key=lambda each: each.store != f"{owner.host}:{owner.port}")
    asked = await StoreConnection.open(Endpoint(owner.host, owner.port), WIRE_VERSION, None)
    try:
        before = await asked.ask(GetStreamSegmentInfo(0, segment, ""))
        assert isinstance(before, StreamSegmentInfo)
        frozen.freeze()
        async with connect(f"tcp://{other.controller}", IMPATIENT) as client, asyncio.timeout(PATIENCE_S):
            while await client.controller.endpoint_of(scope, "s", 0) == owner:  # noqa: ASYNC110  it has no event
                await asyncio.sleep(0.05)
            async with client.event_writer(scope, "s") as writer:
                await writer.write(b"after")
        reads = [
            asyncio.ensure_future(asked.ask(each))
            for each in (GetStreamSegmentInfo(0, segment, ""), ReadSegment(segment, before.write_offset, 1000, "", 0))
        ]
        await asyncio.sleep(0)  # they are in its socket before it can do anything
        frozen.thaw()
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*reads, return_exceptions=True)
        # The connection ends if the store had something to write for that container when it was frozen.
        assert all(isinstance(answer, WrongHost | ConnectionError) for answer in answers), answers
    finally:
        frozen.thaw()
        await asked.aclose()


@pytest.mark.seed("57.6")
async def test_every_process_serves_the_controller_and_another_leads_it_when_the_leader_is_killed(
    pair: Processes, scope: str
) -> None:
    uris = [f"tcp://{each.controller}" for each in pair.all]
    for number, uri in enumerate(uris):
        async with connect(uri, IMPATIENT) as client:
            await client.controller.create_scope(f"{scope}-{number}")
            await client.controller.create_stream(f"{scope}-{number}", "s", segments=2)
    for number, victim in enumerate(pair.all):
        await victim.kill()
        async with connect(uris[1 - number], IMPATIENT) as client, asyncio.timeout(PATIENCE_S):
            found = [each async for each in client.controller.list_scopes() if each.startswith(scope)]
            assert found == [f"{scope}-0", f"{scope}-1"]
            await client.controller.create_stream(f"{scope}-0", f"made-{number}", segments=1)
        await victim.start()
    async with connect(pair.uri, IMPATIENT) as client:
        streams = [each async for each in client.controller.list_streams(f"{scope}-0")]
    assert {"s", "made-0", "made-1"} <= {str(stream) for stream in streams}


async def test_transactions_and_scaling_go_over_the_wire(pair: Processes, scope: str) -> None:
    async with connect(pair.uri, IMPATIENT) as client:
        await Workload(pair.uri, 0, scope=scope).make(4)
        async with client.transaction_writer(scope, "s") as writer:
            kept, dropped = writer.begin(), writer.begin()
            await kept.open()
            for number in range(20):
                await kept.write(b"kept %d" % number, routing_key=str(number))
            await dropped.open()
            await dropped.write(b"dropped")
            await dropped.abort()
            await kept.commit()
        now = await client.controller.current_segments(scope, "s")
        halves = [(number / 8, (number + 1) / 8) for number in range(8)]
        await client.controller.scale(scope, "s", [each.segment_id for each in now], halves)
        await client.controller.seal_stream(scope, "s")
        async with client.event_reader(scope, "s") as reader, asyncio.timeout(PATIENCE_S):
            found = sorted([bytes(event.data) async for event in reader])
        assert found == sorted(b"kept %d" % number for number in range(20))


async def nodes(session: ZooKeeperSession, path: str = "") -> AsyncIterator[str]:
    """The paths of all nodes below, and of the node itself."""
    yield path or "/"
    for child in await session.children(path or "/"):
        async for node in nodes(session, f"{path}/{child}"):
            yield node


async def test_strangers_neither_read_nor_change_a_node_of_a_cluster_that_has_credentials(
    tmp_path: Path, place: str
) -> None:
    certificate, key = write_certificate(tmp_path)
    (tmp_path / "zookeeper-auth").write_text("cluster:hidden\n")
    (tmp_path / "key").write_text("k" * 64)
    (tmp_path / "users").write_text("admin:secret:prn::*,READ_UPDATE\n")
    options = (
        *("--zookeeper-auth-file", str(tmp_path / "zookeeper-auth"), "--auth-key-file", str(tmp_path / "key")),
        *("--tls-cert", str(certificate), "--tls-key", str(key), "--password-file", str(tmp_path / "users")),
    )
    secret = {"username": "admin", "password": SecretStr("secret"), "tls_ca_file": certificate}
    async with Processes(tmp_path, place, 2, *SMALL, *PATIENT, *options) as processes:
        work = Workload(processes.uri.replace("tcp://", "tls://"), 2, IMPATIENT.model_copy(update=secret))
        await work.make(4)
        async with work.running():
            await asyncio.sleep(0)
        assert await work.check() > 0
        member = await ZooKeeperCoordinator(place, credentials=SecretStr("cluster:hidden")).connect()
        stranger = await ZooKeeperCoordinator(place).connect()
        try:
            found = [node async for node in nodes(member)]
            for path in found:
                await is_kept_from(stranger, path)
        finally:
            await stranger.aclose()
            await member.aclose()
        assert {"/segstore/cluster", "/segstore/controller", "/segstore/configuration/a/s"} <= set(found)
        with pytest.raises(Unreachable, match="refuses these credentials for node /segstore"):
            await ZooKeeperCoordinator(place, credentials=SecretStr("cluster:guessed")).connect()
        assert refused(tmp_path / "data", place, *SMALL) == (
            "segstore: ZooKeeper refuses these credentials for node /segstore/cluster; give those used to create it"
        )
        assert "hidden" not in "".join(each.said() for each in processes.all)


async def is_kept_from(session: ZooKeeperSession, path: str) -> None:
    """A node cannot be read, listed, changed or deleted, nor given a child."""
    calls = [
        session.get(path),
        session.children(path),
        session.set(path, b"x"),
        session.create(f"{path}/x".replace("//", "/"), b""),
    ]
    for call in calls:
        with pytest.raises(CoordinationError, match="refuses these credentials"):
            await call
    with pytest.raises(CoordinationError):
        await session.delete(path)


async def test_a_tree_that_anyone_can_change_is_refused_with_credentials(place: str) -> None:
    session = await ZooKeeperCoordinator(place).connect()
    try:
        await session.create("/segstore/containers", b"")
        with pytest.raises(Unreachable, match="can be changed without credentials"):
            await ZooKeeperCoordinator(place, credentials=SecretStr("cluster:hidden")).connect()
    finally:
        await session.aclose()


def test_a_zookeeper_that_does_not_answer_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    said = refused(tmp_path / "data", "127.0.0.1:1")
    assert said.startswith("segstore: ZooKeeper at 127.0.0.1:1 does not answer: ")
    assert not (tmp_path / "data").exists()


async def test_a_process_ends_when_zookeeper_has_been_silent_for_too_long(tmp_path: Path, zookeeper: str) -> None:
    async with CutLine(zookeeper) as line:
        where = f"{line.address}/cluster-{next(_names)}"
        async with Processes(tmp_path, where, 1, *SMALL, *PATIENT, "--zookeeper-patience-ms", "300") as processes:
            line.cut()
            assert await processes.all[0].ended() == 1
        last = processes.all[0].said().splitlines()[-1]
        assert last == (
            f"segstore: ZooKeeper at {where} has not answered for 0.3 s; start this process again when it does"
        )


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for one test, whose data may be wiped."""
    (tmp_path / "zookeeper").mkdir()
    with zookeeper_server(tmp_path / "zookeeper") as server:
        yield server


async def with_many_streams(processes: Processes) -> Workload:
    """A workload, after more changes of ZooKeeper than the checks for its loss cause."""
    work = Workload(processes.uri, 2)
    await work.make(4)
    async with connect(processes.uri, IMPATIENT) as client:
        for number in range(40):
            await client.controller.create_stream("a", f"more{number}", segments=1)
    return work


async def test_processes_end_when_zookeeper_has_lost_its_data_and_keep_theirs_over_a_restart(
    tmp_path: Path, own_server: ZooKeeperServer
) -> None:
    async with Processes(tmp_path, own_server.address, 2, *SMALL, *PATIENT) as processes:
        work = await with_many_streams(processes)
        async with work.running():
            pass
        await asyncio.to_thread(own_server.wipe)
        for each in processes.all:
            assert await each.ended() == 1
            last = each.said().splitlines()[-1]
            assert last.startswith(
                "segstore: the store ends: its coordination session has expired: "
                f"ZooKeeper at {own_server.address} has lost its data: its last change is 0x"
            )
        await processes.all_run()
        async with asyncio.timeout(PATIENCE_S * 2):
            assert await work.check() == sum(work.acknowledged)
        watched = Configuration(ZooKeeperCoordinator(own_server.address))
        await watched.start()
        async with asyncio.timeout(PATIENCE_S):
            await streams_are(watched, sorted(["s", *(f"more{number}" for number in range(40))]))
        await watched.aclose()


@pytest.mark.seed("57.6")
async def test_the_configuration_is_with_another_zookeeper_whose_loss_ends_no_process(
    tmp_path: Path, zookeeper: str, place: str
) -> None:
    async with CutLine(zookeeper) as line:
        other = f"{line.address}/configuration-{next(_names)}"
        watched = Configuration(ZooKeeperCoordinator(f"{zookeeper}/{other.rpartition('/')[2]}"))
        options = (*SMALL, *RECONNECT, "--configuration-zookeeper", other)
        await watched.start()
        try:
            async with Processes(tmp_path, place, 1, *options) as processes, asyncio.timeout(PATIENCE_S):
                await Workload(processes.uri, 0).make(3)
                await streams_are(watched, ["s"])
                found = await watched.stream("a", "s")
                assert found.scaling.min_segments == 3
                line.cut()
                async with connect(processes.uri, IMPATIENT) as client, client.event_writer("a", "s") as writer:
                    await client.controller.create_stream("a", "later", segments=1)
                    await writer.write(b"meanwhile")
                assert await watched.streams("a") == ["s"]
                line.heal()
                await streams_are(watched, ["later", "s"])
                assert processes.all[0].runs
            local = Configuration(ZooKeeperCoordinator(place))
            await local.start()
            assert await local.scopes() == []
            await local.aclose()
        finally:
            await watched.aclose()
        options = (*SMALL, "--configuration-zookeeper", other)
        said = await asyncio.to_thread(refused, tmp_path / "new", f"{place}-new", *options)
        assert f"and ZooKeeper at {other} knows cluster" in said


async def streams_are(configuration: Configuration, names: list[str]) -> None:
    while await configuration.streams("a") != names:  # noqa: ASYNC110  what is looked at has no event
        await asyncio.sleep(0.02)
