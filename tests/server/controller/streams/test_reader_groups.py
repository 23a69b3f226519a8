"""Reader groups, subscribers, key-value tables and the times of writers."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from segstore.server.controller.errors import AlreadyExists, NotFound
from segstore.server.controller.policies import NO_ID, ReaderGroupConfig, SubscriberRetention, TableConfig
from tests.server.controller.conftest import World

SUBSCRIBER = ReaderGroupConfig(retention=SubscriberRetention.AUTOMATIC, starting_cuts={"a/s": {}})


async def test_a_group_comes_with_its_stream_and_an_id(world: World) -> None:
    await world.stream()
    config = await world.controller.reader_groups.create("a", "g", ReaderGroupConfig(generation=9))
    assert (UUID(config.group_id).version, config.generation) == (4, 0)
    assert len(await world.controller.streams.current("a", "_RGg")) == 1
    assert world.controller.streams.names("a", "")[0] == ["_RGg", "s"]
    assert world.controller.reader_groups.get("a", "g") == config


async def test_a_deleted_group_takes_its_stream_and_subscriptions_along(world: World) -> None:
    await world.stream()
    config = await world.controller.reader_groups.create("a", "g", SUBSCRIBER)
    assert world.controller.reader_groups.subscribers("a", "s") == ["a/g"]
    with pytest.raises(NotFound):
        await world.controller.reader_groups.delete("a", "g", NO_ID)
    await world.controller.reader_groups.delete("a", "g", config.group_id)
    assert world.controller.reader_groups.subscribers("a", "s") == []
    assert world.controller.streams.names("a", "")[0] == ["s"]


async def test_subscriptions_follow_the_configuration(world: World) -> None:
    await world.stream()
    await world.stream(name="t")
    config = await world.controller.reader_groups.create("a", "g", SUBSCRIBER)
    moved = msgspec.structs.replace(config, starting_cuts={"a/t": {}})
    world.controller.reader_groups.update("a", "g", moved)
    assert world.controller.reader_groups.subscribers("a", "s") == []
    assert world.controller.reader_groups.subscribers("a", "t") == ["a/g"]
    silent = msgspec.structs.replace(moved, generation=1, retention=SubscriberRetention.NONE)
    world.controller.reader_groups.update("a", "g", silent)
    assert world.controller.reader_groups.subscribers("a", "t") == []


async def test_a_table_has_its_partitions_in_the_store(world: World) -> None:
    world.controller.scopes.create("a")
    config = TableConfig(partitions=2, primary_key_bytes=4, secondary_key_bytes=2)
    await world.controller.tables.create("a", "k", config)
    assert world.store.tables == {"a/k_kvtable/0.#epoch.0": 6, "a/k_kvtable/1.#epoch.0": 6}
    assert world.controller.tables.get("a", "k") == config
    with pytest.raises(AlreadyExists):
        await world.controller.tables.create("a", "k", config)
    assert world.controller.tables.names("a", "") == (["k"], "k")
    await world.controller.tables.delete("a", "k")
    assert world.store.tables == {}
    await world.controller.tables.create("a", "k", config)
    assert [partition.number for partition in world.controller.tables.partitions("a", "k")] == [2, 3]
