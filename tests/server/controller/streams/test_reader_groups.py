"""Reader groups, the state that their readers share, subscribers, and key-value tables."""

import struct
from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest

from segstore.server.cluster import MockCluster
from segstore.server.controller import Controller
from segstore.server.controller.errors import AlreadyExists, IllegalState, NotFound
from segstore.server.controller.policies import NO_ID, ReaderGroupConfig, SubscriberRetention, TableConfig
from segstore.wire import SegmentAttributeUpdated, UpdateSegmentAttribute
from segstore.wire.names import segment_name
from segstore.wire.reader_groups import GroupConfig, encode_key
from segstore.wire.reader_groups.table import (
    ASSIGNED,
    CONFIG,
    ONLY,
    UNASSIGNED,
    encode_config,
    encode_offset,
    encode_offsets,
    encode_value,
)
from tests.server.controller.conftest import World
from tests.wire.reader_groups.java import java_events

MARK = UUID("7df9a874-246c-c9d6-9397-cdd19ead68c5")
WRITER = UUID(int=7)
STREAM = segment_name("a", "_RGgroup", 0, 0)
TABLE = segment_name("a", "group_kvtable", 0, 0)
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
    assert world.controller.state.table("a", "k").config == config
    with pytest.raises(AlreadyExists):
        await world.controller.tables.create("a", "k", config)
    assert world.controller.tables.names("a", "") == (["k"], "k")
    await world.controller.tables.delete("a", "k")
    assert world.store.tables == {}
    await world.controller.tables.create("a", "k", config)
    assert [partition.number for partition in world.controller.state.table("a", "k").epoch.segments] == [2, 3]


@pytest.fixture
async def controller(grpc_runs: None) -> AsyncIterator[Controller]:
    async with MockCluster(stores=2) as cluster:
        cluster.controller.scopes.create("a")
        yield cluster.controller


async def write(controller: Controller, *events: bytes) -> int:
    """Writes events to the stream of a group; returns the offset of the first."""
    framed = [struct.pack(">ii", 0, len(event)) + event for event in events]
    offset = await controller.segments.append_events(STREAM, WRITER, framed)
    assert offset is not None
    return offset


async def test_the_stream_of_a_java_group_is_replayed(controller: Controller) -> None:
    config = ReaderGroupConfig(starting_cuts={"scope/stream": {}})
    await controller.reader_groups.create("a", "group", config)
    state = await controller.reader_groups.shared_state("a", "group")
    assert (state.kind, state.streams, state.readers, state.unassigned) == ("stream", ["scope/stream"], {}, {})
    created, added, acquired, removed = java_events()
    await write(controller, created, added)
    await write(controller, acquired)
    state = await controller.reader_groups.shared_state("a", "group")
    assert state.readers == {"reader": {"scope/stream/0.#epoch.0": 0, "scope/stream/1.#epoch.0": 0}}
    await write(controller, removed)
    state = await controller.reader_groups.shared_state("a", "group")
    assert (state.readers, state.unassigned["scope/stream/1.#epoch.0"]) == ({}, 98)


async def test_what_is_before_the_mark_or_truncated_is_not_read(controller: Controller) -> None:
    await controller.reader_groups.create("a", "group", ReaderGroupConfig())
    await write(controller, b"no update")
    start = await write(controller, *java_events()[:2])
    with pytest.raises(IllegalState, match=f"{STREAM} has an event that no reader group has"):
        await controller.reader_groups.shared_state("a", "group")
    request = UpdateSegmentAttribute(0, STREAM, MARK, start, -(1 << 63), "")
    assert isinstance(await controller.segments.ask(STREAM, "mark", request), SegmentAttributeUpdated)
    assert list((await controller.reader_groups.shared_state("a", "group")).readers) == ["reader"]
    end = await write(controller, *java_events()[:1])
    await controller.segments.truncate_segment(STREAM, end)
    assert (await controller.reader_groups.shared_state("a", "group")).readers == {}


async def test_the_table_of_a_group_is_read_in_pages(controller: Controller) -> None:
    readers = {f"reader {number}": {f"a/s/{number}.#epoch.0": number} for number in range(1_500)}
    entries = {
        encode_key(ASSIGNED, name): encode_value("offsets", encode_offsets(offsets))
        for name, offsets in readers.items()
    }
    entries[encode_key(CONFIG, ONLY)] = encode_value("config", encode_config(GroupConfig({"a/s": {}})))
    entries[encode_key(UNASSIGNED, "a/s/9.#epoch.9")] = encode_value("offset", encode_offset(5))
    await controller.segments.create_table(TABLE, 0, 0)
    names = list(entries)
    for start in range(0, len(names), 100):
        await controller.segments.update_table(TABLE, {name: entries[name] for name in names[start : start + 100]})
    state = await controller.reader_groups.shared_state("a", "group")
    assert (state.kind, state.streams, state.readers) == ("table", ["a/s"], readers)
    assert state.unassigned == {"a/s/9.#epoch.9": 5}


async def test_what_is_no_group_is_not_found(controller: Controller) -> None:
    for scope, name in (("a", "none"), ("none", "group")):
        with pytest.raises(NotFound):
            await controller.reader_groups.shared_state(scope, name)
