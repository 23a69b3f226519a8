"""PIP-57, 57.6: the configuration service holds scopes and stream policies, is cached, and no store ends without it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from segstore.client import connect
from segstore.server.cluster import MockCluster
from segstore.server.controller import ScalingPolicy, StreamConfig
from segstore.server.coordination import (
    Configuration,
    CoordinationError,
    Disconnected,
    InProcessCoordinator,
    NoConfiguration,
    OwnershipSettings,
)
from segstore.server.coordination.configuration import CONFIGURATION
from segstore.server.coordination.errors import Unreachable
from tests.server.coordination.virtual_time import run
from tests.server.support import PATIENCE_S

pytestmark = pytest.mark.seed("57.6")

TWO, THREE = (StreamConfig(scaling=ScalingPolicy(min_segments=count)) for count in (2, 3))


class World:
    """One that publishes, one that looks up, each with a session of its own."""

    def __init__(self) -> None:
        self.service = InProcessCoordinator(session_timeout_ms=3_000)
        self.publisher = Configuration(self.service)
        self.reader = Configuration(self.service)
        self.wanted: dict[str, dict[str, StreamConfig]] = {"scope": {"stream": TWO}}

    async def start(self) -> None:
        await self.publisher.start()
        await self.reader.start()
        self.publisher.publish(lambda: self.wanted)
        await self.settled()

    async def settled(self) -> None:
        self.publisher.changed()
        before = self.publisher.published
        async with asyncio.timeout(1_000):
            while self.publisher.published == before:  # noqa: ASYNC110  the time is virtual
                await asyncio.sleep(0.01)

    def session_of(self, one: Configuration) -> Any:
        assert one.session is not None
        return one.session

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(1_000):
            while not condition():  # noqa: ASYNC110  the time is virtual
                await asyncio.sleep(0.01)


def played(test: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def play() -> None:
        world = World()
        await world.start()
        await test(world)
        await world.publisher.aclose()
        await world.reader.aclose()
        world.service.close()

    def test_function() -> None:
        run(play())

    test_function.__name__ = test.__name__
    return test_function


@played
async def test_the_configuration_of_the_controller_can_be_looked_up(world: World) -> None:
    world.wanted = {"scope": {"stream": TWO, "täg/./x": THREE}, "..": {"s": TWO}, "empty": {}}
    await world.settled()
    assert sorted(await world.reader.scopes()) == ["..", "empty", "scope"]
    assert sorted(await world.reader.streams("scope")) == ["stream", "täg/./x"]
    assert await world.reader.streams("empty") == await world.reader.streams("none") == []
    assert await world.reader.stream("scope", "täg/./x") == THREE
    assert await world.reader.stream("scope", "none") is None
    world.wanted = {"scope": {"stream": THREE}}
    await world.settled()
    await asyncio.sleep(0)
    assert await world.reader.scopes() == ["scope"]
    assert await world.reader.stream("scope", "stream") == THREE


@played
async def test_a_second_look_is_answered_from_the_cache_until_the_node_changes(world: World) -> None:
    session = world.session_of(world.reader)
    asked: list[str] = []
    get = session.get

    async def counted(path: str, watch: Callable[[], None] | None = None) -> Any:
        asked.append(path)
        return await get(path, watch)

    session.get = counted
    for _ in range(3):
        assert await world.reader.stream("scope", "stream") == TWO
    assert len(asked) == 1
    world.wanted["scope"]["stream"] = THREE
    await world.settled()
    await asyncio.sleep(0)
    assert await world.reader.stream("scope", "stream") == THREE
    assert len(asked) == 2


@played
async def test_the_cache_is_dropped_when_the_connection_or_the_session_is_lost(world: World) -> None:
    await world.reader.stream("scope", "stream")
    assert world.reader.cached == 1
    session = world.session_of(world.reader)
    world.service.cut(session.session_id)
    await world.until(lambda: world.reader.cached == 0)
    with pytest.raises(Disconnected):
        await world.reader.stream("scope", "stream")
    world.service.expire(session.session_id)
    world.service.heal(session)
    await world.until(lambda: world.reader.session not in (None, session))
    assert await world.reader.stream("scope", "stream") == TWO
    world.reader.drop()
    assert world.reader.cached == 0


@played
async def test_without_a_service_another_session_is_tried_for_until_there_is_one_and_all_is_published(
    world: World,
) -> None:
    world.service.pause()
    world.service.expire(world.session_of(world.publisher).session_id)
    with pytest.raises(Unreachable):
        await world.service.connect()
    await asyncio.sleep(600)
    world.wanted = {"other": {"late": THREE}}
    world.publisher.changed()
    world.service.resume()
    before = world.publisher.published
    await world.until(lambda: world.publisher.published > before)
    assert await world.reader.scopes() == ["other"]
    assert await world.reader.stream("other", "late") == THREE


@played
async def test_a_source_that_cannot_be_read_for_a_while_is_asked_again(world: World) -> None:
    asked = 0

    def source() -> dict[str, dict[str, StreamConfig]]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise OSError(errno.EIO, "Input/output error")
        return {"scope": {"stream": THREE}}

    before = world.publisher.published
    world.publisher.publish(source)
    await world.until(lambda: world.publisher.published > before)
    assert asked == 3
    assert await world.reader.stream("scope", "stream") == THREE


@played
async def test_bytes_that_are_no_configuration_are_refused_by_name_and_replaced_by_the_controller(world: World) -> None:
    path = f"{CONFIGURATION}/scope/stream"
    await world.session_of(world.reader).set(path, b"\xff?")
    with pytest.raises(
        NoConfiguration, match=r"node /segstore/configuration/scope/stream is not a .*\\xff\?"
    ) as refused:
        await world.reader.stream("scope", "stream")
    assert refused.value.path == path
    world.service.expire(world.session_of(world.publisher).session_id)  # a new session compares with what is there
    await world.until(lambda: (node := world.service.get(path)) is not None and node.data != b"\xff?")
    await asyncio.sleep(0)
    assert await world.reader.stream("scope", "stream") == TWO


@pytest.mark.usefixtures("grpc_runs")
async def test_a_store_continues_without_its_configuration_session_and_a_new_local_one_drops_the_cache() -> None:
    settings = OwnershipSettings(session_timeout_ms=150, session_expired_policy="reconnect", takeover_delay_ms=50)
    other = InProcessCoordinator(session_timeout_ms=150)
    async with (
        MockCluster(stores=2, ownership=settings, configuration=other) as mock,
        connect(f"tcp://{mock.controller_uri}") as pravega,
        asyncio.timeout(PATIENCE_S),
    ):
        assert mock.members is not None
        configuration = mock.members.configuration
        await pravega.controller.create_scope("scope")
        await pravega.controller.create_stream("scope", "stream", segments=3)

        async def found() -> StreamConfig | None:
            while True:
                try:
                    if (config := await configuration.stream("scope", "stream")) is not None:
                        return config
                except CoordinationError:
                    pass
                await asyncio.sleep(0.01)

        config = await found()
        assert config is not None
        assert config.scaling.min_segments == 3
        other.pause()  # the whole service is away, for longer than the session may be
        assert configuration.session is not None
        other.expire(configuration.session.session_id)
        async with pravega.event_writer("scope", "stream") as writer:
            await writer.submit(b"event", routing_key="key")
        assert all(each.shutdown_reason is None and each.session is not None for each in mock.members.ownerships)
        other.resume()
        assert await found() == config
        await asyncio.sleep(0)
        assert configuration.cached
        mock.expire_session(0)
        while configuration.cached:  # noqa: ASYNC110  what is looked at has no event
            await asyncio.sleep(0.01)
    other.close()
