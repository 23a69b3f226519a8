"""PIP-57 with a real ZooKeeper: sessions that are cut for longer than their timeout, or ended by their id."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import count, islice
from typing import Any
from uuid import uuid4

import pytest

from segstore.client import connect
from segstore.server.cluster import MockCluster
from segstore.server.controller import StreamConfig
from segstore.server.coordination import (
    BadVersion,
    CoordinationSession,
    Coordinator,
    Disconnected,
    Node,
    NodeExists,
    NoNode,
    OwnershipSettings,
    SessionState,
    SharedContainers,
    container_path,
)
from segstore.server.coordination.errors import SessionExpired, Unreachable
from segstore.server.coordination.placement import store_path
from segstore.server.coordination.zookeeper import ZooKeeperCoordinator, ZooKeeperSession
from segstore.wire.names import container_of
from tests.official.client import ClientFailed, OfficialClient, run
from tests.official.support import uri
from tests.server.coordination.cut_line import CutLine
from tests.server.coordination.stores import Store
from tests.server.coordination.zookeeper_server import PART, end_session
from tests.server.support import PATIENCE_S

pytestmark = [pytest.mark.needs(PART), pytest.mark.usefixtures("grpc_runs"), pytest.mark.timeout(300)]

LASTING_MS = 30_000.0
"""Of a session that only its id ends: no machine stands still for so long."""
BRIEF_MS = 3_000.0
"""Of one whose line is cut until it is over."""
RECONNECT = OwnershipSettings(
    session_timeout_ms=LASTING_MS, session_expired_policy="reconnect", takeover_delay_ms=50, load_report_interval_ms=200
)
SHUTDOWN = RECONNECT.model_copy(update={"session_expired_policy": "shutdown"})


@pytest.fixture
def below() -> str:
    """A part of the tree that is this test's alone."""
    return f"/{uuid4()}"


def at(address: str, below: str = "", session_ms: float = LASTING_MS) -> ZooKeeperCoordinator:
    return ZooKeeperCoordinator(address + below, session_timeout_ms=session_ms)


class InTurn:
    """A coordinator that gives the sessions of several, in turn; the last one gives all that follow."""

    def __init__(self, *coordinators: Coordinator) -> None:
        self._coordinators = list(coordinators)

    async def connect(self) -> CoordinationSession:
        first = self._coordinators[0]
        if len(self._coordinators) > 1:
            del self._coordinators[0]
        return await first.connect()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S * 2):
        while not condition():  # noqa: ASYNC110  what is looked at has no event
            await asyncio.sleep(0.01)


async def end(zookeeper: str, session: CoordinationSession | None) -> None:
    """Ends a session as its service sees it; who holds it hears of it from the service."""
    assert isinstance(session, ZooKeeperSession)
    session_id, password = session.client.client_id
    await end_session(zookeeper, session_id, password)


def shares(mock: MockCluster) -> list[set[int]]:
    return [set(store.store.containers) for store in mock.stores]


def session_of(mock: MockCluster, number: int) -> CoordinationSession | None:
    return mock.members.ownerships[number].session


@pytest.mark.seed("57.6")
async def test_nodes_are_made_read_changed_by_version_watched_and_deleted(zookeeper: str, below: str) -> None:
    session, other = await at(zookeeper, below).connect(), await at(zookeeper, below).connect()
    heard: list[str] = []
    assert await other.get("/a/b", lambda: heard.append("made")) is None
    assert await other.children("/a", lambda: heard.append("children")) == []
    await session.create("/a/b", b"1", ephemeral=True)
    assert await other.get("/a/b") == Node(b"1", 0, session.session_id)
    assert await other.get("/a") == Node(b"", 0, 0)
    await until(lambda: sorted(heard) == ["children", "made"])
    await other.set("/a/b", b"2", 0)
    with pytest.raises(BadVersion) as stale:
        await other.delete("/a/b", 0)
    assert stale.value.path == "/a/b"
    with pytest.raises(NodeExists):
        await other.create("/a/b", b"")
    with pytest.raises(NoNode):
        await other.set("/a/c", b"")
    await other.get("/a/b", lambda: heard.append("gone"))
    await session.aclose()
    await session.aclose()
    await until(lambda: "gone" in heard)
    assert await other.children("/a") == []
    await other.get("/a/b", lambda: heard.append("over"))
    await other.aclose()
    await asyncio.sleep(0)
    assert heard.count("over") == 1
    with pytest.raises(SessionExpired):
        await other.get("/a")


