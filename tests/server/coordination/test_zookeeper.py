"""Sessions with a real ZooKeeper that is restarted, with and without its data."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from segstore.server.controller import StreamConfig
from segstore.server.coordination import Configuration, SessionState
from segstore.server.coordination.configuration import CONFIGURATION
from segstore.server.coordination.errors import SessionExpired
from segstore.server.coordination.zookeeper import ZooKeeperCoordinator, ZooKeeperSession
from tests.server.coordination.cut_line import CutLine
from tests.server.coordination.zookeeper_server import PART, ZooKeeperServer, zookeeper_server
from tests.server.support import PATIENCE_S

pytestmark = [pytest.mark.needs(PART), pytest.mark.timeout(300)]


_names = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with zookeeper_server(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


def at(server: ZooKeeperServer) -> ZooKeeperCoordinator:
    return ZooKeeperCoordinator(server.address, session_timeout_ms=30_000, connect_timeout_ms=30_000)


async def with_changes(server: ZooKeeperServer) -> tuple[ZooKeeperSession, str]:
    """A session that has seen more changes than the checks themselves cause, and the path of its last node."""
    session = await at(server).connect()
    for _ in range(50):
        path = f"/node-{next(_names)}"
        await session.create(path, b"")
    return session, path


async def reaches(session: ZooKeeperSession, state: SessionState) -> None:
    async with asyncio.timeout(PATIENCE_S * 2):
        while session.state is not state:  # noqa: ASYNC110  what is looked at has no event
            await asyncio.sleep(0.01)


async def test_a_session_is_lost_with_a_reason_when_the_service_has_lost_its_data(server: ZooKeeperServer) -> None:
    session, path = await with_changes(server)
    heard: list[SessionState] = []
    session.on_change(heard.append)
    seen = session.client.last_zxid
    await asyncio.to_thread(server.wipe)
    await reaches(session, SessionState.LOST)
    assert heard == [SessionState.SUSPENDED, SessionState.LOST]
    assert session.why.startswith(f"ZooKeeper at {server.address} has lost its data: its last change is 0x")
    assert session.why.endswith(f"and session {session.session_id:#x} has seen {seen:#x}")
    with pytest.raises(SessionExpired):
        await session.get(path)
    await session.aclose()
    fresh = await at(server).connect()
    assert await fresh.get(path) is None
    await fresh.aclose()


async def test_a_session_survives_a_restart_of_the_service_with_its_data(server: ZooKeeperServer) -> None:
    session, path = await with_changes(server)
    heard: list[SessionState] = []
    session.on_change(heard.append)
    await asyncio.to_thread(server.stop)
    await reaches(session, SessionState.SUSPENDED)
    await asyncio.to_thread(server.start)
    await reaches(session, SessionState.CONNECTED)
    assert heard == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert session.why == ""
    assert await session.get(path) is not None
    await session.aclose()


async def test_a_session_survives_a_server_that_ignores_its_request_to_connect_again(server: ZooKeeperServer) -> None:
    async with CutLine(server.address) as line:
        session = await ZooKeeperCoordinator(
            line.address, session_timeout_ms=60_000, connect_timeout_ms=60_000
        ).connect()
        heard: list[SessionState] = []
        session.on_change(heard.append)
        line.ignore_next()
        await reaches(session, SessionState.SUSPENDED)
        async with asyncio.timeout(50):  # kazoo gives up after the session's timeout of 60 s
            await reaches(session, SessionState.CONNECTED)
        assert (heard, line.ignored) == ([SessionState.SUSPENDED, SessionState.CONNECTED], 1)
        await session.create(f"/node-{next(_names)}", b"")
        await session.aclose()


async def test_a_configuration_is_published_again_when_its_service_has_lost_it(server: ZooKeeperServer) -> None:
    configured = {f"scope{number}": {"s": StreamConfig()} for number in range(20)}
    configuration = Configuration(at(server))
    await configuration.start()
    configuration.publish(lambda: configured)
    async with asyncio.timeout(PATIENCE_S * 2):
        while not configuration.published:  # noqa: ASYNC110  what is looked at has no event
            await asyncio.sleep(0.01)
        await asyncio.to_thread(server.wipe)
        fresh = await at(server).connect()
        while sorted(await fresh.children(CONFIGURATION)) != sorted(configured):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await fresh.aclose()
    await configuration.aclose()
