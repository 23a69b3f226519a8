"""The state of a group in its stream: the first state, records of something else, compaction."""

import asyncio

import pytest

from segstore.client import Client
from segstore.client.errors import NoSuchReaderGroup, ProtocolViolation
from segstore.client.groups import log as module
from segstore.server.cluster import MockCluster
from segstore.wire.reader_groups import GroupConfig, InitialState
from segstore.wire.revisioned import encode_initial
from tests.client.groups.support import fill, group, shared

pytestmark = pytest.mark.usefixtures("grpc_runs")

FIRST = InitialState(GroupConfig({"a/s": {}}), {"a/s/0.#epoch.0": 0}, {})


async def test_the_first_state_is_written_once_and_a_group_without_one_does_not_exist(pravega: Client) -> None:
    await fill(pravega, 0, segments=1)
    await pravega.controller.create_stream("a", "_RGg")
    one, two = shared(pravega), shared(pravega)
    with pytest.raises(NoSuchReaderGroup, match="reader group a/g does not exist") as raised:
        await one.fetch()
    assert raised.value.stream == "a/_RGg"
    await one.initialise("java", FIRST)
    await two.initialise("java", FIRST._replace(starts={}))
    assert two.state.unassigned == FIRST.starts
    await asyncio.gather(one.aclose(), two.aclose())


@pytest.mark.watched
async def test_a_first_state_that_is_refused_though_there_is_none_is_written_again(
    mock: MockCluster, pravega: Client
) -> None:
    await fill(pravega, 0, segments=1)
    await pravega.controller.create_stream("a", "_RGg")
    mock.faults.add("type = CONDITIONAL_APPEND", nth=1, do={"error": "ConditionalCheckFailed"})
    one = shared(pravega)
    await one.initialise("java", FIRST)
    assert one.state.unassigned == FIRST.starts
    await one.aclose()


@pytest.mark.parametrize("record", [b"no record", encode_initial(b"\0\xff\0\1")])
async def test_a_stream_of_something_else_is_refused(record: bytes, pravega: Client) -> None:
    await fill(pravega, 0)
    await pravega.controller.create_stream("a", "_RGg")
    async with pravega.revisioned_stream("a", "_RGg") as stream:
        await stream.write(record)
    with pytest.raises(ProtocolViolation, match=r"a/_RGg/0\.#epoch\.0 has no valid record before"):
        await group(pravega).open()


async def test_a_compacted_state_is_read_from_its_mark(pravega: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COMPACT_BYTES", 100)
    monkeypatch.setattr(module, "_COMPACT_SHARE", 1.0)
    await fill(pravega, 0, segments=3)
    async with group(pravega), pravega.revisioned_stream("a", "_RGg") as stream:
        one, late = shared(pravega), shared(pravega)
        await late.fetch()
        for number in range(5):
            await one.change(lambda draft, number=number: draft.join(f"r{number}"))
        await one.compact_if_due()
        mark = await stream.mark()
        await one.compact_if_due()
        assert await stream.mark() == mark != await stream.oldest(), "there was nothing new"
        for number in range(5):
            await one.change(lambda draft, number=number: draft.quit(f"r{number}", {}))
        await one.compact_if_due()
        assert await stream.oldest() == mark
        await late.change(lambda draft: draft.join("late"))
        assert list((await one.fetch()).readers) == ["late"]
        await asyncio.gather(one.aclose(), late.aclose())