@pytest.mark.seed("57.3")
async def test_a_session_whose_line_is_cut_is_suspended_and_lost_only_by_the_services_word(
    zookeeper: str, below: str
) -> None:
    async with CutLine(zookeeper) as line:
        other = await at(zookeeper, below).connect()
        session = await at(line.address, below, BRIEF_MS).connect()
        states: list[SessionState] = []
        session.on_change(states.append)
        await session.create("/n", b"", ephemeral=True)
        first = session.session_id
        line.cut()
        await until(lambda: bool(states))
        with pytest.raises(Disconnected, match="no connection to ZooKeeper at 127"):
            await session.get("/n")
        line.heal()
        await until(lambda: session.state is SessionState.CONNECTED)
        gone = asyncio.Event()
        node = await other.get("/n", gone.set)
        assert node.owner == first
        line.cut()
        await gone.wait()  # the service has ended it; its holder cannot know
        assert session.state is SessionState.SUSPENDED
        line.heal()
        await until(lambda: session.state is SessionState.LOST)
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST]
        assert session.session_id == first
        with pytest.raises(SessionExpired):
            await session.create("/n", b"", ephemeral=True)
        await session.aclose()
        assert states[-1] is session.state is SessionState.CLOSED
        assert await other.get("/n") is None
        await other.aclose()


async def test_a_service_that_is_not_there_is_named_and_a_cancelled_start_leaves_nothing(zookeeper: str) -> None:
    for hosts, said in {
        "127.0.0.1:1": "ZooKeeper at 127.0.0.1:1 does not answer: .*refused",
        "nowhere.invalid:1": "ZooKeeper at nowhere.invalid:1 does not answer: no such name is known",
        "a:b:c": "'a:b:c' is not the address of a ZooKeeper",
    }.items():
        with pytest.raises(Unreachable, match=said):
            await ZooKeeperCoordinator(hosts, connect_timeout_ms=200).connect()
    with pytest.raises(Unreachable, match=r"ZooKeeper at 127\.0\.0\.1:1 does not answer"):
        await MockCluster(
            watched=False, stores=2, coordinator=ZooKeeperCoordinator("127.0.0.1:1", connect_timeout_ms=200)
        ).start()
    async with CutLine(zookeeper) as line:
        line.cut()
        with pytest.raises(Unreachable, match=r"it gave no session within 0\.2 s"):
            await ZooKeeperCoordinator(line.address, connect_timeout_ms=200).connect()
        starting = asyncio.create_task(at(line.address).connect())
        await asyncio.sleep(0.02)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        line.heal()
        session = await at(line.address).connect()
        line.cut()
        await session.aclose()  # without a line to say farewell on
        assert session.state is SessionState.CLOSED


@asynccontextmanager
async def store(
    coordinator: Coordinator, name: str, storage: SharedContainers, **settings: object
) -> AsyncIterator[Store]:
    """A store without sockets."""
    made = Store(name, coordinator, storage, 4, **{**RECONNECT.model_dump(), "rebalance": False, **settings})
    await made.ownership.start(range(4))
    try:
        yield made
    finally:
        await made.ownership.stop()


@pytest.mark.seed("57.4")
@pytest.mark.parametrize("stale_node", ["wait", "replace"])
async def test_the_node_of_an_older_session_of_ours_is_waited_for_or_replaced(
    zookeeper: str, below: str, stale_node: str
) -> None:
    older = await at(zookeeper, below).connect()
    await older.create(container_path(0), b"first", ephemeral=True)
    async with store(at(zookeeper, below), "first", SharedContainers(), stale_node=stale_node) as first:
        await until(lambda: first.serves >= {1, 2, 3})
        if stale_node == "wait":
            assert 0 not in first.serves
            await older.aclose()
        await until(lambda: len(first.serves) == 4)
        node = await first.ownership.session.get(container_path(0))
        assert node.owner == first.ownership.session.session_id
    await older.aclose()


@pytest.mark.seed("57.2")
@pytest.mark.seed("57.4")
async def test_with_reconnect_a_store_owns_again_from_memory_and_lets_go_what_another_has(
    zookeeper: str, below: str
) -> None:
    storage = SharedContainers()
    stranger = await at(zookeeper, below).connect()
    async with store(at(zookeeper, below), "first", storage) as first:
        await until(lambda: len(first.serves) == 4)
        kept, old = first.store.containers[1], first.ownership.session
        await end(zookeeper, old)
        await until(lambda: first.ownership.session not in (None, old))
        await until(lambda: first.serves >= {1, 2, 3})
        assert first.store.containers[1] is kept
        await until(lambda: len(first.serves) == 4)
        node = await stranger.get(container_path(0))
        gone = asyncio.Event()
        assert await stranger.get(container_path(0), gone.set) == node
        first.ownership.give_up(0)
        await gone.wait()
        await stranger.create(container_path(0), b"stranger", ephemeral=True)
        await until(lambda: first.serves == {1, 2, 3})
        assert not first.epoch_of(0)
        assert first.reasons == []
    await stranger.aclose()


