"""PIP-57, 57.6: the configuration service holds scopes and stream policies, and no store ends without it."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from segstore.server.controller import ScalingPolicy, StreamConfig
from segstore.server.coordination import Configuration, Disconnected, InProcessCoordinator
from segstore.server.coordination.configuration import CONFIGURATION, NoConfiguration
from segstore.server.coordination.errors import Unreachable
from tests.server.coordination.virtual_time import pass_time, played_in, until

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
        await until(lambda: self.publisher.published != before)

    def session_of(self, one: Configuration) -> Any:
        assert one.session is not None
        return one.session


@asynccontextmanager
async def publishing() -> AsyncIterator[World]:
    world = World()
    await world.start()
    yield world
    await world.publisher.aclose()
    await world.reader.aclose()
    world.service.close()


played = played_in(publishing)


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
async def test_a_lookup_needs_a_connection_and_reads_the_node_again(world: World) -> None:
    session = world.session_of(world.reader)
    world.service.cut(session.session_id)
    with pytest.raises(Disconnected):
        await world.reader.stream("scope", "stream")
    world.service.expire(session.session_id)
    world.service.heal(session)
    await until(lambda: world.reader.session not in (None, session))
    assert await world.reader.stream("scope", "stream") == TWO


@played
async def test_without_a_service_another_session_is_tried_for_until_there_is_one_and_all_is_published(
    world: World,
) -> None:
    world.service.pause()
    world.service.expire(world.session_of(world.publisher).session_id)
    with pytest.raises(Unreachable):
        await world.service.connect()
    await pass_time(600)
    world.wanted = {"other": {"late": THREE}}
    world.publisher.changed()
    world.service.resume()
    before = world.publisher.published
    await until(lambda: world.publisher.published > before)
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
    await until(lambda: world.publisher.published > before)
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
    await until(lambda: (node := world.service.get(path)) is not None and node.data != b"\xff?")
    await asyncio.sleep(0)
    assert await world.reader.stream("scope", "stream") == TWO
