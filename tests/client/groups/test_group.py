"""Reader groups against stores and a controller in this process: shares, hand-over, crashes, scaling, the end.

A checkpoint: each reader takes part between two events, and the whole splits the events into before and after.
"""

import asyncio
import time
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from segstore.client import Checkpoint, ReaderGroup
from segstore.client.client import Client
from segstore.client.errors import (
    Closed,
    ConditionFailed,
    NoSuchReaderGroup,
    NoSuchStream,
    ReaderExists,
    ReaderOffline,
    RequestRejected,
    RequestTimedOut,
    TokenRefused,
)
from segstore.client.groups import CheckpointTaken, GroupChange, GroupEvent, GroupForm, GroupReader
from segstore.client.groups.shared import SharedGroup
from segstore.server import FaultSettings
from segstore.server.cluster import MockCluster
from segstore.server.controller.api import Accounts, Authority
from segstore.wire.reader_groups import SILENT
from tests.client.groups.support import KEYS, fill, group
from tests.client.support import client
from tests.client.support import until as until_now
from tests.looped import looped

pytestmark = pytest.mark.usefixtures("grpc_runs")


@pytest.fixture(params=["java", "rust"])
def form(request: pytest.FixtureRequest) -> GroupForm:
    """Each form that a group can have."""
    found: GroupForm = request.param
    return found


KEY = "k" * 64


async def take(reader: GroupReader, count: int) -> list[GroupEvent]:
    got: list[GroupEvent] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            event = await reader.read()
            got.append(event)
    return got


def numbers(events: list[GroupEvent]) -> list[int]:
    return sorted(int(event.data.partition(b":")[2]) for event in events)


async def until(reads: Any, deadline_s: float = 60) -> None:
    async with asyncio.timeout(deadline_s):
        while not await reads():  # noqa: ASYNC110 — what is waited for is in the group's state
            await asyncio.sleep(0.01)


async def test_a_reader_goes_on_where_another_stopped(form: GroupForm) -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega:
        await fill(pravega, 100, segments=3)
        async with group(pravega, shared_with=form) as shared:
            async with shared.reader("first") as reader:
                first = await take(reader, 40)
                assert await shared.readers() == ["first"]
                with pytest.raises(ReaderExists):
                    await shared.reader("first").open()
            assert await shared.readers() == []
            async with group(pravega, streams=(), shared_with=form) as joined, joined.reader("second") as reader:
                second = await take(reader, 60)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await reader.read()
        assert numbers(first + second) == list(range(100))


