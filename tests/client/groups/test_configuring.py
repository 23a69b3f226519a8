"""The configuration of a group: resets, ends, retention, and replacements that another client did not finish."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from segstore.client import CutError, GroupEvent, GroupReader, RetentionPolicy, SegmentEnded, StreamCut, connect
from segstore.client.client import Client
from segstore.client.controller import Controller
from segstore.client.errors import ConditionFailed, NoSuchReaderGroup, ReaderOffline, RequestRejected
from segstore.client.groups import GroupChange, GroupEnd, GroupStart
from segstore.client.groups.configuring import initial_state, renew
from segstore.client.groups.shared import SharedGroup
from segstore.server.cluster import MockCluster
from segstore.wire.reader_groups import GroupConfig, InitialState, RemoveReader, UpdatingConfig
from segstore.wire.reader_groups.updates import decode_config, decode_kind, decode_update
from tests.client.groups.support import fill, group
from tests.client.groups.test_group import numbers, take
from tests.client.groups.test_group import until as until_read
from tests.client.segments import FAST_RETRY
from tests.client.support import settings, until
from tests.wire.reader_groups.java import java_configs, java_updates

pytestmark = pytest.mark.usefixtures("grpc_runs")

FIRST = "a/s/0.#epoch.0"


async def made(pravega: Client, config: GroupConfig, name: str = "g") -> None:
    """Creates a group as a client in Java does."""
    held = await pravega.controller.create_reader_group("a", name, config._replace(id=uuid4()))
    shared = SharedGroup(pravega._cluster("READ"), pravega.locations(), "a", name)
    await shared.initialise("java", await initial_state(pravega.controller, held))
    await shared.aclose()


async def test_a_group_is_reset_to_its_last_checkpoint_a_cut_and_its_start(pravega: Client) -> None:
    await fill(pravega, 30, segments=1)
    async with group(pravega) as shared:
        reader = shared.reader("r")
        await reader.open()
        first = await take(reader, 10)
        checkpoint = asyncio.ensure_future(shared.checkpoint())
        await until(lambda: bool(reader._wanted))
        second = await take(reader, 1)
        await checkpoint
        await take(reader, 5)
        await shared.reset()
        with pytest.raises(ReaderOffline):
            await take(reader, 20)
        await reader.aclose()
        assert (await shared.config()).generation == 1
        assert await shared.cuts() == (await checkpoint).cuts
        async with shared.reader("r") as again:
            assert await take(again, 1) == second
        await shared.reset({"s": {0: first[3].offset}})
        async with shared.reader("r") as again:
            assert await take(again, 1) == [first[3]]
        await shared.reset("head")
        assert (await shared.cuts())["a/s"] == {0: 0}
        assert await pravega.controller.reader_group_config("a", "g") == await shared.config()


async def test_a_group_without_a_checkpoint_is_reset_to_its_start(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    async with group(pravega) as shared:
        async with shared.reader("r") as reader:
            await take(reader, 5)
        await shared.reset()
        assert (await shared.cuts())["a/s"] == {0: 0}


async def test_a_replacement_that_another_client_did_not_finish_is_finished_by_a_reader(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    async with group(pravega) as shared, shared.reader("r") as reader:
        first = await take(reader, 4)
        config = await shared.config()
        later = config._replace(starts={"a/s": {0: first[2].offset}})
        await shared._shared.change(lambda draft: draft.add(UpdatingConfig(True)))
        assert await pravega.controller.update_reader_group("a", "g", later) == 1
        with pytest.raises(ReaderOffline):
            await take(reader, 10)
        assert (await shared.config(), await shared.readers()) == (later._replace(generation=1), [])
        before = await shared._shared.fetch()
        await renew(pravega._cluster("READ"), shared._shared)
        assert await shared._shared.fetch() is before, "it is the newest"
        async with shared.reader("r") as again:
            assert await take(again, 1) == [first[2]]


async def test_a_reset_that_loses_against_another_is_made_after_it(
    pravega: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(pravega, 10, segments=1)
    update, asked = Controller.update_reader_group, 0

    async def late(self: Controller, scope: str, name: str, config: GroupConfig) -> int:
        nonlocal asked
        asked += 1
        if asked == 1:  # another client's
            await update(self, scope, name, config)
        return await update(self, scope, name, config)

    async with group(pravega) as shared:
        monkeypatch.setattr(Controller, "update_reader_group", late)
        await shared.reset({"s": {0: 0}})
        assert (asked, (await shared.config()).generation) == (2, 2)


async def test_readers_stop_at_the_end_that_a_group_was_created_with(pravega: Client) -> None:
    await fill(pravega, 20, segments=2)
    async with group(pravega, "half") as half:
        async with half.reader("r") as reader:
            before = await take(reader, 7)
        end = (await half.cuts())["a/s"]
    assert min(end.values()) == 0
    changes: list[GroupChange] = []
    async with group(pravega, to={"s": end}) as shared:
        assert (await shared.metrics()).unread_bytes == sum(end.values())
        async with shared.reader("r", listener=changes.append) as reader:
            got = [event async for event in reader]
            assert numbers(got) == numbers(before)
            assert await reader.read() is None
            assert (await shared.checkpoint()).cuts["a/s"] == end, "readers that are done take checkpoints"
        assert (await shared.metrics()).unread_bytes == 0
        assert await pravega.controller.reader_group_config("a", "g") == await shared.config()
        assert (await shared.config()).ends == {"a/s": end}
    assert sorted(change for change in changes if isinstance(change, SegmentEnded)) == [
        SegmentEnded(FIRST, ()),
        SegmentEnded("a/s/1.#epoch.0", ()),
    ]


async def test_cuts_have_the_ends_of_segments_that_were_read_to_them(pravega: Client) -> None:
    """A group that starts at such a cut would otherwise miss what is behind them."""
    await fill(pravega, 20, segments=2)
    await pravega.controller.scale("a", "s", [1], [(0.5, 0.75), (0.75, 1.0)], wait_ms=10_000)
    await fill(pravega, 20, start=20)
    changes: dict[str, list[GroupChange]] = {"r": []}
    async with group(pravega, to="tail") as shared:
        assert (await shared.cuts())["a/s"].keys() == {0, 1}, "the end is not begun"
        end = (await shared.config()).ends["a/s"]
        reader = shared.reader("r", listener=changes["r"].append)
        await reader.open()
        before: list[GroupEvent] = []
        while not any(change.segment == FIRST for change in changes["r"] if isinstance(change, SegmentEnded)):
            before += await take(reader, 1)
            await asyncio.sleep(0.005)
        checkpoint = asyncio.ensure_future(shared.checkpoint())
        await until(lambda: bool(reader._wanted))
        before += await take(reader, 1)
        cut = (await checkpoint).cuts["a/s"]
        await reader.aclose()
        assert len(before) < 40
        assert cut[0] == end[0]
        assert (await shared.cuts())["a/s"][0] == end[0]
        await shared.reset()
        assert (await shared.config()).starts["a/s"][0] == end[0]
    await fill(pravega, 20, start=40)
    async with group(pravega, "later", from_={"s": cut}) as later, later.reader("r") as reader:
        assert {*range(40, 60)} <= {*numbers(await take(reader, 61 - len(before)))}


async def test_a_group_that_ends_at_the_tail_is_reset_to_the_tail_of_later(pravega: Client) -> None:
    await fill(pravega, 20, segments=1)
    async with group(pravega, to="tail") as shared:
        await fill(pravega, 20, start=20)
        await pravega.controller.scale("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)], wait_ms=10_000)
        await fill(pravega, 20, start=40)
        async with shared.reader("r") as reader:
            assert numbers([event async for event in reader]) == list(range(20))
            await shared.checkpoint()
        end = (await shared.config()).ends
        await shared.reset()
        assert (await shared.config()).starts == end, "everything was read before the last checkpoint"
        await shared.reset(end, to="tail")
        await fill(pravega, 20, start=60)
        assert next(segment.unread_bytes for segment in (await shared.metrics()).segments) > 0
        async with shared.reader("r") as reader:
            assert numbers([event async for event in reader]) == list(range(20, 60))
        await shared.reset("head", to={})
        assert (await shared.config()).ends == {}
        async with shared.reader("r") as reader:
            assert numbers(await take(reader, 80)) == list(range(80))


async def test_a_segment_that_a_reader_in_java_keeps_at_the_end_of_the_group_is_read(pravega: Client) -> None:
    """Such a reader completes only segments that are sealed; its checkpoints have the end as its position."""
    await fill(pravega, 20, segments=2)
    async with group(pravega, to="tail") as shared:
        ends = {lag.segment: lag.end for lag in (await shared.metrics()).segments}
        await shared._shared.change(lambda draft: (draft.join("java"), draft.acquire("java", 1)))
        async with shared.reader("r") as reader:
            reading = asyncio.ensure_future(take(reader, 21))
            await until(lambda: reader._ahead.came.is_set() or not reader._positions)
            assert not reading.done(), "the other segment is not read"
            reading.cancel()
            await shared._shared.change(lambda draft: draft.record("java", ends))
            async with asyncio.timeout(60):
                assert [event async for event in reader] == []
        assert (await shared.metrics()).readers == {"java": 1}


async def test_the_tail_of_a_sealed_stream_is_its_end(pravega: Client) -> None:
    await fill(pravega, 10, segments=2)
    await pravega.controller.scale("a", "s", [1], [(0.5, 0.75), (0.75, 1.0)], wait_ms=10_000)
    await fill(pravega, 10, start=10)
    await pravega.controller.seal_stream("a", "s")
    async with group(pravega, from_="tail") as shared, shared.reader("r") as reader:
        assert await reader.read() is None
    async with group(pravega, "all", to="tail") as shared:
        async with shared.reader("r") as reader:
            assert numbers([event async for event in reader]) == list(range(20))
        await shared.reset((await shared.config()).ends, to="tail")
        async with shared.reader("r") as reader:
            assert await reader.read() is None


async def test_a_group_that_has_read_sealed_streams_is_not_reset_to_its_last_checkpoint(pravega: Client) -> None:
    await fill(pravega, 5, segments=1)
    await pravega.controller.seal_stream("a", "s")
    async with group(pravega) as shared:
        async with shared.reader("r") as reader:
            assert len([event async for event in reader]) == 5
            await shared.checkpoint()
        with pytest.raises(ConditionFailed, match="read to their ends before its last checkpoint"):
            await shared.reset()
        assert not (await shared._shared.fetch()).updating
        await shared.reset("head")
        async with shared.reader("r") as reader:
            assert len([event async for event in reader]) == 5


NO_ENDS: list[tuple[GroupStart, GroupEnd, str]] = [
    ({"s": {0: 26}}, {"s": {0: 13}}, "before its start"),
    ("head", {"s": {0: 10_000}}, "behind the end of a/s/0.#epoch.0"),
    ("head", {"s": {7: 0}}, "no cut of a/s"),
    ("head", {"s": StreamCut("a", "other", {0: 0})}, "a cut of a/other, not of a/s"),
]


async def test_an_end_that_a_group_cannot_have_is_refused(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    async with group(pravega, "there") as there:
        for from_, to, why in NO_ENDS:
            with pytest.raises(CutError, match=why):
                await group(pravega, from_=from_, to=to).open()
            with pytest.raises(CutError, match=why):
                await there.reset(from_, to=to)
        assert (await there.config()).generation == 0
    with pytest.raises(NoSuchReaderGroup):
        await group(pravega, streams=()).open()


UNCOVERED = [
    ({0: 0}, "no segment has the keys from 0.5 to 1.0"),
    ({0: 0, 1: 0, (1 << 32) + 2: 0}, "a/s/0.#epoch.0 and a/s/2.#epoch.1 share keys, and neither is at its end"),
    ({1: 0, (1 << 32) + 2: 0}, "no segment has the keys from 0.25 to 0.5"),
    ({0: 0, 7: 0}, "a/s/7.#epoch.0 was never one of its segments"),
    ({0: 0, (7 << 32) + 1: 0}, "a/s/1.#epoch.7 was never one of its segments"),
]


async def test_a_cut_that_does_not_cover_each_key_once_is_refused(pravega: Client) -> None:
    await fill(pravega, 10, segments=2)
    await pravega.controller.scale("a", "s", [0], [(0.0, 0.25), (0.25, 0.5)], wait_ms=10_000)
    async with group(pravega, "there") as there:
        for cut, why in UNCOVERED:
            for use in (
                group(pravega, from_={"s": cut}).open,
                group(pravega, from_={"s": cut}, shared_with="rust").open,
                group(pravega, to={"s": cut}).open,
                partial(there.reset, {"s": cut}),
                partial(there.reset, "head", to={"s": cut}),
                pravega.event_reader("a", "s", from_=cut).open,
                partial(pravega.event_ranges, "a", "s", from_=cut),
            ):
                with pytest.raises(CutError, match=rf"^\{{.*\}} is no cut of a/s: .*{why}"):
                    await use()
        assert (await there.config()).generation == 0
    with pytest.raises(NoSuchReaderGroup):
        await group(pravega, streams=()).open()


async def test_an_end_in_segments_that_were_truncated_is_refused(pravega: Client, mock: MockCluster) -> None:
    """Its readers would start behind it, and not end."""
    await fill(pravega, 20, segments=1)
    async with group(pravega, "half") as half, half.reader("r") as reader:
        end = {0: (await take(reader, 10))[-1].offset}
    await pravega.controller.scale("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)], wait_ms=10_000)
    head = {segment.segment_id: 0 for segment in await pravega.controller.current_segments("a", "s")}
    await pravega.controller.truncate_stream("a", "s", head)
    async with connect(f"tcp://{mock.controller_uri}", settings(retry=FAST_RETRY)) as hasty:
        with pytest.raises(CutError, match="behind the start"):
            await group(hasty, to={"s": end}).open()


async def test_arguments_that_no_end_has_are_refused(pravega: Client) -> None:
    wrong: Any = "head"
    with pytest.raises(ValueError, match="must end at 'tail' or a cut, not 'head'"):
        group(pravega, to=wrong)
    with pytest.raises(ValueError, match="ends for other streams than its own: other"):
        group(pravega, to={"other": "tail"})
    with pytest.raises(ValueError, match="shared with clients in Rust has no end"):
        group(pravega, shared_with="rust", to="tail")
    with pytest.raises(ValueError, match="needs the start"):
        await group(pravega).reset(to="tail")


async def test_the_ends_of_a_group_are_those_that_a_java_client_writes(pravega: Client) -> None:
    (_, written, _), *_ = java_updates()
    theirs = decode_update(*decode_kind(written))
    assert isinstance(theirs, InitialState)
    config = decode_config(java_configs()["full"])
    assert config.ends
    assert theirs.ends
    ours = await initial_state(pravega.controller, config._replace(starts={}))
    assert ours.ends == theirs.ends


async def test_a_segment_that_ends_with_its_group_has_no_successors(pravega: Client) -> None:
    """As Java's readers have it in a group whose end is that of the segment, -1."""
    await fill(pravega, 20, segments=1)
    await pravega.controller.scale("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)], wait_ms=10_000)
    await fill(pravega, 20, start=20)
    await made(pravega, GroupConfig({"a/s": {}}, {"a/s": {0: -1}}, refresh_ms=20))
    async with group(pravega, streams=()) as shared, shared.reader("r") as reader:
        assert [segment.segment for segment in (await shared.metrics()).segments] == [FIRST]
        assert numbers([event async for event in reader]) == list(range(20))


async def test_a_position_of_minus_one_is_the_end_of_its_segment(pravega: Client) -> None:
    """As readers in Java record it."""
    await fill(pravega, 20, segments=1)
    async with group(pravega) as shared:
        length = (await shared.metrics()).segments[0].end
    await pravega.controller.scale("a", "s", [0], [(0.0, 0.5), (0.5, 1.0)], wait_ms=10_000)
    await fill(pravega, 20, start=20)
    async with group(pravega, streams=()) as shared:
        await shared._shared.fetch()
        await shared._shared.change(lambda draft: (draft.join("java"), draft.acquire("java", 1)))
        await shared._shared.change(lambda draft: draft.add(RemoveReader("java", {FIRST: -1})))
        assert await shared.cuts() == {"a/s": {0: length}}
        lags = {segment.segment: segment.unread_bytes for segment in (await shared.metrics()).segments}
        assert (lags[FIRST], sum(lags.values()) > 0) == (0, True)
        async with shared.reader("r") as reader:
            assert numbers(await take(reader, 20)) == list(range(20, 40))


async def test_a_stream_keeps_what_its_group_has_not_read(pravega: Client) -> None:
    await fill(pravega, 40, segments=1)
    config = await pravega.controller.stream_config("a", "s")
    await pravega.controller.update_stream("a", "s", replace(config, retention=RetentionPolicy.by_size(1)))
    async with group(pravega, checkpoint_ms=20, retention="automatic") as shared, shared.reader("r") as reader:
        await take(reader, 30)
        published = asyncio.ensure_future(take(reader, 11))

        async def is_published() -> bool:
            found = (await shared._shared.fetch()).checkpoints
            return found.last is not None and found.published

        await until_read(is_published)
        published.cancel()
        with pytest.raises(ConditionFailed, match="is 'automatic', not 'manual'"):
            await shared.update_retention({"s": {0: 0}})
    async with group(pravega, "manual", retention="manual") as shared:
        await shared.update_retention({"s": {0: 8}, "a/s": {0: 16}})
        with pytest.raises(RequestRejected, match="STREAM_CUT_NOT_VALID"):
            await shared.update_retention({"s": {0: 8}})


async def test_a_retention_that_is_refused_does_not_end_a_reader(
    pravega: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(pravega, 10, segments=1)

    async def refused(*_: object) -> None:
        raise RequestRejected("STREAM_CUT_NOT_VALID")

    monkeypatch.setattr(Controller, "update_subscriber_cut", refused)
    async with group(pravega, checkpoint_ms=20, retention="automatic") as shared, shared.reader("r") as reader:
        reading = asyncio.ensure_future(take(reader, 11))
        await until(lambda: "the checkpoint of a/g does not bound the retention of a/s" in caplog.text)
        await fill(pravega, 1, start=10)
        assert numbers(await reading) == list(range(11))


async def test_a_refresh_interval_that_is_none_does_not_keep_a_reader_busy(
    pravega: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client may have written it."""
    await fill(pravega, 5, segments=1)
    await made(pravega, GroupConfig({"a/s": {}}, refresh_ms=-5))
    kept: list[str] = []
    keep = GroupReader._keep

    async def counted(self: GroupReader) -> None:
        kept.append(self.name)
        await keep(self)

    monkeypatch.setattr(GroupReader, "_keep", counted)
    async with group(pravega, streams=()) as shared, shared.reader("r") as reader:
        assert numbers(await take(reader, 5)) == list(range(5))
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert not kept