@pytest.mark.seed("57.2")
async def test_a_store_that_gets_no_new_session_ends_and_says_where_it_asked(zookeeper: str, below: str) -> None:
    nowhere = ZooKeeperCoordinator("127.0.0.1:1", connect_timeout_ms=100)
    coordinator = InTurn(at(zookeeper, below), nowhere)
    async with store(coordinator, "first", SharedContainers(), session_reconnect_retries=2) as first:
        await until(lambda: len(first.serves) == 4)
        await end(zookeeper, first.ownership.session)
        await until(lambda: bool(first.reasons))
        assert first.reasons[0].startswith(
            "its coordination session has expired and there is no new one: ZooKeeper at 127.0.0.1:1 does not answer"
        )
        assert first.serves == set()


@pytest.mark.seed("57.6")
async def test_strange_nodes_are_named_and_end_no_store(
    zookeeper: str, below: str, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = await at(zookeeper, below).connect()
    await stranger.create(container_path(3), b"\xffstrange")
    await stranger.create(store_path("x"), b"\xff")
    async with store(at(zookeeper, below), "first", SharedContainers(), rebalance=True) as first:
        await until(lambda: first.serves == {0, 1, 2})
        await until(lambda: "node /segstore/stores/x is not a load report" in caplog.text)
        assert "container 3 cannot be owned: node /segstore/containers/3 belongs to no session" in caplog.text
        await stranger.delete(container_path(3))
        await until(lambda: len(first.serves) == 4)
        assert first.reasons == []
    await stranger.aclose()


@pytest.mark.seed("57.1")
async def test_with_shutdown_a_store_ends_and_the_other_takes_its_containers(zookeeper: str, below: str) -> None:
    async with MockCluster(watched=False, stores=2, ownership=SHUTDOWN, coordinator=at(zookeeper, below)) as mock:
        await until(lambda: [len(share) for share in shares(mock)] == [2, 2])
        await end(zookeeper, session_of(mock, 0))
        await until(lambda: shares(mock) == [set(), {0, 1, 2, 3}])
        await mock.start_store(0)
        await until(lambda: [len(share) for share in shares(mock)] == [2, 2])
        await mock.move(1, to=0)
        assert 1 in shares(mock)[0]


@pytest.mark.seed("57.6")
async def test_the_configuration_may_be_with_another_service_whose_session_no_store_needs(
    zookeeper: str, below: str
) -> None:
    async with (
        CutLine(zookeeper) as line,
        MockCluster(
            stores=2,
            ownership=RECONNECT,
            coordinator=at(zookeeper, below),
            configuration=at(line.address, f"{below}-configuration"),
        ) as mock,
    ):
        await make_stream(mock, "stream", 3)
        configuration = mock.members.configuration
        await until(lambda: configuration.published > 0 and configuration.session is not None)
        sessions, owned = [session_of(mock, number) for number in range(2)], shares(mock)
        found: StreamConfig | None = None
        async with asyncio.timeout(PATIENCE_S):
            while (found := await configuration.stream("scope", "stream")) is None:  # noqa: ASYNC110  it is in another service
                await asyncio.sleep(0.01)  # what comes from a cache gives nobody else a turn
        assert found.scaling.min_segments == 3
        old = configuration.session
        await end(zookeeper, old)
        line.cut()
        await until(lambda: old.state is not SessionState.CONNECTED)
        await make_stream(mock, "later", 2)
        line.heal()
        await until(lambda: configuration.session not in (None, old))
        async with asyncio.timeout(PATIENCE_S):
            while "later" not in await configuration.streams("scope"):  # noqa: ASYNC110  it is in another service
                await asyncio.sleep(0.01)
        assert [session_of(mock, number) for number in range(2)] == sessions
        assert shares(mock) == owned


async def disturb(mock: MockCluster, zookeeper: str, line: CutLine, turn: int) -> None:
    """What happens to three stores in the middle of writing: the line of the first is cut, or a session is ended."""
    if turn == 0:
        line.cut()
        await until(lambda: not shares(mock)[0])  # the others have taken all that it had
        line.heal()
        await until(lambda: all(len(share) == 2 for share in shares(mock)))
    else:
        await end(zookeeper, session_of(mock, turn - 1))
        await until(lambda: set().union(*shares(mock)) == set(range(6)))


PANICS = ("create table: OperationError", "Fetch updates failed after all retries", "rust future panicked")


def groups_on(container: int) -> Iterator[str]:
    """Reader groups whose tables lie there."""
    names = (f"g{number}" for number in count())
    return (name for name in names if container_of(f"scope/{name}_kvtable/0.#epoch.0", 6) == container)


async def read_all(mock: MockCluster, what: dict[str, Any], container: int) -> Any:
    """What a reader of the official client reads; another begins, from the head, when its group's table has moved.

    The client panics then, for it looks for the table but once. It lies in that container, which stores may give to
    each other when they share containers out anew.
    """
    for group in islice(groups_on(container), 6):  # which is a few times, not for ever
        try:
            return await run(uri(mock), "events.read", **what, group=group)
        except ClientFailed as error:
            if not any(panic in str(error) for panic in PANICS):
                raise
    raise AssertionError("six readers in turn lost the table of their group")


async def make_stream(mock: MockCluster, stream: str, segments: int) -> None:
    """Creates a stream; asks again while its containers move from one store to another."""
    async with connect(f"tcp://{mock.controller_uri}") as pravega:
        await pravega.controller.create_scope("scope")
        await pravega.controller.create_stream("scope", stream, segments=segments)


@asynccontextmanager
async def three_stores(zookeeper: str, below: str) -> AsyncIterator[tuple[MockCluster, CutLine]]:
    """The first of them has its session over a line that can be cut."""
    straight = at(zookeeper, below)
    async with CutLine(zookeeper) as line:
        coordinator = InTurn(at(line.address, below, BRIEF_MS), straight)
        async with MockCluster(
            stores=3, containers=6, ownership=RECONNECT, coordinator=coordinator, configuration=straight
        ) as mock:
            yield mock, line


@pytest.mark.seed("57.7")
@pytest.mark.seed("57.8")
async def test_this_client_writes_and_reads_all_in_order_while_sessions_expire(zookeeper: str, below: str) -> None:
    async with (
        three_stores(zookeeper, below) as (mock, line),
        connect(f"tcp://{mock.controller_uri}") as pravega,
        asyncio.timeout(PATIENCE_S * 3),
    ):
        await make_stream(mock, "stream", 4)
        counts: list[int] = []
        async with pravega.event_writer("scope", "stream") as writer:
            for turn in range(3):
                disturbed = asyncio.create_task(disturb(mock, zookeeper, line, turn))
                number = 0
                while not disturbed.done() or number < 100:
                    await writer.submit(b"%d %d" % (turn, number), routing_key=str(number % 5))
                    number += 1
                    await asyncio.sleep(0.005)
                await disturbed
                await writer.submit(b"end %d" % turn, routing_key=f"end {turn}")
                counts.append(number)
        read: dict[int, list[tuple[int, int]]] = {key: [] for key in range(5)}
        left = sum(counts) + 3
        async with pravega.event_reader("scope", "stream", from_="head") as events:
            async for event in events:
                left -= 1
                words = bytes(event.data).split()
                if words[0] != b"end":
                    read[int(words[1]) % 5].append((int(words[0]), int(words[1])))
                if left == 0:
                    break
        assert read == {
            key: [(turn, number) for turn in range(3) for number in range(key, counts[turn], 5)] for key in range(5)
        }


@pytest.mark.seed("57.7")
@pytest.mark.seed("57.8")
@pytest.mark.needs("pravega, the official client")
async def test_the_official_client_writes_and_reads_all_in_order_while_sessions_expire(
    zookeeper: str, below: str
) -> None:
    keys, per_key = 20, 120
    async with three_stores(zookeeper, below) as (mock, line):
        await make_stream(mock, "stream", 4)
        what = {"scope": "scope", "stream": "stream", "keys": keys, "per_key": per_key}
        async with (
            OfficialClient(uri(mock), "events.write", **what, in_flight=50, pauses=3) as writer,
            asyncio.TaskGroup() as tasks,
        ):
            await writer.said("writing")
            reading = tasks.create_task(read_all(mock, what, 2))
            for turn in range(3):
                await writer.said("paused")
                disturbed = asyncio.create_task(disturb(mock, zookeeper, line, turn))
                writer.go_on()
                await disturbed
            await writer.result()
            assert await reading == {"events": keys * per_key, "wrong": [], "problem": ""}
        late = await read_all(mock, what, 0)
        assert late == {"events": keys * per_key, "wrong": [], "problem": ""}