async def test_an_event_that_was_not_handled_is_read_again(form: GroupForm, pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    async with group(pravega, shared_with=form) as shared:
        seen: list[GroupEvent] = []

        async def fail_at_the_fourth() -> None:
            async with shared.reader("r") as reader:
                async for event in reader:
                    seen.append(event)
                    if len(seen) == 4:
                        raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_at_the_fourth()
        async with shared.reader("r") as reader:
            again = await take(reader, 7)
            assert again[0] == seen[3]
            assert again[0].position == (reader.segments[0], again[0].offset + 8 + len(again[0].data))
            assert reader.positions == {again[5].position.segment: again[5].position.offset}


async def test_segments_of_a_crashed_reader_go_on_at_its_record_or_where_the_user_says(
    form: GroupForm, pravega: Client
) -> None:
    await fill(pravega, 20, segments=1)
    async with group(pravega, shared_with=form) as shared:
        crashed = shared.reader("r")
        await crashed.open()
        got = await take(crashed, 6)

        async def recorded() -> bool:
            return (await shared.cuts())["a/s"][0] == got[4].position.offset

        await until(recorded)
        await crashed.abort()
        assert await shared.readers() == ["r"]
        assert await shared.reader_offline("r")
        assert not await shared.reader_offline("r")
        again = shared.reader("r")
        await again.open()
        assert (await take(again, 1))[0] == got[5]
        await again.abort()
        place = got[2].position
        assert await shared.reader_offline("r", {place.segment: place.offset})
        async with shared.reader("r") as reader:
            assert (await take(reader, 1))[0] == got[3]


async def test_readers_share_the_segments_as_they_come_and_go_and_each_event_is_read_once(form: GroupForm) -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as one, client(mock) as two:
        await fill(one, 0, segments=6)
        got: dict[str, list[GroupEvent]] = {}

        async def read(pravega: Client, name: str, stop: asyncio.Event) -> None:
            got[name] = []
            async with group(pravega, shared_with=form) as shared, shared.reader(name) as reader:
                readers[name] = reader
                stopping = asyncio.create_task(stop.wait())
                while not stop.is_set():
                    next_event = asyncio.create_task(reader.read())
                    await asyncio.wait((next_event, stopping), return_when=asyncio.FIRST_COMPLETED)
                    if not next_event.done():
                        next_event.cancel()
                        await asyncio.wait((next_event,))
                    elif (event := next_event.result()) is not None:
                        got[name].append(event)
                await stopping

        readers: dict[str, GroupReader] = {}
        stops = {name: asyncio.Event() for name in ("a", "b", "c")}

        async def balanced(*sizes: int) -> None:
            async def holds() -> bool:
                return sorted(len(reader.segments) for reader in readers.values()) == sorted(sizes)

            await until(holds)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(one, "a", stops["a"]))
            await balanced(6)
            await fill(one, 300)
            tasks.create_task(read(two, "b", stops["b"]))
            await balanced(3, 3)
            await fill(one, 300, start=300)
            tasks.create_task(read(one, "c", stops["c"]))
            await balanced(2, 2, 2)
            stops["b"].set()
            await fill(one, 300, start=600)
            readers.pop("b")
            await balanced(3, 3)
            await fill(one, 300, start=900)

            async def all_read() -> bool:
                return sum(map(len, got.values())) >= 1200

            await until(all_read)
            stops["a"].set()
            stops["c"].set()
        events = [event for each in got.values() for event in each]
        assert numbers(events) == list(range(1200))
        assert all(len(each) > 0 for each in got.values())


async def test_successors_are_read_after_all_that_they_follow_and_the_group_ends_with_its_streams(
    form: GroupForm,
) -> None:
    async with MockCluster(watched=False, stores=2) as mock, client(mock) as pravega:
        await fill(pravega, 80, segments=2)
        for count in (3, 2, 5):
            edges = [number / count for number in range(count + 1)]

            async def scaled(edges: list[float] = edges) -> bool:
                now = [segment.segment_id for segment in await pravega.controller.current_segments("a", "s")]
                try:
                    return bool(await pravega.controller.scale("a", "s", now, list(pairwise(edges))))
                except RequestRejected:
                    return False  # the scale before is still under way

            await until(scaled)
            await fill(pravega, 80, start=80 * (1 + (3, 2, 5).index(count)))
        await pravega.controller.seal_stream("a", "s")
        order: list[bytes] = []

        async def read(name: str) -> None:
            async with shared.reader(name) as reader, asyncio.timeout(60):
                async for event in reader:
                    order.append(event.data)  # noqa: PERF401 — two append by turns

        async with group(pravega, shared_with=form) as shared:
            await asyncio.gather(read("one"), read("two"))
            assert await shared.cuts() == {}
        assert len(order) == 320
        for key in range(KEYS):
            mine = [int(each.partition(b":")[2]) for each in order if each.startswith(b"k%d:" % key)]
            assert mine == list(range(key, 320, KEYS))


async def test_a_segment_is_not_given_up_while_its_event_is_in_the_users_hands(
    form: GroupForm, pravega: Client
) -> None:
    await fill(pravega, 40, segments=2)
    async with group(pravega, shared_with=form) as shared, shared.reader("first") as first:
        event = (await take(first, 1))[0]
        async with shared.reader("second") as second:

            async def two() -> bool:
                return bool(first.segments and second.segments)

            await until(two)
            assert first.segments == [event.position.segment]


