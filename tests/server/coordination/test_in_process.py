"""The coordination service in this process keeps ZooKeeper's rules: sessions, ephemeral nodes, watches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from segstore.server.coordination import (
    BadVersion,
    Disconnected,
    InProcessCoordinator,
    Node,
    NodeExists,
    NoNode,
    SessionState,
)
from segstore.server.coordination.errors import SessionExpired, Unreachable
from tests.server.coordination.virtual_time import pass_time, played_in


@asynccontextmanager
async def serving() -> AsyncIterator[InProcessCoordinator]:
    service = InProcessCoordinator(session_timeout_ms=3_000)
    yield service
    service.close()


in_virtual_time = played_in(serving)


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_node_is_made_with_those_above_it_read_changed_by_version_and_deleted(
    service: InProcessCoordinator,
) -> None:
    session = await service.connect()
    await session.create("/a/b", b"1")
    assert await session.get("/a") == Node(b"", 0, 0)
    await session.set("/a/b", b"2", 0)
    assert await session.get("/a/b") == Node(b"2", 1, 0)
    with pytest.raises(BadVersion) as stale:
        await session.set("/a/b", b"3", 0)
    assert stale.value.path == "/a/b"
    with pytest.raises(NodeExists):
        await session.create("/a/b", b"")
    await session.create("/a/c", b"")
    assert await session.children("/a") == ["b", "c"]
    await session.delete("/a/b", 1)
    assert await session.get("/a/b") is None
    with pytest.raises(NoNode):
        await session.delete("/a/b")


@in_virtual_time
async def test_an_ephemeral_node_ends_with_its_session_and_watchers_hear_of_it_once(
    service: InProcessCoordinator,
) -> None:
    owner, other = await service.connect(), await service.connect()
    await owner.create("/n", b"", ephemeral=True)
    heard: list[str] = []
    node = await other.get("/n", lambda: heard.append("node"))
    assert node.owner == owner.session_id
    await other.children("/", lambda: heard.append("children"))
    await owner.aclose()
    await asyncio.sleep(0)
    assert sorted(heard) == ["children", "node"]
    assert await other.get("/n") is None
    await other.create("/n", b"")
    await asyncio.sleep(0)
    assert len(heard) == 2


@pytest.mark.seed("57.3")
@in_virtual_time
async def test_a_disconnected_session_is_suspended_and_lost_only_when_the_service_reports_it(
    service: InProcessCoordinator,
) -> None:
    session = await service.connect()
    await session.create("/n", b"", ephemeral=True)
    heard: list[tuple[float, SessionState]] = []
    session.on_change(lambda state: heard.append((now(), state)))
    service.cut(session.session_id)
    with pytest.raises(Disconnected):
        await session.get("/n")
    await pass_time(10)
    assert session.session_id not in service.sessions
    assert heard == [(1.0, SessionState.SUSPENDED)]
    service.heal(session)
    assert heard == [(1.0, SessionState.SUSPENDED), (10.0, SessionState.LOST)]
    with pytest.raises(SessionExpired):
        await session.get("/n")


@pytest.mark.seed("57.3")
@in_virtual_time
async def test_a_session_reconnected_in_time_continues(service: InProcessCoordinator) -> None:
    session = await service.connect()
    heard: list[SessionState] = []
    session.on_change(heard.append)
    service.cut(session.session_id)
    await pass_time(2)
    service.heal(session)
    await pass_time(10)
    assert heard == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert session.session_id in service.sessions


@pytest.mark.seed("57.3")
@in_virtual_time
async def test_closed_is_final(service: InProcessCoordinator) -> None:
    session = await service.connect()
    heard: list[SessionState] = []
    session.on_change(heard.append)
    await session.aclose()
    await session.aclose()
    service.heal(session)
    await pass_time(10)
    assert heard == [SessionState.CLOSED]
    assert service.sessions == {}


@in_virtual_time
async def test_no_session_expires_while_the_service_is_paused(service: InProcessCoordinator) -> None:
    session, cut = await service.connect(), await service.connect()
    service.cut(cut.session_id)
    service.pause()
    with pytest.raises(Unreachable):
        await service.connect()
    await pass_time(60)
    assert session.state is SessionState.SUSPENDED
    service.resume()
    assert session.state is SessionState.CONNECTED
    assert cut.session_id in service.sessions
    await pass_time(3)
    assert cut.session_id not in service.sessions
    assert session.session_id in service.sessions


@in_virtual_time
async def test_a_watch_that_fires_while_disconnected_is_delivered_after_the_reconnect(
    service: InProcessCoordinator,
) -> None:
    session, other = await service.connect(), await service.connect()
    heard: list[float] = []
    await session.get("/n", lambda: heard.append(now()))
    service.cut(session.session_id)
    await other.create("/n", b"")
    await pass_time(2)
    assert heard == []
    service.heal(session)
    assert heard == [2.0]
