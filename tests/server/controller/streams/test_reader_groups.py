"""Reader groups, subscribers, key-value tables and the times of writers."""

from __future__ import annotations

from uuid import UUID

import msgspec
import pytest

from segstore.server.controller.errors import (
    AlreadyExists,
    GenerationMismatch,
    IllegalState,
    InvalidArgument,
    InvalidName,
    InvalidStreamCut,
    NotFound,
)
from segstore.server.controller.policies import NO_ID, ReaderGroupConfig, SubscriberRetention, TableConfig
from tests.server.controller.conftest import World

SUBSCRIBER = ReaderGroupConfig(retention=SubscriberRetention.AUTOMATIC, starting_cuts={"a/s": {}})


async def test_a_group_comes_with_its_stream_and_an_id(world: World) -> None:
    await world.stream()
    config = await world.controller.reader_groups.create("a", "g", ReaderGroupConfig(generation=9))
    assert (UUID(config.group_id).version, config.generation) == (4, 0)
    assert len(await world.controller.streams.current("a", "_RGg")) == 1
    assert (await world.controller.streams.names("a", ""))[0] == ["_RGg", "s"]
    assert world.controller.reader_groups.get("a", "g") == config


async def test_making_a_group_again_gives_the_one_that_is_there(world: World) -> None:
    await world.stream()
    first = await world.controller.reader_groups.create("a", "g", ReaderGroupConfig(refresh_ms=1))
    assert await world.controller.reader_groups.create("a", "g", ReaderGroupConfig(refresh_ms=2)) == first


async def test_a_group_keeps_the_id_that_its_maker_chose(world: World) -> None:
    await world.stream()
    chosen = "12345678-1234-4234-8234-123456789abc"
    config = await world.controller.reader_groups.create("a", "g", ReaderGroupConfig(group_id=chosen))
    assert config.group_id == chosen


async def test_a_new_group_has_generation_0_whatever_the_request_has(world: World) -> None:
    await world.stream()
    asked = ReaderGroupConfig(group_id="12345678-1234-4234-8234-123456789abc", generation=7)
    assert (await world.controller.reader_groups.create("a", "g", asked)).generation == 0
    assert world.controller.reader_groups.get("a", "g").generation == 0


@pytest.mark.parametrize("name", ["", "_RGx", "a/b", "x" * 251])
async def test_a_group_with_a_name_against_the_rules_is_not_made(world: World, name: str) -> None:
    await world.stream()
    with pytest.raises(InvalidName):
        await world.controller.reader_groups.create("a", name, ReaderGroupConfig())


async def test_a_configuration_is_replaced_by_a_caller_that_knows_the_current_one(world: World) -> None:
    await world.stream()
    config = await world.controller.reader_groups.create("a", "g", ReaderGroupConfig())
    newer = msgspec.structs.replace(config, refresh_ms=5)
    assert world.controller.reader_groups.update("a", "g", newer) == 1
    with pytest.raises(GenerationMismatch):
        world.controller.reader_groups.update("a", "g", newer)
    with pytest.raises(IllegalState, match="id of reader group a/g"):
        world.controller.reader_groups.update("a", "g", msgspec.structs.replace(newer, generation=1, group_id=NO_ID))
    with pytest.raises(NotFound):
        world.controller.reader_groups.update("a", "other", newer)
    assert world.controller.reader_groups.get("a", "g").refresh_ms == 5


async def test_a_deleted_group_takes_its_stream_and_subscriptions_along(world: World) -> None:
    await world.stream()
    config = await world.controller.reader_groups.create("a", "g", SUBSCRIBER)
    assert world.controller.reader_groups.subscribers("a", "s") == ["a/g"]
    with pytest.raises(NotFound):
        await world.controller.reader_groups.delete("a", "g", NO_ID)
    await world.controller.reader_groups.delete("a", "g", config.group_id)
    assert world.controller.reader_groups.subscribers("a", "s") == []
    assert (await world.controller.streams.names("a", ""))[0] == ["s"]


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