async def test_groups_start_at_the_head_the_tail_and_a_cut(form: GroupForm, pravega: Client) -> None:
    await fill(pravega, 30)
    await fill(pravega, 5, stream="t", segments=1)
    async with group(pravega, "tail", streams=["s", "a/t"], from_="tail", shared_with=form) as late:
        assert await late.streams() == ["a/s", "a/t"]
        await fill(pravega, 1, start=30)
        async with late.reader("r") as reader:
            assert numbers(await take(reader, 1)) == [30]
    async with group(pravega, "half", shared_with=form) as half:
        async with half.reader("r") as reader:
            before = await take(reader, 12)
        cut = await half.cuts()
    begin = {"s": cut["a/s"], "a/t": "tail"}
    async with (
        group(pravega, "cut", streams=["s", "t"], from_=begin, shared_with=form) as rest,
        rest.reader("r") as reader,
    ):
        after = await take(reader, 19)
    assert numbers(before + after) == list(range(31))


async def test_groups_and_streams_that_are_not_there_are_named(pravega: Client) -> None:
    await fill(pravega, 0)
    with pytest.raises(NoSuchReaderGroup, match="reader group a/none does not exist"):
        await group(pravega, "none", streams=()).open()
    with pytest.raises(NoSuchStream):
        await group(pravega, "none", streams=["nothing"]).open()
    with pytest.raises(ValueError, match="starts for other streams than its own"):
        group(pravega, from_={"other": "head"})
    with pytest.raises(ValueError, match="refresh_ms"):
        group(pravega, refresh_ms=0)


