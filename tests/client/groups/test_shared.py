"""The state of a group in its stream: conflicts, records of something else, compaction, checkpoints that are gone."""

from __future__ import annotations

import asyncio

import pytest

from segstore.client import Client
from segstore.client.errors import NoSuchReaderGroup, ProtocolViolation
from segstore.client.groups import shared as module
from segstore.client.groups.shared import SharedGroup
from segstore.client.groups.state import Draft
from segstore.wire.reader_groups import ClearCheckpointsBefore, GroupConfig, InitialState
from segstore.wire.state_records import encode_initial
from tests.client.groups.support import fill, group

pytestmark = pytest.mark.usefixtures("grpc_runs")

FIRST = InitialState(GroupConfig({"a/s": {}}), {"a/s/0.#epoch.0": 0}, {})


def shared(pravega: Client) -> SharedGroup:
    return SharedGroup(pravega._cluster("READ"), pravega.locations(), "a", "g")


async def test_changes_that_conflict_are_decided_again(pravega: Client) -> None:
    await fill(pravega, 0, segments=2)
    async with group(pravega):
        groups = [shared(pravega) for _ in range(5)]
        await asyncio.gather(*[each.fetch() for each in groups])
        await asyncio.gather(*[each.change(lambda draft, n=n: draft.join(f"r{n}")) for n, each in enumerate(groups)])
        assert sorted((await groups[0].fetch()).readers) == [f"r{number}" for number in range(5)]
        with pytest.raises(ZeroDivisionError):
            await groups[0].change(lambda draft: draft.quit("r0", {}) or 1 / 0)
        assert "r0" in (await groups[1].fetch()).readers
        for each in groups:
            await each.aclose()
            await each.aclose()


async def test_the_first_state_is_written_once_and_a_group_without_one_does_not_exist(pravega: Client) -> None:
    await fill(pravega, 0, segments=1)
    await pravega.controller.create_stream("a", "_RGg")
    one, two = shared(pravega), shared(pravega)
    with pytest.raises(NoSuchReaderGroup, match="reader group a/g does not exist") as told:
        await one.fetch()
    assert told.value.stream == "a/_RGg"
    await one.initialise(FIRST)
    await two.initialise(FIRST._replace(starts={}))
    assert two.state.unassigned == FIRST.starts
    await asyncio.gather(one.aclose(), two.aclose())


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


async def test_a_checkpoint_that_others_forget_once_it_is_complete_is_known(pravega: Client) -> None:
    await fill(pravega, 0, segments=1)
    async with group(pravega):
        one, two = shared(pravega), shared(pravega)
        await one.fetch()

        def forget(draft: Draft) -> None:
            draft.begin_checkpoint("later")
            draft.add(ClearCheckpointsBefore("later"))

        with one.watching("c") as taken:
            await one.change(lambda draft: draft.join("r"))
            await one.change(lambda draft: draft.begin_checkpoint("c"))
            assert taken() is None
            await two.fetch()
            await two.change(lambda draft: draft.take_checkpoint("c", "r", {}))
            await two.change(forget)
            assert "c" not in (await one.fetch()).checkpoints.positions
            assert taken() == {"a/s/0.#epoch.0": 0}
        await asyncio.gather(one.aclose(), two.aclose())