async def test_a_group_cannot_subscribe_to_a_stream_that_is_not_there(world: World) -> None:
    await world.stream()
    with pytest.raises(NotFound):
        await world.controller.reader_groups.create(
            "a", "g", msgspec.structs.replace(SUBSCRIBER, starting_cuts={"a/nowhere": {}})
        )


async def test_a_subscriber_moves_on_and_never_back(world: World) -> None:
    await world.stream()
    group_id = (await world.controller.reader_groups.create("a", "g", SUBSCRIBER)).group_id
    move = world.controller.reader_groups.move
    move("a", "s", "a/g", group_id, 0, {0: 10})
    move("a", "s", "a/g", group_id, 0, {0: 10})
    with pytest.raises(InvalidStreamCut):
        move("a", "s", "a/g", group_id, 0, {0: 9})
    with pytest.raises(InvalidStreamCut):
        move("a", "s", "a/g", group_id, 0, {7: 9})
    with pytest.raises(GenerationMismatch):
        move("a", "s", "a/g", group_id, 1, {0: 11})
    with pytest.raises(NotFound, match="subscriber"):
        move("a", "s", "a/h", group_id, 0, {0: 11})
    with pytest.raises(NotFound, match="subscriber"):
        move("a", "s", "a/g", NO_ID, 0, {0: 11})
    with pytest.raises(NotFound, match="stream"):
        move("a", "t", "a/g", group_id, 0, {0: 11})


async def test_a_table_has_its_partitions_in_the_store(world: World) -> None:
    world.controller.scopes.create("a")
    config = TableConfig(partitions=2, primary_key_bytes=4, secondary_key_bytes=2)
    await world.controller.tables.create("a", "k", config)
    assert world.store.tables == {"a/k_kvtable/0.#epoch.0": 6, "a/k_kvtable/1.#epoch.0": 6}
    assert world.controller.tables.get("a", "k") == config
    with pytest.raises(AlreadyExists):
        await world.controller.tables.create("a", "k", config)
    assert await world.controller.tables.names("a", "") == (["k"], "k")
    await world.controller.tables.delete("a", "k")
    assert world.store.tables == {}
    await world.controller.tables.create("a", "k", config)
    assert [each.number for each in world.controller.tables.partitions("a", "k")] == [2, 3]


@pytest.mark.parametrize(
    "config", [TableConfig(0, 1), TableConfig(1, 0), TableConfig(1, 1, -1), TableConfig(1, 1, 0, -1)]
)
async def test_a_table_without_partitions_or_keys_is_not_made(world: World, config: TableConfig) -> None:
    world.controller.scopes.create("a")
    with pytest.raises(InvalidArgument):
        await world.controller.tables.create("a", "k", config)


async def test_a_table_needs_a_name_and_a_scope(world: World) -> None:
    with pytest.raises(NotFound, match="scope"):
        await world.controller.tables.create("a", "k", TableConfig(1, 1))
    world.controller.scopes.create("a")
    with pytest.raises(InvalidName):
        await world.controller.tables.create("a", "_k", TableConfig(1, 1))
    with pytest.raises(NotFound):
        await world.controller.tables.delete("a", "k")
    with pytest.raises(NotFound):
        world.controller.tables.partitions("a", "k")


async def test_neither_time_nor_position_of_a_writer_goes_back(world: World) -> None:
    await world.stream(2)
    note = world.controller.writers.note
    assert note("a", "s", "w", 100, {0: 5, 1: 5}) == "SUCCESS"
    assert note("a", "s", "w", 99, {0: 6, 1: 6}) == "INVALID_TIME"
    assert note("a", "s", "w", 100, {0: 4, 1: 6}) == "INVALID_POSITION"
    assert note("a", "s", "w", 101, {0: 5, 1: 6}) == "SUCCESS"
    world.controller.writers.remove("a", "s", "w")
    assert not world.controller.state.stream("a", "s").writers["w"].alive
    with pytest.raises(NotFound):
        world.controller.writers.remove("a", "s", "v")