async def test_silent_checkpoints_are_taken_without_notice_and_automatic_ones_with(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    changes: list[GroupChange] = []
    async with group(pravega, checkpoint_ms=20) as shared, shared.reader("r", listener=changes.append) as reader:
        await take(reader, 10)
        await shared._shared.change(lambda draft: draft.begin_checkpoint(f"cuts{SILENT}"))
        reading = asyncio.create_task(reader.read())

        async def both() -> bool:
            found = (await shared._shared.fetch()).checkpoints
            return not found.awaited("r") and found.last is not None

        await until(both)
        reading.cancel()
        names = [change.name for change in changes if isinstance(change, CheckpointTaken)]
        assert names
        assert not [name for name in names if SILENT in name]


async def test_segments_that_are_given_up_while_a_checkpoint_begins_are_read_once(
    pravega: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(pravega, 40, segments=4)
    async with group(pravega) as shared, shared.reader("one") as reader:
        change, begun = SharedGroup.change, asyncio.Event()

        async def late(self: SharedGroup, decide: Any) -> Any:
            if reader._given_up and not begun.is_set():
                begun.set()
                await change(shared._shared, lambda draft: draft.begin_checkpoint("c"))
            return await change(self, decide)

        monkeypatch.setattr(SharedGroup, "change", late)
        await change(shared._shared, lambda draft: draft.join("two"))
        async with asyncio.timeout(60):
            await begun.wait()
        reading = asyncio.create_task(take(reader, 40))

        async def released() -> bool:
            return len((await shared._shared.fetch()).unassigned) == 2

        await until(released)
        await shared.reader_offline("two")
        assert numbers(await reading) == list(range(40))


async def test_readers_of_a_deleted_group_end_and_its_name_is_free(form: GroupForm, pravega: Client) -> None:
    await fill(pravega, 5, segments=1)
    for _ in range(2):
        async with group(pravega, shared_with=form) as shared, shared.reader("r") as reader:
            assert len(await take(reader, 5)) == 5
            await shared.delete()
            with pytest.raises(NoSuchReaderGroup):
                async with asyncio.timeout(60):
                    await reader.read()
            with pytest.raises(NoSuchReaderGroup):
                await shared.delete()


async def test_a_reader_that_was_put_offline_hears_of_it(form: GroupForm, pravega: Client) -> None:
    await fill(pravega, 1, segments=1)
    async with group(pravega, shared_with=form) as shared, shared.reader("r") as reader:
        await take(reader, 1)
        await shared.reader_offline("r")
        with pytest.raises(ReaderOffline):
            async with asyncio.timeout(60):
                await reader.read()


async def test_what_was_truncated_is_passed_over_and_counted(pravega: Client) -> None:
    await fill(pravega, 20, segments=1)
    async with group(pravega) as shared:
        async with shared.reader("r") as reader:
            first = await take(reader, 10)
        await pravega.controller.truncate_stream("a", "s", {0: first[-1].position.offset})
        async with group(pravega, "other", from_={"s": {0: 0}}) as late, late.reader("r") as reader:
            assert numbers(await take(reader, 10)) == list(range(10, 20))
            assert reader.truncated_bytes == first[-1].position.offset


async def test_a_closed_reader_is_closed_and_can_be_closed_again(pravega: Client) -> None:
    await fill(pravega, 3, segments=1)
    async with group(pravega) as shared:
        reader = shared.reader("r")
        await reader.open()
        with pytest.raises(Closed):
            await reader.open()
        waiting = asyncio.create_task(take(reader, 4))
        await asyncio.sleep(0)
        await reader.aclose()
        await reader.aclose()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await reader.open()


async def test_nothing_is_lost_while_connections_break_and_readers_come_crash_and_go(form: GroupForm) -> None:
    random = Random(1)
    async with MockCluster(stores=2) as mock, client(mock, read_ahead_bytes=2_000) as pravega:
        await fill(pravega, 600, segments=5)
        await pravega.controller.seal_stream("a", "s")
        mock.faults.load(FaultSettings(seed=1))
        for what in ("CONDITIONAL_APPEND", "GET_STREAM_SEGMENT_INFO", "READ_SEGMENT"):
            mock.faults.add(f"type = {what}", skip=5, probability=0.1, do=random.choice(["close", "close after"]))
        got: list[GroupEvent] = []
        crashes = 0

        async with group(pravega, shared_with=form) as shared:

            async def read(name: str) -> None:
                nonlocal crashes
                while True:
                    reader = shared.reader(name)
                    await reader.open()
                    for _ in range(random.randint(20, 120)):
                        event = await reader.read()
                        if event is None:
                            await reader.aclose()
                            return
                        got.append(event)
                        if random.random() < 0.1:
                            await asyncio.sleep(random.random() / 100)
                    if random.random() < 0.5:
                        await reader.aclose()
                    else:
                        crashes += 1
                        await reader.abort()
                        assert await shared.reader_offline(name)

            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                for number in range(4):
                    tasks.create_task(read(f"r{number}"))
            assert await shared.readers() == []
            assert await shared.cuts() == {}
        assert set(numbers(got)) == set(range(600))
        assert len(got) == 600 or crashes


async def test_a_reader_of_a_group_that_was_deleted_and_made_again_has_none(pravega: Client) -> None:
    await fill(pravega, 5, segments=1)
    async with group(pravega, refresh_ms=1_000_000) as shared, shared.reader("r") as reader:
        await take(reader, 1)
        await shared.delete()
        async with group(pravega) as again:
            reader._due.set()
            with pytest.raises(NoSuchReaderGroup):
                async with asyncio.timeout(60):
                    await take(reader, 6)
            assert await again.readers() == []


@pytest.mark.watched
async def test_a_reader_that_cannot_get_offline_says_so_by_its_deadline(mock: MockCluster) -> None:
    async with client(mock, close_timeout_ms=100) as pravega:
        await fill(pravega, 3, segments=1)
        async with group(pravega) as shared:
            reader = shared.reader("r")
            await reader.open()
            await take(reader, 3)
            rule = mock.faults.add("type = CONDITIONAL_APPEND", do="hold")
            with pytest.raises(RequestTimedOut, match="did not go offline within 100 ms"):
                await reader.aclose()
            mock.faults.clear(rule)
            await reader.aclose()


async def test_a_reader_that_is_cancelled_while_it_joins_does_not_stay_online(form: GroupForm) -> None:
    async with MockCluster() as mock, client(mock) as pravega:
        await fill(pravega, 10, segments=2)
        async with group(pravega, shared_with=form) as shared:
            change = {"java": "CONDITIONAL_APPEND", "rust": "UPDATE_TABLE_ENTRIES"}[form]
            rule = mock.faults.add(f"type = {change}", nth=1, do="hold")
            reader = shared.reader("r")
            opening = asyncio.create_task(reader.open())
            await mock.faults.wait_held(rule)
            opening.cancel()
            await asyncio.sleep(0)
            mock.faults.release(rule)
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert await shared.readers() == []
            async with shared.reader("r") as again:
                assert numbers(await take(again, 10)) == list(range(10)), "and its segments are free"


async def test_a_reader_that_is_cancelled_while_another_has_its_name_leaves_that_one_online() -> None:
    async with MockCluster() as mock, client(mock) as pravega:
        await fill(pravega, 10, segments=1)
        async with group(pravega) as shared:
            rule = mock.faults.add("type = CONDITIONAL_APPEND", nth=1, do="hold")
            late = asyncio.create_task(shared.reader("r").open())
            await mock.faults.wait_held(rule)
            async with shared.reader("r") as first:
                late.cancel()
                await asyncio.sleep(0)
                mock.faults.release(rule)
                with pytest.raises(asyncio.CancelledError):
                    await late
                assert await shared.readers() == ["r"]
                assert numbers(await take(first, 10)) == list(range(10))


@looped(("form", "own"), [("java", "reader-group:g"), ("rust", "stream:g_kvtable")])
async def test_a_user_who_may_only_read_a_stream_reads_in_an_existing_group(form: GroupForm, own: str) -> None:
    """As the official clients' do."""
    mine = f"prn::/scope:a,READ;prn::/scope:a/stream:s,READ;prn::/scope:a/{own},READ_UPDATE"
    accounts = Accounts(["ann:secret:prn::*,READ_UPDATE", f"bob:secret:{mine}"])
    async with MockCluster(
        watched=False, auth_key=KEY, authority=Authority(accounts, key=KEY, now_s=time.time)
    ) as mock:
        async with client(mock, username="ann", password="secret") as pravega:
            await fill(pravega, 10)
            await group(pravega, shared_with=form).open()
        async with client(mock, username="bob", password="secret") as pravega:
            async with group(pravega) as shared, shared.reader("r") as reader:
                assert numbers(await take(reader, 10)) == list(range(10))
            with pytest.raises(TokenRefused):
                await group(pravega, "other").open()


class Worker:
    """A reader that handles events until it is cancelled, and keeps what it had handled at each checkpoint."""

    def __init__(self, shared: ReaderGroup, name: str, pause_s: float = 0) -> None:
        self.handled: list[bytes] = []
        self.at: dict[str, set[bytes]] = {}
        self.reader: GroupReader = shared.reader(name, listener=self._on)
        self._pause_s = pause_s

    def _on(self, change: GroupChange) -> None:
        if isinstance(change, CheckpointTaken):
            self.at[change.name] = set(self.handled)

    async def run(self) -> None:
        async with self.reader as reader:
            async for event in reader:
                await asyncio.sleep(self._pause_s)
                self.handled.append(event.data)


async def rest(pravega: Client, checkpoint: Checkpoint, name: str, count: int) -> set[bytes]:
    """Reads what follows a checkpoint, in a group that starts there."""
    found: set[bytes] = set()
    async with group(pravega, name, from_=checkpoint.cuts) as after, after.reader("r") as reader:
        while len(found) < count:
            event = await reader.read()
            found.add(event.data)
    return found


async def test_what_was_handled_at_a_checkpoint_and_what_follows_it_is_everything_once() -> None:
    async with MockCluster(watched=False) as mock, client(mock) as pravega:
        await fill(pravega, 400, segments=3)
        everything = {b"k%d:%d" % (number % 8, number) for number in range(400)}
        async with group(pravega) as shared:
            workers = [Worker(shared, f"r{number}", 0.002) for number in range(3)]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(each.run()) for each in workers]
                await until_now(lambda: all(each.handled for each in workers))
                checkpoint = await shared.checkpoint("c")
                sealed = [segment.segment_id for segment in await pravega.controller.current_segments("a", "s")]
                ranges = [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
                await pravega.controller.scale("a", "s", sealed, ranges, wait_ms=10_000)
                again = await anext(aiter(shared.checkpoints(60)))
                assert again.name != "c"
                for task in running:
                    task.cancel()
            assert (checkpoint.name, list(checkpoint.cuts)) == ("c", ["a/s"])
            for each in (checkpoint, again):
                before = set().union(*[worker.at[each.name] for worker in workers])
                assert before
                after = await rest(pravega, each, f"after-{each.name}", len(everything) - len(before))
                assert before | after == everything
                assert not before & after


async def test_a_reader_at_the_tail_takes_a_checkpoint_and_one_that_does_not_read_is_named(pravega: Client) -> None:
    await fill(pravega, 10, segments=2)
    async with group(pravega) as shared:
        worker = Worker(shared, "busy")
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(worker.run())
            await until_now(lambda: len(worker.handled) >= 10)
            checkpoint = await shared.checkpoint()
            ends = {each: info for each, info in checkpoint.cuts["a/s"].items() if info}
            assert sum(ends.values()) == sum(8 + len(each) for each in worker.handled)
            async with shared.reader("idle"):
                with pytest.raises(RequestTimedOut, match="the readers idle did not take the checkpoint c within"):
                    await shared.checkpoint("c", timeout_ms=300)
                waiting = asyncio.ensure_future(shared.checkpoint("d"))
                await until_now(lambda: "d" in worker.at)
                with pytest.raises(ConditionFailed, match="a checkpoint d of a/g is in progress"):
                    await shared.checkpoint("d")
            assert (await waiting).cuts == checkpoint.cuts  # the idle reader went offline, which takes it
            running.cancel()


async def test_a_group_without_readers_has_its_positions_as_a_checkpoint(pravega: Client) -> None:
    await fill(pravega, 10, segments=2)
    async with group(pravega) as shared:
        assert (await shared.checkpoint()).cuts == await shared.cuts() == {"a/s": {0: 0, 1: 0}}
        await shared.delete()
        with pytest.raises(NoSuchReaderGroup):
            await shared.checkpoint()


async def test_a_listener_that_raises_does_not_take_the_checkpoint_and_is_called_again(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    called: list[GroupChange] = []

    def listener(change: GroupChange) -> None:
        called.append(change)
        if isinstance(change, CheckpointTaken) and len(called) == 2:
            raise ZeroDivisionError

    async with group(pravega) as shared, shared.reader("r", listener=listener) as reader:
        assert await reader.read() is not None
        checkpoint = asyncio.ensure_future(shared.checkpoint("c"))

        async def read_on() -> None:
            while True:
                await asyncio.sleep(0.01)
                await reader.read()

        with pytest.raises(ZeroDivisionError):
            await read_on()
        handled = dict(reader.positions)
        while not checkpoint.done():
            await asyncio.sleep(0.01)
            reading = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        assert len([each for each in called if isinstance(each, CheckpointTaken)]) == 2
        assert (await checkpoint).cuts["a/s"][0] >= next(iter(handled.values()))


async def test_a_checkpoint_that_is_cancelled_or_whose_group_is_deleted_leaves_nothing(pravega: Client) -> None:
    await fill(pravega, 10, segments=1)
    async with group(pravega) as shared, shared.reader("idle") as reader:
        asked = asyncio.ensure_future(shared.checkpoint("c"))
        await until_now(lambda: reader._wanted == ["c"])
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await shared._shared.fetch()).checkpoints.waiting == {}
        assert await reader.read() is not None  # takes what is no more
        assert (await shared._shared.fetch()).checkpoints.waiting == {}
        again = asyncio.ensure_future(shared.checkpoint("d"))
        await until_now(lambda: "d" in reader._wanted)
        await shared.delete()
        with pytest.raises(NoSuchReaderGroup):
            await again


async def test_a_checkpoint_that_is_cancelled_while_it_begins_leaves_nothing() -> None:
    async with MockCluster() as mock, client(mock) as pravega:
        await fill(pravega, 10, segments=1)
        async with group(pravega) as shared:
            rule = mock.faults.add("type = CONDITIONAL_APPEND", nth=1, do="hold")
            asked = asyncio.ensure_future(shared.checkpoint("c"))
            await mock.faults.wait_held(rule)
            asked.cancel()
            await asyncio.sleep(0)
            mock.faults.release(rule)
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert (await shared._shared.fetch()).checkpoints.waiting == {}
